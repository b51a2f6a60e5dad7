"""Time as a dependency: wall time is passed in; monotonic time is that of the event loop, virtual in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["Clock", "LoopTime", "SystemClock"]


class Clock(Protocol):
    """Source of time."""

    def now(self) -> datetime:
        """Return the time of day, aware, UTC. It may jump: never subtract two of them to wait."""
        ...

    def monotonic(self) -> float:
        """Return seconds that only grow: the running loop's time."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class LoopTime:
    """Returns, when called, the time of the loop that first called it: for paths where looking up the loop costs."""

    __slots__ = ("_time",)

    def __init__(self) -> None:
        self._time: Callable[[], float] | None = None

    def __call__(self) -> float:
        if self._time is None:
            self._time = asyncio.get_running_loop().time
        return self._time()
