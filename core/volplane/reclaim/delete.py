"""Destroying the asset of a released volume. Pure decisions; the hook call with its live checks is in `operation`.

With our finalizer in place the object is deleted first, under uid and resourceVersion: from then on no binder can use
it, and a policy changed meanwhile makes the API server refuse. Then the hook runs, then the finalizer is removed.
"""

from __future__ import annotations

from typing import NamedTuple

from volplane._delays import LIVE_STATE_FORBIDS
from volplane.binding.decide import volume_phase_step
from volplane.controller.actions import Action, Delete, LiveReads, Patch, Read, Run, Settled, Wait, warning
from volplane.controller.config import ScrubberSettings
from volplane.drivers.driver import DriverView
from volplane.intents.ownership import (
    driver_of,
    held_for_reclaim,
    removes_protection,
    run_on_asset,
    shared_with,
    without_finalizer,
)
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Volume
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import reclaim_finalizer
from volplane.state.progress import Deleted, Deleting
from volplane.state.records import INTENT_VERSION, DeleteIntent, read_intent, write_intent

__all__ = ["Terms", "decide_delete", "recorded_state", "require_claim_gone"]


class Terms(NamedTuple):
    """What a role adds to the reclaim of a volume. The defaults are those beside another binder."""

    scrub: ScrubberSettings = ScrubberSettings()
    writes_phase: bool = False
    """Whether a failure is shown by the phase of the volume, which is the binder's to write; else by events alone."""
    protects: bool = False
    """Whether the in-use protection is this process' too."""


def decide_delete(volume: Volume, cluster: ClusterState, terms: Terms) -> Action:
    """Return the next action for a volume whose asset is to be destroyed, if `require_claim_gone` allows it."""
    lookup = driver_of(volume, cluster)
    if lookup.next is not None:
        return (_no_deleter(volume, lookup.reason) if lookup.reason else None) or lookup.next
    driver = lookup.driver
    if driver is None:
        return _without_deleter(volume, lookup.reason)
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
            return _resume(volume, driver, pending, cluster)
        case Deleted():
            return _remove_finalizer(volume, cluster, terms)
    if nodes := cluster.attached_to(volume):
        return Wait(reason=f"attachments of it exist, to {', '.join(nodes)}")
    return run_on_asset("delete", volume, driver)


def require_claim_gone(volume: Volume, action: Action, cluster: ClusterState, reads: LiveReads) -> Action:
    """Return the action, which was decided because the volume's claim is gone, or the live read that must prove that.

    A claim that is absent from a cache may exist. A DELETED of the server proves its end, as uids are never reused.
    """
    match action:
        case Run() | Settled() | Wait(events=()):
            # An operation reads volume and claim live before it calls its hook.
            return action
    reference = volume.spec.claim_ref
    if reference is None or not reference.uid or isinstance(cluster.progress.volumes.get(volume.uid).step, Deleted):
        # Once the asset is gone the claim has nothing to lose.
        return action
    key = reference.key
    if not reads.has(CLAIMS, key):
        if cluster.claims.gone(reference.uid):
            return action
        return Read(CLAIMS, key, why="is the claim really gone?")
    live, cached = reads.get(CLAIMS, key), cluster.claims.get(key)
    if live is not None and live.uid == reference.uid and (cached is None or cached.uid != reference.uid):
        # The server was restored from a backup: what it has is older than what the cache holds.
        return Wait(reason=f"claim {key} is there, unlike in the cache", seconds=LIVE_STATE_FORBIDS.delay())
    return action


def recorded_state(volume: Volume) -> dict[str, object] | None:
    """Return the state that a long `delete` of the volume returned; None if none is recorded."""
    known = read_intent(DeleteIntent, volume.annotation(names.INTENT))
    return known.delete_state if known is not None else None


def _remove_finalizer(volume: Volume, cluster: ClusterState, terms: Terms) -> Action:
    """Let the object be deleted, now that its asset is gone."""
    if not held_for_reclaim(volume):
        return Wait(reason="its asset is gone; others hold the object by their finalizers")
    if volume.has_finalizer(names.VOLUME_PROTECTION) and not terms.protects:
        # Both finalizers are due at the same time: the second write would be refused.
        return Wait(reason="its asset is gone; another process takes its protection away")
    protection = terms.writes_phase and terms.protects and removes_protection(volume, cluster)
    return without_finalizer(volume, why="the asset is gone", protection=protection)


def _kept(volume: Volume, why: str, terms: Terms) -> Action:
    """Say why the asset stays. Beside another binder that is an event alone: it writes the phases."""
    event = warning(VOLUMES, volume, "VolumeFailedDelete", why)
    if not terms.writes_phase:
        return Wait(reason=why, events=(event,))
    return volume_phase_step(volume, "Failed", why, events=(event,)) or Wait(reason=why)


def _delete_object_first(volume: Volume, driver: DriverView) -> Action:
    """Put our finalizer on the object, then delete it, before anything happens to its asset."""
    if held_for_reclaim(volume):
        return Delete(kind=VOLUMES, target=volume, why="released under policy Delete", exact=True)
    finalizers = [*(volume.metadata.finalizers or ()), reclaim_finalizer(driver.name)]
    body = {"metadata": {"finalizers": finalizers}}
    return Patch(kind=VOLUMES, target=volume, body=body, why="the asset goes before the object")


def _resume(volume: Volume, driver: DriverView, pending: Deleting, cluster: ClusterState) -> Action:
    """Go on with a long deletion: keep the driver's state on the volume, wait, then call the hook again."""
    resume = pending.resume(recorded_state(volume), cluster.monotonic())
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
