"""Leader election: at most one process works, and it stops before another may start.

Times are the loop's, and go on while the machine is suspended; wall clocks decide nothing. Candidates count from the
moment they saw the Lease change. The leader counts from the moment it sent the renewal that succeeded, which is
earlier.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from volplane._delays import LEASE_NOT_HELD, LEASE_NOT_RENEWED
from volplane.controller.metrics import Metrics
from volplane.errors import ApiConflict, ApiError, ApiNotFound, ApiUnavailable, ConfigurationError
from volplane.kube.leases import LONGEST_LEASE, LeaseLock, fence_of
from volplane.kube.objects import Lease
from volplane.requests import Fence

_LOG = logging.getLogger(__name__)

_RELEASE_SECONDS = 2.0
RENEW_PERIOD = (2.0, 2.4)
"""Seconds between renewals, shortest and longest."""

T = TypeVar("T")


_WITH_SUSPENSIONS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _slept() -> float:
    # In this order the sum of loop time and this is never ahead.
    return -time.clock_gettime(time.CLOCK_MONOTONIC) + time.clock_gettime(_WITH_SUSPENSIONS)


_SLEPT_BEFORE = _slept()


def suspended() -> float:
    """Return the seconds for which the machine was suspended since the start: the loop's clock stands still meanwhile.

    In whole tenths: what lies between two readings of clocks is no suspension. 0 where the system has no such clock.
    """
    return int((_slept() - _SLEPT_BEFORE) * 10 + 0.5) / 10


@dataclass(kw_only=True, eq=False)
class Leadership:
    """The right to work, for as long as it lasts. Made in the loop."""

    fence: Fence | None
    """The term; a conditional write of it keeps a former leader out. None = there is no election."""
    until: float
    """Loop time, with that of suspensions, at which the right ends; each renewal moves it."""
    margin: float = 0.0
    """Seconds before `until` from which nothing new is started."""
    lost: bool = False
    behind: Fence | None = None
    """A later term of our Lease, of which a storage knows and the Lease does not: the server was restored."""
    clock: Callable[[], float] = field(default_factory=lambda: asyncio.get_running_loop().time)
    suspended: Callable[[], float] = field(default_factory=lambda: suspended)

    def fenced(self, term: str) -> None:
        """Note the term, as the text of a `Fence`, by which a storage refused a call. May be called in any thread."""
        newer, known = Fence.parse(term), self.behind or self.fence
        if newer is not None and known is not None and newer.outdates(known):
            self.behind = newer

    def may_begin(self) -> bool:
        """Return whether there is time to start something that changes storage. May be called in any thread.

        Time goes on while the process is stopped, and its machine suspended: one that is continued after its lease was
        over starts nothing, though no timer of it has fired yet.
        """
        return not self.lost and self.clock() + self.suspended() < self.until - self.margin


@dataclass(eq=False)
class Elector:
    """Runs work while this process holds the Lease.

    renew_seconds after the last renewal that went through, work is cancelled; it has the rest of the Lease's duration
    to end. If it does not, `overrun` is called, which should end the process: another leader may start any moment.
    """

    lock: LeaseLock
    random: Random
    overrun: Callable[[], None]
    renew_seconds: float = 10.0
    period: tuple[float, float] = RENEW_PERIOD
    """Shortest and longest seconds between renewals."""
    ensure_namespace: Callable[[], Awaitable[None]] | None = None
    """Creates the namespace of the lease if it is missing."""
    metrics: Metrics | None = None
    failing: str = field(init=False, default="")
    """Why the lease can be neither read nor taken; empty while it can."""
    leadership: Leadership | None = field(init=False, default=None)
    _lease: Lease = field(init=False, default_factory=Lease)
    """The Lease as this process saw it last while it held it."""

    def __post_init__(self) -> None:
        longest = self.period[1]
        if not longest < self.renew_seconds < self.lock.duration:
            raise ConfigurationError(
                f"leader election of {self.lock.name}: the period of renewals ({longest:g} s) must be less than renew "
                f"({self.renew_seconds:g} s), and that less than the lease ({self.lock.duration} s)"
            )

    async def run(self, work: Callable[[Leadership], Awaitable[None]]) -> None:
        """Campaign, work while leading, campaign again after a loss; end as `work` does. Then release the Lease."""
        while True:
            leadership = await self._campaign()
            self._announce(leadership)
            task = asyncio.ensure_future(work(leadership))
            try:
                await self._keep(leadership, task)
            finally:
                ended, lost = task.done(), leadership.lost
                await self._end(task, leadership)
                self._announce(None)
                # Only a Lease that is still ours is released.
                if not lost:
                    await self._release(leadership)
            if ended:
                task.result()
                return

    async def _campaign(self) -> Leadership:
        since: dict[tuple[Any, ...], float] = {}
        while True:
            over = math.inf
            try:
                lease = await self._ask(self.lock.read, self.renew_seconds)
                spec = (found := lease or Lease()).spec
                # These fields change while the holder is alive.
                record = spec.holder_identity, spec.renew_time, spec.lease_transitions, found.uid
                since = {record: since.get(record, _now())}
                # One that is missing or released, or that we took with an answer that was lost, can be had at once.
                ends = -math.inf
                if spec.holder_identity not in {None, "", self.lock.identity}:
                    ends = since[record] + min(spec.lease_duration_seconds or self.lock.duration, LONGEST_LEASE)
                if (began := _now()) >= ends:
                    self._lease = await self._ask(self.lock.take, self.renew_seconds, lease)
                    self.failing, duration = "", self.lock.duration
                    fence, margin = fence_of(self._lease), duration - self.renew_seconds
                    return Leadership(fence=fence, until=began + duration, margin=margin)
                over, self.failing = ends, ""
            except ApiConflict as error:
                _LOG.info("lease %s: %s", self.lock.name, error)
            except ApiError as error:
                await self._cannot(error)
            await asyncio.sleep(min(LEASE_NOT_HELD.delay(random=self.random), over - _now()))

    async def _cannot(self, error: ApiError) -> None:
        """Log once for each reason why there is no election. A missing namespace is created."""
        level = logging.DEBUG if self.failing == str(error) else logging.WARNING
        self.failing = str(error)
        _LOG.log(level, "lease %s can be neither read nor taken, trying on: %s", self.lock.name, error)
        if isinstance(error, ApiNotFound) and self.ensure_namespace is not None:
            try:
                async with asyncio.timeout(self.renew_seconds):
                    await self.ensure_namespace()
            except (ApiError, TimeoutError) as failure:
                _LOG.debug("the namespace of lease %s was not made: %s", self.lock.name, failure)

    async def _keep(self, leadership: Leadership, task: asyncio.Future[None]) -> None:
        """Renew until the work ends or renewing has failed for too long."""
        pause = self.random.uniform(*self.period)
        while not leadership.lost:
            await asyncio.wait({task}, timeout=pause)
            if task.done():
                return
            # The work gets the rest of the Lease's duration to end, before another process may start.
            last = leadership.until - self.lock.duration + self.renew_seconds
            if _now() >= last:
                leadership.lost = True
                _LOG.error("lease %s: not renewed for %g s, stopping the work", self.lock.name, self.renew_seconds)
                return
            pause = min(await self._renew(leadership, last), max(0.0, last - _now()))

    async def _renew(self, leadership: Leadership, last: float) -> float:
        """Try once to renew; return the seconds until the next try."""
        began = _now()
        # Not all that is left: one call that hangs leaves time for another, and a server that takes 4 s is in time.
        seconds = max(0.1, (last - began) * 3 / 4)
        try:
            if (newer := leadership.behind) is None:
                self._lease = await self._ask(self.lock.renew, seconds, self._lease)
                leadership.until = began + self.lock.duration
                return max(0.0, began + self.random.uniform(*self.period) - _now())
            # The storage would refuse us as a former leader: the count has to pass the term that it knows.
            await self._ask(self.lock.count_on, seconds, self._lease, newer.transitions)
            leadership.lost = True
            _LOG.error("lease %s: storage knows of term %s; a new one begins", self.lock.name, newer.transitions)
        except ApiConflict:
            await self._look(leadership, seconds)
        except ApiNotFound:
            leadership.lost = True
            _LOG.error("lease %s was deleted, stopping the work", self.lock.name)
        except ApiError as error:
            _LOG.warning("lease %s was not renewed: %s", self.lock.name, error)
            return LEASE_NOT_RENEWED.delay()
        return 0.0

    async def _look(self, leadership: Leadership, seconds: float) -> None:
        """Read the Lease after a conflict: another holder, a label, or a renewal of ours whose answer was lost."""
        try:
            lease = await self._ask(self.lock.read, seconds)
        except ApiError as error:
            _LOG.warning("lease %s could not be read: %s", self.lock.name, error)
            return
        if lease is not None and fence_of(lease) == leadership.fence:
            self._lease = lease
            return
        leadership.lost = True
        holder = lease.spec.holder_identity if lease is not None else None
        _LOG.error("lease %s is held by %s now, stopping the work", self.lock.name, holder or "nobody")
        if lease is not None:
            await self._count_on(lease, leadership, seconds)

    async def _count_on(self, lease: Lease, leadership: Leadership, seconds: float) -> Lease:
        """Raise the count of terms where a server that was restored from a backup has fallen behind ours."""
        # The storage has seen our term: it would refuse the next leaders as former ones.
        ours, found = leadership.fence, fence_of(lease)
        if ours is None or not ours.outdates(found):
            return lease
        try:
            return await self._ask(self.lock.count_on, seconds, lease, ours.transitions)
        except ApiError as error:
            _LOG.warning("lease %s counts from %d again: %s", self.lock.name, found.transitions, error)
            return lease

    async def _end(self, task: asyncio.Future[None], leadership: Leadership) -> None:
        """Stop the work before the lease is over; call `overrun` if it does not stop."""
        # From now on nothing new is started, also in threads that a cancellation does not reach.
        leadership.lost = True
        if task.done():
            return
        task.cancel()
        await asyncio.wait({task}, timeout=max(0.0, leadership.until - _now()))
        if not task.done():
            # Another process may start any moment, and this work would go on beside its work.
            _LOG.critical("lease %s is over and the work has not stopped", self.lock.name)
            self.overrun()
            await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("the work under lease %s failed while stopping: %s", self.lock.name, error)

    async def _release(self, leadership: Leadership) -> None:
        try:
            try:
                await self._ask(self.lock.release, _RELEASE_SECONDS, self._lease)
            except ApiConflict:
                # Another process wrote, or a renewal of ours was cut off when the work ended: the holder decides.
                newest = await self._ask(self.lock.read, _RELEASE_SECONDS)
                if newest is not None:
                    newest = await self._count_on(newest, leadership, _RELEASE_SECONDS)
                    if newest.spec.holder_identity == self.lock.identity:
                        await self._ask(self.lock.release, _RELEASE_SECONDS, newest)
        except ApiError as error:
            _LOG.info("lease %s was not released: %s", self.lock.name, error)

    async def _ask(self, call: Callable[..., Awaitable[T]], seconds: float, *arguments: Any) -> T:
        """Make one call of the lock, bounded in time whatever the transport does."""
        try:
            async with asyncio.timeout(seconds):
                return await call(*arguments, seconds=seconds)
        except TimeoutError:
            raise ApiUnavailable(f"no answer within {seconds:.3g} s", status=0) from None

    def _announce(self, leadership: Leadership | None) -> None:
        self.leadership = leadership
        if leadership is None:
            _LOG.info("lease %s: no longer leading", self.lock.name)
        else:
            _LOG.info("lease %s: leading as %s", self.lock.name, leadership.fence)
        if self.metrics is not None:
            self.metrics.leading[(self.lock.name,)].set(leadership is not None)


def _now() -> float:
    return asyncio.get_running_loop().time() + suspended()
