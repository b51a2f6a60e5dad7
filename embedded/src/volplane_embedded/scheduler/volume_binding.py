"""Matches the claims of a pod with volumes on a node, and makes the writes that start their binding. Pure.

Source: pkg/scheduler/framework/plugins/volumebinding/binder.go (GetPodVolumeClaims, FindPodVolumes, BindPodVolumes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from volplane.controller.actions import Patch
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, CsiDriver, CsiStorageCapacity, Node, StorageClass, Volume
from volplane.kube.quantity import parse
from volplane.state.matching import (
    capacity_of,
    class_of_claim,
    demand_of,
    place_of,
    reference_is,
    request_of,
    selects,
)
from volplane_embedded.node_affinity import in_topology, volume_allows
from volplane_embedded.objects import Pod, claim_names

NO_PROVISIONER = "kubernetes.io/no-provisioner"
_NONE_FIT = "node(s) didn't find available persistent volumes to bind"
_NO_ROOM = "node(s) did not have enough free storage"
_GONE = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
_ELSEWHERE = "node(s) didn't match PersistentVolume's node affinity"


@dataclass(frozen=True, slots=True)
class StorageState:
    """What decisions read of claims, volumes and classes.

    candidates: volumes with the class and mode of a claim. reserved: volumes whose claimRef names a claim, by its
    key. nodes: all nodes by name. csi_drivers: by the name of a class's provisioner. room: what is published for the
    class of this name.
    """

    claims: Callable[[str], Claim | None]
    volumes: Callable[[str], Volume | None]
    classes: Callable[[str], StorageClass | None]
    candidates: Callable[[Claim], Iterable[Volume]]
    reserved: Callable[[str], Iterable[Volume]]
    nodes: Mapping[str, Node]
    csi_drivers: Callable[[str], CsiDriver | None] = lambda _name: None
    room: Callable[[str], Iterable[CsiStorageCapacity]] = lambda _class: ()


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """Why the pod cannot run, on any node or on one node."""

    reason: str


@dataclass(frozen=True, slots=True)
class PodVolumeClaims:
    """The claims of a pod: bound; unbound, to be bound to the chosen node; waiting for a binder or provisioner."""

    bound: list[Claim]
    unbound: list[Claim]
    waiting: list[Claim]


@dataclass(frozen=True, slots=True)
class ClaimBinding:
    """How an unbound claim gets a volume on a node: an existing one, or None = it is provisioned."""

    claim: Claim
    volume: Volume | None


def pod_volume_claims(pod: Pod, storage: StorageState) -> PodVolumeClaims | Unschedulable:
    """Sort the pod's claims; Unschedulable for the first claim with which it cannot run anywhere."""
    bound: list[Claim] = []
    unbound: list[Claim] = []
    waiting: list[Claim] = []
    ephemeral = {f"{pod.name}-{volume.name}" for volume in pod.spec.volumes or () if volume.ephemeral is not None}
    for name in claim_names(pod):
        claim = storage.claims(f"{pod.namespace}/{name}")
        if (refusal := _refused(pod, name, claim, ephemeral=name in ephemeral)) is not None:
            return refusal
        if claim is None:
            continue
        if is_bound(claim):
            bound.append(claim)
        elif not claim.spec.volume_name and _is_delayed(claim, storage):
            unbound.append(claim)
        else:
            waiting.append(claim)
    return PodVolumeClaims(bound, unbound, waiting)


def is_bound(claim: Claim) -> bool:
    """Tell whether binding is complete: volume name, annotation and phase."""
    return (
        bool(claim.spec.volume_name)
        and claim.annotation(names.BIND_COMPLETED) is not None
        and claim.status.phase == "Bound"
    )


def _refused(pod: Pod, name: str, claim: Claim | None, *, ephemeral: bool) -> Unschedulable | None:
    if claim is None:
        if ephemeral:
            return Unschedulable(
                f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
            )
        return Unschedulable(f'persistentvolumeclaim "{name}" not found')
    if claim.status.phase == "Lost":
        return Unschedulable(
            f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.spec.volume_name}"'
        )
    if claim.terminating:
        return Unschedulable(f'persistentvolumeclaim "{name}" is being deleted')
    if ephemeral and all(owner.uid != pod.uid for owner in claim.metadata.owner_references or ()):
        return Unschedulable(f'persistentvolumeclaim "{name}" was not created for the pod')
    return None


def _is_delayed(claim: Claim, storage: StorageState) -> bool:
    found = storage.classes(class_of_claim(claim) or "")
    return found is not None and found.volume_binding_mode == "WaitForFirstConsumer"


def conflict(bound: Iterable[Claim], node: Node, storage: StorageState) -> str:
    """Explain why the volumes of bound claims cannot be used on this node, or ""."""
    for claim in bound:
        volume = storage.volumes(claim.spec.volume_name)
        if volume is None or volume.terminating:
            return _GONE
        if not volume_allows(volume, node):
            return _ELSEWHERE
    return ""


