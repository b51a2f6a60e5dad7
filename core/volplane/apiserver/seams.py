"""Where the machinery meets what knows kinds: admission, schemas, tables, discovery."""

from __future__ import annotations

from collections.abc import Sequence

from volplane.apiserver.patches import merge_patch
from volplane.apiserver.registry import Registry
from volplane.apiserver.requests import Answer
from volplane.apiserver.resources import Json, Resource

__all__ = ["Kinds"]


class Kinds:
    """One API server's view of the kinds it serves."""

    def __init__(self, registry: Registry, disabled_admission: frozenset[str]) -> None:
        self._registry = registry
        self._disabled = disabled_admission

    def admit(self, resource: Resource, new: Json, old: Json | None) -> None:
        """Mutating admission."""

    def check(self, resource: Resource, obj: Json) -> Sequence[str]:
        """Unknown fields."""
        return ()

    def strategic_merge(self, resource: Resource, original: Json, patch: Json) -> Json:
        merged: Json = merge_patch(original, patch)
        return merged

    def table(self, resource: Resource, objects: Sequence[Json], metadata: Json, include: str) -> Json:
        rows = [{"cells": [obj["metadata"]["name"]], "object": obj} for obj in objects]
        return {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "rows": rows}

    def document(self, path: str, accept: str) -> Answer | None:
        return None
