"""One call of a hook about long work: how much time it has, and how it ends without holding its thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from volplane.assets import InProgress
from volplane.errors import Unavailable
from volplane.requests import Context

__all__ = ["BoundedCache", "HookCall", "RetryLater", "StateAges", "in_turns"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")

_LATEST_CHANGE = 0.5
"""Share of the call's timeout after which no mutating call is started: its answer would arrive after the timeout."""
_TOO_LATE_RETRY_SECONDS = 0.1
_CACHE_SIZE = 100_000
_ASKED_SECONDS = 600.0
"""A state that no caller asked about for this long is another one when it is seen again."""


class RetryLater(Exception):
    """There is nothing to do for `seconds`: the hook returns `InProgress` with this `retry_after`.

    state: what must survive the process, such as the name of a running operation; None = what was saved before.
    """

    def __init__(self, seconds: float, state: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"in {seconds:.3g} s")
        self.seconds = seconds
        self.state = state


@dataclass(frozen=True, slots=True)
class HookCall:
    """The running call of a hook."""

    context: Context
    """The call's own."""
    clock: Callable[[], float]
    """Seconds, never going back."""
    started: float
    """When the call began, by `clock`."""

    def require_time(self) -> None:
        """Raise unless the caller still waits and a mutating call that starts now can finish before the timeout.

        Raises `Unavailable` if the call was cancelled, `RetryLater` if half of its timeout is over.
        """
        if self.context.cancelled():
            raise Unavailable("the call was cancelled before anything was changed")
        if self.clock() - self.started > self.context.timeout * _LATEST_CHANGE:
            raise RetryLater(_TOO_LATE_RETRY_SECONDS)


def in_turns(context: Context, clock: Callable[[], float], work: Callable[[HookCall], T]) -> T | InProgress:
    """Return the result of `work`; InProgress where it raises RetryLater.

    The state stays as it was unless RetryLater has another one, so that nothing has to be saved. clock: seconds, never
    going back.
    """
    try:
        return work(HookCall(context, clock, clock()))
    except RetryLater as retry:
        return InProgress(retry_after=retry.seconds, state=context.state if retry.state is None else retry.state)


class BoundedCache(Generic[K, V]):
    """A table that drops its oldest entry when it is full. Safe for threads.

    It saves calls only: the driver must stay correct if any entry is missing.
    """

    def __init__(self, max_entries: int = _CACHE_SIZE) -> None:
        self._max_entries = max_entries
        self._table: dict[K, V] = {}
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return the value, or None."""
        return self._table.get(key)

    def put(self, key: K, value: V) -> V:
        """Store the value as the newest entry, in place of an older one; returns it."""
        with self._lock:
            self._table.pop(key, None)
            return self._add(key, value)

    def setdefault(self, key: K, value: V) -> V:
        """Return the stored value; `value`, which is then stored, if there is none."""
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


class StateAges:
    """How long this process has seen things in a state that should pass. Safe for threads.

    A driver compares an age with the usual one, and reports on the claim a state that does not end. clock: seconds,
    never going back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[tuple[Hashable, str], tuple[float, float]] = {}
        """First and last time that a caller asked."""
        self._next_cleanup = 0.0
        self._lock = threading.Lock()

    def seconds(self, key: Hashable, state: str) -> float:
        """Return the seconds since the first call for this key and state after the last `reset`."""
        now = self._clock()
        with self._lock:
            if now >= self._next_cleanup:
                self._next_cleanup = now + _ASKED_SECONDS
                self._seen = {each: seen for each, seen in self._seen.items() if seen[1] + _ASKED_SECONDS >= now}
            first, asked = self._seen.get((key, state), (now, now))
            if asked + _ASKED_SECONDS < now:
                first = now
            self._seen[key, state] = (first, now)
            return now - first

    def reset(self, key: Hashable, *states: str) -> None:
        """Forget these states: they are over."""
        with self._lock:
            for state in states:
                self._seen.pop((key, state), None)
