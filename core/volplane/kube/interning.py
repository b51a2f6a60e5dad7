"""Equal parts of cached objects kept once in memory, so that a cached volume or claim takes at most 3.5 KB."""

from __future__ import annotations

import sys

from volplane.kube.objects import Claim, KubeObject, Metadata, Volume

__all__ = ["Interner"]

_LONGEST_SHARED = 64


class Interner:
    """Makes equal strings, lists and maps of different objects the same one in memory.

    Cached objects are read-only by contract, so sharing is not seen. `limit` bounds how many distinct lists and maps
    are kept; when it is reached, they are dropped and the next ones are kept.
    """

    def __init__(self, limit: int = 4096) -> None:
        self._limit = limit
        self._lists: dict[tuple[str, ...], list[str]] = {}
        self._maps: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}

    def share(self, obj: KubeObject) -> None:
        """Replace, in place, parts of `obj` that are equal to parts of objects seen before."""
        self._metadata(obj.metadata)
        if isinstance(obj, Volume):
            self._volume(obj)
        elif isinstance(obj, Claim):
            self._claim(obj)

    def _metadata(self, meta: Metadata) -> None:
        meta.namespace = sys.intern(meta.namespace)
        meta.finalizers = self._list(meta.finalizers)
        meta.labels = _keys(meta.labels)
        meta.annotations = _keys(meta.annotations)

    def _volume(self, volume: Volume) -> None:
        spec = volume.spec
        spec.capacity = self._map(spec.capacity)
        spec.access_modes = self._list(spec.access_modes)
        spec.mount_options = self._list(spec.mount_options)
        spec.storage_class_name = sys.intern(spec.storage_class_name)
        spec.volume_mode = sys.intern(spec.volume_mode)
        spec.persistent_volume_reclaim_policy = sys.intern(spec.persistent_volume_reclaim_policy)
        if spec.claim_ref is not None:
            ref = spec.claim_ref
            ref.kind, ref.api_version = sys.intern(ref.kind), sys.intern(ref.api_version)
            ref.namespace = sys.intern(ref.namespace)
        volume.status.phase = sys.intern(volume.status.phase)

    def _claim(self, claim: Claim) -> None:
        spec, status = claim.spec, claim.status
        spec.access_modes = self._list(spec.access_modes)
        status.access_modes = self._list(status.access_modes)
        status.capacity = self._map(status.capacity)
        status.phase = sys.intern(status.phase)
        if spec.resources is not None:
            spec.resources.requests = self._map(spec.resources.requests)
        if spec.storage_class_name is not None:
            spec.storage_class_name = sys.intern(spec.storage_class_name)
        if spec.volume_mode is not None:
            spec.volume_mode = sys.intern(spec.volume_mode)

    def _list(self, items: list[str] | None) -> list[str] | None:
        if not items:
            return items
        found = self._lists.get(key := tuple(items))
        if found is None:
            if len(self._lists) >= self._limit:
                self._lists.clear()
            found = self._lists[key] = [sys.intern(item) for item in items]
        return found

    def _map(self, items: dict[str, str] | None) -> dict[str, str] | None:
        if not items:
            return items
        found = self._maps.get(key := tuple(items.items()))
        if found is None:
            if len(self._maps) >= self._limit:
                self._maps.clear()
            found = self._maps[key] = _keys(items) or items
        return found


def _keys(items: dict[str, str] | None) -> dict[str, str] | None:
    """Return the same map with shared keys and short values (`yes`, a driver's name)."""
    if not items:
        return items
    return {
        sys.intern(key): sys.intern(value) if len(value) <= _LONGEST_SHARED else value for key, value in items.items()
    }
