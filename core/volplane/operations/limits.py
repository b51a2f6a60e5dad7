"""How much of one driver may run at once, how fast it may start, and how late a failed operation is tried again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from volplane.errors import ApiError, BackendError, RetryPolicy

__all__ = [
    "FIRST_DELAY",
    "LONGEST_DELAY",
    "LONGEST_RETRY_AFTER",
    "SLOW_DELAY",
    "DriverLimits",
    "TokenBucket",
    "retry_delay",
]

FIRST_DELAY: Final = 0.5
LONGEST_DELAY: Final = 120.0
SLOW_DELAY: Final = 300.0
LONGEST_RETRY_AFTER: Final = 3600.0
"""A backend that asks for more is called again after this: an hour's silence already looks like a stuck claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverLimits:
    """concurrency: operations that run at once; rate: operations started per second, None = any; timeout: seconds a hook may take."""

    concurrency: int = 10
    rate: float | None = None
    timeout: float = 120.0


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
    """Seconds until the next try after the `failures`-th failure in a row (from 1).

    What the error asks for (`retry_after`) comes first, then the policy of its class: slow, or 0.5 s doubling to 2 min.
    """
    asked = error.retry_after if isinstance(error, BackendError | ApiError) else None
    if asked is not None and math.isfinite(asked):
        return min(max(asked, FIRST_DELAY), LONGEST_RETRY_AFTER)
    if isinstance(error, BackendError) and error.retry is RetryPolicy.SLOW:
        return SLOW_DELAY
    doublings = min(max(failures, 1) - 1, 16)
    return min(FIRST_DELAY * 2.0**doublings, LONGEST_DELAY)
