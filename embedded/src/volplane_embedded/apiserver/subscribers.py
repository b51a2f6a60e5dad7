"""Who hears of which changes of a storage key.

A thousand watches with a label selector each, one for every node, must not all look at every change. So a subscriber
may say which values of a label concern it, and is looked up by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar


class Changed(Protocol):
    """A change of one object."""

    def new(self) -> dict[str, Any]:
        """Return the object after it; its last state if it was deleted."""

    def old(self) -> dict[str, Any] | None:
        """Return the object before it; None if there was none."""


ChangeT = TypeVar("ChangeT", bound=Changed)


@dataclass(frozen=True, slots=True)
class Route:
    """Objects whose label has one of these values."""

    label: str
    values: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Subscriber(Generic[ChangeT]):
    """sink: called with every change that concerns it. trimmed: called from time to time with the version up to which
    changes are kept no more. route: None = every change concerns it.
    """

    sink: Callable[[ChangeT], None]
    trimmed: Callable[[int], None]
    route: Route | None = None


class Subscribers(Generic[ChangeT]):
    """Iterates over all. May be changed while changes are told."""

    def __init__(self) -> None:
        self._all: dict[Subscriber[ChangeT], None] = {}
        self._of_all: dict[Subscriber[ChangeT], None] = {}
        self._routed: dict[str, dict[str, dict[Subscriber[ChangeT], None]]] = {}
        """By label, by value of it."""

    def __iter__(self) -> Iterator[Subscriber[ChangeT]]:
        return iter(tuple(self._all))

    def add(self, subscriber: Subscriber[ChangeT]) -> None:
        """Tell it from now on."""
        self._all[subscriber] = None
        if subscriber.route is None:
            self._of_all[subscriber] = None
            return
        by_value = self._routed.setdefault(subscriber.route.label, {})
        for value in subscriber.route.values:
            by_value.setdefault(value, {})[subscriber] = None

    def remove(self, subscriber: Subscriber[ChangeT]) -> None:
        """Tell it no more. One that is not there is no error."""
        self._all.pop(subscriber, None)
        self._of_all.pop(subscriber, None)
        if subscriber.route is None or (by_value := self._routed.get(subscriber.route.label)) is None:
            return
        for value in subscriber.route.values & by_value.keys():
            by_value[value].pop(subscriber, None)
            if not by_value[value]:
                del by_value[value]
        if not by_value:
            del self._routed[subscriber.route.label]

    def concerned_by(self, change: ChangeT) -> Iterable[Subscriber[ChangeT]]:
        """Return those whose route the object is on, or was on before the change."""
        if not self._routed:
            return tuple(self._of_all)
        found = dict(self._of_all)
        for state in (change.new(), change.old()):
            labels = (state["metadata"].get("labels") or {}) if state is not None else {}
            for label, by_value in self._routed.items():
                if (value := labels.get(label)) is not None:
                    found.update(by_value.get(value, {}))
        return tuple(found)
