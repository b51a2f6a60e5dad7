"""Scrubbing a released volume and offering it again: the decisions, which are pure, and the operation `recycle`.

The intent is written; the `recycle` hook returns a plan; the pod is created with a scheduling gate; its uid is written
on the volume, after a live read; the gate is removed; the pod erases the contents and verifies that; the pod is
deleted; claim reference and intent are removed in one write. No step relies on this process having taken an earlier
one. A failed attempt is counted on the volume; after the last one a person decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from volplane._delays import SCRUB_FAILED
from volplane.assets import Erased, InProgress, PodScrub
from volplane.binding.decide import unbind_patch
from volplane.controller.actions import Action, Create, Delete, EventRecord, LiveReads, Patch, Read, Run, Wait, warning
from volplane.controller.controller import Work
from volplane.drivers.driver import DriverView
from volplane.errors import BackendError, OutcomeUnknown
from volplane.intents.ownership import NO_PLUGIN, driver_of, home_of, run_on_asset, shared_with
from volplane.intents.record import not_leading, scrub_conflict, write_record
from volplane.intents.requests import volume_identity
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, PODS, VOLUMES, WHOLE_PODS
from volplane.kube.objects import Claim, Pod, Volume, WholePod
from volplane.reclaim import scrub_pod
from volplane.reclaim.delete import Terms, VolumeOperation, failed
from volplane.reclaim.scrub_claim import claim_lost, give_back, hold, released_from, scrub_key, sealed_uid
from volplane.requests import RecycleRequest
from volplane.state.cluster_state import ClusterState, claims_of_pod, finished
from volplane.state.naming import volume_source
from volplane.state.progress import BackendErased, Erasing, Unused, VolumeProgress
from volplane.state.records import INTENT_VERSION, RecycleIntent, ScrubPlan, recycle_intent_of

_FAILED = "VolumeFailedRecycle"
_MOST_STRANGERS = 3
"""Pods of others that are removed from the scrubber's place in one attempt."""


def decide_recycle(volume: Volume, cluster: ClusterState, reads: LiveReads, terms: Terms) -> Action:
    """Return the next action for a volume to be erased, or whose scrub is not wanted any more, if its claim is gone."""
    if not recycles(volume):
        return end_scrub(volume, cluster, reads, terms)
    intent = recycle_intent_of(volume)
    if (wait := scrub_conflict(volume, intent, cluster)) is not None:
        return wait
    reference = released_from(volume, intent)
    key = reference.key if reference is not None else ""
    # A pod that still runs would write to it, or lose what it works with.
    if users := users_of_former(cluster.pods.by_index("claim", key), cluster.claims.get(key)):
        message = used_by(users)
        return Wait(reason=message, events=(EventRecord(VOLUMES, volume, "Normal", _FAILED, message),))
    # A node may still write to it. Later attachments are those of the scrubber pod.
    if volume.annotation(names.INTENT) is None and (nodes := cluster.attached_to(volume)):
        return Wait(reason=f"attachments of it exist, to {', '.join(nodes)}")
    return _by_record(volume, intent, cluster, reads, terms)


def end_scrub(volume: Volume, cluster: ClusterState, reads: LiveReads, terms: Terms) -> Action:
    """Return the next action for a scrub that the policy does not ask for any more.

    If the backend is erasing the contents, that ends first: until then the volume may not be offered.
    """
    intent = recycle_intent_of(volume)
    progress = cluster.progress.volumes.get(volume.uid)
    on_node = intent is not None and intent.asked and intent.plan is None
    erasing = intent is not None and (on_node or progress.recycling or job_erases(intent, progress))
    if intent is None or not erasing or intent.erased or intent.failed or scrub_key(volume, cluster) in cluster.pods:
        return abandon_scrub(volume, cluster, reads)
    return _by_record(volume, intent, cluster, reads, terms)


def abandon_scrub(volume: Volume, cluster: ClusterState, reads: LiveReads) -> Action:
    """Return the next action after policy or reference have changed: stop the pod, then drop the intent."""
    intent = recycle_intent_of(volume)
    if (wait := scrub_conflict(volume, intent, cluster)) is not None:
        return wait
    # The pod and the claim may be those of a newer leader.
    if intent is not None and intent.fence != cluster.fence() and (step := not_leading(cluster, reads)) is not None:
        return step
    # The intent goes last: as long as it is there, the volume is not offered.
    if (step := _remove_pod_of(volume, cluster, why="the volume is not to be scrubbed any more")) is not None:
        return step
    if intent is not None and (step := give_back(volume, intent, cluster, reads)) is not None:
        return step
    return write_record(VOLUMES, volume, None, why="the scrub is abandoned")


