"""The steps of the binder around the choice of a volume: for a claim, and for the volume that refers to it.

Source: `syncUnboundClaim`, `syncBoundClaim` and `syncVolume` of Kubernetes'
pkg/controller/volume/persistentvolume/pv_controller.go; docs/explanation/differences.md.
"""

from __future__ import annotations

from volplane.binding.decide import Bind, decide_bound, decide_unbound, migration_step, pending, unbind_patch
from volplane.controller.actions import (
    Action,
    Decide,
    EventRecord,
    LiveReads,
    Patch,
    Queue,
    Read,
    Run,
    Settled,
    Wait,
    warning,
)
from volplane.controller.metrics import Metrics
from volplane.intents.ownership import finalizer_step
from volplane.intents.record import can_never_be_bound, class_is_gone, has_newer_intent
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, ObjectReference, StorageClass, Volume
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import capacity_of, class_of_claim, demand_of, mode_of, refers_to, selects
from volplane.state.naming import volume_name_of

__all__ = [
    "ClaimReconciler",
    "claim_about_to_bind",
    "claim_of",
    "confirm",
    "half_bound",
    "incomplete",
    "is_delayed",
    "is_promised",
    "never_bound",
    "no_volume_fits",
    "not_asked",
    "not_released",
    "rests_with_its_claim",
    "wait_for_consumer",
]

_NO_CLASS = "no persistent volumes available for this claim and no storage class is set"
_LOOKED_AT = 100
"""Volumes that a message counts, at most."""


class ClaimReconciler:
    """Decides claims, keeping a chosen volume from others until the write that binds it is answered.

    It also counts the claims that get the default class later, and the writes of it that failed.
    """

    def __init__(self, cluster: ClusterState, decide: Decide, claims: Queue, metrics: Metrics | None = None) -> None:
        self._cluster = cluster
        self._decide = decide
        self._claims = claims
        self._metrics = metrics
        self._given: set[str] = set()
        """Uids of claims for which the default class is being written."""
        cluster.claims.subscribe(self._claim_changed)

    def __call__(self, key: str, reads: LiveReads) -> Action:
        free = self._cluster.free
        passed = self._cluster.waiting.take_offers(key)
        if (released := free.release(key)) is not None:
            passed.add(released)
        action = self._decide(key, reads)
        claim = self._cluster.claims.get(key)
        # Only a claim that comes to rest can miss a volume: one that takes a step is decided once more. Any volume that
        # fits will do for it while it is unbound, and neither names a volume nor waits for its first consumer.
        if (
            claim is not None
            and isinstance(action, Wait | Run)
            and not (claim.spec.volume_name or claim.terminating or claim.bound)
            and ((of := self._cluster.classes.get(class_of_claim(claim) or "")) is None or not is_delayed(of))
        ):
            self._cluster.waiting.add(claim, demand_of(claim))
        else:
            self._cluster.waiting.discard(key)
        if isinstance(action, Patch) and action.kind is VOLUMES:
            free.hold(action.target.name, key)
            passed.discard(action.target.name)
        for name in sorted(passed):
            volume = free.get(name)
            woken = self._cluster.waiting.wake_for(volume, passed_over=key) if volume is not None else None
            if woken is not None:
                self._claims.enqueue(woken)
        if isinstance(action, Patch) and action.kind is CLAIMS and "storageClassName" in action.body.get("spec", ()):
            if self._metrics is not None and action.target.uid in self._given:
                self._metrics.retroactive_errors[()].inc()
            self._given.add(action.target.uid)
        return action

    def _claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        present = new or old
        if present is None or present.uid not in self._given:
            return
        assigned = new is not None and class_of_claim(new) is not None
        if new is None or assigned:
            self._given.discard(present.uid)
        if assigned and self._metrics is not None:
            self._metrics.retroactive[()].inc()


def is_delayed(storage_class: StorageClass) -> bool:
    """Return whether claims of the class wait for the first pod that uses them."""
    return storage_class.volume_binding_mode == "WaitForFirstConsumer"


def confirm(claim: Claim, outcome: Bind | Action, reads: LiveReads) -> Read | None:
    """Read live what a cache does not prove about a bound claim: that its volume is gone, or another's, before the
    claim is declared lost; and that the claim is still there, where its volume was released.
    """
    if isinstance(outcome, Bind) and outcome.volume.status.phase == "Released" and not reads.has(CLAIMS, claim.key):
        return Read(CLAIMS, claim.key, why="its volume was released: is it still there?")
    name = claim.spec.volume_name
    if not isinstance(outcome, Patch) or not name or reads.has(VOLUMES, name):
        return None
    return Read(VOLUMES, name, why="is its volume really lost?")


