"""Keys that are due later, after the delaying queue of client-go's workqueue."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

__all__ = ["DelayingQueue"]


class DelayingQueue:
    """Keys with a time. One timer for all of them: that of the earliest.

    Of several times of a key the earliest counts.
    """

    def __init__(self, due: Callable[[str], None], now: Callable[[], float]) -> None:
        """due: called with each key whose time has come. now: the loop's clock."""
        self._due = due
        self._now = now
        self._times: dict[str, float] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._order = 0
        self._timer: asyncio.Handle | None = None
        self._rings_at = 0.0
        """When the timer is due. Kept here: uvloop gives a handle without a time if that is less than 1 ms away."""

    @property
    def first(self) -> float | None:
        """Loop time at which the next delay ends."""
        self._tidy()
        return self._heap[0][0] if self._heap else None

    def set(self, key: str, when: float) -> None:
        """Call `due` at this loop time."""
        known = self._times.get(key)
        if known is not None and known <= when:
            return
        self._times[key] = when
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, key))
        if self._timer is None or when < self._rings_at:
            self._arm(when)

    def clear(self) -> None:
        """Forget all keys."""
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
        self._rings_at = when
        self._timer = asyncio.get_running_loop().call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = max(self._now(), self._rings_at)
        self._tidy()
        while self._heap and self._heap[0][0] <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._times[key]
            self._due(key)
            self._tidy()
        if self._heap:
            self._arm(self._heap[0][0])
