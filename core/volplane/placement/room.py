"""The room that is published, by class and node. Follows the cache of CSIStorageCapacity objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from volplane.kube import names
from volplane.kube.objects import CsiStorageCapacity
from volplane.kube.quantity import parse
from volplane.placement.nodes import NodeBook
from volplane.state.matching import selects

__all__ = ["PublishedRoom", "Room"]

_NANOS = 10**9


class Room(NamedTuple):
    """Bytes: free in total, and the largest single volume. version: of the object that says so."""

    free: int
    largest: int
    version: int


@dataclass(slots=True)
class _Place:
    """The objects of one driver and class. version: of the nodes that `by_node` and `best` are for."""

    objects: dict[str, CsiStorageCapacity] = field(default_factory=dict)
    version: int = -1
    by_node: dict[str, dict[str, Room]] = field(default_factory=dict)
    best: dict[str, Room] = field(default_factory=dict)


class PublishedRoom:
    """Of several objects for one class and node the one with most room counts, as for the scheduler."""

    def __init__(self, nodes: NodeBook) -> None:
        self._nodes = nodes
        self._places: dict[tuple[str, str], _Place] = {}

    def changed(self, old: CsiStorageCapacity | None, new: CsiStorageCapacity | None) -> set[str]:
        """Follow the cache; names of the nodes that it is about."""
        touched: set[str] = set()
        if old is not None:
            place = self._place(old)
            place.objects.pop(old.key, None)
            if place.version == self._nodes.version:
                for node in self._reached(old):
                    touched.add(node)
                    place.by_node.get(node, {}).pop(old.key, None)
                    _choose(place, node)
        if new is not None:
            place = self._place(new)
            place.objects[new.key] = new
            if place.version == self._nodes.version:
                self._add(place, new)
            touched.update(self._reached(new))
        return touched

    def of(self, driver: str, storage_class: str) -> Mapping[str, Room]:
        """Node -> room; empty if nobody publishes any for this class."""
        place = self._places.get((driver, storage_class))
        if place is None or not place.objects:
            return {}
        if place.version != self._nodes.version:
            place.version = self._nodes.version
            place.by_node.clear()
            place.best.clear()
            for item in place.objects.values():
                self._add(place, item)
        return place.best

    def is_published(self, driver: str, storage_class: str) -> bool:
        """Whether anybody publishes room for this class, on whatever node."""
        place = self._places.get((driver, storage_class))
        return place is not None and bool(place.objects)

    def _place(self, item: CsiStorageCapacity) -> _Place:
        driver = (item.metadata.labels or {}).get(names.CAPACITY_DRIVER, "")
        return self._places.setdefault((driver, item.storage_class_name), _Place())

    def _add(self, place: _Place, item: CsiStorageCapacity) -> None:
        room = _room_of(item)
        for node in self._reached(item):
            place.by_node.setdefault(node, {})[item.key] = room
            _choose(place, node)

    def _reached(self, item: CsiStorageCapacity) -> list[str]:
        """Names of the nodes that the object is about."""
        selector = item.node_topology
        if selector is None:
            return []
        if selector.match_labels and not selector.match_expressions and self._nodes.knows(selector.match_labels):
            return [node.name for node in self._nodes.at(selector.match_labels)]
        return [node.name for node in self._nodes.all() if selects(selector, node.metadata.labels or {})]


def _choose(place: _Place, node: str) -> None:
    rooms = place.by_node.get(node)
    if rooms:
        place.best[node] = max(rooms.values())
    else:
        place.best.pop(node, None)


def _room_of(item: CsiStorageCapacity) -> Room:
    free = _bytes(item.capacity)
    return Room(free, _bytes(item.maximum_volume_size) if item.maximum_volume_size is not None else free, item.version)


def _bytes(quantity: str | None) -> int:
    """0 for what is no quantity: a person may have written it."""
    try:
        return parse(quantity or "0").nanos // _NANOS
    except ValueError:
        return 0
