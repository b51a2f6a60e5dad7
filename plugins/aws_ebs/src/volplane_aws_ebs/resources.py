"""EC2 resources as values, and their handles, volume sources and assets.

Sizes are GiB, as in the EC2 API; times are Unix times. States are those of the Amazon EC2 API reference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from volplane import Asset, InvalidArgument, NodeIdentity, NotFound, VolumeIdentity, VolumeSource
from volplane.cloud import csi_asset
from volplane_aws_ebs.settings import Settings


def tags_from(response: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a resource in a response."""
    return {tag["Key"]: tag.get("Value", "") for tag in response.get("Tags", ())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Attachment:
    """The attachment of a volume to an instance."""

    instance: str
    device: str
    state: str
    """One of attaching, attached, detaching, detached, busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Volume:
    """A volume."""

    id: str
    zone: str
    size: int
    volume_type: str
    state: str
    """One of creating, available, in-use, deleting, deleted, error."""
    created: float
    iops: int | None = None
    throughput: int | None = None
    encrypted: bool = False
    kms_key: str | None = None
    snapshot: str = ""
    source: str = ""
    """The volume that it is a copy of."""
    multi_attach: bool = False
    initialization_rate: int | None = None
    zone_id: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    attachments: tuple[Ec2Attachment, ...] = ()

    @classmethod
    def of(cls, response: Mapping[str, Any]) -> Ec2Volume:
        """Read a volume of DescribeVolumes, or the response of CreateVolume."""
        return cls(
            id=response["VolumeId"],
            zone=response.get("AvailabilityZone", ""),
            size=response.get("Size", 0),
            volume_type=response.get("VolumeType", ""),
            state=response.get("State", ""),
            created=response["CreateTime"].timestamp() if "CreateTime" in response else 0.0,
            iops=response.get("Iops"),
            throughput=response.get("Throughput"),
            encrypted=response.get("Encrypted", False),
            kms_key=response.get("KmsKeyId"),
            snapshot=response.get("SnapshotId", ""),
            source=response.get("SourceVolumeId", ""),
            multi_attach=response.get("MultiAttachEnabled", False),
            initialization_rate=response.get("VolumeInitializationRate"),
            zone_id=response.get("AvailabilityZoneId", ""),
            tags=tags_from(response),
            attachments=tuple(
                Ec2Attachment(
                    instance=each.get("InstanceId", ""), device=each.get("Device", ""), state=each.get("State", "")
                )
                for each in response.get("Attachments", ())
            ),
        )

    @property
    def being_deleted(self) -> bool:
        """Return whether DeleteVolume was accepted, which cannot be undone."""
        return self.state in ("deleting", "deleted")

    @property
    def filled_later(self) -> bool:
        """Return whether its contents are read from a snapshot or another volume after it is available."""
        return bool(self.snapshot or self.source)

    @property
    def available(self) -> bool:
        """Return whether it can be attached or deleted now."""
        return self.state == "available" and not self.attachments

    def attachment(self, instance: str) -> Ec2Attachment | None:
        """Return its attachment to this instance in any state but `detached`, else None."""
        return next((a for a in self.attachments if a.instance == instance and a.state != "detached"), None)

    def elsewhere(self, instance: str) -> tuple[Ec2Attachment, ...]:
        """Return its attachments to other instances in any state but `detached`."""
        return tuple(a for a in self.attachments if a.instance != instance and a.state != "detached")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Instance:
    """An instance."""

    id: str
    zone: str
    instance_type: str
    state: str
    """One of pending, running, stopping, stopped, shutting-down, terminated."""
    devices: Mapping[str, str]
    """Device names in use -> volume ids."""
    interfaces: int
    """Attached network interfaces."""
    cards: Mapping[str, int] = field(default_factory=dict)
    """Volume ids -> index of the EBS card at which they are."""

    @classmethod
    def of(cls, response: Mapping[str, Any]) -> Ec2Instance:
        """Read an instance of DescribeInstances."""
        return cls(
            id=response["InstanceId"],
            zone=response.get("Placement", {}).get("AvailabilityZone", ""),
            instance_type=response.get("InstanceType", ""),
            state=response.get("State", {}).get("Name", ""),
            devices={
                each["DeviceName"]: each.get("Ebs", {}).get("VolumeId", "")
                for each in response.get("BlockDeviceMappings", ())
            },
            interfaces=len(response.get("NetworkInterfaces", ())) or 1,
            cards={
                each["Ebs"].get("VolumeId", ""): each["Ebs"].get("EbsCardIndex", 0)
                for each in response.get("BlockDeviceMappings", ())
                if "Ebs" in each
            },
        )


_SIZED_METAL = re.compile(r"\w[\w-]*\.metal-\d+xl")
_XEN_ATTACHMENTS = 39
"""Volumes of an instance on Xen, its root volume included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLimits:
    """What instances of a type can hold."""

    attachments: int = 0
    """Volumes, 0 = unknown."""
    shared: bool = False
    """Network interfaces after the first count as well."""
    cards: int = 1
    """EBS cards, over which the volumes are spread."""

    @classmethod
    def of(cls, response: Mapping[str, Any]) -> InstanceLimits:
        """Read a type of DescribeInstanceTypes.

        EC2 calls the limits of Xen, and of some metal types that have a size in their names, shared by mistake
        (kubernetes-sigs/aws-ebs-csi-driver, pkg/cloud/limits): those of every such type are dedicated.
        """
        info = response.get("EbsInfo", {})
        cards = info.get("MaximumEbsCards", 1)
        if response.get("Hypervisor") == "xen":
            return cls(attachments=_XEN_ATTACHMENTS, cards=cards)
        dedicated = _SIZED_METAL.fullmatch(response.get("InstanceType", "")) is not None
        return cls(
            attachments=info.get("MaximumEbsAttachments", 0),
            shared=info.get("AttachmentLimitType") == "shared" and not dedicated,
            cards=cards,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeModification:
    """The last modification of a volume."""

    volume: str
    state: str
    """One of modifying, optimizing, completed, failed."""
    started: float
    target: Mapping[str, int | str]
    """Parameters of ModifyVolume -> values after the modification."""
    message: str = ""

    @classmethod
    def of(cls, response: Mapping[str, Any]) -> VolumeModification:
        """Read a modification of DescribeVolumesModifications, or the response of ModifyVolume."""
        names = {"TargetSize": "Size", "TargetIops": "Iops", "TargetThroughput": "Throughput"}
        names["TargetVolumeType"] = "VolumeType"
        return cls(
            volume=response["VolumeId"],
            state=response.get("ModificationState", ""),
            started=response["StartTime"].timestamp() if "StartTime" in response else 0.0,
            target={name: response[key] for key, name in names.items() if key in response},
            message=response.get("StatusMessage", ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Snapshot:
    """A snapshot."""

    id: str
    volume: str
    """Its source; "" where EC2 has no real id, as of copies of snapshots."""
    size: int
    """Of its volume."""
    state: str
    """One of pending, completed, error, recoverable, recovering."""
    started: float
    progress: str
    """Such as "40%"."""
    message: str
    account: str
    """To which it belongs."""
    shared: bool
    """It belongs to another account, as far as is known."""
    encrypted: bool
    kms_key: str
    archived: bool
    """It must be restored from the archive tier first."""
    zone: str
    """Of a snapshot that is kept in a local zone; "" = of the region."""
    tags: Mapping[str, str]

    @classmethod
    def of(cls, response: Mapping[str, Any]) -> Ec2Snapshot:
        """Read a snapshot of DescribeSnapshots, or the response of CreateSnapshot."""
        volume = response.get("VolumeId", "")
        return cls(
            id=response["SnapshotId"],
            volume="" if volume == _NO_VOLUME else volume,
            size=response.get("VolumeSize", 0),
            state=response.get("State", ""),
            started=response["StartTime"].timestamp() if "StartTime" in response else 0.0,
            progress=response.get("Progress", ""),
            message=response.get("StateMessage", ""),
            account=response.get("OwnerId", ""),
            shared=False,
            encrypted=response.get("Encrypted", False),
            kms_key=response.get("KmsKeyId", ""),
            archived=response.get("StorageTier") == "archive",
            zone=response.get("AvailabilityZone", ""),
            tags=tags_from(response),
        )


_NO_VOLUME = "vol-ffffffff"
"""The volume of a snapshot that was copied (Amazon EC2 API reference, Snapshot)."""
IN_TREE = "awsElasticBlockStore"
_HANDLE = re.compile(r"(?:aws://[^/]*/)?(vol-[0-9a-f]{8,17})")
_SNAPSHOT = re.compile(r"snap-[0-9a-f]{8,17}")
_INSTANCE = re.compile(r"(?:aws://(?:[^/]*/)*)?(i-[0-9a-f]{8,17})")


def volume_id_from(handle: str) -> str | None:
    """Return the volume id in a handle of a csi or in-tree source; None if the handle cannot be one of EBS."""
    match = _HANDLE.fullmatch(handle)
    return match[1] if match else None


def volume_id(volume: VolumeIdentity) -> str:
    """Return the volume id of a PersistentVolume. Raises InvalidArgument."""
    id_ = volume_id_from(volume.handle)
    if id_ is None:
        raise InvalidArgument(
            f"handle {volume.handle!r} of {volume.name} is no volume of EBS; it must look like vol-0a1b2c3d4e5f67890"
        )
    return id_


def snapshot_id_from(handle: str) -> str | None:
    """Return the snapshot id in a handle; None if the handle cannot be one of EBS."""
    return handle if _SNAPSHOT.fullmatch(handle) else None


def instance_id(node: NodeIdentity) -> str | None:
    """Return the instance id in a node's providerID; None if the node is no instance of EC2."""
    match = _INSTANCE.fullmatch(node.instance_id)
    return match[1] if match else None


def place(settings: Settings, volume: Ec2Volume) -> str:
    """Return the volume's zone, as `zone_label` of the nodes names it."""
    return volume.zone_id if settings.zone_ids else volume.zone


def zone_parameter(settings: Settings, zone: str) -> dict[str, str]:
    """Return the parameter of CreateVolume that names the zone."""
    return {"AvailabilityZoneId" if settings.zone_ids else "AvailabilityZone": zone}


def asset_from(
    settings: Settings,
    volume: Ec2Volume,
    source: VolumeSource,
    *,
    driver: str,
    attributes: Mapping[str, str] | None = None,
) -> Asset:
    """Return the asset: its node affinity is its zone. attributes: for the node plugin."""
    zones = (place(settings, volume),)
    return csi_asset(
        settings, volume.id, source, size_gib=volume.size, zones=zones, driver=driver, attributes=attributes
    )


def existing(volume: Ec2Volume | None, identity: VolumeIdentity) -> Ec2Volume:
    """Return the volume of a PersistentVolume. Raises NotFound if there is none, or it is being deleted."""
    if volume is None or volume.being_deleted:
        raise NotFound(
            f"volume {volume_id(identity)} of {identity.name} does not exist (any more)", code="InvalidVolume.NotFound"
        )
    return volume
