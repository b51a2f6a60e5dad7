"""Requests of hooks: one frozen value a call. Fields are added, never changed; a backend reads what it needs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from volplane.assets import AccessMode, Ownership, Segment, VolumeMode, VolumeSource

__all__ = [
    "AdoptRequest",
    "AttachRequest",
    "CapacityRequest",
    "ClaimIdentity",
    "Context",
    "DeleteRequest",
    "DeleteSnapshotRequest",
    "DescribeRequest",
    "DetachRequest",
    "ExpandRequest",
    "FindRequest",
    "ListRequest",
    "ModifyRequest",
    "NodeIdentity",
    "OwnsRequest",
    "ProbeRequest",
    "ProvisionRequest",
    "RecycleRequest",
    "SnapshotRequest",
    "StartRequest",
    "StopRequest",
    "ValidateRequest",
    "VolumeIdentity",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every call carries besides its demand.

    driver: name of the driver. cluster_id: which cluster. generation: which asset of the intent, from 1.
    attempt: which call of this operation, from 1. state: what the last `InProgress` returned, else empty.
    timeout: seconds this call may take; after that its outcome counts as unknown.
    fence: rises with every change of leader; compare it where the backend can, else ignore it.
    log: logger that already knows driver, operation and object. cancelled: True once nobody waits any more.
    """

    driver: str
    cluster_id: str
    generation: int = 1
    attempt: int = 1
    state: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 120.0
    fence: str = ""
    log: logging.Logger = field(
        default_factory=lambda: logging.getLogger("volplane.backend"), compare=False, repr=False
    )
    cancelled: Callable[[], bool] = field(default=lambda: False, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimIdentity:
    """The claim an asset is for. Labels and annotations are written by tenants: never trust them as paths."""

    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeIdentity:
    """A volume whose asset is to be worked on. owner is None for static volumes (made by a person)."""

    name: str
    uid: str
    handle: str
    source: VolumeSource
    capacity_bytes: int
    owner: Ownership | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    volume_mode: VolumeMode = VolumeMode.FILESYSTEM
    access_modes: tuple[AccessMode, ...] = (AccessMode.READ_WRITE_ONCE,)
    node_affinity: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """A node to attach to. instance_id: `spec.providerID` of the Node."""

    name: str
    uid: str = ""
    instance_id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionRequest:
    """Make the asset `name`, or return the one that exists and answers an equal demand.

    name: `pvc-<claim uid>`, at most 63 characters. capacity_bytes: at least so much. limit_bytes: at most, None = any.
    parameters: the class's, already checked and typed by the schema of `describe`.
    segment: the place chosen for it (sticky over retries), None = anywhere. allowed_segments: other legal places.
    owner: the marks to put on the asset.
    """

    context: Context
    name: str
    capacity_bytes: int
    owner: Ownership
    claim: ClaimIdentity
    limit_bytes: int | None = None
    access_modes: tuple[AccessMode, ...] = (AccessMode.READ_WRITE_ONCE,)
    volume_mode: VolumeMode = VolumeMode.FILESYSTEM
    parameters: Mapping[str, Any] = field(default_factory=dict)
    segment: Segment | None = None
    allowed_segments: tuple[Segment, ...] = ()
    selected_node: NodeIdentity | None = None
    mount_options: tuple[str, ...] = ()
    source_snapshot: str | None = None
    source_volume: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindRequest:
    """Look for the asset that a `provision` with this name and owner may have made."""

    context: Context
    name: str
    owner: Ownership
    parameters: Mapping[str, Any] = field(default_factory=dict)
    segment: Segment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRequest:
    """Destroy the asset of this volume. Refuse (`AlreadyExists`) what carries another owner's marks."""

    context: Context
    volume: VolumeIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnsRequest:
    """Is this source mine? Asked for volumes that people made; must not touch the storage."""

    context: Context
    source: VolumeSource


@dataclass(frozen=True, slots=True, kw_only=True)
class RecycleRequest:
    """How shall the contents of this released volume be erased?"""

    context: Context
    volume: VolumeIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachRequest:
    """Make the asset usable on the node."""

    context: Context
    volume: VolumeIdentity
    node: NodeIdentity
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachRequest:
    """Undo `attach`; an asset that is not attached there is `Done`."""

    context: Context
    volume: VolumeIdentity
    node: NodeIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandRequest:
    """Grow the asset to at least `capacity_bytes`; one that is large enough is returned as it is."""

    context: Context
    volume: VolumeIdentity
    capacity_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModifyRequest:
    """Change mutable parameters of the asset (a VolumeAttributesClass)."""

    context: Context
    volume: VolumeIdentity
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest:
    """A page of all assets in the driver's reach, foreign ones included. page: None for the first."""

    context: Context
    page: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptRequest:
    """Take over the asset of this volume from another cluster: replace the marks `former` by those of `volume.owner`.

    A person asked for it, after a restore. An asset that carries the new marks already is `Done`. Refuse (`AlreadyExists`)
    one that carries neither.
    """

    context: Context
    volume: VolumeIdentity
    former: Ownership


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """How much room is in the segment for assets with these parameters?"""

    context: Context
    parameters: Mapping[str, Any] = field(default_factory=dict)
    segment: Segment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateRequest:
    """Check parameters beyond what the schema can say. Raise `InvalidArgument` naming key and value."""

    context: Context
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    """Make the snapshot `name` of the asset, or return the one that exists."""

    context: Context
    name: str
    volume: VolumeIdentity
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSnapshotRequest:
    """Destroy the snapshot; one that is gone is `Done`."""

    context: Context
    handle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """Sent once before any other hook but `describe`: open connections, check the root. node_name: set on node instances."""

    context: Context
    node_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """Sent once when the driver goes; no hook runs any more."""

    context: Context


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """Is the storage there and usable? Return `Done` or raise `Unavailable` with what to do."""

    context: Context


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeRequest:
    """Ask for the `DriverInfo`."""

    context: Context