def not_asked(claim: Claim, storage_class: StorageClass) -> str:
    """Return why another binder has not asked for a volume yet, or ""."""
    asked = claim.annotation(names.STORAGE_PROVISIONER) or claim.annotation(names.BETA_STORAGE_PROVISIONER)
    if asked != storage_class.provisioner:
        return f'the binder has not asked driver "{storage_class.provisioner}" for a volume'
    if (migrated := claim.annotation(names.MIGRATED_TO)) and migrated != asked:
        return f'the claim is migrated to "{migrated}"'
    if storage_class.volume_binding_mode == "WaitForFirstConsumer" and not claim.annotation(names.SELECTED_NODE):
        return "the scheduler has not selected a node"
    return ""


def no_volume_fits(claim: Claim, class_name: str | None, cluster: ClusterState) -> Action:
    """Return the action for a claim that no volume fits, and that has no class that exists."""
    if class_name is None and (default := cluster.default_class()) is not None:
        if (arriving := cluster.free.coming(demand_of(claim))) is not None:
            # A class, once given, would take the claim away from a classless volume that fits.
            return Wait(reason=f"volume {arriving.name} is about to become available", seconds=1.0)
        body = {"spec": {"storageClassName": default.name}}
        return Patch(kind=CLAIMS, target=claim, body=body, why=f"assign the default class {default.name}")
    if not class_name:
        why = _NO_CLASS + _what_is_near(claim, cluster)
        return pending(claim, why, EventRecord(CLAIMS, claim, "Normal", "FailedBinding", why))
    return class_is_gone(claim, class_name)


def wait_for_consumer(claim: Claim, cluster: ClusterState) -> Action:
    """Wait until the scheduler has selected a node for a pod that uses the claim."""
    waiting = sorted(
        pod.name
        for pod in cluster.pods.by_index("claim", claim.key)
        if not pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed")
    )
    if not waiting:
        reason, message = "WaitForFirstConsumer", "waiting for first consumer to be created before binding"
    elif len(waiting) == 1:
        reason, message = "WaitForPodScheduled", f"waiting for pod {waiting[0]} to be scheduled"
    else:
        reason, message = "WaitForPodScheduled", f"waiting for pods {','.join(waiting)} to be scheduled"
    return pending(claim, message, EventRecord(CLAIMS, claim, "Normal", reason, message))


def _what_is_near(claim: Claim, cluster: ClusterState) -> str:
    """Return what the available volumes of the right class and mode lack, in numbers; "" if there are none."""
    demand = demand_of(claim)
    near = cluster.free.candidates(demand.place, _LOOKED_AT)
    if not near:
        return ""
    lacking = {
        "too small": sum(capacity_of(volume) < demand.request for volume in near),
        "without its access modes": sum(not demand.access_modes.issubset(v.spec.access_modes or ()) for v in near),
        "not matched by its selector": sum(not selects(demand.selector, v.metadata.labels or {}) for v in near),
    }
    many = f"{_LOOKED_AT} or more" if len(near) == _LOOKED_AT else str(len(near))
    counted = ", ".join(f"{count} {what}" for what, count in lacking.items() if count)
    return f"; of {many} available volumes of its class and mode are {counted or 'all taken'}"


def rests_with_its_claim(volume: Volume, cluster: ClusterState) -> bool:
    """Return whether it is bound, or the claim's side goes on binding it, and nothing about it is to be put right.

    What becomes of the claim queues it.
    """
    reference = volume.spec.claim_ref
    if reference is None or volume.annotation(names.INTENT) is not None:
        return False
    claim = cluster.claims.get(reference.key)
    if claim is None or not refers_to(volume, claim):
        return False
    if claim.spec.volume_name:
        settled = claim.spec.volume_name == volume.name and volume.status.phase == "Bound"
    else:
        settled = not claim.terminating and mode_of(claim) == mode_of(volume) and not can_never_be_bound(volume, claim)
    ours = cluster.has_driver(volume.annotation(names.PROVISIONED_BY) or "")
    return settled and migration_step(VOLUMES, volume) is None and finalizer_step(volume, ours=ours) is None


