"""Publishing how much room there is: a CSIStorageCapacity for each class and place. Pure, but for `CapacityState`.

A process of one node publishes what is free there. The process of the whole cluster publishes for drivers that it
serves itself, once for each place that nodes are at, and removes what the processes of nodes that are gone have left.
Names, labels and topology are those of the external provisioner, but a name follows from driver, class and place, so
that two processes cannot make two objects of one.

Source: kubernetes-csi/external-provisioner, pkg/capacity, and KEP-1472.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from volplane.assets import Capacity, Segment
from volplane.controller.actions import Action, Create, Delete, LiveReads, Patch, Queue, Read, Run, Settled, Wait
from volplane.controller.controller import Work
from volplane.drivers.driver import DriverView
from volplane.intents.operation import OperationDeps
from volplane.intents.requests import split_parameters
from volplane.kube import names
from volplane.kube.kinds import CAPACITIES, NODES
from volplane.kube.objects import Claim, CsiStorageCapacity, KubeObject, Node, StorageClass, Volume
from volplane.kube.quantity import format_bytes
from volplane.placement.room import published_bytes
from volplane.requests import CapacityRequest
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import class_of_claim
from volplane.state.naming import node_hash

PUBLISHER: Final = "volplane"
"""Value of the label `csi.storage.k8s.io/managed-by`."""
POLL_SECONDS: Final = 60.0
"""How old a figure may become; the external provisioner's."""
PAUSE_SECONDS: Final = 1.0
"""Between a change on the storage and the next look: what is made in masses is counted once a second."""
SLIGHT: Final = 20
"""A change of less than the 20th part (5 %) is published `POLL_SECONDS` after the figure before it."""


class Item(NamedTuple):
    driver: str
    storage_class: str
    segment: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class CapacityState:
    """What is to be published, and what was measured. Follows the caches of classes, nodes and volumes."""

    cluster: ClusterState
    drivers: Callable[[], Iterable[DriverView]]
    """Returns those whose room this process publishes, usable or not."""
    queue: Queue
    items: dict[str, Item] = field(default_factory=dict)
    measured: dict[str, tuple[Capacity, float]] = field(default_factory=dict)
    """What the driver answered for each of `items`, and the loop time of the answer."""
    shown: dict[str, float] = field(default_factory=dict)
    """Loop time at which the figure of each object was seen first."""

    def class_changed(self, _old: StorageClass | None, _new: StorageClass | None) -> None:
        self._plan()

    def capacity_changed(self, old: CsiStorageCapacity | None, new: CsiStorageCapacity | None) -> None:
        key = (new or old or CsiStorageCapacity()).key
        if new is None:
            self.shown.pop(key, None)
        elif old is None or _figures(old) != _figures(new):
            self.shown[key] = self.cluster.monotonic()
        measured = self.measured.get(key)
        if new is None or measured is None or _figures(new) == _published(measured[0]):
            self.queue.enqueue(key)
            return
        # It was written by another program, perhaps another process of this node, whose figure is newer than ours.
        del self.measured[key]
        self.queue.enqueue(key, PAUSE_SECONDS)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is not None and new is not None and old.metadata.labels == new.metadata.labels:
            return  # What is published depends on nothing else of a node.
        self._plan()
        if new is None:
            for item in self.cluster.capacities.values():
                self.queue.enqueue(item.key)

    def volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        """Measure again after something was made, grown or deleted."""
        before, after = (None if each is None else each.spec.capacity for each in (old, new))
        maker = (new or old or Volume()).annotation(names.PROVISIONED_BY)
        if before != after and maker is not None and self.cluster.drivers.publishes(maker):
            self._measure_again(maker)

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        """Measure again after a claim was given back: there may be less room than was published."""
        if old is None or old.spec.volume_name or old.annotation(names.SELECTED_NODE) is None:
            return
        if new is None or new.annotation(names.SELECTED_NODE) is None:
            storage_class = self.cluster.classes.get(class_of_claim(old) or "")
            if storage_class is not None and self.cluster.drivers.publishes(storage_class.provisioner):
                self._measure_again(storage_class.provisioner)

    def _measure_again(self, driver: str) -> None:
        for key, item in self.items.items():
            if item.driver == driver:
                self.measured.pop(key, None)
                self.queue.enqueue(key, PAUSE_SECONDS)

    def of_driver(self, name: str) -> list[str]:
        """Take up that the driver is usable or unusable, or was made; return the keys of its objects."""
        self._plan()
        return [key for key, item in self.items.items() if item.driver == name]

    def _plan(self) -> None:
        """Take up what is to be published: the places are those where nodes are; of a process of one node, its own."""
        items = {}
        for driver in self.drivers():
            segments = [tuple(sorted(each.items())) for each in self.cluster.places.segments(driver.info.topology_keys)]
            for storage_class in self.cluster.classes.values():
                for segment in segments if storage_class.provisioner == driver.name else ():
                    text = msgspec.json.encode([driver.name, storage_class.name, segment])
                    key = f"{self.cluster.namespace}/csisc-{hashlib.sha256(text).hexdigest()[:16]}"
                    items[key] = Item(driver.name, storage_class.name, segment)
        for key in sorted(items.keys() ^ self.items.keys()):
            self.queue.enqueue(key)
        self.items = items
        self.measured = {key: each for key, each in self.measured.items() if key in items}


