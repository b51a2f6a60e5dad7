"""Client-side rate limits: one token bucket for each mutating action.

EC2 throttles each action by a token bucket (Amazon EC2 Developer Guide, "Request throttling for the Amazon EC2 API").
A caller that is too early gets the seconds to wait and keeps its slot; no thread waits here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from volplane_aws_ebs.api import Action

__all__ = ["RateLimiter"]

_SLOT_SECONDS = 120.0
"""A slot that was not used this long after its time is dropped."""
_LOWEST_SHARE = 1 / 16
_THROTTLED_PAUSE = 1.0
_RECOVERY = 1.05
"""Growth of the rate with every successful call after throttling."""


class _TokenBucket:
    """A token bucket in virtual scheduling: `_full_at` is when the bucket would be full again."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._share = 1.0
        """Part of the configured rate that is used; below 1 after throttling."""
        self._full_at = 0.0
        self._slots: dict[str, float] = {}

    def slot(self, key: str, now: float) -> float:
        """When this caller may call: the same time however often it asks, until `release`."""
        slot = self._slots.get(key)
        if slot is None or slot + _SLOT_SECONDS < now:
            slot = self._slots[key] = self._next(now)
        return slot

    def _next(self, now: float) -> float:
        gap = 1.0 / (self._rate * self._share)
        self._full_at = max(self._full_at, now) + gap
        return max(now, self._full_at - self._burst * gap)

    def release(self, key: str) -> None:
        self._slots.pop(key, None)

    def drop_expired(self, now: float) -> None:
        for key in [key for key, slot in self._slots.items() if slot + _SLOT_SECONDS < now]:
            del self._slots[key]

    def throttled(self, now: float) -> None:
        """Halve the rate, empty the bucket, and give the waiting callers new slots in the same order."""
        self._share = max(_LOWEST_SHARE, self._share / 2)
        gap = 1.0 / (self._rate * self._share)
        start = now + _THROTTLED_PAUSE
        waiting = sorted(self._slots, key=lambda key: self._slots[key])
        for number, key in enumerate(waiting):
            self._slots[key] = start + number * gap
        self._full_at = start + (len(waiting) + self._burst) * gap

    def recover(self) -> None:
        self._share = min(1.0, self._share * _RECOVERY)


class RateLimiter:
    """The token buckets of one driver. Safe for threads.

    rate: calls per second of each action. burst: calls at once. clock: seconds, never going back.
    """

    def __init__(self, *, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: dict[Action, _TokenBucket] = {}
        self._lock = threading.Lock()

    def wait(self, action: Action, key: str) -> float:
        """Seconds until the caller may call; 0.0 = now, and the token is taken.

        key: the caller, such as the id of a volume; it keeps its slot until it has called.
        """
        now = self._clock()
        with self._lock:
            bucket = self._bucket(action)
            left = bucket.slot(key, now) - now
            if left > 1e-6:
                return left
            bucket.release(key)
            bucket.drop_expired(now)
            return 0.0

    def throttled(self, action: Action) -> None:
        """EC2 throttled the action: other clients use the account's bucket as well. Lowers the rate."""
        with self._lock:
            self._bucket(action).throttled(self._clock())

    def succeeded(self, action: Action) -> None:
        """EC2 accepted the action: return towards the configured rate."""
        with self._lock:
            self._bucket(action).recover()

    def _bucket(self, action: Action) -> _TokenBucket:
        bucket = self._buckets.get(action)
        if bucket is None:
            bucket = self._buckets[action] = _TokenBucket(self._rate, self._burst)
        return bucket
