"""The whole control plane: this process binds claims and volumes, so it decides every step of theirs. Pure.

Source: pkg/controller/volume/persistentvolume/pv_controller.go of Kubernetes; docs/explanation/differences.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from volplane.binding import decide as binding
from volplane.controller.actions import Action, LiveReads, Patch, Read, Settled, Wait, warning
from volplane.intents import record
from volplane.intents.ownership import finalizer_step, held_for_reclaim
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, StorageClass, Volume
from volplane.provision import decide as provision
from volplane.provision.decide import finish
from volplane.reclaim.delete import Terms, decide_delete, require_claim_gone
from volplane.reclaim.recycle import abandon_scrub, decide_recycle, recycles, remove_strays
from volplane.reclaim.scrub_claim import held_for_scrub
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import class_of_claim, refers_to
from volplane.state.naming import volume_name_of
from volplane.state.records import may_be_kept, recycle_intent_of, trashed
from volplane.trash.choice import step_of_bound
from volplane.trash.decide import decide_trash, in_trash


@dataclass(frozen=True, slots=True)
class Whole:
    cluster: ClusterState
    provisions: bool
    reclaims: bool
    """Whether these duties are this process' too."""
    reclaim: Terms

    # --- claims --------------------------------------------------------------------------------------------------

    def claim_may_act(self, key: str) -> bool:
        """Return the predicate of claims: nothing is left to be decided about one that is gone."""
        return key in self.cluster.claims or key in self.cluster.progress.vanished

    def decide_claim(self, key: str, reads: LiveReads) -> Action:
        cluster, claim = self.cluster, self.cluster.claims.get(key)
        if claim is None:
            return record.discard_vanished(key, cluster)
        # First: the annotation says which driver serves it.
        if (step := binding.migration_step(CLAIMS, claim)) is not None:
            return step
        taken = record.take_over(claim, cluster, reads) if self.provisions else None
        if (first := taken or finish(claim, cluster, reads)) is not None:
            return first
        if claim.terminating and not claim.annotation(names.BIND_COMPLETED):
            return self._settle(claim) or Settled()
        if not claim.bound:
            return self._unbound(claim, reads)
        outcome = binding.decide_bound(claim, cluster)
        if (read := binding.confirm(claim, outcome, reads)) is not None:
            return read
        return (self._settle(claim) if isinstance(outcome, Wait) else None) or self._follow(outcome, claim)

    def _unbound(self, claim: Claim, reads: LiveReads) -> Action:
        cluster, made = self.cluster, self.cluster.volumes.get(volume_name_of(claim))
        # Its volume is being deleted: another asset has to be made, and told apart from that one.
        if self.provisions and made is not None and refers_to(made, claim) and record.can_never_be_bound(made, claim):
            return record.after_deleted_volume(claim, made, cluster)
        class_name = class_of_claim(claim)
        storage_class = cluster.classes.get(class_name) if class_name else None
        outcome = binding.decide_unbound(
            claim, cluster, delayed=storage_class is not None and binding.is_delayed(storage_class)
        )
        if outcome is not None:
            return self._follow(outcome, claim)
        if storage_class is None:
            return binding.no_volume_fits(claim, class_name, cluster)
        return self._provision(claim, storage_class, reads)

    def _provision(self, claim: Claim, storage_class: StorageClass, reads: LiveReads) -> Action:
        """Return the action for a claim that no volume fits: have one made, with the annotations of a binder."""
        if binding.is_delayed(storage_class) and not claim.annotation(names.SELECTED_NODE):
            return binding.wait_for_consumer(claim, self.cluster)
        if not self.provisions:
            return binding.pending(claim, "no volume fits and provisioning is switched off")
        provisioner = provision.provisioner_of(storage_class, self.cluster)
        named = {names.STORAGE_PROVISIONER: provisioner, names.BETA_STORAGE_PROVISIONER: provisioner}
        terms = provision.Terms(
            on_claim=named if claim.annotation(names.STORAGE_PROVISIONER) != provisioner else {},
            on_volume={"annotations": {names.BOUND_BY_CONTROLLER: "yes"}},
        )
        return provision.decide_provision(claim, storage_class, self.cluster, reads, terms)

    def _settle(self, claim: Claim) -> Action | None:
        return record.settle(claim, self.cluster) if self.provisions else None

    def _follow(self, outcome: binding.Bind | Action, claim: Claim) -> Action:
        """Turn a choice of volume into the next write, and when all is written settle what is left of an intent."""
        if not isinstance(outcome, binding.Bind):
            return outcome
        volume, metadata = outcome.volume, record.settled_metadata(claim)
        on_node = self.cluster.drivers.on_nodes(volume.annotation(names.PROVISIONED_BY) or "")
        if volume.name != volume_name_of(claim) or (
            on_node and record.has_newer_intent(volume, claim, self.cluster.sealer)
        ):
            metadata = {}  # The intent is about another asset, which ends it; on another node the process there.
        return binding.bind_step(claim, volume, claim_metadata=metadata) or self._settle(claim) or Settled()

    # --- volumes -------------------------------------------------------------------------------------------------

    def volume_may_act(self, key: str) -> bool:
        """Return the predicate of volumes. What is left of a scrub concerns a volume that is gone too."""
        volume = self.cluster.volumes.get(key)
        if volume is None or not binding.rests_with_its_claim(volume, self.cluster):
            return True
        return self.reclaims and remove_strays(key, volume, self.cluster, LiveReads()) is not None

    def decide_volume(self, key: str, reads: LiveReads) -> Action:
        cluster, volume = self.cluster, self.cluster.volumes.get(key)
        if self.reclaims and (stray := remove_strays(key, volume, cluster, reads)) is not None:
            return stray
        if volume is None:
            return Settled()
        if (step := binding.migration_step(VOLUMES, volume) or finalizer_step(volume, cluster)) is not None:
            return step
        # A scrub that has begun comes first. A volume that is being deleted is offered to no claim: nothing is erased.
        scrubbed = recycle_intent_of(volume) is not None
        if scrubbed and volume.terminating:
            return abandon_scrub(volume, cluster, reads)
        if scrubbed and held_for_scrub(volume):
            return decide_recycle(volume, cluster, reads, self.reclaim)
        reference = volume.spec.claim_ref
        if reference is None or not reference.uid:
            return self._unreferenced(volume, reads)
        if not reference.complete:
            return binding.incomplete(volume)
        claim = binding.claim_of(volume, reference, cluster)
        # A claim of that name with another uid is another claim. That ours is gone is read live before it counts.
        if claim is None or claim.uid != reference.uid:
            action = require_claim_gone(volume, self._released(volume, reads), cluster, reads)
            if isinstance(action, Patch) and action.subresource == "status" and volume.status.phase == "Failed":
                # Two processes that lead at once know different reasons, and would write over each other's without end.
                return record.not_leading(cluster, reads) or action
            return action
        return self._referenced(volume, claim, reads)

    def _delete(self, volume: Volume) -> Action:
        if self.cluster.drivers.on_nodes(volume.annotation(names.PROVISIONED_BY) or ""):
            return Wait(reason="the process of its node deletes it")
        return decide_delete(volume, self.cluster, self.reclaim)

    def _unreferenced(self, volume: Volume, reads: LiveReads) -> Action:
        """Return the action for a volume without a claim, or with a person's reservation without uid."""
        taker = binding.claim_about_to_bind(volume, self.cluster)
        waits = Wait(reason=f"claim {taker.key} is about to be bound to it") if taker is not None else None
        if volume.terminating and held_for_reclaim(volume):
            if volume.status.phase in ("Released", "Failed"):
                return self._delete(volume)
            # From this write on no binder takes it any more.
            return waits or binding.volume_phase_step(volume, "Released") or Settled()
        if volume.spec.claim_ref is None and in_trash(volume) is not None:
            return self._reclaim(volume, reads)  # A person removed the reference of a volume in the trash: it stays.
        if volume.annotation(names.INTENT) is not None:
            # A person removed the reference in the middle of a scrub: it is finished before anybody gets the volume.
            return decide_recycle(volume, self.cluster, reads, self.reclaim)
        if (step := waits or binding.volume_phase_step(volume, "Available")) is not None:
            return step
        reference = volume.spec.claim_ref
        return Settled() if reference is None or reference.complete else binding.incomplete(volume)

    def _referenced(self, volume: Volume, claim: Claim, reads: LiveReads) -> Action:
        """Return the action for a volume whose claim, to which it is or will be bound, exists."""
        if volume.annotation(names.INTENT) is not None:
            if not reads.has(CLAIMS, claim.key):
                # Whoever declared the scrub saw it gone, live; it may be this cache that is behind.
                return Read(CLAIMS, claim.key, why="is it there, though its volume is to be scrubbed?")
            return abandon_scrub(volume, self.cluster, reads)
        pointer = claim.spec.volume_name
        if not pointer:
            # A static volume goes back to the others; nothing on it was used, unless it is given out of the trash.
            if claim.terminating and volume.annotation(names.PROVISIONED_BY) is None and trashed(volume) is None:
                return binding.never_bound(volume, claim)
            if not record.can_never_be_bound(volume, claim):
                return binding.half_bound(volume, claim)
            # Only once the claim has asked for another one: until then it could still count this one as its own.
            if record.has_newer_intent(volume, claim, self.cluster.sealer):
                return self._reclaim(volume, reads)
            return Wait(reason=f"claim {claim.key} is to ask for another one before this is destroyed")
        if pointer == volume.name:
            if volume.status.phase == "Released" and not reads.has(CLAIMS, claim.key):
                return Read(CLAIMS, claim.key, why="somebody saw it gone: is the claim there?")
            chosen = step_of_bound(volume, self.cluster) if may_be_kept(volume) else None
            return binding.volume_phase_step(volume, "Bound") or chosen or Settled()
        # The claim has another volume. One that was made for it is of no use to others; any other is offered again.
        used = volume.annotation(names.PROVISIONED_BY) is not None or trashed(volume) is not None
        if used and volume.spec.persistent_volume_reclaim_policy == "Delete":
            return self._released(volume, reads)
        return binding.unbind_patch(volume, why=f"claim {claim.key} is bound to {pointer}")

    def _released(self, volume: Volume, reads: LiveReads) -> Action:
        """Return the action after the claim is gone, or bound elsewhere. The phase comes first: protection waits."""
        known = volume.status.phase in ("Released", "Failed")
        return (None if known else binding.volume_phase_step(volume, "Released")) or self._reclaim(volume, reads)

    def _reclaim(self, volume: Volume, reads: LiveReads) -> Action:
        # A volume that is migrated is reclaimed by the provisioner of its CSI driver.
        if volume.annotation(names.MIGRATED_TO) or not self.reclaims:
            return Settled()
        policy = volume.spec.persistent_volume_reclaim_policy
        if volume.terminating:
            # A static volume that nothing of ours holds may be gone at any moment: its asset stays with who made it.
            mine = held_for_reclaim(volume) or volume.annotation(names.PROVISIONED_BY) is not None
            return self._delete(volume) if mine and policy == "Delete" else Settled()
        if recycles(volume) or volume.annotation(names.INTENT) is not None:
            return decide_recycle(volume, self.cluster, reads, self.reclaim)
        match policy:
            case "Retain":
                return Settled()
            case "Delete":
                kept = decide_trash(volume, self.cluster, reads) if may_be_kept(volume) else None
                return kept or self._delete(volume)
            case _:
                message = "Volume has unrecognized PersistentVolumeReclaimPolicy"
                events = (warning(VOLUMES, volume, "VolumeUnknownReclaimPolicy", message),)
                return binding.volume_phase_step(volume, "Failed", message, events=events) or Wait(reason=message)
