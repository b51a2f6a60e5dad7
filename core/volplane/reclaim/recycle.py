"""Scrubbing a released volume and offering it again. Pure decisions over volume, intent and scrubber pod.

The intent is written; the `recycle` hook returns a plan; the pod is created with a scheduling gate; its uid is written
on the volume, after a live read; the gate is removed; the pod erases the contents and verifies that; the pod is
deleted; claim reference and intent are removed in one write. No step relies on this process having taken an earlier
one. A failed attempt is counted on the volume; after the last one a person decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from volplane._delays import SCRUB_FAILED
from volplane.binding.decide import unbind_patch, volume_phase_step
from volplane.controller.actions import (
    Action,
    Create,
    Delete,
    EventRecord,
    LiveReads,
    Patch,
    Read,
    Settled,
    Wait,
    warning,
)
from volplane.drivers.driver import DriverView
from volplane.intents.ownership import NO_PLUGIN, DriverLookup, driver_of, run_on_asset, shared_with
from volplane.intents.record import not_leading, scrub_conflict
from volplane.kube import names
from volplane.kube.kinds import PODS, VOLUMES, WHOLE_PODS
from volplane.kube.objects import Claim, Pod, Volume, WholePod
from volplane.reclaim.delete import Terms
from volplane.reclaim.scrub_claim import (
    cannot_make,
    claim_lost,
    give_back,
    held_for_scrub,
    hold,
    needs_claim,
    released_from,
    remove_stray_claim,
)
from volplane.reclaim.scrub_pod import (
    LONGEST_FAILURE,
    SCRUB_GATE,
    Unmountable,
    belongs,
    last_lines,
    pod_body,
    pod_name,
    sealed_spec,
    spec_difference,
)
from volplane.state.cluster_state import ClusterState, finished
from volplane.state.progress import BackendErased, Erasing, ScrubPlan, VolumeProgress
from volplane.state.records import INTENT_VERSION, RecycleIntent, recycle_intent_of, write_intent

__all__ = [
    "abandon_scrub",
    "decide_recycle",
    "end_scrub",
    "job_erases",
    "recycles",
    "remove_strays",
    "used_by",
    "users_of_former",
]


_MOST_STRANGERS = 3
"""Pods of others that are removed from the scrubber's place in one attempt."""


def decide_recycle(volume: Volume, cluster: ClusterState, reads: LiveReads, terms: Terms) -> Action:
    """Return the next action for a volume to be erased, if its claim is gone (see `delete.require_claim_gone`)."""
    intent = recycle_intent_of(volume)
    if (wait := scrub_conflict(volume, intent, cluster)) is not None:
        return wait
    if users := users_of_released(volume, intent, cluster):
        message = used_by(users)
        return Wait(reason=message, events=(EventRecord(VOLUMES, volume, "Normal", "VolumeFailedRecycle", message),))
    if volume.annotation(names.INTENT) is None and (nodes := cluster.attached_to(volume)):
        return Wait(reason=f"attachments of it exist, to {', '.join(nodes)}")
    recycler = _recycler(volume, cluster, terms)
    if recycler.driver is None:
        return recycler.next or Settled()
    return _by_record(volume, intent, recycler.driver, cluster, reads, terms=terms)


def _by_record(
    volume: Volume,
    intent: RecycleIntent | None,
    driver: DriverView,
    cluster: ClusterState,
    reads: LiveReads,
    *,
    terms: Terms,
) -> Action:
    """Return the next action by how far the scrub is."""
    reference = released_from(volume, intent)
    if (intent is None or not intent.erased) and (why := shared_with(volume, cluster)):
        pod = _pod_of(volume, cluster)
        return _fail(volume, why, terms) if pod is None else _remove_pod(pod, why="it shares another's storage")
    claim_uid = (reference.uid if reference is not None else "") or (intent.claim if intent is not None else "")
    if intent is None or intent.claim != claim_uid:
        fresh = RecycleIntent(
            v=INTENT_VERSION, claim=claim_uid, fence=cluster.fence(), installation=cluster.sealer.installation
        )
        return _record(volume, fresh, why="declare the intent to scrub")
    if intent.given_up:
        return _given_up(volume, intent, cluster, reads, terms)
    if intent.fence != cluster.fence():
        return not_leading(cluster, reads) or _record(
            volume,
            replace(intent, fence=cluster.fence(), installation=cluster.sealer.installation),
            why="take the scrub over",
        )
    if intent.erased:
        return _release(volume, intent, cluster, reads)
    if intent.failed:
        return _next_attempt(volume, intent, cluster, terms)
    return _scrub(volume, intent, driver, cluster, reads, terms=terms)


