"""Beside a stock kube-controller-manager, which binds, protects and writes every phase. Pure.

This process is an external provisioner: it serves a claim once the claim's annotation asks one of our drivers (and
names a node, where the class waits for one), and deletes a volume that our driver made once the binder has released
it. Nothing else is touched: no status, no annotation but our own, no volume of policy Recycle, no volume or claim that
is migrated. A volume of a class with `volplane.dev/on-release: recycle` is scrubbed instead; the binder offers it again
once its claim reference is gone.
Source: provisionClaimOperationExternal of pv_controller.go of Kubernetes, and sig-storage-lib-external-provisioner.
"""

from __future__ import annotations

from dataclasses import dataclass

from volplane.binding.decide import is_delayed, not_asked, not_released
from volplane.controller.actions import Action, LiveReads, Settled, Wait
from volplane.intents import record
from volplane.intents.ownership import finalizer_step, held_for_reclaim
from volplane.kube import names
from volplane.kube.objects import Claim, StorageClass, Volume
from volplane.provision import decide as provision
from volplane.provision.decide import finish
from volplane.reclaim.delete import DRIVER_GRACE, Terms, decide_delete, require_claim_gone
from volplane.reclaim.recycle import abandon_scrub, decide_recycle, recycles, remove_strays
from volplane.reclaim.scrub_claim import held_for_scrub
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import class_of_claim
from volplane.state.naming import is_in_tree
from volplane.state.records import may_be_kept, recycle_intent_of
from volplane.trash.choice import step_of_bound
from volplane.trash.decide import decide_trash


