"""Matches claims with volumes, and finds free volumes and waiting claims without a scan.

Quantities are exact: nanos of a byte. `FreeVolumes` follows the volume cache, `WaitingClaims` the decisions about
claims. Ties are broken by capacity, then creation, then name, so that two runs over the same objects choose the same
volume.
Source: reference binder, `k8s.io/component-helpers/storage/volume.FindMatchingVolume` and `checkVolumeSatisfyClaim`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from heapq import merge
from itertools import chain, islice
from typing import Final, Literal, TypeVar

import msgspec
from sortedcontainers import SortedList

from volplane.kube import names
from volplane.kube.objects import Claim, KubeObject, LabelSelector, ObjectReference, TypedReference, Volume
from volplane.kube.quantity import LARGEST_SIZE, parse
from volplane.state.records import trashed

G = TypeVar("G")
S = TypeVar("S")
E = TypeVar("E")
NANOS: Final = 10**9
NOT_FROM_SOURCE = "the claim has a data source, so it gets only a volume whose spec.claimRef names it"
MODE_ORDER = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")


class Place(msgspec.Struct, frozen=True):
    """The class, volume mode and VolumeAttributesClass that a claim and its volume must share."""

    storage_class: str
    volume_mode: str
    attributes_class: str


class Demand(msgspec.Struct, frozen=True, dict=True):
    place: Place
    access_modes: frozenset[str]
    request: int
    selector: LabelSelector | None
    has_source: bool = False
    """What is in the volume has to come from somewhere: no volume suits that others may take as well."""

    def accepts(self, volume: Volume) -> bool:
        """Return whether a free, large enough volume of the same place has the access modes and labels."""
        modes = volume.spec.access_modes or ()
        if self.has_source or not self.access_modes.issubset(modes):
            return False
        return self.selector is None or self._filter(volume.metadata.labels or {})

    @cached_property
    def _filter(self) -> Callable[[Mapping[str, str]], bool]:
        return label_filter(self.selector or LabelSelector())


def class_of_claim(claim: Claim | Volume) -> str | None:
    """Return the class that it names; None: not set, "": explicitly none. The beta annotation wins."""
    beta = claim.annotation(names.BETA_STORAGE_CLASS)
    return beta if beta is not None else claim.spec.storage_class_name


def _nanos(quantities: Mapping[str, str] | None) -> int:
    text = (quantities or {}).get("storage")
    return parse(text).nanos if text is not None else 0


def request_of(claim: Claim) -> int:
    """Return the requested size in nanos of a byte."""
    return _nanos(claim.spec.resources.requests if claim.spec.resources else None)


def whole_bytes(nanos: int) -> int:
    """Return an amount of nanos of a byte in bytes, rounded up."""
    return -(-nanos // NANOS)


def too_large(size: int) -> str:
    """Return why no volume can have this size, in nanos of a byte; "" if one can."""
    most = f"the claim asks for more than {LARGEST_SIZE} bytes, which no volume can have; ask for less"
    return most if size > LARGEST_SIZE * NANOS else ""


def capacity_of(volume: Volume) -> int:
    """Return the size of the volume in nanos of a byte."""
    return _nanos(volume.spec.capacity)


def held_by(claim: Claim) -> int:
    """Return the size in the claim's status in nanos of a byte; 0 if it has none."""
    return _nanos(claim.status.capacity)


def mode_of(item: Claim | Volume) -> str:
    return item.spec.volume_mode or "Filesystem"


def place_of(item: Claim | Volume) -> Place:
    return Place(class_of_claim(item) or "", mode_of(item), item.spec.volume_attributes_class_name or "")


def source_of(claim: Claim) -> TypedReference | None:
    """Return what the volume is to be made of; None = it is to be empty."""
    return claim.spec.data_source_ref or claim.spec.data_source


def source_key(claim: Claim) -> str:
    """Return kind and key of what the volume is to be made of; "" = nothing."""
    source = source_of(claim)
    return f"{source.kind} {source.key_from(claim.namespace)}" if source is not None else ""


