"""Leader election: at most one process works, and it stops before another may start.

Times are the loop's; wall clocks decide nothing. Candidates count from the moment they saw the Lease change. The leader
counts from the moment it sent the renewal that succeeded, which is earlier.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

from volplane._delays import LEASE_NOT_HELD, LEASE_NOT_RENEWED
from volplane.controller.metrics import Metrics
from volplane.errors import ApiConflict, ApiError, ApiNotFound, ApiUnavailable, ConfigurationError
from volplane.kube.leases import LeaseLock, fence_of
from volplane.kube.objects import Lease
from volplane.requests import Fence

__all__ = ["Elector", "Leadership"]

_LOG = logging.getLogger(__name__)

_RELEASE_SECONDS = 2.0
RENEW_PERIOD = (2.0, 2.4)
"""Seconds between renewals, shortest and longest."""

T = TypeVar("T")


class Leadership:
    """The right to work, for as long as it lasts."""

    def __init__(self, *, fence: Fence | None, until: float, margin: float = 0.0) -> None:
        """margin: seconds before `until` from which nothing new is started. Call it in the loop."""
        self.fence = fence
        """The term; a conditional write of it keeps a former leader out. None = there is no election."""
        self.until = until
        """Loop time at which the right ends; each renewal moves it."""
        self.lost = False
        self.behind: Fence | None = None
        """A later term of our Lease, of which a storage knows and the Lease does not: the server was restored."""
        self._margin = margin
        self._clock = asyncio.get_running_loop().time

    @classmethod
    def alone(cls) -> Leadership:
        """Return the right of a process that runs without election: it has no end."""
        return cls(fence=None, until=math.inf)

    def fenced(self, term: str) -> None:
        """Note the term, as the text of a `Fence`, by which a storage refused a call. May be called in any thread."""
        newer, known = Fence.parse(term), self.behind or self.fence
        if newer is not None and known is not None and newer.outdates(known):
            self.behind = newer

    def may_begin(self) -> bool:
        """Return whether there is time to start something that changes storage. May be called in any thread.

        The loop's clock goes on while the process is stopped: one that is continued after its lease was over starts
        nothing, though no timer of it has fired yet.
        """
        return not self.lost and self._clock() < self.until - self._margin


class Elector:
    """Runs work while this process holds the Lease.

    renew_seconds after the last renewal that went through, work is cancelled; it has the rest of the Lease's duration
    to end. If it does not, `overrun` is called, which should end the process: another leader may start any moment.
    """

    def __init__(
        self,
        lock: LeaseLock,
        *,
        random: Random,
        overrun: Callable[[], None],
        renew_seconds: float = 10.0,
        period: tuple[float, float] = RENEW_PERIOD,
        ensure_namespace: Callable[[], Awaitable[None]] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """period: shortest and longest seconds between renewals. ensure_namespace: creates the namespace of the lease
        if it is missing.
        """
        longest = period[1]
        if not longest < renew_seconds < lock.duration:
            raise ConfigurationError(
                f"leader election of {lock.name}: the period of renewals ({longest:g} s) must be less than renew "
                f"({renew_seconds:g} s), and that less than the lease ({lock.duration} s)"
            )
        self._lock = lock
        self._random = random
        self._overrun = overrun
        self._renew = renew_seconds
        self._renewals = period
        self._ensure_namespace = ensure_namespace
        self._metrics = metrics
        self.failing = ""
        """Why the lease can be neither read nor taken; empty while it can."""
        self.leadership: Leadership | None = None
        """What this process holds now."""

    async def run(self, work: Callable[[Leadership], Awaitable[None]]) -> None:
        """Campaign, work while leading, campaign again after a loss; return (or raise) when `work` does.

        When cancelled, ends the work first and then releases the Lease.
        """
        while True:
            lease, leadership = await self._campaign()
            if await self._lead(lease, leadership, work):
                return

    async def _campaign(self) -> tuple[Lease, Leadership]:
        seen: tuple[Any, ...] | None = None
        since = _now()
        while True:
            over = math.inf
            try:
                lease = await self._bounded(self._lock.read(seconds=self._renew), self._renew)
                if (record := _record(lease)) != seen:
                    seen, since = record, _now()
                if lease is None or lease.spec.holder_identity in {None, "", self._lock.identity}:
                    return await self._take(lease)  # released; or taken by us with an answer that was lost
                ends = since + (lease.spec.lease_duration_seconds or self._lock.duration)
                if _now() >= ends:
                    return await self._take(lease)
                over, self.failing = ends, ""
            except ApiConflict as error:
                _LOG.info("lease %s: %s", self._lock.name, error)
            except ApiError as error:
                await self._cannot(error)
            await asyncio.sleep(min(LEASE_NOT_HELD.delay(random=self._random), over - _now()))

    async def _cannot(self, error: ApiError) -> None:
        """Log once for each reason why there is no election. A missing namespace is created."""
        level = logging.DEBUG if self.failing == str(error) else logging.WARNING
        self.failing = str(error)
        _LOG.log(level, "lease %s can be neither read nor taken, trying on: %s", self._lock.name, error)
        if isinstance(error, ApiNotFound) and self._ensure_namespace is not None:
            try:
                async with asyncio.timeout(self._renew):
                    await self._ensure_namespace()
            except (ApiError, TimeoutError) as failure:
                _LOG.debug("the namespace of lease %s was not made: %s", self._lock.name, failure)

    async def _take(self, lease: Lease | None) -> tuple[Lease, Leadership]:
        began = _now()
        taken = await self._bounded(self._lock.take(lease, seconds=self._renew), self._renew)
        self.failing = ""
        margin = self._lock.duration - self._renew
        return taken, Leadership(fence=fence_of(taken), until=began + self._lock.duration, margin=margin)

    async def _lead(self, lease: Lease, leadership: Leadership, work: Callable[[Leadership], Awaitable[None]]) -> bool:
        """Work until it ends (True) or the lease is lost (False)."""
        self._announce(leadership)
        task = asyncio.ensure_future(work(leadership))
        holding = _Holding(lease, leadership)
        try:
            await self._keep(holding, task)
        finally:
            ended = task.done()
            await self._end(task, leadership)
            self._announce(None)
            # Only a Lease that is still ours is released.
            if not holding.lost:
                await self._release(holding)
        if ended:
            task.result()
        return ended

    async def _keep(self, holding: _Holding, task: asyncio.Future[None]) -> None:
        """Renew until the work ends or renewing has failed for too long."""
        pause = self._random.uniform(*self._renewals)
        while True:
            await asyncio.wait({task}, timeout=pause)
            if task.done():
                return
            # The work gets the rest of the Lease's duration to end, before another process may start.
            last = holding.leadership.until - self._lock.duration + self._renew
            if _now() >= last:
                holding.lost = True
                _LOG.error("lease %s: not renewed for %g s, stopping the work", self._lock.name, self._renew)
                return
            pause = min(await self._renew_once(holding, last), max(0.0, last - _now()))
            if holding.lost:
                return

    async def _renew_once(self, holding: _Holding, last: float) -> float:
        """Try once to renew; return the seconds until the next try."""
        began = _now()
        # Half of what is left: one call that hangs leaves time for another.
        seconds = max(0.1, (last - began) / 2)
        try:
            if (newer := holding.leadership.behind) is not None:
                await self._bounded(self._lock.count_on(holding.lease, newer.transitions, seconds=seconds), seconds)
                holding.lost = True
                _LOG.error("lease %s: storage knows of term %s; a new one begins", self._lock.name, newer.transitions)
                return 0.0
            holding.lease = await self._bounded(self._lock.renew(holding.lease, seconds=seconds), seconds)
        except ApiConflict:
            await self._look(holding, seconds)
            return 0.0
        except ApiNotFound:
            holding.lost = True
            _LOG.error("lease %s was deleted, stopping the work", self._lock.name)
            return 0.0
        except ApiError as error:
            _LOG.warning("lease %s was not renewed: %s", self._lock.name, error)
            return LEASE_NOT_RENEWED.delay()
        holding.leadership.until = began + self._lock.duration
        return self._random.uniform(*self._renewals)

    async def _look(self, holding: _Holding, seconds: float) -> None:
        """Read the Lease after a conflict: another holder, a label, or a renewal of ours whose answer was lost."""
        try:
            lease = await self._bounded(self._lock.read(seconds=seconds), seconds)
        except ApiError as error:
            _LOG.warning("lease %s could not be read: %s", self._lock.name, error)
            return
        if lease is None or fence_of(lease) != holding.leadership.fence:
            holding.lost = True
            holder = lease.spec.holder_identity if lease is not None else None
            _LOG.error("lease %s is held by %s now, stopping the work", self._lock.name, holder or "nobody")
            if lease is not None:
                await self._count_on(lease, holding.leadership, seconds)
        else:
            holding.lease = lease

    async def _count_on(self, lease: Lease, leadership: Leadership, seconds: float) -> Lease:
        """Raise the count of terms where a server that was restored from a backup has fallen behind ours.

        The storage has seen our term: it would refuse the next leaders as former ones.
        """
        ours, found = leadership.fence, fence_of(lease)
        if ours is None or found.lease != ours.lease or found.transitions >= ours.transitions:
            return lease
        try:
            return await self._bounded(self._lock.count_on(lease, ours.transitions, seconds=seconds), seconds)
        except ApiError as error:
            _LOG.warning("lease %s counts from %d again: %s", self._lock.name, found.transitions, error)
            return lease

    async def _end(self, task: asyncio.Future[None], leadership: Leadership) -> None:
        """Stop the work before the lease is over; call `overrun` if it does not stop."""
        if task.done():
            leadership.lost = True
            return
        task.cancel()
        # From now on nothing new is started, also in threads that the cancellation does not reach.
        leadership.lost = True
        await asyncio.wait({task}, timeout=max(0.0, leadership.until - _now()))
        if not task.done():
            _LOG.critical("lease %s is over and the work has not stopped", self._lock.name)
            self._overrun()
            await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("the work under lease %s failed while stopping: %s", self._lock.name, error)

    async def _release(self, holding: _Holding) -> None:
        try:
            try:
                await self._bounded(self._lock.release(holding.lease, seconds=_RELEASE_SECONDS), _RELEASE_SECONDS)
            except ApiConflict:
                # Another process wrote, or a renewal of ours was cut off when the work ended: the holder decides.
                newest = await self._bounded(self._lock.read(seconds=_RELEASE_SECONDS), _RELEASE_SECONDS)
                if newest is not None:
                    newest = await self._count_on(newest, holding.leadership, _RELEASE_SECONDS)
                if newest is not None and newest.spec.holder_identity == self._lock.identity:
                    await self._bounded(self._lock.release(newest, seconds=_RELEASE_SECONDS), _RELEASE_SECONDS)
        except ApiError as error:
            _LOG.info("lease %s was not released: %s", self._lock.name, error)

    async def _bounded(self, call: Awaitable[T], seconds: float) -> T:
        """Await one call, bounded in time whatever the transport does."""
        try:
            async with asyncio.timeout(seconds):
                return await call
        except TimeoutError:
            raise ApiUnavailable(f"no answer within {seconds:.3g} s", status=0) from None

    def _announce(self, leadership: Leadership | None) -> None:
        self.leadership = leadership
        if leadership is None:
            _LOG.info("lease %s: no longer leading", self._lock.name)
        else:
            _LOG.info("lease %s: leading as %s", self._lock.name, leadership.fence)
        if self._metrics is not None:
            self._metrics.leading[(self._lock.name,)].set(leadership is not None)


class _Holding:
    """The Lease as its holder last saw it."""

    def __init__(self, lease: Lease, leadership: Leadership) -> None:
        self.lease = lease
        self.leadership = leadership
        self.lost = False


def _record(lease: Lease | None) -> tuple[Any, ...]:
    """Return the fields that change while the holder is alive."""
    if lease is None:
        return ()
    spec = lease.spec
    return spec.holder_identity, spec.renew_time, spec.acquire_time, spec.lease_transitions, lease.uid


def _now() -> float:
    return asyncio.get_running_loop().time()
