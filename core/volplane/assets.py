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
"""A topology segment: label keys and values that its nodes have, such as {"topology.kubernetes.io/zone": "a"}."""


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
    """The source of a PersistentVolume."""

    kind: str
    """The key of its spec: "local", "hostPath", "nfs", "csi", …"""
    fields: Mapping[str, Any]
    """The fields of that key, as in the API: JSON values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The marks of an asset. volplane fills them, the backend stores them; `find`, `delete`, `list_assets` compare."""

    cluster_id: str
    """Which cluster owns it."""
    claim_uid: str
    """`metadata.uid` of the claim it was made for."""
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
    """The source of the PersistentVolume."""
    capacity_bytes: int
    """Its real size, at least what was requested; becomes `spec.capacity.storage`."""
    node_affinity: tuple[Segment, ...] = ()
    """Segments from which it can be reached, any of them; empty = from everywhere."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Kept on the volume and given back with it: `spec.csi.volumeAttributes` for csi sources, else the annotation
    `volplane.dev/attributes`. Never secrets: many may read volumes."""
    mount_options: tuple[str, ...] = ()
    """Added to those of the class."""
    gid: int | None = None
    """Supplemental group for pods (annotation `pv.beta.kubernetes.io/gid`); None = none is needed."""


@dataclass(frozen=True, slots=True)
class Done:
    """The requested state is reached, by this call or an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InProgress:
    """Started and not finished: volplane makes the same call again, and no thread waits meanwhile."""

    retry_after: float
    """Seconds until that call."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """Passed to that call in `context.state`, also after a crash: JSON values, at most 4 KiB, never secrets. It is
    kept in an annotation of the claim or volume, readable by all who may read those, and on a claim sealed against
    changes. The repair of a leak has no object to keep it on: there it is lost with the process."""


@dataclass(frozen=True, slots=True)
class Absent:
    """No asset of that name exists; proof only after `DriverInfo.settle_seconds` since the last attempt to make it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodScrub:
    """Erase by a scrubber pod that mounts the volume and empties it.

    Where others can write the directory above the asset, name what lies above that as `volume` and the rest as
    `sub_path`: a link put in the way then leads nowhere outside of `volume`.
    """

    volume: Mapping[str, Any] | None = None
    """The pod volume to mount, as in a pod's spec without its name, e.g. {"hostPath": {"path": …}}; None = what
    follows from the source, for a csi source a claim of the scrub's own."""
    sub_path: str = ""
    """The part of `volume` that is the asset, as `subPath` of a volume mount: relative, without "..", only with
    `volume`; "" = all of it."""


@dataclass(frozen=True, slots=True)
class Erased:
    """The backend erased and verified the contents itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """The asset is attached to the requested node."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    """Becomes `status.attachmentMetadata` of the VolumeAttachment, for the node plugin; never secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot that exists."""

    handle: str
    """The backend's id, stable for ever."""
    size_bytes: int
    """Minimum size of an asset made from it."""
    ready: bool
    """Whether it can be used as a source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The free capacity of a segment."""

    available_bytes: int
    """In total, for assets with the requested parameters."""
    maximum_volume_bytes: int | None = None
    """The largest single asset; None = not more limited than `available_bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedAsset:
    """One entry of `list_assets`."""

    handle: str
    """As `provision` returned it."""
    name: str
    """The name that it was made with, else the backend's name for it; for people."""
    capacity_bytes: int
    """Its size."""
    owner: Ownership | None
    """Its marks; None if it has none, or unreadable ones (a foreign asset)."""
    created_at: float | None = None
    """Unix time of creation; None if the backend does not know it."""
    attached_to: tuple[str, ...] = ()
    """To what it is attached now: ids of machines, as nodes have them in `spec.providerID` or at its end, or names of
    nodes where the storage knows no machines. A name may be that of another machine by now.
    """
    source: VolumeSource | None = None
    """The source that a PersistentVolume of it would have. Required if the handle is not part of the source, so that
    an asset of a static volume is not taken for an orphan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetPage:
    """A page of `list_assets`."""

    assets: tuple[ListedAsset, ...]
    """In any order."""
    next_page: str | None = None
    """Passed to the next request; None on the last page."""
