"""The finalizers `kubernetes.io/pvc-protection` and `kubernetes.io/pv-protection`: when each is added and removed.

A claim stays while a pod on a node uses it. Its finalizer is removed only after a live list of the namespace's pods
that *started* after the claim was seen terminating. A pod bound before that list is in it; a pod bound later is refused
by its node. One list serves all claims of a namespace that were terminating when it started, each for one attempt. A
kubelet refuses such a claim only once the finalizer is gone, so the list must be recent when the finalizer is removed.

A volume stays while it is bound. A volume and a claim that name each other are bound, in any phase: phases are written
last. The reclaimer removes both finalizers in one write from a volume that it holds until its asset is gone.
Source: `pkg/controller/volume/pvcprotection` and `pvprotection` of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from volplane.binding.decide import is_promised
from volplane.controller.actions import Action, EventRecord, LiveReads, Patch, Queue, Run, Settled, Wait, warning
from volplane.controller.controller import Work
from volplane.intents.ownership import removes_protection
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, PODS, VOLUMES, Kind
from volplane.kube.names import CLAIM_PROTECTION, VOLUME_PROTECTION
from volplane.kube.objects import Claim, KubeObject, Pod, Volume, timestamp
from volplane.state.cluster_state import ClusterState, claims_of_pod, finished, mounts
from volplane.state.matching import refers_to

UNUSED = "Unused"
BELIEVED = 30.0
"""Seconds for which a user is believed that only a live list showed."""
OPERATION_DRIVER = "volplane.dev/protection"
"""The name, of no driver, under which live lists run in the operation registry, one per namespace."""


@dataclass(slots=True)
class LiveList:
    """A live list of the pods of a namespace."""

    started: float
    """Loop time."""
    used: list[Pod]
    """Those that have a node and volumes."""
    unreadable: list[str]
    """Keys of those that did not decode: what they use is unknown."""
    spent: set[str] = field(default_factory=set)
    """Uids of claims for which the list was used."""


@dataclass(slots=True, kw_only=True)
class Protection:
    """Decides claims and volumes, and keeps the live lists of pods and for which claims they were used."""

    cluster: ClusterState
    claims: Queue
    volumes: Queue
    binds: bool = False
    """Whether this process is the binder, too."""
    reclaims: bool = False
    """Whether it is the binder and the reclaimer, too."""
    shows_unused: bool = False
    """Whether the condition `Unused` is kept."""
    lists: dict[str, LiveList] = field(default_factory=dict)
    """By namespace."""
    terminating_since: dict[str, dict[str, float]] = field(default_factory=dict)
    """Namespace -> uid of a claim there -> loop time at which this process first saw its deletionTimestamp."""

    # --- claims --------------------------------------------------------------------------------------------------

    def reconcile_claim(self, key: str, _reads: LiveReads) -> Action:
        """Decide, and note that the live list was used: if the removal fails, another one is needed."""
        action = self.decide_claim(key)
        if isinstance(action, Patch) and action.target.terminating:
            self.lists[action.target.namespace].spent.add(action.target.uid)
        return action

    def decide_claim(self, key: str) -> Action:
        """Add the finalizer to a living claim, and remove it from a terminating one that is proven unused."""
        claim = self.cluster.claims.get(key)
        if claim is None:
            return Settled()
        if (step := self._unused_step(claim)) is not None:
            return step
        # The API server refuses new finalizers on what is being deleted. Without it there is nothing to remove.
        if claim.terminating != claim.has_finalizer(CLAIM_PROTECTION):
            return Settled()
        if not claim.terminating:
            return _toggle(CLAIM_PROTECTION, CLAIMS, claim, why="protect while in use")
        users = [pod for pod in self.cluster.pods.by_index("claim", key) if uses(pod, claim)]
        # The data must not be deleted or erased under a pod that may have it mounted.
        if users:
            return Wait(reason=f"used by pods {', '.join(pod.name for pod in users)}", events=_deadlocks(claim, users))
        # Once the claim is gone, the volume that refers to it would count as released, and its data could be reclaimed.
        if self.binds and is_promised(claim, self.cluster):
            return Wait(reason="the volume that was chosen for it is being taken back")
        # The cache may lag behind: only a live list proves that no pod was bound meanwhile.
        listed = self._serving(claim)
        if listed is not None and not listed.unreadable and not any(uses(pod, claim) for pod in listed.used):
            return _toggle(CLAIM_PROTECTION, CLAIMS, claim, why="no pod uses the claim")
        if listed is not None and (left := listed.started + BELIEVED - self.cluster.monotonic()) > 0:
            # The list showed a user that the cache does not have. The watch will bring it, or a new list decides.
            why = "a pod that is not in the cache uses it"
            if listed.unreadable:
                why = f"pods cannot be read and may use it: {', '.join(listed.unreadable)}"
            return Wait(reason=why, seconds=left)
        return Run(verb="unprotect", key=key, uid=claim.uid, driver=OPERATION_DRIVER, asset=claim.namespace)

    def _unused_step(self, claim: Claim) -> Action | None:
        """Return the write of the condition `Unused`, unless it is right. It protects nothing: the cache is enough."""
        if not self.shows_unused or claim.terminating:
            return None
        used = any(mounts(pod, claim) and not finished(pod) for pod in self.cluster.pods.by_index("claim", claim.key))
        conditions = {each.get("type", ""): each for each in claim.status.conditions or ()}
        shown = conditions.get(UNUSED, {}).get("status")
        if shown == ("False" if used else "True") or (used and shown == "Unknown"):
            return None
        reason, text = ("PodUsingPVC", "A pod is") if used else ("NoPodsUsingPVC", "No pods are")
        conditions[UNUSED] = {
            "type": UNUSED,
            "status": "False" if used else "True",
            "reason": reason,
            "message": f"{text} currently referencing this PVC",
            "lastTransitionTime": timestamp(self.cluster.now()),
        }
        body = {"status": {"conditions": list(conditions.values())}}
        return Patch(kind=CLAIMS, target=claim, body=body, subresource="status", why=f"{text} referencing the claim")

    def _serving(self, claim: Claim) -> LiveList | None:
        """Return the last list if it may serve this claim: it started later, and is not used up."""
        listed = self.lists.get(claim.namespace)
        since = self.terminating_since.get(claim.namespace, {}).get(claim.uid)
        if listed is None or since is None or listed.started < since:
            return None
        # A removal on its strength failed: pods may have come since.
        return None if claim.uid in listed.spent else listed

    def unprotect(self, run: Run, client: Client) -> Work:
        """List the pods of the namespace live. The list is kept if a claim still waits: else nothing would drop it."""
        namespace = run.asset

        async def list_pods() -> None:
            started = self.cluster.monotonic()
            listing = await client.list(PODS, namespace=namespace)
            if namespace in self.terminating_since:
                used = [pod for pod in listing.items if pod.spec.node_name and pod.spec.volumes]
                self.lists[namespace] = LiveList(started, used, listing.unreadable)

        return list_pods

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        """Queue the claim. The list is dropped with the last terminating claim of a namespace."""
        if new is not None and new.terminating:
            waiting = self.terminating_since.setdefault(new.namespace, {})
            waiting.setdefault(new.uid, self.cluster.monotonic())
        if old is not None and (new is None or new.uid != old.uid):
            waiting = self.terminating_since.get(old.namespace, {})
            waiting.pop(old.uid, None)
            if not waiting:
                self.terminating_since.pop(old.namespace, None)
                self.lists.pop(old.namespace, None)
        conditions = (new.status.conditions or ()) if new is not None and self.shows_unused else None
        unseen = conditions is not None and all(each.get("type") != UNUSED for each in conditions)
        if unseen or _is_work(old, CLAIM_PROTECTION) or _is_work(new, CLAIM_PROTECTION):
            self.claims.enqueue((new or old or KubeObject()).key)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            for key in claims_of_pod(pod) if pod is not None else ():
                claim = self.cluster.claims.get(key)
                if claim is not None and (claim.terminating or self.shows_unused):
                    self.lists.pop(claim.namespace, None)  # It may lack the pod.
                    self.claims.enqueue(key)

    # --- volumes -------------------------------------------------------------------------------------------------

    def decide_volume(self, key: str, _reads: LiveReads) -> Action:
        """Add the finalizer to a living volume, and remove it from a terminating one that is not bound.

        A write carries the cached resourceVersion, so a bind at the same moment makes it fail with 409.
        """
        volume = self.cluster.volumes.get(key)
        if volume is None or volume.terminating != volume.has_finalizer(VOLUME_PROTECTION):
            return Settled()  # It is protected, or is being deleted and no finalizer can be added any more.
        if not volume.terminating:
            return _toggle(VOLUME_PROTECTION, VOLUMES, volume, why="protect while bound")
        reference = volume.spec.claim_ref
        claim = self.cluster.claims.get(reference.key) if reference is not None else None
        paired = claim is not None and refers_to(volume, claim) and claim.spec.volume_name == volume.name
        # A bound claim would lose its volume, and with it the record of where its data are.
        if volume.status.phase == "Bound" or paired:
            return Wait(reason="bound to a claim")
        # The reclaimer keeps the object until the asset is gone, and then removes both finalizers in one write.
        if self.reclaims and removes_protection(volume, self.cluster):
            return Wait(reason="its asset is being deleted")
        return _toggle(VOLUME_PROTECTION, VOLUMES, volume, why="not bound any more")

    def volume_may_act(self, key: str) -> bool:
        """Return whether the volume is to be decided: it exists, and the reclaimer does not remove its finalizers."""
        volume = self.cluster.volumes.get(key)
        if volume is None or not volume.terminating:
            return volume is not None
        return not (self.reclaims and removes_protection(volume, self.cluster))

    def volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        if _is_work(old, VOLUME_PROTECTION) or _is_work(new, VOLUME_PROTECTION):
            self.volumes.enqueue((new or old or KubeObject()).key)
        reference = old.spec.claim_ref if old is not None else None
        if reference is not None and reference.uid:
            claim = self.cluster.claims.get(reference.key)
            if claim is not None and claim.terminating:
                self.claims.enqueue(claim.key)


def _toggle(finalizer: str, kind: Kind[Any], target: KubeObject, *, why: str) -> Patch:
    """Return the write that removes the finalizer if it is there, and else adds it; the others stay."""
    held = target.has_finalizer(finalizer)
    finalizers = target.finalizers_without(finalizer) if held else target.finalizers_with(finalizer)
    return Patch(kind=kind, target=target, body={"metadata": {"finalizers": finalizers}}, why=why)


def _deadlocks(claim: Claim, users: Iterable[Pod]) -> tuple[EventRecord, ...]:
    """Return an event for each pod that keeps the claim but cannot start with it. Only a person can delete that pod."""
    events = []
    for pod in users:
        containers = [*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ())]
        states = [each.state for each in containers if each.state is not None]
        ran = any(state.running or state.terminated for state in states)
        if pod.status.phase in ("", "Pending") and not ran and not pod.terminating:
            text = (
                f"pod {pod.name} on node {pod.spec.node_name} keeps the claim and has not started; a claim that is "
                "being deleted starts no pod: if it stays Pending, delete the pod"
            )
            events.append(warning(CLAIMS, claim, "ClaimInUse", text))
    return tuple(events)


def uses(pod: Pod, claim: Claim) -> bool:
    """Return whether a pod keeps the claim: it is on a node, in any phase, and mounts it."""
    # A pod that is not yet on a node would be refused by it: kubelets start no pod with a claim that is being deleted.
    if not pod.spec.node_name:
        return False
    # A pod that only waits for its own finalizers no longer needs its ephemeral claim. Otherwise the pod would wait for
    # the claim, and the claim for the pod.
    dying = pod.terminating and pod.metadata.deletion_grace_period_seconds == 0
    return mounts(pod, claim, ephemeral=not dying)


def _is_work(item: KubeObject | None, finalizer: str) -> bool:
    """Return whether the finalizer is to be added or removed, now or later."""
    return item is not None and item.terminating == item.has_finalizer(finalizer)
