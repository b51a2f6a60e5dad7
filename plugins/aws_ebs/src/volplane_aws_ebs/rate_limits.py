"""One token bucket for each call that changes something.

Nobody waits in it: who is too early is told when to come back, and finds the place kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from volplane_aws_ebs.api import Call

__all__ = ["Pacer"]

_KEPT_SECONDS = 120.0
_SLOWEST = 1 / 16
_PAUSE = 1.0
_EASE = 1.05


class _Bucket:
    """A bucket in virtual scheduling: `_full` is when it would be full again."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._share = 1.0
        self._full = 0.0
        self._kept: dict[str, float] = {}

    def place(self, key: str, now: float) -> float:
        """When this caller may call; the same place however often it asks, until it is `taken`."""
        slot = self._kept.get(key)
        if slot is None or slot + _KEPT_SECONDS < now:
            slot = self._kept[key] = self._next(now)
        return slot

    def _next(self, now: float) -> float:
        gap = 1.0 / (self._rate * self._share)
        self._full = max(self._full, now) + gap
        return max(now, self._full - self._burst * gap)

    def taken(self, key: str) -> None:
        self._kept.pop(key, None)

    def drop_forgotten(self, now: float) -> None:
        for key in [key for key, slot in self._kept.items() if slot + _KEPT_SECONDS < now]:
            del self._kept[key]

    def throttled(self, now: float) -> None:
        """Halve the rate, empty the bucket, and line up anew who waits."""
        self._share = max(_SLOWEST, self._share / 2)
        gap = 1.0 / (self._rate * self._share)
        start = now + _PAUSE
        waiting = sorted(self._kept, key=lambda key: self._kept[key])
        for number, key in enumerate(waiting):
            self._kept[key] = start + number * gap
        self._full = start + (len(waiting) + self._burst) * gap

    def eased(self) -> None:
        self._share = min(1.0, self._share * _EASE)


class Pacer:
    """The buckets of one driver. Safe for threads; times are seconds of any one clock."""

    def __init__(self, *, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: dict[Call, _Bucket] = {}
        self._lock = threading.Lock()

    def wait(self, call: Call, key: str) -> float:
        """Seconds until the caller's turn; 0.0 = now, and the token is taken. key: who asks, such as a volume's name."""
        now = self._clock()
        with self._lock:
            bucket = self._bucket(call)
            left = bucket.place(key, now) - now
            if left > 1e-6:
                return left
            bucket.taken(key)
            bucket.drop_forgotten(now)
            return 0.0

    def throttled(self, call: Call) -> None:
        """EC2 has refused it as too frequent: somebody else uses the account's bucket as well."""
        with self._lock:
            self._bucket(call).throttled(self._clock())

    def went_through(self, call: Call) -> None:
        """EC2 took it: return to the configured rate by and by."""
        with self._lock:
            self._bucket(call).eased()

    def _bucket(self, call: Call) -> _Bucket:
        bucket = self._buckets.get(call)
        if bucket is None:
            bucket = self._buckets[call] = _Bucket(self._rate, self._burst)
        return bucket
