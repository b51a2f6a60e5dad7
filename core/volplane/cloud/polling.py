"""One shared poller of states: what many hook calls want to know is read by few calls of the cloud.

A caller asks for a key and gets an observation that is recent enough, or None. After None it ends with a retry time
and holds no thread. The first caller that finds the poller due fetches for all keys that were asked for.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from volplane.cloud.calls import CloudError
from volplane.cloud.turns import RetryLater

__all__ = ["Observation", "StatePoller", "chunks", "read_without_bad_ids"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MAX_SLOWDOWN = 16.0
_RELAXED = 1.5
_KEPT_SECONDS = 120.0
_FAILURE_KEPT_SECONDS = 30.0
_LONGEST_WAIT = 3.0
"""Seconds that a caller waits for a fetch by another thread that includes its key."""


@dataclass(frozen=True, slots=True)
class Observation(Generic[V]):
    """What a fetch returned for a key."""

    value: V | None
    """None = it does not exist."""
    at: float
    """When the fetch began."""
    sequence: int
    """Orders fetches and invalidations, also while the clock stands still."""


class StatePoller(Generic[K, V]):
    """Observations by key. Safe for threads; all times are seconds of `clock`."""

    def __init__(
        self,
        fetch: Callable[[Sequence[K]], Mapping[K, V]],
        *,
        clock: Callable[[], float],
        interval: float,
        early: bool = False,
    ) -> None:
        """fetch: returns what exists of the keys; called by one thread at a time. interval: seconds between fetches.
        early: every fetch serves all keys that were asked for, also those of callers that come later.
        """
        self._fetch = fetch
        self._clock = clock
        self._interval = interval
        self._early = early
        self._slowdown = 1.0
        self._relaxed = _RELAXED
        self._relaxed_until = -math.inf
        self._changed = threading.Condition()
        self._wanted: dict[K, float] = {}
        """When a caller comes, or came, for the key."""
        self._known: dict[K, Observation[V]] = {}
        self._failures: dict[K, tuple[Exception, float]] = {}
        self._invalidated: dict[K, tuple[int, float]] = {}
        self._sequence = 0
        self._fetching: frozenset[K] = frozenset()
        self._next_fetch = 0.0
        self._next_caller = 0.0
        """When the caller of the next fetch comes; one that asks shortly before waits for that fetch."""

    def ask(
        self, key: K, *, max_age: float | None = None, patience: float = 0.0, wait_seconds: float = _LONGEST_WAIT
    ) -> Observation[V] | None:
        """Return an observation that is recent enough and newer than the last `invalidate` of the key; None = ask again
        later.

        max_age: in seconds, None = the interval. patience: seconds that the caller waits for something else anyway;
        with any, the first call for a key leaves the fetch to others. wait_seconds: how long to wait for a fetch of
        this key by another thread. Raises what the fetch of this key raised.
        """
        oldest = self._interval if max_age is None else max_age
        with self._changed:
            now = self._clock()
            if (observation := self._fresh(key, now - oldest)) is not None:
                self._wanted.pop(key, None)
                return observation
            self._raise_failure(key)
            first = key not in self._wanted
            self._wanted[key] = now
            if first and patience > 0.0:
                return None
            if self._fetching:
                if key in self._fetching:
                    self._changed.wait_for(lambda: key not in self._fetching, timeout=wait_seconds)
                    self._raise_failure(key)
                    return self._fetched(key)
                return None
            if now < self._next_fetch or now < self._next_caller < now + self._period:
                return None
            keys = self._begin(now)
            sequence = self._sequence
        self._run(keys, now, sequence)
        with self._changed:
            self._raise_failure(key)
            return self._fetched(key)

    def current(self, key: K, *, max_age: float | None = None, patience: float = 0.0) -> V | None:
        """Return the value of the key, None = it does not exist. Raises RetryLater where `ask` returns None."""
        observation = self.ask(key, max_age=max_age, patience=patience)
        if observation is None:
            raise RetryLater(self.next_poll(key, after=patience))
        return observation.value

    def fetch_now(self, key: K) -> Observation[V]:
        """Return the result of a fetch that begins now, in this thread. Raises what the fetch raises."""
        return self._fetched_unless_newer(key, math.inf)

    def _fetched_unless_newer(self, key: K, oldest: float) -> Observation[V]:
        """Return an observation from `oldest` on that another thread has just fetched; else as `fetch_now`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._fetching)
            if (newer := self._fresh(key, oldest)) is not None:
                self._wanted.pop(key, None)
                return newer
            now = self._clock()
            self._wanted[key] = now
            keys = self._begin(now)
            sequence = self._sequence
        self._run(keys, now, sequence)
        with self._changed:
            self._raise_failure(key)
            return self._known[key]

    def observe(self, key: K, *, max_age: float) -> Observation[V]:
        """Return an observation at most `max_age` seconds old, if need be by a fetch that begins now, in this thread.

        For hooks that may not return InProgress. Callers that come at the same time, or when `next_poll` told them,
        share a fetch.
        """
        return self.ask(key, max_age=max_age) or self._fetched_unless_newer(key, self._clock() - max_age)

    def cached(self, key: K, max_age: float) -> Observation[V] | None:
        """Return the last observation if it is at most `max_age` seconds old and was not invalidated. Never fetches."""
        with self._changed:
            return self._fresh(key, self._clock() - max_age)

    def invalidate(self, key: K) -> None:
        """Use no earlier observation of the key: the caller has changed what it stands for."""
        with self._changed:
            self._sequence += 1
            if key in self._known or key in self._fetching:
                self._invalidated[key] = (self._sequence, self._clock())

    def forget(self, key: K) -> None:
        """Drop everything about a key that no caller will ask for again."""
        with self._changed:
            for table in (self._wanted, self._known, self._failures, self._invalidated):
                table.pop(key, None)

    def next_poll(self, key: K, after: float = 0.0) -> float:
        """Return the seconds until the key should be asked for again, at least `after`.

        The times of all keys are multiples of one period, so that callers meet and one fetch serves them all.
        """
        with self._changed:
            now = self._clock()
            soonest = max(now + after, self._next_fetch)
            moment = -(-soonest // self._period) * self._period
            self._wanted[key] = moment
            if not now < self._next_caller <= moment:
                self._next_caller = moment
            return max(moment - now, 0.001)

    def expect(self, key: K) -> None:
        """Include the key in the next fetch that a caller of another key begins: one may ask for this key soon."""
        with self._changed:
            self._wanted.setdefault(key, self._clock())

    def relax(self, seconds: float, factor: float = _RELAXED) -> None:
        """Make the period longer by this factor while callers wait for something else, such as their rate.

        More of them share a fetch then.
        """
        with self._changed:
            self._relaxed = factor
            self._relaxed_until = max(self._relaxed_until, self._clock() + seconds)

    def slow_down(self) -> None:
        """Double the period, up to sixteen times the interval: the service throttled a fetch."""
        with self._changed:
            self._slowdown = min(_MAX_SLOWDOWN, self._slowdown * 2)

    def speed_up(self) -> None:
        """Return towards the interval: the service accepted a call."""
        if self._slowdown > 1.0:
            with self._changed:
                self._slowdown = max(1.0, self._slowdown * 0.9)

    @contextmanager
    def pacing(self, is_throttled: Callable[[CloudError], bool]) -> Iterator[None]:
        """Slow down if the block, a read of a fetch, is throttled; speed up if it succeeds."""
        try:
            yield
        except CloudError as error:
            if is_throttled(error):
                self.slow_down()
            raise
        self.speed_up()

    @property
    def _period(self) -> float:
        relaxed = self._clock() < self._relaxed_until
        return self._interval * self._slowdown * (self._relaxed if relaxed else 1.0)

    def _fresh(self, key: K, oldest: float) -> Observation[V] | None:
        observation = self._known.get(key)
        if observation is None or observation.at < oldest or self._outdated(key, observation):
            return None
        return observation

    def _outdated(self, key: K, observation: Observation[V]) -> bool:
        return key in self._invalidated and observation.sequence < self._invalidated[key][0]

    def _fetched(self, key: K) -> Observation[V] | None:
        """Return the result of the fetch that has just ended, however old it is by now."""
        observation = self._known.get(key)
        if observation is None or self._outdated(key, observation) or key in self._wanted:
            return None
        return observation

    def _raise_failure(self, key: K) -> None:
        failure = self._failures.pop(key, None)
        if failure is not None:
            self._wanted.pop(key, None)
            raise failure[0]

    def _begin(self, now: float) -> list[K]:
        self._drop_old(now)
        latest = math.inf if self._early else now + self._period / 4
        keys = [key for key, moment in self._wanted.items() if moment <= latest]
        self._fetching = frozenset(keys)
        self._next_fetch = now + self._period / 2
        self._sequence += 1
        return keys

    def _run(self, keys: Sequence[K], began: float, sequence: int) -> None:
        try:
            found = self._fetch(keys)
        except Exception as error:  # noqa: BLE001 - raised again in every caller that asked
            with self._changed:
                self._failures.update(dict.fromkeys(keys, (error, began)))
                self._end(keys)
            return
        except BaseException:
            # The thread is being stopped. Waiting callers are woken and ask again.
            with self._changed:
                self._end(())
            raise
        with self._changed:
            for key in keys:
                self._known[key] = Observation(found.get(key), began, sequence)
                self._failures.pop(key, None)
            self._end(keys)

    def _end(self, keys: Sequence[K]) -> None:
        for key in keys:
            self._wanted.pop(key, None)
        self._fetching = frozenset()
        self._changed.notify_all()

    def _drop_old(self, now: float) -> None:
        """Drop entries that are no longer used, so that memory is bounded by the keys in flight."""
        for key in [key for key, at in self._wanted.items() if at < now - _KEPT_SECONDS]:
            del self._wanted[key]
        for key in [key for key, (_, at) in self._invalidated.items() if at < now - _KEPT_SECONDS]:
            del self._invalidated[key]
        for key in [key for key, observation in self._known.items() if observation.at < now - _KEPT_SECONDS]:
            del self._known[key]
        for key in [key for key, (_, at) in self._failures.items() if at < now - _FAILURE_KEPT_SECONDS]:
            del self._failures[key]


def chunks(items: Sequence[V], size: int) -> list[Sequence[V]]:
    """Return the items in order, at most `size` at once."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def read_without_bad_ids(
    ids: Sequence[str],
    read: Callable[[Sequence[str]], Sequence[V]],
    *,
    is_bad: Callable[[CloudError], bool],
    named: Callable[[CloudError], Collection[str]],
) -> tuple[list[V], list[str]]:
    """Return what `read` returns for the ids that it accepts, and the ids that make it fail.

    is_bad: whether an error is about one of the ids, such as one that does not exist; any other error is raised.
    named: the ids in the message of the error. Where it names none of the ids that were asked for, the batch is halved
    until the bad ones are alone.
    """
    left = list(ids)
    bad: list[str] = []
    while left:
        try:
            return [*read(left)], bad
        except CloudError as error:
            if not is_bad(error):
                raise
            guilty = {*named(error)}.intersection(left)
        if guilty:
            bad += [id_ for id_ in left if id_ in guilty]
            left = [id_ for id_ in left if id_ not in guilty]
            continue
        if len(left) == 1:
            return [], [*bad, *left]
        found: list[V] = []
        for half in (left[: len(left) // 2], left[len(left) // 2 :]):
            good, spoiled = read_without_bad_ids(half, read, is_bad=is_bad, named=named)
            found += good
            bad += spoiled
        return found, bad
    return [], bad
