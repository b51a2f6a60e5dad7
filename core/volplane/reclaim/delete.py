"""Destroying the asset of a released volume. Pure decisions; the hook call with its live checks is in `operation`.

With our finalizer in place the object is deleted first, under uid and resourceVersion: from then on no binder can use
it, and a policy changed meanwhile makes the API server refuse. Then the hook runs, then the finalizer goes.
"""

from __future__ import annotations

from typing import NamedTuple

from volplane._delays import LIVE_STATE_FORBIDS
from volplane.binding.decide import volume_phase_step
from volplane.controller.actions import Action, Delete, LiveReads, Patch, Read, Run, Settled, Wait, warning
from volplane.controller.config import ScrubberSettings
from volplane.drivers.view import DriverView
from volplane.intents.finalizers import held_for_reclaim, removes_protection, without_finalizer
from volplane.intents.owner import driver_of, identify, run_on_asset, shared_with
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Volume
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import reclaim_finalizer
from volplane.state.progress import Deleted, Deleting
from volplane.state.records import INTENT_VERSION, DeleteIntent, read_delete_intent, write_intent

__all__ = ["Terms", "decide_delete", "once_proven"]


class Terms(NamedTuple):
    """What a role adds to the reclaim of a volume. The defaults are those beside another binder."""

    scrub: ScrubberSettings = ScrubberSettings()
    writes_phase: bool = False
    """Whether a failure is shown by the phase of the volume, which is the binder's to write; else by events alone."""
    protects: bool = False
    """Whether the in-use protection is this process' too."""


def decide_delete(volume: Volume, cluster: ClusterState, terms: Terms) -> Action:
    """The next action for a volume whose asset is to be destroyed, if its claim is gone (see `once_proven`)."""
    owner = driver_of(volume, cluster)
    if not owner.known:
        return (_no_deleter(volume, owner.reason) if owner.reason else None) or identify(volume, owner)
    driver = owner.driver
    if driver is None:
        return _without_deleter(volume, owner.reason)
    progress = cluster.progress.volumes.get(volume.uid)
    if not isinstance(progress.step, Deleting | Deleted) and (why := shared_with(volume, cluster)):
        return _kept(volume, why, terms)
    if not volume.terminating:
        return _delete_object_first(volume, driver)
    if terms.writes_phase and (why := progress.unreported_failure):
        event = warning(VOLUMES, volume, "VolumeFailedDelete", why)
        if (step := volume_phase_step(volume, "Failed", why, events=(event,))) is not None:
            return step
    match progress.step:
        case Deleting() as pending:
            return _go_on(volume, driver, pending, cluster)
        case Deleted():
            pass
        case _:
            return _begin(volume, driver, cluster)
    return _let_go(volume, cluster, terms)


def once_proven(volume: Volume, action: Action, cluster: ClusterState, reads: LiveReads) -> Action:
    """An action that was decided because the volume's claim is gone; before it, where it matters, a live read of that.

    That a cache has it not proves nothing; that the server has told it gone for good does, as a uid is never given
    again. An operation reads volume and claim live itself before it calls its hook, waiting harms nobody, and once the
    asset is gone the claim has nothing left to lose.
    """
    match action:
        case Run() | Settled() | Wait(events=()):
            return action
    reference = volume.spec.claim_ref
    if reference is None or not reference.uid or isinstance(cluster.progress.volumes.get(volume.uid).step, Deleted):
        return action
    key = f"{reference.namespace}/{reference.name}"
    if not reads.has(CLAIMS, key):
        if cluster.claims.gone(reference.uid):
            return action
        return Read(CLAIMS, key, why="is the claim really gone?")
    live, cached = reads.get(CLAIMS, key), cluster.claims.get(key)
    if live is not None and live.uid == reference.uid and (cached is None or cached.uid != reference.uid):
        # The server was restored from a backup: what it has is older than what the cache holds.
        return Wait(reason=f"claim {key} is there, unlike in the cache", seconds=LIVE_STATE_FORBIDS.delay())
    return action


def _let_go(volume: Volume, cluster: ClusterState, terms: Terms) -> Action:
    """The object may go, now that its asset is gone."""
    if not held_for_reclaim(volume):
        return Wait(reason="its asset is gone; others hold the object by their finalizers")
    if volume.has_finalizer(names.VOLUME_PROTECTION) and not terms.protects:
        # Both finalizers are due at the same time: who writes second would be refused.
        return Wait(reason="its asset is gone; another process takes its protection away")
    protection = terms.writes_phase and terms.protects and removes_protection(volume, cluster)
    return without_finalizer(volume, why="the asset is gone", protection=protection)


def _begin(volume: Volume, driver: DriverView, cluster: ClusterState) -> Action:
    """Call the hook once nothing is attached any more."""
    if nodes := cluster.attached_to(volume):
        return Wait(reason=f"attachments of it exist, to {', '.join(nodes)}")
    return run_on_asset("delete", volume, driver)


def _kept(volume: Volume, why: str, terms: Terms) -> Action:
    """Say why the asset stays. Where another is the binder, phases are its own."""
    event = warning(VOLUMES, volume, "VolumeFailedDelete", why)
    if not terms.writes_phase:
        return Wait(reason=why, events=(event,))
    return volume_phase_step(volume, "Failed", why, events=(event,)) or Wait(reason=why)


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
    recorded = known.delete_state if known is not None else None
    resume = pending.resume(recorded, cluster.monotonic())
    if resume.write:
        kept = write_intent(DeleteIntent(v=INTENT_VERSION, delete_state=dict(pending.state)))
        body = {"metadata": {"annotations": {names.INTENT: kept}}}
        return Patch(kind=VOLUMES, target=volume, body=body, why="keep the driver's state")
    if resume.seconds:
        return Wait(reason=f'driver "{driver.name}" is deleting the asset', seconds=resume.seconds)
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
