"""Shared answers: what many callers want to know is asked of EC2 in few calls.

A caller asks for a key and gets an answer that is young enough, or none; then it says when to be called again and holds
no thread meanwhile. The first caller that finds the board due fetches for everybody who has asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Board", "Sighting"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_OFTEN_THROTTLED = 16.0
_KEPT_SECONDS = 120.0
_UNREAD_FAILURE_SECONDS = 30.0
_LONGEST_RIDE = 3.0
"""How long a caller waits for a fetch that somebody else has under way and that includes its key."""


@dataclass(frozen=True, slots=True)
class Sighting(Generic[V]):
    """What EC2 said of a key. value: None = it does not exist. at: when the call that said so began.

    turn: orders it among other calls and changes, also where the clock stands still.
    """

    value: V | None
    at: float
    turn: int


class Board(Generic[K, V]):
    """Answers about keys. Safe for threads; belongs to one clock (seconds).

    fetch: from keys to what exists of them; called by one thread at a time. interval: seconds between fetches.
    """

    def __init__(
        self,
        fetch: Callable[[Sequence[K]], Mapping[K, V]],
        *,
        clock: Callable[[], float],
        interval: float,
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._interval = interval
        self._slowdown = 1.0
        self._changed = threading.Condition()
        self._wanted: dict[K, float] = {}
        """When somebody comes, or came, for the answer."""
        self._known: dict[K, Sighting[V]] = {}
        self._failures: dict[K, tuple[Exception, float]] = {}
        self._since: dict[K, tuple[int, float]] = {}
        self._turn = 0
        self._fetching: frozenset[K] = frozenset()
        self._next = 0.0
        self._promised = 0.0
        """When somebody comes for the next fetch: who comes shortly before waits for it."""

    def ask(self, key: K, *, max_age: float | None = None, patience: float = _LONGEST_RIDE) -> Sighting[V] | None:
        """An answer that is young enough, and not from before the key was `touched`; or None: come back later.

        max_age: in seconds, None = an interval. patience: seconds to wait for a fetch that is under way.
        Raises what the fetch for this key raised.
        """
        oldest = self._interval if max_age is None else max_age
        with self._changed:
            now = self._clock()
            if (sighting := self._fresh(key, now - oldest)) is not None:
                self._wanted.pop(key, None)
                return sighting
            self._raise_failure(key)
            self._wanted[key] = now
            if self._fetching:
                if key in self._fetching:
                    self._changed.wait_for(lambda: key not in self._fetching, timeout=patience)
                    self._raise_failure(key)
                    return self._settled(key)
                return None
            if now < self._next or now < self._promised < now + self._beat:
                return None
            keys = self._begin(now)
            turn = self._turn
        self._run(keys, now, turn)
        with self._changed:
            self._raise_failure(key)
            return self._settled(key)

    def ask_now(self, key: K) -> Sighting[V]:
        """An answer to a call that begins now, made in this thread. Raises what it raises."""
        with self._changed:
            self._changed.wait_for(lambda: not self._fetching)
            now = self._clock()
            self._wanted[key] = now
            keys = self._begin(now)
            turn = self._turn
        self._run(keys, now, turn)
        with self._changed:
            self._raise_failure(key)
            return self._known[key]

    def recall(self, key: K, max_age: float) -> Sighting[V] | None:
        """What is known anyhow, if it is young enough and the key was not `touched` since. Asks nobody."""
        with self._changed:
            return self._fresh(key, self._clock() - max_age)

    def touched(self, key: K) -> None:
        """Something was done to it just now: what was seen before does not count any more."""
        with self._changed:
            self._turn += 1
            self._since[key] = (self._turn, self._clock())

    def forget(self, key: K) -> None:
        """Nobody will ask for it again."""
        with self._changed:
            for table in (self._wanted, self._known, self._failures, self._since):
                table.pop(key, None)

    def come_back(self, key: K, after: float = 0.0) -> float:
        """In how many seconds to ask for this key again, at least `after`: on the beat that all share.

        Whoever is first there fetches for it too.
        """
        with self._changed:
            now = self._clock()
            soonest = max(now + after, self._next)
            moment = -(-soonest // self._beat) * self._beat
            self._wanted[key] = moment
            if not now < self._promised <= moment:
                self._promised = moment
            return max(moment - now, 0.001)

    @property
    def _beat(self) -> float:
        return self._interval * self._slowdown

    def _fresh(self, key: K, oldest: float) -> Sighting[V] | None:
        sighting = self._known.get(key)
        if sighting is None or sighting.at < oldest or self._outdated(key, sighting):
            return None
        return sighting

    def _outdated(self, key: K, sighting: Sighting[V]) -> bool:
        return key in self._since and sighting.turn < self._since[key][0]

    def _settled(self, key: K) -> Sighting[V] | None:
        """The answer of the fetch that has just ended, however long that took."""
        sighting = self._known.get(key)
        if sighting is None or self._outdated(key, sighting) or key in self._wanted:
            return None
        return sighting

    def _raise_failure(self, key: K) -> None:
        failure = self._failures.pop(key, None)
        if failure is not None:
            self._wanted.pop(key, None)
            raise failure[0]

    def _begin(self, now: float) -> list[K]:
        self._drop_old(now)
        keys = [key for key, moment in self._wanted.items() if moment <= now + self._beat / 4]
        self._fetching = frozenset(keys)
        self._next = now + self._beat / 2
        self._turn += 1
        return keys

    def _run(self, keys: Sequence[K], began: float, turn: int) -> None:
        try:
            found = self._fetch(keys)
        except Exception as error:  # noqa: BLE001 - raised again for everybody who asked
            with self._changed:
                self._failures.update(dict.fromkeys(keys, (error, began)))
                self._end(keys)
            return
        except BaseException:
            # This thread is told to end. Who rides along asks again; nobody waits for a fetch that never ends.
            with self._changed:
                self._end(())
            raise
        with self._changed:
            for key in keys:
                self._known[key] = Sighting(found.get(key), began, turn)
                self._failures.pop(key, None)
            self._end(keys)

    def _end(self, keys: Sequence[K]) -> None:
        for key in keys:
            self._wanted.pop(key, None)
        self._fetching = frozenset()
        self._changed.notify_all()

    def slow_down(self) -> None:
        """EC2 asks for fewer calls: double the interval, up to sixteen times."""
        with self._changed:
            self._slowdown = min(_OFTEN_THROTTLED, self._slowdown * 2)

    def speed_up(self) -> None:
        """A call went through: return to the interval by and by."""
        if self._slowdown > 1.0:
            with self._changed:
                self._slowdown = max(1.0, self._slowdown * 0.9)

    def _drop_old(self, now: float) -> None:
        """Memory follows what is in flight, not what ever was."""
        for key in [key for key, at in self._wanted.items() if at < now - _KEPT_SECONDS]:
            del self._wanted[key]
        for key in [key for key, (_, at) in self._since.items() if at < now - _KEPT_SECONDS]:
            del self._since[key]
        for key in [key for key, sighting in self._known.items() if sighting.at < now - _KEPT_SECONDS]:
            del self._known[key]
        for key in [key for key, (_, at) in self._failures.items() if at < now - _UNREAD_FAILURE_SECONDS]:
            del self._failures[key]
