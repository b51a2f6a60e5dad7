"""How much of one driver may run at once, and how fast it may start."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from volplane.operations.operation import Operation

__all__ = ["UNLIMITED", "DriverLimits", "DriverQueue", "TokenBucket"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverLimits:
    """How much a driver does at once.

    concurrency: operations that run at once. rate: operations started per second; None: any number. timeout: seconds
    that a hook may take.
    """

    concurrency: int = 10
    rate: float | None = None
    timeout: float = 120.0


UNLIMITED: Final = DriverLimits(concurrency=sys.maxsize)
"""For operations of no driver: they wait for others, and run no hook of their own."""


class TokenBucket:
    """`rate` tokens per second, at most `burst` saved up (default: a second's). Times are seconds of any one clock."""

    def __init__(self, rate: float, now: float, *, burst: float | None = None) -> None:
        self._rate = rate
        self._burst = max(1.0, rate if burst is None else burst)
        self._tokens = self._burst
        self._filled = now

    def wait(self, now: float) -> float:
        """Seconds until there is a token; 0.0: there is one now."""
        self._fill(now)
        return 0.0 if self._tokens >= 1.0 - 1e-9 else (1.0 - self._tokens) / self._rate

    def take(self, now: float) -> None:
        self._fill(now)
        self._tokens -= 1.0

    def give(self, tokens: float) -> None:
        """Add tokens, as far as the burst allows."""
        self._tokens = min(self._burst, self._tokens + tokens)

    def full(self, now: float) -> bool:
        self._fill(now)
        return self._tokens >= self._burst

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now


class DriverQueue:
    """Operations of one driver that wait for its limits: first come, first served, independent of other drivers."""

    def __init__(self, limits: DriverLimits, begin: Callable[[Operation], None]) -> None:
        """begin: starts an operation, whose end is reported by `ended`."""
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._begin = begin
        self._bucket = None if limits.rate is None else TokenBucket(limits.rate, self._loop.time())
        self._waiting: deque[Operation] = deque()
        self._running = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, operation: Operation) -> None:
        """Begin the operation now or later."""
        self._waiting.append(operation)
        self._pump()

    def remove(self, operation: Operation) -> None:
        """Forget an operation that has not begun."""
        self._waiting.remove(operation)

    def ended(self) -> None:
        """An operation that had begun is over."""
        self._running -= 1
        self._pump()

    def _pump(self) -> None:
        while self._waiting and self._running < self._limits.concurrency:
            if self._bucket is not None:
                now = self._loop.time()
                if (wait := self._bucket.wait(now)) > 0:
                    if self._timer is None:
                        self._timer = self._loop.call_later(wait, self._refilled)
                    return
                self._bucket.take(now)
            self._running += 1
            self._begin(self._waiting.popleft())

    def _refilled(self) -> None:
        self._timer = None
        self._pump()
