"""The next step for a claim: bind it, provision for it, or wait for a stated reason.

`decide_claim` is pure. `ClaimReconciler`, which the runner calls, keeps the volume that a decision chose from others.
Source: `syncUnboundClaim` and `syncBoundClaim` of Kubernetes' pkg/controller/volume/persistentvolume/pv_controller.go.
"""

from __future__ import annotations

from collections.abc import Callable

from volplane.binding.decide import (
    Bind,
    Unmatched,
    bind_step,
    decide_bound,
    decide_unbound,
    migration_step,
    reset_claim_step,
)
from volplane.binding.matching import capacity_of, class_of_claim, demand_of, refers_to, selects
from volplane.controller.actions import Action, EventRecord, LiveReads, Patch, Read, Run, Settled, Wait
from volplane.intents.record import (
    after_deleted_volume,
    can_never_be_bound,
    class_is_gone,
    has_newer_intent,
    settle,
    settled_metadata,
)
from volplane.intents.term import take_over
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, Pod, StorageClass, Volume
from volplane.provision.decide import decide_provision
from volplane.provision.persistentvolume import restore_annotations
from volplane.roles.beside import decide_external_claim, external_claim_may_act
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import volume_name_of

__all__ = ["ClaimReconciler", "decide_claim"]

NO_CLASS = "no persistent volumes available for this claim and no storage class is set"
LOOKED_AT = 100
"""Volumes that a message counts, at most."""


