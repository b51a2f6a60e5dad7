"""The record on an attachment: what was attached where, so that it can be detached whatever else is gone. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from volplane.assets import AccessMode, Ownership, VolumeMode, VolumeSource
from volplane.attach.desired import shares_nodes
from volplane.drivers.view import DriverView
from volplane.intents.requests import volume_identity
from volplane.kube import names
from volplane.kube.objects import Node, Volume, VolumeAttachment
from volplane.requests import NodeIdentity, VolumeIdentity
from volplane.state.naming import asset_key, handle_in, volume_source
from volplane.state.records import INTENT_VERSION, AttachmentIntent, attachment_intent_of, write_intent

__all__ = [
    "declaration",
    "identity_of_record",
    "intent_of",
    "node_of_record",
    "recorded_state",
    "true_record",
    "volume_to_attach",
]


def true_record(attachment: VolumeAttachment, volume: Volume | None) -> AttachmentIntent | None:
    """Return the record; None if it is damaged, or was edited to name another asset than the volume's.

    volume: the one that the attachment names, if it exists. If it was created again it has another uid: then the record
    is about the former one.
    """
    record = attachment_intent_of(attachment)
    if record is None or volume is None or record.uid != volume.uid:
        return record
    handle = volume.annotation(names.HANDLE) or handle_in(volume_source(volume))
    return record if record.handle == handle else None


def recorded_state(record: AttachmentIntent, hook: str) -> dict[str, Any] | None:
    """Return the state that the last `InProgress` of this hook returned; None if there was none."""
    return record.state if record.hook == hook else None


def volume_to_attach(volume: Volume, driver: DriverView, cluster_id: str) -> VolumeIdentity:
    """Return the volume as hooks see it. Marks are expected only on what this driver made."""
    identity = volume_identity(volume, cluster_id)
    return identity if volume.annotation(names.PROVISIONED_BY) == driver.name else replace(identity, owner=None)


def intent_of(volume: Volume, driver: DriverView, node_uid: str, cluster_id: str) -> AttachmentIntent:
    """Return what is recorded before `attach` is called for the first time."""
    identity = volume_to_attach(volume, driver, cluster_id)
    return AttachmentIntent(
        v=INTENT_VERSION,
        driver=driver.name,
        asset=asset_key(volume),
        volume=volume.name,
        uid=volume.uid,
        handle=identity.handle,
        source=identity.source.kind,
        fields=dict(identity.source.fields),
        capacity=identity.capacity_bytes,
        generation=identity.owner.generation if identity.owner is not None else 0,
        access_modes=[str(mode) for mode in identity.access_modes],
        volume_mode=str(identity.volume_mode),
        attributes={} if identity.source.kind == "csi" else dict(identity.attributes),
        node_uid=node_uid,
        shared=shares_nodes(volume),
    )


def declaration(volume: Volume, driver: DriverView, node: Node, cluster_id: str) -> dict[str, str]:
    """Return the annotations that are written before anything is attached: the record, and the backend's node id."""
    record = intent_of(volume, driver, node.uid, cluster_id)
    return {names.NODE_ID: node.spec.provider_id, names.INTENT: write_intent(record)}


def identity_of_record(record: AttachmentIntent, cluster_id: str) -> VolumeIdentity:
    """Return the volume as hooks see it, from the record alone."""
    owner = None
    if record.generation:
        owner = Ownership(
            cluster_id=cluster_id,
            claim_uid=record.volume.removeprefix("pvc-"),
            volume_name=record.volume,
            generation=record.generation,
        )
    in_source = record.fields.get("volumeAttributes") if record.source == "csi" else None
    return VolumeIdentity(
        name=record.volume,
        uid=record.uid,
        handle=record.handle,
        source=VolumeSource(kind=record.source, fields=record.fields),
        capacity_bytes=record.capacity,
        owner=owner,
        attributes=dict(in_source or record.attributes),
        volume_mode=VolumeMode(record.volume_mode),
        access_modes=tuple(AccessMode(mode) for mode in record.access_modes),
    )


def node_of_record(attachment: VolumeAttachment, record: AttachmentIntent, node: Node | None) -> NodeIdentity:
    """Return the node to which it was attached. node: the one that has the name now; it may be another machine."""
    same = node is not None and (not record.node_uid or node.uid == record.node_uid)
    labels = dict(node.metadata.labels or {}) if node is not None and same else {}
    shown = node.spec.provider_id if node is not None and node.uid == record.node_uid else ""
    return NodeIdentity(
        name=attachment.spec.node_name,
        uid=record.node_uid,
        instance_id=shown or attachment.annotation(names.NODE_ID) or "",
        labels=labels,
    )
