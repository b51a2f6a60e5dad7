"""Where the machinery meets what knows kinds: admission, schemas, tables, discovery."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from volplane.apiserver.admission import Admission
from volplane.apiserver.discovery import Discovery
from volplane.apiserver.failures import bad_request
from volplane.apiserver.openapi import OpenApi
from volplane.apiserver.registry import Registry, storage_of
from volplane.apiserver.requests import Answer
from volplane.apiserver.resources import Json, Resource
from volplane.apiserver.schema import check
from volplane.apiserver.strategic import strategic_merge
from volplane.apiserver.tables import table

__all__ = ["Kinds"]


class Kinds:
    """One API server's view of the kinds it serves."""

    def __init__(self, registry: Registry, disabled_admission: frozenset[str]) -> None:
        """Raises ValueError for an unknown admission plugin."""
        self._registry = registry
        self._discovery = Discovery(registry.resources)
        self._schemas = OpenApi(registry.resources)
        self.admission = Admission(self._classes, disabled_admission)

    def _classes(self) -> Iterator[Json]:
        for resource in self._registry.resources:
            if resource.plural == "storageclasses":
                yield from (stored.decode() for stored in self._registry.store.all(storage_of(resource)))

    def check(self, resource: Resource, obj: Json, body: bytes | None) -> Sequence[str]:
        """Drop the unknown fields of an object and name them, and those that stand twice in `body`.

        Raises Failure (400) where a type is wrong.
        """
        report = check(resource, obj, body)
        if report.error:
            raise bad_request(report.refusal(resource))
        return report.problems

    def strategic_merge(self, resource: Resource, original: Json, patch: Json) -> Json:
        """`original` with a strategic merge patch merged in. Raises Failure (400 or 422) for a malformed one."""
        return strategic_merge(resource, original, patch)

    def table(self, resource: Resource, objects: Sequence[Json], metadata: Json, include: str) -> Json:
        return table(resource, objects, metadata, include, now=self._registry.now())

    def document(self, path: str, accept: str) -> Answer | None:
        """Discovery, /version and schemas; None for an unknown path."""
        if (schema := self._schemas.document(path, accept)) is not None:
            return Answer(200, {"Content-Type": schema[1], "Vary": "Accept"}, schema[0])
        found = self._discovery.document(path, accept)
        if found is None:
            return None
        document, content_type = found
        return Answer(200, {"Content-Type": content_type, "Vary": "Accept"}, msgspec.json.encode(document))
