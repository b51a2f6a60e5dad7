"""Performs steps: each is one API call, whose answer goes into the cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volplane.controller.actions import Create, Delete, LiveReads, Patch
from volplane.errors import ApiError, ApiNotFound, VolplaneError
from volplane.kube.cache import Cache
from volplane.kube.client import Client
from volplane.kube.kinds import Kind
from volplane.kube.objects import KubeObject

__all__ = ["NothingChanged", "Steps"]


class NothingChanged(VolplaneError):
    """A patch left the object as it was: the same decision would follow without end."""


class Steps:
    """Performs steps and puts the answers into `caches` (by plural). Kinds without a cache can be used too, and other
    structs than a cache holds.
    """

    def __init__(self, client: Client, caches: Mapping[str, Cache[Any]]) -> None:
        self._client = client
        self._caches = caches

    async def patch(self, step: Patch) -> None:
        """Patch the object. Raises NothingChanged, or an Api error."""
        target = step.target
        metadata = {**step.body.get("metadata", {}), "resourceVersion": target.metadata.resource_version}
        answer = await self._client.patch(
            step.kind, target.key, {**step.body, "metadata": metadata}, subresource=step.subresource
        )
        gone = self._learn(step.kind, answer)
        if answer.version == target.version and not gone:
            raise NothingChanged(f"the patch of {step.kind.plural} {target.key} ({step.why}) changed nothing")

    async def create(self, step: Create) -> bool:
        """Create the object and return True; False if it existed already, and was read into the cache instead."""
        try:
            answer = await self._client.create(step.kind, step.body)
        except ApiError as error:
            if not error.already_exists:
                raise
            metadata = step.body.get("metadata", {})
            name, namespace = metadata.get("name", ""), metadata.get("namespace", "")
            await self.refresh(step.kind, f"{namespace}/{name}" if namespace and step.kind.namespaced else name)
            return False
        self._learn(step.kind, answer)
        return True

    async def delete(self, step: Delete) -> None:
        """Delete the object. Raises ApiConflict if it is not the one that was decided upon."""
        target = step.target
        left = await self._client.delete(
            step.kind,
            target.key,
            uid=target.uid,
            resource_version=target.metadata.resource_version if step.exact else None,
            grace_seconds=step.grace_seconds,
        )
        cache = self._cache_of(step.kind)
        if cache is None:
            return
        if left is None:
            cache.observe_deleted(target.key, target.uid)
        else:
            cache.observe(left)

    async def read(self, kind: Kind[Any], key: str, reads: LiveReads) -> None:
        """Read live into the cache and into `reads`: the newest of what the server and the cache know of this object.

        Another object of that name in the cache does not count: after a restore from a backup it no longer exists.
        """
        live = await self.refresh(kind, key)
        cache = self._cache_of(kind)
        if live is not None and cache is not None:
            cached = cache.get(key)
            if cached is not None and cached.uid == live.uid and cached.version > live.version:
                live = cached
        reads.put(kind, key, live)

    async def refresh(self, kind: Kind[Any], key: str) -> KubeObject | None:
        """Read live into the cache; None if the object does not exist."""
        cache = self._cache_of(kind)
        before = None if cache is None else cache.get(key)
        try:
            live: KubeObject = await self._client.get(kind, key)
        except ApiNotFound:
            # What the cache held before the server answered is gone; what came into it meanwhile is newer than this.
            if cache is not None and before is not None:
                cache.observe_deleted(key, before.uid)
            return None
        if cache is not None:
            cache.observe(live)
        return live

    def _cache_of(self, kind: Kind[Any]) -> Cache[Any] | None:
        cache = self._caches.get(kind.plural)
        return cache if cache is not None and cache.kind.struct is kind.struct else None

    def _learn(self, kind: Kind[Any], answer: KubeObject) -> bool:
        """Put an answer into the cache; return True if its last finalizer was removed, and the object with it."""
        meta = answer.metadata
        # The API server answers with the object as it was when the last finalizer was removed; a watch event follows.
        gone = answer.terminating and not meta.finalizers and not meta.deletion_grace_period_seconds
        cache = self._cache_of(kind)
        if cache is not None and gone:
            cache.observe_deleted(answer.key, answer.uid)
        elif cache is not None:
            cache.observe(answer)
        return gone
