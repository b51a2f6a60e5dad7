"""What happens later: events of a clock that somebody else moves. No timers, no threads."""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ["Timeline"]


class Timeline:
    """Events in order of their time, those of one time in the order they were planned."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.now = clock()
        """The time that has been lived through; an event sees its own time here."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Let it happen so many seconds after `now`."""
        self._planned += 1
        heapq.heappush(self._events, (self.now + seconds, self._planned, event))

    def catch_up(self) -> float:
        """Let everything happen that is due, and return the time. Events may plan further ones."""
        end = self.clock()
        while self._events and self._events[0][0] <= end:
            due, _, event = heapq.heappop(self._events)
            self.now = max(self.now, due)
            event()
        self.now = max(self.now, end)
        return self.now

    @property
    def next_due(self) -> float | None:
        """When the next event is due; None when nothing will happen by itself."""
        return self._events[0][0] if self._events else None
