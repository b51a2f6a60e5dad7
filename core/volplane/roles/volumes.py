"""The next step for a volume: its phase, its release, its reclaim. Pure.

Source: syncVolume and reclaimVolume of pv_controller.go of Kubernetes; docs/explanation/differences.md.
"""

from __future__ import annotations

from volplane.binding.decide import Bind, decide_bound, decide_unbound, migration_step, unbind_patch, volume_phase_step
from volplane.binding.matching import mode_of, refers_to
from volplane.controller.actions import Action, LiveReads, Patch, Read, Settled, Wait, warning
from volplane.intents.finalizers import finalizer_step, held_for_reclaim
from volplane.intents.record import can_never_be_bound, has_newer_intent
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, ObjectReference, Volume
from volplane.reclaim.delete import decide_delete, once_proven
from volplane.reclaim.recycle import abandon_scrub, decide_recycle, end_scrub, recycles, remove_stray_pod
from volplane.reclaim.scrub_claim import held_for_scrub, remove_stray_claim
from volplane.roles.beside import decide_external_volume, external_volume_may_act
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import volume_name_of
from volplane.state.records import read_recycle_intent

__all__ = ["VolumeReconciler", "decide_volume", "promised"]


class VolumeReconciler:
    """Decides volumes."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster

    def __call__(self, key: str, reads: LiveReads) -> Action:
        return decide_volume(key, self._cluster, reads)

    def may_act(self, key: str) -> bool:
        """The predicate of the volumes' runner. What is left of a scrub concerns a volume that is gone too."""
        cluster = self._cluster
        volume = cluster.volumes.get(key)
        if volume is None:
            return True
        if cluster.settings.binder:
            acts = not _rests_with_its_claim(volume, cluster)
        else:
            acts = external_volume_may_act(volume, cluster)
        if acts:
            return True
        return cluster.settings.reclaimer and _stray(key, volume, cluster, LiveReads()) is not None


def decide_volume(key: str, cluster: ClusterState, reads: LiveReads) -> Action:
    """The single next action for the volume with this name."""
    volume = cluster.volumes.get(key)
    on_node = _served_on_its_node(volume, cluster) if volume is not None else None
    scrubs = cluster.settings.reclaimer and on_node is None
    if scrubs and (stray := _stray(key, volume, cluster, reads)) is not None:
        return stray
    if volume is None:
        return Settled()
    if not cluster.settings.binder:
        return decide_external_volume(volume, cluster, reads)
    ours = cluster.has_driver(volume.annotation(names.PROVISIONED_BY) or "")
    step = migration_step(VOLUMES, volume) or finalizer_step(volume, ours=ours)
    if step is not None:
        return step
    if volume.annotation(names.INTENT) is not None:
        scrub = on_node or _scrub_in_the_way(volume, cluster, reads)
        if scrub is not None:
            return scrub
    reference = volume.spec.claim_ref
    if reference is None or not reference.uid:
        return _unreferenced(volume, cluster, reads)
    if not _complete(reference):
        return _incomplete(volume)
    claim = _claim_of(volume, reference, cluster)
    if claim is None or claim.uid != reference.uid:
        return once_proven(volume, _released(volume, cluster, reads), cluster, reads)
    return _referenced(volume, claim, cluster, reads)


def _rests_with_its_claim(volume: Volume, cluster: ClusterState) -> bool:
    """Whether it is bound, or the claim's side goes on binding it, and nothing about it is to be put right.

    What becomes of the claim wakes it.
    """
    reference = volume.spec.claim_ref
    if reference is None or volume.annotation(names.INTENT) is not None:
        return False
    claim = cluster.claims.get(_claim_key(reference))
    if claim is None or not refers_to(volume, claim):
        return False
    if claim.spec.volume_name:
        settled = claim.spec.volume_name == volume.name and volume.status.phase == "Bound"
    else:
        settled = not claim.terminating and mode_of(claim) == mode_of(volume) and not can_never_be_bound(volume, claim)
    ours = cluster.has_driver(volume.annotation(names.PROVISIONED_BY) or "")
    return settled and migration_step(VOLUMES, volume) is None and finalizer_step(volume, ours=ours) is None


def _served_on_its_node(volume: Volume, cluster: ClusterState) -> Wait | None:
    """What becomes of an asset that lives on a node is for the process of that node; phases are the binder's."""
    if not cluster.drivers.on_nodes(volume.annotation(names.PROVISIONED_BY) or ""):
        return None
    return Wait(reason="the process of its node reclaims it")


