"""The keyed work queue of a controller, after client-go's workqueue.

A key waits at most once. A key that is added while a worker has it waits until that work is done, so no key is worked
on twice at a time. Keys are served first in, first out within their flow, and flows in turns: one with many keys (a
storage class with 10,000 claims) neither delays the others nor takes all workers. The word is that of API priority and
fairness. Delayed keys and the back-off of failed ones are kept here too.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from volplane._delays import Backoff
from volplane.controller.actions import Queue
from volplane.kube.client import ApiMetrics

_SHORTEST = 0.001
"""Shortest delay: a time 1e-16 s ahead equals the present by the clock, and the key would come back without end."""
_ACTIVE: Final = 1.0
"""Seconds for which a flow counts as active after its last key."""
_SLOW: Final = 0.002
_FAST: Final = 0.001
"""Seconds of this thread's work between a callback's scheduling and its call; an idle loop needs a tenth of `_FAST`."""
_DECREASE: Final = 0.9
_INCREASE: Final = 0.25


class QueueCounters(NamedTuple):
    """Where one queue counts: client-go's `workqueue_*` metrics."""

    added: Callable[[], None] = lambda: None
    retried: Callable[[], None] = lambda: None
    waited: Callable[[float], None] = lambda _seconds: None
    """Seconds until a worker took a key."""
    worked: Callable[[float], None] = lambda _seconds: None
    """Seconds until the worker was done with it."""


class ControllerMetrics(ApiMetrics):
    """Where queues and runners count, beside what they call. This one counts nothing."""

    def queue_made(self, queue: str, depth: Callable[[], int]) -> QueueCounters:
        """Return the counters of the queue. A queue that is made again under its name replaces the former one.

        depth: how many keys wait in it now.
        """
        return QueueCounters()


