"""Scrubbing a released volume and offering it again. Pure decisions over volume, intent and scrubber pod.

intent -> plan (the `recycle` hook) -> gated pod -> its uid on the volume, after a live re-read -> gate lifted ->
erased, verified by the pod itself -> pod deleted -> claim reference and intent released in one write. No step trusts
that this process took an earlier one. A failed attempt is counted on the volume; after the last one a person decides.
"""

from __future__ import annotations

from msgspec.structs import replace

from volplane.backoff import SCRUB_FAILED
from volplane.binding.decide import unbind_patch, volume_phase_step
from volplane.controller.actions import Action, Create, Delete, EventRecord, LiveReads, Patch, Read, Wait, warning
from volplane.drivers.view import DriverView
from volplane.kube import names
from volplane.kube.kinds import PODS, VOLUMES
from volplane.kube.objects import Pod, Volume
from volplane.reclaim.delete import NO_PLUGIN, driver_of, identify, run_on_asset
from volplane.reclaim.scrub_pod import SCRUB_GATE, Unmountable, belongs, pod_body, pod_name
from volplane.state.cluster_state import ClusterState
from volplane.state.indexes import finished
from volplane.state.naming import on_release
from volplane.state.progress import BackendErased, Erasing, ScrubPlan
from volplane.state.records import INTENT_VERSION, RecycleIntent, epoch_of, read_recycle_intent, write_intent

__all__ = ["abandon_scrub", "decide_recycle", "recycles", "remove_stray_pod"]


NEWER = "a newer leader scrubs it"


def decide_recycle(volume: Volume, cluster: ClusterState, reads: LiveReads) -> Action:
    """The next action for a released volume whose contents are to go; its claim was seen to be gone in this pass."""
    if (users := _users(volume, cluster)) and not _claim_recreated(volume, cluster):
        message = "Volume is used by pods: " + ",".join(users)
        return Wait(reason=message, events=(EventRecord(VOLUMES, volume, "Normal", "VolumeFailedRecycle", message),))
    if volume.annotation(names.INTENT) is None and (nodes := cluster.attached_to(volume)):
        return Wait(reason=f"attachments of it exist, to {', '.join(sorted(nodes))}")
    driver = _recycler(volume, cluster)
    if not isinstance(driver, DriverView):
        return driver
    reference = volume.spec.claim_ref
    intent = read_recycle_intent(volume.annotation(names.INTENT))
    claim_uid = (reference.uid if reference is not None else "") or (intent.claim if intent is not None else "")
    if intent is None or intent.claim != claim_uid:
        fresh = RecycleIntent(v=INTENT_VERSION, claim=claim_uid, fence=cluster.fence())
        return _record(volume, fresh, why="declare the intent to scrub")
    if intent.given_up:
        return _fail(volume, f"{intent.failed}; remove the annotation {names.INTENT} to try again")
    if intent.erased:
        return _release(volume, cluster)
    if intent.failed:
        return _next_attempt(volume, intent, cluster)
    ours, theirs = epoch_of(cluster.fence()), epoch_of(intent.fence)
    if theirs > ours:
        return Wait(reason=NEWER)
    if theirs < ours:
        return _record(volume, replace(intent, fence=cluster.fence()), why="take the scrub over")
    return _scrub(volume, intent, driver, cluster, reads)


def recycles(volume: Volume) -> bool:
    """Whether a release of this volume leads to a scrub: policy Recycle, or a dynamic volume of a warm pool."""
    policy = volume.spec.persistent_volume_reclaim_policy
    return policy == "Recycle" or (policy == "Delete" and on_release(volume) == "recycle")


def abandon_scrub(volume: Volume, cluster: ClusterState) -> Action:
    """The policy or the reference changed in the middle: stop the pod, then drop the intent."""
    intent = read_recycle_intent(volume.annotation(names.INTENT))
    if intent is not None and epoch_of(intent.fence) > epoch_of(cluster.fence()):
        return Wait(reason=NEWER)
    pod = cluster.pods.get(f"{cluster.settings.namespace}/{pod_name(volume)}")
    if pod is not None:
        return _remove_pod(pod, why="the volume is not to be scrubbed any more")
    body = {"metadata": {"annotations": {names.INTENT: None}}}
    return Patch(kind=VOLUMES, target=volume, body=body, why="the scrub is abandoned")