def demand_of(claim: Claim) -> Demand:
    return Demand(
        place=place_of(claim),
        access_modes=frozenset(claim.spec.access_modes or ()),
        request=request_of(claim),
        selector=claim.spec.selector,
        has_source=source_of(claim) is not None,
    )


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector matches. An unknown operator, which the API server refuses, matches nothing."""
    return selector is None or label_filter(selector)(labels)


def label_filter(selector: LabelSelector) -> Callable[[Mapping[str, str]], bool]:
    """Return `selects` as a function of the labels. The selector is read once, then a set costs as much as its labels.

    Tenants write selectors, with as many expressions as an object can hold.
    """
    allowed = {key: {value} for key, value in (selector.match_labels or {}).items()}
    refused: defaultdict[str, set[str]] = defaultdict(set)
    present, absent = set(allowed), set()
    for need in selector.match_expressions or ():
        match need.operator:
            case "In":
                values = set(need.values or ())
                allowed[need.key] = allowed[need.key] & values if need.key in allowed else values
                present.add(need.key)
            case "NotIn":
                refused[need.key].update(need.values or ())
            case "Exists":
                present.add(need.key)
            case "DoesNotExist":
                absent.add(need.key)
            case _:
                return lambda _labels: False

    def matches(labels: Mapping[str, str]) -> bool:
        if len(present) > len(labels) or any(labels.get(key) not in values for key, values in allowed.items()):
            return False
        unwanted = (key in absent or value in refused.get(key, ()) for key, value in labels.items())
        return present <= labels.keys() and not any(unwanted)

    return matches


def reference_is(reference: ObjectReference | None, claim: KubeObject) -> bool:
    """Return whether a volume's reference names this claim: same name and namespace, uid equal or still empty."""
    return reference is not None and reference.key == claim.key and reference.uid in ("", claim.uid)


def reference_to(claim: Claim) -> dict[str, str | None]:
    """Return the `claimRef` of a volume that is reserved for this claim."""
    return {
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "namespace": claim.namespace,
        "name": claim.name,
        "uid": claim.uid,
        "resourceVersion": claim.metadata.resource_version,
    }


def refers_to(volume: Volume, claim: KubeObject) -> bool:
    reference = volume.spec.claim_ref
    return reference is not None and reference.uid != "" and reference.uid == claim.metadata.uid


def refusal(volume: Volume, claim: Claim, *, ignoring: Collection[str] = ()) -> str:
    """Return why it cannot be bound to the claim, or "". ignoring: names of checks to skip."""
    offered, wanted = place_of(volume), place_of(claim)
    modes = set(claim.spec.access_modes or ())
    checks = (
        ("deletion", volume.terminating, f'the volume is marked for deletion "{volume.name}"'),
        ("size", capacity_of(volume) < request_of(claim), "requested PV is too small"),
        ("class", offered.storage_class != wanted.storage_class, "storageClassName does not match"),
        ("attributes", offered.attributes_class != wanted.attributes_class, "volumeAttributesClassName does not match"),
        ("mode", offered.volume_mode != wanted.volume_mode, "incompatible volumeMode"),
        ("access", not modes.issubset(volume.spec.access_modes or ()), "incompatible accessMode"),
        ("source", source_of(claim) is not None and not reference_is(volume.spec.claim_ref, claim), NOT_FROM_SOURCE),
    )
    for name, fails, why in checks:
        if fails and name not in ignoring:
            return why
    return ""


Entry = tuple[int, str, str]
"""(capacity in nanos, creation timestamp, name): the order in which volumes are offered."""
Modes = tuple[str, ...]
Rank = tuple[int, str, str]
"""(minus the request in nanos, creation timestamp, key): the order in which waiting claims are queued again."""
_Label = tuple[str, str | None] | Literal[""]
"""A label with any value or with this one; "": no label in particular."""
_Group = tuple[Place, _Label]
"""(place, label) of free volumes that have it, or of waiting claims that need it."""
_Shape = tuple[Modes, bytes]
"""(access modes, selector in JSON) of a demand."""
_MOST_QUEUES: Final = 64
"""Queues in which a claim waits: a tenant may list as many values as an object holds."""
_Change = Callable[[dict[_Group, dict[_Shape, SortedList[Rank]]], _Group, _Shape, Rank], None]


def _entry_of(volume: Volume) -> Entry:
    return (capacity_of(volume), volume.metadata.creation_timestamp or "", volume.name)


def is_free(volume: Volume, phases: tuple[str, ...] = ("Available",)) -> bool:
    """Return whether any claim may take it: in one of the phases, unreserved, not being deleted or scrubbed, and not
    in the trash.
    """
    unused = volume.spec.claim_ref is None and not volume.terminating and volume.annotation(names.INTENT) is None
    return unused and volume.status.phase in phases and trashed(volume) is None


def _insert(table: dict[G, dict[S, SortedList[E]]], group: G, shape: S, entry: E) -> None:
    table.setdefault(group, {}).setdefault(shape, SortedList()).add(entry)


