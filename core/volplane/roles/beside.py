"""The decisions beside a stock kube-controller-manager, which binds, protects and writes every phase. Pure.

We are an external provisioner: a claim is served once its annotation asks one of our drivers (and names a node, where
its class waits for one), and a volume that our driver made is deleted once the binder has released it. Nothing else is
touched: no status, no annotation but our own, no volume of policy Recycle, no volume or claim that is migrated. A
volume of a class with `volplane.dev/on-release: recycle` is scrubbed instead; the binder offers it again once its claim
reference is gone.
Source: provisionClaimOperationExternal of pv_controller.go of Kubernetes, and sig-storage-lib-external-provisioner.
"""

from __future__ import annotations

from datetime import UTC, datetime

from volplane.binding.matching import class_of_claim
from volplane.controller.actions import Action, LiveReads, Read, Settled, Wait, warning
from volplane.intents.finalizers import finalizer_step, held_for_reclaim
from volplane.intents.node import claim_elsewhere, volume_elsewhere
from volplane.intents.record import (
    can_never_be_bound,
    class_is_gone,
    driver_of_class,
    has_newer_intent,
    settle,
    settled_metadata,
)
from volplane.intents.term import take_over
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, StorageClass, Volume
from volplane.placement.race import decide_race
from volplane.placement.recognise import decide_recognition
from volplane.provision.decide import decide_provision
from volplane.provision.persistentvolume import restore_annotations
from volplane.reclaim.delete import decide_delete, once_proven
from volplane.reclaim.recycle import abandon_scrub, decide_recycle, end_scrub, recycles
from volplane.reclaim.scrub_claim import held_for_scrub
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import is_in_tree
from volplane.state.records import read_recycle_intent

__all__ = ["decide_external_claim", "decide_external_volume", "external_claim_may_act", "external_volume_may_act"]

DRIVER_GRACE = 60.0
"""Seconds that a volume may wait for a driver that is not configured here; another process may have it."""


def decide_external_claim(claim: Claim, cluster: ClusterState, reads: LiveReads) -> Action:
    """The next action for a claim that the stock binder binds."""
    if not cluster.settings.provisioner:
        return Settled()
    if (step := take_over(claim, cluster, reads) or restore_annotations(claim, cluster)) is not None:
        return step
    if claim.terminating or claim.spec.volume_name or claim.annotation(names.BIND_COMPLETED) is not None:
        return _settle_bound(claim, cluster, reads)
    class_name = class_of_claim(claim) or ""
    storage_class = cluster.classes.get(class_name) if class_name else None
    if storage_class is None:
        return class_is_gone(claim, class_name) if settled_metadata(claim) else Settled()
    if not cluster.has_driver(storage_class.provisioner):
        return _settle(claim, cluster)
    if why := _not_asked(claim, storage_class):
        return Wait(reason=why)
    driver = cluster.drivers.get(storage_class.provisioner)
    if driver is not None and (taken := decide_race(claim, storage_class, driver, cluster)) is not None:
        return taken
    if why := claim_elsewhere(claim, cluster):
        return Wait(reason=why)
    return decide_provision(claim, storage_class, cluster, reads)


def external_claim_may_act(claim: Claim, cluster: ClusterState) -> bool:
    """Whether something may be left to do for a claim; most of what the binder writes on one that is bound is not."""
    going = claim.terminating or claim.spec.volume_name or claim.annotation(names.BIND_COMPLETED) is not None
    return not going or bool(settled_metadata(claim)) or bool(cluster.settings.node_name)


def _settle_bound(claim: Claim, cluster: ClusterState, reads: LiveReads) -> Action:
    """The same for a claim that is bound or terminating."""
    name = claim.spec.volume_name
    unseen = name and name not in cluster.volumes and not reads.has(VOLUMES, name)
    if cluster.settings.node_name and settled_metadata(claim) and unseen:
        # A volume of another node is in no watch of ours.
        return Read(VOLUMES, name, why="what is the claim bound to?")
    if cluster.settings.node_name and name and claim.status.phase != "Bound" and not claim.terminating:
        return Wait(reason="the binder is writing the claim")
    return _settle(claim, cluster)


def _settle(claim: Claim, cluster: ClusterState) -> Action:
    """End an intent that leads nowhere any more. One of a driver that we do not have may be another process's."""
    if not settled_metadata(claim):
        return Settled()
    if why := claim_elsewhere(claim, cluster):
        return Wait(reason=why)
    intent = cluster.intent_of(claim)
    driver = intent.driver if intent is not None else driver_of_class(claim, cluster)
    if cluster.drivers.on_nodes(driver):
        return Settled()
    if not cluster.has_driver(driver):
        left = DRIVER_GRACE - _seconds_since(claim.metadata.deletion_timestamp, cluster.now())
        if left > 0:
            seconds = left if claim.terminating else None
            return Wait(reason=f'driver "{driver}" is not configured here', seconds=seconds)
    return settle(claim, cluster) or Settled()