def remove_stray_pod(key: str, volume: Volume | None, cluster: ClusterState, reads: LiveReads) -> Action | None:
    """Remove a scrubber pod whose volume is gone, is another one, or is not being scrubbed; None if there is none."""
    scrubbing = volume is not None and volume.annotation(names.INTENT) is not None
    wanted = pod_name(volume) if volume is not None and scrubbing else ""
    for pod in cluster.pods.by_index("scrubs", key):
        # A terminating pod delays only the deletion of the volume that it may still have mounted.
        holds_up = not pod.terminating or (volume is not None and volume.terminating)
        if pod.namespace == cluster.settings.namespace and pod.name != wanted and holds_up:
            if not pod.terminating and not reads.has(VOLUMES, key):
                # Another leader may have begun it; this cache may be what is behind.
                return Read(VOLUMES, key, why="does nobody wait for this scrub?")
            return _remove_pod(pod, why="nobody waits for this scrub")
    return None


def _remove_pod(pod: Pod, *, why: str) -> Action:
    if pod.terminating:
        return Wait(reason=f"scrubber pod {pod.key} is going away")
    # With its own grace period: one that runs is gone only once its node says that it has stopped.
    return Delete(kind=PODS, target=pod, why=why, exact=False)


def _users(volume: Volume, cluster: ClusterState) -> list[str]:
    """Pods that still use the claim it was released from."""
    reference = volume.spec.claim_ref
    if reference is None:
        return []
    pods = cluster.pods.by_index("claim", f"{reference.namespace}/{reference.name}")
    return sorted(pod.key for pod in pods if not finished(pod))


def _claim_recreated(volume: Volume, cluster: ClusterState) -> bool:
    """A claim of that name exists again with another volume: the pods are its users, not ours."""
    reference = volume.spec.claim_ref
    return reference is not None and cluster.claims.get(f"{reference.namespace}/{reference.name}") is not None


def _recycler(volume: Volume, cluster: ClusterState) -> DriverView | Action:
    """The driver that erases the volume; or the action for a volume that has none, or none that is known yet."""
    owner = driver_of(volume, cluster)
    if not owner.known:
        return (_failed_step(volume, owner.reason) if owner.reason else None) or identify(volume)
    if owner.driver is None:
        nobody = owner.reason in ("", NO_PLUGIN)
        return _fail(volume, "No recycler plugin found for the volume!" if nobody else owner.reason)
    if not owner.driver.supports("recycle"):
        name = owner.driver.name
        return _fail(volume, f'driver "{name}" cannot erase volumes; set the reclaim policy to Retain or Delete')
    return owner.driver


def _record(volume: Volume, intent: RecycleIntent, *, why: str, events: tuple[EventRecord, ...] = ()) -> Patch:
    body = {"metadata": {"annotations": {names.INTENT: write_intent(intent)}}}
    return Patch(kind=VOLUMES, target=volume, body=body, why=why, events=events)


def _fail(volume: Volume, message: str) -> Action:
    return _failed_step(volume, message) or Wait(reason=message)


def _failed_step(volume: Volume, message: str) -> Patch | None:
    event = warning(VOLUMES, volume, "VolumeFailedRecycle", message)
    return volume_phase_step(volume, "Failed", message, events=(event,))


def _scrub(
    volume: Volume, intent: RecycleIntent, driver: DriverView, cluster: ClusterState, reads: LiveReads
) -> Action:
    pod = cluster.pods.get(f"{cluster.settings.namespace}/{pod_name(volume)}")
    if pod is not None and not belongs(pod, volume, intent):
        return _remove_pod(pod, why="left from an earlier scrub, or forged")
    if pod is not None:
        return _follow_pod(volume, intent, pod, reads)
    if intent.pod:
        return _record(volume, replace(intent, failed="recycler pod was deleted"), why="the scrub failed")
    progress = cluster.progress.volume(volume.uid)
    if (why := progress.unreported_failure) and (step := _failed_step(volume, why)) is not None:
        return step
    match progress.step:
        case BackendErased():
            return _record(volume, replace(intent, erased=True), why="the backend erased it")
        case Erasing(state=state) if (intent.state or {}) != state:
            return _record(volume, replace(intent, state=dict(state) or None), why="keep the driver's state")
        case Erasing(due=due) if due > cluster.monotonic():
            left = due - cluster.monotonic()
            return Wait(reason=f'driver "{driver.name}" is erasing the contents', seconds=left)
        case ScrubPlan() as plan:
            return _create_pod(volume, intent, plan, cluster, reads)
    return run_on_asset("recycle", volume, driver)


