"""Which finalizers stand on a volume so that its asset goes before the object does. Pure.

Ours is `volplane.dev/reclaim`. Volumes of in-tree plugin names carry that of the reference controller instead, which
stock tools know: `kubernetes.io/pv-controller`.

Source: pkg/controller/volume/persistentvolume/pv_controller.go of Kubernetes.
"""

from __future__ import annotations

from volplane.controller.actions import Patch
from volplane.kube import names
from volplane.kube.kinds import VOLUMES
from volplane.kube.names import csi_driver_of
from volplane.kube.objects import Volume
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import is_in_tree

__all__ = ["finalizer_step", "held_for_reclaim", "removes_protection", "without_finalizer"]

_RECLAIM = (names.RECLAIM_FINALIZER, names.IN_TREE_FINALIZER)


def held_for_reclaim(volume: Volume) -> bool:
    """Whether the object stays until its asset is gone."""
    return any(volume.has_finalizer(name) for name in _RECLAIM)


def removes_protection(volume: Volume, cluster: ClusterState) -> bool:
    """Whether the last write of a binder that deletes and protects removes the protection of the volume too."""
    maker = volume.annotation(names.PROVISIONED_BY) or ""
    deletes = volume.has_finalizer(names.RECLAIM_FINALIZER) and cluster.has_driver(maker)
    return deletes and not cluster.drivers.on_nodes(maker) and volume.status.phase != "Bound"


def without_finalizer(volume: Volume, *, why: str, protection: bool = False) -> Patch:
    """Let the object go: its asset is gone, or is to be kept. protection: that of bound volumes goes with it."""
    unwanted = (*_RECLAIM, names.VOLUME_PROTECTION) if protection else _RECLAIM
    kept = [name for name in volume.metadata.finalizers or () if name not in unwanted]
    return Patch(kind=VOLUMES, target=volume, body={"metadata": {"finalizers": kept or None}}, why=why)


def finalizer_step(volume: Volume, *, ours: bool) -> Patch | None:
    """Make the finalizers what maker and policy demand; None if they are.

    ours: a driver of this process made the volume. Under any policy but Delete the asset is to be kept, so nothing may
    hold the object for it.
    """
    held = list(volume.metadata.finalizers or ())
    unwanted, needed = _demand(volume, ours=ours)
    wanted = [name for name in held if name not in unwanted]
    # The API server refuses new finalizers on an object that is being deleted.
    if needed and needed not in wanted and not volume.terminating:
        wanted.append(needed)
    if wanted == held:
        return None
    policy = volume.spec.persistent_volume_reclaim_policy
    body = {"metadata": {"finalizers": wanted or None}}
    return Patch(kind=VOLUMES, target=volume, body=body, why=f"finalizers for policy {policy}")


def _demand(volume: Volume, *, ours: bool) -> tuple[set[str], str]:
    """(finalizers that must not be there, the one that must, or "")."""
    maker = volume.annotation(names.PROVISIONED_BY) or ""
    deletes = volume.spec.persistent_volume_reclaim_policy == "Delete"
    unwanted = set() if deletes else {names.RECLAIM_FINALIZER}
    if csi_driver_of(maker) is not None:
        return unwanted | {names.IN_TREE_FINALIZER}, ""
    if is_in_tree(maker):
        if deletes:
            return unwanted | {names.EXTERNAL_PROVISIONER_FINALIZER}, names.IN_TREE_FINALIZER
        return unwanted | {names.IN_TREE_FINALIZER, names.EXTERNAL_PROVISIONER_FINALIZER}, ""
    return unwanted, names.RECLAIM_FINALIZER if deletes and ours and maker else ""