def _not_asked(claim: Claim, storage_class: StorageClass) -> str:
    """Why it is not our turn, or ""."""
    asked = claim.annotation(names.STORAGE_PROVISIONER) or claim.annotation(names.BETA_STORAGE_PROVISIONER)
    if asked != storage_class.provisioner:
        return f'the binder has not asked driver "{storage_class.provisioner}" for a volume'
    if (migrated := claim.annotation(names.MIGRATED_TO)) and migrated != asked:
        return f'the claim is migrated to "{migrated}"'
    if storage_class.volume_binding_mode == "WaitForFirstConsumer" and not claim.annotation(names.SELECTED_NODE):
        return "the scheduler has not selected a node"
    return ""


def decide_external_volume(volume: Volume, cluster: ClusterState, reads: LiveReads) -> Action:
    """The next action for a volume that the stock binder binds and releases."""
    maker = volume.annotation(names.PROVISIONED_BY) or ""
    migrated = volume.annotation(names.MIGRATED_TO)
    if not maker or migrated or is_in_tree(maker) or not cluster.settings.reclaimer:
        return Settled()
    if cluster.drivers.on_nodes(maker):
        return Settled()
    if cluster.has_driver(maker) and (why := volume_elsewhere(volume, cluster)):
        return decide_recognition(volume, cluster) or Wait(reason=why)
    if cluster.drivers.get(maker) is None:
        return _without_driver(volume, maker, cluster)
    if (step := finalizer_step(volume, ours=True)) is not None:
        return step
    return once_proven(volume, _reclaim(volume, cluster, reads), cluster, reads)


def external_volume_may_act(volume: Volume, cluster: ClusterState) -> bool:
    """Whether something may be left to do for a volume; not for one in use that has its finalizer and no record."""
    if volume.terminating or volume.status.phase in ("Released", "Failed") or cluster.settings.node_name:
        return True
    return volume.annotation(names.INTENT) is not None or finalizer_step(volume, ours=True) is not None


def _reclaim(volume: Volume, cluster: ClusterState, reads: LiveReads) -> Action:
    if held_for_scrub(volume):
        if volume.terminating:
            return abandon_scrub(volume, cluster, reads)
        return decide_recycle(volume, cluster, reads) if recycles(volume) else end_scrub(volume, cluster, reads)
    blocked = _not_ours_to_reclaim(volume) or _not_released(volume, cluster, reads)
    if blocked is None and recycles(volume) and not volume.terminating:
        return decide_recycle(volume, cluster, reads)
    if read_recycle_intent(volume.annotation(names.INTENT)) is not None:
        ends = blocked is None and not volume.terminating
        return end_scrub(volume, cluster, reads) if ends else abandon_scrub(volume, cluster, reads)
    return blocked or decide_delete(volume, cluster)


def _not_ours_to_reclaim(volume: Volume) -> Action | None:
    deletes = volume.spec.persistent_volume_reclaim_policy == "Delete"
    return Settled() if not deletes or (volume.terminating and not held_for_reclaim(volume)) else None


def _not_released(volume: Volume, cluster: ClusterState, reads: LiveReads) -> Action | None:
    """What must be so before its asset may go; None once the binder released it, and its claim is not there."""
    reference = volume.spec.claim_ref
    if reference is None or not reference.uid:
        # Never bound, or offered again: it stays until a person deletes the object.
        return None if volume.terminating else Settled()
    released = volume.status.phase in ("Released", "Failed")
    if not released and (not volume.terminating or volume.status.phase == "Bound"):
        return Wait(reason="the binder has not released it") if volume.terminating else Settled()
    if not reference.namespace or not reference.name:
        return Wait(reason="spec.claimRef lacks namespace or name, so nobody can say whether its claim is gone")
    key = f"{reference.namespace}/{reference.name}"
    claim = reads.get(CLAIMS, key) if reads.has(CLAIMS, key) else cluster.claims.get(key)
    if not isinstance(claim, Claim) or claim.uid != reference.uid or claim.spec.volume_name not in ("", volume.name):
        return None
    if can_never_be_bound(volume, claim) and has_newer_intent(volume, claim, cluster.sealer):
        return None
    return Wait(reason=f"claim {key} may still be bound to it")


def _without_driver(volume: Volume, maker: str, cluster: ClusterState) -> Action:
    """Our finalizer holds a volume whose driver this process does not have, or cannot use."""
    going = volume.terminating or volume.status.phase in ("Released", "Failed")
    deletes = volume.spec.persistent_volume_reclaim_policy == "Delete"
    if not (going and deletes and volume.has_finalizer(names.RECLAIM_FINALIZER)):
        return Settled()
    if cluster.drivers.starting(maker):
        return Wait(reason=f'driver "{maker}" is starting')
    if not (why := cluster.drivers.broken(maker)):
        since = volume.metadata.deletion_timestamp or volume.status.last_phase_transition_time
        left = DRIVER_GRACE - _seconds_since(since, cluster.now())
        if left > 0:
            return Wait(reason=f'driver "{maker}" is not configured here', seconds=left)
        why = f"it is not configured here; configure it, or remove {names.RECLAIM_FINALIZER} to keep the asset"
    message = f'the asset cannot be deleted by driver "{maker}": {why}'
    return Wait(reason=message, events=(warning(VOLUMES, volume, "VolumeFailedDelete", message),))


def _seconds_since(time: str | None, now: datetime) -> float:
    """How long ago a time of the server was, as far as its clock and ours agree; never less than 0. None = now."""
    try:
        return max(0.0, (now - datetime.fromisoformat(time or "").astimezone(UTC)).total_seconds())
    except ValueError:
        return 0.0
