"""The life cycle of namespaces: creation of objects in them, and their deletion.

In a stock cluster the admission plugin NamespaceLifecycle and the namespace controller do this. Here each write that
can complete a deletion completes it, so that no controller has to run beside the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from volplane_embedded.apiserver.errors import forbidden, not_found
from volplane_embedded.apiserver.resources import Json, Resource
from volplane_embedded.apiserver.storage import ObjectStorage, storage_of
from volplane_embedded.apiserver.store import key_of

INITIAL: Final = ("default", "kube-system", "kube-public", "kube-node-lease")
_IMMORTAL: Final = frozenset({"default", "kube-system", "kube-public"})
_PLURAL: Final = "namespaces"

Delete = Callable[[Resource, str, str], object]
"""Deletes an object by namespace and name, with the default grace period."""


class NamespaceLifecycle:
    """The rules of namespaces. delete: the deletion of objects in a namespace."""

    def __init__(self, objects: ObjectStorage, delete: Delete, custom: Callable[[], Iterable[Resource]]) -> None:
        """custom: returns the resources of custom kinds that are served now."""
        self._objects = objects
        self._delete = delete
        self._namespaces = next((r for r in objects.resources if r.plural == _PLURAL and not r.group), None)
        self._custom = custom

    @property
    def resource(self) -> Resource | None:
        """The resource `namespaces`, None if it is not served."""
        return self._namespaces

    def _kept(self) -> dict[str, Resource]:
        """Return the resources whose objects are in namespaces, by their storage."""
        return {storage_of(r): r for r in (*self._custom(), *reversed(self._objects.resources)) if r.namespaced}

    def _stored(self, name: str) -> Json | None:
        stored = self._objects.store.get(_PLURAL, name)
        return stored.decode() if stored else None

    def admit(self, resource: Resource, namespace: str, name: str) -> None:
        """Check that an object may be created. Raises StatusError: 404 without the namespace, 403 while it is
        deleted.
        """
        if not namespace or self._namespaces is None:
            return
        found = self._objects.store.get(_PLURAL, namespace)
        if found is None:
            raise not_found(_PLURAL, "", namespace)
        if b'"deletionTimestamp"' in found.data and "deletionTimestamp" in found.decode()["metadata"]:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            refused = forbidden(resource.plural, resource.group, name, why)
            message = f"namespace {namespace} is being terminated"
            cause = {"reason": "NamespaceTerminating", "message": message, "field": "metadata.namespace"}
            refused.details["causes"] = [cause]
            raise refused

    def admit_delete(self, resource: Resource, name: str) -> None:
        """Raises StatusError (403) for the namespaces that every cluster has."""
        if resource is self._namespaces and name in _IMMORTAL:
            raise forbidden(_PLURAL, "", name, "this namespace may not be deleted")

    def is_held(self, resource: Resource, obj: Json) -> bool:
        """Tell whether the object is a namespace whose content is not deleted yet."""
        return resource is self._namespaces and bool(obj.get("spec", {}).get("finalizers"))

    def terminate(self, obj: Json) -> None:
        """Change the status of a namespace whose deletion begins."""
        obj.setdefault("status", {})["phase"] = "Terminating"

    def empty(self, name: str) -> None:
        """Delete the content of a terminating namespace, and the namespace if it is then empty."""
        for storage, resource in self._kept().items():
            for stored in self._objects.store.all(storage, name):
                if self._objects.store.get(storage, stored.key) is not None:
                    self._delete(resource, name, stored.key.partition("/")[2])
        self.finish(name)

    def finish(self, name: str) -> None:
        """Remove a terminating namespace if it is empty."""
        found = self._stored(name)
        if self._namespaces is None or found is None or "deletionTimestamp" not in found["metadata"]:
            return
        store = self._objects.store
        if any(store.count(storage, name) for storage in self._kept()):
            return
        finalizers = found.get("spec", {}).get("finalizers")
        if finalizers and "kubernetes" in finalizers:
            finalizers.remove("kubernetes")
            self._objects.put(self._namespaces, found)
        if not finalizers and not found["metadata"].get("finalizers"):
            self._objects.remove(self._namespaces, key_of("", name))

    def resume(self) -> None:
        """Continue deletions that a crash interrupted."""
        for stored in self._objects.store.all(_PLURAL):
            if "deletionTimestamp" in stored.decode()["metadata"]:
                self.empty(stored.key)
