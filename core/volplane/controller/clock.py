"""Wall time, to be injected. Monotonic time is the event loop's own, so that a virtual loop rules everything."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Where wall time comes from."""

    def now(self) -> datetime:
        """The time of day, aware, UTC. May jump; never subtract two of them to wait."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow: the running loop's time."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()