class ClaimReconciler:
    """Decides claims, keeping a chosen volume from others until the write that binds it is answered."""

    def __init__(self, cluster: ClusterState, wake: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._wake = wake

    def __call__(self, key: str, reads: LiveReads) -> Action:
        free = self._cluster.free
        passed = self._cluster.waiting.take_offers(key)
        if (released := free.release(key)) is not None:
            passed.add(released)
        action = decide_claim(key, self._cluster, reads)
        self._remember(key, action)
        if isinstance(action, Patch) and action.kind is VOLUMES:
            free.hold(action.target.name, key)
            passed.discard(action.target.name)
        for name in sorted(passed):
            self._offer(name, key)
        return action

    def may_act(self, key: str) -> bool:
        """The predicate of the claims' runner: of a claim that is gone nothing is left to be decided."""
        claim = self._cluster.claims.get(key)
        return claim is not None and (self._cluster.settings.binder or external_claim_may_act(claim, self._cluster))

    def _remember(self, key: str, action: Action) -> None:
        """Only a claim that comes to rest can miss a volume: one that takes a step is decided once more."""
        claim = self._cluster.claims.get(key)
        resting = isinstance(action, Wait | Run)
        if claim is not None and resting and self._cluster.settings.binder and _awaits_volume(claim, self._cluster):
            self._cluster.waiting.add(claim, demand_of(claim))
        else:
            self._cluster.waiting.discard(key)

    def _offer(self, name: str, passed_over: str) -> None:
        volume = self._cluster.free.get(name)
        if volume is not None:
            woken = self._cluster.waiting.wake_for(volume, passed_over=(passed_over,))
            if woken is not None:
                self._wake(woken)


def decide_claim(key: str, cluster: ClusterState, reads: LiveReads) -> Action:
    """The single next action for the claim with this cache key."""
    claim = cluster.claims.get(key)
    if claim is None:
        return Settled()
    if cluster.settings.binder and (step := migration_step(CLAIMS, claim)) is not None:
        return step
    if not cluster.settings.binder:
        return decide_external_claim(claim, cluster, reads)
    if (first := take_over(claim, cluster, reads) or restore_annotations(claim, cluster)) is not None:
        return first
    if claim.terminating and not claim.annotation(names.BIND_COMPLETED):
        return settle(claim, cluster) or Settled()
    if claim.annotation(names.BIND_COMPLETED) is not None:
        outcome = decide_bound(claim, cluster)
        return _confirm(claim, outcome, reads) or _follow(outcome, claim, cluster)
    return _unbound(claim, cluster, reads)


def _confirm(claim: Claim, outcome: Bind | Action, reads: LiveReads) -> Read | None:
    """A cache never proves that a volume is gone, or another's: read it live before the claim is declared lost.

    Nor that the claim is still there, where somebody saw that it is not and released the volume.
    """
    if isinstance(outcome, Bind) and outcome.volume.status.phase == "Released" and not reads.has(CLAIMS, claim.key):
        return Read(CLAIMS, claim.key, why="its volume was released: is it still there?")
    name = claim.spec.volume_name
    if not isinstance(outcome, Patch) or not name or reads.has(VOLUMES, name):
        return None
    return Read(VOLUMES, name, why="is its volume really lost?")


def _follow(outcome: Bind | Unmatched | Action, claim: Claim, cluster: ClusterState) -> Action:
    """Turn a choice of volume into the next write, and when all is written settle what is left of an intent."""
    if isinstance(outcome, Unmatched):
        raise TypeError("a bound claim is never unmatched")
    if isinstance(outcome, Wait) and claim.annotation(names.BIND_COMPLETED) is not None:
        return settle(claim, cluster) or outcome
    if not isinstance(outcome, Bind):
        return outcome
    made = outcome.volume.name == volume_name_of(claim)
    metadata = settled_metadata(claim) if made and not _is_going_elsewhere(claim, outcome.volume, cluster) else {}
    return bind_step(claim, outcome.volume, claim_metadata=metadata) or settle(claim, cluster) or Settled()


def _is_going_elsewhere(claim: Claim, volume: Volume, cluster: ClusterState) -> bool:
    """Whether the intent is about an asset on another node than this volume: its process there has to end it."""
    there = cluster.drivers.on_nodes(volume.annotation(names.PROVISIONED_BY) or "")
    return there and has_newer_intent(volume, claim, cluster.sealer)


def _unbound(claim: Claim, cluster: ClusterState, reads: LiveReads) -> Action:
    made = cluster.volumes.get(volume_name_of(claim))
    if made is not None and refers_to(made, claim) and can_never_be_bound(made, claim) and cluster.settings.provisioner:
        return after_deleted_volume(claim, made, cluster)
    class_name = class_of_claim(claim)
    storage_class = cluster.classes.get(class_name) if class_name else None
    delayed = storage_class is not None and _delayed(storage_class)
    outcome = decide_unbound(claim, cluster, delayed=delayed)
    if not isinstance(outcome, Unmatched):
        return _follow(outcome, claim, cluster)
    if class_name and storage_class is not None:
        return _provisioned(claim, storage_class, cluster, reads)
    return _unmatched(claim, class_name, cluster)


def _unmatched(claim: Claim, class_name: str | None, cluster: ClusterState) -> Action:
    """No volume fits, and the claim has no class that exists."""
    if class_name is None and (default := cluster.default_class()) is not None:
        if (arriving := cluster.free.coming(demand_of(claim))) is not None:
            # A class, once given, would take the claim away from a classless volume that fits.
            return Wait(reason=f"volume {arriving.name} is about to become available", seconds=1.0)
        body = {"spec": {"storageClassName": default.name}}
        return Patch(kind=CLAIMS, target=claim, body=body, why=f"assign the default class {default.name}")
    if not class_name:
        why = NO_CLASS + _what_is_near(claim, cluster)
        return _pending(claim, why, EventRecord(CLAIMS, claim, "Normal", "FailedBinding", why))
    return class_is_gone(claim, class_name)


def _provisioned(claim: Claim, storage_class: StorageClass, cluster: ClusterState, reads: LiveReads) -> Action:
    """No volume fits: have one made."""
    if _delayed(storage_class) and not claim.annotation(names.SELECTED_NODE):
        return _wait_for_consumer(claim, cluster)
    if not cluster.settings.provisioner:
        return _pending(claim, "no volume fits and provisioning is switched off")
    return decide_provision(claim, storage_class, cluster, reads)


def _awaits_volume(claim: Claim, cluster: ClusterState) -> bool:
    """Whether any volume that fits may be bound to it: unbound, naming none, and not waiting for its first consumer."""
    if claim.spec.volume_name or claim.terminating or claim.annotation(names.BIND_COMPLETED) is not None:
        return False
    class_name = class_of_claim(claim)
    storage_class = cluster.classes.get(class_name) if class_name else None
    return storage_class is None or not _delayed(storage_class)


def _delayed(storage_class: StorageClass) -> bool:
    return storage_class.volume_binding_mode == "WaitForFirstConsumer"


def _pending(claim: Claim, reason: str, *events: EventRecord) -> Action:
    return reset_claim_step(claim, "Pending") or Wait(reason=reason, events=events)


def _wait_for_consumer(claim: Claim, cluster: ClusterState) -> Action:
    waiting = sorted(pod.name for pod in cluster.pods.by_index("claim", claim.key) if _unscheduled(pod))
    if not waiting:
        reason, message = "WaitForFirstConsumer", "waiting for first consumer to be created before binding"
    elif len(waiting) == 1:
        reason, message = "WaitForPodScheduled", f"waiting for pod {waiting[0]} to be scheduled"
    else:
        reason, message = "WaitForPodScheduled", f"waiting for pods {','.join(waiting)} to be scheduled"
    return _pending(claim, message, EventRecord(CLAIMS, claim, "Normal", reason, message))


def _unscheduled(pod: Pod) -> bool:
    return not pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed")


def _what_is_near(claim: Claim, cluster: ClusterState) -> str:
    """What the available volumes of the right class and mode lack, in numbers; "" if there are none."""
    demand = demand_of(claim)
    near = cluster.free.candidates(demand.place, LOOKED_AT)
    if not near:
        return ""
    lacking = {
        "too small": sum(capacity_of(volume) < demand.request for volume in near),
        "without its access modes": sum(not demand.access_modes.issubset(v.spec.access_modes or ()) for v in near),
        "not matched by its selector": sum(not selects(demand.selector, v.metadata.labels or {}) for v in near),
    }
    many = f"{LOOKED_AT} or more" if len(near) == LOOKED_AT else str(len(near))
    counted = ", ".join(f"{count} {what}" for what, count in lacking.items() if count)
    return f"; of {many} available volumes of its class and mode are {counted or 'all taken'}"
