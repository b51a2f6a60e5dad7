"""Finalizer `kubernetes.io/pvc-protection`: a claim stays while a pod on a node uses it.

The finalizer is removed only after a live list of the namespace's pods that *started* after the claim was seen
terminating. A pod bound before that list is in it; a pod bound later is refused by its node. One list serves all claims
of a namespace that were terminating when it started, each for one attempt. A kubelet refuses such a claim only once the
finalizer is gone, so the list must be recent when the finalizer is removed.
Source: `pkg/controller/volume/pvcprotection` of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from volplane.controller.actions import Action, EventRecord, LiveReads, Patch, Run, Settled, Wait, warning
from volplane.kube.cache import Cache
from volplane.kube.kinds import CLAIMS
from volplane.kube.names import CLAIM_PROTECTION
from volplane.kube.objects import Claim, KubeObject, Pod
from volplane.protection.live_pods import LivePods, uses

__all__ = ["ClaimProtection", "ProtectionState", "decide_claim_protection", "without_finalizer"]

OPERATION_DRIVER = "volplane.dev/protection"
"""The name, of no driver, under which live lists run in the operation registry, one per namespace."""


@dataclass(slots=True, kw_only=True)
class ProtectionState:
    """The state that the decision reads."""

    claims: Cache[Claim]
    pods: Cache[Pod]
    live: LivePods
    monotonic: Callable[[], float]
    promised: Callable[[Claim], bool] = lambda _claim: False
    """Whether a volume still refers to the claim, so that the binder must release it while the claim exists."""


def decide_claim_protection(key: str, state: ProtectionState) -> Action:
    """Add the finalizer to a living claim, and remove it from a terminating one that is proven unused."""
    claim = state.claims.get(key)
    if claim is None:
        return Settled()
    held = claim.has_finalizer(CLAIM_PROTECTION)
    if claim.terminating != held:
        return Settled()
    if not claim.terminating:
        added = [*(claim.metadata.finalizers or ()), CLAIM_PROTECTION]
        body: dict[str, Any] = {"metadata": {"finalizers": added}}
        return Patch(kind=CLAIMS, target=claim, body=body, why="protect while in use")
    users = sorted((pod for pod in state.pods.by_index("claim", key) if uses(pod, claim)), key=lambda pod: pod.name)
    if users:
        return Wait(reason=f"used by pods {', '.join(pod.name for pod in users)}", events=_deadlocks(claim, users))
    if state.promised(claim):
        return Wait(reason="the volume that was chosen for it is being taken back")
    if state.live.proves_unused(claim):
        body = {"metadata": {"finalizers": without_finalizer(claim, CLAIM_PROTECTION)}}
        return Patch(kind=CLAIMS, target=claim, body=body, why="no pod uses the claim")
    if (left := state.live.valid_for(claim, state.monotonic())) > 0:
        # The list showed a user that the cache does not have. The watch will bring it, or a new list decides.
        return Wait(reason="a pod that is not in the cache uses it", seconds=left)
    return Run(verb="unprotect", key=key, uid=claim.uid, driver=OPERATION_DRIVER, asset=claim.namespace)


class ClaimProtection:
    """Decides claims, and remembers for which of them the last live list was used."""

    def __init__(self, state: ProtectionState) -> None:
        self._state = state

    def __call__(self, key: str, _reads: LiveReads) -> Action:
        action = decide_claim_protection(key, self._state)
        if isinstance(action, Patch) and action.target.terminating:
            self._state.live.tried(action.target)
        return action


def _deadlocks(claim: Claim, users: Iterable[Pod]) -> tuple[EventRecord, ...]:
    """Return an event for each pod that keeps the claim but cannot start with it. Only a person can delete that pod."""
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


def without_finalizer(item: KubeObject, name: str) -> list[str] | None:
    """Return the object's finalizers without one of them, for a merge patch: None if there are no others."""
    return [held for held in item.metadata.finalizers or () if held != name] or None
