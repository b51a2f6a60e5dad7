"""One call of a hook: how much time it has, how it ends without holding its thread, what is kept between calls.

Nothing here is specific to EC2.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from volplane import Context, Unavailable

__all__ = ["BoundedCache", "HookCall", "RetryLater", "fence_number"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_LATEST_CHANGE = 0.5
"""Share of the call's timeout after which no mutating call is started: its answer would arrive after the timeout."""
_TOO_LATE_RETRY_SECONDS = 0.1
_CACHE_SIZE = 100_000


class RetryLater(Exception):
    """There is nothing to do for `seconds`: the hook returns `InProgress` with this `retry_after`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"in {seconds:.3g} s")
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class HookCall:
    """The running call of a hook. started: seconds of `clock`."""

    context: Context
    clock: Callable[[], float]
    started: float

    def require_time(self) -> None:
        """Raise unless the caller still waits and a mutating call that starts now can finish before the timeout.

        Raises `Unavailable` if the call was cancelled, `RetryLater` if half of its timeout is over.
        """
        if self.context.cancelled():
            raise Unavailable("the call was cancelled before anything was changed")
        if self.clock() - self.started > self.context.timeout * _LATEST_CHANGE:
            raise RetryLater(_TOO_LATE_RETRY_SECONDS)


def fence_number(context: Context) -> int | None:
    """The number at the start of the fence, which grows with every change of leader; None if it has none."""
    number = context.fence.partition("/")[0]
    return int(number) if number.isdigit() else None


class BoundedCache(Generic[K, V]):
    """A table that drops its oldest entry when it is full. Safe for threads.

    It saves calls only: the driver must stay correct if any entry is missing.
    """

    def __init__(self, max_entries: int = _CACHE_SIZE) -> None:
        self._max_entries = max_entries
        self._table: dict[K, V] = {}
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value, or None."""
        return self._table.get(key)

    def put(self, key: K, value: V) -> V:
        """Store the value as the newest entry, in place of an older one; returns it."""
        with self._lock:
            self._table.pop(key, None)
            return self._add(key, value)

    def setdefault(self, key: K, value: V) -> V:
        """The stored value; `value`, which is then stored, if there is none."""
        with self._lock:
            return self._table[key] if key in self._table else self._add(key, value)

    def drop(self, key: K) -> V | None:
        """Remove the entry; returns its value, or None."""
        with self._lock:
            return self._table.pop(key, None)

    def _add(self, key: K, value: V) -> V:
        while len(self._table) >= self._max_entries:
            del self._table[next(iter(self._table))]
        self._table[key] = value
        return value
