"""How much room each node has, which nodes can take a claim of a class, and which of them is chosen.

Counted is what is published for a node, and what is promised there since. `NodeOffers` is kept up to date by what has
changed: to look at a thousand nodes for every claim is too slow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Annotated, Final, NamedTuple
from zlib import crc32

from volplane.drivers.parameters import check
from volplane.kube import names
from volplane.kube.objects import CsiStorageCapacity, StorageClass
from volplane.kube.quantity import parse
from volplane.placement.nodes import NodeBook
from volplane.schemas import Param, ParameterSchema
from volplane.schemas import read_parameters as read_values
from volplane.state.matching import selects

UNPUBLISHED_SECONDS: Final = 60.0
"""Longest time for which a new volume counts against the published room of its node: the room is measured as often."""


class Room(NamedTuple):
    """Room of a node for volumes of a class."""

    free: int
    """Bytes in total."""
    largest: int
    """Bytes of the largest single volume."""


@dataclass(slots=True)
class _Place:
    """What is published for one driver and class."""

    objects: dict[str, CsiStorageCapacity] = field(default_factory=dict)
    version: int = -1
    """Version of the nodes for which `by_node` holds."""
    by_node: dict[str, dict[str, Room]] = field(default_factory=dict)
    """By name of a node, the room by each of `objects` that is about it."""


class PublishedRoom:
    """Follows the cache of CSIStorageCapacity. Of several for one class and node that with the most room counts."""

    def __init__(self, nodes: NodeBook) -> None:
        self._nodes = nodes
        self._places: dict[tuple[str, str], _Place] = {}

    def changed(self, old: CsiStorageCapacity | None, new: CsiStorageCapacity | None) -> set[str]:
        """Follow the cache; return the names of the nodes that the objects are about."""
        touched: set[str] = set()
        if old is not None:
            place, nodes = self._place(old), self._reached(old)
            place.objects.pop(old.key, None)
            if place.version == self._nodes.version:
                touched.update(nodes)
                for node in nodes:
                    place.by_node.get(node, {}).pop(old.key, None)
        if new is not None:
            place = self._place(new)
            place.objects[new.key] = new
            if place.version == self._nodes.version:
                self._add(place, new)
            touched.update(self._reached(new))
        return touched

    def of(self, driver: str, storage_class: str) -> Mapping[str, Mapping[str, Room]] | None:
        """Return what is published for this class, by the name of the node and the key of the object; None: nothing."""
        place = self._places.get((driver, storage_class))
        if place is None or not place.objects:
            return None
        if place.version != self._nodes.version:
            place.version = self._nodes.version
            place.by_node.clear()
            for item in place.objects.values():
                self._add(place, item)
        return place.by_node

    def _place(self, item: CsiStorageCapacity) -> _Place:
        driver = (item.metadata.labels or {}).get(names.CAPACITY_DRIVER, "")
        return self._places.setdefault((driver, item.storage_class_name), _Place())

    def _add(self, place: _Place, item: CsiStorageCapacity) -> None:
        free = published_bytes(item.capacity)
        largest = free if item.maximum_volume_size is None else published_bytes(item.maximum_volume_size)
        for node in self._reached(item):
            place.by_node.setdefault(node, {})[item.key] = Room(free, largest)

    def _reached(self, item: CsiStorageCapacity) -> list[str]:
        selector = item.node_topology
        if selector is None:
            return []
        labels = selector.match_labels
        if labels and not selector.match_expressions and self._nodes.keys.issuperset(labels):
            return [node.name for node in self._nodes.at(labels)]
        return [node.name for node in self._nodes.cache.values() if selects(selector, node.metadata.labels or {})]


def published_bytes(quantity: str | None) -> int:
    """Return the bytes; 0 for text that is no quantity, which a person may have written."""
    try:
        return parse(quantity or "0").nanos // 10**9
    except ValueError:
        return 0


class Promise(NamedTuple):
    """Something on a node, or about to be made there."""

    driver: str
    node: str
    """Hash of the node's name."""
    size: int
    """Bytes that the published room of the node may not take into account yet."""
    volumes: int = 1
    """0 for the growth of one."""