def _stray(key: str, volume: Volume | None, cluster: ClusterState, reads: LiveReads) -> Action | None:
    return remove_stray_pod(key, volume, cluster, reads) or remove_stray_claim(key, volume, cluster)


def _scrub_in_the_way(volume: Volume, cluster: ClusterState, reads: LiveReads) -> Action | None:
    """What a scrub demands that has begun, whatever else there is to say about the volume; None if there is none."""
    if volume.terminating and read_recycle_intent(volume.annotation(names.INTENT)) is not None:
        return abandon_scrub(volume, cluster, reads)
    if held_for_scrub(volume):
        return decide_recycle(volume, cluster, reads) if recycles(volume) else end_scrub(volume, cluster, reads)
    return None


def promised(claim: Claim, cluster: ClusterState) -> bool:
    """Whether a static volume refers to a claim that never pointed back: it is taken back while the claim exists."""
    if claim.spec.volume_name or not cluster.settings.binder:
        return False
    volumes = map(cluster.volumes.get, cluster.reserved_for(claim.key))
    return any(v is not None and refers_to(v, claim) and v.annotation(names.PROVISIONED_BY) is None for v in volumes)


def _claim_key(reference: ObjectReference) -> str:
    return f"{reference.namespace}/{reference.name}"


def _claim_of(volume: Volume, reference: ObjectReference, cluster: ClusterState) -> Claim | None:
    """The claim a reference means. The uid counts: a wrong name beside it must not cost a bound claim its volume."""
    named = cluster.claims.get(_claim_key(reference))
    if named is None or named.uid != reference.uid:
        for claim in cluster.claims.by_index("volume", volume.name):
            if claim.uid == reference.uid:
                return claim
    return named


def _unreferenced(volume: Volume, cluster: ClusterState, reads: LiveReads) -> Action:
    """No claim, or a person's reservation without uid."""
    taker = next((claim for claim in _claims_near(volume, cluster) if _about_to_bind(volume, claim, cluster)), None)
    if volume.terminating and held_for_reclaim(volume):
        if volume.status.phase in ("Released", "Failed"):
            return _served_on_its_node(volume, cluster) or decide_delete(volume, cluster)
        if taker is not None:
            return Wait(reason=f"claim {taker.key} is about to be bound to it")
        # From this write on no binder takes it any more.
        return volume_phase_step(volume, "Released") or Settled()
    if volume.annotation(names.INTENT) is not None:
        # A person removed the reference in the middle of a scrub: it is finished before anybody gets the volume.
        return decide_recycle(volume, cluster, reads) if recycles(volume) else end_scrub(volume, cluster, reads)
    if taker is not None:
        return Wait(reason=f"claim {taker.key} is about to be bound to it")
    if (step := volume_phase_step(volume, "Available")) is not None:
        return step
    reference = volume.spec.claim_ref
    return Settled() if reference is None or _complete(reference) else _incomplete(volume)


def _complete(reference: ObjectReference) -> bool:
    return bool(reference.namespace and reference.name)


def _incomplete(volume: Volume) -> Wait:
    """A reference that can match no claim is a mistake, and nothing may be destroyed for it."""
    message = "spec.claimRef lacks namespace or name, so it matches no claim; complete it or remove it"
    return Wait(reason=message, events=(warning(VOLUMES, volume, "VolumeMismatch", message),))


def _claims_near(volume: Volume, cluster: ClusterState) -> list[Claim]:
    """Claims that point at the volume, and the one that its reference names."""
    reference = volume.spec.claim_ref
    named = cluster.claims.get(_claim_key(reference)) if reference is not None else None
    return [*cluster.claims.by_index("volume", volume.name), *([named] if named is not None else [])]


def _about_to_bind(volume: Volume, claim: Claim, cluster: ClusterState) -> bool:
    """The claim's side writes this volume next; a phase written here would only collide with that."""
    bound = claim.annotation(names.BIND_COMPLETED) is not None
    if claim.terminating and not bound:
        return False
    outcome = decide_bound(claim, cluster) if bound else decide_unbound(claim, cluster, delayed=True)
    return isinstance(outcome, Bind) and outcome.volume.name == volume.name