def _remove(table: dict[G, dict[S, SortedList[E]]], group: G, shape: S, entry: E) -> None:
    table[group][shape].remove(entry)
    if not table[group][shape]:
        del table[group][shape]
    if not table[group]:
        del table[group]


@dataclass(slots=True)
class FreeVolumes:
    """The volumes that may be bound, by place, label and access modes, ordered by size, and those reserved for a claim.

    `hold` withdraws a volume between the decision to bind it and the answer to that write.
    """

    _candidates: dict[_Group, dict[Modes, SortedList[Entry]]] = field(default_factory=dict)
    _volumes: dict[str, tuple[Volume, Place, Modes, Entry]] = field(default_factory=dict)
    _reserved: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _coming: dict[str, Volume] = field(default_factory=dict)
    """New volumes that will be free once their first phase is written."""
    _held: dict[str, str] = field(default_factory=dict)
    """Key of a claim -> name of the volume that it holds."""

    def changed(self, old: Volume | None, new: Volume | None) -> bool:
        """Follow the cache. Returns True if the volume has become free, so that a waiting claim may want it."""
        reserved = old.spec.claim_ref if old is not None else None
        if reserved is not None and new is not None and new.spec.claim_ref == reserved:
            return False  # Reserved as before, so not free.
        before = self._volumes.pop(old.name, None) if old is not None else None
        if old is not None:
            self._remove(old, before)
        if new is None:
            return False
        if is_free(new, ("", "Pending")):
            self._coming[new.name] = new
        if (reference := new.spec.claim_ref) is not None:
            self._reserved[reference.key].add(new.name)
        if not is_free(new):
            return False
        held = new.spec.access_modes or ()
        place, modes, entry = place_of(new), tuple(mode for mode in MODE_ORDER if mode in held), _entry_of(new)
        for label in _labels_of(new):
            _insert(self._candidates, (place, label), modes, entry)
        self._volumes[new.name] = (new, place, modes, entry)
        return before is None or before[1:] != (place, modes, entry) or before[0].metadata.labels != new.metadata.labels

    def _remove(self, volume: Volume, known: tuple[Volume, Place, Modes, Entry] | None) -> None:
        if known is not None:
            for label in _labels_of(known[0]):
                _remove(self._candidates, (known[1], label), *known[2:])
        self._coming.pop(volume.name, None)
        if (reference := volume.spec.claim_ref) is not None:
            self._reserved[reference.key].discard(volume.name)
            if not self._reserved[reference.key]:
                del self._reserved[reference.key]

    def reserved_for(self, claim_key: str) -> list[str]:
        """Return the sorted names of the volumes whose reference names this claim, with any uid."""
        return sorted(self._reserved.get(claim_key, ()))

    def get(self, name: str) -> Volume | None:
        """Return the volume if it is free and not held."""
        known = self._volumes.get(name)
        return known[0] if known is not None and name not in self._held.values() else None

    def best(self, demand: Demand, *, claim_key: str = "") -> Volume | None:
        """Return the smallest free volume that fits, with the fewest access modes. Skips those held by others."""
        place, candidates = demand.place, self._candidates
        needs = ([candidates.get((place, label), {}) for label in labels] for labels in _needed_by(demand.selector))
        groups = min(needs, key=lambda groups: sum(len(found) for group in groups for found in group.values()))
        if demand.has_source:
            return None
        held_by_others = {name for key, name in self._held.items() if key != claim_key}
        least = (demand.request, "", "")
        buckets = {(len(modes), modes) for group in groups for modes in group if demand.access_modes.issubset(modes)}
        for _, modes in sorted(buckets):
            for entry in merge(*(group[modes].irange(minimum=least) for group in groups if modes in group)):
                name = entry[2]
                if name in held_by_others:
                    continue
                volume = self._volumes[name][0]
                if demand.accepts(volume):
                    return volume
        return None

    def coming(self, demand: Demand) -> Volume | None:
        """Return a volume that fits and will soon be free. There are only few at a time."""
        arriving = (volume for volume in self._coming.values() if place_of(volume) == demand.place)
        fitting = (v for v in arriving if capacity_of(v) >= demand.request and demand.accepts(v))
        return min(fitting, key=_entry_of, default=None)

    def hold(self, name: str, claim_key: str) -> None:
        """Keep the volume for this claim until the write that binds it is answered."""
        self._held[claim_key] = name

    def release(self, claim_key: str) -> str | None:
        """End the claim's hold, if any. Returns the name of the volume if it is free again."""
        name = self._held.pop(claim_key, None)
        return name if name in self._volumes else None

    def candidates(self, place: Place, limit: int) -> list[Volume]:
        """Return up to `limit` free volumes of a place, for explanations."""
        entries = chain.from_iterable(self._candidates.get((place, ""), {}).values())
        return [self._volumes[name][0] for _, _, name in islice(entries, limit)]


