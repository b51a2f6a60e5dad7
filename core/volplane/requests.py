"""Requests of hooks: one frozen value per call, filled by volplane.

Later versions add fields and change none. Sizes are bytes, durations seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from volplane.assets import (
    Absent,
    AccessMode,
    Asset,
    AssetPage,
    Attachment,
    Capacity,
    Done,
    Erased,
    GroupSnapshot,
    InProgress,
    ListedAsset,
    Ownership,
    PodScrub,
    Segment,
    Snapshot,
    SnapshotOwnership,
    SnapshotPage,
    VolumeMode,
    VolumeSource,
)
from volplane.schemas import DriverInfo

R = TypeVar("R")

TERMS: Final = 2**31
"""Terms of a Lease are counted from 0 again after so many: `leaseTransitions` is an int32."""
_LATER: Final = 2**20
"""A term that is further ahead is damaged: no Lease changes hands as often between a backup and its restore."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The term of leadership under which a call is made. Its text is `transitions/holder/lease`."""

    transitions: int
    """How often the Lease has changed hands."""
    holder: str
    """Name of the process."""
    lease: str
    """`metadata.uid` of the Lease."""

    def __str__(self) -> str:
        return f"{self.transitions}/{self.holder}/{self.lease}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read the text that `str` wrote. Returns None for "" (no election) and for anything else."""
        count, *others = text.split("/")
        plain = len(count) <= 10 and count.isascii() and count.isdecimal()
        return cls(int(count), *others) if len(others) == 2 and plain and int(count) < TERMS else None

    def outdates(self, other: Fence) -> bool:
        """Tell whether the other is an earlier term of the same Lease. Terms of two Leases cannot be compared.

        Counts are compared as serial numbers (RFC 1982), so that one that was damaged locks nobody out.
        """
        return self.lease == other.lease and 0 < (self.transitions - other.transitions) % TERMS < _LATER


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The values that all requests share."""

    driver: str
    """Name of the driver, as in the configuration and in the class's `provisioner`."""
    cluster_id: str
    """Id of the calling cluster: `clusterId` of the configuration, else the uid of namespace kube-system."""
    generation: int = 1
    """Number of the asset among those of the claim's intent, from 1. It rises once an asset is proven absent or bad."""
    attempt: int = 1
    """Number of this attempt, from 1: one more than the failures in a row in this process."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """`state` of the last `InProgress` of this operation, else empty."""
    timeout: float = 120.0
    """Seconds that this call may take (the driver's `timeout`). After that its outcome counts as unknown."""
    fence: str = ""
    """The term of leadership under which the call is made, as text of `Fence`; "" without an election. Compare it where
    the backend can: a call with an older fence than a call before it comes from a former leader (raise `Fenced`)."""
    log: logging.Logger = field(default=logging.getLogger("volplane.backend"), compare=False, repr=False)
    """A logger whose lines carry driver, operation and object."""
    traceparent: str = field(default="", compare=False, repr=False)
    """W3C trace context of this call, to pass to the storage, or "". Its trace id is in all log lines about the
    claim."""
    cancelled: Callable[[], bool] = field(default=lambda: False, compare=False, repr=False)
    """Returns True once the caller has stopped waiting: stop at the next safe point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRequest(Generic[R]):
    """The base class of all requests. R: the types that the hook may return."""

    hook: ClassVar[str]
    """Name of the hook that gets the request."""
    context: Context


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimIdentity:
    """The claim for which an asset is made. Tenants write labels and annotations: never use them as paths."""

    namespace: str
    """`metadata.namespace` of the claim."""
    name: str
    """`metadata.name` of the claim."""
    uid: str
    """`metadata.uid` of the claim, which is never used again."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """`metadata.labels` of the claim."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """`metadata.annotations` of the claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeIdentity:
    """The volume of the asset that the call is about."""

    name: str
    """`metadata.name` of the PersistentVolume; `pvc-<claim uid>` for those that volplane made."""
    uid: str
    """`metadata.uid` of the PersistentVolume; empty for an asset that never became one."""
    handle: str
    """The handle that the backend returned (annotation `volplane.dev/handle`). Of static volumes it is taken from the
    source: `volumeHandle`, path, or server and path."""
    source: VolumeSource
    """The volume's source as it is now."""
    capacity_bytes: int
    """`spec.capacity.storage`, rounded up to whole bytes."""
    owner: Ownership | None = None
    """The marks that the asset must carry. None for static volumes, which a person made: the asset must carry no
    marks."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """The attributes that the backend returned; of static volumes those of a csi source."""
    volume_mode: VolumeMode = VolumeMode.FILESYSTEM
    """`spec.volumeMode`."""
    access_modes: tuple[AccessMode, ...] = (AccessMode.READ_WRITE_ONCE,)
    """`spec.accessModes`."""
    node_affinity: tuple[Segment, ...] = ()
    """`spec.nodeAffinity` as alternative segments; empty = everywhere, or an affinity that names no places."""
    mount_options: tuple[str, ...] = ()
    """`spec.mountOptions`. They may hold secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """A node to attach to, or the node chosen for a pod."""

    name: str
    """`metadata.name` of the Node."""
    uid: str = ""
    """`metadata.uid` of the Node."""
    instance_id: str = ""
    """`spec.providerID` of the Node, such as aws:///eu-central-1a/i-0123; "" if no cloud has set it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """`metadata.labels` of the Node."""
    csi_node_id: str = ""
    """Id of the node with the CSI driver of the volume, as its node plugin gives it; "" = it has not registered. Where
    no more is known of a node, `instance_id` is the same text, from `volplane csi` also `name`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionRequest(HookRequest[Asset | InProgress]):
    """Make the asset `name`, or return the one that was made for an equal request."""

    hook: ClassVar[str] = "provision"
    name: str
    """`pvc-<claim uid>`, at most 63 characters. It is the same in every attempt."""
    capacity_bytes: int
    """Minimum size in bytes: the claim's `resources.requests.storage`, rounded up."""
    owner: Ownership
    """The marks to put on the asset, with its generation."""
    claim: ClaimIdentity
    """The claim for which it is made, for names and tags that people read."""
    limit_bytes: int | None = None
    """Maximum size in bytes; None = any. Claims cannot ask for one, so the controllers leave it None."""
    access_modes: tuple[AccessMode, ...] = (AccessMode.READ_WRITE_ONCE,)
    """`spec.accessModes` of the claim. All of them must be possible."""
    volume_mode: VolumeMode = VolumeMode.FILESYSTEM
    """`spec.volumeMode` of the claim."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The parameters of the class, checked and typed by the schema of `describe`, with an entry for each of its
    parameters. volplane's own parameters are removed."""
    mutable_parameters: Mapping[str, str] = field(default_factory=dict)
    """Those of the claim's VolumeAttributesClass, for a new asset; they win over `parameters`. They may be ignored, as
    `modify` is called with them next. An asset that exists with others is no other demand's."""
    segment: Segment | None = None
    """The place chosen from the selected node or the class's allowed topologies; the same in every attempt. None =
    anywhere."""
    allowed_segments: tuple[Segment, ...] = ()
    """Other places that the class's `allowedTopologies` permit; empty = all."""
    node_segments: tuple[Segment, ...] = ()
    """The places of the cluster's nodes, each once. Choose from these if `segment` is None. Empty = no node has the
    labels of the driver's topology keys."""
    selected_node: NodeIdentity | None = None
    """The node that the scheduler chose for the waiting pod (WaitForFirstConsumer); None = no pod waits, or the node is
    gone."""
    mount_options: tuple[str, ...] = ()
    """`mountOptions` of the class, for backends that check them. volplane writes them to the volume."""
    class_name: str = ""
    """`metadata.name` of the class, for people: a class may be made again with other parameters. "" = not known."""
    source_snapshot: str | None = None
    """Handle of the snapshot to start from; None = empty. It was ready, and not larger than `capacity_bytes`."""
    source_volume: str | None = None
    """Handle of the asset to copy (`DriverInfo.clones`); None = empty."""
    source_asset: VolumeIdentity | None = None
    """The volume of `source_volume`, which is bound and not larger than `capacity_bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindRequest(HookRequest[Asset | Absent]):
    """Look for the asset that a `provision` with this name and owner may have made."""

    hook: ClassVar[str] = "find"
    name: str
    """The same as in that request."""
    owner: Ownership
    """The same as in that request. An asset with other marks is not the one."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The parameters of that request if they are known. volplane deletes what is found, which needs none."""
    segment: Segment | None = None
    """The same as in that request."""
    only_look: bool = False
    """Change nothing: it is asked for a volume, whose asset may be away for a while. Otherwise a backend may finish or
    remove what an interrupted call left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectRequest(HookRequest[ListedAsset | Absent]):
    """Look at the asset with this handle."""

    hook: ClassVar[str] = "inspect"
    handle: str
    """As a caller of CSI gave it: of an asset, or any other text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRequest(HookRequest[Done | InProgress]):
    """Destroy the asset of this volume. Refuse (`AlreadyExists`) an asset with the marks of another owner."""

    hook: ClassVar[str] = "delete"
    volume: VolumeIdentity
    """The volume, read live before the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnsRequest(HookRequest[bool]):
    """Tell whether the source of this static volume belongs to the driver. Must not access the storage."""

    hook: ClassVar[str] = "owns"
    source: VolumeSource
    """The source in the volume's spec, unchecked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecycleRequest(HookRequest[PodScrub | Erased | InProgress]):
    """Erase the contents of this released volume, or return how a pod is to erase them."""

    hook: ClassVar[str] = "recycle"
    volume: VolumeIdentity
    """The volume, read live before the call and bound to no living claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachRequest(HookRequest[Attachment | InProgress]):
    """Make the asset usable on the node."""

    hook: ClassVar[str] = "attach"
    volume: VolumeIdentity
    """The volume."""
    node: NodeIdentity
    """The node to attach it to."""
    read_only: bool = False
    """Attach for reading only."""
    attachment: str = ""
    """`metadata.uid` of the VolumeAttachment. A later one for the same node has another uid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachRequest(HookRequest[Done | InProgress]):
    """Undo `attach`; an asset that is not attached there is `Done`."""

    hook: ClassVar[str] = "detach"
    volume: VolumeIdentity
    """The volume."""
    node: NodeIdentity
    """The node to detach from, as it was at the attach. It may be gone."""
    attachment: str = ""
    """`metadata.uid` of the VolumeAttachment, as in the `attach` that this call undoes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandRequest(HookRequest[Asset | InProgress]):
    """Grow the asset to at least `capacity_bytes`. Return one that is large enough unchanged."""

    hook: ClassVar[str] = "expand"
    volume: VolumeIdentity
    """The volume with its present size."""
    capacity_bytes: int
    """Minimum size in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModifyRequest(HookRequest[Done | InProgress]):
    """Change mutable parameters of the asset."""

    hook: ClassVar[str] = "modify"
    volume: VolumeIdentity
    """The volume."""
    parameters: Mapping[str, str]
    """The parameters of the VolumeAttributesClass as texts, not checked by the schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest(HookRequest[AssetPage]):
    """Return a page of all assets that the driver can reach, foreign ones included."""

    hook: ClassVar[str] = "list_assets"
    page: str | None = None
    """`next_page` of the previous page; None for the first."""
    max_entries: int = 0
    """How many suit the caller on one page; 0 = any number. A backend whose pages cost no more if they are larger need
    not look at it. What it leaves out is on the next page."""
    archives: bool = False
    """Asked of a driver with `DriverInfo.archives`: return its archives instead, and no assets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptRequest(HookRequest[Done]):
    """Take over the asset of this volume from another cluster: replace the marks `former` by those of `volume.owner`.

    Requested by a person after a restore. An asset that has the new marks already is `Done`. Refuse
    (`AlreadyExists`) one that carries neither.
    """

    hook: ClassVar[str] = "adopt"
    volume: VolumeIdentity
    """The volume. Its `owner` has the new marks."""
    former: Ownership
    """The present marks, as `list_assets` returned them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest(HookRequest[Capacity]):
    """Return the free capacity of the segment for assets with these parameters."""

    hook: ClassVar[str] = "get_capacity"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The parameters of the class, checked and typed."""
    segment: Segment | None = None
    """The place; None = all places together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateRequest(HookRequest[Done]):
    """Check parameters beyond the schema. Raise `InvalidArgument` that names the key and the value."""

    hook: ClassVar[str] = "validate"
    parameters: Mapping[str, Any]
    """The parameters of the class, checked and typed by the schema of `describe`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotIdentity:
    """The VolumeSnapshot for which a snapshot is made, for names and tags that people read. Tenants name it."""

    namespace: str
    """`metadata.namespace`, which is that of the claim."""
    name: str
    """`metadata.name` of the VolumeSnapshot."""
    content: str
    """`metadata.name` of its VolumeSnapshotContent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest(HookRequest[Snapshot | InProgress]):
    """Make the snapshot `name` of the asset, or return the one that exists."""

    hook: ClassVar[str] = "create_snapshot"
    name: str
    """`snapshot-<VolumeSnapshot uid>`, at most 63 characters. It is the same in every attempt."""
    volume: VolumeIdentity
    """The volume of which the snapshot is made. A pod may be writing to it."""
    owner: SnapshotOwnership
    """The marks to put on the snapshot."""
    snapshot: SnapshotIdentity
    """The object for which it is made."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The parameters of the VolumeSnapshotClass, checked and typed by `DriverInfo.snapshot_parameters`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindSnapshotRequest(HookRequest[Snapshot | Absent]):
    """Look for a snapshot: by `handle` if it is given, else by `name` and `owner`."""

    hook: ClassVar[str] = "find_snapshot"
    handle: str = ""
    """As `create_snapshot` returned it, or as a person wrote it into a content; "" = not known."""
    name: str = ""
    """The same as in the `create_snapshot` that may have made it; "" = not known."""
    owner: SnapshotOwnership | None = None
    """The same as in that request. Without a handle, a snapshot with other marks is not the one. None = any."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The parameters of that request if they are known: what is to be reached until it is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSnapshotRequest(HookRequest[Done | InProgress]):
    """Destroy the snapshot. Return `Done` for one that is gone."""

    hook: ClassVar[str] = "delete_snapshot"
    handle: str
    """The handle that `create_snapshot` returned, or that a person wrote into a content."""
    owner: SnapshotOwnership | None = None
    """The marks that it must carry. None for a content that a person wrote: the snapshot must carry no marks, or those
    of this cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSnapshotsRequest(HookRequest[SnapshotPage]):
    """Return a page of all snapshots that the driver has made, those of other clusters included."""

    hook: ClassVar[str] = "list_snapshots"
    page: str | None = None
    """`next_page` of the previous page; None for the first."""
    max_entries: int = 0
    """As in `ListRequest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshotRequest(HookRequest[GroupSnapshot | InProgress]):
    """Make snapshots of several assets at one moment, or return those that exist."""

    hook: ClassVar[str] = "create_group_snapshot"
    name: str
    """`groupsnapshot-<VolumeGroupSnapshot uid>`, at most 63 characters. It is the same in every attempt."""
    volumes: tuple[VolumeIdentity, ...]
    """The volumes, at least one, each once. They are the same in every attempt. Pods may be writing to them."""
    owner: SnapshotOwnership
    """The marks to put on each snapshot."""
    group: SnapshotIdentity
    """The VolumeGroupSnapshot and its content."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The parameters of the VolumeGroupSnapshotClass, checked and typed by `DriverInfo.snapshot_parameters`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindGroupSnapshotRequest(HookRequest[GroupSnapshot | Absent]):
    """Look for the snapshots of a group: by `handle` if it is given, else by `name` and `owner`."""

    hook: ClassVar[str] = "find_group_snapshot"
    handle: str = ""
    """As `create_group_snapshot` returned it, or as a person wrote it into a content; "" = not known."""
    snapshots: tuple[str, ...] = ()
    """Handles of its snapshots, as far as they are known."""
    name: str = ""
    """The same as in the `create_group_snapshot` that may have made it; "" = not known."""
    owner: SnapshotOwnership | None = None
    """The same as in that request. Without a handle, snapshots with other marks are not the ones. None = any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupSnapshotRequest(HookRequest[Done | InProgress]):
    """Destroy all snapshots of a group. Return `Done` if they are gone."""

    hook: ClassVar[str] = "delete_group_snapshot"
    handle: str
    """The handle that `create_group_snapshot` returned, or that a person wrote into a content."""
    snapshots: tuple[str, ...] = ()
    """Handles of its snapshots, as far as they are known."""
    owner: SnapshotOwnership | None = None
    """The marks that they must carry; as in `DeleteSnapshotRequest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest(HookRequest[Done]):
    """Start the driver. Sent before any other hook but `describe`, and again after a failure."""

    hook: ClassVar[str] = "start"
    node_name: str | None = None
    """`--node-name` of the process, for drivers of local storage; None = the process serves the whole cluster."""


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
