"""Leaving a cluster: what our finalizers hold, and the writes that release it with its asset kept. Pure.

If assets are to be deleted instead, the running controllers do that: once a claim is deleted, they settle its intent,
detach and delete the asset, and remove their finalizers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from volplane.controller.actions import Patch
from volplane.intents.record import settled_metadata
from volplane.kube import names
from volplane.kube.kinds import ATTACHMENTS, CLAIMS, VOLUMES
from volplane.kube.objects import Claim, Volume, VolumeAttachment
from volplane.state.naming import volume_name_of
from volplane.state.records import attachment_intent_of, named_in_record

__all__ = [
    "Held",
    "driver_of_claim",
    "held_attachments",
    "held_claims",
    "held_volumes",
    "release_attachment",
    "release_claim",
    "release_volume",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An object that we hold."""

    kind: str
    key: str
    driver: str
    """"" = unknown."""
    phase: str
    asset: str
    """The handle, or the name that the asset will have."""
    why: str
    """What holds it, for messages."""


def driver_of_claim(claim: Claim) -> str:
    """Return the driver that the claim names, by a record whose seal is not checked: to select by, not to act on."""
    name = named_in_record(claim.annotation(names.INTENT)).driver
    return name or claim.annotation(names.STORAGE_PROVISIONER) or claim.annotation(names.BETA_STORAGE_PROVISIONER) or ""


def held_volumes(volumes: Iterable[Volume], driver: str = "") -> Iterator[tuple[Volume, Held]]:
    """Yield the volumes that stay until their asset is gone or their scrub has ended. driver: of this one only."""
    for volume in volumes:
        maker = volume.annotation(names.PROVISIONED_BY) or volume.annotation(names.DRIVER) or ""
        finalizer = volume.has_finalizer(names.RECLAIM_FINALIZER)
        if driver not in ("", maker) or not (finalizer or volume.annotation(names.INTENT) is not None):
            continue
        why = f"finalizer {names.RECLAIM_FINALIZER}" if finalizer else f"annotation {names.INTENT}: a scrub"
        phase = "Terminating" if volume.terminating else volume.status.phase
        asset = volume.annotation(names.HANDLE) or ""
        yield volume, Held(kind="volume", key=volume.name, driver=maker, phase=phase, asset=asset, why=why)


def held_claims(claims: Iterable[Claim], driver: str = "") -> Iterator[tuple[Claim, Held]]:
    """Yield the claims for which an asset may be in the making. driver: on this one only."""
    for claim in claims:
        finalizer = claim.has_finalizer(names.PROVISIONING_FINALIZER)
        if not (finalizer or claim.annotation(names.INTENT) is not None):
            continue
        maker = driver_of_claim(claim)
        if driver not in ("", maker):
            continue
        why = f"finalizer {names.PROVISIONING_FINALIZER}" if finalizer else f"annotation {names.INTENT}"
        phase = "Terminating" if claim.terminating else claim.status.phase or "Pending"
        asset = volume_name_of(claim)
        yield claim, Held(kind="claim", key=claim.key, driver=maker, phase=phase, asset=asset, why=why)


def held_attachments(
    attachments: Iterable[VolumeAttachment], driver: str = ""
) -> Iterator[tuple[VolumeAttachment, Held]]:
    """Yield the attachments that we made at the storage, or may have made. driver: of this one only."""
    for attachment in attachments:
        record = attachment_intent_of(attachment)
        if record is None or driver not in ("", record.driver):
            continue
        phase = "Detaching" if attachment.terminating else "Attached" if attachment.status.attached else "Attaching"
        why = f"annotation {names.INTENT}: to node {attachment.spec.node_name}"
        held = Held(
            kind="attachment", key=attachment.name, driver=record.driver, phase=phase, asset=record.handle, why=why
        )
        yield attachment, held


def release_attachment(attachment: VolumeAttachment) -> Patch:
    """Remove our record and keep the finalizer, which is the same for all attachers, for the next one."""
    body = {"metadata": {"annotations": {names.INTENT: None}}}
    return Patch(kind=ATTACHMENTS, target=attachment, body=body, why="released by drain, it stays attached")


def release_volume(volume: Volume) -> Patch:
    """Release the volume and keep its asset: remove the finalizer, and set the policy to Retain."""
    kept = [name for name in volume.metadata.finalizers or () if name != names.RECLAIM_FINALIZER]
    metadata: dict[str, Any] = {"finalizers": kept or None}
    if volume.annotation(names.INTENT) is not None:
        metadata["annotations"] = {names.INTENT: None}
    body: dict[str, Any] = {"metadata": metadata}
    if volume.spec.persistent_volume_reclaim_policy == "Delete":
        body["spec"] = {"persistentVolumeReclaimPolicy": "Retain"}
    return Patch(kind=VOLUMES, target=volume, body=body, why="released by drain, the asset is kept")


def release_claim(claim: Claim) -> Patch:
    """Remove record and finalizer; an asset that was in the making is left where it is."""
    body = {"metadata": settled_metadata(claim)}
    return Patch(kind=CLAIMS, target=claim, body=body, why="released by drain, an asset in the making is left")