@dataclass(frozen=True)
class Beside:
    cluster: ClusterState
    provisions: bool
    reclaims: bool
    """Whether these duties are this process' too."""
    reclaim: Terms
    keeps: bool = True
    """Whether this process sees all claims, and so writes on volumes how long they are kept."""

    # --- claims --------------------------------------------------------------------------------------------------

    def claim_may_act(self, key: str) -> bool:
        """Return the predicate of claims: most of what the binder writes on one that is bound concerns nothing here."""
        claim = self.cluster.claims.get(key)
        if claim is None:
            return key in self.cluster.progress.vanished
        cloned = claim.terminating and claim.has_finalizer(names.CLONED_CLAIM)
        return not has_or_had_volume(claim) or cloned or record.left_to_end(claim, self.cluster)

    def decide_claim(self, key: str, reads: LiveReads) -> Action:
        cluster, claim = self.cluster, self.cluster.claims.get(key)
        if not self.provisions:
            return Settled()
        if claim is None:
            return record.discard_vanished(key, cluster)
        # What an earlier term has begun may have made an asset: its outcome comes first.
        if (step := record.take_over(claim, cluster, reads) or finish(claim, cluster, reads)) is not None:
            return step
        if has_or_had_volume(claim):
            return self._end_intent(claim, reads)
        class_name = class_of_claim(claim) or ""
        storage_class = cluster.classes.get(class_name) if class_name else None
        if storage_class is None:
            return record.class_is_gone(claim, class_name) if record.settled_metadata(claim) else Settled()
        if not cluster.has_driver(storage_class.provisioner):
            return self._end_intent(claim, reads)
        if is_delayed(storage_class) and not claim.annotation(names.SELECTED_NODE):
            return Wait(reason="waiting for first consumer: the scheduler has selected no node")
        if why := not_asked(claim, storage_class.provisioner):
            return Wait(reason=why)
        return self._provision(claim, storage_class, reads)

    def _provision(self, claim: Claim, storage_class: StorageClass, reads: LiveReads) -> Action:
        return provision.decide_provision(claim, storage_class, self.cluster, reads, provision.Terms())

    def _end_intent(self, claim: Claim, _reads: LiveReads, *, moved: bool = False) -> Action:
        """End an intent that leads nowhere, unless its driver may be another process's. moved: see `settle`."""
        cluster = self.cluster
        if not record.left_to_end(claim, cluster):
            return Settled()
        intent = cluster.intent_of(claim)
        driver = intent.driver if intent is not None else record.driver_of_class(claim, cluster)
        # The process of the node that has the asset ends it.
        if cluster.drivers.on_nodes(driver):
            return Settled()
        if not cluster.has_driver(driver):
            left = DRIVER_GRACE - cluster.seconds_since(claim.metadata.deletion_timestamp)
            # Another process may have this driver, and end what it began.
            if left > 0:
                seconds = left if claim.terminating else None
                return Wait(reason=f'driver "{driver}" is not configured here', seconds=seconds)
        return record.settle(claim, cluster, moved=moved) or Settled()

    # --- volumes -------------------------------------------------------------------------------------------------

    def volume_may_act(self, key: str) -> bool:
        """Return the predicate of volumes: one in use that has its finalizer and no record needs nothing."""
        volume = self.cluster.volumes.get(key)
        if volume is None or volume.terminating or volume.status.phase in ("Released", "Failed"):
            return True
        if volume.annotation(names.INTENT) is not None or finalizer_step(volume, self.cluster) is not None:
            return True
        if may_be_kept(volume):
            return True
        return self.reclaims and remove_strays(key, volume, self.cluster, LiveReads()) is not None

    def decide_volume(self, key: str, reads: LiveReads) -> Action:
        cluster, volume = self.cluster, self.cluster.volumes.get(key)
        if not self.reclaims:
            return Settled()
        if (stray := remove_strays(key, volume, cluster, reads)) is not None:
            return stray
        # Static, migrated and in-tree volumes are others', and the processes of nodes delete what is on their nodes.
        maker = (volume.annotation(names.PROVISIONED_BY) if volume is not None else None) or ""
        if volume is None or not maker or volume.annotation(names.MIGRATED_TO) or is_in_tree(maker):
            return Settled()
        if not cluster.drivers.on_nodes(maker):
            return self._made_by(maker, volume, reads)
        # Only this process sees all claims; that of the node deletes it in the end.
        if (kept := self._kept(volume, reads)) is not None:
            return kept
        # Only a scrub needs this process, which alone sees pods.
        if recycle_intent_of(volume) is None and (volume.terminating or not recycles(volume)):
            return Settled()
        return require_claim_gone(volume, self._reclaim(volume, reads), cluster, reads)

    def _made_by(self, maker: str, volume: Volume, reads: LiveReads) -> Action:
        cluster = self.cluster
        if cluster.drivers.get(maker) is None and not (may_be_kept(volume) and cluster.has_driver(maker)):
            going = volume.terminating or volume.status.phase in ("Released", "Failed")
            deletes = volume.spec.persistent_volume_reclaim_policy == "Delete"
            if not (going and deletes and volume.has_finalizer(names.RECLAIM_FINALIZER)):
                return Settled()
            return decide_delete(volume, cluster, self.reclaim)
        if (step := finalizer_step(volume, cluster)) is not None:
            return step
        if (kept := self._kept(volume, reads)) is not None:
            return kept
        return require_claim_gone(volume, self._reclaim(volume, reads), cluster, reads)

    def _kept(self, volume: Volume, reads: LiveReads) -> Action | None:
        """Return what is to be done about a volume that is kept after its claim; None: nothing, or it is over."""
        cluster, deletes = self.cluster, volume.spec.persistent_volume_reclaim_policy == "Delete"
        if not may_be_kept(volume) or volume.terminating or not deletes or recycles(volume):
            return None
        if volume.annotation(names.INTENT) is not None:
            return None  # A scrub that has begun ends first.
        if (step := step_of_bound(volume, cluster)) is not None:
            return step if self.keeps else None
        if not_released(volume, cluster, reads) is not None:
            return None
        kept = decide_trash(volume, cluster, reads, keeps=self.keeps)
        return require_claim_gone(volume, kept, cluster, reads) if kept is not None else None

    def _reclaim(self, volume: Volume, reads: LiveReads) -> Action:
        cluster = self.cluster
        # The binder sees a bound volume, so this comes before what a release demands.
        if held_for_scrub(volume):
            if volume.terminating:
                return abandon_scrub(volume, cluster, reads)
            return decide_recycle(volume, cluster, reads, self.reclaim)
        deletes = volume.spec.persistent_volume_reclaim_policy == "Delete"
        blocked: Action | None = Settled()
        if deletes and (not volume.terminating or held_for_reclaim(volume)):
            blocked = not_released(volume, cluster, reads)
        begun = recycle_intent_of(volume) is not None
        if blocked is None and not volume.terminating and (begun or recycles(volume)):
            return decide_recycle(volume, cluster, reads, self.reclaim)
        if begun:
            # The binder may give the volume to a claim, or it goes: nothing more may be erased on it.
            return abandon_scrub(volume, cluster, reads)
        return blocked or decide_delete(volume, cluster, self.reclaim)


def has_or_had_volume(claim: Claim) -> bool:
    """Whether nothing is to be provisioned for the claim: it points at a volume, did so, or is being deleted."""
    return bool(claim.terminating or claim.spec.volume_name or claim.bound)
