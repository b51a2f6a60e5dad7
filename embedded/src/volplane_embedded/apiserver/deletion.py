"""DELETE of an object or a collection: preconditions, grace periods, finalizers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from volplane_embedded.apiserver import decoding, metadata
from volplane_embedded.apiserver.errors import bad_request, conflict, not_found
from volplane_embedded.apiserver.namespace_lifecycle import Namespaces
from volplane_embedded.apiserver.options import propagation_causes, read_dry_run, refuse_options
from volplane_embedded.apiserver.requests import Query, Request
from volplane_embedded.apiserver.resources import Json, Resource
from volplane_embedded.apiserver.selectors import select
from volplane_embedded.apiserver.storage import Registry, storage_of
from volplane_embedded.apiserver.store import Stored, key_of

__all__ = ["Deleted", "Deletion", "Options"]

_LONGEST_GRACE_SECONDS: Final = 100 * 365 * 86_400

_encode = msgspec.json.Encoder().encode


class _Preconditions(msgspec.Struct, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class _Body(msgspec.Struct, rename="camel"):
    """meta/v1 DeleteOptions. There is no garbage collection, so propagation changes nothing."""

    kind: str | None = None
    api_version: str | None = None
    grace_period_seconds: int | None = None
    preconditions: _Preconditions | None = None
    orphan_dependents: bool | None = None
    propagation_policy: str | None = None
    dry_run: list[str] | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """What a deletion asks for."""

    grace: int | None = None
    uid: str | None = None
    version: str | None = None
    dry_run: bool = False

    @classmethod
    def read(cls, body: bytes, query: Query, content_type: str) -> Options:
        """From the body, or the query where there is none. Raises Failure (400, 422)."""
        asked = [query.text("dryRun")] if query.text("dryRun") else []
        if not body.strip():
            dry, causes = read_dry_run(asked)
            policy, orphan = query.text("propagationPolicy") or None, query.text("orphanDependents")
            causes += propagation_causes(policy, query.flag("orphanDependents") if orphan else None)
            refuse_options("DeleteOptions", causes)
            return cls(_grace(query.number("gracePeriodSeconds")), dry_run=dry)
        value: Any = decoding.decode(body, content_type)
        try:
            given = msgspec.convert(value, _Body)
        except msgspec.ValidationError as why:
            raise bad_request(f"json: cannot unmarshal DeleteOptions: {why}") from None
        if given.kind not in (None, "", "DeleteOptions"):
            message = f"the object provided is unrecognized (must be of type DeleteOptions): {given.kind}"
            raise bad_request(message)
        wanted = given.preconditions or _Preconditions()
        dry, causes = read_dry_run([*(given.dry_run or ()), *asked])
        refuse_options(
            "DeleteOptions", [*propagation_causes(given.propagation_policy, given.orphan_dependents), *causes]
        )
        return cls(_grace(given.grace_period_seconds), wanted.uid, wanted.resource_version, dry)

    def check(self, resource: Resource, meta: Json) -> None:
        """Raises Failure (409) where a precondition does not hold."""
        pairs = (
            ("UID", self.uid, meta["uid"], "The object might have been deleted and then recreated"),
            ("ResourceVersion", self.version, meta["resourceVersion"], "The object might have been modified"),
        )
        for what, wanted, found, guess in pairs:
            if wanted is not None and wanted != found:
                why = (
                    f"the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). {guess}"
                )
                raise conflict(resource.kind, resource.group, meta["name"], why)


def _grace(asked: int | None) -> int | None:
    """Negative periods mean a second, as on a stock server; absurd ones are cut, so that their end has a date."""
    if asked is None:
        return None
    return 1 if asked < 0 else min(asked, _LONGEST_GRACE_SECONDS)


@dataclass(frozen=True, slots=True)
class Deleted:
    """Outcome: the last state in its stored bytes, its uid, and whether the object is gone."""

    data: bytes
    uid: str
    gone: bool


@dataclass(frozen=True, slots=True)
class Deletion:
    """The deleting verbs."""

    registry: Registry
    namespaces: Namespaces

    def one(self, request: Request, options: Options) -> Deleted:
        """DELETE of one object. Raises Failure."""
        self.namespaces.admit_delete(request.resource, request.name)
        return self._delete(request.resource, self.registry.find(request), options)

    def by_name(self, resource: Resource, namespace: str, name: str) -> None:
        """Delete what is there, with the default grace period. Raises Failure."""
        stored = self.registry.store.get(storage_of(resource), key_of(namespace, name))
        if stored is None:
            raise not_found(resource.plural, resource.group, name)
        self._delete(resource, stored, Options())

    def collection(self, request: Request, options: Options) -> list[bytes]:
        """DELETE of all that the selectors match; gives them as they were before."""
        resource, query = request.resource, request.query
        selection = select(resource, query.text("labelSelector"), query.text("fieldSelector"))
        chosen = [
            stored
            for stored in self.registry.store.all(storage_of(resource), request.namespace)
            if selection is None or selection.keeps(stored.data)
        ]
        for stored in chosen:
            current = self.registry.store.get(storage_of(resource), stored.key)
            if current is not None:
                self._delete(resource, current, options)
        return [stored.data for stored in chosen]

    def _delete(self, resource: Resource, stored: Stored, options: Options) -> Deleted:
        obj = stored.decode()
        meta = obj["metadata"]
        options.check(resource, meta)
        uid = meta["uid"]
        waits = self._waits(resource, obj, options)
        if waits is None:
            return Deleted(stored.data, uid, gone=False)
        changed = obj != stored.decode()
        data = _encode(obj) if changed else stored.data
        if options.dry_run:
            return Deleted(data, uid, gone=not waits)
        if changed and (waits or resource.graceful):
            data = self.registry.put(resource, obj).data
        if not waits:
            data = self.registry.remove(resource, stored.key).data
            if namespace := meta.get("namespace"):
                self.namespaces.finish(namespace)
        elif changed and resource is self.namespaces.resource:
            self.namespaces.empty(meta["name"])
        return Deleted(data, uid, gone=not waits)

    def _waits(self, resource: Resource, obj: Json, options: Options) -> bool | None:
        """Begin the deletion of `obj` in place: whether it has to wait; None when it already waits and nothing changes."""
        meta, now = obj["metadata"], self.registry.now()
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
                self.namespaces.terminate(obj)
            return True
        return False


def _begin_grace(meta: Json, grace: int, now: datetime) -> None:
    meta["deletionTimestamp"] = metadata.timestamp(now + timedelta(seconds=grace))
    meta["deletionGracePeriodSeconds"] = grace
    if meta.get("generation"):
        meta["generation"] += 1


def _shorten(meta: Json, grace: int | None) -> bool:
    """Bring a pending deletion forward; it can never be put off."""
    before = meta["deletionGracePeriodSeconds"]
    if grace is None or grace >= before:
        return False
    end = datetime.fromisoformat(meta["deletionTimestamp"])
    meta["deletionTimestamp"] = metadata.timestamp(end - timedelta(seconds=before - grace))
    meta["deletionGracePeriodSeconds"] = grace
    return True
