"""Which driver and which process work on an asset, and the finalizers that hold the object for it. Pure.

A label selects what the process of one node watches. What it may work on follows from the sealed intent of a claim and
from the node affinity of a volume, which cannot be changed.

Our finalizer is `volplane.dev/reclaim`. Volumes of in-tree plugin names carry that of the reference controller instead,
which stock tools know: `kubernetes.io/pv-controller`.
Source: pkg/controller/volume/persistentvolume/pv_controller.go of Kubernetes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from volplane.assets import Asset
from volplane.controller.actions import Action, Patch, Run, Wait
from volplane.drivers.driver import DriverView
from volplane.intents.requests import segments_of
from volplane.kube import names
from volplane.kube.kinds import VOLUMES
from volplane.kube.objects import Claim, Node, Volume
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import asset_key, is_in_tree, node_hash, volume_name_of, volume_source, volume_with

NO_PLUGIN = "no volume plugin matched"
_RECLAIM = (names.RECLAIM_FINALIZER, names.IN_TREE_FINALIZER)
_SERVED_NODE_GONE = "node {}, which this process serves, does not exist"


# --- drivers ------------------------------------------------------------------------------------------------------


class DriverLookup(NamedTuple):
    """The driver that works on an asset, or why none does."""

    driver: DriverView | None = None
    reason: str = ""
    """What is wrong; "" if nothing is: another controller works on the asset, or the answer is not known yet."""
    next: Action | None = None
    """What comes first where the answer is not known yet: wait for a start, or ask the drivers."""


def driver_named(name: str, cluster: ClusterState) -> DriverLookup:
    """Return the driver of this name; an empty answer, if none of this name is configured here."""
    driver = cluster.drivers.get(name)
    if driver is not None:
        return DriverLookup(driver)
    if cluster.drivers.starting(name):
        return DriverLookup(next=Wait(reason=f'driver "{name}" is starting'))
    return DriverLookup(reason=cluster.drivers.broken(name))


def driver_of(volume: Volume, cluster: ClusterState) -> DriverLookup:
    """Return the driver that works on this volume: the one that made it, else the one that owns its source."""
    if maker := volume.annotation(names.PROVISIONED_BY):
        if elsewhere := volume_elsewhere(volume, cluster):
            return DriverLookup(reason=elsewhere)
        found = driver_named(maker, cluster)
        if found.reason:
            return DriverLookup(reason=f'driver "{maker}" cannot work: {found.reason}')
        if found.driver is not None and held_by_predecessor(volume, found.driver):
            why = f"the former controller of {maker} holds the volume; `volplane adopt --from {maker}` takes it over"
            return DriverLookup(next=Wait(reason=why))
        return DriverLookup(reason=NO_PLUGIN) if found == DriverLookup() and is_in_tree(maker) else found
    owner = cluster.drivers.owner_of(volume_source(volume))
    if owner.driver is not None:
        return DriverLookup(owner.driver)
    if owner.starting:
        return DriverLookup(next=Wait(reason=f'driver "{owner.starting}" is starting'))
    # A CSI volume that no driver here owns is another controller's.
    csi = volume.spec.csi is not None
    if not owner.known:
        # Without a driver's name: no driver's limits apply to this operation.
        identify = Run(verb="identify", key=volume.key, uid=volume.uid, driver="", asset=asset_key(volume))
        return DriverLookup(reason="" if csi else owner.reason, next=identify)
    return DriverLookup(reason="" if csi else owner.reason or NO_PLUGIN)


def run_on_asset(verb: str, volume: Volume, driver: DriverView, *, about: Claim | None = None, group: str = "") -> Run:
    """Return the operation on the asset. about: else it is about the volume. group: see `Run`; "" = the class."""
    item, group = about or volume, f"{verb} {group or volume.spec.storage_class_name}"
    return Run(verb=verb, key=item.key, uid=item.uid, driver=driver.name, asset=asset_key(volume), group=group)


def shared_with(volume: Volume, cluster: ClusterState) -> str:
    """Return why nothing of the volume may be destroyed, if another one lies on the same storage; else ""."""
    other = cluster.overlaps.of(volume)
    if other is None:
        return ""
    advice = "set the policy of one of them to Retain and delete that object"
    return f'its source {other.relation} volume "{other.name}": nothing is destroyed while both exist; {advice}'


def held_by_another(asset: Asset, claim: Claim, cluster: ClusterState) -> str:
    """Return why the asset cannot be the claim's alone: another volume holds it, or a part of it; else ""."""
    mine = volume_with(asset.source, asset.node_affinity, name=volume_name_of(claim))
    other = cluster.overlaps.of(mine, outer=False)
    return f'the source of asset "{asset.handle}" {other.relation} volume "{other.name}"' if other is not None else ""


# --- the process of a node ----------------------------------------------------------------------------------------


def claim_elsewhere(claim: Claim, cluster: ClusterState) -> str:
    """Return why this process may not work on the claim's asset; "" if it may."""
    node = cluster.own_node
    if node is None:
        return _SERVED_NODE_GONE.format(cluster.node_name) if cluster.node_name else ""
    if why := _of_earlier_node(claim, node):
        return why
    intent = cluster.intent_of(claim)
    if intent is not None and intent.segment:
        if intent.segment.items() <= (node.metadata.labels or {}).items():
            return ""
        place = ", ".join(f"{key}={value}" for key, value in sorted(intent.segment.items()))
        return f"its volume is made at {place}, not on node {node.name}"
    selected = claim.annotation(names.SELECTED_NODE)
    if selected == node.name:
        return ""
    return f"node {selected} is selected, not {node.name}" if selected else "no node is selected"


