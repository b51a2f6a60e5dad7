"""What the decisions of the assigner see: the cluster, its nodes, and what is promised on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from volplane.assets import Segment
from volplane.drivers.view import DriverView
from volplane.intents.requests import allowed_segments
from volplane.kube import names
from volplane.kube.objects import Claim, CsiStorageCapacity, KubeObject, Node, StorageClass, Volume
from volplane.placement.board import Board, Candidate
from volplane.placement.choose import Offer
from volplane.placement.nodes import NodeBook, takes_volumes
from volplane.placement.room import PublishedRoom
from volplane.placement.usage import UNPUBLISHED_SECONDS, Promise, Usage
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import capacity_of, class_of_claim, request_of
from volplane.state.naming import node_hash, volume_name_of

__all__ = ["PlacementState", "unsuitable"]

_NANOS = 10**9
_MOST_CLASSES = 1_000
REFUSED_SECONDS = 60.0
"""How long a node that gave a claim back is not tried for it again."""


@dataclass(slots=True, kw_only=True)
class PlacementState:
    """cluster: whose caches hold all claims, volumes and nodes. drivers: names of the distributed ones.
    external_choice: others select the nodes of claims that bind immediately.

    last: the node chosen last, by class. waiting: keys of claims for which no node was found. lost: why a volume's node
    is not there any more, by the volume's name. refused: when (loop time) a node may be tried again for a claim that it
    gave back, by the claim's uid and the name of the node. since: label of a claim that has no volume yet, and the loop
    time at which it was first seen, by uid.
    """

    cluster: ClusterState
    drivers: Sequence[str]
    nodes: NodeBook
    room: PublishedRoom
    external_choice: bool = False
    usage: Usage = field(init=False)
    last: dict[str, str] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    lost: dict[str, str] = field(default_factory=dict)
    refused: dict[str, dict[str, float]] = field(default_factory=dict)
    since: dict[str, tuple[str, float]] = field(default_factory=dict)
    _boards: dict[tuple[str, str], tuple[tuple[int, str], Board]] = field(default_factory=dict)
    _newest: tuple[float, float] = (0.0, 0.0)
    """When the newest object was made, by the clock of the server, and the loop time at which it was seen."""

    def __post_init__(self) -> None:
        self.usage = Usage(self._touched)

    def driver_of_claim(self, claim: Claim) -> DriverView | None:
        """The distributed driver that works on the claim: that of its intent, else of its class."""
        intent = self.cluster.intent_of(claim)
        if intent is not None and (driver := self.cluster.drivers.distributed(intent.driver)) is not None:
            return driver
        storage_class = self.class_of(claim)
        return self.cluster.drivers.distributed(storage_class.provisioner) if storage_class is not None else None

    def class_of(self, claim: Claim) -> StorageClass | None:
        return self.cluster.classes.get(class_of_claim(claim) or "")

    def driver_of_volume(self, volume: Volume) -> DriverView | None:
        """The distributed driver that made the volume."""
        return self.cluster.drivers.distributed(volume.annotation(names.PROVISIONED_BY) or "")

    def offers(self, claim: Claim, driver: DriverView, storage_class: StorageClass) -> list[Offer]:
        """The nodes that can take the claim: where room is published for its class, those that have it."""
        now, size = self.cluster.monotonic(), self.promise(claim, driver, "").size
        self.usage.expire(now)
        board = self._board(driver, storage_class)
        board.refresh(self.room.of(driver.name, storage_class.name), self.usage)
        published = self.room.is_published(driver.name, storage_class.name)
        unpublished = not published or self.is_new(storage_class)
        return board.fitting(size, self.refused.get(claim.uid, {}), now, unpublished=unpublished)

    def _board(self, driver: DriverView, storage_class: StorageClass) -> Board:
        key = (driver.name, storage_class.name)
        version = (self.nodes.version, storage_class.metadata.resource_version)
        known = self._boards.get(key)
        if known is None or known[0] != version:
            if len(self._boards) >= _MOST_CLASSES:
                self._boards.clear()
            allowed = allowed_segments(storage_class)
            found = sorted(
                Candidate(n.name, node_hash(n.name)) for n in self.nodes.all() if not unsuitable(n, driver, allowed)
            )
            known = self._boards[key] = (version, Board(driver.name, found))
        return known[1]

    def _touched(self, driver: str, node: str) -> None:
        for (name, _), (_, board) in self._boards.items():
            if name == driver:
                board.dirty.add(node)

    def count_lost(self) -> dict[str, int]:
        """Lost volumes by driver; drivers without any are listed too."""
        counts = dict.fromkeys(self.drivers, 0)
        for name in self.lost:
            volume = self.cluster.volumes.get(name)
            driver = self.driver_of_volume(volume) if volume is not None else None
            if driver is not None:
                counts[driver.name] += 1
        return counts

    # --- what is promised, after the caches ----------------------------------------------------------------------

    def driver_made(self, driver: DriverView) -> None:
        """A distributed driver was made after the caches were filled: what they hold of it counts from now on."""
        self.nodes.follow(driver.info.topology_keys)
        for volume in self.cluster.volumes.values():
            self.volume_changed(None, volume)
        for claim in self.cluster.claims.values():
            self.usage.claim(volume_name_of(claim), self._promise_to(claim))

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        present = new or old
        if present is None:
            return
        if old is None:
            self._seen(present)
        self.usage.claim(volume_name_of(present), None if new is None else self._promise_to(new))
        if new is None:
            self.usage.hold(volume_name_of(present), None)  # The write, if one is on its way, finds nothing.
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

    def class_changed(self, claim: Claim) -> None:
        """The class of an unbound claim says which driver it is of: claims may come before their class at the start."""
        self.usage.claim(volume_name_of(claim), self._promise_to(claim))

    def volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        present = new or old
        if present is None:
            return
        label = _label(new) if new is not None else ""
        driver = self.driver_of_volume(new) if new is not None else None
        promise = Promise(driver.name, label, 0, made=True) if driver is not None and label else None
        if promise is not None and new is not None and not self.usage.knows(new.name) and self.is_new(new):
            size = -(-capacity_of(new) // _NANOS)
            self.usage.made(new.name, promise._replace(size=size), new.version, self.cluster.monotonic())
        elif promise is None or not self.usage.knows(present.name):
            self.usage.volume(present.name, promise)
        if new is None:
            self.lost.pop(present.name, None)

    def capacity_changed(self, old: CsiStorageCapacity | None, new: CsiStorageCapacity | None) -> None:
        for node in self.room.changed(old, new):
            for _, board in self._boards.values():
                board.dirty.add(node_hash(node))
        if new is not None:
            labels = new.metadata.labels or {}
            self.usage.published(labels.get(names.CAPACITY_DRIVER, ""), labels.get(names.NODE, ""), new.version)

    def is_new(self, item: KubeObject) -> bool:
        """Whether published room may not heed it yet: a class is published by one node after the other."""
        made = self._seen(item)
        return made is not None and self._server_time() - made < UNPUBLISHED_SECONDS

    def _seen(self, item: KubeObject) -> float | None:
        """When the server made the object, by its clock; None if that cannot be read."""
        try:
            made = datetime.fromisoformat(item.metadata.creation_timestamp or "").timestamp()
        except ValueError:
            return None
        if made > self._server_time():
            self._newest = (made, self.cluster.monotonic())
        return made

    def _server_time(self) -> float:
        """The time at the server at least, by the newest object that was seen: the clock here may be minutes off."""
        made, seen = self._newest
        return made + self.cluster.monotonic() - seen

    def _promise_to(self, claim: Claim) -> Promise | None:
        label = _label(claim)
        if not label or claim.annotation(names.BIND_COMPLETED) is not None:
            return None
        driver = self.driver_of_claim(claim)
        return self.promise(claim, driver, label) if driver is not None else None

    def promise(self, claim: Claim, driver: DriverView, node: str) -> Promise:
        """What the claim takes of a node. node: the hash of its name."""
        return Promise(driver.name, node, -(-request_of(claim) // _NANOS), made=False)


def _label(item: Claim | Volume) -> str:
    return (item.metadata.labels or {}).get(names.NODE, "")


def unsuitable(node: Node, driver: DriverView, allowed: Sequence[Segment]) -> str:
    """Why no volume of the driver may be made on the node, or ""."""
    labels = node.metadata.labels or {}
    if missing := [key for key in driver.info.topology_keys if key not in labels]:
        return f"without the label {missing[0]}"
    if not takes_volumes(node):
        return "not ready, cordoned or tainted"
    if allowed and not any(segment.items() <= labels.items() for segment in allowed):
        return "outside the allowedTopologies"
    return ""
