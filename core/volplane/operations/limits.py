"""How much of one driver may run at once, how fast it may start, and how late a failed operation is tried again."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from volplane.backoff import HOOK_FAILED, HOOK_FAILED_SLOW
from volplane.errors import ApiError, BackendError, RetryPolicy

__all__ = [
    "UNLIMITED",
    "DriverLimits",
    "TokenBucket",
    "retry_delay",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverLimits:
    """concurrency: operations that run at once; rate: operations started per second, None = any; timeout: seconds a hook may take."""

    concurrency: int = 10
    rate: float | None = None
    timeout: float = 120.0


UNLIMITED: Final = DriverLimits(concurrency=sys.maxsize)
"""Of operations of no driver: they wait for others and call no hook themselves."""


class TokenBucket:
    """`rate` tokens per second, at most `burst` saved up: a second's worth unless told. Times are seconds of any one clock."""

    def __init__(self, rate: float, now: float, *, burst: float | None = None) -> None:
        self._rate = rate
        self._burst = max(1.0, rate if burst is None else burst)
        self._tokens = self._burst
        self._filled = now

    def wait(self, now: float) -> float:
        """Seconds until a token is there; 0.0 = now."""
        self._fill(now)
        return 0.0 if self._tokens >= 1.0 - 1e-9 else (1.0 - self._tokens) / self._rate

    def take(self, now: float) -> None:
        self._fill(now)
        self._tokens -= 1.0

    def give(self, tokens: float) -> None:
        """Put some in."""
        self._tokens = min(self._burst, self._tokens + tokens)

    def full(self, now: float) -> bool:
        self._fill(now)
        return self._tokens >= self._burst

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now


def retry_delay(error: BaseException, failures: int) -> float:
    """Seconds until an operation runs again after its `failures`-th failure in a row, counted from 1.

    The rows are `HOOK_FAILED_SLOW` for errors of the slow policy and `HOOK_FAILED` for all others.
    """
    slow = isinstance(error, BackendError) and error.retry is RetryPolicy.SLOW
    asked = error.retry_after if isinstance(error, BackendError | ApiError) else None
    return (HOOK_FAILED_SLOW if slow else HOOK_FAILED).delay(failures, asked=asked)
