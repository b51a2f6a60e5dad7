"""Throttling by a fake cloud: a token bucket for each kind of call."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from volplane.cloud import TokenBucket

__all__ = ["Rate", "Throttle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A token bucket: `burst` calls at once, `per_second` refilled."""

    burst: float
    per_second: float


class Throttle:
    """Token buckets by kind of call. A refused call takes no token."""

    def __init__(self) -> None:
        self._buckets: dict[Hashable, tuple[Rate, TokenBucket]] = {}

    def admits(self, kind: Hashable, rate: Rate | None, now: float) -> bool:
        """Take a token of the kind's bucket; False when it is empty. rate: None = any number of calls."""
        if rate is None:
            return True
        known = self._buckets.get(kind)
        if known is None or known[0] != rate:
            known = self._buckets[kind] = (rate, TokenBucket(rate.per_second, now, burst=rate.burst))
        bucket = known[1]
        if bucket.wait(now) > 0:
            return False
        bucket.take(now)
        return True
