"""Event handlers of the assigner: they queue the claims and volumes that a change of the caches concerns."""

from __future__ import annotations

from collections.abc import Iterator

from volplane.controller.actions import Queue
from volplane.kube import names
from volplane.kube.objects import Claim, CsiStorageCapacity, KubeObject, Node, StorageClass, Volume
from volplane.placement.state import PlacementState

__all__ = ["PlacementHandlers"]


ROOM_PAUSE = 1.0
"""Seconds after which published room is looked at: in a full cluster many claims wait, and many nodes publish."""


class PlacementHandlers:
    """Follow the caches, and queue the claims, volumes and nodes that a change may concern."""

    def __init__(self, state: PlacementState, *, claims: Queue, volumes: Queue, nodes: Queue) -> None:
        self._state = state
        self._claims = claims
        self._volumes = volumes
        self._nodes = nodes

    def subscribe(self) -> None:
        cluster = self._state.cluster
        cluster.nodes.subscribe(self.node_changed)
        cluster.classes.subscribe(self.class_changed)
        cluster.claims.subscribe(self.claim_changed)
        cluster.volumes.subscribe(self.volume_changed)
        cluster.capacities.subscribe(self.capacity_changed)

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        self._state.claim_changed(old, new)
        if new is not None:
            self._claims.enqueue(new.key)

    def volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        self._state.volume_changed(old, new)
        present = new or old
        if present is None or (old is not None and new is not None and _same_place(old, new)):
            return
        self._volumes.enqueue(present.name)
        if (reference := present.spec.claim_ref) is not None:
            self._claims.enqueue(reference.key)

    def class_changed(self, old: StorageClass | None, new: StorageClass | None) -> None:
        present = new or old
        for claim in self._state.cluster.claims.by_index("unbound", present.name) if present is not None else ():
            self._state.class_changed(claim)
            self._claims.enqueue(claim.key)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        if not self._state.nodes.changed(old, new):
            return
        name = (new or old or KubeObject()).name
        self._nodes.enqueue(name)
        for other in self._state.nodes.sharing_hash(name):
            self._nodes.enqueue(other)
        self.room_changed()
        label = self._state.nodes.hashed(name)
        for claim in self._state.cluster.claims.values():
            # Most have no node of this name; asking the label of each is cheaper than one more index of all.
            if claim.annotation(names.SELECTED_NODE) == name or (claim.metadata.labels or {}).get(names.NODE) == label:
                self._claims.enqueue(claim.key)
        for volume in self._state.cluster.volumes.values():
            if self._state.driver_of_volume(volume) is not None:
                self._volumes.enqueue(volume.name)

    def claims_of_driver(self, name: str) -> Iterator[str]:
        """Take up that a driver is usable or unusable, or was made; yield the keys of its claims."""
        driver = self._state.cluster.drivers.distributed(name)
        if driver is None:
            return
        self._state.driver_made(driver)
        for claim in self._state.cluster.claims.values():
            if self._state.driver_of_claim(claim) is driver:
                yield claim.key

    def volumes_of_driver(self, name: str) -> Iterator[str]:
        """Yield the names of the volumes that the driver made."""
        driver = self._state.cluster.drivers.distributed(name)
        for volume in self._state.cluster.volumes.values() if driver is not None else ():
            if self._state.driver_of_volume(volume) is driver:
                yield volume.name

    def capacity_changed(self, old: CsiStorageCapacity | None, new: CsiStorageCapacity | None) -> None:
        self._state.capacity_changed(old, new)
        if new is None or (old is not None and old.capacity == new.capacity):
            return
        for key in sorted(self._state.waiting):
            self._claims.enqueue(key, ROOM_PAUSE)

    def room_changed(self) -> None:
        """A node may take what none could before."""
        for key in sorted(self._state.waiting):
            self._claims.enqueue(key)


def _same_place(old: Volume, new: Volume) -> bool:
    return (old.metadata.labels, old.metadata.annotations, old.spec.claim_ref) == (
        new.metadata.labels,
        new.metadata.annotations,
        new.spec.claim_ref,
    )