def recycles(volume: Volume) -> bool:
    """Return whether a release of this volume leads to a scrub: policy Recycle, or a dynamic volume of a warm pool."""
    policy = volume.spec.persistent_volume_reclaim_policy
    return policy == "Recycle" or (policy == "Delete" and volume.annotation(names.ON_RELEASE) == "recycle")


def job_erases(intent: RecycleIntent, progress: VolumeProgress) -> bool:
    """Return whether the backend is erasing the contents by a job, which goes on whatever the policy is now."""
    return isinstance(progress.step, Erasing) or (progress.step is None and intent.state is not None)


def users_of_former(pods: Iterable[Pod], successor: Claim | None) -> list[str]:
    """Return which of the pods of a claim's name still use the claim that is gone.

    successor: the claim that has the name now. Its pods use its volume, but those that were bound to their node before
    it was created have the former one's mounted. Times are whole seconds of the server; in doubt a pod is the
    successor's. When a pod was started is of no use: the clock of its node may be ahead.
    """
    users = [pod for pod in pods if not finished(pod)]
    if successor is not None:
        made = successor.metadata.creation_timestamp or ""
        users = [pod for pod in users if pod.spec.node_name and _bound_at(pod) < made]
    return sorted(pod.key for pod in users)


def _bound_at(pod: Pod) -> str:
    """Return when the server bound the pod to its node; one that was created on it was never bound."""
    conditions = (each.last_transition_time for each in pod.status.conditions or () if each.status == "True")
    return next(conditions, None) or pod.metadata.creation_timestamp or ""


def used_by(pods: list[str]) -> str:
    return "Volume is used by pods: " + ",".join(pods)


# --- pods of scrubs ---------------------------------------------------------------------------------------------------


def remove_strays(key: str, volume: Volume | None, cluster: ClusterState, reads: LiveReads) -> Action | None:
    """Remove the pod or claim of an unwanted scrub; None if there is none."""
    wanted = scrub_pod.pod_name(volume) if volume is not None and volume.annotation(names.INTENT) is not None else None
    for pod in cluster.pods.by_index("scrubs", key):
        # A terminating pod delays only the deletion of the volume that it may still have mounted.
        holds_up = not pod.terminating or (volume is not None and volume.terminating)
        # A pod in another namespace is not ours, whatever volume it names.
        if pod.namespace == cluster.namespace and pod.name != wanted and holds_up:
            if not pod.terminating and not reads.has(VOLUMES, key):
                # Another leader may have started it: this cache may be outdated.
                return Read(VOLUMES, key, why="is this scrub not wanted any more?")
            return _remove_pod(pod, why="this scrub is not wanted any more")
    for claim in cluster.claims.by_index("volume", key) if wanted is None else ():
        # Claims that others made are theirs, whatever volume they name.
        if claim.namespace == cluster.namespace and sealed_uid(claim, cluster.sealer):
            if claim.terminating:
                return None
            return Delete(kind=CLAIMS, target=claim, why="its volume is not being scrubbed", exact=False)
    return None


def answer_scrub(volume: Volume, cluster: ClusterState, reads: LiveReads, terms: Terms) -> Action:
    """Return the next action of the process of a node about a scrub that the central one runs: it alone sees pods."""
    intent, driver = recycle_intent_of(volume), driver_of(volume, cluster).driver
    if intent is None or driver is None or not intent.asked or intent.plan or intent.erased or intent.failed:
        return Wait(reason="the central process scrubs it")
    scrub, progress = Scrub(volume, intent, driver, cluster, reads, terms), cluster.progress.volumes.get(volume.uid)
    if recycles(volume) or progress.recycling or job_erases(intent, progress):
        return scrub.ask_backend()
    return scrub.note("it is not to be erased any more", asked=False)


def _remove_pod_of(volume: Volume, cluster: ClusterState, *, why: str) -> Action | None:
    """Remove the pod that has the name of the volume's scrubber, which may be a stranger; None if there is none."""
    pod = cluster.pods.get(scrub_key(volume, cluster))
    return None if pod is None else _remove_pod(pod, why=why)


