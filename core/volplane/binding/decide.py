"""Which volume a claim is bound to. Pure decision tables over the caches; provisioning is somebody else's.

Source: `syncUnboundClaim` and `syncBoundClaim` of pv_controller.go of Kubernetes.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from volplane.binding.matching import Demand, capacity_of, demand_of, held_by, reference_is, refers_to, refusal
from volplane.binding.steps import reset_claim_step
from volplane.controller.actions import Action, EventRecord, Wait
from volplane.kube import names
from volplane.kube.kinds import CLAIMS
from volplane.kube.objects import Claim, Volume

__all__ = ["Bind", "Unmatched", "VolumeView", "decide_bound", "decide_unbound"]


class VolumeView(Protocol):
    """What the binder sees of volumes."""

    def get(self, key: str) -> Volume | None:
        """The volume of this name, from the cache."""

    def reserved_for(self, claim_key: str) -> list[str]:
        """Names of volumes whose reference names the claim."""

    def best(self, demand: Demand, *, claim_key: str = "") -> Volume | None:
        """The smallest free volume that fits."""


class Bind(msgspec.Struct, frozen=True):
    """Complete the pair with this volume."""

    volume: Volume


class Unmatched(msgspec.Struct, frozen=True):
    """No volume fits; it may be provisioned."""


def _warn(claim: Claim, reason: str, message: str) -> EventRecord:
    return EventRecord(CLAIMS, claim, "Warning", reason, message)


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
    return min(named, key=lambda volume: (not refers_to(volume, claim), volume.name), default=None)


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
    if volume.annotation(names.INTENT) is not None:
        message = f'volume "{name}" is being scrubbed'
        return _pending(claim, message, _warn(claim, "FailedBinding", message))
    reference = volume.spec.claim_ref
    if reference is None:
        why = refusal(volume, claim)
        if not why:
            return Bind(volume)
        message = f'Cannot bind to requested volume "{name}": {why}'
        return _pending(claim, message, _warn(claim, "VolumeMismatch", message))
    if reference_is(reference, claim):
        return Bind(volume)
    message = f'volume "{name}" already bound to a different claim.'
    told = _warn(claim, "FailedBinding", message)
    if claim.annotation(names.BOUND_BY_CONTROLLER) is not None:
        # The controller chose this volume: a half of a bind is missing, and what the status says may still be so.
        return Wait(reason=message, events=(told,))
    return _pending(claim, message, told)


def _pending(claim: Claim, reason: str, *events: EventRecord) -> Action:
    return reset_claim_step(claim, "Pending") or Wait(reason=reason, events=events)


def decide_bound(claim: Claim, volumes: VolumeView) -> Bind | Action:
    """Table 5.2 for a claim that went through a complete bind before."""
    name = claim.spec.volume_name
    if not name:
        message = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"
        return _lost(claim, "ClaimLost", message)
    volume = volumes.get(name)
    if volume is None:
        return _lost(claim, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
    reference = volume.spec.claim_ref
    if refers_to(volume, claim):
        return Bind(volume)
    if volume.annotation(names.INTENT) is None and not _given_up(volume):
        if reference is None:
            return _bind_again(claim, volume)
        if not reference.uid and reference_is(reference, claim):
            return Bind(volume)  # Restored from a backup: both name each other, only uids are new.
    message = "Two claims are bound to the same volume, this one is bound incorrectly"
    return _lost(claim, "ClaimMisbound", message)


def _given_up(volume: Volume) -> bool:
    """Whether a deleted volume was marked for destruction: whoever comes now is too late."""
    return volume.terminating and volume.status.phase in ("Released", "Failed")


def _bind_again(claim: Claim, volume: Volume) -> Bind | Action:
    """The volume lost its reference, or is another one that was given the name of a lost one."""
    enough = capacity_of(volume) >= held_by(claim) > 0
    ignoring = ("deletion", "attributes", *(("size",) if enough else ()))
    why = refusal(volume, claim, ignoring=ignoring)
    if not why:
        return Bind(volume)
    message = f'Volume "{volume.name}" is not the one that this claim was bound to: {why}. Data on the volume is lost!'
    return _lost(claim, "ClaimLost", message)


def _lost(claim: Claim, reason: str, message: str) -> Action:
    return reset_claim_step(claim, "Lost", events=(_warn(claim, reason, message),)) or Wait(reason=message)
