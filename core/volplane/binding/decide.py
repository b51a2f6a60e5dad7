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

from volplane.controller.actions import Action, EventRecord, Patch, Wait, warning
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES, Kind
from volplane.kube.objects import Claim, Volume
from volplane.kube.quantity import parse
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import capacity_of, demand_of, held_by, reference_is, reference_to, refers_to, refusal

__all__ = [
    "Bind",
    "bind_step",
    "claim_status_step",
    "decide_bound",
    "decide_unbound",
    "migration_step",
    "pending",
    "reset_claim_step",
    "unbind_patch",
    "volume_phase_step",
]


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
    record = volume.annotation(names.INTENT)
    # While a volume is scrubbed, only the claim that the scrub works through may be bound to it.
    if record is not None and not (_holder_of(record) == claim.uid and refers_to(volume, claim)):
        message = f'volume "{name}" is being scrubbed'
        if claim.annotation(names.SCRUB_VOLUME_UID) is not None:
            return Wait(reason=message)  # The claim of the scrub itself: the volume will refer to it soon.
        return pending(claim, message, warning(CLAIMS, claim, "FailedBinding", message))
    # Its asset may be destroyed at any time.
    if _given_up(volume) and not refers_to(volume, claim):
        message = f'volume "{name}" is being deleted'
        return pending(claim, message, warning(CLAIMS, claim, "FailedBinding", message))
    reference = volume.spec.claim_ref
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


class _Held(msgspec.Struct, rename="camel"):
    """The part of a scrub's intent (`volplane.state.records.RecycleIntent`) that names the claim of the scrub."""

    held_by: str = ""


def _holder_of(record: str) -> str:
    """Return the uid of the claim that the volume's scrub works through; "" if the record names none."""
    try:
        return msgspec.json.decode(record, type=_Held).held_by
    except (msgspec.MsgspecError, UnicodeError):
        return ""


def pending(claim: Claim, reason: str, *events: EventRecord) -> Action:
    """Write the phase Pending, then wait."""
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
        if volume.spec.claim_ref is None:
            # The volume lost its reference, or is another one that has the name of a lost one.
            enough = capacity_of(volume) >= held_by(claim) > 0
            why = refusal(volume, claim, ignoring=("deletion", "attributes", *(("size",) if enough else ())))
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
    """Return the next missing write of the bind; None if the pair is complete.

    claim_metadata: other changes of the claim's metadata (the end of its intent) for W3, to save a write.
    """
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
    """Return the write of the phase and its message, or None if both are there already."""
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
