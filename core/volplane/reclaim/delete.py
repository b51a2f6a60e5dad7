"""Destroying the asset of a released volume. Pure decisions; the hook call with its live checks is in `operations`.

With our finalizer in place the object is deleted first, under uid and resourceVersion: from then on no binder can use
it, and a policy changed meanwhile makes the API server refuse. Then the hook runs, then the finalizer goes.
"""

from __future__ import annotations

from volplane.binding.decide import volume_phase_step
from volplane.controller.actions import Action, Delete, Patch, Run, Settled, Wait, warning
from volplane.drivers.owners import SourceOwner
from volplane.drivers.view import DriverView
from volplane.intents.finalizers import held_for_reclaim, without_finalizer
from volplane.kube import names
from volplane.kube.kinds import VOLUMES
from volplane.kube.objects import Volume
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import asset_key, is_in_tree, reclaim_finalizer, volume_source
from volplane.state.progress import Deleted, Deleting
from volplane.state.records import INTENT_VERSION, DeleteIntent, read_delete_intent, write_intent

__all__ = ["NO_PLUGIN", "decide_delete", "driver_of", "identify", "run_on_asset"]

NO_PLUGIN = "no volume plugin matched"


def driver_of(volume: Volume, cluster: ClusterState) -> SourceOwner:
    """Who deletes or scrubs this volume: the driver that made it, else the one that owns its source.

    reason is "" for a volume that is somebody else's on purpose.
    """
    provisioner = volume.annotation(names.PROVISIONED_BY)
    if provisioner:
        driver = cluster.drivers.get(provisioner)
        if driver is not None:
            return SourceOwner(driver=driver)
        if broken := cluster.drivers.broken(provisioner):
            return SourceOwner(reason=f'driver "{provisioner}" cannot work: {broken}')
        return SourceOwner(reason=NO_PLUGIN if is_in_tree(provisioner) else "")
    owner = cluster.drivers.owner_of(volume_source(volume))
    if owner.driver is not None:
        return owner
    if volume.spec.csi is not None:
        return SourceOwner(known=owner.known)
    return owner if owner.reason or not owner.known else SourceOwner(reason=NO_PLUGIN)


def identify(volume: Volume) -> Run:
    """Ask the drivers whose the static volume is. No driver's limits apply to this operation."""
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


def decide_delete(volume: Volume, cluster: ClusterState) -> Action:
    """The next action for a volume whose asset is to be destroyed; its claim was seen to be gone in this pass."""
    owner = driver_of(volume, cluster)
    if not owner.known:
        return (_no_deleter(volume, owner.reason) if owner.reason else None) or identify(volume)
    driver = owner.driver
    if driver is None:
        return _without_deleter(volume, owner.reason)
    if not volume.terminating:
        return _delete_object_first(volume, driver)
    progress = cluster.progress.volume(volume.uid)
    if cluster.settings.binder and (why := progress.unreported_failure):
        event = warning(VOLUMES, volume, "VolumeFailedDelete", why)
        if (step := volume_phase_step(volume, "Failed", why, events=(event,))) is not None:
            return step
    match progress.step:
        case Deleting() as pending:
            return _go_on(volume, driver, pending, cluster)
        case Deleted():
            pass
        case _ if nodes := cluster.attached_to(volume):
            return Wait(reason=f"attachments of it exist, to {', '.join(sorted(nodes))}")
        case _:
            return run_on_asset("delete", volume, driver)
    if not held_for_reclaim(volume):
        return Wait(reason="its asset is gone; others hold the object by their finalizers")
    return without_finalizer(volume, why="the asset is gone")


def _delete_object_first(volume: Volume, driver: DriverView) -> Action:
    """The object is deleted before its asset, and held by our finalizer."""
    if held_for_reclaim(volume):
        return Delete(kind=VOLUMES, target=volume, why="released under policy Delete", exact=True)
    finalizers = [*(volume.metadata.finalizers or ()), reclaim_finalizer(driver.name)]
    body = {"metadata": {"finalizers": finalizers}}
    return Patch(kind=VOLUMES, target=volume, body=body, why="the asset goes before the object")


def _go_on(volume: Volume, driver: DriverView, pending: Deleting, cluster: ClusterState) -> Action:
    """A long deletion: the state that the driver returned is kept on the volume, then the hook is called again."""
    known = read_delete_intent(volume.annotation(names.INTENT))
    if pending.state and (known is None or known.delete_state != pending.state):
        kept = write_intent(DeleteIntent(v=INTENT_VERSION, delete_state=dict(pending.state)))
        body = {"metadata": {"annotations": {names.INTENT: kept}}}
        return Patch(kind=VOLUMES, target=volume, body=body, why="keep the driver's state")
    left = pending.due - cluster.monotonic()
    if left > 0:
        return Wait(reason=f'driver "{driver.name}" is deleting the asset', seconds=left)
    return run_on_asset("delete", volume, driver)


def _without_deleter(volume: Volume, why_not: str) -> Action:
    if not why_not and not held_for_reclaim(volume):
        return Wait(reason="an external provisioner deletes it") if not volume.terminating else Settled()
    if not why_not:
        made_by = volume.annotation(names.PROVISIONED_BY) or (volume.spec.csi or {}).get("driver", "")
        why_not = (
            f'driver "{made_by}" is not configured here; configure it, or remove {names.RECLAIM_FINALIZER} to '
            "keep the asset"
        )
    return _no_deleter(volume, why_not) or Wait(reason=_no_deleter_message(volume, why_not))


def _no_deleter(volume: Volume, why: str) -> Patch | None:
    """Report on the volume that no driver can delete its asset; None if the volume says so already."""
    message = _no_deleter_message(volume, why)
    event = warning(VOLUMES, volume, "VolumeFailedDelete", message)
    return volume_phase_step(volume, "Failed", message, events=(event,))


def _no_deleter_message(volume: Volume, why: str) -> str:
    return f'error getting deleter volume plugin for volume "{volume.name}": {why}'