def recycles(volume: Volume) -> bool:
    """Return whether a release of this volume leads to a scrub: policy Recycle, or a dynamic volume of a warm pool."""
    policy = volume.spec.persistent_volume_reclaim_policy
    return policy == "Recycle" or (policy == "Delete" and volume.annotation(names.ON_RELEASE) == "recycle")


def job_erases(intent: RecycleIntent, progress: VolumeProgress) -> bool:
    """Return whether the backend is erasing the contents by a job, which goes on whatever the policy is now."""
    return isinstance(progress.step, Erasing) or (progress.step is None and intent.state is not None)


def end_scrub(volume: Volume, cluster: ClusterState, reads: LiveReads, terms: Terms) -> Action:
    """Return the next action for a scrub that the policy does not ask for any more.

    If the backend is erasing the contents, that ends first: until then the volume may not be offered.
    """
    intent = recycle_intent_of(volume)
    progress = cluster.progress.volumes.get(volume.uid)
    erasing = intent is not None and (progress.recycling or job_erases(intent, progress))
    if intent is None or not erasing or intent.erased or intent.failed or _pod_of(volume, cluster) is not None:
        return abandon_scrub(volume, cluster, reads)
    recycler = _recycler(volume, cluster, terms)
    if recycler.driver is None:
        return recycler.next or Settled()
    return _by_record(volume, intent, recycler.driver, cluster, reads, terms=terms)


def abandon_scrub(volume: Volume, cluster: ClusterState, reads: LiveReads) -> Action:
    """Return the next action after policy or reference have changed: stop the pod, then drop the intent."""
    intent = recycle_intent_of(volume)
    if (wait := scrub_conflict(volume, intent, cluster)) is not None:
        return wait
    if intent is not None and intent.fence != cluster.fence() and (step := not_leading(cluster, reads)) is not None:
        return step
    pod = _pod_of(volume, cluster)
    if pod is not None:
        return _remove_pod(pod, why="the volume is not to be scrubbed any more")
    if intent is not None and (step := give_back(volume, intent, cluster, reads)) is not None:
        return step
    body = {"metadata": {"annotations": {names.INTENT: None}}}
    return Patch(kind=VOLUMES, target=volume, body=body, why="the scrub is abandoned")


def remove_strays(key: str, volume: Volume | None, cluster: ClusterState, reads: LiveReads) -> Action | None:
    """Remove the pod or claim of an unwanted scrub; None if there is none, or its node's process removes it."""
    if volume is not None and cluster.drivers.on_nodes(volume.annotation(names.PROVISIONED_BY) or ""):
        return None
    return _remove_stray_pod(key, volume, cluster, reads) or remove_stray_claim(key, volume, cluster)


def _remove_stray_pod(key: str, volume: Volume | None, cluster: ClusterState, reads: LiveReads) -> Action | None:
    """Remove a scrubber pod whose volume is gone, is another one, or is not being scrubbed; None if there is none."""
    wanted = pod_name(volume) if volume is not None and volume.annotation(names.INTENT) is not None else None
    for pod in cluster.pods.by_index("scrubs", key):
        # A terminating pod delays only the deletion of the volume that it may still have mounted.
        holds_up = not pod.terminating or (volume is not None and volume.terminating)
        if pod.namespace == cluster.namespace and pod.name != wanted and holds_up:
            if not pod.terminating and not reads.has(VOLUMES, key):
                # Another leader may have started it: this cache may be outdated.
                return Read(VOLUMES, key, why="is this scrub not wanted any more?")
            return _remove_pod(pod, why="this scrub is not wanted any more")
    return None


def _remove_pod(pod: Pod, *, why: str) -> Action:
    if pod.terminating:
        return Wait(reason=f"scrubber pod {pod.key} is going away")
    # With its own grace period: a running pod is gone only once its node has reported that it has stopped.
    return Delete(kind=PODS, target=pod, why=why, exact=False)


def _recycler(volume: Volume, cluster: ClusterState, terms: Terms) -> DriverLookup:
    """Return the driver that erases the volume, or with `next` the action for a volume that has none."""
    lookup = driver_of(volume, cluster)
    if lookup.next is not None:
        failed = _failed_step(volume, lookup.reason, terms) if lookup.reason else None
        return lookup._replace(next=failed or lookup.next)
    if lookup.driver is None:
        unserved = lookup.reason in ("", NO_PLUGIN)
        message = "No recycler plugin found for the volume!" if unserved else lookup.reason
    elif not lookup.driver.supports("recycle"):
        message = f'driver "{lookup.driver.name}" cannot erase volumes; set the reclaim policy to Retain or Delete'
    else:
        return lookup
    return DriverLookup(next=_fail(volume, message, terms))


