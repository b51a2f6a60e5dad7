"""Time of a fake cloud: a clock that a test moves, planned events, and readers that see changes late."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Former", "SteppedClock", "Timeline"]

V = TypeVar("V")


class SteppedClock:
    """A clock in seconds that moves only when a test moves it. Safe for threads. now: its time."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock by `seconds`, and by a microsecond at least, so that a loop of waits always ends."""
        with self._lock:
            self.now += max(seconds, 1e-6)


class Timeline:
    """Planned events by time, and in the order they were planned. It has no timers and no threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.now = clock()
        """Time up to which events have run; an event sees its own time here."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Plan an event for `seconds` after `now`."""
        self._planned += 1
        heapq.heappush(self._events, (self.now + seconds, self._planned, event))

    def run_due_events(self) -> float:
        """Run every event that is due, those included that events plan; returns the time."""
        end = self.clock()
        while self._events and self._events[0][0] <= end:
            due, _, event = heapq.heappop(self._events)
            self.now = max(self.now, due)
            event()
        self.now = max(self.now, end)
        return self.now

    @property
    def next_due(self) -> float | None:
        """When the next event is due; None if none is planned."""
        return self._events[0][0] if self._events else None


@dataclass(slots=True)
class Former(Generic[V]):
    """What readers of an eventually consistent cloud see of a value that has changed. at: when it changed."""

    value: V
    at: float

    def shown(self, present: V, now: float, lag: float) -> V:
        """Return the present value once `lag` seconds are over, until then the former one."""
        return present if now >= self.at + lag else self.value