def _remove_pod(pod: Pod, *, why: str) -> Action:
    if pod.terminating:
        return Wait(reason=f"scrubber pod {pod.key} is going away")
    # With its own grace period: a running pod is gone only once its node has reported that it has stopped.
    return Delete(kind=PODS, target=pod, why=why, exact=False)


def _why_failed(pod: Pod) -> str:
    texts = [pod.status.reason, pod.status.message]
    ended = (each.state.terminated for each in pod.status.container_statuses or () if each.state is not None)
    texts += [str(each.get("message") or each.get("reason") or "") for each in ended if each]
    text = ": ".join(shown for part in texts if (shown := scrub_pod.last_lines(part)))
    return text[-scrub_pod.LONGEST_FAILURE :] or "pod failed, pod.Status.Message unknown"


# --- a scrub by its record --------------------------------------------------------------------------------------------


def _by_record(
    volume: Volume, intent: RecycleIntent | None, cluster: ClusterState, reads: LiveReads, terms: Terms
) -> Action:
    lookup = driver_of(volume, cluster)
    driver = lookup.driver or cluster.drivers.distributed(volume.annotation(names.PROVISIONED_BY) or "")
    # Without its driver nothing is erased, and the volume is not offered.
    if driver is None or not driver.supports("recycle"):
        if lookup.next is not None:
            shown = failed(volume, _FAILED, lookup.reason, terms) if lookup.reason else None
            return shown if isinstance(shown, Patch) else lookup.next
        message = "No recycler plugin found for the volume!" if lookup.reason in ("", NO_PLUGIN) else lookup.reason
        if driver is not None:
            message = f'driver "{driver.name}" cannot erase volumes; set the reclaim policy to Retain or Delete'
        return failed(volume, _FAILED, message, terms)
    # The data of the other volume would be erased with it.
    if (intent is None or not intent.erased) and (why := shared_with(volume, cluster)):
        stop = _remove_pod_of(volume, cluster, why="it shares another's storage")
        return stop or failed(volume, _FAILED, why, terms)
    reference = released_from(volume, intent)
    claim_uid = (reference.uid if reference is not None else "") or (intent.claim if intent is not None else "")
    # A record of an earlier release proves nothing about what was written since: it begins from the beginning.
    if intent is None or intent.claim != claim_uid:
        installation = cluster.sealer.installation
        fresh = RecycleIntent(v=INTENT_VERSION, claim=claim_uid, fence=cluster.fence(), installation=installation)
        return write_record(VOLUMES, volume, fresh, why="declare the intent to scrub")
    return Scrub(volume, intent, driver, cluster, reads, terms).next_step()