def users_of_released(volume: Volume, intent: RecycleIntent | None, cluster: ClusterState) -> list[str]:
    """Return the pods in the cache that still use the volume by the claim that it was released from."""
    reference = released_from(volume, intent)
    if reference is None:
        return []
    key = reference.key
    return users_of_former(cluster.pods.by_index("claim", key), cluster.claims.get(key))


def users_of_former(pods: Iterable[Pod], successor: Claim | None) -> list[str]:
    """Return which of the pods of a claim's name still use the claim that is gone.

    successor: the claim that has the name now. Its pods use its volume, but those that were started before it was
    created have the former one's mounted. Times are whole seconds; in doubt a pod is the successor's.
    """
    return sorted(pod.key for pod in pods if not finished(pod) and (successor is None or _older(pod, successor)))


def _older(pod: Pod, claim: Claim) -> bool:
    started = pod.status.start_time or pod.metadata.creation_timestamp or ""
    return bool(pod.spec.node_name) and started < (claim.metadata.creation_timestamp or "")


def used_by(pods: list[str]) -> str:
    """Return why a volume is not erased yet."""
    return "Volume is used by pods: " + ",".join(pods)


def _record(volume: Volume, intent: RecycleIntent, *, why: str, events: tuple[EventRecord, ...] = ()) -> Patch:
    body = {"metadata": {"annotations": {names.INTENT: write_intent(intent)}}}
    return Patch(kind=VOLUMES, target=volume, body=body, why=why, events=events)


def _fail(volume: Volume, message: str, terms: Terms) -> Action:
    step = _failed_step(volume, message, terms)
    return step or Wait(reason=message, events=_failed_events(volume, message, terms))


def _failed_step(volume: Volume, message: str, terms: Terms) -> Patch | None:
    """Write the phase and say why with the same step; None if another binder writes phases, or it says so already."""
    if not _writes_phase(volume, terms):
        return None
    event = warning(VOLUMES, volume, "VolumeFailedRecycle", message)
    return volume_phase_step(volume, "Failed", message, events=(event,))


def _writes_phase(volume: Volume, terms: Terms) -> bool:
    # While a claim of the scrub is bound to the volume, its phase is Bound.
    return terms.writes_phase and not held_for_scrub(volume)


def _failed_events(volume: Volume, message: str, terms: Terms) -> tuple[EventRecord, ...]:
    """Return the event for a failure that no phase shows."""
    return () if _writes_phase(volume, terms) else (warning(VOLUMES, volume, "VolumeFailedRecycle", message),)


def _pod_of(volume: Volume, cluster: ClusterState) -> Pod | None:
    """Return the pod that has the name of the volume's scrubber, which may be a stranger."""
    return cluster.pods.get(f"{cluster.namespace}/{pod_name(volume)}")


def _given_up(volume: Volume, intent: RecycleIntent, cluster: ClusterState, reads: LiveReads, terms: Terms) -> Action:
    message = f"{intent.failed}; remove the annotation {names.INTENT} to try again"
    if (step := _failed_step(volume, message, terms)) is not None:
        return step
    pod = _pod_of(volume, cluster)
    if pod is not None:
        return _remove_pod(pod, why="no further attempt is made")
    if (back := give_back(volume, intent, cluster, reads)) is not None:
        return back
    return Wait(reason=message, events=_failed_events(volume, message, terms))


def _scrub(
    volume: Volume, intent: RecycleIntent, driver: DriverView, cluster: ClusterState, reads: LiveReads, *, terms: Terms
) -> Action:
    pod = _pod_of(volume, cluster)
    if pod is not None:
        return _with_pod(volume, intent, pod, cluster, reads)
    if intent.pod:
        return _record(volume, replace(intent, failed="recycler pod was deleted"), why="the scrub failed")
    if intent.held_by:  # The driver has returned its plan, or the volume could not refer to a claim of ours.
        return _by_claim(volume, intent, cluster, reads, terms)
    progress = cluster.progress.volumes.get(volume.uid)
    if (why := progress.unreported_failure) and (step := _failed_step(volume, why, terms)) is not None:
        return step
    match progress.step:
        case BackendErased():
            return _record(volume, replace(intent, erased=True), why="the backend erased it")
        case Erasing() as pending:
            return _resume_erasing(volume, intent, pending, driver, cluster)
        case ScrubPlan(volume=None) if needs_claim(volume):
            return _by_claim(volume, intent, cluster, reads, terms)
        case ScrubPlan() as plan:
            return _create_pod(volume, intent, plan, cluster, reads, terms=terms)
    return run_on_asset("recycle", volume, driver)


