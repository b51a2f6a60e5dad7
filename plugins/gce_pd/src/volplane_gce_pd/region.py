"""Disks and virtual machines of a region, read by one list of every place that all callers share."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from volplane.cloud import StatePoller
from volplane_gce_pd.api import GceError
from volplane_gce_pd.errors import outcome_unknown

Key = tuple[str, str]
"""A place and a name; "" = any place."""

_APART_SECONDS = 60.0
"""For so long after a list of every place failed, each place is read by itself."""


def _last(place: str) -> str:
    return place.rpartition("/")[2]


class Resource(Protocol):
    """A disk or a virtual machine."""

    @property
    def key(self) -> Key:
        """Return its place and name."""


V = TypeVar("V", bound=Resource)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named(Generic[V]):
    """What has one name."""

    found: tuple[V, ...] = ()
    unread: frozenset[str] = frozenset()
    """Places that could not be read."""

    def lacks(self, place: str) -> bool:
        """Return whether this place could not be read."""
        return _last(place) in self.unread

    def at(self, key: Key) -> V | None:
        """Return that of a place; None if there is none."""
        return next((each for each in self.found if each.key == key), None)


class RegionPoller(Generic[V]):
    """What exists of one kind in the region, by name. Safe for threads.

    Callers share one list of every place, as long as every place answers: one that does not is read by itself until it
    answers again, so that it holds up no other one.
    """

    def __init__(
        self,
        new: Callable[[Callable[[Sequence[Key]], Mapping[Key, Any]]], StatePoller[Key, Any]],
        of_place: Callable[[str, Sequence[str], StatePoller[Any, Any]], Iterable[V]],
        everywhere: Callable[[Sequence[str], StatePoller[Any, Any]], tuple[list[V], set[str]]],
        places: Callable[[], Sequence[str]],
        clock: Callable[[], float],
    ) -> None:
        """new: makes a poller. of_place, everywhere: read what has these names in one place, or in all; the latter also
        returns the places that it lacks. places: reads which there are.
        """
        self._new = new
        self._of_place = of_place
        self._everywhere = everywhere
        self._places = places
        self._clock = clock
        self._shared: StatePoller[Key, Named[V]] = new(self._read)
        self._alone: dict[str, StatePoller[Key, V]] = {}
        self._silent: set[str] = set()
        """Last parts of the places that are read by themselves."""
        self._apart_until = -math.inf
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[StatePoller[Key, Any]]:
        with self._lock:
            return iter([self._shared, *self._alone.values()])

    def current(self, key: Key) -> V | None:
        """Return the resource as it is now; None if there is none. Raises RetryLater, GceError."""
        if not self._is_apart(key):
            named = self._shared.current(key) or Named()
            if not named.lacks(key[0]):
                return named.at(key)
        return self._of(key).current(key)

    def fetch_now(self, key: Key) -> V | None:
        """Return the resource by a call that begins now. Raises GceError."""
        return self._of(key).fetch_now(key).value

    def cached(self, key: Key, max_age: float) -> V | None:
        """Return the resource as it was at most `max_age` seconds ago, if that is known. Never reads."""
        shared = self._shared.cached(key, max_age)
        if shared is not None and shared.value is not None and not shared.value.lacks(key[0]):
            return shared.value.at(key)
        alone = self._of(key).cached(key, max_age)
        return alone.value if alone is not None else None

    def named(self, name: str) -> Named[V]:
        """Return what has this name in all places. Raises RetryLater, GceError."""
        return self._shared.current(("", name)) or Named()

    def cached_named(self, name: str, max_age: float) -> Named[V] | None:
        """Return the same as it was at most `max_age` seconds ago, if that is known. Never reads."""
        known = self._shared.cached(("", name), max_age)
        return known.value if known is not None else None

    def named_now(self, name: str) -> Named[V]:
        """Return the same by calls that begin now. Raises GceError."""
        return self._shared.fetch_now(("", name)).value or Named()

    def next_poll(self, key: Key, after: float = 0.0) -> float:
        """Return the seconds until the key should be asked for again, at least `after`."""
        return (self._of(key) if self._is_apart(key) else self._shared).next_poll(key, after)

    def invalidate(self, key: Key) -> None:
        """Use no earlier observation: the resource has been changed, or is being changed."""
        self._shared.invalidate(key)
        self._shared.invalidate(("", key[1]))
        self._of(key).invalidate(key)

    def expect(self, key: Key) -> None:
        """Include the key in the next read, which another caller may need before one asks for this key."""
        (self._of(key) if self._is_apart(key) else self._shared).expect(key)

    def _is_apart(self, key: Key) -> bool:
        return _last(key[0]) in self._silent or self._clock() < self._apart_until

    def _of(self, key: Key) -> StatePoller[Key, V]:
        with self._lock:
            if key[0] not in self._alone:
                self._alone[key[0]] = self._new(partial(self._read_alone, key[0]))
            return self._alone[key[0]]

    def _read_alone(self, place: str, keys: Sequence[Key]) -> dict[Key, V]:
        found = {each.key: each for each in self._of_place(place, [name for _, name in keys], self._of((place, "")))}
        self._silent.discard(_last(place))
        return found

    def _read(self, keys: Sequence[Key]) -> dict[Key, Named[V]]:
        names = [*dict.fromkeys(name for _, name in keys)]
        place = keys[0][0] if len(keys) == 1 else ""
        apart = not place and self._clock() < self._apart_until
        found: list[V] = []
        unread: set[str] = set()
        try:
            if place:
                found = [*self._of_place(place, names, self._shared)]
            elif not apart:
                found, unread = self._everywhere(names, self._shared)
        except GceError as error:
            if not outcome_unknown(error):
                raise
            if place:
                unread = {_last(place)}
            else:
                apart, self._apart_until = True, self._clock() + _APART_SECONDS
        if apart:
            found, unread = self._read_apart([name for place, name in keys if not place])
        self._silent |= unread
        return {
            key: Named(
                found=tuple(each for each in found if each.key[1] == key[1]),
                # The poller of its place reads it instead.
                unread=frozenset({_last(key[0])}) if apart and key[0] else frozenset(unread),
            )
            for key in keys
        }

    def _read_apart(self, names: Sequence[str]) -> tuple[list[V], set[str]]:
        """Return what exists of these names by a call for each place, and the places that could not be read."""
        found: list[V] = []
        unread: set[str] = set()
        for place in self._places() if names else ():
            try:
                found += self._of_place(place, names, self._shared)
            except GceError as error:
                if not outcome_unknown(error):
                    raise
                unread.add(_last(place))
        return found, unread
