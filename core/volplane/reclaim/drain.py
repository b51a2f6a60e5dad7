"""Leaving a cluster: what our finalizers hold, and the writes that release it with its asset kept. Pure.

Where assets are deleted instead, the running controllers do that: once a claim is deleted, they settle its intent,
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
from volplane.state.records import named_in_record, read_attachment_intent

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
    """An object that we hold. driver: "" if unknown. asset: its handle, or its future name. why: for people."""

    kind: str
    key: str
    driver: str
    phase: str
    asset: str
    why: str


def driver_of_claim(claim: Claim) -> str:
    """The driver that the claim names. Its seal is not checked: good for selecting, not for acting."""
    name = named_in_record(claim.annotation(names.INTENT)).driver
    return name or claim.annotation(names.STORAGE_PROVISIONER) or claim.annotation(names.BETA_STORAGE_PROVISIONER) or ""


def held_volumes(volumes: Iterable[Volume], driver: str = "") -> Iterator[tuple[Volume, Held]]:
    """Volumes that stay until their asset is gone, or are in the middle of a scrub. driver: of this one only."""
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
    """Claims for which an asset may be in the making. driver: on this one only."""
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
    """Attachments that we made at the storage, or may have. driver: of this one only."""
    for attachment in attachments:
        record = read_attachment_intent(attachment.annotation(names.INTENT))
        if record is None or driver not in ("", record.driver):
            continue
        phase = "Detaching" if attachment.terminating else "Attached" if attachment.status.attached else "Attaching"
        why = f"annotation {names.INTENT}: to node {attachment.spec.node_name}"
        yield (
            attachment,
            Held(
                kind="attachment",
                key=attachment.name,
                driver=record.driver,
                phase=phase,
                asset=record.handle,
                why=why,
            ),
        )


def release_attachment(attachment: VolumeAttachment) -> Patch:
    """Forget the attachment and keep it: the finalizer, which is any attacher's, stays for the one that serves it
    next.
    """
    body = {"metadata": {"annotations": {names.INTENT: None}}}
    return Patch(kind=ATTACHMENTS, target=attachment, body=body, why="released by drain, it stays attached")


def release_volume(volume: Volume) -> Patch:
    """Release the volume and keep its asset: the finalizer goes, and the policy becomes Retain."""
    kept = [name for name in volume.metadata.finalizers or () if name != names.RECLAIM_FINALIZER]
    metadata: dict[str, Any] = {"finalizers": kept or None}
    if volume.annotation(names.INTENT) is not None:
        metadata["annotations"] = {names.INTENT: None}
    body: dict[str, Any] = {"metadata": metadata}
    if volume.spec.persistent_volume_reclaim_policy == "Delete":
        body["spec"] = {"persistentVolumeReclaimPolicy": "Retain"}
    return Patch(kind=VOLUMES, target=volume, body=body, why="released by drain, the asset is kept")


def release_claim(claim: Claim) -> Patch:
    """Let the claim go; an asset that was in the making is left where it is."""
    body = {"metadata": settled_metadata(claim)}
    return Patch(kind=CLAIMS, target=claim, body=body, why="released by drain, an asset in the making is left")
