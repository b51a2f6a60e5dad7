"""What Describe calls show, as values. Sizes in GiB as EC2 has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "GIB",
    "AttachmentSeen",
    "InstanceSeen",
    "ModificationSeen",
    "SnapshotSeen",
    "VolumeSeen",
    "chunks",
    "tags_in",
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
