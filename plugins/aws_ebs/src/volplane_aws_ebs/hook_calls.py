"""One call of a hook."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from volplane import Context, Unavailable

__all__ = ["Later", "Memory", "Turn", "fence_of"]

_LATEST_START = 0.5
"""No change is begun once so much of the call's time is over: its answer would come when nobody waits any more."""


class Later(Exception):
    """Nothing to do before so many seconds have passed; the hook ends with `InProgress`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"in {seconds:.3g} s")
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Turn:
    """The running call. began: seconds of the driver's clock."""

    context: Context
    clock: Callable[[], float]
    began: float

    def before_a_change(self) -> None:
        """Raise unless there is somebody and enough time to wait for a change that begins now."""
        if self.context.cancelled():
            raise Unavailable("nobody waits for this call any more, so nothing was begun")
        if self.clock() - self.began > self.context.timeout * _LATEST_START:
            raise Later(0.1)


def fence_of(context: Context) -> int | None:
    """The number in front of the fence, which rises with every change of leader; None if there is none to compare."""
    number = context.fence.partition("/")[0]
    return int(number) if number.isdigit() else None


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOST = 100_000


class Memory(Generic[K, V]):
    """A table that forgets what was put in first when it is full."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._table: dict[K, V] = {}
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """What is known, or None."""
        return self._table.get(key)

    def put(self, key: K, value: V) -> V:
        """Remember it instead of what was known."""
        with self._lock:
            self._table.pop(key, None)
            return self._add(key, value)

    def setdefault(self, key: K, value: V) -> V:
        """What is known; `value`, remembered, if nothing is."""
        with self._lock:
            return self._table[key] if key in self._table else self._add(key, value)

    def drop(self, key: K) -> V | None:
        """Forget it; what was known."""
        with self._lock:
            return self._table.pop(key, None)

    def __len__(self) -> int:
        return len(self._table)

    def _add(self, key: K, value: V) -> V:
        while len(self._table) >= self._most:
            del self._table[next(iter(self._table))]
        self._table[key] = value
        return value
