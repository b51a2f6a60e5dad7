"""Free volumes, reserved volumes and waiting claims, each found without a scan.

`FreeVolumes` follows the volume cache; `WaitingClaims` follows the decisions about claims. Ties are broken by
capacity, then creation, then name, so that two runs over the same objects choose the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec
from sortedcontainers import SortedList

from volplane.binding.matching import MODE_ORDER, Demand, Place, capacity_of, place_of
from volplane.kube.names import INTENT
from volplane.kube.objects import Claim, Volume

__all__ = ["FreeVolumes", "WaitingClaims"]

Entry = tuple[int, str, str]
"""(capacity in nanos, creation timestamp, name): the order in which volumes are offered."""
Modes = tuple[str, ...]
Rank = tuple[int, str, str]
"""(minus the request in nanos, creation timestamp, key): the order in which waiting claims are woken."""
_Label = tuple[str, str] | Literal[""]
_Shape = tuple[Modes, bytes]
"""(access modes, selector in JSON) of demands."""


def _modes_of(volume: Volume) -> Modes:
    held = set(volume.spec.access_modes or ())
    return tuple(mode for mode in MODE_ORDER if mode in held)


def _entry_of(volume: Volume) -> Entry:
    return (capacity_of(volume), volume.metadata.creation_timestamp or "", volume.name)


def is_free(volume: Volume, phases: tuple[str, ...] = ("Available",)) -> bool:
    """Whether any claim may take it: available, unreserved, not going away, not being scrubbed."""
    unused = volume.spec.claim_ref is None and not volume.terminating and volume.annotation(INTENT) is None
    return unused and volume.status.phase in phases


def is_coming(volume: Volume) -> bool:
    """Whether it is new and will be free as soon as its first phase is written."""
    return is_free(volume, ("", "Pending"))


class FreeVolumes:
    """Volumes that may be bound, by place and access modes, ordered by size; and volumes reserved for a claim.

    `hold` takes a volume out of offers between the decision to bind it and the answer to that write.
    """

    def __init__(self) -> None:
        self._candidates: defaultdict[Place, dict[Modes, SortedList[Entry]]] = defaultdict(dict)
        self._volumes: dict[str, tuple[Volume, Place, Modes, Entry]] = {}
        self._reserved: defaultdict[str, set[str]] = defaultdict(set)
        self._coming: defaultdict[Place, dict[str, Volume]] = defaultdict(dict)
        self._holder: dict[str, str] = {}
        self._held: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._volumes)

    def changed(self, old: Volume | None, new: Volume | None) -> bool:
        """Follow the cache. True if the volume is newly on offer (a waiting claim may want it)."""
        reserved = old.spec.claim_ref if old is not None else None
        if reserved is not None and new is not None and new.spec.claim_ref == reserved:
            return False  # Reserved as before, so not on offer.
        before = self._volumes.get(old.name) if old is not None else None
        if old is not None:
            self._remove(old)
        if old is not None and (reference := old.spec.claim_ref) is not None:
            self._unreserve(f"{reference.namespace}/{reference.name}", old.name)
        if new is None:
            return False
        if is_coming(new):
            self._coming[place_of(new)][new.name] = new
        if (reference := new.spec.claim_ref) is not None:
            self._reserved[f"{reference.namespace}/{reference.name}"].add(new.name)
        if not is_free(new):
            return False
        place, modes, entry = place_of(new), _modes_of(new), _entry_of(new)
        candidates = self._candidates[place]
        if modes not in candidates:
            candidates[modes] = SortedList()
        candidates[modes].add(entry)
        self._volumes[new.name] = (new, place, modes, entry)
        return before is None or before[1:] != (place, modes, entry) or before[0].metadata.labels != new.metadata.labels

    def _remove(self, volume: Volume) -> None:
        arriving = self._coming.get(place_of(volume), {})
        arriving.pop(volume.name, None)
        if not arriving:
            self._coming.pop(place_of(volume), None)
        known = self._volumes.pop(volume.name, None)
        if known is None:
            return
        _, place, modes, entry = known
        bucket = self._candidates[place][modes]
        bucket.remove(entry)
        if not bucket:
            del self._candidates[place][modes]
            if not self._candidates[place]:
                del self._candidates[place]

    def _unreserve(self, claim_key: str, name: str) -> None:
        names = self._reserved[claim_key]
        names.discard(name)
        if not names:
            del self._reserved[claim_key]

    def reserved_for(self, claim_key: str) -> list[str]:
        """Names of volumes whose reference names this claim (whatever the uid), in order of name."""
        return sorted(self._reserved.get(claim_key, ()))

    def get(self, name: str) -> Volume | None:
        """The volume if it is on offer and nobody holds it."""
        known = self._volumes.get(name)
        return known[0] if known is not None and name not in self._holder else None

    def best(self, demand: Demand, *, claim_key: str = "") -> Volume | None:
        """The smallest fitting volume; among access modes the narrowest. Held ones are passed over."""
        candidates = self._candidates.get(demand.place)
        if not candidates:
            return None
        buckets = [(len(modes), modes) for modes in candidates if demand.access_modes.issubset(modes)]
        for _, modes in sorted(buckets):
            for entry in candidates[modes].irange(minimum=(demand.request, "", "")):
                name = entry[2]
                if self._holder.get(name, claim_key) != claim_key:
                    continue
                volume = self._volumes[name][0]
                if demand.accepts(volume):
                    return volume
        return None

    def coming(self, demand: Demand) -> Volume | None:
        """A volume that fits and is about to be on offer; there are only few at a time."""
        arriving = self._coming.get(demand.place, {})
        fitting = (v for v in arriving.values() if capacity_of(v) >= demand.request and demand.accepts(v))
        return min(fitting, key=_entry_of, default=None)

    def hold(self, name: str, claim_key: str) -> None:
        """Keep the volume for this claim while the write that binds it is under way."""
        self.release(claim_key)
        self._holder[name] = claim_key
        self._held[claim_key] = name

    def release(self, claim_key: str) -> str | None:
        """End the claim's hold, if any; returns the volume's name if it is on offer again."""
        name = self._held.pop(claim_key, None)
        if name is None:
            return None
        self._holder.pop(name, None)
        return name if name in self._volumes else None

    def candidates(self, place: Place, limit: int) -> list[Volume]:
        """Up to `limit` free volumes of a place, for explanations."""
        found: list[Volume] = []
        for bucket in self._candidates.get(place, {}).values():
            for entry in bucket:
                if len(found) == limit:
                    return found
                found.append(self._volumes[entry[2]][0])
        return found


class WaitingClaims:
    """Unbound claims that found no volume, so that a new one wakes exactly one that can use it.

    A woken claim that does not take the volume passes it on: `take_offers` says what it was woken for. Claims whose
    access modes and selector are equal wait in one queue. A queue is looked at only for volumes that carry a label
    which its selector needs, so that neither many claims nor many selectors make a new volume expensive.
    """

    def __init__(self) -> None:
        self._queues: defaultdict[tuple[Place, _Label], dict[_Shape, SortedList[Rank]]] = defaultdict(dict)
        """Claims that wait and were not woken, by place, needed label and shape."""
        self._claims: dict[str, tuple[Demand, Rank]] = {}
        self._offers: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._claims)

    def add(self, claim: Claim, demand: Demand) -> None:
        """The claim waits for a volume from now on."""
        known = self._claims.get(claim.key)
        if known is not None and known[0] == demand:
            return
        self.discard(claim.key)
        rank = (-demand.request, claim.metadata.creation_timestamp or "", claim.key)
        self._claims[claim.key] = (demand, rank)
        if claim.key not in self._offers:
            self._queue(demand, rank)

    def discard(self, claim_key: str) -> None:
        """It waits no longer (bound, gone, or its demand changed)."""
        known = self._claims.pop(claim_key, None)
        if known is not None and claim_key not in self._offers:
            self._unqueue(*known)

    def wake_for(self, volume: Volume, *, passed_over: Iterable[str] = ()) -> str | None:
        """Key of the waiting claim with the largest request that the volume satisfies, not yet woken; None: none."""
        found = min(self._first_of_queues(volume, set(passed_over)), default=None)
        if found is None:
            return None
        key = found[2]
        self._unqueue(*self._claims[key])
        self._offers[key] = {volume.name}
        return key

    def take_offers(self, claim_key: str) -> set[str]:
        """What the claim was woken for; afterwards it can be woken again."""
        offers = self._offers.pop(claim_key, None)
        if offers is None:
            return set()
        if (known := self._claims.get(claim_key)) is not None:
            self._queue(*known)
        return offers

    def _first_of_queues(self, volume: Volume, skip: set[str]) -> Iterator[Rank]:
        """Of every queue that the volume suits, the first claim that it is large enough for."""
        place, least = place_of(volume), (-capacity_of(volume), "", "")
        labels: list[_Label] = ["", *(volume.metadata.labels or {}).items()]
        for label in labels:
            for queue in self._queues.get((place, label), {}).values():
                fitting = (rank for rank in queue.irange(minimum=least) if rank[2] not in skip)
                first = next(fitting, None)
                if first is not None and self._claims[first[2]][0].accepts(volume):
                    yield first

    def _queue(self, demand: Demand, rank: Rank) -> None:
        shapes = self._queues[demand.place, _needed_label(demand)]
        shape = _shape_of(demand)
        if shape not in shapes:
            shapes[shape] = SortedList()
        shapes[shape].add(rank)

    def _unqueue(self, demand: Demand, rank: Rank) -> None:
        where, shape = (demand.place, _needed_label(demand)), _shape_of(demand)
        shapes = self._queues[where]
        shapes[shape].remove(rank)
        if not shapes[shape]:
            del shapes[shape]
            if not shapes:
                del self._queues[where]


def _needed_label(demand: Demand) -> _Label:
    """A label without which no volume matches the selector; "" if it demands none by value."""
    labels = demand.selector.match_labels if demand.selector is not None else None
    return min(labels.items()) if labels else ""


def _shape_of(demand: Demand) -> _Shape:
    """Equal for demands that differ in size only."""
    return tuple(sorted(demand.access_modes)), msgspec.json.encode(demand.selector, order="sorted")
