"""Which volume a claim is bound to, and the writes that bind or unbind the two. Pure.

The decisions are those of the reference binder's `syncUnboundClaim` and `syncBoundClaim`. Each write is skipped where
its effect is already there. Order of a bind: W1 the volume's reference, W2 the volume's phase, W3 the claim's pointer,
W4 the claim's status. After a crash between any two, the next decision continues at the first that is still missing.
Source: `pkg/controller/volume/persistentvolume/pv_controller.go` (`bind`, `unbindVolume`, `updateClaimStatus`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from volplane.binding.matching import (
    Demand,
    capacity_of,
    demand_of,
    held_by,
    reference_is,
    reference_to,
    refers_to,
    refusal,
)
from volplane.controller.actions import Action, EventRecord, Patch, Wait, warning
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES, Kind
from volplane.kube.objects import Claim, Volume
from volplane.kube.quantity import parse

__all__ = [
    "Bind",
    "Unmatched",
    "VolumeView",
    "bind_step",
    "claim_status_step",
    "decide_bound",
    "decide_unbound",
    "migration_step",
    "reset_claim_step",
    "unbind_patch",
    "volume_phase_step",
]


class VolumeView(Protocol):
    """What the binder sees of volumes."""

    def get(self, key: str) -> Volume | None:
        """The volume of this name, from the cache."""

    def reserved_for(self, claim_key: str) -> list[str]:
        """Names of volumes whose reference names the claim, in order."""

    def best(self, demand: Demand, *, claim_key: str = "") -> Volume | None:
        """The smallest free volume that fits."""


class Bind(msgspec.Struct, frozen=True):
    """Complete the pair with this volume."""

    volume: Volume


class Unmatched(msgspec.Struct, frozen=True):
    """No volume fits; it may be provisioned."""


def decide_unbound(claim: Claim, volumes: VolumeView, *, delayed: bool) -> Bind | Unmatched | Action:
    """Table 5.1 for a claim that never was bound. delayed: its class waits for the first consumer."""
    if claim.spec.volume_name:
        return _decide_named(claim, volumes)
    reserved = _reservation(claim, volumes)
    if reserved is not None:
        return Bind(reserved)
    if not delayed:
        free = volumes.best(demand_of(claim), claim_key=claim.key)
        if free is not None:
            return Bind(free)
    return Unmatched()


def _reservation(claim: Claim, volumes: VolumeView) -> Volume | None:
    """A volume that names this claim, looked up first: it never loses to a free one. One with our uid comes first.

    A reservation overrules class, selector and phase; not size, modes or a deletion (column R of table 10.2).
    """
    named = [
        volume
        for volume in map(volumes.get, volumes.reserved_for(claim.key))
        if volume is not None
        and volume.annotation(names.INTENT) is None
        and reference_is(volume.spec.claim_ref, claim)
        and not refusal(volume, claim, ignoring=_overruled(volume, claim))
    ]
    return min(named, key=lambda volume: not refers_to(volume, claim), default=None)


def _overruled(volume: Volume, claim: Claim) -> tuple[str, ...]:
    """What does not count against a reservation. A bind whose phase is written is completed, deleted or not.

    Else neither side could go on: the volume may not go while it is bound, the claim not take what is to go.
    """
    half = refers_to(volume, claim) and volume.status.phase == "Bound"
    return ("class", "deletion") if half else ("class",)


def _decide_named(claim: Claim, volumes: VolumeView) -> Bind | Action:
    name = claim.spec.volume_name
    volume = volumes.get(name)
    if volume is None:
        return _pending(claim, f'volume "{name}", which the claim names, does not exist')
    record = volume.annotation(names.INTENT)
    if record is not None and not _scrubs_by(record, volume, claim):
        message = f'volume "{name}" is being scrubbed'
        if claim.annotation(names.SCRUB_VOLUME_UID) is not None:
            return Wait(reason=message)  # Of the scrub itself: the volume is about to refer to it.
        return _pending(claim, message, warning(CLAIMS, claim, "FailedBinding", message))
    if _given_up(volume) and not refers_to(volume, claim):
        message = f'volume "{name}" is being deleted'
        return _pending(claim, message, warning(CLAIMS, claim, "FailedBinding", message))
    reference = volume.spec.claim_ref
    if reference is None:
        why = refusal(volume, claim)
        if not why:
            return Bind(volume)
        message = f'Cannot bind to requested volume "{name}": {why}'
        return _pending(claim, message, warning(CLAIMS, claim, "VolumeMismatch", message))
    if reference_is(reference, claim):
        return Bind(volume)
    message = f'volume "{name}" already bound to a different claim.'
    event = warning(CLAIMS, claim, "FailedBinding", message)
    if claim.annotation(names.BOUND_BY_CONTROLLER) is not None:
        # The controller chose this volume: a half of a bind is missing, and what the status says may still be so.
        return Wait(reason=message, events=(event,))
    return _pending(claim, message, event)


class _Held(msgspec.Struct, rename="camel"):
    """Of the intent of a scrub (`volplane.state.records.RecycleIntent`), what says whose the volume is meanwhile."""

    held_by: str = ""


def _scrubs_by(record: str, volume: Volume, claim: Claim) -> bool:
    """Whether the claim is that by which the volume is scrubbed: then, and only then, it is bound meanwhile.

    record: the volume's intent.
    """
    try:
        held = msgspec.json.decode(record, type=_Held)
    except (msgspec.MsgspecError, UnicodeError):
        return False
    return held.held_by == claim.uid and refers_to(volume, claim)


def _pending(claim: Claim, reason: str, *events: EventRecord) -> Action:
    return reset_claim_step(claim, "Pending") or Wait(reason=reason, events=events)


def decide_bound(claim: Claim, volumes: VolumeView) -> Bind | Action:
    """Table 5.2 for a claim that went through a complete bind before."""
    name = claim.spec.volume_name
    if not name:
        return _lost(
            claim, "ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"
        )
    volume = volumes.get(name)
    if volume is None:
        return _lost(claim, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
    reference = volume.spec.claim_ref
    if refers_to(volume, claim):
        return Bind(volume)
    if volume.annotation(names.INTENT) is None and not _given_up(volume):
        if reference is None:
            return _bind_again(claim, volume)
        if reference_is(reference, claim):
            return Bind(volume)  # Restored from a backup: both name each other, only uids are new.
    return _lost(claim, "ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")


def _given_up(volume: Volume) -> bool:
    """Whether a deleted volume was marked for destruction: whoever comes now is too late."""
    return volume.terminating and volume.status.phase in ("Released", "Failed")


def _bind_again(claim: Claim, volume: Volume) -> Bind | Action:
    """The volume lost its reference, or is another one that was given the name of a lost one."""
    enough = capacity_of(volume) >= held_by(claim) > 0
    why = refusal(volume, claim, ignoring=("deletion", "attributes", *(("size",) if enough else ())))
    if not why:
        return Bind(volume)
    message = f'Volume "{volume.name}" is not the one that this claim was bound to: {why}. Data on the volume is lost!'
    return _lost(claim, "ClaimLost", message)


def _lost(claim: Claim, reason: str, message: str) -> Action:
    return reset_claim_step(claim, "Lost", events=(warning(CLAIMS, claim, reason, message),)) or Wait(reason=message)


# --- the writes ---------------------------------------------------------------------------------------------------


def bind_step(claim: Claim, volume: Volume, *, claim_metadata: Mapping[str, Any] | None = None) -> Patch | None:
    """The next missing write of binding the two; None when the pair is complete.

    claim_metadata: what else W3 changes on the claim's metadata (the end of its intent), to save a write.
    """
    return (
        _reference_step(claim, volume)
        or volume_phase_step(volume, "Bound")
        or _pointer_step(claim, volume, claim_metadata or {})
        or claim_status_step(claim, volume)
    )


def _reference_step(claim: Claim, volume: Volume) -> Patch | None:
    reference = volume.spec.claim_ref
    if refers_to(volume, claim) and reference_is(reference, claim):
        return None
    body: dict[str, Any] = {"spec": {"claimRef": reference_to(claim)}}
    if not reference_is(reference, claim) and volume.annotation(names.BOUND_BY_CONTROLLER) is None:
        body["metadata"] = {"annotations": {names.BOUND_BY_CONTROLLER: "yes"}}
    return Patch(kind=VOLUMES, target=volume, body=body, why=f"reserve for claim {claim.key}")


def volume_phase_step(
    volume: Volume, phase: str, message: str = "", *, events: tuple[EventRecord, ...] = ()
) -> Patch | None:
    """Write the phase and its message unless they are there already: a failure for another reason is written again."""
    if volume.status.phase == phase and message in ("", volume.status.message):
        return None
    body = {"status": {"phase": phase, "message": message or None, "reason": None}}
    return Patch(kind=VOLUMES, target=volume, body=body, subresource="status", why=f"phase {phase}", events=events)


def _pointer_step(claim: Claim, volume: Volume, extra: Mapping[str, Any]) -> Patch | None:
    annotations: dict[str, Any] = {}
    body: dict[str, Any] = {}
    if claim.spec.volume_name != volume.name:
        body["spec"] = {"volumeName": volume.name}
        if claim.annotation(names.BOUND_BY_CONTROLLER) is None:
            annotations[names.BOUND_BY_CONTROLLER] = "yes"
    if claim.annotation(names.BIND_COMPLETED) is None:
        annotations[names.BIND_COMPLETED] = "yes"
    if not body and not annotations and not extra:
        return None
    metadata: dict[str, Any] = dict(extra)
    if annotations:
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
    if metadata:
        body["metadata"] = metadata
    return Patch(kind=CLAIMS, target=claim, body=body, why=f"point at volume {volume.name}")


def claim_status_step(claim: Claim, volume: Volume) -> Patch | None:
    """Write Bound, the volume's access modes, and at the change of phase its capacity and attributes class."""
    status: dict[str, Any] = {}
    turned = claim.status.phase != "Bound"
    if turned:
        status["phase"] = "Bound"
    modes = volume.spec.access_modes or []
    if (claim.status.access_modes or []) != modes:
        status["accessModes"] = modes
    if turned:
        storage = _shown_capacity(volume)
        if storage is not None and (claim.status.capacity or {}).get("storage") != storage:
            status["capacity"] = {"storage": storage}
        shown_class = volume.spec.volume_attributes_class_name or None
        if claim.status.phase != "Lost" and claim.status.current_volume_attributes_class_name != shown_class:
            status["currentVolumeAttributesClassName"] = shown_class
    if not status:
        return None
    return Patch(kind=CLAIMS, target=claim, body={"status": status}, subresource="status", why="status Bound")