def decide_capacity(key: str, state: CapacityState, reads: LiveReads) -> Action:
    item, found = state.items.get(key), state.cluster.capacities.get(key)
    if item is None:
        return _remove_outdated(found, state, reads) if found is not None else Settled()
    driver, storage_class = state.cluster.drivers.get(item.driver), state.cluster.classes.get(item.storage_class)
    if driver is None or storage_class is None:
        return Wait(reason=f'driver "{item.driver}" cannot be asked')
    if driver.parameters_flaw(split_parameters(storage_class)[0]):
        return Wait(reason=f'class "{storage_class.name}" has parameters that the driver refuses')
    measured, now = state.measured.get(key), state.cluster.monotonic()
    if measured is None or measured[1] + POLL_SECONDS <= now:
        return Run(verb="measure", key=key, uid=storage_class.uid, driver=driver.name, asset=f"room {key}")
    wanted = _body(key, item, measured[0], storage_class, state.cluster)
    if found is None:
        # The label by which it is watched may have been taken away.
        if not reads.has(CAPACITIES, key):
            return Read(CAPACITIES, key, why="is it there?")
        live = reads.get(CAPACITIES, key)
        found = live if isinstance(live, CsiStorageCapacity) else None
    if found is None:
        # The object of a node that is gone is garbage-collected with it, and would be made again and again.
        gone = own_node_differs(state.cluster, reads) if state.cluster.own_node is not None else None
        return gone or Create(kind=CAPACITIES, body=wanted, why="publish how much room there is")
    selector = msgspec.to_builtins(found.node_topology) if found.node_topology is not None else {}
    if found.storage_class_name != item.storage_class or selector != wanted["nodeTopology"]:
        return Delete(kind=CAPACITIES, target=found, why="it is not what its name says, and those fields cannot change")
    if (changes := _changes(found, wanted)) is not None:
        patch = Patch(kind=CAPACITIES, target=found, body=changes, why="publish how much room there is")
        return _left_to_other(found, state.cluster) or _held_back(found, measured[0], changes, state) or patch
    return Wait(reason="it is measured again from time to time", seconds=measured[1] + POLL_SECONDS - now)


def _body(
    key: str, item: Item, capacity: Capacity, storage_class: StorageClass, cluster: ClusterState
) -> dict[str, Any]:
    namespace, _, name = key.partition("/")
    labels = {names.CAPACITY_DRIVER: item.driver, names.CAPACITY_PUBLISHER: PUBLISHER}
    owner: KubeObject = storage_class
    api, kind = "storage.k8s.io/v1", "StorageClass"
    if (node := cluster.own_node) is not None:
        labels[names.NODE] = node_hash(node.name)
        api, kind, owner = "v1", "Node", node
    reference = {"apiVersion": api, "kind": kind, "name": owner.name, "uid": owner.uid}
    body = CAPACITIES.body(
        metadata={"name": name, "namespace": namespace, "labels": labels, "ownerReferences": [reference]},
        storageClassName=item.storage_class,
        nodeTopology={"matchLabels": dict(item.segment)},
    )
    body["capacity"], largest = _published(capacity)
    if largest is not None:
        body["maximumVolumeSize"] = largest
    return body


def _published(capacity: Capacity) -> tuple[str, str | None]:
    """Return how a figure is written: the room, and the largest volume if there is a bound."""
    largest = capacity.maximum_volume_bytes
    return format_bytes(max(capacity.available_bytes, 0)), None if largest is None else format_bytes(max(largest, 0))


def _figures(found: CsiStorageCapacity) -> tuple[str | None, str | None]:
    return found.capacity, found.maximum_volume_size


