"""Which nodes can take a claim of a class, and which of them is chosen.

`NodeOffers` is kept up to date by what has changed: to look at a thousand nodes for every claim is too slow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Final, NamedTuple
from zlib import crc32

from volplane.drivers.parameters import check
from volplane.kube import names
from volplane.kube.objects import StorageClass
from volplane.placement.room import Room, Usage
from volplane.schemas import Param, ParameterSchema
from volplane.schemas import read_parameters as read_values


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