def _shown_capacity(volume: Volume) -> str | None:
    before_resize = volume.annotation(names.PRE_RESIZE_CAPACITY)
    if before_resize is not None:
        try:
            return str(parse(before_resize))
        except ValueError:
            pass  # A hand-written annotation that is no quantity must not stop the bind.
    return (volume.spec.capacity or {}).get("storage")


def reset_claim_step(claim: Claim, phase: str, *, events: tuple[EventRecord, ...] = ()) -> Patch | None:
    """Write a phase without a volume (Pending, Lost): modes, capacity and attributes class are cleared."""
    status: dict[str, Any] = {}
    if claim.status.phase != phase:
        status["phase"] = phase
    if claim.status.access_modes:
        status["accessModes"] = None
    if claim.status.capacity:
        status["capacity"] = None
    if claim.status.current_volume_attributes_class_name is not None:
        status["currentVolumeAttributesClassName"] = None
    if not status:
        return None
    told = events if "phase" in status else ()
    body, why = {"status": status}, f"status {phase}"
    return Patch(kind=CLAIMS, target=claim, body=body, subresource="status", why=why, events=told)


def unbind_patch(volume: Volume, *, metadata: Mapping[str, Any] | None = None, why: str) -> Patch:
    """Offer the volume again: a reference the controller chose goes, a person's reservation keeps its name.

    metadata: what else goes with it (the end of a recycle's intent), so that both happen at once or not at all.
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
    """Set or remove `pv.kubernetes.io/migrated-to`, for volumes of in-tree plugins that a CSI driver serves now."""
    if isinstance(item, Volume):
        plugin = item.annotation(names.PROVISIONED_BY)
    else:
        plugin = item.annotation(names.STORAGE_PROVISIONER) or item.annotation(names.BETA_STORAGE_PROVISIONER)
    if plugin is None:
        return None
    wanted, present = names.csi_driver_of(plugin), item.annotation(names.MIGRATED_TO)
    if wanted == present or (wanted is None and not present):
        return None
    body = {"metadata": {"annotations": {names.MIGRATED_TO: wanted}}}
    return Patch(kind=kind, target=item, body=body, why=f"plugin {plugin} is served by {wanted or 'nobody else'}")