def match_claims(unbound: Iterable[Claim], node: Node, storage: StorageState) -> list[ClaimBinding] | Unschedulable:
    """Describe how each claim would get its volume on this node. The smallest claim chooses first."""
    matches: list[ClaimBinding] = []
    for claim in sorted(unbound, key=lambda one: (request_of(one), one.name)):
        match = _match(claim, node, storage, {found.volume.name for found in matches if found.volume is not None})
        if isinstance(match, Unschedulable):
            return match
        matches.append(match)
    return matches


def _match(claim: Claim, node: Node, storage: StorageState, taken: set[str]) -> ClaimBinding | Unschedulable:
    chosen = claim.annotation(names.SELECTED_NODE)
    if chosen in storage.nodes:
        # Its volume may be made already, and the room that is published be what it has left.
        return ClaimBinding(claim, None) if chosen == node.name else Unschedulable(_NONE_FIT)
    for volume in storage.reserved(claim.key):
        if reference_is(volume.spec.claim_ref, claim) and not volume.terminating:
            return ClaimBinding(claim, volume) if volume_allows(volume, node) else Unschedulable(_NONE_FIT)
    if (best := _best_volume(claim, node, storage, taken)) is not None:
        return ClaimBinding(claim, best)
    if not _can_provision(claim, node, storage):
        return Unschedulable(_NONE_FIT)
    return ClaimBinding(claim, None) if _has_room(claim, node, storage) else Unschedulable(_NO_ROOM)


def _best_volume(claim: Claim, node: Node, storage: StorageState, taken: set[str]) -> Volume | None:
    """Return the smallest free volume that the claim accepts and that can be used on the node."""
    demand = demand_of(claim)
    fitting = (
        volume
        for volume in storage.candidates(claim)
        if volume.name not in taken
        and _is_free(volume)
        and place_of(volume) == demand.place
        and capacity_of(volume) >= demand.request
        and demand.accepts(volume)
        and volume_allows(volume, node)
    )
    return min(
        fitting, key=lambda one: (capacity_of(one), one.metadata.creation_timestamp or "", one.name), default=None
    )


def _is_free(volume: Volume) -> bool:
    return (
        volume.spec.claim_ref is None
        and volume.status.phase == "Available"
        and not volume.terminating
        and volume.annotation(names.INTENT) is None
    )


def _can_provision(claim: Claim, node: Node, storage: StorageState) -> bool:
    found = storage.classes(class_of_claim(claim) or "")
    if found is None or found.provisioner in {"", NO_PROVISIONER}:
        return False
    return claim.spec.selector is None and in_topology(found.allowed_topologies or (), node)


def _has_room(claim: Claim, node: Node, storage: StorageState) -> bool:
    """Tell whether room for the claim is published for the node, if its driver says that it publishes any at all.

    Source: hasEnoughCapacity, capacitySufficient and nodeHasAccess of binder.go.
    """
    found, size = storage.classes(class_of_claim(claim) or ""), request_of(claim)
    driver = storage.csi_drivers(found.provisioner) if found is not None else None
    if found is None or driver is None or not driver.spec.storage_capacity or not size:
        return True
    labels = node.metadata.labels or {}
    return any(
        each.node_topology is not None and _largest(each) >= size and selects(each.node_topology, labels)
        for each in storage.room(found.name)
    )


def _largest(room: CsiStorageCapacity) -> int:
    """Return the largest volume that can be made, in nanos of a byte; what is no quantity is none."""
    limit = room.maximum_volume_size if room.maximum_volume_size is not None else room.capacity
    try:
        return parse(limit).nanos if limit is not None else -1
    except ValueError:
        return -1


def bind_patch(match: ClaimBinding, node: Node) -> Patch | None:
    """Return the write with which the binder or provisioner can go on, None if it was written before."""
    if match.volume is None:
        return _select_node(match.claim, node)
    return _reserve(match.volume, match.claim)


def _select_node(claim: Claim, node: Node) -> Patch | None:
    if claim.annotation(names.SELECTED_NODE) == node.name:
        return None
    return Patch(
        kind=CLAIMS,
        target=claim,
        body={"metadata": {"annotations": {names.SELECTED_NODE: node.name}}},
        why=f"claim {claim.key} shall be provisioned for node {node.name}",
    )


def _reserve(volume: Volume, claim: Claim) -> Patch | None:
    reference = volume.spec.claim_ref
    if reference is not None and reference.uid == claim.uid:
        return None
    body: dict[str, object] = {
        "spec": {
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim.namespace,
                "name": claim.name,
                "uid": claim.uid,
                "resourceVersion": claim.metadata.resource_version,
            }
        }
    }
    if reference is None:
        body["metadata"] = {"annotations": {names.BOUND_BY_CONTROLLER: "yes"}}
    return Patch(kind=VOLUMES, target=volume, body=body, why=f"volume {volume.name} fits claim {claim.key} on its node")