@dataclass(frozen=True, slots=True)
class Scrub:
    """A scrub that was declared for this release, and what decides its next step."""

    volume: Volume
    intent: RecycleIntent
    driver: DriverView
    cluster: ClusterState
    reads: LiveReads
    terms: Terms

    def next_step(self) -> Action:
        volume, intent, cluster = self.volume, self.intent, self.cluster
        # A person decides: further attempts would hide what is wrong.
        if intent.given_up:
            message = f"{intent.failed}; remove the annotation {names.INTENT} to try again"
            shown = failed(volume, _FAILED, message, self.terms)
            if isinstance(shown, Patch):
                return shown
            stop = _remove_pod_of(volume, cluster, why="no further attempt is made")
            return stop or give_back(volume, intent, cluster, self.reads) or shown
        # Only the leader goes on: another one may have another pod in mind.
        if intent.fence != cluster.fence():
            fence, installation = cluster.fence(), cluster.sealer.installation
            taken = self.note("take the scrub over", fence=fence, installation=installation)
            return not_leading(cluster, self.reads) or taken
        if intent.erased:
            return self._release()
        if intent.failed:
            return self._next_attempt()
        pod = cluster.pods.get(scrub_key(volume, cluster))
        if pod is not None:
            return self._with_pod(pod)
        # Without its pod nothing shows how far it came.
        if intent.pod:
            return self.note("the scrub failed", failed="recycler pod was deleted")
        if cluster.drivers.on_nodes(self.driver.name):
            return self._by_its_node()
        # The driver has returned its plan, or the volume could not refer to a claim of ours.
        return self._create_pod(ScrubPlan(None)) if intent.held_by else self.ask_backend()

    def note(self, why: str, *, events: tuple[EventRecord, ...] = (), **changes: Any) -> Patch:
        return write_record(VOLUMES, self.volume, replace(self.intent, **changes), why=why, events=events)

    def _by_its_node(self) -> Action:
        """Return the next action where the process of its node has the storage: let it say how it is erased."""
        volume, plan = self.volume, self.intent.plan
        if plan is not None or self.intent.held_by:
            # The account of the nodes is no more to be trusted than a node: a pod of ours may mount nothing else.
            mounted = (plan and plan.volume) or {volume_source(volume).kind: None}
            if plan is not None and not self.intent.held_by and mounted.keys() <= {"hostPath", "local"}:
                home = home_of(volume, self.cluster)
                return self._create_pod(plan, home.name) if home else Wait(reason="its node is gone, or was made again")
            return failed(volume, _FAILED, "a driver on nodes has its volumes in directories of its node", self.terms)
        if self.intent.asked:
            return Wait(reason="the process of its node is to say how it is erased")
        if isinstance(self.cluster.progress.volumes.get(volume.uid).step, Unused):
            return self.note("nobody uses it: ask its node", asked=True)
        return run_on_asset("recycle", volume, self.driver)

    def ask_backend(self) -> Action:
        """Return the next action with the driver's answer, which the hook is called for if there is none."""
        volume, intent, cluster = self.volume, self.intent, self.cluster
        progress = cluster.progress.volumes.get(volume.uid)
        # A failure is shown before the next try.
        why = progress.unreported_failure
        if why and isinstance(step := failed(volume, _FAILED, why, self.terms), Patch):
            return step
        match progress.step:
            case BackendErased():
                return self.note("the backend erased it", erased=True)
            case Erasing() as pending:
                # On the volume, another process finds it: it goes on with the same job.
                if pending.unrecorded(intent.state):
                    return self.note("keep the driver's state", state=dict(pending.state))
                if left := pending.left(cluster.monotonic()):
                    return Wait(reason=f'driver "{self.driver.name}" is erasing the contents', seconds=left)
            case ScrubPlan() as plan:
                return self.note("a pod is to erase it", plan=plan) if cluster.node_name else self._create_pod(plan)
        return run_on_asset("recycle", volume, self.driver)

    def _create_pod(self, plan: ScrubPlan, node: str = "") -> Action:
        volume, intent, cluster = self.volume, self.intent, self.cluster
        # A pod mounts a volume with a csi source only by a claim.
        if intent.held_by or (plan.volume is None and volume_source(volume).kind == "csi"):
            plan = ScrubPlan(None)
            if (step := hold(volume, intent, cluster, self.reads)) is not None:
                return step
        key = scrub_key(volume, cluster)
        # A pod that the cache lacks may be erasing it.
        if not self.reads.has(PODS, key):
            return Read(PODS, key, why="does a pod of this name exist?")
        try:
            place, sealer = cluster.namespace, cluster.sealer
            body = scrub_pod.pod_body(volume, intent, plan, self.terms.scrub, namespace=place, sealer=sealer, node=node)
        except scrub_pod.Unmountable as error:
            return failed(volume, _FAILED, str(error), self.terms)
        refused = warning(VOLUMES, volume, _FAILED, "The pod that scrubs it cannot be created")
        return Create(kind=PODS, body=body, why=f"scrub attempt {intent.attempt}", failure_event=refused)

    def _with_pod(self, pod: Pod) -> Action:
        """Return the next action if a pod has the scrubber's name: of this attempt, an earlier one, or a stranger."""
        volume, intent, cluster = self.volume, self.intent, self.cluster
        made = scrub_pod.sealed_spec(pod, cluster.sealer)
        # Others could have made it, with a command that erases nothing.
        if made is None:
            return self._remove_stranger(pod, "volplane did not make it so")
        # Its success would say nothing about what was written after that scrub.
        if not scrub_pod.belongs(pod, volume, intent):
            return _remove_pod(pod, why="left from an earlier scrub")
        # It may have another volume mounted, or another node's directory.
        if intent.pod == pod.uid and (why := claim_lost(volume, intent, cluster) or self._elsewhere(pod)):
            return self.note("the scrub failed", failed=why)
        return self._follow_pod(pod, made)

    def _remove_stranger(self, pod: Pod, why: str) -> Action:
        """Remove a pod that may not run under the scrubber's name. The attempt fails if others follow."""
        strangers = self.intent.strangers
        if pod.terminating or pod.uid in strangers:
            return _remove_pod(pod, why=why)
        if len(strangers) < _MOST_STRANGERS:
            return self.note(f"remove pod {pod.key}: {why}", strangers=(*strangers, pod.uid))
        failure = f"pod {pod.key} is replaced again and again: {why}; look for an admission webhook that changes it"
        return self.note("the scrub failed", failed=failure)

    def _follow_pod(self, pod: Pod, made: Mapping[str, Any]) -> Action:
        gated = scrub_pod.SCRUB_GATE in [gate.name for gate in pod.spec.scheduling_gates or ()]
        if self.intent.pod != pod.uid:
            if not gated:
                # The gate was removed by others, or another instance worked on an older intent.
                return self._remove_stranger(pod, "it started without a permit")
            # The permit is written only on a volume that is still to be erased.
            if not self.reads.has(VOLUMES, self.volume.key):
                return Read(VOLUMES, self.volume.key, why="is it still ours to scrub?")
            return self.note(f"permit pod {pod.name}", pod=pod.uid)
        # It may start only as it was made.
        if gated:
            if (step := self._unlike_made(pod, made)) is not None:
                return step
            # The gate of the pod as it was compared: the write is refused if it has changed since.
            live = self.reads.get(WHOLE_PODS, pod.key)
            assert isinstance(live, WholePod)  # noqa: S101 -- `_unlike_made` has read it
            gates = live.spec.get("schedulingGates") or ()
            left = [{"name": gate["name"]} for gate in gates if gate["name"] != scrub_pod.SCRUB_GATE]
            # The cache will show soon that it is gone.
            if len(left) == len(gates):
                return Wait(reason=f"the scheduling gate of scrubber pod {pod.key} is removed")
            return Patch(kind=PODS, target=live, body={"spec": {"schedulingGates": left}}, why="lift the gate")
        match pod.status.phase:
            case "Succeeded":
                # What was changed may report success while the contents are still there.
                return self._unlike_made(pod, made) or self.note("the pod erased it", erased=True)
            case "Failed":
                return self.note("the scrub failed", failed=_why_failed(pod))
            case phase:
                return Wait(reason=f"scrubber pod {pod.key} is {phase or 'Pending'}")

    def _elsewhere(self, pod: Pod) -> str:
        """Return what is wrong if the pod is where the volume of a driver on nodes is not; else ""."""
        node = pod.spec.node_name
        if not node or not self.cluster.drivers.on_nodes(self.driver.name):
            return ""
        home = home_of(self.volume, self.cluster)
        return "" if home and home.name == node else f"the recycler pod is on node {node}, where the volume is not"

    def _unlike_made(self, pod: Pod, made: Mapping[str, Any]) -> Action | None:
        """Return what follows unless the pod, read live, is as we made it; else None."""
        if not self.reads.has(WHOLE_PODS, pod.key):
            return Read(WHOLE_PODS, pod.key, why="is it the pod that was made?")
        live = self.reads.get(WHOLE_PODS, pod.key)
        if not isinstance(live, WholePod) or live.uid != pod.uid:
            return Wait(reason=f"scrubber pod {pod.key} is being replaced", seconds=SCRUB_FAILED.delay())
        if not (difference := scrub_pod.spec_difference(made, live.spec)):
            return None
        # What changed it will change the next one, too: no further attempt.
        remedy = f"exempt namespace {pod.namespace} from the admission webhook or the person that changed it"
        why = f"the recycler pod is not as volplane made it: {difference}; {remedy}"
        return self.note("the scrubber pod was changed", failed=why, given_up=True)

    def _next_attempt(self) -> Action:
        """Report the failure and remove the pod; after a pause start the next attempt, or give up."""
        volume, intent, cluster = self.volume, self.intent, self.cluster
        message = f"Recycle failed: failed to recycle volume: {intent.failed}"
        shown = failed(volume, _FAILED, message, self.terms)
        if isinstance(shown, Patch):
            return shown
        # Two pods would erase at once, and the end of one say nothing about the other.
        if (stop := _remove_pod_of(volume, cluster, why="its attempt failed")) is not None:
            return stop
        limit = self.terms.scrub.attempts
        if intent.attempt >= limit:
            text = f"{message} (attempt {intent.attempt} of {limit}, the last)"
            advice = warning(VOLUMES, volume, _FAILED, f"{text}; remove the annotation {names.INTENT} to try again")
            return self.note("no further attempt", failed=text, given_up=True, events=(advice,))
        now = cluster.now().timestamp()
        if not intent.not_before:
            not_before = now + SCRUB_FAILED.delay(intent.attempt)
            return self.note("pause before the next attempt", not_before=not_before, events=shown.events)
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
        return write_record(VOLUMES, volume, fresh, why=f"attempt {fresh.attempt}")

    def _release(self) -> Action:
        """Offer the erased volume: remove the pod, then the scrub's claim, then reference and intent in one write."""
        volume, intent, cluster = self.volume, self.intent, self.cluster
        # A pod that still has it mounted could write to it, or erase what the next claim writes.
        stop = _remove_pod_of(volume, cluster, why="the scrub is done")
        if (first := stop or give_back(volume, intent, cluster, self.reads)) is not None:
            return first
        events = (EventRecord(VOLUMES, volume, "Normal", "VolumeRecycled", "Volume recycled"),)
        patch = unbind_patch(volume, metadata={"annotations": {names.INTENT: None}}, why="scrubbed, offered again")
        return replace(patch, events=events)


