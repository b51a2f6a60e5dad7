"""Destroying the asset of a released volume: the decisions, which are pure, and the operation `delete`.

With our finalizer in place the object is deleted first, under uid and resourceVersion: from then on no binder can use
it, and a policy changed meanwhile makes the API server refuse. Then the hook runs, then the finalizer is removed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from volplane._delays import LIVE_STATE_FORBIDS
from volplane.assets import InProgress
from volplane.binding.decide import volume_phase_step
from volplane.controller.actions import Action, Delete, EventRecord, LiveReads, Patch, Read, Run, Settled, Wait, warning
from volplane.controller.config import ScrubberSettings
from volplane.controller.controller import Work
from volplane.drivers.driver import DriverView
from volplane.errors import BackendError, VolumeInUse
from volplane.intents import ownership
from volplane.intents.operation import OperationDeps
from volplane.intents.record import write_record
from volplane.intents.requests import volume_identity
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Volume
from volplane.reclaim.scrub_claim import held_for_scrub
from volplane.requests import DeleteRequest
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import reclaim_finalizer
from volplane.state.progress import Deleted, Deleting, VolumeProgress
from volplane.state.records import INTENT_VERSION, DeleteIntent, read_intent

DRIVER_GRACE: Final = 60.0
"""Seconds that an object beside another binder waits for a driver that another process may have."""


class Terms(NamedTuple):
    """What a role adds to the reclaim of a volume. The defaults are those beside another binder."""

    scrub: ScrubberSettings = ScrubberSettings()
    writes_phase: bool = False
    """Whether a failure is shown by the phase of the volume, which is the binder's to write; else by events alone."""
    protects: bool = False
    """Whether the in-use protection is this process' too."""


def decide_delete(volume: Volume, cluster: ClusterState, terms: Terms) -> Action:
    """Return the next action for a volume whose asset is to be destroyed, if `require_claim_gone` allows it."""
    lookup = ownership.driver_of(volume, cluster)
    driver = lookup.driver
    # The object stays as long as its driver cannot delete the asset: with it the asset would be forgotten.
    if driver is None:
        return _without_deleter(volume, lookup, cluster, terms)
    progress = cluster.progress.volumes.get(volume.uid)
    # The data of the other volume would go with it. Once the hook has begun it is too late to stop.
    if not isinstance(progress.step, Deleting | Deleted) and (why := ownership.shared_with(volume, cluster)):
        return failed(volume, "VolumeFailedDelete", why, terms)
    # Our finalizer is put on first: without it the object would go, and its asset stay unseen.
    if not volume.terminating and ownership.held_for_reclaim(volume):
        return Delete(kind=VOLUMES, target=volume, why="released under policy Delete", exact=True)
    if not volume.terminating:
        body = {"metadata": {"finalizers": volume.finalizers_with(reclaim_finalizer(driver.name))}}
        return Patch(kind=VOLUMES, target=volume, body=body, why="the asset goes before the object")
    # A failure is shown before the next try.
    why = progress.unreported_failure
    if why and isinstance(step := failed(volume, "VolumeFailedDelete", why, terms), Patch):
        return step
    match progress.step:
        case Deleting() as pending:
            return _resume(volume, driver, pending, cluster)
        case Deleted():
            return _remove_finalizer(volume, cluster, terms)
    # A node may still write to it.
    if nodes := cluster.attached_to(volume):
        return Wait(reason=f"attachments of it exist, to {', '.join(nodes)}")
    return ownership.run_on_asset("delete", volume, driver)


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


def failed(volume: Volume, reason: str, message: str, terms: Terms) -> Patch | Wait:
    """Show by the phase, with an event, why nothing is destroyed; wait once the volume shows that.

    Where another binder writes the phases, the event goes with the wait. So it does while a claim of the scrub is bound
    to the volume, whose phase is Bound.
    """
    event = warning(VOLUMES, volume, reason, message)
    if terms.writes_phase and not held_for_scrub(volume):
        return volume_phase_step(volume, "Failed", message, events=(event,)) or Wait(reason=message)
    return Wait(reason=message, events=(event,))


def _recorded_state(volume: Volume) -> dict[str, object] | None:
    known = read_intent(DeleteIntent, volume.annotation(names.INTENT))
    return known.delete_state if known is not None else None


def _remove_finalizer(volume: Volume, cluster: ClusterState, terms: Terms) -> Action:
    if not ownership.held_for_reclaim(volume):
        return Wait(reason="its asset is gone; others hold the object by their finalizers")
    if volume.has_finalizer(names.VOLUME_PROTECTION) and not terms.protects:
        # Both finalizers are due at the same time: the second write would be refused.
        return Wait(reason="its asset is gone; another process takes its protection away")
    protection = terms.writes_phase and terms.protects and ownership.removes_protection(volume, cluster)
    return ownership.without_finalizer(volume, why="the asset is gone", protection=protection)


