"""What the assigner decides upon: nodes that have their name as their place, a class, and a clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from unit.binding.objects import claim, storage_class, volume
from unit.deciding import DRIVER, StateOfTest, disk, put, state_with
from volplane.controller.actions import LiveReads
from volplane.kube import names
from volplane.kube.objects import Claim, CsiStorageCapacity, KubeObject, Node, StorageClass, Volume
from volplane.placement.assign import decide_assignment
from volplane.placement.nodes import NodeBook
from volplane.placement.state import PlacementState
from volplane.state.naming import node_hash
from volplane.state.records import INTENT_VERSION, ClaimIntent

ZONE: Final = "zone"
LOCAL: Final = disk(topology_keys=(ZONE,))
GIB: Final = 1 << 30


def node(name: str, *, ready: str | None = "True", version: int = 1, uid: str = "", **spec: Any) -> Node:
    """A node whose place is its name."""
    conditions = [{"type": "Ready", "status": ready}] if ready is not None else []
    labels = spec.pop("labels", {ZONE: name})
    metadata = {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version), "labels": labels}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"conditions": conditions}}, Node)


def local(**fields: Any) -> StorageClass:
    """The class `fast`, of the driver on nodes."""
    return storage_class("fast", **{"volumeBindingMode": "Immediate", **fields})


def asking(*, version: int = 1, label: str | None = None, selected: str | None = None, **fields: Any) -> Claim:
    """Claim `c` of class fast, for which its driver was asked. label: the node whose label it has."""
    annotations = {names.STORAGE_PROVISIONER: DRIVER, **fields.pop("annotations", {})}
    if selected is not None:
        annotations[names.SELECTED_NODE] = selected
    more: dict[str, Any] = {"labels": {names.NODE: node_hash(label)}} if label is not None else {}
    fields = {"storageClassName": "fast", **more, **fields}
    return claim("c", annotations=annotations, resourceVersion=str(version), **fields)


def belonging(name: str, **fields: Any) -> Claim:
    """The same, written for this node, which is selected."""
    annotations = {names.NODE_UID: f"uid-{name}", **fields.pop("annotations", {})}
    return asking(label=name, selected=name, annotations=annotations, **fields)


def placed(name: str, at: str, **fields: Any) -> Volume:
    """A volume of the driver, at this place."""
    need = {"key": ZONE, "operator": "In", "values": [at]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [need]}]}}
    annotations = {names.PROVISIONED_BY: DRIVER, **fields.pop("annotations", {})}
    return volume(name, nodeAffinity=affinity, annotations=annotations, **fields)


def published(name: str, capacity: str, at: str, *, version: int = 1, **fields: Any) -> CsiStorageCapacity:
    """Room for class fast, published by the node of this name and place."""
    metadata = {
        "name": name,
        "namespace": "volplane-system",
        "uid": f"uid-{name}",
        "resourceVersion": str(version),
        "labels": {names.CAPACITY_DRIVER: DRIVER},
        "ownerReferences": [{"kind": "Node", "name": at, "uid": f"uid-{at}"}],
    }
    body = {"storageClassName": "fast", "nodeTopology": {"matchLabels": {ZONE: at}}, "capacity": capacity}
    return msgspec.convert({"metadata": metadata, **body, **fields}, CsiStorageCapacity)


@dataclass
class Keys:
    """A queue that keeps what is put into it."""

    keys: list[str] = field(default_factory=list)
    afters: list[float] = field(default_factory=list)

    def enqueue(self, key: str, after: float = 0.0) -> None:
        self.keys.append(key)
        self.afters.append(after)

    def taken(self) -> list[str]:
        """Return the keys since the last call, in order."""
        found, self.keys, self.afters = self.keys, [], []
        return found


class World:
    """A cluster whose changes the assigner follows; the clock shows 1000 at first."""

    def __init__(self, *objects: KubeObject, external_choice: bool = False, **more: Any) -> None:
        self.now = 1000.0
        self.cluster: StateOfTest = state_with(**{"distributed": [LOCAL], **more})
        self.cluster.monotonic = lambda: self.now
        self.claims, self.volumes, self.nodes = Keys(), Keys(), Keys()
        self.state = PlacementState(
            cluster=self.cluster,
            drivers=[DRIVER],
            nodes=NodeBook(self.cluster.nodes, {ZONE}, lambda: self.now),
            claims=self.claims,
            volumes=self.volumes,
            node_names=self.nodes,
            external_choice=external_choice,
        )
        self.cluster.follow(self.state)
        self.put(*objects)

    def put(self, *objects: KubeObject) -> None:
        for item in objects:
            if isinstance(item, CsiStorageCapacity):
                self.cluster.capacities.observe(item)
            else:
                put(self.cluster, item)

    def decided(self, reads: LiveReads | None = None, key: str = "default/c") -> Any:
        """What is decided about claim `c`."""
        return decide_assignment(key, self.state, reads or LiveReads())

    def promised(self, name: str) -> tuple[int, int]:
        """How many volumes are, or will be, on the node, and how many bytes are promised there."""
        place = (DRIVER, node_hash(name))
        return self.state.usage.counts[place], self.state.usage.reserved[place]

    def sealed(self, intent: ClaimIntent | None = None, **fields: Any) -> dict[str, str]:
        """Annotations of claim `c` with this intent."""
        intent = intent or ClaimIntent(v=INTENT_VERSION, driver=DRIVER, **fields)
        return {names.INTENT: self.cluster.sealer.seal("uid-c", intent)}

    def intent(self, text: str | None) -> ClaimIntent | None:
        return self.cluster.sealer.open("uid-c", text)


def for_node(name: str, *, select: bool = False) -> dict[str, Any]:
    """Metadata of what is written for a node."""
    annotations = {names.NODE_UID: f"uid-{name}"} | ({names.SELECTED_NODE: name} if select else {})
    return {"labels": {names.NODE: node_hash(name)}, "annotations": annotations}


NOWHERE: Final = {"labels": {names.NODE: None}, "annotations": {names.NODE_UID: None, names.SELECTED_NODE: None}}
"""Metadata of a claim that is given back."""
