"""Keeps a cache in step with the API server: one list, then a watch that goes on from it.

A watch that the server ends or drops is normal traffic: it resumes from the last version that it delivered. A version
that the server no longer has (410) leads to a new list, and listeners of the cache are called for what differs.
"""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Generic, TypeVar

from volplane.backoff import WATCH_ENDED
from volplane.errors import ApiError, ApiGone
from volplane.kube.cache import Cache
from volplane.kube.client import Client
from volplane.kube.objects import KubeObject
from volplane.kube.transport import ApiMetrics
from volplane.kube.watch import Change

__all__ = ["Reflector"]

_LOG = logging.getLogger(__name__)

_QUIET = 90.0  # a server sends a bookmark every minute
_SHORTEST = 240
_LONGEST = 480
_YIELD_EVERY = 256
"""Events after which a reflector yields to the loop, however many more are buffered."""

T = TypeVar("T", bound=KubeObject)


class Reflector(Generic[T]):
    """Fills `cache` with the objects of its kind that the selectors choose.

    With a selector, an object that leaves the selection is deleted from the cache although it exists.
    """

    def __init__(
        self,
        client: Client,
        cache: Cache[T],
        *,
        random: Random,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        metrics: ApiMetrics | None = None,
    ) -> None:
        self._client = client
        self._cache = cache
        self.kind = cache.kind
        self._random = random
        self._namespace = namespace
        self._labels = label_selector
        self._fields = field_selector
        self._metrics = metrics
        self._failures = 0
        self.failing = ""
        """Why the last try failed; empty while all is well."""

    async def run(self) -> None:
        """List and watch until cancelled. No error of the API server ends it."""
        version: int | None = None
        while True:
            try:
                if version is None:
                    version = await self._list()
                version = await self._follow(version)
            except ApiGone as error:
                _LOG.info("%s: listing again: %s", self.kind.plural, error)
                self._ended("gone")
                if version is None:
                    await self._pause(error)
                version = None
            except ApiError as error:
                self._ended("error")
                version = self._cache.reached if self._cache.synced and version is not None else None
                await self._pause(error)

    async def _list(self) -> int:
        seen: set[str] = set()
        version = 0
        async for page in self._client.pages(
            self.kind, namespace=self._namespace, label_selector=self._labels, field_selector=self._fields
        ):
            self._reset_if_restored(page.version)
            seen.update(page.unreadable)
            for obj in page.items:
                seen.add(obj.key)
                self._cache.observe(obj)
            version = page.version
            await asyncio.sleep(0)
        self._cache.prune(seen, version)
        self._cache.mark_synced()
        if self._metrics is not None:
            self._metrics.listed(self.kind.plural)
        return version

    def _reset_if_restored(self, version: int) -> None:
        """Empty the cache if the server was restored or replaced: its versions are lower than the cached ones."""
        if version < self._cache.reached:
            text = "%s: the server's version went back from %d to %d: starting from an empty cache"
            _LOG.warning(text, self.kind.plural, self._cache.reached, version)
            self._cache.clear()

    async def _follow(self, version: int) -> int:
        """One watch; the version to go on from."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        seconds = self._random.randint(_SHORTEST, _LONGEST)
        delivered = 0
        async with self._client.watch(
            self.kind,
            version=version,
            namespace=self._namespace,
            label_selector=self._labels,
            field_selector=self._fields,
            seconds=seconds,
            quiet=_QUIET,
        ) as changes:
            async for change in changes:
                if change.type == "BOOKMARK" and 0 < change.version < version:
                    # A watch from a version that the server has not reached delivers nothing but this bookmark.
                    raise ApiGone(f"version {version} is not known, the newest is {change.version}", status=410)
                self._apply(change)
                version = max(version, change.version)
                self._cache.reached = max(self._cache.reached, version)
                if not delivered:
                    self._healthy()
                delivered += 1
                if delivered % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
        self._ended("end")
        if not delivered and clock() - begun < 1.0:
            await self._pause(None)
        else:
            self._healthy()
        return version

    def _apply(self, change: Change[T]) -> None:
        if change.type == "DELETED":
            self._cache.observe_deleted(change.about.key, change.about.uid, change.version)
        elif change.object is not None:
            self._cache.observe(change.object)

    def _healthy(self) -> None:
        self.failing = ""
        self._failures = 0

    def _ended(self, why: str) -> None:
        if self._metrics is not None:
            self._metrics.watch_ended(self.kind.plural, why)

    async def _pause(self, error: ApiError | None) -> None:
        self._failures += 1
        asked = error.retry_after if error is not None else None
        pause = WATCH_ENDED.delay(self._failures, asked=asked, random=self._random)
        if error is not None:
            self.failing = str(error)
            _LOG.warning("%s: trying again in %.1f s: %s", self.kind.plural, pause, error)
        await asyncio.sleep(pause)
