"""What each node could take for a class, kept up to date: to look at a thousand nodes for every claim is too slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from volplane.placement.choose import Offer
from volplane.placement.room import Room
from volplane.placement.usage import Usage

__all__ = ["Board", "Candidate"]


class Candidate(NamedTuple):
    """A node, and what stands in the label of what belongs to it."""

    name: str
    hash: str


@dataclass(slots=True)
class Board:
    """Of one driver and class. dirty: hashes of the nodes about which something has changed."""

    driver: str
    candidates: Sequence[Candidate]
    dirty: set[str] = field(default_factory=set)
    _offers: dict[str, tuple[Offer, int]] = field(default_factory=dict)
    """By name, in the order of names, with the largest volume that can be made there."""
    _names: dict[str, list[str]] = field(default_factory=dict)
    """By hash; two names may have one."""

    def __post_init__(self) -> None:
        for node in self.candidates:
            self._names.setdefault(node.hash, []).append(node.name)
        self._offers = {node.name: (Offer(node.name, 0, None), 0) for node in self.candidates}
        self.dirty = set(self._names)

    def refresh(self, rooms: Mapping[str, Room], usage: Usage) -> None:
        """Bring what has changed up to date."""
        for hashed in self.dirty:
            for name in self._names.get(hashed, ()):
                self._offers[name] = self._offer(name, hashed, rooms, usage)
        self.dirty.clear()

    def _offer(self, name: str, hashed: str, rooms: Mapping[str, Room], usage: Usage) -> tuple[Offer, int]:
        count, room = usage.count(self.driver, hashed), rooms.get(name)
        if room is None:
            return Offer(name, count, None), 0
        return Offer(name, count, room.free - usage.reserved(self.driver, hashed)), room.largest

    def fitting(self, size: int, refused: Mapping[str, float], now: float, *, unpublished: bool) -> list[Offer]:
        """The nodes that can take so many bytes. refused: nodes that are not tried before a time. unpublished: whether
        nodes that publish no room count.
        """
        found = [
            offer
            for offer, largest in self._offers.values()
            if (unpublished if offer.free is None else offer.free >= size <= largest)
        ]
        return [offer for offer in found if refused.get(offer.node, 0.0) <= now] if refused else found
