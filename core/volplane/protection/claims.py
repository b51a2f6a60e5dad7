"""`kubernetes.io/pvc-protection`: a claim stays while a pod on a node uses it.

The finalizer goes only after a live list of the namespace's pods that *started* after the claim was seen terminating:
a pod bound before that list is in it, one bound later is refused by its node. One list serves all claims of a namespace
that were terminating when it started, each for one attempt: a kubelet of Kubernetes refuses such a claim only once the
finalizer is gone, so the list may not be old when it goes.
Source: `pkg/controller/volume/pvcprotection`; reference attach-and-protection A2 to A4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from volplane.controller.actions import Action, EventRecord, LiveReads, Patch, Run, Settled, Wait, warning
from volplane.kube.cache import Cache
from volplane.kube.kinds import CLAIMS
from volplane.kube.names import CLAIM_PROTECTION
from volplane.kube.objects import Claim, KubeObject, Pod

__all__ = ["ClaimProtection", "LivePods", "ProtectionState", "decide_claim_protection", "without_finalizer"]

BELIEVED = 30.0
"""Seconds after which a user that only a live list showed is looked for again."""
OPERATION_DRIVER = "volplane.dev/protection"
"""Not a driver: the name under which live lists run in the operation registry, one per namespace."""


@dataclass(slots=True)
class LivePods:
    """Which claims the pods of a namespace used, by the last live list; and when that list started (loop time)."""

    started: dict[str, float] = field(default_factory=dict)
    used: dict[str, list[Pod]] = field(default_factory=dict)
    terminating_since: dict[str, dict[str, float]] = field(default_factory=dict)
    """Namespace -> uid of a claim there -> loop time at which this process first saw its deletionTimestamp."""
    spent: dict[str, set[str]] = field(default_factory=dict)
    """Namespace -> uids of claims for which the last list was used."""

    def follow(self, old: Claim | None, new: Claim | None, now: float) -> None:
        """Listener of the claim cache. What was listed is dropped with the last terminating claim of a namespace."""
        if new is not None and new.terminating:
            self.terminating_since.setdefault(new.namespace, {}).setdefault(new.uid, now)
        if old is not None and (new is None or new.uid != old.uid):
            waiting = self.terminating_since.get(old.namespace, {})
            waiting.pop(old.uid, None)
            if not waiting:
                self.terminating_since.pop(old.namespace, None)
                self.doubt(old.namespace)

    def listed(self, namespace: str, started: float, pods: Iterable[Pod]) -> None:
        """Keep the answer of a live list: only pods that hold something, and only if a claim still waits for it."""
        if namespace not in self.terminating_since:
            return
        self.started[namespace] = started
        self.spent.pop(namespace, None)
        self.used[namespace] = [pod for pod in pods if pod.spec.node_name and pod.spec.volumes]

    def tried(self, claim: Claim) -> None:
        """The finalizer is being removed. If that fails, another list is needed."""
        self.spent.setdefault(claim.namespace, set()).add(claim.uid)

    def proves_unused(self, claim: Claim) -> bool:
        listed = self._started_after(claim) is not None
        return listed and not any(uses(pod, claim) for pod in self.used[claim.namespace])

    def valid_for(self, claim: Claim, now: float) -> float:
        """Seconds for which a list that showed a user of this claim is believed; 0 = another list is needed."""
        started = self._started_after(claim)
        return max(started + BELIEVED - now, 0.0) if started is not None else 0.0

    def _started_after(self, claim: Claim) -> float | None:
        """When the last list started, if that was after the claim was seen terminating, and it was not tried with."""
        since = self.terminating_since.get(claim.namespace, {}).get(claim.uid)
        started = self.started.get(claim.namespace)
        if claim.uid in self.spent.get(claim.namespace, ()):
            return None
        return None if since is None or started is None or started < since else started

    def doubt(self, namespace: str) -> None:
        """A pod of the namespace changed: what a list showed of its use may be over."""
        self.started.pop(namespace, None)
        self.used.pop(namespace, None)
        self.spent.pop(namespace, None)


@dataclass(slots=True, kw_only=True)
class ProtectionState:
    """What the decision sees.

    promised: whether the binder still has to take back a volume that refers to the claim, while the claim exists.
    """

    claims: Cache[Claim]
    pods: Cache[Pod]
    live: LivePods
    monotonic: Callable[[], float]
    promised: Callable[[Claim], bool] = lambda _claim: False


def uses(pod: Pod, claim: Claim) -> bool:
    """Whether a pod keeps the claim: it is on a node, in any phase, and mounts it."""
    if not pod.spec.node_name or pod.namespace != claim.namespace:
        return False
    for volume in pod.spec.volumes or ():
        mounted = volume.persistent_volume_claim
        if mounted is not None and mounted.claim_name == claim.name:
            return True
        if volume.ephemeral is not None and f"{pod.name}-{volume.name}" == claim.name:
            # A pod that only waits for its own finalizers no longer needs its ephemeral claim; else both wait for ever.
            dying = pod.terminating and pod.metadata.deletion_grace_period_seconds == 0
            return _owned_by(claim, pod) and not dying
    return False


def _owned_by(claim: Claim, pod: Pod) -> bool:
    owners = claim.metadata.owner_references or ()
    return any(owner.controller and owner.uid == pod.uid for owner in owners)


def decide_claim_protection(key: str, state: ProtectionState) -> Action:
    """Add the finalizer to a living claim, remove it from a terminating one that is proven unused."""
    claim = state.claims.get(key)
    if claim is None:
        return Settled()
    held = claim.has_finalizer(CLAIM_PROTECTION)
    if not claim.terminating:
        return Settled() if held else _add(claim)
    if not held:
        return Settled()
    users = sorted((pod for pod in state.pods.by_index("claim", key) if uses(pod, claim)), key=lambda pod: pod.name)
    if users:
        return Wait(reason=f"used by pods {', '.join(pod.name for pod in users)}", events=_deadlocks(claim, users))
    if state.promised(claim):
        return Wait(reason="the volume that was chosen for it is being taken back")
    if state.live.proves_unused(claim):
        body = {"metadata": {"finalizers": without_finalizer(claim, CLAIM_PROTECTION)}}
        return Patch(kind=CLAIMS, target=claim, body=body, why="no pod uses the claim")
    if (left := state.live.valid_for(claim, state.monotonic())) > 0:
        # The list found a user that the cache does not show yet, or no more: what the watch brings decides, or a new
        # list.
        return Wait(reason="a pod that is not in the cache uses it", seconds=left)
    return Run(verb="unprotect", key=key, uid=claim.uid, driver=OPERATION_DRIVER, asset=claim.namespace)


class ClaimProtection:
    """Decides, and remembers what was tried."""

    def __init__(self, state: ProtectionState) -> None:
        self._state = state

    def __call__(self, key: str, _reads: LiveReads) -> Action:
        action = decide_claim_protection(key, self._state)
        claim = self._state.claims.get(key)
        if isinstance(action, Patch) and claim is not None and claim.terminating:
            self._state.live.tried(claim)
        return action


def _deadlocks(claim: Claim, users: Iterable[Pod]) -> tuple[EventRecord, ...]:
    """An event for each pod that keeps the claim and may never start on it: then only a person can end that."""
    return tuple(
        warning(
            CLAIMS,
            claim,
            "ClaimInUse",
            f"pod {pod.name} on node {pod.spec.node_name} keeps the claim and has not started; a claim that is being "
            f"deleted starts no pod: if it stays Pending, delete the pod",
        )
        for pod in users
        if not pod.terminating and _not_started(pod)
    )


def _not_started(pod: Pod) -> bool:
    if pod.status.phase not in ("", "Pending"):
        return False
    containers = [*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ())]
    states = [each.state for each in containers if each.state is not None]
    return not any(state.running or state.terminated for state in states)


def _add(claim: Claim) -> Patch:
    finalizers = [*(claim.metadata.finalizers or ()), CLAIM_PROTECTION]
    return Patch(kind=CLAIMS, target=claim, body={"metadata": {"finalizers": finalizers}}, why="protect while in use")


def without_finalizer(item: KubeObject, name: str) -> list[str] | None:
    """The object's finalizers less one, as a merge patch wants them."""
    return [held for held in item.metadata.finalizers or () if held != name] or None