class RecycleOperation(VolumeOperation):
    def __call__(self, run: Run) -> Work:
        volume = self.deps.volume(run)
        driver = self.deps.cluster.drivers.distributed(run.driver) or self.deps.driver(run)
        # The next scrub has a new record: a late answer to this call is lost.
        progress = self.deps.cluster.progress.volumes.track(run.uid)
        return lambda: self._recycle(run, volume, driver, progress)

    async def _recycle(self, run: Run, volume: Volume, driver: DriverView, progress: VolumeProgress) -> None:
        deps = self.deps
        live = await deps.released_volume(volume, writes_phase=self.writes_phase)
        intent = recycle_intent_of(live) if live is not None else None
        # The claim may live after all, or the policy have changed: nothing is erased.
        if live is None or live.terminating or intent is None or not (recycles(live) or job_erases(intent, progress)):
            progress.recycling = False  # An earlier call has returned: two operations never hold one asset.
            raise deps.not_justified()
        await deps.know_attachments()
        # Another leader may work on it, a node have it, or another volume lie on the same storage, since the decision.
        on_node = bool(deps.cluster.node_name)
        ours = intent.asked and not intent.plan if on_node else intent.fence == deps.cluster.fence()
        if not ours or shared_with(live, deps.cluster) or (intent.plan is None and deps.cluster.attached_to(live)):
            raise deps.not_justified()
        reference = live.spec.claim_ref if not on_node else None
        if reference is not None and reference.namespace:
            # A live list of the pods that use the claim it was released from: a cache may lack them.
            successor = await deps.client.refresh(deps.cluster.claims, reference.key)
            listing = await deps.client.list(PODS, namespace=reference.namespace)
            users = users_of_former((pod for pod in listing.items if reference.key in claims_of_pod(pod)), successor)
            if users := [*users, *listing.unreadable]:  # What a pod uses that does not decode is unknown.
                deps.recorder.record(EventRecord(VOLUMES, live, "Normal", _FAILED, used_by(users)))
                raise deps.not_justified()
        if deps.cluster.drivers.on_nodes(driver.name):
            progress.succeeded(Unused())
            return
        context = deps.context(driver, state=intent.state)
        request = RecycleRequest(context=context, volume=volume_identity(live, deps.cluster.cluster_id))
        progress.recycling = True
        try:
            result = await deps.hooks.call(driver, request)
        except BackendError as error:
            progress.recycling = isinstance(error, OutcomeUnknown)
            self.failed(run, live, progress, error, reason=_FAILED, message=f"Recycle failed: {error}")
            raise
        match result:
            case PodScrub(volume=pod_volume, sub_path=sub_path):
                progress.succeeded(ScrubPlan(pod_volume, sub_path))
            case InProgress():
                progress.succeeded(Erasing(dict(result.state), deps.next_due(result.retry_after), intent.state))
            case Erased():
                progress.succeeded(BackendErased())
