"""Resources of Compute Engine as values, and their handles, names, volume sources and assets.

Sizes are GiB (Compute Engine's GB). Places are "zones/europe-west3-a" and "regions/europe-west3". States are those of
the Compute Engine API v1 reference.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from volplane import Asset, InvalidArgument, NodeIdentity, NotFound, Ownership, VolumeIdentity, VolumeSource
from volplane.cloud import csi_asset
from volplane_gce_pd.settings import Settings

FORCE_ATTACH = "force-attach"
"""Attribute of volumes of the class parameter availability-class: regional-hard-failover, as of the official driver."""

DiskKey = tuple[str, str]
"""Place and name of a disk."""
InstanceKey = tuple[str, str]
"""Zone and name of a virtual machine."""
SnapshotKey = tuple[str, str, str]
"""Project, kind (SNAPSHOTS or IMAGES) and name of a snapshot."""
SNAPSHOTS, IMAGES = "snapshots", "images"
"""Kinds of snapshots, as in URLs."""


def _last(url: str) -> str:
    return url.rpartition("/")[2]


def _place_and_name(url: str) -> tuple[str, str]:
    """Return place and name of a zonal or regional resource from its URL."""
    parts = url.split("/")
    return "/".join(parts[-4:-2]), parts[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A disk."""

    place: str
    name: str
    id: int
    size: int
    disk_type: str
    state: str
    """One of CREATING, RESTORING, FAILED, READY, DELETING, UNAVAILABLE."""
    labels: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    users: tuple[InstanceKey, ...] = ()
    """Virtual machines to which it is attached; Compute Engine shows at most 50."""
    iops: int = 0
    throughput: int = 0
    kms_key: str = ""
    access_mode: str = ""
    replica_zones: tuple[str, ...] = ()
    source: str = ""
    confidential: bool = False
    pool: str = ""
    created: str = ""
    description: str = ""
    last_attached: str = ""
    """As Compute Engine writes it, "" if it never was."""
    last_detached: str = ""

    @classmethod
    def of(cls, message: Any) -> Disk:
        """Read the message compute.v1.Disk."""
        place = f"regions/{_last(message.region)}" if message.region else f"zones/{_last(message.zone)}"
        return cls(
            place=place,
            name=message.name,
            id=int(message.id),
            size=int(message.size_gb),
            disk_type=_last(message.type_),
            state=message.status,
            labels=dict(message.labels),
            fingerprint=message.label_fingerprint,
            users=tuple((zone.partition("/")[2], name) for zone, name in map(_place_and_name, message.users)),
            iops=int(message.provisioned_iops),
            throughput=int(message.provisioned_throughput),
            kms_key=message.disk_encryption_key.kms_key_name,
            access_mode=message.access_mode,
            replica_zones=tuple(_last(zone) for zone in message.replica_zones),
            source=message.source_snapshot or message.source_image or message.source_disk,
            confidential=bool(message.enable_confidential_compute),
            pool=message.storage_pool,
            created=message.creation_timestamp,
            description=message.description,
            last_attached=message.last_attach_timestamp,
            last_detached=message.last_detach_timestamp,
        )

    @property
    def key(self) -> DiskKey:
        """Return its place and name."""
        return self.place, self.name

    @property
    def asset(self) -> str:
        """Return its place and name as one text."""
        return f"{self.place}/{self.name}"

    @property
    def zones(self) -> tuple[str, ...]:
        """Return the zones in which it can be attached."""
        return self.replica_zones or (self.place.partition("/")[2],)

    @property
    def making(self) -> bool:
        """Return whether it is being made, and cannot be used yet."""
        return self.state in ("CREATING", "RESTORING")

    @property
    def shared(self) -> bool:
        """Return whether several virtual machines may write to it, or read it, at once."""
        return self.access_mode in ("READ_WRITE_MANY", "READ_ONLY_MANY")

    @property
    def becomes_shared(self) -> bool:
        """Return whether its access mode can become READ_ONLY_MANY, which is for ever."""
        return self.disk_type == "hyperdisk-ml" and not self.shared

    def handle(self, project: str) -> str:
        """Return the handle, as in `volumeHandle` of the official driver."""
        return f"projects/{project}/{self.place}/disks/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedDisk:
    """A disk as a virtual machine has it."""

    key: DiskKey
    device: str
    mode: str
    """READ_WRITE or READ_ONLY."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A virtual machine."""

    zone: str
    name: str
    id: int
    state: str
    machine_type: str
    disks: tuple[AttachedDisk, ...]
    """Persistent ones, the boot disk included."""

    @property
    def key(self) -> InstanceKey:
        """Return its zone and name."""
        return self.zone, self.name

    @classmethod
    def of(cls, message: Any) -> Instance:
        """Read the message compute.v1.Instance."""
        return cls(
            zone=_last(message.zone),
            name=message.name,
            id=int(message.id),
            state=message.status,
            machine_type=_last(message.machine_type),
            disks=tuple(
                AttachedDisk(key=_place_and_name(each.source), device=each.device_name, mode=each.mode)
                for each in message.disks
                if each.source
            ),
        )

    def disk(self, key: DiskKey) -> AttachedDisk | None:
        """Return how it has this disk; None if it has it not."""
        return next((each for each in self.disks if each.key == key), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A long-running operation."""

    place: str
    """As of disks, or "global"."""
    name: str
    done: bool
    errors: tuple[tuple[str, str], ...] = ()
    """Codes and messages, empty if it succeeded."""
    status: int = 0

    @classmethod
    def of(cls, message: Any) -> Operation:
        """Read the message compute.v1.Operation."""
        if message.zone:
            place = f"zones/{_last(message.zone)}"
        else:
            place = f"regions/{_last(message.region)}" if message.region else "global"
        errors = tuple((each.code, each.message) for each in message.error.errors)
        if not errors and message.http_error_status_code >= 400:
            errors = ((f"HTTP {message.http_error_status_code}", message.http_error_message),)
        return cls(
            place=place,
            name=message.name,
            done=message.status == "DONE" or getattr(message.status, "name", "") == "DONE",
            errors=errors,
            status=int(message.http_error_status_code),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSnapshot:
    """A snapshot, or an image that is used as one."""

    key: SnapshotKey
    id: int
    size: int
    """Of its disk."""
    state: str
    """One of CREATING (of images PENDING), UPLOADING, READY, FAILED, DELETING."""
    disk: str
    """Handle of its disk; "" if it has none."""
    disk_id: int
    created: str
    """As Compute Engine writes it."""
    description: str
    labels: Mapping[str, str]

    @classmethod
    def of(cls, message: Any, project: str, kind: str) -> DiskSnapshot:
        """Read the message compute.v1.Snapshot or compute.v1.Image."""
        return cls(
            key=(project, kind, message.name),
            id=int(message.id),
            size=int(message.disk_size_gb),
            state=message.status,
            disk=message.source_disk[max(message.source_disk.find("projects/"), 0) :],
            disk_id=int(message.source_disk_id or 0),
            created=message.creation_timestamp,
            description=message.description,
            labels=dict(message.labels),
        )

    @property
    def name(self) -> str:
        """Return its name."""
        return self.key[2]

    @property
    def handle(self) -> str:
        """Return the handle, as in `snapshotHandle` of the official driver."""
        return snapshot_handle(self.key)

    @property
    def cutting(self) -> bool:
        """Return whether its moment may lie ahead."""
        return self.state in ("CREATING", "PENDING")


def key_of_version(name: str) -> str:
    """Return the name of a key of Cloud KMS without its version; "" = a key of Google's."""
    return name.partition("/cryptoKeyVersions/")[0]


# --- names ------------------------------------------------------------------------------------------------------

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_REQUESTS = uuid.UUID("5bd2fa47-2a3f-5a0e-9a86-3f2f4b1c9d10")


def resource_name(text: str) -> str:
    """Return the text as the name of a resource: itself if Compute Engine takes it, else with a hash."""
    if _NAME.fullmatch(text):
        return text
    plain = re.sub(r"[^a-z0-9-]", "-", text.lower())[:28].strip("-")
    return f"v-{plain or 'x'}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def disk_name(owner: Ownership) -> str:
    """Return the name of an owner's disk: that of the volume, as of the official driver, with the generation if it is
    not 1.

    It is unique in a project and place, so that a second disk of one owner and generation cannot be made.
    """
    return resource_name(owner.volume_name if owner.generation == 1 else f"{owner.volume_name}-g{owner.generation}")


def request_id(*parts: object) -> str:
    """Return the requestId of a call: Compute Engine does a call with a known one only once (for about an hour)."""
    return str(uuid.uuid5(_REQUESTS, "\0".join(map(str, parts))))


# --- handles and sources ----------------------------------------------------------------------------------------

_HANDLE = re.compile(r"projects/([^/\s]+)/(zones|regions)/([a-z0-9-]+)/disks/([a-z][a-z0-9-]{0,62})")
_INSTANCE = re.compile(
    r"(?:(?:gce://|projects/)([^/\s]+)/)?(?:zones/)?([a-z0-9-]+)/(?:instances/)?([a-z][a-z0-9-]{0,62})"
)
"""A providerID, a node id of the official CSI driver (projects/PROJECT/zones/ZONE/instances/NAME), or ZONE/NAME."""
_SNAPSHOT = re.compile(r"projects/([^/\s]+)/global/(snapshots|images)/([a-z][a-z0-9-]{0,62})")


def disk_key_from(handle: str, project: str) -> DiskKey | None:
    """Return the place and name of the disk in a handle; None if the handle cannot be one of this project."""
    match = _HANDLE.fullmatch(handle)
    return (f"{match[2]}/{match[3]}", match[4]) if match and match[1] == project else None


def disk_key(volume: VolumeIdentity, settings: Settings) -> DiskKey:
    """Return the place and name of the disk of a PersistentVolume. Raises InvalidArgument."""
    key = disk_key_from(volume.handle, settings.project)
    if key is None:
        raise InvalidArgument(
            f"handle {volume.handle!r} of {volume.name} is no disk of project {settings.project!r}; it must look like "
            f"projects/{settings.project}/zones/{settings.region}-a/disks/pvc-1"
        )
    _, _, where = key[0].partition("/")
    if where != settings.region and not settings.in_region(where):
        raise InvalidArgument(f"the disk {volume.handle} of {volume.name} is not in region {settings.region!r}")
    return key


def snapshot_key_from(handle: str) -> SnapshotKey | None:
    """Return the snapshot in a handle, of any project; None if the handle cannot be one."""
    match = _SNAPSHOT.fullmatch(handle)
    return (match[1], match[2], match[3]) if match else None


def snapshot_handle(key: SnapshotKey) -> str:
    """Return its handle."""
    return f"projects/{key[0]}/global/{key[1]}/{key[2]}"


def unix_time(text: str) -> float | None:
    """Return a time that Compute Engine writes; None if it cannot be read."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def instance_key(node: NodeIdentity, project: str) -> InstanceKey | None:
    """Return zone and name of the machine in a node's providerID; None if the node is none of this project."""
    match = _INSTANCE.fullmatch(node.instance_id)
    return (match[2], match[3]) if match and match[1] in (None, project) else None


def asset_from(
    settings: Settings, disk: Disk, source: VolumeSource, *, driver: str, attributes: Mapping[str, str] | None = None
) -> Asset:
    """Return the asset: its node affinity is its zone, or any of its two."""
    handle = disk.handle(settings.project)
    return csi_asset(
        settings, handle, source, size_gib=disk.size, zones=disk.zones, driver=driver, attributes=attributes
    )


def existing(disk: Disk | None, identity: VolumeIdentity) -> Disk:
    """Return the disk of a PersistentVolume. Raises NotFound if there is none, or it is being deleted."""
    if disk is None or disk.state == "DELETING":
        raise NotFound(f"the disk {identity.handle} of {identity.name} does not exist (any more)", code="notFound")
    return disk
