"""Where the machinery meets what knows kinds: admission, tables, discovery, schemas to publish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from volplane_embedded.apiserver.admission import Admission
from volplane_embedded.apiserver.discovery import Discovery
from volplane_embedded.apiserver.openapi import OpenApi
from volplane_embedded.apiserver.requests import Answer
from volplane_embedded.apiserver.resources import Json, Resource
from volplane_embedded.apiserver.storage import Registry, storage_of
from volplane_embedded.apiserver.tables import table

__all__ = ["Kinds"]


class Kinds:
    """One API server's view of the kinds it serves."""

    def __init__(self, registry: Registry, disabled_admission: frozenset[str]) -> None:
        """Raises ValueError for an unknown admission plugin."""
        self._registry = registry
        self._discovery = Discovery(registry.resources)
        self._openapi = OpenApi(registry.resources)
        self.admission = Admission(self._classes, disabled_admission)

    def _classes(self) -> Iterator[Json]:
        for resource in self._registry.resources:
            if resource.plural == "storageclasses":
                yield from (stored.decode() for stored in self._registry.store.all(storage_of(resource)))

    def table(self, resource: Resource, objects: Sequence[Json], metadata: Json, include: str) -> Json:
        return table(resource, objects, metadata, include, now=self._registry.now())

    def document(self, path: str, accept: str) -> Answer | None:
        """Discovery, /version and schemas; None for an unknown path."""
        found = self._discovery.document(path, accept)
        if found is not None:
            return _document(msgspec.json.encode(found[0]), found[1])
        published = self._openapi.document(path, accept)
        return None if published is None else _document(*published)


def _document(body: bytes, content_type: str) -> Answer:
    return Answer(200, {"Content-Type": content_type, "Vary": "Accept"}, body)
