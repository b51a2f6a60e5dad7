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
"""A place in the topology: node label keys and values that all hold there, e.g. {"topology.kubernetes.io/zone": "a"}."""


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
    """Where a PersistentVolume points: the key of its spec ("local", "hostPath", "nfs", "csi", …) and what stands there."""

    kind: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The marks that every asset we make must carry, and that `find`, `delete` and `list_assets` compare.

    cluster_id: which cluster owns it; claim_uid: for which claim it was made; volume_name: the PersistentVolume
    (`pvc-<claim uid>`); generation: which asset of the claim's intent it is, from 1.
    """

    cluster_id: str
    claim_uid: str
    volume_name: str
    generation: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """An asset that exists and is ready for use.

    handle: the backend's id, at most 1,024 characters, stable for ever.
    source: what the PersistentVolume will point at.
    capacity_bytes: what it really holds, at least what was asked.
    node_affinity: segments from which it can be reached, any of them; empty = from everywhere.
    attributes: kept on the volume (`spec.csi.volumeAttributes` for csi sources, else annotations); never secrets.
    mount_options: added to those of the class. gid: supplemental group of the files (annotation `pv.beta.kubernetes.io/gid`).
    """

    handle: str
    source: VolumeSource
    capacity_bytes: int
    node_affinity: tuple[Segment, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    mount_options: tuple[str, ...] = ()
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """It is so now, whether this call did it or an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InProgress:
    """Started; call again after `retry_after` seconds with the same request and this `state` (JSON values, at most 4 KiB)."""

    retry_after: float
    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Absent:
    """No asset of that name exists; proof only after `DriverInfo.settle_seconds` since the last attempt to make it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodScrub:
    """Erase by a scrubber pod that mounts the volume and empties it.

    volume: the pod volume to mount instead of the one that follows from the source, e.g. {"hostPath": {...}}.
    """

    volume: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Erased:
    """The backend erased and verified the contents itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """The asset is attached to the node. metadata becomes `status.attachmentMetadata` of the VolumeAttachment."""

    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot that exists. ready: it can be used as a source."""

    handle: str
    size_bytes: int
    ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Room in a segment. maximum_volume_bytes: the largest single asset, None = not more limited than `available_bytes`."""

    available_bytes: int
    maximum_volume_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedAsset:
    """One entry of `list_assets`. owner is None for what carries no marks, or marks that cannot be read (foreign)."""

    handle: str
    name: str
    capacity_bytes: int
    owner: Ownership | None
    created_at: float | None = None
    """Unix time of creation where the backend knows it."""
    attached_to: tuple[str, ...] = ()
    source: VolumeSource | None = None
    """As a PersistentVolume would point at it. Needed where the handle is no part of the source: what a person has made a
    volume of is then known not to be an orphan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetPage:
    """A page of `list_assets`; `next_page` is None on the last one."""

    assets: tuple[ListedAsset, ...]
    next_page: str | None = None
