"""Fair queueing: keys of different flows are served in turns, and a flow has a limit of keys in work.

So a flow with many keys (one storage class with 10,000 claims) neither delays the others nor takes all workers. The
word is that of API priority and fairness.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Final

__all__ = ["AdaptiveConcurrency", "Flows"]

_ACTIVE: Final = 1.0
"""Seconds for which a flow counts as active after its last key."""
_SLOW: Final = 0.002
_FAST: Final = 0.001
"""Seconds of this thread's work between a callback's scheduling and its call; an idle loop needs a tenth of `_FAST`."""
_DECREASE: Final = 0.9
_INCREASE: Final = 0.25


class AdaptiveConcurrency:
    """How many keys may be in work: additive increase, multiplicative decrease by the latency of the event loop.

    While the loop is always busy, more work in flight makes nothing faster and everything later. Only what this thread
    itself computes counts, not the time for which it was denied a processor: less work in flight would not change that.
    In a loop of virtual time no time passes, and the limit stays at its maximum.
    """

    def __init__(self, *, maximum: int, minimum: int) -> None:
        """maximum, minimum: bounds of `limit`, which starts at `maximum`."""
        self.maximum = maximum
        """The limit where nobody is delayed by it."""
        self._minimum = float(min(minimum, maximum))
        self._limit = float(maximum)
        self._probing = False

    @property
    def limit(self) -> int:
        """How many may be in work now."""
        return int(self._limit)

    def probe(self) -> None:
        """Measure the latency of the loop once, unless a measurement is under way. To be called when work begins."""
        if not self._probing:
            self._probing = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._measured, loop, loop.time(), time.thread_time())

    def _measured(self, loop: asyncio.AbstractEventLoop, then: float, used: float) -> None:
        self._probing = False
        latency = min(loop.time() - then, time.thread_time() - used)
        if latency > _SLOW:
            self._limit = max(self._minimum, self._limit * _DECREASE)
        elif latency < _FAST:
            self._limit = min(float(self.maximum), self._limit + _INCREASE)


class Flows:
    """Waiting keys by flow. Of the flows below their limit, the one that was served longest ago is next.

    The limit follows the load of the loop only while several flows are active: with one flow nobody is delayed.
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
        """Queue a key; whether the limit of its flow lets one be taken now."""
        self._waiting.setdefault(flow, deque()).append(key)
        self._touch(flow)
        return self._line_up(flow)

    def take(self) -> tuple[str, str] | None:
        """The next flow and key, which is in work from now on; None if there is none."""
        if not self._order:
            return None
        flow, _ = self._order.popitem(last=False)
        keys = self._waiting[flow]
        key = keys.popleft()
        if not keys:
            del self._waiting[flow]
        self._working[flow] += 1
        self._touch(flow)
        self._line_up(flow)
        if self._concurrency is not None:
            self._concurrency.probe()
        return flow, key

    def leave(self, flow: str) -> bool:
        """The work on a key of the flow is over; whether another of its keys may be taken now."""
        self._working[flow] -= 1
        if not self._working[flow]:
            del self._working[flow]
        return self._line_up(flow)

    def _line_up(self, flow: str) -> bool:
        """Append the flow to the order if it has keys and is below its limit; whether it is there."""
        if flow not in self._waiting or self._working[flow] >= self._limit():
            return False
        self._order.setdefault(flow)
        return True

    def _limit(self) -> int:
        if self._concurrency is None:
            return sys.maxsize
        return self._concurrency.limit if len(self._active) > 1 else self._concurrency.maximum

    def _touch(self, flow: str) -> None:
        if self._concurrency is None:
            return
        now = self._now()
        self._active[flow] = now
        self._active.move_to_end(flow)
        while now - next(iter(self._active.values())) > _ACTIVE:
            self._active.popitem(last=False)