def volume_elsewhere(volume: Volume, cluster: ClusterState) -> str:
    """Return why this process may not work on the volume's asset; "" if it may."""
    node = cluster.own_node
    if node is None:
        return _SERVED_NODE_GONE.format(cluster.node_name) if cluster.node_name else ""
    if not on_node(volume, node):
        return f"its node affinity does not put it on node {node.name}, whatever its label {names.NODE} says"
    return _of_earlier_node(volume, node)


def on_node(volume: Volume, node: Node) -> bool:
    """Return whether the volume's node affinity names places that are all this node."""
    places, labels = segments_of(volume), node.metadata.labels or {}
    return 0 < len(places) == len(volume.node_terms) and all(each.items() <= labels.items() for each in places)


def home_of(volume: Volume, cluster: ClusterState) -> Node | None:
    """Return the Node of a volume on nodes by name and uid, which no kubelet can give itself, unlike its labels."""
    label = (volume.metadata.labels or {}).get(names.NODE)
    found = (node for node in cluster.nodes.values() if node_hash(node.name) == label)
    return next((node for node in found if on_node(volume, node) and not _of_earlier_node(volume, node)), None)


def _of_earlier_node(item: Claim | Volume, node: Node) -> str:
    uid = item.annotation(names.NODE_UID)
    if uid in (None, node.uid):
        return ""
    return f"it is of an earlier node {node.name} (uid {uid}); the present one was made again (uid {node.uid})"


def node_metadata(node: Node | None) -> dict[str, Any]:
    """Return labels and annotations of what belongs to the node; with None, those that remove it from every node."""
    return {
        "labels": {names.NODE: node_hash(node.name) if node is not None else None},
        "annotations": {names.NODE_UID: node.uid if node is not None else None},
    }


def metadata_without_node() -> dict[str, Any]:
    """Return what takes a claim from every node and clears its selected node: another one may be chosen."""
    metadata = node_metadata(None)
    return {**metadata, "annotations": {**metadata["annotations"], names.SELECTED_NODE: None}}


# --- finalizers ---------------------------------------------------------------------------------------------------


def held_for_reclaim(volume: Volume) -> bool:
    """Return whether a finalizer keeps the object until its asset is gone."""
    return any(volume.has_finalizer(name) for name in _RECLAIM)


def held_by_predecessor(volume: Volume, driver: DriverView | None) -> bool:
    """Return whether the controller that had the driver's name before reclaims the volume that this name made.

    Its finalizer says so, which old versions do not write, and nobody on what is retained: what is ours has our
    finalizer or the handle. driver: None = it does not work yet, and may have a predecessor.
    """
    if driver is not None and (driver.info.predecessor is None or driver.name != driver.info.csi_driver_name):
        return False
    ours = volume.has_finalizer(names.RECLAIM_FINALIZER) or volume.annotation(names.HANDLE) is not None
    return volume.has_finalizer(names.EXTERNAL_PROVISIONER_FINALIZER) or not ours


def removes_protection(volume: Volume, cluster: ClusterState) -> bool:
    """Return whether the last write of a binder that deletes and protects removes the volume's protection, too."""
    maker = volume.annotation(names.PROVISIONED_BY) or ""
    deletes = volume.has_finalizer(names.RECLAIM_FINALIZER) and cluster.has_driver(maker)
    return deletes and not cluster.drivers.on_nodes(maker) and volume.status.phase != "Bound"


def without_finalizer(volume: Volume, *, why: str, protection: bool = False) -> Patch:
    """Remove the finalizers that hold the object for its asset, and with `protection` that of bound volumes."""
    unwanted = {*_RECLAIM, names.EXTERNAL_PROVISIONER_FINALIZER, *([names.VOLUME_PROTECTION] if protection else ())}
    body = {"metadata": {"finalizers": volume.finalizers_without(*unwanted)}}
    return Patch(kind=VOLUMES, target=volume, body=body, why=why)


def finalizer_step(volume: Volume, cluster: ClusterState) -> Patch | None:
    """Return the write that makes the finalizers what maker and policy demand; None if they are."""
    maker, policy = volume.annotation(names.PROVISIONED_BY) or "", volume.spec.persistent_volume_reclaim_policy
    deletes, needed = policy == "Delete", ""
    # Under any other policy the asset is kept, so nothing may hold the object for it.
    unwanted = set() if deletes else {names.RECLAIM_FINALIZER}
    if maker in names.MIGRATED_PLUGINS:
        unwanted.add(names.IN_TREE_FINALIZER)
    elif is_in_tree(maker):
        unwanted.add(names.EXTERNAL_PROVISIONER_FINALIZER)
        if deletes:
            needed = names.IN_TREE_FINALIZER
        else:
            unwanted.add(names.IN_TREE_FINALIZER)
    elif (
        deletes and maker and cluster.has_driver(maker) and not held_by_predecessor(volume, cluster.drivers.get(maker))
    ):
        needed = names.RECLAIM_FINALIZER
    held = list(volume.metadata.finalizers or ())
    wanted = [name for name in held if name not in unwanted]
    # The API server refuses new finalizers on an object that is being deleted.
    if needed and needed not in wanted and not volume.terminating:
        wanted.append(needed)
    if wanted == held:
        return None
    body = {"metadata": {"finalizers": wanted or None}}
    return Patch(kind=VOLUMES, target=volume, body=body, why=f"finalizers for policy {policy}")
