"""From a volume of EC2 to what volplane keeps of it, and back."""

from __future__ import annotations

import re
from typing import Any

from volplane import Asset, InvalidArgument, NodeIdentity, VolumeIdentity, VolumeMode, VolumeSource
from volplane_aws_ebs.seen import GIB, VolumeSeen
from volplane_aws_ebs.settings import Settings

__all__ = ["IN_TREE", "asset_of", "instance_of", "new_source", "volume_in", "volume_of"]

IN_TREE = "awsElasticBlockStore"
_HANDLE = re.compile(r"(?:aws://[^/]*/)?(vol-[0-9a-f]{8,17})")
_INSTANCE = re.compile(r"(?:aws://(?:[^/]*/)*)?(i-[0-9a-f]{8,17})")
_IDENTITY = "storage.kubernetes.io/csiProvisionerIdentity"


def volume_in(handle: str) -> str | None:
    """The volume's id in a handle, as csi and in-tree sources write them; None for what cannot be one."""
    match = _HANDLE.fullmatch(handle)
    return match[1] if match else None


def volume_of(volume: VolumeIdentity) -> str:
    """The volume's id. Raises InvalidArgument."""
    id_ = volume_in(volume.handle)
    if id_ is None:
        raise InvalidArgument(
            f"handle {volume.handle!r} of {volume.name} is no volume of EBS; it must look like vol-0a1b2c3d4e5f67890"
        )
    return id_


def instance_of(node: NodeIdentity) -> str | None:
    """The instance behind a node, from its providerID; None for what is no instance of EC2."""
    match = _INSTANCE.fullmatch(node.instance_id)
    return match[1] if match else None


def new_source(settings: Settings, handle: str, mode: VolumeMode, fs_type: str) -> VolumeSource:
    """What a volume that we make points at."""
    fields: dict[str, Any] = {"driver": settings.csi_driver_name, "volumeHandle": handle}
    if mode is VolumeMode.FILESYSTEM:
        fields["fsType"] = fs_type
    return VolumeSource(kind="csi", fields=fields)


def asset_of(settings: Settings, seen: VolumeSeen, source: VolumeSource, *, driver: str) -> Asset:
    """The asset, reachable from its zone."""
    return Asset(
        handle=seen.id,
        source=source,
        capacity_bytes=seen.size * GIB,
        node_affinity=({settings.zone_label: seen.zone},),
        attributes={_IDENTITY: driver} if source.kind == "csi" else {},
    )