def _held_back(
    found: CsiStorageCapacity, capacity: Capacity, changes: dict[str, Any], state: CapacityState
) -> Wait | None:
    """Hold back, for a minute after the last one, a figure that differs by less than 5 % from what is published."""
    now = state.cluster.monotonic()
    left = state.shown.get(found.key, now) + POLL_SECONDS - now
    pairs = zip(_figures(found), (capacity.available_bytes, capacity.maximum_volume_bytes), strict=True)
    slight = "metadata" not in changes and all(
        (told is None) == (new is None) and abs((old := published_bytes(told)) - (new or 0)) * SLIGHT < (old or 1)
        for told, new in pairs
    )
    return Wait(reason="it has changed by less than 5 % within a minute", seconds=left) if slight and left > 0 else None


def _changes(found: CsiStorageCapacity, wanted: dict[str, Any]) -> dict[str, Any] | None:
    """Return what a patch has to change; None if the object is as it should be."""
    metadata = wanted["metadata"]
    owners = {each.uid for each in found.metadata.owner_references or ()}
    figures = {"capacity": wanted["capacity"], "maximumVolumeSize": wanted.get("maximumVolumeSize")}
    labelled = metadata["labels"].items() <= (found.metadata.labels or {}).items()
    if labelled and owners == {each["uid"] for each in metadata["ownerReferences"]}:
        return figures if _figures(found) != tuple(figures.values()) else None
    changes = {"labels": metadata["labels"], "ownerReferences": metadata["ownerReferences"]}
    return {"metadata": changes, **figures}


def _left_to_other(found: CsiStorageCapacity, cluster: ClusterState) -> Wait | None:
    """Leave the object to another node: two with one label would write it in turns. That of a gone one is removed."""
    nodes = {each.name for each in found.metadata.owner_references or () if each.kind == "Node"}
    if cluster.own_node is None or nodes <= {cluster.node_name}:
        return None
    return Wait(reason=f"node {min(nodes)} publishes the room of this place", seconds=POLL_SECONDS)


def _remove_outdated(found: CsiStorageCapacity, state: CapacityState, reads: LiveReads) -> Action:
    """Remove what we published for a class, a place or a node that is gone."""
    labels = found.metadata.labels or {}
    cluster = state.cluster
    if labels.get(names.CAPACITY_PUBLISHER) != PUBLISHER:
        return Settled()
    of_node = next((each for each in found.metadata.owner_references or () if each.kind == "Node"), None)
    ours = cluster.drivers.get(labels.get(names.CAPACITY_DRIVER, "")) is not None
    unneeded = Delete(kind=CAPACITIES, target=found, why="nobody needs it any more") if ours else Settled()
    if of_node is None or (cluster.node_name and found.storage_class_name not in cluster.classes):
        return unneeded
    node = cluster.nodes.get(of_node.name)
    if node is not None and node.uid == of_node.uid:
        return unneeded if cluster.node_name else Settled()
    if not reads.has(NODES, of_node.name):
        return Read(NODES, of_node.name, why="is the node of this room gone?")
    live = reads.get(NODES, of_node.name)
    if live is not None and live.uid == of_node.uid:
        return Wait(reason=f"node {of_node.name} has just been made", seconds=PAUSE_SECONDS)
    return Delete(kind=CAPACITIES, target=found, why=f"node {of_node.name} is gone")


def measure_operation(run: Run, deps: OperationDeps, state: CapacityState) -> Work:
    driver, item = deps.driver(run), state.items.get(run.key)
    storage_class = state.cluster.classes.get(item.storage_class) if item is not None else None

    async def measure() -> None:
        if item is None or storage_class is None:
            return
        capacity = await measured(deps, driver, storage_class, dict(item.segment))
        if run.key in state.items:
            state.measured[run.key] = (capacity, state.cluster.monotonic())

    return measure


async def measured(deps: OperationDeps, driver: DriverView, storage_class: StorageClass, segment: Segment) -> Capacity:
    parameters = driver.typed_parameters(split_parameters(storage_class)[0])
    request = CapacityRequest(context=deps.context(driver), parameters=parameters, segment=segment)
    return await deps.hooks.call(driver, request)


def own_node_differs(cluster: ClusterState, reads: LiveReads) -> Action | None:
    """Return what comes before a write of our Node's uid, None if it is proven: a process that could not reach the
    server would go on writing that of the former Node, in turns with the one that could.
    """
    if not reads.has(NODES, cluster.node_name):
        return Read(NODES, cluster.node_name, why="is this still our Node?")
    node, live = cluster.own_node, reads.get(NODES, cluster.node_name)
    if node is None or live is None or live.uid != node.uid:
        return Wait(reason=f"node {cluster.node_name} is gone, or was made again", seconds=1.0)
    return None
