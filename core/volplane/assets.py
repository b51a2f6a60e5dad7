"""Values and results of hooks. All sizes are bytes, all durations seconds, everything is frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

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
    """The marks of an asset. volplane sets them, the backend stores them; `find` and `delete` compare them."""

    cluster_id: str
    """Id of the cluster that owns it."""
    claim_uid: str
    """`metadata.uid` of the claim for which it was made."""
    volume_name: str
    """Name of the PersistentVolume, `pvc-<claim uid>`."""
    generation: int = 1
    """Number of the asset among those of the claim's intent, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """An asset that exists and is ready for use."""

    handle: str
    """The backend's id, 1 to 1,024 characters. It never changes."""
    source: VolumeSource
    """The source of the PersistentVolume."""
    capacity_bytes: int
    """Its real size, at least what was requested; becomes `spec.capacity.storage`."""
    node_affinity: tuple[Segment, ...] = ()
    """Segments from each of which it can be reached; empty = from everywhere."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Kept on the volume and passed to later calls: `spec.csi.volumeAttributes` for csi sources, else the annotation
    `volplane.dev/attributes`. Never secrets: many may read volumes."""
    mount_options: tuple[str, ...] = ()
    """Options in addition to those of the class."""
    annotations: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Annotations of the volume for other controllers. Those that volplane writes itself win."""
    gid: int | None = None
    """Supplemental group for pods (annotation `pv.beta.kubernetes.io/gid`); None = none is needed."""
    backing_snapshot: str = ""
    """Handle of the snapshot that it shows, read only, without a copy: assets of one snapshot share its storage, and
    deleting them leaves it; `delete_snapshot` raises `VolumeInUse` while there is one. "" = it has its own storage."""
    node_expansion_required: bool | None = field(default=None, compare=False)
    """Of an answer of `expand`: whether a node has to grow the file system, where that differs from volume to volume;
    None = as `DriverInfo.node_expansion_required`."""


@dataclass(frozen=True, slots=True)
class Done:
    """The requested state is reached, by this call or an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InProgress:
    """Started and not finished. volplane makes the same call again later; no thread waits for it."""

    retry_after: float
    """Seconds until that call."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """Passed to that call in `context.state`, also after a crash: JSON values, at most 4 KiB, never secrets. It is
    kept in an annotation of the claim or volume, which many may read; on a claim it is sealed against changes. The
    repair of a leak has no object for it, so there it is lost with the process."""
    progress: str = ""
    """How far it is, for people, such as "3 of 10 GiB are copied": shown by `volplane explain`, and in an event once a
    minute while a volume or snapshot is made."""


@dataclass(frozen=True, slots=True)
class Absent:
    """No asset (or snapshot) of that name exists. Proof only after `DriverInfo.settle_seconds` since the last attempt
    to make it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PodScrub:
    """Erase by a scrubber pod that mounts the volume and empties it.

    Where others can write the directory above the asset, name a directory above that as `volume` and the rest as
    `sub_path`: a symlink in `sub_path` then cannot lead out of `volume`.
    """

    volume: Mapping[str, Any] | None = None
    """The pod volume to mount, as in a pod's spec without its name, e.g. {"hostPath": {"path": …}}; None = the volume
    that follows from the source, for a csi source through a claim that is made for the scrub."""
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
class SnapshotOwnership:
    """The marks of a snapshot. volplane sets them, the backend stores them; `find_snapshot` and `delete_snapshot`
    compare them.
    """

    cluster_id: str
    """Id of the cluster that owns it."""
    snapshot_uid: str
    """`metadata.uid` of the VolumeSnapshot, or VolumeGroupSnapshot, for which it was made."""
    content_name: str
    """Name of its content, `snapcontent-<uid>` or `groupsnapcontent-<uid>`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot that exists. Its moment has passed: what is written to the asset from now on is not in it."""

    handle: str
    """The backend's id. It never changes."""
    size_bytes: int
    """Minimum size of an asset made from it."""
    ready: bool
    """It can be used as a source. Until then volplane asks `find_snapshot` again, and nobody holds the source."""
    created_at: float | None = None
    """Unix time of its moment; None if the backend does not know it: then the time of the answer counts."""
    source: str = ""
    """Handle of the asset of which it is a snapshot; "" if the backend does not know it."""
    owner: SnapshotOwnership | None = None
    """Its marks; None if it has none, or unreadable ones (a foreign snapshot)."""
    name: str = ""
    """The name with which it was made, else the backend's name for it; for people."""
    state: str = ""
    """What the backend does with it, for people, such as "pending, 40 %"; "" = nothing to tell."""
    failed: str = ""
    """Why it can never be used, although it exists, with what to do; "" = it can, now or later."""
    retry_after: float = 15.0
    """Seconds until the next look while it is not ready."""
    node_affinity: tuple[Segment, ...] = ()
    """Segments in each of which an asset can be made from it; empty = everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """Snapshots of several assets that exist, all of one moment."""

    handle: str
    """The backend's id of the group; where it knows no groups, the name of the request."""
    snapshots: tuple[Snapshot, ...]
    """One of each asset, which its `source` names; all with the marks of the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPage:
    """A page of `list_snapshots`."""

    snapshots: tuple[Snapshot, ...]
    """In any order."""
    next_page: str | None = None
    """Passed to the next request; None on the last page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The free capacity of a segment."""

    available_bytes: int
    """The total for assets with the requested parameters."""
    maximum_volume_bytes: int | None = None
    """The largest single asset; None = limited by `available_bytes` alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedAsset:
    """One entry of `list_assets`, and the answer of `inspect`."""

    handle: str
    """As `provision` returned it."""
    name: str
    """The name with which it was made, else the backend's name for it; for people."""
    capacity_bytes: int
    """Its size."""
    owner: Ownership | None
    """Its marks; None if it has none, or unreadable ones (a foreign asset)."""
    created_at: float | None = None
    """Unix time of creation; None if the backend does not know it."""
    attached_to: tuple[str, ...] = ()
    """Ids of the machines to which it is attached now, equal to a node's `spec.providerID` or the end of it; names of
    nodes where the storage knows no machines. Another machine may have taken over a name."""
    source: VolumeSource | None = None
    """The source that a PersistentVolume of it would have. Required if the handle is not part of the source, so that
    an asset of a static volume is not taken for an orphan, and in answers of `inspect`."""
    changed_in: str = ""
    """The term in which it was changed last, as text of a `Fence`, if the backend marks assets with it. It shows
    another living cluster that has the same id, or that `volplane adopt` is to take assets from."""
    condition: str = ""
    """What is wrong with it, for people, such as "its directory is missing"; "" = nothing that is known."""
    mount_options: tuple[str, ...] = ()
    """As those of the `Asset`, for the node service of `volplane csi`."""
    type: str = ""
    """What it is charged as, such as "gp3"; `volplane leaks` shows it beside size and age. "" = one for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedArchive:
    """What a backend keeps of an asset whose volume was deleted (`DriverInfo.archives`). Texts are for people."""

    place: str
    """Where a person finds it on the storage."""
    volume: str
    """Name of the former volume."""
    claim: str = ""
    """Namespace and name of the former claim; empty = not known."""
    capacity_bytes: int | None = None
    """Size of the former volume; None = not known."""
    archived_at: float | None = None
    """Unix time; None = not known."""
    until: float | None = None
    """Unix time from which the backend may remove it; None = a person has to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetPage:
    """A page of `list_assets`."""

    assets: tuple[ListedAsset, ...]
    """In any order."""
    next_page: str | None = None
    """Passed to the next request; None on the last page."""
    archives: tuple[ListedArchive, ...] = ()
    """In any order, if the request asks for them."""
