"""The keyed work queue of a controller, after client-go's workqueue.

A key waits at most once. A key that is added while a worker has it waits until that work is done, so no key is worked
on twice at a time. Keys are served first in, first out within their flow (see `volplane.controller.flows`). Delayed
keys and the back-off of failed ones are kept here too.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from typing import Protocol

from volplane.backoff import Backoff
from volplane.controller.clock import LoopTime
from volplane.controller.flows import AdaptiveConcurrency, Flows
from volplane.kube.transport import ApiMetrics

__all__ = ["ControllerMetrics", "WorkQueue"]

_SHORTEST = 0.001
"""Shortest delay: a time 1e-16 s ahead equals the present by the clock, and the key would come back without end."""


class ControllerMetrics(ApiMetrics, Protocol):
    """Where queues and runners count, beside what they call; `queue_*` are client-go's `workqueue_*` metrics."""

    def queue_added(self, queue: str) -> None: ...

    def queue_depth(self, queue: str, depth: int) -> None: ...

    def queue_waited(self, queue: str, seconds: float) -> None: ...

    def queue_worked(self, queue: str, seconds: float) -> None: ...

    def queue_retried(self, queue: str) -> None: ...

    def pass_ended(self, runner: str, result: str, seconds: float) -> None:
        """result: done, wait, operation, conflict, unavailable, refused, error, unsettled, stopped."""
        ...


class WorkQueue:
    """Keys to work on. Belongs to one event loop; nothing here is thread-safe.

    A worker calls `get`, works, then `done`; in between it may call `seen`, `add_after`, `retry` or `forget` for the
    key.
    """

    def __init__(
        self,
        name: str,
        *,
        flow: Callable[[str], str] = lambda _key: "",
        concurrency: AdaptiveConcurrency | None = None,
        metrics: ControllerMetrics | None = None,
    ) -> None:
        """flow: the flow of a key, determined again each time it is queued. concurrency: how many keys of one flow may
        be in work at once; None: any number.
        """
        self._name = name
        self._flow = flow
        self._metrics = metrics
        self._now = LoopTime()
        self._flows = Flows(concurrency, self._now)
        self._waiters: deque[asyncio.Future[None]] = deque()
        """Of workers for which there is no key."""
        self._queued: dict[str, float] = {}
        self._working: dict[str, tuple[float, str]] = {}
        """Loop time at which the work began, and the flow."""
        self._again: dict[str, None] = {}
        self._failures: dict[str, int] = {}
        self._delays = _Delays(self.add, self._now)
        self._closed = False

    def add(self, key: str) -> None:
        """Queue a key now. Nothing happens if it is queued already, or after `close`."""
        if self._closed or key in self._queued or key in self._again:
            return
        if self._metrics is not None:
            self._metrics.queue_added(self._name)
        if key in self._working:
            self._again[key] = None
            return
        self._put(key)

    def add_after(self, key: str, seconds: float) -> None:
        """Queue a key `seconds` from now. Of several delays of a key the earliest counts."""
        if self._closed:
            return
        if seconds <= 0:
            self.add(key)
        else:
            self._delays.set(key, self._now() + max(seconds, _SHORTEST))

    def retry(self, key: str, backoff: Backoff, *, asked: float | None = None) -> float:
        """Queue a key that failed after the delay of `backoff`; returns the delay in seconds.

        The failures of a key are counted together, whatever their back-off. asked: what the other side asked for.
        """
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        seconds = backoff.delay(failures, asked=asked)
        if self._metrics is not None:
            self._metrics.queue_retried(self._name)
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: str) -> None:
        """The key did not fail: its failures are counted from zero again."""
        self._failures.pop(key, None)

    def failures(self, key: str) -> int:
        """How often in a row `retry` was called for the key."""
        return self._failures.get(key, 0)

    async def get(self) -> str | None:
        """The next key, once there is one; it is in work until `done`. None: the queue is closed."""
        while (taken := self._flows.take()) is None or self._closed:
            if self._closed:
                return None
            await self._a_key()
        flow, key = taken
        now = self._now()
        waited = now - self._queued.pop(key)
        self._working[key] = now, flow
        if self._metrics is not None:
            self._metrics.queue_waited(self._name, waited)
            self._metrics.queue_depth(self._name, len(self._queued))
        return key

    def seen(self, key: str) -> None:
        """The worker of this key looks at the newest state from now on: additions so far need no further work."""
        self._again.pop(key, None)

    def done(self, key: str) -> None:
        """The work on a key from `get` is over; if it was added meanwhile it is queued now."""
        begun, flow = self._working.pop(key)
        if self._flows.leave(flow):
            self._wake_one()
        if self._metrics is not None:
            self._metrics.queue_worked(self._name, self._now() - begun)
        if key in self._again:
            del self._again[key]
            self._put(key)

    def close(self) -> None:
        """Take nothing more, forget all delays, and let `get` return None from now on."""
        self._closed = True
        self._delays.clear()
        while self._waiters:
            self._wake_one()

    def __len__(self) -> int:
        """Keys that wait to be taken now."""
        return len(self._queued)

    @property
    def working(self) -> list[str]:
        """Keys in work, in the order they were taken."""
        return list(self._working)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, in work, or due now."""
        due = self.next_due
        return not self._queued and not self._working and (due is None or due > self._now())

    @property
    def next_due(self) -> float | None:
        """Loop time at which the next delay ends."""
        return self._delays.first

    async def _a_key(self) -> None:
        """Wait until there may be a key to take."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake_one()  # another worker takes what this one was woken for
            raise

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _put(self, key: str) -> None:
        if self._closed:
            return
        self._queued[key] = self._now()
        if self._flows.add(self._flow(key), key):
            self._wake_one()
        if self._metrics is not None:
            self._metrics.queue_depth(self._name, len(self._queued))


class _Delays:
    """Keys with a time. One timer for all of them: that of the earliest."""

    def __init__(self, due: _Due, now: Callable[[], float]) -> None:
        self._due = due
        self._now = now
        self._times: dict[str, float] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._order = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def first(self) -> float | None:
        self._tidy()
        return self._heap[0][0] if self._heap else None

    def set(self, key: str, when: float) -> None:
        known = self._times.get(key)
        if known is not None and known <= when:
            return
        self._times[key] = when
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, key))
        if self._timer is None or when < self._timer.when():
            self._arm(when)

    def clear(self) -> None:
        self._times.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tidy(self) -> None:
        """Drop entries that an earlier delay of the same key overtook."""
        while self._heap and self._times.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._ring)

    def _ring(self) -> None:
        rung = self._timer
        self._timer = None
        now = max(self._now(), rung.when() if rung is not None else 0.0)
        self._tidy()
        while self._heap and self._heap[0][0] <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._times[key]
            self._due(key)
            self._tidy()
        if self._heap:
            self._arm(self._heap[0][0])


class _Due(Protocol):
    def __call__(self, key: str) -> None: ...
