"""The keyed work queue: what waits to be decided.

First in, first out within a lane; lanes take turns and have only so many keys in work at once, so that a crowd in one of
them neither stands before the others nor takes all workers. A key waits at most once; a key that is being worked and is added again waits until that work is
done, so one key is never worked twice at a time. Delays and back-off are kept here too. After client-go's workqueue.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from volplane.backoff import Backoff
from volplane.controller.clock import LoopTime
from volplane.controller.congestion import Congestion

__all__ = ["QueueMetrics", "WorkQueue"]

_LATELY = 1.0
"""Seconds for which a lane counts as there after its last key."""
_SHORTEST = 0.001
"""What is due in 1e-16 s is due now by the clock, and not yet to who subtracts: the key would come back without end."""


class QueueMetrics(Protocol):
    """Where a queue counts; names and meaning are those of client-go's `workqueue_*` metrics."""

    def queue_added(self, queue: str) -> None: ...

    def queue_depth(self, queue: str, depth: int) -> None: ...

    def queue_waited(self, queue: str, seconds: float) -> None: ...

    def queue_worked(self, queue: str, seconds: float) -> None: ...

    def queue_retried(self, queue: str) -> None: ...


class WorkQueue:
    """Keys to work on. Belongs to one event loop; nothing here is thread-safe.

    A worker calls `get`, works, then `done`; in between it may call `seen`, `add_after`, `retry` or `forget` for the key.
    """

    def __init__(
        self,
        name: str,
        *,
        lane: Callable[[str], str] = lambda _key: "",
        congestion: Congestion | None = None,
        metrics: QueueMetrics | None = None,
    ) -> None:
        """lane: which lane a key waits in, asked anew each time it is queued. congestion: says how many keys of a lane may
        be in work at once; None: any number.
        """
        self._name = name
        self._lane = lane
        self._metrics = metrics
        self._now = LoopTime()
        self._lanes = _Lanes(congestion, self._now)
        self._waiters: deque[asyncio.Future[None]] = deque()
        """Of workers for which there is no key."""
        self._queued: dict[str, float] = {}
        self._working: dict[str, tuple[float, str]] = {}
        """Since when, and in which lane."""
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
        """The key did not fail: its next back-off starts from the beginning."""
        self._failures.pop(key, None)

    def failures(self, key: str) -> int:
        """How often in a row `retry` was called for the key."""
        return self._failures.get(key, 0)

    async def get(self) -> str | None:
        """The next key, once there is one; it counts as worked until `done`. None: the queue is closed, go."""
        while (taken := self._lanes.take()) is None or self._closed:
            if self._closed:
                return None
            await self._a_key()
        lane, key = taken
        now = self._now()
        waited = now - self._queued.pop(key)
        self._working[key] = now, lane
        if self._metrics is not None:
            self._metrics.queue_waited(self._name, waited)
            self._metrics.queue_depth(self._name, len(self._queued))
        return key

    def seen(self, key: str) -> None:
        """The worker of this key now looks at everything that it was added for so far: that needs no further work."""
        self._again.pop(key, None)

    def done(self, key: str) -> None:
        """The work on a key from `get` is over; if it was added meanwhile it is queued now."""
        begun, lane = self._working.pop(key)
        if self._lanes.leave(lane):
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
                self._wake_one()  # what this worker was woken for is another's now
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
        if self._lanes.add(self._lane(key), key):
            self._wake_one()
        if self._metrics is not None:
            self._metrics.queue_depth(self._name, len(self._queued))


class _Lanes:
    """Keys by lane. Of the lanes that may have one more key in work, the one whose turn is longest ago is next.

    How many that are depends on the congestion of the loop, but only while there are several lanes: many at once are
    cheaper than few, and a lane alone delays nobody.
    """

    def __init__(self, congestion: Congestion | None, now: Callable[[], float]) -> None:
        self._congestion = congestion
        self._now = now
        self._seen: OrderedDict[str, float] = OrderedDict()
        """Lanes that had a key lately, and when, longest ago first."""
        self._waiting: dict[str, deque[str]] = {}
        self._working: Counter[str] = Counter()
        self._order: OrderedDict[str, None] = OrderedDict()
        """Lanes with keys that may be taken."""

    def add(self, lane: str, key: str) -> bool:
        """Whether the key may be taken, as far as its lane is concerned."""
        self._waiting.setdefault(lane, deque()).append(key)
        self._see(lane)
        return self._line_up(lane)

    def take(self) -> tuple[str, str] | None:
        """The next lane and key, in work from now on; None if there is none."""
        if not self._order:
            return None
        lane, _ = self._order.popitem(last=False)
        keys = self._waiting[lane]
        key = keys.popleft()
        if not keys:
            del self._waiting[lane]
        self._working[lane] += 1
        self._see(lane)
        self._line_up(lane)
        if self._congestion is not None:
            self._congestion.ask()
        return lane, key

    def leave(self, lane: str) -> bool:
        """A key of the lane is in work no more: whether another of it may be taken now."""
        self._working[lane] -= 1
        if not self._working[lane]:
            del self._working[lane]
        return self._line_up(lane)

    def _line_up(self, lane: str) -> bool:
        """Let the lane have a turn if it has keys and may have one more in work; whether it has."""
        if lane not in self._waiting or self._working[lane] >= self._allowed():
            return False
        self._order.setdefault(lane)
        return True

    def _allowed(self) -> int:
        """How many keys of one lane may be in work now."""
        if self._congestion is None:
            return sys.maxsize
        return self._congestion.allowed if len(self._seen) > 1 else self._congestion.most

    def _see(self, lane: str) -> None:
        if self._congestion is None:
            return
        now = self._now()
        self._seen[lane] = now
        self._seen.move_to_end(lane)
        while now - next(iter(self._seen.values())) > _LATELY:
            self._seen.popitem(last=False)


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
