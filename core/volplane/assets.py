"""Values and results of hooks. All sizes are bytes, all durations seconds, everything is frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = [
    "Absent",
    "AccessMode",
    "Asset",
    "AssetPage",
    "Attachment",
    "Capacity",
    "Done",
    "Erased",
    "InProgress",
    "ListedAsset",
    "Ownership",
    "PodScrub",
    "Segment",
    "Snapshot",
    "VolumeMode",
    "VolumeSource",
]


Segment = Mapping[str, str]
"""A place in the topology: node label keys and values that all hold there, e.g. {"topology.kubernetes.io/zone":
"a"}."""


class AccessMode(StrEnum):
    """`spec.accessModes` of claims and volumes."""

    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_ONLY_MANY = "ReadOnlyMany"
    READ_WRITE_MANY = "ReadWriteMany"
    READ_WRITE_ONCE_POD = "ReadWriteOncePod"


class VolumeMode(StrEnum):
    """`spec.volumeMode` of claims and volumes."""

    FILESYSTEM = "Filesystem"
    BLOCK = "Block"


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeSource:
    """Where a PersistentVolume points."""

    kind: str
    """The key of its spec: "local", "hostPath", "nfs", "csi", …"""
    fields: Mapping[str, Any]
    """What stands there, as in the API; JSON values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The marks that every asset we make must carry, and that `find`, `delete` and `list_assets` compare. Filled by
    volplane, kept and given back by the backend.
    """

    cluster_id: str
    """Which cluster owns it."""
    claim_uid: str
    """For which claim it was made."""
    volume_name: str
    """The PersistentVolume, `pvc-<claim uid>`."""
    generation: int = 1
    """Which asset of the claim's intent it is, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """An asset that exists and is ready for use."""

    handle: str
    """The backend's id, 1 to 1,024 characters, stable for ever."""
    source: VolumeSource
    """What the PersistentVolume will point at."""
    capacity_bytes: int
    """What it really holds, at least what was asked; becomes `spec.capacity.storage`."""
    node_affinity: tuple[Segment, ...] = ()
    """Segments from which it can be reached, any of them; empty = from everywhere."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Kept on the volume and given back with it: `spec.csi.volumeAttributes` for csi sources, else the annotation
    `volplane.dev/attributes`. Never secrets: many may read volumes."""
    mount_options: tuple[str, ...] = ()
    """Added to those of the class."""
    gid: int | None = None
    """Supplemental group of the files (annotation `pv.beta.kubernetes.io/gid`); None = nobody needs one."""


@dataclass(frozen=True, slots=True)
class Done:
    """It is so now, whether this call did it or an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InProgress:
    """Started, and no thread needs to wait for it: the same call comes again."""

    retry_after: float
    """Seconds until then."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """Comes back in `context.state`, also after a crash: JSON values, at most 4 KiB, never secrets. It is kept in an
    annotation of the claim or volume, readable by whoever may read that, and on a claim sealed against changes. The
    repair of a leak has no object to keep it on: there it is lost with the process."""


@dataclass(frozen=True, slots=True)
class Absent:
    """No asset of that name exists; proof only after `DriverInfo.settle_seconds` since the last attempt to make it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodScrub:
    """Erase by a scrubber pod that mounts the volume and empties it."""

    volume: Mapping[str, Any] | None = None
    """The pod volume to mount, as in a pod's spec without its name, e.g. {"hostPath": {"path": …}}; None = what
    follows from the source."""


@dataclass(frozen=True, slots=True)
class Erased:
    """The backend erased and verified the contents itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """The asset is attached to the node."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    """Becomes `status.attachmentMetadata` of the VolumeAttachment: what the node plugin needs, never secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot that exists."""

    handle: str
    """The backend's id, stable for ever."""
    size_bytes: int
    """How large an asset made of it must be at least."""
    ready: bool
    """It can be used as a source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Room in a segment."""

    available_bytes: int
    """In all, for assets with these parameters."""
    maximum_volume_bytes: int | None = None
    """The largest single asset; None = not more limited than `available_bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedAsset:
    """One entry of `list_assets`."""

    handle: str
    """As `provision` returned it."""
    name: str
    """As people would look for it: the name that it was made under, else whatever the backend calls it."""
    capacity_bytes: int
    """What it holds."""
    owner: Ownership | None
    """Its marks; None for what carries none, or marks that cannot be read (foreign)."""
    created_at: float | None = None
    """Unix time of creation where the backend knows it."""
    attached_to: tuple[str, ...] = ()
    """Names of the nodes, or ids of the instances, to which it is attached now."""
    source: VolumeSource | None = None
    """As a PersistentVolume would point at it. Needed where the handle is no part of the source: what a person has made
    a volume of is then known not to be an orphan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetPage:
    """A page of `list_assets`."""

    assets: tuple[ListedAsset, ...]
    """In any order."""
    next_page: str | None = None
    """Comes back in the next request; None on the last page."""
