"""What the decisions of the assigner see: the cluster, its nodes, and what is promised on them.

It follows the caches, and queues the claims, volumes and nodes that a change concerns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from volplane.assets import Segment
from volplane.controller.actions import Queue
from volplane.drivers.driver import DriverView
from volplane.intents.requests import allowed_segments, segments_of
from volplane.kube import names
from volplane.kube.objects import Claim, CsiStorageCapacity, KubeObject, Node, StorageClass, Volume
from volplane.placement.nodes import NodeBook, takes_volumes
from volplane.placement.room import UNPUBLISHED_SECONDS, NodeOffers, Offer, Promise, PublishedRoom, Usage
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import capacity_of, class_of_claim, refers_to, request_of, whole_bytes
from volplane.state.naming import node_hash, volume_name_of

_MOST_CLASSES = 1_000
REFUSED_SECONDS: Final = 60.0
"""Time for which a node that gave a claim back is not tried for it again."""
ROOM_PAUSE: Final = 1.0
"""Seconds after which published room is looked at: in a full cluster many claims wait, and many nodes publish."""


@dataclass(slots=True, kw_only=True)
class PlacementState:
    """The caches of all claims, volumes and nodes, and what the assigner keeps beside them."""

    cluster: ClusterState
    drivers: Sequence[str]
    """Names of the distributed drivers."""
    nodes: NodeBook
    claims: Queue
    volumes: Queue
    node_names: Queue
    external_choice: bool = False
    """Other programs select the nodes of claims that bind immediately."""
    room: PublishedRoom = field(init=False)
    usage: Usage = field(init=False)
    last: dict[str, str] = field(default_factory=dict)
    """The node chosen last, by class."""
    waiting: set[str] = field(default_factory=set)
    """Keys of claims for which no node was found."""
    lost: dict[str, str] = field(default_factory=dict)
    """Why a volume's node is not there any more, by the volume's name."""
    refused: dict[str, dict[str, float]] = field(default_factory=dict)
    """Loop time at which a node may be tried again for a claim that it gave back, by the claim's uid and the node."""
    since: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By uid of a claim without a volume: its label, and the loop time at which that was first seen."""
    _node_offers: dict[tuple[str, str], tuple[tuple[int, str], NodeOffers]] = field(default_factory=dict)
    _newest: tuple[float, float] = (0.0, 0.0)
    """When the newest object was made, by the clock of the server, and the loop time at which it was seen."""

    def __post_init__(self) -> None:
        self.room = PublishedRoom(self.nodes)
        self.usage = Usage(self._touched)
        self.cluster.claims.add_indexes({"placed": _nodes_of_claim})
        self.cluster.volumes.add_indexes({"place": _place_of_volume})

    def driver_of_claim(self, claim: Claim) -> DriverView | None:
        """Return the distributed driver that works on the claim: that of its intent, else of its class."""
        intent = self.cluster.intent_of(claim)
        if intent is not None and (driver := self.cluster.drivers.distributed(intent.driver)) is not None:
            return driver
        storage_class = self.class_of(claim)
        return self.cluster.drivers.distributed(storage_class.provisioner) if storage_class is not None else None

    def class_of(self, claim: Claim) -> StorageClass | None:
        return self.cluster.classes.get(class_of_claim(claim) or "")

    def driver_of_volume(self, volume: Volume) -> DriverView | None:
        return self.cluster.drivers.distributed(volume.annotation(names.PROVISIONED_BY) or "")

    def offers(self, claim: Claim, driver: DriverView, storage_class: StorageClass) -> list[Offer]:
        """Return the nodes that can take the claim: where room is published for its class, those that have it."""
        now = self.cluster.monotonic()
        self.usage.expire(now)
        key = (driver.name, storage_class.name)
        version = (self.nodes.version, storage_class.metadata.resource_version)
        known = self._node_offers.get(key)
        if known is None or known[0] != version:
            if len(self._node_offers) >= _MOST_CLASSES:
                self._node_offers.clear()
            allowed = allowed_segments(storage_class)
            nodes = [node for node in self.nodes.cache.values() if not unsuitable(node, driver, allowed)]
            found = NodeOffers(driver.name, sorted((node.name, node_hash(node.name)) for node in nodes))
            known = self._node_offers[key] = (version, found)
        rooms = self.room.of(*key)
        known[1].refresh(rooms or {}, self.usage)
        unpublished = rooms is None or self.is_new(storage_class)
        size = self.promise(claim, driver, "").size
        return known[1].fitting(size, self.refused.get(claim.uid, {}), now, unpublished=unpublished)

    def _touched(self, driver: str, node: str) -> None:
        for (name, _), (_, offers) in self._node_offers.items():
            if name == driver:
                offers.dirty.add(node)

    def count_lost(self) -> dict[str, int]:
        """Return the number of lost volumes by driver; drivers without any are listed too."""
        counts = dict.fromkeys(self.drivers, 0)
        for name in self.lost:
            volume = self.cluster.volumes.get(name)
            if volume is not None and (driver := self.driver_of_volume(volume)) is not None:
                counts[driver.name] += 1
        return counts

    # --- what is promised, after the caches ----------------------------------------------------------------------

    def claims_of_driver(self, name: str) -> Iterator[str]:
        """Take up that a driver is usable or unusable, or was made; yield the keys of its claims, "" for the others."""
        driver = self.cluster.drivers.distributed(name)
        if driver is None:
            return
        # What the caches hold of a driver that was made after they were filled is not counted yet.
        self.nodes.follow(driver.info.topology_keys)
        volumes, claims = self.cluster.volumes.keys(), self.cluster.claims.keys()
        for key in volumes:
            if (volume := self.cluster.volumes.get(key)) is not None:
                self._count_volume(None, volume)
            yield ""
        for key in claims:
            if (claim := self.cluster.claims.get(key)) is not None:
                self._count_claim(claim)
                yield key if self.driver_of_claim(claim) is driver else ""

    def volumes_of_driver(self, name: str) -> Iterator[str]:
        driver = self.cluster.drivers.distributed(name)
        for volume in self.cluster.volumes.values() if driver is not None else ():
            yield volume.name if self.driver_of_volume(volume) is driver else ""

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        present = new or old or Claim()
        if old is None:
            self._seen(present)
        if new is not None:
            self.claims.enqueue(new.key)
            self._count_claim(new)
        else:
            self.usage.set(self.usage.claims, volume_name_of(present), None)
            self.usage.set(self.usage.held, volume_name_of(present), None)  # A write on its way will find no claim.
        volume = self.cluster.volumes.get(present.spec.volume_name or "")
        if volume is not None and refers_to(volume, present):  # Other claims may name it, too.
            self._follow_growth(volume.name, new)
        if new is None or new.spec.volume_name:
            self.refused.pop(present.uid, None)
            self.since.pop(present.uid, None)
            self.waiting.discard(present.key)
            return
        now, label = self.cluster.monotonic(), _label(new)
        if self.since.get(new.uid, ("", 0.0))[0] != label:
            self.since[new.uid] = (label, now)
        former = old.annotation(names.SELECTED_NODE) if old is not None and _label(old) else None
        if former and new.annotation(names.SELECTED_NODE) is None:
            self.refused.setdefault(new.uid, {})[former] = now + REFUSED_SECONDS

    def _follow_growth(self, name: str, claim: Claim | None) -> None:
        """Count by what the volume is asked to grow, unless the room published for its node is less: it never will."""
        volume, growth = self.cluster.volumes.get(name), None
        driver = self.driver_of_volume(volume) if volume is not None else None
        if claim is not None and volume is not None and driver is not None and refers_to(volume, claim):
            more, label = whole_bytes(request_of(claim) - capacity_of(volume)), _label(volume)
            rooms = (self.room.of(driver.name, class_of_claim(claim) or "") or {}).items() if more > 0 else ()
            free = [each.free for node, here in rooms if node_hash(node) == label for each in here.values()]
            if 0 < more <= max(free, default=more):
                growth = Promise(driver.name, label, more, volumes=0)
        self.usage.set(self.usage.claims, f"{name} grows", growth)

    def _count_claim(self, claim: Claim) -> None:
        """Count an unbound claim that has a node. Its class, which may come after it, says of which driver it is."""
        label = _label(claim)
        driver = self.driver_of_claim(claim) if label and not claim.bound else None
        promise = self.promise(claim, driver, label) if driver is not None else None
        self.usage.set(self.usage.claims, volume_name_of(claim), promise)

    def class_changed(self, old: StorageClass | None, new: StorageClass | None) -> None:
        for claim in self.cluster.claims.by_index("unbound", (new or old or StorageClass()).name):
            self._count_claim(claim)
            self.claims.enqueue(claim.key)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        if not self.nodes.changed(old, new):
            return
        name = (new or old or KubeObject()).name
        for each in (name, *self.nodes.sharing_hash(name)):
            self.node_names.enqueue(each)
        if new is not None and takes_volumes(new):
            for key in sorted(self.waiting):
                self.claims.enqueue(key)  # It may take what no node could before.
        placed = (
            claim for at in (name, self.nodes.hashed(name)) for claim in self.cluster.claims.by_index("placed", at)
        )
        for key in sorted({claim.key for claim in placed}):
            self.claims.enqueue(key)
        if old is not None and new is not None and old.uid == new.uid and old.metadata.labels == new.metadata.labels:
            return  # Volumes lie on a node that is not ready, too.
        labels = {item for node in (old, new) if node is not None for item in (node.metadata.labels or {}).items()}
        for key, value in sorted(labels):
            for volume in self.cluster.volumes.by_index("place", f"{key}={value}"):
                if self.driver_of_volume(volume) is not None:
                    self.volumes.enqueue(volume.name)

    def volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        self._count_volume(old, new)
        if old is not None and new is not None and _place(old) == _place(new):
            return
        present = new or old or Volume()
        self.volumes.enqueue(present.name)
        if (reference := present.spec.claim_ref) is not None:
            self.claims.enqueue(reference.key)

    def _count_volume(self, old: Volume | None, new: Volume | None) -> None:
        present = new or old or Volume()
        label = _label(new) if new is not None else ""
        driver = self.driver_of_volume(new) if new is not None else None
        promise = Promise(driver.name, label, 0) if driver is not None and label else None
        known = present.name in self.usage.volumes
        more = 0 if new is None else capacity_of(new) - (capacity_of(old) if known and old is not None else 0)
        if promise is not None and new is not None and (more > 0 if known else self.is_new(new)):
            size = whole_bytes(more)
            self.usage.made(new.name, promise._replace(size=size), new.version, self.cluster.monotonic())
        elif promise is None or not known:
            self.usage.set(self.usage.volumes, present.name, promise)
        if new is None:
            self.lost.pop(present.name, None)
        if more or new is None or old is None or old.spec.claim_ref != new.spec.claim_ref:
            reference = present.spec.claim_ref
            self._follow_growth(present.name, self.cluster.claims.get(reference.key) if reference else None)

    def capacity_changed(self, old: CsiStorageCapacity | None, new: CsiStorageCapacity | None) -> None:
        for node in self.room.changed(old, new):
            for _, offers in self._node_offers.values():
                offers.dirty.add(node_hash(node))
        present = new or old or CsiStorageCapacity()
        # Its label says anything, but a node can name no other one alone as its owner.
        owners = {each.name for each in present.metadata.owner_references or () if each.kind == "Node"}
        node = node_hash(owners.pop()) if len(owners) == 1 else ""
        driver = (present.metadata.labels or {}).get(names.CAPACITY_DRIVER, "")
        self.usage.published(driver, node, present.key, None if new is None else new.version)
        if new is not None and (old is None or old.capacity != new.capacity):
            for key in sorted(self.waiting):
                self.claims.enqueue(key, ROOM_PAUSE)

    def is_new(self, item: KubeObject) -> bool:
        """Return whether published room may not heed it yet: a class is published by one node after the other."""
        made = self._seen(item)
        return made is not None and self._server_time() - made < UNPUBLISHED_SECONDS

    def _seen(self, item: KubeObject) -> float | None:
        """Return when the server made the object, by its clock; None if that cannot be read."""
        try:
            made = datetime.fromisoformat(item.metadata.creation_timestamp or "").timestamp()
        except ValueError:
            return None
        if made > self._server_time():
            self._newest = (made, self.cluster.monotonic())
        return made

    def _server_time(self) -> float:
        """Return the earliest possible time at the server, by the newest object seen: our clock may be minutes off."""
        made, seen = self._newest
        return made + self.cluster.monotonic() - seen

    def promise(self, claim: Claim, driver: DriverView, node: str) -> Promise:
        """Return what the claim takes of a node. node: the hash of its name."""
        return Promise(driver.name, node, whole_bytes(request_of(claim)))


def _label(item: Claim | Volume) -> str:
    return (item.metadata.labels or {}).get(names.NODE, "")


def unsuitable(node: Node, driver: DriverView, allowed: Sequence[Segment]) -> str:
    """Return why no volume of the driver may be made on the node, or ""."""
    labels = node.metadata.labels or {}
    if missing := [key for key in driver.info.topology_keys if key not in labels]:
        return f"without the label {missing[0]}"
    if not takes_volumes(node):
        return "not ready, cordoned or tainted"
    if allowed and not any(segment.items() <= labels.items() for segment in allowed):
        return "outside the allowedTopologies"
    return ""


def _nodes_of_claim(claim: Claim) -> list[str]:
    """Return what names a claim's node: its name, and the hash of it in the label."""
    return [each for each in (claim.annotation(names.SELECTED_NODE), _label(claim)) if each]


def _place_of_volume(volume: Volume) -> list[str]:
    """Return one of the labels that the node of a provisioned volume has."""
    if volume.annotation(names.PROVISIONED_BY) is None or not (segments := segments_of(volume)):
        return []
    key, value = min(segments[0].items())
    return [f"{key}={value}"]


def _place(volume: Volume) -> tuple[object, ...]:
    return volume.metadata.labels, volume.metadata.annotations, volume.spec.claim_ref