def _create_pod(
    volume: Volume, intent: RecycleIntent, plan: ScrubPlan, cluster: ClusterState, reads: LiveReads
) -> Action:
    key = f"{cluster.settings.namespace}/{pod_name(volume)}"
    if not reads.has(PODS, key):
        return Read(PODS, key, why="does a pod of this name exist?")
    try:
        body = pod_body(volume, intent, plan, cluster.settings.scrub, cluster.settings.namespace)
    except Unmountable as error:
        return _fail(volume, str(error))
    return Create(kind=PODS, body=body, why=f"scrub attempt {intent.attempt}")


def _follow_pod(volume: Volume, intent: RecycleIntent, pod: Pod, reads: LiveReads) -> Action:
    gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
    if intent.pod != pod.uid:
        if SCRUB_GATE not in gates:
            # It started without our permit: somebody lifted the gate, or another instance worked on an older intent.
            return _remove_pod(pod, why="runs without a permit")
        if not reads.has(VOLUMES, volume.key):
            return Read(VOLUMES, volume.key, why="is it still ours to scrub?")
        return _record(volume, replace(intent, pod=pod.uid), why=f"permit pod {pod.name}")
    if SCRUB_GATE in gates:
        left = [{"name": name} for name in gates if name != SCRUB_GATE]
        body = {"spec": {"schedulingGates": left}}
        return Patch(kind=PODS, target=pod, body=body, why="lift the gate")
    match pod.status.phase:
        case "Succeeded":
            return _record(volume, replace(intent, erased=True), why="the pod erased and verified it")
        case "Failed":
            return _record(volume, replace(intent, failed=_why_failed(pod)), why="the scrub failed")
        case phase:
            return Wait(reason=f"scrubber pod {pod.key} is {phase or 'Pending'}")


def _why_failed(pod: Pod) -> str:
    """The message of the pod, else that of its container's termination."""
    texts = [pod.status.reason, pod.status.message]
    for status in pod.status.container_statuses or ():
        ended = status.state.terminated if status.state is not None else None
        if ended:
            texts.append(str(ended.get("message") or ended.get("reason") or ""))
    text = ": ".join(part.strip() for part in texts if part and part.strip())
    return (text or "pod failed, pod.Status.Message unknown")[:900]


def _next_attempt(volume: Volume, intent: RecycleIntent, cluster: ClusterState) -> Action:
    """Say it failed, remove the pod, and after a while begin the next attempt, or give up."""
    message = f"Recycle failed: failed to recycle volume: {intent.failed}"
    if (step := _failed_step(volume, message)) is not None:
        return step
    pod = cluster.pods.get(f"{cluster.settings.namespace}/{pod_name(volume)}")
    if pod is not None:
        return _remove_pod(pod, why="its attempt failed")
    limit = cluster.settings.scrub.attempts
    if intent.attempt >= limit:
        text = f"{message} (attempt {intent.attempt} of {limit}, the last)"
        advice = f"{text}; remove the annotation {names.INTENT} to try again"
        event = warning(VOLUMES, volume, "VolumeFailedRecycle", advice)
        return _record(volume, replace(intent, failed=text, given_up=True), why="no further attempt", events=(event,))
    now = cluster.now().timestamp()
    if not intent.not_before:
        pause = SCRUB_FAILED.delay(intent.attempt)
        return _record(volume, replace(intent, not_before=now + pause), why="pause before the next attempt")
    left = intent.not_before - now
    if 0 < left <= SCRUB_FAILED.ceiling:  # more than that is a clock that was put back
        return Wait(reason=f"{message}; attempt {intent.attempt + 1} of {limit} follows", seconds=left)
    fresh = RecycleIntent(v=INTENT_VERSION, claim=intent.claim, attempt=intent.attempt + 1, fence=cluster.fence())
    return _record(volume, fresh, why=f"attempt {fresh.attempt}")


def _release(volume: Volume, cluster: ClusterState) -> Action:
    """Nothing is left: the pod goes first, then reference and intent in one write."""
    pod = cluster.pods.get(f"{cluster.settings.namespace}/{pod_name(volume)}")
    if pod is not None:
        return _remove_pod(pod, why="the scrub is done")
    events = (EventRecord(VOLUMES, volume, "Normal", "VolumeRecycled", "Volume recycled"),)
    step = unbind_patch(volume, metadata={"annotations": {names.INTENT: None}}, why="scrubbed, offered again")
    return replace(step, events=events)