def is_promised(claim: Claim, cluster: ClusterState) -> bool:
    """Return whether a static volume refers to a claim that never pointed back: it is freed while the claim exists."""
    if claim.spec.volume_name:
        return False
    volumes = map(cluster.volumes.get, cluster.free.reserved_for(claim.key))
    return any(v is not None and refers_to(v, claim) and v.annotation(names.PROVISIONED_BY) is None for v in volumes)


def incomplete(volume: Volume) -> Wait:
    """Wait, since a reference that can match no claim is a mistake, and nothing may be destroyed for it."""
    message = "spec.claimRef lacks namespace or name, so it matches no claim; complete it or remove it"
    return Wait(reason=message, events=(warning(VOLUMES, volume, "VolumeMismatch", message),))


def claim_of(volume: Volume, reference: ObjectReference, cluster: ClusterState) -> Claim | None:
    """Return the claim of a reference. The uid counts: a wrong name must not cost a bound claim its volume."""
    named = cluster.claims.get(reference.key)
    if named is None or named.uid != reference.uid:
        for claim in cluster.claims.by_index("volume", volume.name):
            if claim.uid == reference.uid:
                return claim
    return named


def claim_about_to_bind(volume: Volume, cluster: ClusterState) -> Claim | None:
    """Return the claim whose side writes this volume next, if any. A phase written here would collide with that."""
    reference = volume.spec.claim_ref
    named = cluster.claims.get(reference.key) if reference is not None else None
    for claim in (*cluster.claims.by_index("volume", volume.name), *([named] if named is not None else [])):
        if claim.terminating and not claim.bound:
            continue
        outcome = decide_bound(claim, cluster) if claim.bound else decide_unbound(claim, cluster, delayed=True)
        if isinstance(outcome, Bind) and outcome.volume.name == volume.name:
            return claim
    return None


def never_bound(volume: Volume, claim: Claim) -> Patch | Wait:
    """Free the volume of a deleted claim that never pointed at it. No pod can have used it: nothing is reclaimed."""
    if volume.name == volume_name_of(claim) and claim.has_finalizer(names.PROVISIONING_FINALIZER):
        return Wait(reason=f"claim {claim.key} holds a record of what was made: that ends before this is freed")
    return unbind_patch(volume, why=f"claim {claim.key} is deleted before it was bound")


def half_bound(volume: Volume, claim: Claim) -> Wait:
    """Wait for the claim's side, as W1 is written and W3 is not, unless the two can never match."""
    if mode_of(claim) == mode_of(volume):
        return Wait(reason=f"claim {claim.key} is being bound to it")
    why = "due to incompatible volumeMode."
    on_volume = f'Cannot bind PersistentVolume to requested PersistentVolumeClaim "{claim.name}" {why}'
    on_claim = f'Cannot bind PersistentVolume "{volume.name}" to requested PersistentVolumeClaim {why}'
    events = (warning(VOLUMES, volume, "VolumeMismatch", on_volume), warning(CLAIMS, claim, "VolumeMismatch", on_claim))
    return Wait(reason=on_volume, events=events)


def not_released(volume: Volume, cluster: ClusterState, reads: LiveReads) -> Action | None:
    """Return what is missing until its asset may go; None once another binder released it and its claim is gone."""
    reference = volume.spec.claim_ref
    if reference is None or not reference.uid:
        # Never bound, or offered again: it stays until a person deletes the object.
        return None if volume.terminating else Settled()
    released = volume.status.phase in ("Released", "Failed")
    if not released and (not volume.terminating or volume.status.phase == "Bound"):
        return Wait(reason="the binder has not released it") if volume.terminating else Settled()
    if not reference.complete:
        return Wait(reason="spec.claimRef lacks namespace or name, so nobody can say whether its claim is gone")
    key = reference.key
    claim = reads.get(CLAIMS, key) if reads.has(CLAIMS, key) else cluster.claims.get(key)
    # The claim is gone, another one has its name, or it is bound elsewhere.
    if not isinstance(claim, Claim) or claim.uid != reference.uid or claim.spec.volume_name not in ("", volume.name):
        return None
    # It gets another asset, which its record names already.
    if can_never_be_bound(volume, claim) and has_newer_intent(volume, claim, cluster.sealer):
        return None
    return Wait(reason=f"claim {key} may still be bound to it")
