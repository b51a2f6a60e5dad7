"""The lives of custom kinds: a kind is served while its CustomResourceDefinition is there.

A new server has the definitions of snapshots, as most clusters do, and that of ReferenceGrants with their gate.
Deleting a definition deletes its objects, and then ends the kind, as the controllers of a stock server do. Source:
`pkg/controller/finalizer` of k8s.io/apiextensions-apiserver.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Collection
from importlib import resources as files

import msgspec

from volplane_embedded.apiserver.errors import forbidden
from volplane_embedded.apiserver.kinds import GRANTS_GROUP
from volplane_embedded.apiserver.kinds.customresourcedefinitions import CLEANUP, defined
from volplane_embedded.apiserver.namespace_lifecycle import Delete
from volplane_embedded.apiserver.resources import DEFINITIONS_GROUP, Json, Resource
from volplane_embedded.apiserver.scalars import format_time
from volplane_embedded.apiserver.storage import ObjectStorage, storage_of


class _Meta(msgspec.Struct, rename={"deletion": "deletionTimestamp"}, gc=False):
    name: str
    deletion: str | None = None


class _Stored(msgspec.Struct, gc=False):
    """A stored definition; its name is also where the objects that it defines are stored."""

    metadata: _Meta
    spec: msgspec.Raw

    def defines(self, resource: Resource) -> bool:
        return self.metadata.name == storage_of(resource)


_decode = msgspec.json.Decoder(_Stored).decode


@functools.cache
def _shipped() -> tuple[Json, ...]:
    data = files.files("volplane_embedded.apiserver").joinpath("data")
    of_snapshots = msgspec.json.decode(data.joinpath("definitions.json").read_bytes())
    return (*of_snapshots, msgspec.json.decode(data.joinpath("reference_grant.json").read_bytes()))


def definitions(*groups: str) -> list[Json]:
    """Return the CustomResourceDefinitions of these API groups, as a client creates them."""
    kind = {"apiVersion": f"{DEFINITIONS_GROUP}/v1", "kind": "CustomResourceDefinition"}
    return [{**kind, **each} for each in _shipped() if each["spec"]["group"] in groups]


class CustomKinds:
    """The kinds that the stored definitions define. delete: the deletion of their objects."""

    def __init__(self, objects: ObjectStorage, delete: Delete) -> None:
        self._objects = objects
        self._delete = delete
        self._definitions = next((each for each in objects.resources if each.group == DEFINITIONS_GROUP), None)

    def install(self, without: Collection[str]) -> None:
        """Create the definitions, less those of the API groups `without`, if there are none.

        That of ReferenceGrants is created if it is missing: their gate may be new for what is stored.
        """
        if self._definitions is None:
            return
        storage = storage_of(self._definitions)
        begun = self._objects.store.count(storage) > 0
        now = format_time(self._objects.now())
        for definition in _shipped():
            name = definition["metadata"]["name"]
            group = definition["spec"]["group"]
            known = self._objects.store.get(storage, name) is not None or (begun and group != GRANTS_GROUP)
            if group not in without and not known:
                # Its uid is not drawn, so that those of other objects are the same with it and without it.
                uid = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
                obj: Json = {"metadata": {"name": name, "uid": uid, "creationTimestamp": now}}
                obj["spec"] = definition["spec"]
                self._definitions.strategy.default(obj)
                self._definitions.strategy.prepare_create(obj)
                self._objects.store.put(storage, name, obj)

    def resume(self) -> None:
        """Continue deletions that a crash interrupted."""
        if self._definitions is not None:
            self.changed(self._definitions)

    def served(self) -> list[Resource]:
        """Return the resources that the definitions of now define."""
        return [resource for each in self._stored() for resource in defined(bytes(each.spec))]

    def admit(self, resource: Resource, name: str) -> None:
        """Raise StatusError (403) for an object that may not be created because its definition is being deleted."""
        if resource.schema is not None and any(each.defines(resource) for each in self._terminating()):
            why = "create not allowed while custom resource definition is terminating"
            raise forbidden(resource.plural, resource.group, name, why)

    def changed(self, resource: Resource) -> None:
        """Go on with deletions after a change of objects of the resource: a definition goes after what it defines."""
        for each in self._terminating() if resource.schema is not None else ():
            if resource is self._definitions:
                self._empty(each)
            if resource is self._definitions or each.defines(resource):
                self._finish(each.metadata.name)

    def _empty(self, definition: _Stored) -> None:
        for stored in self._objects.store.all(definition.metadata.name):
            if "deletionTimestamp" not in stored.decode()["metadata"]:
                namespace, _, name = stored.key.rpartition("/")
                for resource in defined(bytes(definition.spec))[:1]:
                    self._delete(resource, namespace, name)

    def _finish(self, name: str) -> None:
        resource, store = self._definitions, self._objects.store
        if resource is None or (stored := store.get(storage_of(resource), name)) is None or store.count(name):
            return
        definition = stored.decode()
        held = definition["metadata"].get("finalizers", ())
        left = [each for each in held if each != CLEANUP]
        if not left:
            self._objects.remove(resource, name)
        elif len(left) < len(held):
            definition["metadata"]["finalizers"] = left
            self._objects.put(resource, definition)

    def _terminating(self) -> list[_Stored]:
        return [each for each in self._stored() if each.metadata.deletion is not None]

    def _stored(self) -> list[_Stored]:
        if self._definitions is None:
            return []
        return [_decode(each.data) for each in self._objects.store.all(storage_of(self._definitions))]