class Usage:
    """Promises by the name of their volume: of a claim that is assigned, then of the volume that is made for it.

    touched: called with driver and node when what is promised there has changed.
    """

    def __init__(self, touched: Callable[[str, str], None] = lambda _driver, _node: None) -> None:
        self._touched = touched
        self.claims: dict[str, Promise] = {}
        """Of claims that are assigned to a node. This and the next two are changed by `set`."""
        self.volumes: dict[str, Promise] = {}
        self.held: dict[str, Promise] = {}
        """Of claims that are being assigned, until the write is answered."""
        self.counts: Counter[tuple[str, str]] = Counter()
        """By driver and node, the volumes that are there, or assigned to it."""
        self.reserved: Counter[tuple[str, str]] = Counter()
        """By driver and node, the bytes promised that published room may not take into account yet."""
        self._unpublished: dict[tuple[str, str], dict[str, int]] = {}
        """Version of each volume that still counts, by driver and node."""
        self._published: dict[tuple[str, str], dict[str, int]] = {}
        """Versions of the published room by its key, which is one of each class, by driver and node."""
        self._expiry: deque[tuple[float, str, tuple[str, str]]] = deque()

    def made(self, name: str, promise: Promise, version: int, now: float) -> None:
        """Note a volume that has just been made or has grown: it counts until room of its node is published again."""
        place = (promise.driver, promise.node)
        if version < self._oldest(place):
            # The watch of volumes is behind that of published room, which takes the volume into account.
            self.set(self.volumes, name, promise._replace(size=0))
            return
        if (known := self.volumes.get(name)) is not None:
            promise = promise._replace(size=promise.size + known.size)
        self._unpublished.setdefault(place, {})[name] = version
        self._expiry.append((now + UNPUBLISHED_SECONDS, name, place))
        self.set(self.volumes, name, promise)

    def published(self, driver: str, node: str, key: str, version: int | None) -> None:
        """Note what version the room of the node for a class has; volumes older than that of every class are in it."""
        place = (driver, node)
        known = self._published.setdefault(place, {})
        known.pop(key, None)
        if version is not None:
            known[key] = version
        elif not known:
            del self._published[place]
        for name, made in list(self._unpublished.get(place, {}).items()):
            if made < self._oldest(place):
                self._forget(name, place)

    def _oldest(self, place: tuple[str, str]) -> int:
        return min(self._published.get(place, {}).values(), default=0)

    def expire(self, now: float) -> None:
        """Let volumes of more than UNPUBLISHED_SECONDS count no more: published room takes them into account."""
        while self._expiry and self._expiry[0][0] <= now:
            _, name, place = self._expiry.popleft()
            self._forget(name, place)

    def _forget(self, name: str, place: tuple[str, str]) -> None:
        held = self._unpublished.get(place, {})
        if held.pop(name, None) is not None and (known := self.volumes.get(name)):
            self.set(self.volumes, name, known._replace(size=0))
        if not held:
            self._unpublished.pop(place, None)  # The node may be gone for good.

    def set(self, known: dict[str, Promise], name: str, promise: Promise | None) -> None:
        """Note what the volume `name` takes, or the claim for which it is made; None: nothing."""
        before = self._effective(name)
        if promise is None:
            known.pop(name, None)
        else:
            known[name] = promise
        after = self._effective(name)
        if before == after:
            return
        for each, sign in ((before, -1), (after, 1)):
            if each is not None:
                for kept, more in ((self.counts, each.volumes), (self.reserved, each.size)):
                    kept[each.driver, each.node] += sign * more
                    if not kept[each.driver, each.node]:
                        del kept[each.driver, each.node]
                self._touched(each.driver, each.node)

    def _effective(self, name: str) -> Promise | None:
        return self.volumes.get(name) or self.claims.get(name) or self.held.get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementParameters:
    """The parameters of a class that are for the assigner; backends do not see them."""

    strategy: Annotated[
        str,
        Param(
            "How a node is chosen for claims that bind immediately: by free space, the most of it, or in turn.",
            name=names.PLACEMENT,
            choices=("spread", "most-room", "round-robin"),
        ),
    ] = "spread"
    gone_after: Annotated[
        float,
        Param(
            "How long a node may be gone, not ready or silent until claims without a volume leave it.",
            name=names.NODE_GONE_AFTER,
            minimum=0,
        ),
    ] = 300.0


