"""Requests of hooks: one frozen value per call, filled by volplane.

Later versions add fields and change none. Sizes are bytes, durations seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Self, TypeVar

from volplane.assets import (
    Absent,
    AccessMode,
    Asset,
    AssetPage,
    Attachment,
    Capacity,
    Done,
    Erased,
    InProgress,
    Ownership,
    PodScrub,
    Segment,
    Snapshot,
    VolumeMode,
    VolumeSource,
)
from volplane.schemas import DriverInfo

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
    "Fence",
    "FindRequest",
    "HookRequest",
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


R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Fence:
    """The term of leadership under which a call is made; its text is `transitions/holder/lease`.

    transitions: how often the Lease has changed hands. holder: name of the process. lease: uid of the Lease.
    """

    transitions: int
    holder: str
    lease: str

    def __str__(self) -> str:
        return f"{self.transitions}/{self.holder}/{self.lease}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The fence that `str` wrote; None for "" (nobody is elected) and for anything else."""
        parts = text.split("/")
        if len(parts) != 3 or not parts[0].isdecimal():
            return None
        return cls(int(parts[0]), parts[1], parts[2])

    def outdates(self, other: Fence) -> bool:
        """Whether the other is of an earlier term. Terms of two Leases cannot be compared: the later call counts."""
        return self.lease == other.lease and self.transitions > other.transitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The part that all requests have."""

    driver: str
    """Name of the driver, as in the configuration and in the class's `provisioner`."""
    cluster_id: str
    """The calling cluster: `clusterId` of the configuration, else the uid of namespace kube-system."""
    generation: int = 1
    """Number of the asset of the claim's intent, from 1. It rises once the asset before is proven absent or failed."""
    attempt: int = 1
    """Number of this attempt, from 1: one more than the failures in a row that this process knows of."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """`state` of the last `InProgress` of this operation, else empty."""
    timeout: float = 120.0
    """Seconds this call may take, from the driver's `timeout`; after that its outcome counts as unknown."""
    fence: str = ""
    """The term of leadership under which the call is made, as `Fence` reads it; "" where nobody is elected. Compare it
    where the backend can: a call whose fence is outdated by that of a call seen before comes from a former leader
    (`Fenced`)."""
    log: logging.Logger = field(
        default_factory=lambda: logging.getLogger("volplane.backend"), compare=False, repr=False
    )
    """Logger that already knows driver, operation and object."""
    traceparent: str = field(default="", compare=False, repr=False)
    """W3C trace context of this call, to hand on to the storage; "" where there is none. Its trace id is in all log
    lines about the claim."""
    cancelled: Callable[[], bool] = field(default=lambda: False, compare=False, repr=False)
    """True once the caller has stopped waiting: stop at the next safe point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRequest(Generic[R]):
    """What all requests have in common. R: what the hook may return."""

    hook: ClassVar[str]
    """Name of the hook that gets it."""
    context: Context


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimIdentity:
    """The claim an asset is for. Labels and annotations are written by tenants: never trust them as paths."""

    namespace: str
    """`metadata.namespace` of the claim."""
    name: str
    """`metadata.name` of the claim."""
    uid: str
    """`metadata.uid` of the claim, unique for ever."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """`metadata.labels` of the claim."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """`metadata.annotations` of the claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeIdentity:
    """A volume whose asset the call is about."""

    name: str
    """`metadata.name` of the PersistentVolume; `pvc-<claim uid>` for those that volplane made."""
    uid: str
    """`metadata.uid` of the PersistentVolume; empty for an asset that never became one."""
    handle: str
    """As the backend returned it (annotation `volplane.dev/handle`); for static volumes taken from the source:
    `volumeHandle`, path, or server and path."""
    source: VolumeSource
    """The volume's source as it is now."""
    capacity_bytes: int
    """`spec.capacity.storage`, rounded up to whole bytes."""
    owner: Ownership | None = None
    """The marks that the asset must carry; None for static volumes (made by a person), whose asset must carry
    nobody's."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """As the backend returned them; of static volumes those of a csi source."""
    volume_mode: VolumeMode = VolumeMode.FILESYSTEM
    """`spec.volumeMode`."""
    access_modes: tuple[AccessMode, ...] = (AccessMode.READ_WRITE_ONCE,)
    """`spec.accessModes`."""
    node_affinity: tuple[Segment, ...] = ()
    """`spec.nodeAffinity` as segments, any of them; empty = everywhere, or an affinity that is no list of places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """A node to attach to, or that was chosen for a pod."""

    name: str
    """`metadata.name` of the Node."""
    uid: str = ""
    """`metadata.uid` of the Node."""
    instance_id: str = ""
    """`spec.providerID` of the Node, such as aws:///eu-central-1a/i-0123; empty where no cloud set one."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """`metadata.labels` of the Node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionRequest(HookRequest[Asset | InProgress]):
    """Make the asset `name`, or return the one that exists and answers an equal demand."""

    hook: ClassVar[str] = "provision"
    name: str
    """`pvc-<claim uid>`, at most 63 characters; the same in every attempt."""
    capacity_bytes: int
    """At least so many bytes: the claim's `resources.requests.storage`, rounded up."""
    owner: Ownership
    """The marks to put on the asset, with its generation."""
    claim: ClaimIdentity
    """The claim it is for, for names and tags that people read."""
    limit_bytes: int | None = None
    """At most so many bytes; None = any. Claims cannot ask for it, so that the controllers leave it None."""
    access_modes: tuple[AccessMode, ...] = (AccessMode.READ_WRITE_ONCE,)
    """`spec.accessModes` of the claim: all of them must be possible."""
    volume_mode: VolumeMode = VolumeMode.FILESYSTEM
    """`spec.volumeMode` of the claim."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The class's, checked and typed by the schema of `describe`, with an entry for each of its parameters; without
    those of volplane's own."""
    segment: Segment | None = None
    """The place chosen for it, from the selected node or the class's allowed topologies; the same over retries. None =
    anywhere."""
    allowed_segments: tuple[Segment, ...] = ()
    """Other legal places, from the class's `allowedTopologies`; empty = all."""
    node_segments: tuple[Segment, ...] = ()
    """Where nodes of the cluster are, each place once: what a place that nobody chose is best chosen from. Empty = no
    node has the labels of the driver's topology keys."""
    selected_node: NodeIdentity | None = None
    """The node of the pod that waits (WaitForFirstConsumer), as the scheduler chose it; None = no pod waits, or the
    node is gone."""
    mount_options: tuple[str, ...] = ()
    """`mountOptions` of the class, for backends that check them; volplane writes them to the volume itself."""
    source_snapshot: str | None = None
    """Handle of the snapshot to begin with; None = empty. The controllers refuse claims with a data source as yet."""
    source_volume: str | None = None
    """Handle of the asset to copy; None = empty. As `source_snapshot`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindRequest(HookRequest[Asset | Absent]):
    """Look for the asset that a `provision` with this name and owner may have made."""

    hook: ClassVar[str] = "find"
    name: str
    """As in that request."""
    owner: Ownership
    """As in that request; an asset with other marks is not the one."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """As in that request, where they are known: what volplane finds is deleted or proven absent, for which it needs
    none."""
    segment: Segment | None = None
    """As in that request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRequest(HookRequest[Done | InProgress]):
    """Destroy the asset of this volume. Refuse (`AlreadyExists`) what carries another owner's marks."""

    hook: ClassVar[str] = "delete"
    volume: VolumeIdentity
    """Whose asset; read live before the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnsRequest(HookRequest[bool]):
    """Does the source of this static volume belong to the driver? Must not access the storage."""

    hook: ClassVar[str] = "owns"
    source: VolumeSource
    """As in the volume's spec, unchecked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecycleRequest(HookRequest[PodScrub | Erased | InProgress]):
    """Erase the contents of this released volume, or return how a pod shall erase them."""

    hook: ClassVar[str] = "recycle"
    volume: VolumeIdentity
    """Whose asset; read live before the call, and bound to no living claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachRequest(HookRequest[Attachment | InProgress]):
    """Make the asset usable on the node."""

    hook: ClassVar[str] = "attach"
    volume: VolumeIdentity
    """Whose asset."""
    node: NodeIdentity
    """The node to attach it to."""
    read_only: bool = False
    """Whether it is attached for reading only."""
    attachment: str = ""
    """`metadata.uid` of the VolumeAttachment that asks for it; another one for the same node has another uid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachRequest(HookRequest[Done | InProgress]):
    """Undo `attach`; an asset that is not attached there is `Done`."""

    hook: ClassVar[str] = "detach"
    volume: VolumeIdentity
    """Whose asset."""
    node: NodeIdentity
    """The node to detach it from, as it was when it was attached; it may not exist any more."""
    attachment: str = ""
    """`metadata.uid` of the VolumeAttachment that ends, as in the `attach` that it undoes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandRequest(HookRequest[Asset | InProgress]):
    """Grow the asset to at least `capacity_bytes`; one that is large enough is returned as it is."""

    hook: ClassVar[str] = "expand"
    volume: VolumeIdentity
    """Whose asset, with its present size."""
    capacity_bytes: int
    """At least so many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModifyRequest(HookRequest[Done | InProgress]):
    """Change mutable parameters of the asset."""

    hook: ClassVar[str] = "modify"
    volume: VolumeIdentity
    """Whose asset."""
    parameters: Mapping[str, str]
    """Those of the VolumeAttributesClass, as texts; not checked by the schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest(HookRequest[AssetPage]):
    """A page of all assets in the driver's reach, foreign ones included."""

    hook: ClassVar[str] = "list_assets"
    page: str | None = None
    """`next_page` of the page before; None for the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptRequest(HookRequest[Done]):
    """Take over the asset of this volume from another cluster: replace the marks `former` by those of `volume.owner`.

    Requested by a person after a restore. An asset that has the new marks already is `Done`. Refuse
    (`AlreadyExists`) one that carries neither.
    """

    hook: ClassVar[str] = "adopt"
    volume: VolumeIdentity
    """Whose asset; `owner` has the new marks."""
    former: Ownership
    """The present marks, as `list_assets` returned them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest(HookRequest[Capacity]):
    """Return the free capacity of the segment for assets with these parameters."""

    hook: ClassVar[str] = "get_capacity"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The class's, checked and typed."""
    segment: Segment | None = None
    """Where; None = in all places together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateRequest(HookRequest[Done]):
    """Check parameters beyond what the schema can say. Raise `InvalidArgument` naming key and value."""

    hook: ClassVar[str] = "validate"
    parameters: Mapping[str, Any]
    """The class's, checked and typed by the schema of `describe`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest(HookRequest[Snapshot | InProgress]):
    """Make the snapshot `name` of the asset, or return the one that exists."""

    hook: ClassVar[str] = "create_snapshot"
    name: str
    """The same in every attempt."""
    volume: VolumeIdentity
    """Of which asset."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Those of the VolumeSnapshotClass, as texts; not checked by the schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSnapshotRequest(HookRequest[Done | InProgress]):
    """Destroy the snapshot; one that is gone is `Done`."""

    hook: ClassVar[str] = "delete_snapshot"
    handle: str
    """As `create_snapshot` returned it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest(HookRequest[Done]):
    """Start the driver. Sent before any other hook but `describe`, and again after a failure."""

    hook: ClassVar[str] = "start"
    node_name: str | None = None
    """`--node-name` of the process, for drivers of local storage; None = it serves the whole cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest(HookRequest[Done]):
    """Stop the driver. Sent once, when no other hook runs any more."""

    hook: ClassVar[str] = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest(HookRequest[Done]):
    """Check that the storage can be used. Return `Done`, or raise `Unavailable` with what to do."""

    hook: ClassVar[str] = "probe"


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeRequest(HookRequest[DriverInfo]):
    """Ask for the `DriverInfo`."""

    hook: ClassVar[str] = "describe"
