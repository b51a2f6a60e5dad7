"""Which driver works on a volume, and the operations on its asset. Pure."""

from __future__ import annotations

from volplane.controller.actions import Run, Wait
from volplane.drivers.owners import SourceOwner
from volplane.drivers.view import DriverView
from volplane.intents.node import volume_elsewhere
from volplane.kube import names
from volplane.kube.objects import Volume
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import asset_key, is_in_tree, volume_source

__all__ = ["NO_PLUGIN", "driver_of", "identify", "run_on_asset", "shared_with"]

NO_PLUGIN = "no volume plugin matched"


def driver_of(volume: Volume, cluster: ClusterState) -> SourceOwner:
    """The driver that works on this volume: the one that made it, else the one that owns its source.

    reason is "" for a volume that is somebody else's on purpose.
    """
    provisioner = volume.annotation(names.PROVISIONED_BY)
    if provisioner:
        if elsewhere := volume_elsewhere(volume, cluster):
            return SourceOwner(reason=elsewhere)
        driver = cluster.drivers.get(provisioner)
        if driver is not None:
            return SourceOwner(driver=driver)
        if cluster.drivers.starting(provisioner):
            return SourceOwner(known=False, starting=provisioner)
        if broken := cluster.drivers.broken(provisioner):
            return SourceOwner(reason=f'driver "{provisioner}" cannot work: {broken}')
        return SourceOwner(reason=NO_PLUGIN if is_in_tree(provisioner) else "")
    owner = cluster.drivers.owner_of(volume_source(volume))
    if owner.driver is not None:
        return owner
    if volume.spec.csi is not None:
        return SourceOwner(known=owner.known, starting=owner.starting)
    return owner if owner.reason or not owner.known else SourceOwner(reason=NO_PLUGIN)


def identify(volume: Volume, owner: SourceOwner) -> Run | Wait:
    """Ask the drivers whose the volume is, once they can be asked. No driver's limits apply to this operation."""
    if owner.starting:
        return Wait(reason=f'driver "{owner.starting}" is starting')
    return Run(verb="identify", key=volume.key, uid=volume.uid, driver="", asset=asset_key(volume))


def run_on_asset(verb: str, volume: Volume, driver: DriverView) -> Run:
    """An operation on the volume's asset."""
    return Run(
        verb=verb,
        key=volume.key,
        uid=volume.uid,
        driver=driver.name,
        asset=asset_key(volume),
        group=f"{verb} {volume.spec.storage_class_name}",
    )


def shared_with(volume: Volume, cluster: ClusterState) -> str:
    """Why nothing of the volume may be destroyed because another one lies on the same storage; "" if none does."""
    other = cluster.overlaps.of(volume)
    if other is None:
        return ""
    return (
        f'its source {other.relation} volume "{other.name}": nothing is destroyed while both exist; set the policy of '
        "one of them to Retain and delete that object"
    )
