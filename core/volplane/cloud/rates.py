"""Client-side rate limits that learn from refusals.

A cloud throttles each kind of call by a token bucket (Amazon EC2 Developer Guide, "Request throttling for the Amazon
EC2 API"; Compute Engine documentation, "Rate quotas"). A caller that is too early gets the seconds to wait and keeps
its place in the queue; no thread waits here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

from volplane import _shared
from volplane.cloud.calls import CloudError
from volplane.cloud.turns import BoundedCache, HookCall, RetryLater

__all__ = ["RateLimiter", "Refusal", "TokenBucket"]

T = TypeVar("T")

_SLOT_SECONDS = 120.0
"""A slot that was not used this long after its time is dropped."""
_LOWEST_SHARE = 1 / 16
_THROTTLED_PAUSE = 1.0
_RECOVERY = 1.05
"""Growth of the rate with every successful call after throttling."""
_LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """That a cloud refuses a call because there are too many."""

    of_resource: bool = False
    """Too many changes of one resource, which say nothing about others; False = too many calls of the account."""
    seconds: float = _THROTTLED_PAUSE
    """How long this resource is left alone; twice as long after each further refusal in a row."""


class TokenBucket(_shared.TokenBucket):
    """A bucket whose tokens can be reserved, and whose rate can change."""

    def reserve(self, now: float) -> float:
        """Take the next token; returns when it is there: now, or after those that others have reserved."""
        self.take(now)
        return now + max(0.0, -self._tokens / self._rate)

    def change_rate(self, rate: float, now: float) -> None:
        """Fill at another rate from now on."""
        self._fill(now)
        self._rate = rate

    def empty(self, now: float, *, next_token: float) -> None:
        """Drop the tokens and what is reserved of them; the next token is there at `next_token`."""
        self._filled = now
        self._tokens = 1.0 - (next_token - now) * self._rate


class _Queue:
    """The callers of one kind of call, each with the time at which it may call."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._bucket = TokenBucket(rate, now, burst=burst)
        self._share = 1.0
        """Part of the configured rate that is used; below 1 after throttling."""
        self._slots: dict[Hashable, float] = {}

    def slot(self, key: Hashable, now: float) -> float:
        """Return when this caller may call: the same time however often it asks, until `release`."""
        slot = self._slots.get(key)
        if slot is None or slot + _SLOT_SECONDS < now:
            slot = self._slots[key] = self._bucket.reserve(now)
        return slot

    def seconds(self, now: float) -> float:
        """Return how long a new caller would wait."""
        return self._bucket.wait(now)

    def release(self, key: Hashable, now: float) -> None:
        """Free the slot of a caller that calls, and drop slots that were not used."""
        self._slots.pop(key, None)
        for expired in [each for each, slot in self._slots.items() if slot + _SLOT_SECONDS < now]:
            del self._slots[expired]

    def throttled(self, now: float) -> None:
        """Halve the rate, empty the bucket, and give the waiting callers new slots in the same order."""
        self._share = max(_LOWEST_SHARE, self._share / 2)
        self._bucket.change_rate(self._rate * self._share, now)
        start, gap = now + _THROTTLED_PAUSE, 1.0 / (self._rate * self._share)
        waiting = sorted(self._slots, key=lambda key: self._slots[key])
        for number, key in enumerate(waiting):
            self._slots[key] = start + number * gap
        self._bucket.empty(now, next_token=start + len(waiting) * gap)

    def recover(self, now: float) -> None:
        if self._share < 1.0:
            self._share = min(1.0, self._share * _RECOVERY)
            self._bucket.change_rate(self._rate * self._share, now)


class RateLimiter:
    """A token bucket for each kind of call of one driver. Safe for threads.

    rate: calls per second of each kind. burst: calls at once. clock: seconds, never going back. Kinds of calls are any
    hashable values, such as names of the cloud's actions, or a pair of an action and a virtual machine.
    """

    def __init__(self, *, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._queues: dict[Hashable, _Queue] = {}
        self._pauses: BoundedCache[Hashable, tuple[float, float]] = BoundedCache()
        """By resource: until when no change of it is tried, and the length of this pause."""
        self._lock = threading.Lock()

    def wait(self, kind: Hashable, key: Hashable) -> float:
        """Return the seconds until the caller may call; 0.0 = now, and the token is taken.

        key: the caller, such as the id of a volume; it keeps its slot until it has called.
        """
        now = self._clock()
        with self._lock:
            queue = self._queue(kind, now)
            left = queue.slot(key, now) - now
            if left > 1e-6:
                return left
            queue.release(key, now)
            return 0.0

    def make(
        self,
        kind: Hashable,
        key: Hashable,
        call: HookCall,
        work: Callable[[], T],
        *,
        refusal: Callable[[CloudError], Refusal | None],
        resource: Hashable = None,
    ) -> T:
        """Make a call of the cloud that changes something, and return its result; learns from it.

        refusal: whether an error is one because of too many calls. resource: what the cloud counts changes of, such as
        a virtual machine whose queue several calls fill; None = by kind and key. Raises `RetryLater` while it is too
        early for the caller or for the resource, what `HookCall.require_time` raises, and CloudError.
        """
        call.require_time()
        resource = (kind, key) if resource is None else resource
        until, pause = self._pauses.get(resource) or (0.0, 0.0)
        wait = until - self._clock() if pause else 0.0
        if wait <= 0:
            wait = self.wait(kind, key)
        if wait > 0:
            raise RetryLater(wait)
        try:
            result = work()
        except CloudError as error:
            refused = refusal(error)
            if refused is not None and refused.of_resource:
                pause = min(pause * 2 or refused.seconds, _LONGEST_PAUSE)
                self._pauses.put(resource, (self._clock() + pause, pause))
            elif refused is not None:
                self.throttled(kind)
            raise
        self._pauses.drop(resource)
        self.succeeded(kind)
        return result

    def queue_seconds(self, kind: Hashable) -> float:
        """Return how long a caller that came now would have to wait. Takes nothing."""
        now = self._clock()
        with self._lock:
            return self._queue(kind, now).seconds(now)

    def throttled(self, kind: Hashable) -> None:
        """Lower the rate: the cloud throttled the call, because other clients use the account's bucket as well."""
        now = self._clock()
        with self._lock:
            self._queue(kind, now).throttled(now)

    def succeeded(self, kind: Hashable) -> None:
        """Return towards the configured rate: the cloud accepted the call."""
        now = self._clock()
        with self._lock:
            self._queue(kind, now).recover(now)

    def _queue(self, kind: Hashable, now: float) -> _Queue:
        queue = self._queues.get(kind)
        if queue is None:
            queue = self._queues[kind] = _Queue(self._rate, self._burst, now)
        return queue
