"""The steps of the binder for a volume: its phase, and what holds between it and the claim that it refers to. Pure.

Source: `syncVolume` of pv_controller.go of Kubernetes; docs/explanation/differences.md.
"""

from __future__ import annotations

from volplane.binding.decide import Bind, decide_bound, decide_unbound, migration_step, unbind_patch
from volplane.controller.actions import Action, LiveReads, Patch, Settled, Wait, warning
from volplane.intents.ownership import finalizer_step
from volplane.intents.record import can_never_be_bound, has_newer_intent
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, ObjectReference, Volume
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import mode_of, refers_to
from volplane.state.naming import volume_name_of

__all__ = [
    "claim_about_to_bind",
    "claim_of",
    "half_bound",
    "incomplete",
    "is_complete",
    "is_promised",
    "never_bound",
    "not_released",
    "rests_with_its_claim",
]


def rests_with_its_claim(volume: Volume, cluster: ClusterState) -> bool:
    """Whether it is bound, or the claim's side goes on binding it, and nothing about it is to be put right.

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
    """Whether a static volume refers to a claim that never pointed back: it is taken back while the claim exists."""
    if claim.spec.volume_name:
        return False
    volumes = map(cluster.volumes.get, cluster.reserved_for(claim.key))
    return any(v is not None and refers_to(v, claim) and v.annotation(names.PROVISIONED_BY) is None for v in volumes)


def is_complete(reference: ObjectReference) -> bool:
    """Whether a reference names a claim."""
    return bool(reference.namespace and reference.name)


def incomplete(volume: Volume) -> Wait:
    """Wait, since a reference that can match no claim is a mistake, and nothing may be destroyed for it."""
    message = "spec.claimRef lacks namespace or name, so it matches no claim; complete it or remove it"
    return Wait(reason=message, events=(warning(VOLUMES, volume, "VolumeMismatch", message),))


def claim_of(volume: Volume, reference: ObjectReference, cluster: ClusterState) -> Claim | None:
    """The claim a reference means. The uid counts: a wrong name beside it must not cost a bound claim its volume."""
    named = cluster.claims.get(reference.key)
    if named is None or named.uid != reference.uid:
        for claim in cluster.claims.by_index("volume", volume.name):
            if claim.uid == reference.uid:
                return claim
    return named


def claim_about_to_bind(volume: Volume, cluster: ClusterState) -> Claim | None:
    """The claim whose side writes this volume next, if there is one. A phase written here would collide with that."""
    reference = volume.spec.claim_ref
    named = cluster.claims.get(reference.key) if reference is not None else None
    for claim in (*cluster.claims.by_index("volume", volume.name), *([named] if named is not None else [])):
        bound = claim.annotation(names.BIND_COMPLETED) is not None
        if claim.terminating and not bound:
            continue
        outcome = decide_bound(claim, cluster) if bound else decide_unbound(claim, cluster, delayed=True)
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
    on_volume = (
        f'Cannot bind PersistentVolume to requested PersistentVolumeClaim "{claim.name}" due to '
        "incompatible volumeMode."
    )
    on_claim = (
        f'Cannot bind PersistentVolume "{volume.name}" to requested PersistentVolumeClaim due to '
        "incompatible volumeMode."
    )
    events = (
        warning(VOLUMES, volume, "VolumeMismatch", on_volume),
        warning(CLAIMS, claim, "VolumeMismatch", on_claim),
    )
    return Wait(reason=on_volume, events=events)


def not_released(volume: Volume, cluster: ClusterState, reads: LiveReads) -> Action | None:
    """What is missing until its asset may go; None once another binder released it, and its claim is not there."""
    reference = volume.spec.claim_ref
    if reference is None or not reference.uid:
        # Never bound, or offered again: it stays until a person deletes the object.
        return None if volume.terminating else Settled()
    released = volume.status.phase in ("Released", "Failed")
    if not released and (not volume.terminating or volume.status.phase == "Bound"):
        return Wait(reason="the binder has not released it") if volume.terminating else Settled()
    if not reference.namespace or not reference.name:
        return Wait(reason="spec.claimRef lacks namespace or name, so nobody can say whether its claim is gone")
    key = reference.key
    claim = reads.get(CLAIMS, key) if reads.has(CLAIMS, key) else cluster.claims.get(key)
    if not isinstance(claim, Claim) or claim.uid != reference.uid or claim.spec.volume_name not in ("", volume.name):
        return None
    if can_never_be_bound(volume, claim) and has_newer_intent(volume, claim, cluster.sealer):
        return None
    return Wait(reason=f"claim {key} may still be bound to it")