CLASS_PARAMETERS: Final = ParameterSchema.of(PlacementParameters)


def read_parameters(storage_class: StorageClass | None) -> tuple[PlacementParameters, str]:
    """Return the values, and what is wrong with those that are replaced by their defaults, or ""."""
    given = storage_class.parameters if storage_class is not None else None
    ours = {parameter.name for parameter in CLASS_PARAMETERS.parameters}
    values, flaws = check(CLASS_PARAMETERS, {k: v for k, v in (given or {}).items() if k in ours}, "parameter")
    return read_values(PlacementParameters, values), "; ".join(flaws)


class Offer(NamedTuple):
    node: str
    volumes: int
    """Volumes of the driver that are on the node, or assigned to it."""
    free: int | None
    """Bytes left on the node without what is promised; None where no room is published."""
    largest: int = 0
    """Bytes of the largest volume that can be made there; 0 where no room is published."""


class NodeOffers:
    """Keeps what each of `candidates` (name and hash of the name, ordered by name) offers for a driver and a class."""

    def __init__(self, driver: str, candidates: Sequence[tuple[str, str]]) -> None:
        self._driver = driver
        self._offers = {name: Offer(name, 0, None) for name, _ in candidates}
        self._names: dict[str, list[str]] = {}
        """By hash; two names may have the same."""
        for name, hashed in candidates:
            self._names.setdefault(hashed, []).append(name)
        self.dirty = set(self._names)
        """Hashes of the nodes about which something has changed."""

    def refresh(self, rooms: Mapping[str, Mapping[str, Room]], usage: Usage) -> None:
        """Bring what has changed up to date. rooms: see `PublishedRoom.of`."""
        for hashed in self.dirty:
            for name in self._names.get(hashed, ()):
                count, published = usage.counts[self._driver, hashed], rooms.get(name)
                if not published:
                    self._offers[name] = Offer(name, count, None)
                else:
                    room = max(published.values())
                    free = room.free - usage.reserved[self._driver, hashed]
                    self._offers[name] = Offer(name, count, free, room.largest)
        self.dirty.clear()

    def fitting(self, size: int, refused: Mapping[str, float], now: float, *, unpublished: bool) -> list[Offer]:
        """Return the offers of nodes that can take `size` bytes.

        refused: names of nodes that are not tried before a loop time. unpublished: nodes that publish no room count.
        """
        found = [
            offer
            for offer in self._offers.values()
            if (unpublished if offer.free is None else offer.free >= size <= offer.largest)
        ]
        return [offer for offer in found if refused.get(offer.node, 0.0) <= now] if refused else found


def choose(strategy: str, offers: Sequence[Offer], uid: str, last: str) -> str:
    """Return the node for the claim with this uid. offers: by node, at least one. last: the node chosen before, or "".

    spread: a node with twice the free space gets twice the claims. most-room: the one with the most free space.
    round-robin: the next one by name. Where a node's free space is not known, the first two take the node with the
    fewest volumes.
    """
    if strategy == "round-robin":
        nodes = [offer.node for offer in offers]
        return nodes[bisect_right(nodes, last) % len(nodes)]
    point = crc32(uid.encode())
    known = [offer.free for offer in offers if offer.free is not None]
    if len(known) < len(offers):
        return min(offers, key=lambda offer: (offer.volumes, crc32(offer.node.encode(), point))).node
    if strategy == "most-room":
        return max(offers, key=lambda offer: (offer.free or 0, -offer.volumes)).node
    # One more than the free bytes: a full node keeps a chance, because claims of no size go anywhere.
    sums = list(accumulate(each + 1 for each in known))
    return offers[bisect_right(sums, point * sums[-1] >> 32)].node