def _referenced(volume: Volume, claim: Claim, cluster: ClusterState, reads: LiveReads) -> Action:
    """The claim it is bound to, or about to be, exists."""
    if volume.annotation(names.INTENT) is not None:
        if not reads.has(CLAIMS, claim.key):
            # Whoever declared the scrub saw it gone, live; it may be this cache that is behind.
            return Read(CLAIMS, claim.key, why="is it there, though its volume is to be scrubbed?")
        return abandon_scrub(volume, cluster, reads)
    pointer = claim.spec.volume_name
    if not pointer:
        if claim.terminating and volume.annotation(names.PROVISIONED_BY) is None:
            return _never_bound(volume, claim)
        if can_never_be_bound(volume, claim):
            if has_newer_intent(volume, claim, cluster.sealer):
                return _reclaim(volume, cluster, reads)
            return Wait(reason=f"claim {claim.key} is to ask for another one before this is destroyed")
        return _half_bound(volume, claim)
    if pointer == volume.name:
        if volume.status.phase == "Released" and not reads.has(CLAIMS, claim.key):
            return Read(CLAIMS, claim.key, why="somebody saw it gone: is the claim there?")
        return volume_phase_step(volume, "Bound") or Settled()
    dynamic = volume.annotation(names.PROVISIONED_BY) is not None
    if dynamic and volume.spec.persistent_volume_reclaim_policy == "Delete":
        return _released(volume, cluster, reads)
    return unbind_patch(volume, why=f"claim {claim.key} is bound to {pointer}")


def _never_bound(volume: Volume, claim: Claim) -> Patch | Wait:
    """Its claim, which never pointed at it, is deleted. No pod can have used it: nothing is to be reclaimed."""
    if volume.name == volume_name_of(claim) and claim.has_finalizer(names.PROVISIONING_FINALIZER):
        return Wait(reason=f"claim {claim.key} holds a record of what was made: that ends before this is freed")
    return unbind_patch(volume, why=f"claim {claim.key} is deleted before it was bound")


def _half_bound(volume: Volume, claim: Claim) -> Action:
    """W1 is written, W3 is not: the claim's side goes on, unless the two can never match."""
    if mode_of(claim) != mode_of(volume):
        on_volume = (
            f'Cannot bind PersistentVolume to requested PersistentVolumeClaim "{claim.name}" due to '
            "incompatible volumeMode."
        )
        on_claim = (
            f'Cannot bind PersistentVolume "{volume.name}" to requested PersistentVolumeClaim due to '
            "incompatible volumeMode."
        )
        return Wait(
            reason=on_volume,
            events=(
                warning(VOLUMES, volume, "VolumeMismatch", on_volume),
                warning(CLAIMS, claim, "VolumeMismatch", on_claim),
            ),
        )
    return Wait(reason=f"claim {claim.key} is being bound to it")


def _released(volume: Volume, cluster: ClusterState, reads: LiveReads) -> Action:
    """Its claim is gone, or bound elsewhere. Policy decides; the phase comes first, as protection waits for it."""
    if volume.status.phase not in ("Released", "Failed"):
        return volume_phase_step(volume, "Released") or _reclaim(volume, cluster, reads)
    return _reclaim(volume, cluster, reads)


def _reclaim(volume: Volume, cluster: ClusterState, reads: LiveReads) -> Action:
    if volume.annotation(names.MIGRATED_TO) or not cluster.settings.reclaimer:
        return Settled()
    if (there := _served_on_its_node(volume, cluster)) is not None:
        return there
    policy = volume.spec.persistent_volume_reclaim_policy
    if volume.terminating:
        # A static volume that nothing of ours holds may be gone at any moment: its asset stays with who made it.
        mine = held_for_reclaim(volume) or volume.annotation(names.PROVISIONED_BY) is not None
        return decide_delete(volume, cluster) if mine and policy == "Delete" else Settled()
    if recycles(volume):
        return decide_recycle(volume, cluster, reads)
    if volume.annotation(names.INTENT) is not None:
        return end_scrub(volume, cluster, reads)
    match policy:
        case "Retain":
            return Settled()
        case "Delete":
            return decide_delete(volume, cluster)
        case _:
            message = "Volume has unrecognized PersistentVolumeReclaimPolicy"
            events = (warning(VOLUMES, volume, "VolumeUnknownReclaimPolicy", message),)
            return volume_phase_step(volume, "Failed", message, events=events) or Wait(reason=message)
