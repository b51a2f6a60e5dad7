"""Decides which volume a claim is bound to, and returns the writes that bind or unbind the two. Pure.

The decisions are those of the reference binder's `syncUnboundClaim` and `syncBoundClaim`. A write whose effect is
already there is skipped. A bind writes, in this order, the volume's reference (W1), the volume's phase (W2), the
claim's pointer (W3) and the claim's status (W4). After a crash the next decision continues at the first missing one.
Source: `pkg/controller/volume/persistentvolume/pv_controller.go` (`bind`, `unbindVolume`, `updateClaimStatus`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from volplane.controller.actions import Action, Decide, LiveReads, Patch, Queue, Read, Run, Settled, Wait, warning
from volplane.controller.metrics import Metrics
from volplane.intents.ownership import finalizer_step
from volplane.intents.record import can_never_be_bound, class_is_gone, has_newer_intent
from volplane.kube import names
from volplane.kube.events import EventRecord
from volplane.kube.kinds import CLAIMS, VOLUMES, Kind
from volplane.kube.objects import Claim, ObjectReference, StorageClass, Volume
from volplane.kube.quantity import parse
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import (
    NOT_FROM_SOURCE,
    capacity_of,
    class_of_claim,
    demand_of,
    held_by,
    mode_of,
    reference_is,
    reference_to,
    refers_to,
    refusal,
    selects,
)
from volplane.state.naming import volume_name_of
from volplane.state.records import may_be_kept, recycle_intent_of, trashed

_NO_CLASS = "no persistent volumes available for this claim and no storage class is set"
_LOOKED_AT = 100
"""Volumes that a message counts, at most."""


class Bind(msgspec.Struct, frozen=True):
    """The decision to bind the claim to this volume."""

    volume: Volume


def decide_unbound(claim: Claim, cluster: ClusterState, *, delayed: bool) -> Bind | Action | None:
    """Decide a claim that was never bound (`syncUnboundClaim`). delayed: its class waits for the first consumer.

    None: no volume fits, so that one may be provisioned. A volume that is reserved for the claim comes before any free
    one. A reservation overrules class, selector and phase, but not size, modes or a deletion.
    """
    if claim.spec.volume_name:
        return _decide_named(claim, cluster)
    reserved: list[Volume] = []
    for volume in map(cluster.volumes.get, cluster.free.reserved_for(claim.key)):
        # The contents of a volume that is being scrubbed are not the claim's.
        if volume is None or volume.annotation(names.INTENT) is not None:
            continue
        # A bind that has written the volume's phase is completed even if the volume is being deleted. Otherwise the
        # volume could not go because it is bound, and the claim could not bind because the volume is to go.
        half_bound = refers_to(volume, claim) and volume.status.phase == "Bound"
        ignored = ("class", "deletion") if half_bound else ("class",)
        if reference_is(volume.spec.claim_ref, claim) and not refusal(volume, claim, ignoring=ignored):
            reserved.append(volume)
    if reserved:
        # The volume with this claim's uid comes before those that name only its key.
        return Bind(min(reserved, key=lambda volume: not refers_to(volume, claim)))
    free = None if delayed else cluster.free.best(demand_of(claim), claim_key=claim.key)
    return Bind(free) if free is not None else None


def _decide_named(claim: Claim, cluster: ClusterState) -> Bind | Action:
    name = claim.spec.volume_name
    volume = cluster.volumes.get(name)
    if volume is None:
        return pending(claim, f'volume "{name}", which the claim names, does not exist')
    scrub = recycle_intent_of(volume)
    through = scrub is not None and scrub.held_by == claim.uid and refers_to(volume, claim)
    # While a volume is scrubbed, only the claim that the scrub works through may be bound to it.
    if volume.annotation(names.INTENT) is not None and not through:
        message = f'volume "{name}" is being scrubbed'
        if claim.annotation(names.SCRUB_VOLUME_UID) is not None:
            return Wait(reason=message)  # The claim of the scrub itself: the volume will refer to it soon.
        return pending(claim, message, warning(CLAIMS, claim, "FailedBinding", message))
    # Its asset may be destroyed at any time.
    if _given_up(volume) and not refers_to(volume, claim):
        message = f'volume "{name}" is being deleted'
        return pending(claim, message, warning(CLAIMS, claim, "FailedBinding", message))
    reference = volume.spec.claim_ref
    if trashed(volume) is not None and not reference_is(reference, claim):
        message = f'volume "{name}" is in the trash; `volplane undelete {name} --claim {claim.key}` asks for it'
        return pending(claim, message, warning(CLAIMS, claim, "FailedBinding", message))
    if reference is None:
        why = refusal(volume, claim)
        if not why:
            return Bind(volume)
        message = f'Cannot bind to requested volume "{name}": {why}'
        return pending(claim, message, warning(CLAIMS, claim, "VolumeMismatch", message))
    if reference_is(reference, claim):
        return Bind(volume)
    message = f'volume "{name}" already bound to a different claim.'
    event = warning(CLAIMS, claim, "FailedBinding", message)
    if claim.annotation(names.BOUND_BY_CONTROLLER) is not None:
        # The controller chose this volume, so half of a bind is missing and the status may still be right.
        return Wait(reason=message, events=(event,))
    return pending(claim, message, event)


def pending(claim: Claim, reason: str, *events: EventRecord) -> Action:
    return reset_claim_step(claim, "Pending") or Wait(reason=reason, events=events)


def decide_bound(claim: Claim, cluster: ClusterState) -> Bind | Action:
    """Decide a claim that went through a complete bind before (`syncBoundClaim`)."""
    if not claim.spec.volume_name:
        lost = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"
        return _lost(claim, "ClaimLost", lost)
    volume = cluster.volumes.get(claim.spec.volume_name)
    if volume is None:
        return _lost(claim, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
    if refers_to(volume, claim):
        return Bind(volume)
    # A volume that is scrubbed or deleted keeps no contents for a claim that it does not refer to.
    if volume.annotation(names.INTENT) is None and not _given_up(volume):
        if volume.spec.claim_ref is None and trashed(volume) is None:
            # The volume lost its reference, or is another one that has the name of a lost one.
            enough = capacity_of(volume) >= held_by(claim) > 0
            why = refusal(volume, claim, ignoring=("deletion", "attributes", "source", *(("size",) if enough else ())))
            unlike = f'Volume "{volume.name}" is not the one that this claim was bound to: {why}. '
            return _lost(claim, "ClaimLost", unlike + "Data on the volume is lost!") if why else Bind(volume)
        if reference_is(volume.spec.claim_ref, claim):
            return Bind(volume)  # Restored from a backup: the two name each other, and only the uids are new.
    return _lost(claim, "ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")


def _given_up(volume: Volume) -> bool:
    """Return whether a deleted volume is released already, so that its asset may be destroyed at any time."""
    return volume.terminating and volume.status.phase in ("Released", "Failed")


def _lost(claim: Claim, reason: str, message: str) -> Action:
    return reset_claim_step(claim, "Lost", events=(warning(CLAIMS, claim, reason, message),)) or Wait(reason=message)


# --- the writes ---------------------------------------------------------------------------------------------------


def bind_step(claim: Claim, volume: Volume, *, claim_metadata: Mapping[str, Any] | None = None) -> Patch | None:
    """Return the next missing write of the bind, if any. claim_metadata: what else W3 changes, to save a write."""
    named = reference_is(volume.spec.claim_ref, claim)
    if not named or not refers_to(volume, claim):
        body: dict[str, Any] = {"spec": {"claimRef": reference_to(claim)}}
        # The mark says that no person reserved it, so that an unbind takes the reference away.
        if not named and volume.annotation(names.BOUND_BY_CONTROLLER) is None:
            body["metadata"] = {"annotations": {names.BOUND_BY_CONTROLLER: "yes"}}
        return Patch(kind=VOLUMES, target=volume, body=body, why=f"reserve for claim {claim.key}")
    if (step := volume_phase_step(volume, "Bound")) is not None:
        return step
    annotations, metadata = {}, dict(claim_metadata or {})
    points = claim.spec.volume_name == volume.name
    if not points and claim.annotation(names.BOUND_BY_CONTROLLER) is None:
        annotations[names.BOUND_BY_CONTROLLER] = "yes"
    if not claim.bound:
        annotations[names.BIND_COMPLETED] = "yes"
    if annotations:
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
    if points and not metadata:
        return claim_status_step(claim, volume)
    body = ({} if points else {"spec": {"volumeName": volume.name}}) | ({"metadata": metadata} if metadata else {})
    return Patch(kind=CLAIMS, target=claim, body=body, why=f"point at volume {volume.name}")


def volume_phase_step(
    volume: Volume, phase: str, message: str = "", *, events: tuple[EventRecord, ...] = ()
) -> Patch | None:
    if volume.status.phase == phase and message in ("", volume.status.message):
        return None
    body = {"status": {"phase": phase, "message": message or None, "reason": None}}
    return Patch(kind=VOLUMES, target=volume, body=body, subresource="status", why=f"phase {phase}", events=events)


def claim_status_step(claim: Claim, volume: Volume) -> Patch | None:
    """Return the write of Bound, the access modes and, with the phase, the capacity and the attributes class."""
    status: dict[str, Any] = {}
    turned = claim.status.phase != "Bound"
    if turned:
        status["phase"] = "Bound"
    modes = volume.spec.access_modes or []
    if (claim.status.access_modes or []) != modes:
        status["accessModes"] = modes
    if turned:
        storage = (volume.spec.capacity or {}).get("storage")
        if (before_resize := volume.annotation(names.PRE_RESIZE_CAPACITY)) is not None:
            with contextlib.suppress(ValueError):  # A person may have written something else than a quantity.
                storage = str(parse(before_resize))
        if storage is not None and (claim.status.capacity or {}).get("storage") != storage:
            status["capacity"] = {"storage": storage}
        shown_class = volume.spec.volume_attributes_class_name or None
        if claim.status.phase != "Lost" and claim.status.current_volume_attributes_class_name != shown_class:
            status["currentVolumeAttributesClassName"] = shown_class
    if not status:
        return None
    return Patch(kind=CLAIMS, target=claim, body={"status": status}, subresource="status", why="status Bound")


def reset_claim_step(claim: Claim, phase: str, *, events: tuple[EventRecord, ...] = ()) -> Patch | None:
    """Return the write of a phase without a volume (Pending, Lost), which clears modes, capacity and class."""
    shown, turned = claim.status, claim.status.phase != phase
    status: dict[str, Any] = {"phase": phase} if turned else {}
    if shown.access_modes:
        status["accessModes"] = None
    if shown.capacity:
        status["capacity"] = None
    if shown.current_volume_attributes_class_name is not None:
        status["currentVolumeAttributesClassName"] = None
    if not status:
        return None
    body, why, events = {"status": status}, f"status {phase}", events if turned else ()
    return Patch(kind=CLAIMS, target=claim, body=body, subresource="status", why=why, events=events)


def unbind_patch(volume: Volume, *, metadata: Mapping[str, Any] | None = None, why: str) -> Patch:
    """Return the write that offers the volume again. A reservation made by a person keeps its name.

    metadata: other changes (the end of a recycle's intent), so that both happen at once or not at all.
    """
    body: dict[str, Any] = {}
    changed: dict[str, Any] = dict(metadata or {})
    if volume.annotation(names.BOUND_BY_CONTROLLER) is not None:
        body["spec"] = {"claimRef": None}
        changed["annotations"] = {**(changed.get("annotations") or {}), names.BOUND_BY_CONTROLLER: None}
    elif volume.spec.claim_ref is not None:
        body["spec"] = {"claimRef": {"uid": None, "resourceVersion": None}}
    if changed:
        body["metadata"] = changed
    return Patch(kind=VOLUMES, target=volume, body=body, why=why)


def migration_step(kind: Kind[Any], item: Claim | Volume) -> Patch | None:
    """Return the write of `pv.kubernetes.io/migrated-to`, for in-tree plugins that a CSI driver serves now."""
    if isinstance(item, Volume):
        plugin = item.annotation(names.PROVISIONED_BY)
    else:
        plugin = item.annotation(names.STORAGE_PROVISIONER) or item.annotation(names.BETA_STORAGE_PROVISIONER)
    if plugin is None:
        return None
    wanted, present = names.MIGRATED_PLUGINS.get(plugin), item.annotation(names.MIGRATED_TO)
    if wanted == present or (wanted is None and not present):
        return None
    body = {"metadata": {"annotations": {names.MIGRATED_TO: wanted}}}
    return Patch(kind=kind, target=item, body=body, why=f"plugin {plugin} is served by {wanted or 'nobody else'}")


class ClaimReconciler:
    """Decides claims. Keeps a chosen volume from others until its write is answered; counts claims given a class."""

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


def not_asked(claim: Claim, provisioner: str) -> str:
    """Return why another binder has not asked this provisioner for a volume yet, or ""."""
    asked = claim.annotation(names.STORAGE_PROVISIONER) or claim.annotation(names.BETA_STORAGE_PROVISIONER)
    if asked != provisioner:
        return f'the binder has not asked driver "{provisioner}" for a volume'
    if (migrated := claim.annotation(names.MIGRATED_TO)) and migrated != asked:
        return f'the claim is migrated to "{migrated}"'
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
    waiting = sorted(
        pod.name
        for pod in cluster.pods.by_index("claim", claim.key)
        if not pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed")
    )
    reason, message = "WaitForFirstConsumer", "waiting for first consumer to be created before binding"
    if waiting:
        pods = "pods" if len(waiting) > 1 else "pod"
        reason, message = "WaitForPodScheduled", f"waiting for {pods} {','.join(waiting)} to be scheduled"
    return pending(claim, message, EventRecord(CLAIMS, claim, "Normal", reason, message))


def _what_is_near(claim: Claim, cluster: ClusterState) -> str:
    """Return what the available volumes of the right class and mode lack, in numbers; "" if there are none."""
    demand = demand_of(claim)
    if demand.has_source:
        return f"; {NOT_FROM_SOURCE}"
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
    """Return whether it is bound, or its claim goes on binding it, and nothing is to be put right on the volume."""
    claim = cluster.claim_of(volume)
    if claim is None or volume.annotation(names.INTENT) is not None:
        return False
    if claim.spec.volume_name:
        settled = claim.spec.volume_name == volume.name and volume.status.phase == "Bound"
    else:
        settled = not claim.terminating and mode_of(claim) == mode_of(volume) and not can_never_be_bound(volume, claim)
    # What the claim chooses for the time after it may have to be written down.
    settled = settled and not may_be_kept(volume)
    return settled and migration_step(VOLUMES, volume) is None and finalizer_step(volume, cluster) is None


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
            continue  # It is never bound, so nothing is about to be written for it.
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
