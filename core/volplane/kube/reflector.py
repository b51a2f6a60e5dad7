"""Keeps a cache in step with the API server: one list, then a watch that goes on from it.

A watch that the server ends or drops is normal traffic: it resumes from the last version that it delivered. A version
that the server no longer has (410), or does not have yet because it was restored from a backup, leads to a new list,
and listeners of the cache are called for what differs. There is a pause after every error, and after a watch that ended
at once without a change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import KW_ONLY, dataclass
from random import Random
from typing import Generic, TypeVar

from volplane._delays import WATCH_ENDED
from volplane.errors import ApiError, ApiGone, ApiUnavailable
from volplane.kube.answers import Change
from volplane.kube.cache import Cache
from volplane.kube.client import UNCOUNTED, ApiMetrics, Client, full_list_if_expired
from volplane.kube.objects import KubeObject

_LOG = logging.getLogger(__name__)

_QUIET = 90.0
"""Seconds without a line after which a connection counts as lost; a server that sends bookmarks does every minute."""
_LONG = (240, 480)
"""Shortest and longest watch, in seconds, of a kind that gets bookmarks."""
_SHORT = (60, 80)
"""The same while none have come, or not always: shorter than `_QUIET`, so that a quiet watch ends before it counts as
lost."""
_LASTING = 1.0
"""Seconds after which an open watch counts as a success."""
_EARLY = 5.0
"""A watch that ends so many seconds before its time was ended by something else."""
_NOT_SERVED = 30.0
"""Seconds until a server is asked again for a kind that it does not serve."""
_YIELD_EVERY = 64
"""Objects of a list, or events, after which a reflector yields to the loop, however many more are there."""

T = TypeVar("T", bound=KubeObject)


@dataclass(eq=False, repr=False)
class Reflector(Generic[T]):
    """Fills `cache` with the objects of its kind that the selectors choose, and drops what leaves the selection."""

    client: Client
    cache: Cache[T]
    _: KW_ONLY
    random: Random
    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""
    required: bool = True
    """Whether every server serves the kind. Of another one that is not served the cache is not `listed`."""
    restored: Callable[[], None] = lambda: None
    """Called when the server turns out to be restored from a backup; then it is listed again."""
    expired: Callable[[], None] = lambda: None
    """Called when the server does not know the version of a watch: it may be restored, and other kinds show that."""
    metrics: ApiMetrics = UNCOUNTED

    def __post_init__(self) -> None:
        self.kind = self.cache.kind
        selectors = {"label_selector": self.label_selector, "field_selector": self.field_selector}
        self._where = {"namespace": self.namespace, **selectors}
        self._version: int | None = None
        """Where to go on watching; None: list first."""
        self._bookmarked = False
        self._regular = True
        """Whether no watch fell silent that followed one with a bookmark: they come even while nothing changes."""
        self._doubtful = False
        """Whether the server may have been put back behind the version: no watch has proven that it was not."""
        self._heard = 0.0
        """Loop time at which the watch was opened, or brought something last."""
        self._succeeded = False
        """Whether the watch has delivered something, or lasted."""
        self._failures = 0
        self.failing = ""
        """Why the last try failed; empty while all is well."""

    async def run(self) -> None:
        """List and watch until cancelled. No error of the API server ends it."""
        while True:
            self._succeeded = False
            error: ApiError | None = None
            why = "end"
            try:
                if self._version is None:
                    self._version = await full_list_if_expired(self._read)
                elif self._doubtful:
                    await self._verify(self._version)
                await self._follow(self._version)
            except ApiGone as gone:
                error, why, self._version = gone, "gone", None
                self.expired()
            except ApiError as failed:
                error, why = failed, "error"
            self.metrics.count("watch ended", self.kind.plural, why)
            if error is not None or not self._succeeded:
                await self._pause(error)

    async def _read(self, limit: int) -> int:
        """Take the whole list into the cache; its version."""
        seen: set[str] = set()
        begun = asyncio.get_running_loop().time()
        async for page in self.client.pages(self.kind, limit=limit, **self._where):
            version = page.version
            # The server was restored or replaced if its version, or that of an object, went back.
            wrong = any(self.cache.contradicts(obj, version, begun=begun) for obj in page.items)
            if wrong or version < self.cache.reached:
                text = "%s: the version of the server or of an object went back (%d, now %d): the cache starts empty"
                _LOG.warning(text, self.kind.plural, self.cache.reached, version)
                self.restored()
                self.cache.clear()
                return await full_list_if_expired(self._read)
            seen.update(page.unreadable)
            for number, obj in enumerate(page.items):
                if number % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
                seen.add(obj.key)
                self.cache.observe(obj)
        self.cache.prune(seen, version)
        self.metrics.count("listed", self.kind.plural)
        return version

    async def _verify(self, version: int) -> None:
        """Raise ApiGone if the server has not reached `version`: it was restored from a backup, or replaced."""
        # A stock server lets a watch begin at a version in its future, and sends nothing until it gets there.
        newest = await self.client.newest_version(self.kind, namespace=self._where["namespace"])
        if newest < version:
            self.restored()
            raise ApiGone(f"version {version} is not known, the newest is {newest}", status=410)

    async def _follow(self, version: int) -> None:
        """Follow one watch until it ends. Moves `_version` on."""
        seconds = self.random.randint(*(_LONG if self._bookmarked and self._regular else _SHORT))
        self._bookmarked = False
        self._doubtful = True
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds - _EARLY
        async with self.client.watch(
            self.kind, version=version, seconds=seconds, quiet=_QUIET, **self._where
        ) as changes:
            lasting = loop.call_later(_LASTING, self._succeed)
            self._heard = loop.time()
            try:
                delivered = await self._take(changes, version)
            except ApiUnavailable:
                if loop.time() < self._heard + _QUIET:
                    raise
                # Some servers send bookmarks only after a change of the kind, wherever in the cluster.
                delivered, self._regular = 0, False
                _LOG.info("%s: nothing came for %g s, not even a bookmark: watching on", self.kind.plural, _QUIET)
            finally:
                lasting.cancel()
        # A server ends watches early when it stops; what starts in its place may have been restored.
        self._doubtful = not delivered or loop.time() < due

    async def _take(self, changes: AsyncIterator[Change[T]], version: int) -> int:
        """Take in the changes of a watch that began at `version`; how many there were."""
        delivered, clock = 0, asyncio.get_running_loop().time
        selects = bool(self.label_selector or self.field_selector)
        async for change in changes:
            if change.type == "DELETED":
                about = change.about
                # What left the selection may still exist: it may come back.
                self.cache.observe_deleted(about.key, about.uid, change.version, may_return=selects)
            elif change.object is not None:
                self.cache.observe(change.object)
            elif change.type == "BOOKMARK":
                self._bookmarked = True
            version = self._version = max(version, change.version)
            self.cache.reached = max(self.cache.reached, version)
            self._succeed()
            delivered += 1
            self._heard = clock()
            if delivered % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
        return delivered

    def _succeed(self) -> None:
        self._succeeded = True
        self.failing = ""
        self._failures = 0

    async def _pause(self, error: ApiError | None) -> None:
        self._failures += 1
        asked = error.retry_after if error is not None else None
        pause = WATCH_ENDED.delay(self._failures, asked=asked, random=self.random)
        if isinstance(error, ApiGone):
            _LOG.info("%s: listing again in %.1f s: %s", self.kind.plural, pause, error)
        elif error is not None:
            before, self.failing, level = self.failing, str(error), logging.WARNING
            if error.status == 404 and not self.required:
                self.failing = f"{self.kind.kind} is not served by this API server"
                pause, self._version = _NOT_SERVED, None
                self.cache.listed.clear()
                self.client.served.discard(self.kind.plural)
                level = logging.DEBUG if self.failing == before else logging.INFO
            _LOG.log(level, "%s: trying again in %.1f s: %s", self.kind.plural, pause, self.failing)
        await asyncio.sleep(pause)