def _resume(volume: Volume, driver: DriverView, pending: Deleting, cluster: ClusterState) -> Action:
    """Go on with a long deletion: keep the driver's state on the volume, wait, then call the hook again."""
    # On the volume, another process finds it: it goes on with the same job.
    if pending.unrecorded(_recorded_state(volume)):
        kept = DeleteIntent(v=INTENT_VERSION, delete_state=dict(pending.state))
        return write_record(VOLUMES, volume, kept, why="keep the driver's state")
    if left := pending.left(cluster.monotonic()):
        return Wait(reason=f'driver "{driver.name}" is deleting the asset', seconds=left)
    return ownership.run_on_asset("delete", volume, driver)


def _without_deleter(volume: Volume, lookup: ownership.DriverLookup, cluster: ClusterState, terms: Terms) -> Action:
    """Report on the volume that no driver can delete its asset, unless that is not known yet or not ours to say."""
    why = lookup.reason
    if lookup.next is not None and not why:
        return lookup.next
    if not why and not ownership.held_for_reclaim(volume):
        return Wait(reason="an external provisioner deletes it") if not volume.terminating else Settled()
    if not why:
        since = volume.metadata.deletion_timestamp or volume.status.last_phase_transition_time
        left = 0.0 if terms.writes_phase else DRIVER_GRACE - cluster.seconds_since(since)
        if left > 0:
            return Wait(reason="its driver is not configured here", seconds=left)
        made_by = volume.annotation(names.PROVISIONED_BY) or (volume.spec.csi or {}).get("driver", "")
        remedy = f"configure it, or remove {names.RECLAIM_FINALIZER} to keep the asset"
        why = f'driver "{made_by}" is not configured here; {remedy}'
    message = f'error getting deleter volume plugin for volume "{volume.name}": {why}'
    shown = failed(volume, "VolumeFailedDelete", message, terms)
    return lookup.next if lookup.next is not None and isinstance(shown, Wait) else shown


@dataclass(frozen=True, slots=True)
class VolumeOperation:
    """Shared by the operations of released volumes: each makes live checks, calls one hook, and keeps its result."""

    deps: OperationDeps
    writes_phase: bool
    """Whether a failure is shown by the phase of the volume, which is the binder's to write."""

    def failed(
        self, run: Run, volume: Volume, progress: VolumeProgress, error: BackendError, *, reason: str, message: str
    ) -> None:
        """Keep the failure for the next decision, which writes phase and event; if the phase shows it, record an event.

        Beside another binder, which writes the phases, every failure is an event alone.
        """
        deps = self.deps
        shown = volume.status.phase == "Failed" and volume.status.message == message
        if shown or not self.writes_phase:
            text = f"{message}; next attempt in {deps.registry.next_delay(run, error):.3g} s"
            deps.recorder.record(warning(VOLUMES, volume, reason, text, same_as=message))
        if volume.name in deps.cluster.volumes:
            progress.unreported_failure = message
            # The failure is written before the next try.
            deps.queue("volumes").enqueue(volume.key)


class DeleteOperation(VolumeOperation):
    def __call__(self, run: Run) -> Work:
        volume, driver = self.deps.volume(run), self.deps.driver(run)
        progress = self.deps.cluster.progress.volumes.track(run.uid)
        answered = self.deps.cluster.monotonic() if run.live else -math.inf
        return lambda: self._delete(run, volume, driver, progress, answered)

    async def _delete(
        self, run: Run, volume: Volume, driver: DriverView, progress: VolumeProgress, answered: float
    ) -> None:
        """answered: loop time at which the server last answered with the volume."""
        deps = self.deps
        live = await deps.released_volume(volume, writes_phase=self.writes_phase, answered=answered)
        # A person may have changed the policy, or the claim may live after all: the asset is kept.
        if live is None or not live.terminating or live.spec.persistent_volume_reclaim_policy != "Delete":
            raise deps.not_justified()
        await deps.know_attachments()
        # Another volume that lies on the same storage, or an attachment, may have come since the decision.
        if ownership.shared_with(live, deps.cluster) or deps.cluster.attached_to(live):
            raise deps.not_justified()
        identity = volume_identity(live, deps.cluster.cluster_id)
        generation = identity.owner.generation if identity.owner else 1
        given = _recorded_state(live)
        context = deps.context(driver, generation, given)
        try:
            result = await deps.hooks.call(driver, DeleteRequest(context=context, volume=identity))
        except VolumeInUse as error:
            deps.recorder.record(EventRecord(VOLUMES, live, "Normal", "VolumeDelete", str(error)))
            raise
        except BackendError as error:
            self.failed(run, live, progress, error, reason="VolumeFailedDelete", message=str(error))
            raise
        if isinstance(result, InProgress):
            progress.succeeded(Deleting(dict(result.state), deps.next_due(result.retry_after), given))
        else:
            progress.succeeded(Deleted())