def _resume_erasing(
    volume: Volume, intent: RecycleIntent, pending: Erasing, driver: DriverView, cluster: ClusterState
) -> Action:
    resume = pending.resume(intent.state, cluster.monotonic())
    if resume.write:
        return _record(volume, replace(intent, state=dict(pending.state)), why="keep the driver's state")
    if resume.seconds:
        return Wait(reason=f'driver "{driver.name}" is erasing the contents', seconds=resume.seconds)
    return run_on_asset("recycle", volume, driver)


def _by_claim(volume: Volume, intent: RecycleIntent, cluster: ClusterState, reads: LiveReads, terms: Terms) -> Action:
    return hold(volume, intent, cluster, reads) or _create_pod(
        volume, intent, ScrubPlan(None), cluster, reads, terms=terms
    )


def _create_pod(
    volume: Volume, intent: RecycleIntent, plan: ScrubPlan, cluster: ClusterState, reads: LiveReads, *, terms: Terms
) -> Action:
    key = f"{cluster.namespace}/{pod_name(volume)}"
    if not reads.has(PODS, key):
        return Read(PODS, key, why="does a pod of this name exist?")
    try:
        body = pod_body(
            volume,
            intent,
            plan,
            terms.scrub,
            namespace=cluster.namespace,
            sealer=cluster.sealer,
        )
    except Unmountable as error:
        return _fail(volume, str(error), terms)
    refused = cannot_make(volume, "pod")
    return Create(kind=PODS, body=body, why=f"scrub attempt {intent.attempt}", failure_event=refused)


def _with_pod(volume: Volume, intent: RecycleIntent, pod: Pod, cluster: ClusterState, reads: LiveReads) -> Action:
    """Return the next action if a pod has the scrubber's name: of this attempt, of an earlier one, or a stranger."""
    made = sealed_spec(pod, cluster.sealer)
    if made is not None and belongs(pod, volume, intent):
        if intent.pod == pod.uid and (why := claim_lost(volume, intent, cluster)):
            return _record(volume, replace(intent, failed=why), why="the scrub failed")
        return _follow_pod(volume, intent, pod, made, reads)
    if made is not None:
        return _remove_pod(pod, why="left from an earlier scrub")
    return _remove_stranger(volume, intent, pod, "volplane did not make it so")


def _remove_stranger(volume: Volume, intent: RecycleIntent, pod: Pod, why: str) -> Action:
    """Remove a pod that may not run under the scrubber's name. The attempt fails if others follow."""
    if pod.terminating or pod.uid in intent.strangers:
        return _remove_pod(pod, why=why)
    if len(intent.strangers) < _MOST_STRANGERS:
        noted = replace(intent, strangers=(*intent.strangers, pod.uid))
        return _record(volume, noted, why=f"remove pod {pod.key}: {why}")
    failed = f"pod {pod.key} is replaced again and again: {why}; look for an admission webhook that changes it"
    return _record(volume, replace(intent, failed=failed), why="the scrub failed")


def _follow_pod(volume: Volume, intent: RecycleIntent, pod: Pod, made: Mapping[str, Any], reads: LiveReads) -> Action:
    gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
    if intent.pod != pod.uid:
        if SCRUB_GATE not in gates:
            # The gate was removed by others, or another instance worked on an older intent.
            return _remove_stranger(volume, intent, pod, "it started without a permit")
        if not reads.has(VOLUMES, volume.key):
            return Read(VOLUMES, volume.key, why="is it still ours to scrub?")
        return _record(volume, replace(intent, pod=pod.uid), why=f"permit pod {pod.name}")
    if SCRUB_GATE in gates:
        return _unlike_made(volume, intent, pod, made, reads) or _lift_gate(pod, reads)
    match pod.status.phase:
        case "Succeeded":
            erased = _record(volume, replace(intent, erased=True), why="the pod erased it")
            return _unlike_made(volume, intent, pod, made, reads) or erased
        case "Failed":
            return _record(volume, replace(intent, failed=_why_failed(pod)), why="the scrub failed")
        case phase:
            return Wait(reason=f"scrubber pod {pod.key} is {phase or 'Pending'}")