NO_METRICS: Final = ControllerMetrics()


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
        metrics: ControllerMetrics = NO_METRICS,
    ) -> None:
        """flow: the flow of a key, determined again each time it is queued. concurrency: how many keys of one flow may
        be in work at once; None: any number.
        """
        self._flow = flow
        self._now = LoopTime()
        self._flows = Flows(concurrency, self._now)
        self._waiters: list[asyncio.Future[None]] = []
        """Of workers for which there is no key. The last is woken first: those before it are needed by a crowd only."""
        self._queued: dict[str, float] = {}
        self.working: dict[str, tuple[float, str]] = {}
        """Keys in work, in the order they were taken: loop time at which the work began, and the flow."""
        self._again: set[str] = set()
        """Keys in work that were added meanwhile."""
        self.failures: dict[str, int] = {}
        """How often in a row `retry` was called for a key."""
        self._delayed: dict[str, tuple[float, asyncio.Handle]] = {}
        """Keys that are due later: the loop time, and what adds them then."""
        self.closed = False
        self._counters = metrics.queue_made(name, self.__len__)

    def add(self, key: str) -> None:
        """Queue a key now. Nothing happens if it is queued already, or after `close`."""
        if self.closed or key in self._queued or key in self._again:
            return
        self._counters.added()
        if key in self.working:
            self._again.add(key)
        else:
            self._put(key)

    def add_after(self, key: str, seconds: float) -> None:
        """Queue a key `seconds` from now. Of several delays of a key the earliest counts."""
        if self.closed:
            return
        if seconds <= 0:
            self.add(key)
            return
        when = self._now() + max(seconds, _SHORTEST)
        if (known := self._delayed.get(key)) is not None:
            if known[0] <= when:
                return
            known[1].cancel()
        self._delayed[key] = when, asyncio.get_running_loop().call_at(when, self._due, key)

    def _due(self, key: str) -> None:
        del self._delayed[key]
        self.add(key)

    def retry(self, key: str, backoff: Backoff, *, asked: float | None = None) -> float:
        """Queue a failed key after the delay of `backoff`, which is returned. asked: what the other side asked for."""
        failures = self.failures[key] = self.failures.get(key, 0) + 1
        seconds = backoff.delay(failures, asked=asked)
        self._counters.retried()
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: str) -> None:
        """Count the failures of the key from zero again: it did not fail."""
        self.failures.pop(key, None)

    async def get(self) -> str | None:
        """Return the next key, once there is one; it is in work until `done`. None: the queue is closed."""
        while (taken := self._flows.take()) is None or self.closed:
            if self.closed:
                return None
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()  # another worker takes what this one was woken for
                raise
        flow, key = taken
        now = self._now()
        self.working[key] = now, flow
        self._counters.waited(now - self._queued.pop(key))
        return key

    def seen(self, key: str) -> None:
        """Drop additions of the key so far: its worker looks at the newest state from now on."""
        self._again.discard(key)

    def done(self, key: str) -> None:
        """End the work on a key from `get`; queue the key if it was added meanwhile."""
        began, flow = self.working.pop(key)
        if self._flows.leave(flow):
            self._wake_one()
        self._counters.worked(self._now() - began)
        if key in self._again:
            self._again.remove(key)
            self._put(key)

    def close(self) -> None:
        """Take nothing more, forget all delays, and let `get` return None from now on."""
        self.closed = True
        self._again.clear()
        for _, timer in self._delayed.values():
            timer.cancel()
        self._delayed.clear()
        while self._waiters:
            self._wake_one()

    def __len__(self) -> int:
        """Return how many keys wait to be taken now."""
        return len(self._queued)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, in work, or due now."""
        due = self.next_due
        return not self._queued and not self.working and (due is None or due > self._now())

    @property
    def next_due(self) -> float | None:
        """Loop time at which the next delay ends."""
        return min((when for when, _ in self._delayed.values()), default=None)

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.pop()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _put(self, key: str) -> None:
        self._queued[key] = self._now()
        if self._flows.add(self._flow(key), key):
            self._wake_one()


class Flows:
    """Waiting keys by flow. Of the flows below their limit, the one that was served longest ago is next.

    The limit follows the load of the loop only while several flows are active: a single flow delays no other.
    """

    def __init__(self, concurrency: AdaptiveConcurrency | None, now: Callable[[], float]) -> None:
        """concurrency: the limit of each flow; None: none. now: the clock."""
        self._concurrency = concurrency
        self._now = now
        self._active: OrderedDict[str, float] = OrderedDict()
        """Flows that had a key within `_ACTIVE` seconds and the time of it, oldest first."""
        self._waiting: dict[str, deque[str]] = {}
        self._working: Counter[str] = Counter()
        self._order: OrderedDict[str, None] = OrderedDict()
        """Flows with keys that may be taken, next first."""

    def add(self, flow: str, key: str) -> bool:
        """Queue a key; return whether the limit of its flow lets one be taken now."""
        self._waiting.setdefault(flow, deque()).append(key)
        self._touch(flow)
        return self._line_up(flow)

    def take(self) -> tuple[str, str] | None:
        """Return the next flow and key, which is in work from now on; None if there is none."""
        if not self._order:
            return None
        flow, _ = self._order.popitem(last=False)
        keys = self._waiting[flow]
        key = keys.popleft()
        if not keys:
            del self._waiting[flow]
        self._working[flow] += 1
        now = self._touch(flow)
        self._line_up(flow)
        if self._concurrency is not None:
            self._concurrency.probe(now)
        return flow, key

    def leave(self, flow: str) -> bool:
        """End the work on a key of the flow; return whether another of its keys may be taken now."""
        self._working[flow] -= 1
        if not self._working[flow]:
            del self._working[flow]
        return self._line_up(flow)

    def _line_up(self, flow: str) -> bool:
        """Append the flow to the order if it has keys and is below its limit; return whether it is there."""
        if flow not in self._waiting:
            return False
        if (bound := self._concurrency) is not None:
            limit = bound.limit if len(self._active) > 1 else bound.maximum
            if self._working[flow] >= limit:
                return False
        self._order.setdefault(flow)
        return True

    def _touch(self, flow: str) -> float:
        now = self._now()
        if self._concurrency is not None:
            self._active[flow] = now
            self._active.move_to_end(flow)
            while now - next(iter(self._active.values())) > _ACTIVE:
                self._active.popitem(last=False)
        return now


class AdaptiveConcurrency:
    """How many keys may be in work: additive increase, multiplicative decrease by the latency of the event loop.

    While the loop is always busy, more work in flight makes nothing faster and everything later. Only what this thread
    itself computes counts, not the time for which it was denied a processor: less work in flight would not change that.
    In a loop of virtual time no time passes, and the limit stays at its maximum.
    """

    def __init__(self, *, maximum: int, minimum: int) -> None:
        """maximum, minimum: bounds of `limit`, which starts at `maximum`."""
        self.maximum = maximum
        """The limit while no other flow is delayed by it."""
        self._minimum = float(min(minimum, maximum))
        self._limit = float(maximum)
        self._probing = False
        self._probed = float("-inf")
        """Loop time of the last measurement."""

    @property
    def limit(self) -> int:
        """How many may be in work now."""
        return int(self._limit)

    def probe(self, now: float) -> None:
        """Measure the latency of the loop as work begins, unless done less than `_SLOW` ago. now: loop time."""
        if self._probing or now < self._probed + _SLOW:
            return
        self._probing, self._probed = True, now
        loop = asyncio.get_running_loop()
        loop.call_soon(self._measured, loop, now, time.thread_time())

    def _measured(self, loop: asyncio.AbstractEventLoop, then: float, used: float) -> None:
        self._probing = False
        latency = min(loop.time() - then, time.thread_time() - used)
        if latency > _SLOW:
            self._limit = max(self._minimum, self._limit * _DECREASE)
        elif latency < _FAST:
            self._limit = min(float(self.maximum), self._limit + _INCREASE)


class LoopTime:
    """Returns, when called, the time of the loop that first called it: for paths where looking up the loop costs."""

    __slots__ = ("_time",)

    def __init__(self) -> None:
        self._time: Callable[[], float] | None = None

    def __call__(self) -> float:
        if self._time is None:
            self._time = asyncio.get_running_loop().time
        return self._time()


@dataclass(slots=True, eq=False)
class LateQueue:
    """A queue by its name, for those that need it before its runner is made."""

    runner: Queue | None = None
    """None: keys are dropped, as this process does not have the queue."""

    def enqueue(self, key: str, after: float = 0.0) -> None:
        if self.runner is not None:
            self.runner.enqueue(key, after)
