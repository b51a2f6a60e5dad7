"""EC2 resources as values, and the handles and sources that Kubernetes knows them by."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from volplane import Asset, InvalidArgument, NodeIdentity, VolumeIdentity, VolumeMode, VolumeSource
from volplane_aws_ebs.settings import Settings

__all__ = [
    "GIB",
    "IN_TREE",
    "AttachmentSeen",
    "InstanceSeen",
    "ModificationSeen",
    "SnapshotSeen",
    "VolumeSeen",
    "asset_of",
    "chunks",
    "instance_of",
    "new_source",
    "tags_in",
    "volume_in",
    "volume_of",
]

GIB = 1 << 30


def tags_in(shown: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a resource."""
    return {tag["Key"]: tag.get("Value", "") for tag in shown.get("Tags", ())}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentSeen:
    """state: attaching, attached, detaching, detached, busy."""

    instance: str
    device: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeSeen:
    """state: creating, available, in-use, deleting, deleted, error."""

    id: str
    zone: str
    size: int
    kind: str
    state: str
    created: float
    iops: int | None = None
    throughput: int | None = None
    encrypted: bool = False
    kms_key: str | None = None
    snapshot: str = ""
    multi_attach: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    attachments: tuple[AttachmentSeen, ...] = ()

    @classmethod
    def of(cls, shown: Mapping[str, Any]) -> VolumeSeen:
        """From DescribeVolumes, or the answer of CreateVolume."""
        return cls(
            id=shown["VolumeId"],
            zone=shown.get("AvailabilityZone", ""),
            size=shown.get("Size", 0),
            kind=shown.get("VolumeType", ""),
            state=shown.get("State", ""),
            created=shown["CreateTime"].timestamp() if "CreateTime" in shown else 0.0,
            iops=shown.get("Iops"),
            throughput=shown.get("Throughput"),
            encrypted=shown.get("Encrypted", False),
            kms_key=shown.get("KmsKeyId"),
            snapshot=shown.get("SnapshotId", ""),
            multi_attach=shown.get("MultiAttachEnabled", False),
            tags=tags_in(shown),
            attachments=tuple(
                AttachmentSeen(
                    instance=each.get("InstanceId", ""), device=each.get("Device", ""), state=each.get("State", "")
                )
                for each in shown.get("Attachments", ())
            ),
        )

    @property
    def going(self) -> bool:
        """It is being deleted: nothing brings it back."""
        return self.state in ("deleting", "deleted")

    @property
    def free(self) -> bool:
        """It could be attached or deleted now."""
        return self.state == "available" and not self.attachments

    def attachment(self, instance: str) -> AttachmentSeen | None:
        """Its attachment to this instance, whatever its state; None also for one that is over."""
        return next((a for a in self.attachments if a.instance == instance and a.state != "detached"), None)

    def elsewhere(self, instance: str) -> tuple[AttachmentSeen, ...]:
        """Its attachments to other instances."""
        return tuple(a for a in self.attachments if a.instance != instance and a.state != "detached")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSeen:
    """state: pending, running, stopping, stopped, shutting-down, terminated. devices: names in use, with their volumes."""

    id: str
    zone: str
    kind: str
    state: str
    devices: Mapping[str, str]
    interfaces: int

    @classmethod
    def of(cls, shown: Mapping[str, Any]) -> InstanceSeen:
        """From DescribeInstances."""
        return cls(
            id=shown["InstanceId"],
            zone=shown.get("Placement", {}).get("AvailabilityZone", ""),
            kind=shown.get("InstanceType", ""),
            state=shown.get("State", {}).get("Name", ""),
            devices={
                each["DeviceName"]: each.get("Ebs", {}).get("VolumeId", "")
                for each in shown.get("BlockDeviceMappings", ())
            },
            interfaces=len(shown.get("NetworkInterfaces", ())) or 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModificationSeen:
    """The last change of a volume. state: modifying, optimizing, completed, failed. started: Unix time."""

    volume: str
    state: str
    started: float
    target: Mapping[str, int | str]
    message: str = ""

    @classmethod
    def of(cls, shown: Mapping[str, Any]) -> ModificationSeen:
        """From DescribeVolumesModifications, or the answer of ModifyVolume."""
        names = {"TargetSize": "Size", "TargetIops": "Iops", "TargetThroughput": "Throughput"}
        names["TargetVolumeType"] = "VolumeType"
        return cls(
            volume=shown["VolumeId"],
            state=shown.get("ModificationState", ""),
            started=shown["StartTime"].timestamp() if "StartTime" in shown else 0.0,
            target={name: shown[key] for key, name in names.items() if key in shown},
            message=shown.get("StatusMessage", ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSeen:
    """state: pending, completed, error, …; started: Unix time."""

    id: str
    volume: str
    size: int
    state: str
    started: float
    message: str
    tags: Mapping[str, str]

    @classmethod
    def of(cls, shown: Mapping[str, Any]) -> SnapshotSeen:
        """From DescribeSnapshots, or the answer of CreateSnapshot."""
        return cls(
            id=shown["SnapshotId"],
            volume=shown.get("VolumeId", ""),
            size=shown.get("VolumeSize", 0),
            state=shown.get("State", ""),
            started=shown["StartTime"].timestamp() if "StartTime" in shown else 0.0,
            message=shown.get("StateMessage", ""),
            tags=tags_in(shown),
        )


def chunks(items: Sequence[str], size: int) -> list[Sequence[str]]:
    """The items in order, at most `size` at a time."""
    return [items[start : start + size] for start in range(0, len(items), size)]


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