def _unlike_made(
    volume: Volume, intent: RecycleIntent, pod: Pod, made: Mapping[str, Any], reads: LiveReads
) -> Action | None:
    """Return what follows unless the pod, read live, is as we made it; else None."""
    if not reads.has(WHOLE_PODS, pod.key):
        return Read(WHOLE_PODS, pod.key, why="is it the pod that was made?")
    live = reads.get(WHOLE_PODS, pod.key)
    if not isinstance(live, WholePod) or live.uid != pod.uid:
        return Wait(reason=f"scrubber pod {pod.key} is being replaced", seconds=SCRUB_FAILED.delay())
    if not (difference := spec_difference(made, live.spec)):
        return None
    # What changed it will change the next one, too: no further attempt.
    why = (
        f"the recycler pod is not as volplane made it: {difference}; exempt namespace {pod.namespace} from the "
        "admission webhook or the person that changed it"
    )
    return _record(volume, replace(intent, failed=why, given_up=True), why="the scrubber pod was changed")


def _lift_gate(pod: Pod, reads: LiveReads) -> Action:
    """Remove the gate of the pod as it was compared: the write is refused if it has changed since."""
    live = reads.get(WHOLE_PODS, pod.key)
    assert isinstance(live, WholePod)  # noqa: S101 -- `_unlike_made` has read it
    gates = [gate["name"] for gate in live.spec.get("schedulingGates") or ()]
    if SCRUB_GATE not in gates:
        # The cache will show that soon.
        return Wait(reason=f"the scheduling gate of scrubber pod {live.key} is removed")
    left = [{"name": name} for name in gates if name != SCRUB_GATE]
    return Patch(kind=PODS, target=live, body={"spec": {"schedulingGates": left}}, why="lift the gate")


def _why_failed(pod: Pod) -> str:
    """Return the messages of the pod and of its containers' termination."""
    texts = [pod.status.reason, pod.status.message]
    for status in pod.status.container_statuses or ():
        ended = status.state.terminated if status.state is not None else None
        if ended:
            texts.append(str(ended.get("message") or ended.get("reason") or ""))
    text = ": ".join(shown for part in texts if (shown := last_lines(part)))
    return text[-LONGEST_FAILURE:] or "pod failed, pod.Status.Message unknown"


def _next_attempt(volume: Volume, intent: RecycleIntent, cluster: ClusterState, terms: Terms) -> Action:
    """Report the failure and remove the pod; after a pause start the next attempt, or give up."""
    message = f"Recycle failed: failed to recycle volume: {intent.failed}"
    if (step := _failed_step(volume, message, terms)) is not None:
        return step
    pod = _pod_of(volume, cluster)
    if pod is not None:
        return _remove_pod(pod, why="its attempt failed")
    limit = terms.scrub.attempts
    if intent.attempt >= limit:
        text = f"{message} (attempt {intent.attempt} of {limit}, the last)"
        advice = f"{text}; remove the annotation {names.INTENT} to try again"
        event = warning(VOLUMES, volume, "VolumeFailedRecycle", advice)
        return _record(volume, replace(intent, failed=text, given_up=True), why="no further attempt", events=(event,))
    now = cluster.now().timestamp()
    if not intent.not_before:
        pause = SCRUB_FAILED.delay(intent.attempt)
        events = _failed_events(volume, message, terms)
        return _record(
            volume, replace(intent, not_before=now + pause), why="pause before the next attempt", events=events
        )
    left = intent.not_before - now
    if 0 < left <= SCRUB_FAILED.ceiling:  # More than that means that a clock was put back.
        return Wait(reason=f"{message}; attempt {intent.attempt + 1} of {limit} follows", seconds=left)
    fresh = RecycleIntent(
        v=INTENT_VERSION,
        claim=intent.claim,
        attempt=intent.attempt + 1,
        fence=cluster.fence(),
        held_by=intent.held_by,
        released=intent.released,
        installation=cluster.sealer.installation,
    )
    return _record(volume, fresh, why=f"attempt {fresh.attempt}")


def _release(volume: Volume, intent: RecycleIntent, cluster: ClusterState, reads: LiveReads) -> Action:
    """Offer the erased volume: remove the pod, then the scrub's claim, then reference and intent in one write."""
    pod = _pod_of(volume, cluster)
    if pod is not None:
        return _remove_pod(pod, why="the scrub is done")
    if (step := give_back(volume, intent, cluster, reads)) is not None:
        return step
    events = (EventRecord(VOLUMES, volume, "Normal", "VolumeRecycled", "Volume recycled"),)
    patch = unbind_patch(volume, metadata={"annotations": {names.INTENT: None}}, why="scrubbed, offered again")
    return replace(patch, events=events)
