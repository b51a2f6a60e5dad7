"""Access to stored objects by request: what get, list, create, update, delete and watch have in common.

The counterpart in Kubernetes is the generic registry (k8s.io/apiserver/pkg/registry/generic/registry).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from volplane_embedded.apiserver.errors import StatusError, not_found
from volplane_embedded.apiserver.requests import Request
from volplane_embedded.apiserver.resources import Json, Resource
from volplane_embedded.apiserver.store import Store, Stored, key_of


def storage_of(resource: Resource) -> str:
    """Store key of the objects of a resource."""
    return resource.storage or (f"{resource.plural}.{resource.group}" if resource.group else resource.plural)


@dataclass(frozen=True, slots=True)
class ObjectStorage:
    """Access to stored objects. now: aware UTC times."""

    store: Store
    now: Callable[[], datetime]
    random: random.Random
    resources: tuple[Resource, ...]
    """Without custom kinds."""
    changed: Callable[[Resource], None] = lambda _resource: None
    """Called after each write."""

    def find(self, request: Request) -> Stored:
        """Return the object that a request names. Raises StatusError (404)."""
        key = key_of(request.namespace, request.name)
        stored = self.store.get(storage_of(request.resource), key)
        if stored is None:
            raise not_found(request.resource.plural, request.resource.group, request.name)
        return stored

    def put(self, resource: Resource, obj: Json) -> Stored:
        """Write an object in its stored form. Raises StatusError (500) if the disk cannot be written; nothing is
        written then.
        """
        meta = obj["metadata"]
        try:
            stored = self.store.put(storage_of(resource), key_of(meta.get("namespace", ""), meta["name"]), obj)
        except OSError as why:
            raise unwritable(why) from why
        self.changed(resource)
        return stored

    def remove(self, resource: Resource, key: str) -> Stored:
        """Remove an object. Returns its last state. Raises StatusError (500) as `put`."""
        try:
            stored = self.store.delete(storage_of(resource), key)
        except OSError as why:
            raise unwritable(why) from why
        self.changed(resource)
        return stored


def unwritable(why: OSError) -> StatusError:
    """Return the error for a client whose write could not be written to disk."""
    return StatusError(500, "InternalError", f"Internal error occurred: the store cannot be written: {why}")
