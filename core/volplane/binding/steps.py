"""The writes of a bind and of an unbind, one at a time, each skipped where its effect is already there. Pure.

Order of a bind: W1 the volume's reference, W2 the volume's phase, W3 the claim's pointer, W4 the claim's status. After
a crash between any two, the next decision continues at the first write that is still missing.
Source: reference binder `bind`, `unbindVolume`, `updateClaimStatus`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volplane.binding.matching import reference_is
from volplane.controller.actions import EventRecord, Patch
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES, Kind
from volplane.kube.objects import Claim, Volume
from volplane.kube.quantity import parse

__all__ = ["bind_step", "claim_status_step", "migration_step", "reset_claim_step", "unbind_patch", "volume_phase_step"]


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
    if reference is not None and reference_is(reference, claim) and reference.uid == claim.uid:
        return None
    body: dict[str, Any] = {
        "spec": {
            "claimRef": {
                "kind": "PersistentVolumeClaim",
                "apiVersion": "v1",
                "namespace": claim.namespace,
                "name": claim.name,
                "uid": claim.uid,
                "resourceVersion": claim.metadata.resource_version,
            }
        }
    }
    if not reference_is(reference, claim) and volume.annotation(names.BOUND_BY_CONTROLLER) is None:
        body["metadata"] = {"annotations": {names.BOUND_BY_CONTROLLER: "yes"}}
    return Patch(kind=VOLUMES, target=volume, body=body, why=f"reserve for claim {claim.key}")


def volume_phase_step(
    volume: Volume, phase: str, message: str = "", *, events: tuple[EventRecord, ...] = ()
) -> Patch | None:
    """Write the phase and its message unless they are there already: a failure for another reason says the new one."""
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
    return Patch(
        kind=CLAIMS, target=claim, body={"status": status}, subresource="status", why=f"status {phase}", events=told
    )


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
    """Set or remove the annotation `pv.kubernetes.io/migrated-to`, for volumes of in-tree plugins that a CSI driver
    serves now.
    """
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