@dataclass(slots=True)
class WaitingClaims:
    """The unbound claims that found no volume. A new volume wakes exactly one that can use it.

    A woken claim that does not take the volume passes it on: `take_offers` returns the volumes it was woken for. Claims
    with equal access modes and selector wait in one queue. A queue is searched only for volumes with a label that its
    selector needs, so that neither many claims nor many selectors make a new volume expensive.
    """

    claims: dict[str, tuple[Demand, Rank]] = field(default_factory=dict)
    """By key, each with its demand and place in its queue."""
    _queues: dict[_Group, dict[_Shape, SortedList[Rank]]] = field(default_factory=dict)
    """Waiting claims that were not woken, by place, needed label and shape."""
    _offers: dict[str, set[str]] = field(default_factory=dict)

    def add(self, claim: Claim, demand: Demand) -> None:
        known = self.claims.get(claim.key)
        if known is not None and known[0] == demand:
            return
        self.discard(claim.key)
        if demand.has_source:
            return  # No free volume suits it, and at the head of a queue it would keep one from the others.
        rank = (-demand.request, claim.metadata.creation_timestamp or "", claim.key)
        self.claims[claim.key] = (demand, rank)
        if claim.key not in self._offers:
            self._in_queues(_insert, demand, rank)

    def discard(self, claim_key: str) -> None:
        """Remove a claim that is bound, gone, or whose demand changed."""
        known = self.claims.pop(claim_key, None)
        if known is not None and claim_key not in self._offers:
            self._in_queues(_remove, *known)

    def wake_for(self, volume: Volume, *, passed_over: str = "") -> str | None:
        """Wake the claim with the largest request that the volume satisfies, but for `passed_over`. Return its key."""
        place, least = place_of(volume), (-capacity_of(volume), "", "")
        first: Rank | None = None
        for label in _labels_of(volume):
            for queue in self._queues.get((place, label), {}).values():
                head = queue[0]
                # Tenants may write a queue a claim: no more is asked of one than can change the answer.
                if (first is not None and head >= first) or not self.claims[head[2]][0].accepts(volume):
                    continue
                # Of every queue that the volume suits, the first claim for which it is large enough.
                rank = next((rank for rank in queue.irange(minimum=least) if rank[2] != passed_over), None)
                if rank is not None and (first is None or rank < first):
                    first = rank
        if first is None:
            return None
        key = first[2]
        self._in_queues(_remove, *self.claims[key])
        self._offers[key] = {volume.name}
        return key

    def take_offers(self, claim_key: str) -> set[str]:
        """Return the names of the volumes for which the claim was woken. It can then be woken again."""
        offers = self._offers.pop(claim_key, None)
        if offers is None:
            return set()
        if (known := self.claims.get(claim_key)) is not None:
            self._in_queues(_insert, *known)
        return offers

    def _in_queues(self, change: _Change, demand: Demand, rank: Rank) -> None:
        """Add a claim to its queues, or remove it: one for each label of which a volume that suits has one."""
        shape = tuple(sorted(demand.access_modes)), msgspec.json.encode(demand.selector, order="sorted")
        for label in _needed_by(demand.selector)[0]:
            change(self._queues, (demand.place, label), shape, rank)


def _labels_of(volume: Volume) -> list[_Label]:
    labels = volume.metadata.labels
    return ["", *labels.items(), *((key, None) for key in labels)] if labels else [""]


def _needed_by(selector: LabelSelector | None) -> list[list[_Label]]:
    """Return lists of labels: what the selector matches has one of each. The shortest come first, then those with any
    value.
    """
    if selector is None:
        return [[""]]
    needs = selector.match_expressions or ()
    listed = {each.key: sorted(set(each.values or ())) for each in needs if each.operator == "In"}
    listed = {key: values for key, values in listed.items() if len(values) <= _MOST_QUEUES}
    listed |= {key: [value] for key, value in (selector.match_labels or {}).items()}
    labels: list[list[_Label]] = [[(key, value) for value in values] for key, values in sorted(listed.items())]
    labels.sort(key=len)
    labels += [[(each.key, None)] for each in needs if each.operator in {"In", "Exists"} and each.key not in listed]
    return labels or [[""]]
