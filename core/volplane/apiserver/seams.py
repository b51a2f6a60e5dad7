"""Where the machinery meets what knows kinds: admission, schemas, tables, discovery."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from volplane.apiserver.admission import Admission
from volplane.apiserver.discovery import Discovery
from volplane.apiserver.patches import merge_patch
from volplane.apiserver.registry import Registry, storage_of
from volplane.apiserver.requests import Answer
from volplane.apiserver.resources import Json, Resource
from volplane.apiserver.tables import table

__all__ = ["Kinds"]


class Kinds:
    """One API server's view of the kinds it serves."""

    def __init__(self, registry: Registry, disabled_admission: frozenset[str]) -> None:
        """Raises ValueError for an unknown admission plugin."""
        self._registry = registry
        self._discovery = Discovery(registry.resources)
        self.admission = Admission(self._classes, disabled_admission)

    def _classes(self) -> Iterator[Json]:
        for resource in self._registry.resources:
            if resource.plural == "storageclasses":
                yield from (stored.decode() for stored in self._registry.store.all(storage_of(resource)))

    def check(self, resource: Resource, obj: Json) -> Sequence[str]:
        """Unknown fields."""
        return ()

    def strategic_merge(self, resource: Resource, original: Json, patch: Json) -> Json:
        merged: Json = merge_patch(original, patch)
        return merged

    def table(self, resource: Resource, objects: Sequence[Json], metadata: Json, include: str) -> Json:
        return table(resource, objects, metadata, include, now=self._registry.now())

    def document(self, path: str, accept: str) -> Answer | None:
        """Discovery, /version and schemas; None for an unknown path."""
        found = self._discovery.document(path, accept)
        if found is None:
            return None
        document, content_type = found
        return Answer(200, {"Content-Type": content_type, "Vary": "Accept"}, msgspec.json.encode(document))
