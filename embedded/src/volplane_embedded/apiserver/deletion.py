"""DELETE of an object or a collection: preconditions, grace periods, finalizers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import msgspec

from volplane_embedded.apiserver import metadata
from volplane_embedded.apiserver.errors import not_found
from volplane_embedded.apiserver.namespace_lifecycle import NamespaceLifecycle
from volplane_embedded.apiserver.options import DeleteOptions
from volplane_embedded.apiserver.requests import Request
from volplane_embedded.apiserver.resources import Json, Resource
from volplane_embedded.apiserver.scalars import format_time
from volplane_embedded.apiserver.storage import ObjectStorage, storage_of
from volplane_embedded.apiserver.store import Stored, key_of


class _Meta(msgspec.Struct, gc=False):
    name: str
    namespace: str = ""


class _Named(msgspec.Struct, gc=False):
    metadata: _Meta


_FINALIZERS: Final = {"Foreground": "foregroundDeletion", "Orphan": "orphan", "Background": ""}
"""What holds an object until the garbage collector has seen to its dependents."""

_encode = msgspec.json.Encoder().encode
_decode_named = msgspec.json.Decoder(_Named).decode


@dataclass(frozen=True, slots=True)
class Deleted:
    """The result of a deletion: the last state in stored bytes, the uid, and whether the object is removed."""

    data: bytes
    uid: str
    gone: bool


@dataclass(frozen=True, slots=True)
class Deletion:
    """The deleting verbs."""

    objects: ObjectStorage
    namespaces: NamespaceLifecycle

    def one(self, request: Request, options: DeleteOptions) -> Deleted:
        """DELETE of one object. Raises StatusError."""
        self.namespaces.admit_delete(request.resource, request.name)
        return self._delete(request.resource, self.objects.find(request), options)

    def evict(self, request: Request, options: DeleteOptions) -> None:
        """Delete a pod, and tell in its status why. Raises StatusError."""
        stored = self.objects.find(request)
        options.check(request.resource, stored.decode()["metadata"])
        if not options.dry_run:
            pod = stored.decode()
            request.resource.strategy.evict(pod)
            stored = self.objects.put(request.resource, pod)
        self._delete(request.resource, stored, replace(options, uid=None, version=None))

    def by_name(self, resource: Resource, namespace: str, name: str) -> None:
        """Delete an object with the default grace period. Raises StatusError."""
        stored = self.objects.store.get(storage_of(resource), key_of(namespace, name))
        if stored is None:
            raise not_found(resource.plural, resource.group, name)
        self._delete(resource, stored, DeleteOptions())

    def collection(self, resource: Resource, rows: Iterable[bytes], options: DeleteOptions) -> None:
        """DELETE of all objects that a list returned. One that has gone since is passed over."""
        for row in rows:
            meta = _decode_named(row).metadata
            current = self.objects.store.get(storage_of(resource), key_of(meta.namespace, meta.name))
            if current is not None:
                self._delete(resource, current, options)

    def _delete(self, resource: Resource, stored: Stored, options: DeleteOptions) -> Deleted:
        obj = stored.decode()
        meta = obj["metadata"]
        options.check(resource, meta)
        uid = meta["uid"]
        waits = self._begin_deletion(resource, obj, options)
        if waits is None:
            return Deleted(stored.data, uid, gone=False)
        changed = obj != stored.decode()
        data = _encode(obj) if changed else stored.data
        if options.dry_run:
            return Deleted(data, uid, gone=not waits)
        if changed and (waits or resource.graceful):
            data = self.objects.put(resource, obj).data
        if not waits:
            data = self.objects.remove(resource, stored.key).data
            if namespace := meta.get("namespace"):
                self.namespaces.finish(namespace)
        elif changed and resource is self.namespaces.resource:
            self.namespaces.empty(meta["name"])
        return Deleted(data, uid, gone=not waits)

    def _begin_deletion(self, resource: Resource, obj: Json, options: DeleteOptions) -> bool | None:
        """Begin the deletion of `obj` in place. Returns whether it waits; None if it waits already and nothing
        changes.
        """
        meta, now = obj["metadata"], self.objects.now()
        if resource.collected and options.propagation in _FINALIZERS:
            finalizer = _FINALIZERS[options.propagation]
            others = [each for each in meta.get("finalizers") or () if each not in _FINALIZERS.values()]
            meta["finalizers"] = [*others, *([finalizer] if finalizer else [])]
        if resource.graceful:
            pending = "deletionTimestamp" in meta and bool(meta.get("deletionGracePeriodSeconds"))
            if pending and not _shorten(meta, options.grace):
                return None
            if "deletionTimestamp" not in meta:
                _begin_grace(meta, resource.strategy.grace_seconds(obj, options.grace), now)
            if meta.get("deletionGracePeriodSeconds"):
                return True
        held = self.namespaces.is_held(resource, obj)
        if meta.get("finalizers") or held:
            metadata.mark_deleting(meta, now)
            if held:
                del meta["deletionGracePeriodSeconds"]
                self.namespaces.terminate(obj)
            return True
        return False


def _begin_grace(meta: Json, grace: int, now: datetime) -> None:
    meta["deletionTimestamp"] = format_time(now + timedelta(seconds=grace))
    meta["deletionGracePeriodSeconds"] = grace
    if meta.get("generation"):
        meta["generation"] += 1


def _shorten(meta: Json, grace: int | None) -> bool:
    """Shorten the grace period of a pending deletion; it is never lengthened. Returns whether it changed."""
    before = meta["deletionGracePeriodSeconds"]
    if grace is None or grace >= before:
        return False
    end = datetime.fromisoformat(meta["deletionTimestamp"])
    meta["deletionTimestamp"] = format_time(end - timedelta(seconds=before - grace))
    meta["deletionGracePeriodSeconds"] = grace
    return True
