"""What backends for the disks of a cloud share: their hooks, their options, sources and assets of their volumes.

The disks are mounted by the node plugin of a CSI driver. A backend brings the calls of its cloud as `DiskOperations`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Protocol, Self, TypeVar

from volplane.assets import (
    Absent,
    AccessMode,
    Asset,
    AssetPage,
    Attachment,
    Done,
    InProgress,
    ListedAsset,
    PodScrub,
    Snapshot,
    SnapshotPage,
    VolumeMode,
    VolumeSource,
)
from volplane.cloud.accounts import SNAPSHOTS, VOLUMES, accounts_of_class, accounts_of_volume, kept_on
from volplane.cloud.calls import CloudError
from volplane.cloud.turns import BoundedCache, HookCall, in_turns
from volplane.cloud.zones import Zones
from volplane.errors import BackendError, InvalidArgument, Unavailable, Unsupported, VolumeInUse
from volplane.hookspecs import BackendSpec, hookimpl
from volplane.requests import (
    AdoptRequest,
    AttachRequest,
    Context,
    DeleteRequest,
    DeleteSnapshotRequest,
    DescribeRequest,
    DetachRequest,
    ExpandRequest,
    FindRequest,
    FindSnapshotRequest,
    InspectRequest,
    ListRequest,
    ListSnapshotsRequest,
    ModifyRequest,
    NodeIdentity,
    ProbeRequest,
    ProvisionRequest,
    RecycleRequest,
    SnapshotRequest,
    StartRequest,
    StopRequest,
    ValidateRequest,
    VolumeIdentity,
)
from volplane.schemas import DriverInfo, Param, ParameterSchema, Predecessor

__all__ = [
    "GIB",
    "CsiDriverName",
    "DiskAccount",
    "DiskBackend",
    "DiskOperations",
    "DiskOptions",
    "NodeNames",
    "csi_asset",
    "csi_source",
    "pod_scrub",
    "size_in_gib",
]

T = TypeVar("T")
P = TypeVar("P", AssetPage, SnapshotPage)

GIB = 1 << 30
"""Bytes of a GiB, in which clouds count the sizes of disks."""
_ACCOUNTS: Final = "accounts"
"""In the state of `provision`: the accounts by use."""
_MOST_LISTED: Final = 100_000
_IDENTITY = "storage.kubernetes.io/csiProvisionerIdentity"
"""Attribute in which the external provisioner keeps the name of the driver; node plugins of clouds read it."""
_ZONE = re.compile(r"(.*?\d)(?:-[a-z0-9-]*\d)?-?[a-z]")
"""A zone, after its region: eu-west-1a, us-west-2-lax-1a, europe-west1-b."""


CsiDriverName = Annotated[
    str,
    Param(
        "Name of the CSI driver whose node plugin mounts the disks, as it stands in spec.csi.driver.",
        pattern=r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?",
    ),
]
"""Of an option; a subclass of `DiskOptions` gives it its default."""


def size_in_gib(size_bytes: int) -> int:
    """Return the size in GiB, rounded up."""
    return max(1, -(-size_bytes // GIB))


@dataclass(frozen=True, kw_only=True)
class DiskOptions:
    """The options of a driver that every cloud has: the base of a backend's own dataclass.

    A subclass states again what has another default, or other limits, in its cloud.
    """

    region: Annotated[
        str,
        Param(
            "Region of the disks. Never guessed: disks of other regions are never listed or touched.",
            pattern="[a-z0-9-]+",
        ),
    ]
    zones: Annotated[
        tuple[str, ...],
        Param(
            "Zones for disks that have no chosen place (volumeBindingMode Immediate without allowedTopologies); empty "
            "= all of the region. Of these it takes one in which a node is, if there is any."
        ),
    ] = ()
    endpoint: Annotated[
        str,
        Param(
            "URL of the cloud's API instead of the public one, for private endpoints and tests. Credentials are sent "
            "there, which is why no class can set it.",
            pattern=r"(https?://[^\s?#]+)?",
        ),
    ] = ""
    attach: Annotated[
        bool,
        Param(
            "Declare that volplane attaches the disks. Only where the controller of the official driver does not run, "
            "because its attacher serves the same VolumeAttachments."
        ),
    ] = False
    csi_driver_name: CsiDriverName
    zone_label: Annotated[str, Param("Node label that holds the zone, and key of the volumes' node affinity.")]
    mutations_per_second: Annotated[
        int, Param("Calls a second that change something, as the cloud grants them.", minimum=1, maximum=1_000)
    ]
    mutation_burst: Annotated[
        int, Param("How many of these calls may come at once after a pause.", minimum=1, maximum=10_000)
    ]
    attach_limit: Annotated[
        int,
        Param(
            "How many disks a node may hold, its boot disk included; 0 = what the cloud says of its machine type.",
            minimum=0,
            maximum=1_000,
        ),
    ] = 0

    @property
    def of_classes(self) -> Mapping[str, Self]:
        """Return the options with the credentials of each account that classes may name, by its name."""
        return {}

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` for a zone in the place of its region."""
        zone = _ZONE.fullmatch(self.region)
        if zone is not None:
            raise InvalidArgument(f"option region: {self.region!r} is a zone; its region is {zone[1]!r}")


class NodeNames:
    """The names of nodes by their machines, for messages about a machine in later calls. Safe for threads."""

    def __init__(self, machine_of: Callable[[NodeIdentity], str | None]) -> None:
        """machine_of: the cloud's name of a node's machine; None if the node is no machine of this cloud."""
        self._machine_of = machine_of
        self._names: BoundedCache[str, str] = BoundedCache()

    def remember(self, node: NodeIdentity) -> None:
        """Keep the name of the node."""
        machine = self._machine_of(node)
        if machine is not None:
            self._names.put(machine, node.name)

    def __call__(self, machine: str) -> str:
        """Return the name of the machine's node; the machine's own where that is not known."""
        return self._names.get(machine) or machine


def _not_there(*_arguments: Any) -> Any:
    raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskOperations:
    """The calls of a cloud that the hooks of a `DiskBackend` make.

    Each is called until it returns something else than InProgress. It raises `RetryLater`, `CloudError` and the errors
    of the contract. A backend has no hooks for those of `scrub`, `expand`, `modify`, `attach`, `detach` and of
    snapshots that are not given.
    """

    provision: Callable[[ProvisionRequest, HookCall, tuple[str, ...]], Asset | InProgress]
    """Make the disk. The third argument: zones for disks for which neither a node nor the class names one."""
    delete: Callable[[DeleteRequest, HookCall], Done | InProgress]
    """Delete the disk, and wait until it is gone."""
    scrub: Callable[[RecycleRequest], PodScrub] = _not_there
    """Check that a pod may erase the disk: `pod_scrub`."""
    expand: Callable[[ExpandRequest, HookCall], Asset] = _not_there
    """Grow the disk."""
    modify: Callable[[ModifyRequest, HookCall], Done] = _not_there
    """Change its performance."""
    attach: Callable[[AttachRequest, HookCall], Attachment] = _not_there
    """Attach the disk to the machine of a node."""
    detach: Callable[[DetachRequest, HookCall], Done] = _not_there
    """Detach it."""
    create_snapshot: Callable[[SnapshotRequest, HookCall], Snapshot | InProgress] = _not_there
    """Make a snapshot; return it when its moment has passed, ready or not."""
    delete_snapshot: Callable[[DeleteSnapshotRequest, HookCall], Done] = _not_there
    """Delete a snapshot with these marks: `Marks.refuse_foreign_snapshot`."""
    find_snapshot: Callable[[FindSnapshotRequest, HookCall], Snapshot | Absent] = _not_there
    """Look at a snapshot, and take its next step. It raises no RetryLater: `StatePoller.observe`."""
    list_snapshots: Callable[[ListSnapshotsRequest], SnapshotPage] = _not_there
    """Return one page of the snapshots with marks, of any cluster."""
    list_page: Callable[[ListRequest], AssetPage]
    """Return one page of the disks with marks, of any cluster."""
    inspect: Callable[[InspectRequest], ListedAsset | Absent]
    """Return the disk with this handle, marked or not, by a call that begins now."""
    adopt: Callable[[AdoptRequest, HookCall], Done]
    """Replace the marks of the former owner."""
    find: Callable[[FindRequest], Asset | Absent]
    """Find the disk of this name and owner, in any state, by calls that begin now."""
    error: Callable[[CloudError, str], BackendError]
    """Return the error of the contract. The second argument: what was done, as in "make a disk for pvc-1"."""
    close: Callable[[], None]
    """Close the connections."""
    validate: Callable[[Mapping[str, Any]], None] = lambda _parameters: None
    """Check the parameters of a class beyond their schema. Raises InvalidArgument."""
    probe: Callable[[], None] | None = None
    """Make a cheap call; None = the zones are read."""

    @classmethod
    def of(cls, *parts: object, **others: Callable[..., Any]) -> Self:
        """Return the operations that these objects have as methods of the same names, and others."""
        names = [each.name for each in fields(cls)]
        found = {name: getattr(part, name) for part in reversed(parts) for name in names if hasattr(part, name)}
        return cls(**{**found, **others})


class DiskAccount(NamedTuple):
    """What the calls of one account are made by."""

    operations: DiskOperations
    zones: Zones
    more: Any = None
    """What hooks of the backend's own need."""


class _OfVolume(Protocol):
    """A request about a volume."""

    @property
    def context(self) -> Context: ...

    @property
    def volume(self) -> VolumeIdentity: ...


class DiskBackend(BackendSpec):
    """The hooks of a backend for the disks of a cloud.

    A subclass adds `owns`. Hooks hold no thread while the cloud works: they return
    `InProgress` where an operation raises `RetryLater`.
    """

    distribution: ClassVar[str]
    """Name of the distribution, whose version `describe` returns."""
    class_parameters: ClassVar[ParameterSchema]
    """The parameters of classes."""
    snapshot_parameters: ClassVar[ParameterSchema] = ParameterSchema()
    """The parameters of VolumeSnapshotClasses."""
    clones: ClassVar[Literal["", "in place", "anywhere"]] = ""
    """As in `DriverInfo`."""
    disk: ClassVar[str] = "disk"
    """The cloud's word for a disk, in messages."""
    settle_seconds: ClassVar[float]
    """After this time a change is visible, or was never made."""
    largest_gib: ClassVar[int]
    """The largest disk."""
    predecessor: ClassVar[Predecessor | None] = None
    """The controller of the cloud's own CSI driver, if `list_page` and `adopt` know the volumes of it."""

    assumes: ClassVar[str] = ""
    """The parameter of classes that names what is assumed for their calls; "" = there is none."""

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        settings: DiskOptions,
        connect: Callable[[Any], DiskAccount],
        nodes: NodeNames,
        clock: Callable[[], float],
    ) -> None:
        """settings: the options, read. connect: makes what calls by settings need; for each account that classes may
        name when it is first used, so that no two share caches or rates. nodes: filled here, for messages of the
        operations. clock: seconds, never going back.
        """
        super().__init__(options)
        self._settings = settings
        self._nodes = nodes
        self._clock = clock
        self._connect = connect
        self._others = settings.of_classes
        self._names = ("", *sorted(self._others))
        self._connected = {"": connect(settings)}
        for each in fields(DiskOperations):
            if getattr(self._connected[""].operations, each.name) is _not_there:
                # An attribute of the instance that is no hook hides the one of the class.
                setattr(self, "recycle" if each.name == "scrub" else each.name, None)
        self._connecting = threading.Lock()
        self._listed: BoundedCache[str, int] = BoundedCache(_MOST_LISTED)
        """By handle of a listed disk or snapshot: the first account that shows it."""

    def account(self, name: str = "") -> DiskAccount:
        """Return what the calls with this account are made by. Raises Unavailable for one that no option names."""
        with self._connecting:
            if name not in self._connected:
                if name not in self._others:
                    raise Unavailable(
                        f"account {name} is none of the driver's (any more): list it again in the options for classes"
                    )
                self._connected[name] = self._connect(self._others[name])
            return self._connected[name]

    @contextmanager
    def translating_errors(self, doing: str, account: str = "") -> Iterator[None]:
        """Turn every CloudError that leaves the block into an error of the contract. doing: as in "list the disks"."""
        try:
            yield
        except CloudError as error:
            said = f"{doing} with the account {account}" if account else doing
            raise self.account(account).operations.error(error, said) from error

    def in_turns(
        self, context: Context, doing: str, account: str, work: Callable[[DiskAccount, HookCall], T]
    ) -> T | InProgress:
        """Return what the work with this account returns; InProgress where it raises RetryLater."""
        with self.translating_errors(doing, account):
            return in_turns(context, self._clock, partial(work, self.account(account)))

    def shown_by(self, doing: str, look: Callable[[DiskAccount], T | Absent]) -> tuple[str, T | Absent]:
        """Return the first account that shows it, and what it shows; Absent if all show that there is none.

        Raises the error of the first account that cannot be asked, if no other one shows it.
        """
        failure: BackendError | None = None
        for name in self._names:
            try:
                with self.translating_errors(doing, name):
                    found = look(self.account(name))
            except BackendError as error:
                failure = failure or error
            else:
                if not isinstance(found, Absent):
                    return name, found
        if failure is not None:
            raise failure
        return "", Absent()

    def _of_volume(
        self, request: _OfVolume, doing: str, use: str, work: Callable[[DiskAccount, HookCall], T]
    ) -> T | InProgress:
        volume = request.volume
        kept = accounts_of_volume(volume.attributes)
        account = kept.get(use, "")
        if not kept and not volume.uid and self._others:
            # What never became a volume has no attributes.
            question = InspectRequest(context=request.context, handle=volume.handle)
            account, _ = self.shown_by(doing, lambda each: each.operations.inspect(question))
        result = self.in_turns(request.context, doing, account, work)
        return (
            replace(result, attributes={**result.attributes, **kept_on(kept)}) if isinstance(result, Asset) else result
        )

    def _page(self, page: str | None, doing: str, read: Callable[[DiskOperations, str | None], P]) -> P:
        """Return a page of all accounts, one after the other; what two of them show is of the first."""
        if not self._others:
            with self.translating_errors(doing):
                return read(self.account().operations, page)
        number, _, token = (page or "0:").partition(":")
        at = int(number)
        with self.translating_errors(doing, self._names[at]):
            answer = read(self.account(self._names[at]).operations, token or None)
        more = f"{at}:{answer.next_page}" if answer.next_page else f"{at + 1}:" if at + 1 < len(self._names) else None
        field = "assets" if isinstance(answer, AssetPage) else "snapshots"
        first = tuple(each for each in getattr(answer, field) if self._listed.setdefault(each.handle, at) >= at)
        return replace(answer, next_page=more, **{field: first})

    # --- the driver ---------------------------------------------------------------------------------------------

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        """Return every access mode: which of them a disk can have follows from its type."""
        return DriverInfo(
            version=version(self.distribution),
            parameters=self.class_parameters,
            topology_keys=(self._settings.zone_label,),
            access_modes=frozenset(AccessMode),
            volume_modes=frozenset(VolumeMode),
            csi_driver_name=self._settings.csi_driver_name,
            attach_required=self._settings.attach,
            node_expansion_required=self.account().operations.expand is not _not_there,
            supports_mount_options=True,
            settle_seconds=self.settle_seconds,
            minimum_bytes=GIB,
            maximum_bytes=self.largest_gib * GIB,
            max_attached_per_node=self._settings.attach_limit or None,
            snapshot_parameters=self.snapshot_parameters,
            clones=self.clones,
            predecessor=self.predecessor,
        )

    @hookimpl
    def start(self, request: StartRequest) -> Done:
        """Connect, and read the region's zones."""
        with self.translating_errors(f"ask for the zones of {self._settings.region}"):
            self.account().zones.load(request.context)
        return Done()

    @hookimpl
    def probe(self, request: ProbeRequest) -> Done:
        """Make a cheap call, with the driver's own account."""
        with self.translating_errors(f"use the {self.disk}s of {self._settings.region}"):
            account = self.account()
            if account.operations.probe is None:
                account.zones.load(request.context)
            else:
                account.operations.probe()
        return Done()

    @hookimpl
    def stop(self, request: StopRequest) -> Done:
        """Close the connections."""
        for each in self._connected.values():
            each.operations.close()
        return Done()

    @hookimpl
    def validate(self, request: ValidateRequest) -> Done:
        """Check which parameters can be combined, with each other and with the options."""
        accounts_of_class(request.parameters, self.assumes, self._others)
        self.account().operations.validate(request.parameters)
        return Done()

    # --- volumes ------------------------------------------------------------------------------------------------

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        """Find the disk or make it, and wait until it is ready."""
        state, doing = request.context.state, f"make a {self.disk} for {request.name}"
        # A class that was made anew since changes nothing for what was begun.
        chosen = state.get(_ACCOUNTS) or accounts_of_class(request.parameters, self.assumes, self._others)
        if self._others and _ACCOUNTS not in state:
            return InProgress(retry_after=0.0, state={**state, _ACCOUNTS: chosen})
        name = chosen.get("provisioner", "")
        zones = self.account(name).zones
        with self.translating_errors(doing, name):
            zones.refresh(request.context)
        named = zones.named(request, self._settings.zone_label)
        result = self.in_turns(
            request.context, doing, name, lambda account, call: account.operations.provision(named, call, zones.names)
        )
        if isinstance(result, InProgress):
            return replace(result, state={**result.state, _ACCOUNTS: chosen}) if self._others else result
        return replace(result, attributes={**result.attributes, **kept_on(chosen)}) if chosen else result

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        """Find the disk that `provision` made, in any state, by calls that begin now."""
        doing = f"look for the {self.disk} of {request.name}"
        chosen = request.context.state.get(_ACCOUNTS, {})
        if _ACCOUNTS in request.context.state or not self._others:
            name = chosen.get("provisioner", "")
            with self.translating_errors(doing, name):
                found = self.account(name).operations.find(request)
        else:
            name, found = self.shown_by(doing, lambda account: account.operations.find(request))
            chosen = dict.fromkeys(VOLUMES, name) if name else {}
        if isinstance(found, Absent) or not chosen:
            return found
        return replace(found, attributes={**found.attributes, **kept_on(chosen)})

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        """Check that the disk is ours and not attached, delete it, and wait until it is gone."""
        doing = f"delete {request.volume.handle} of {request.volume.name}"
        return self._of_volume(
            request, doing, "provisioner", lambda account, call: account.operations.delete(request, call)
        )

    @hookimpl
    def recycle(self, request: RecycleRequest) -> PodScrub | InProgress:
        """Check that the disk is ours and not attached; a pod on Linux empties or overwrites it."""
        doing = f"scrub {request.volume.handle} of {request.volume.name}"
        return self._of_volume(request, doing, "provisioner", lambda account, _call: account.operations.scrub(request))

    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset | InProgress:
        """Grow the disk online; the node plugin grows the file system."""
        doing = f"grow {request.volume.handle} of {request.volume.name}"
        return self._of_volume(
            request, doing, "controller-expand", lambda account, call: account.operations.expand(request, call)
        )

    @hookimpl
    def modify(self, request: ModifyRequest) -> Done | InProgress:
        """Change the disk's performance."""
        doing = f"change {request.volume.handle} of {request.volume.name}"
        return self._of_volume(
            request, doing, "controller-modify", lambda account, call: account.operations.modify(request, call)
        )

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        """List all disks of the region with marks, of any cluster."""
        return self._page(
            request.page, f"list the {self.disk}s", lambda of, page: of.list_page(replace(request, page=page))
        )

    @hookimpl
    def inspect(self, request: InspectRequest) -> ListedAsset | Absent:
        """Look at the disk with this handle."""
        doing = f"look at the {self.disk} {request.handle!r}"
        return self.shown_by(doing, lambda account: account.operations.inspect(request))[1]

    @hookimpl
    def adopt(self, request: AdoptRequest) -> Done:
        """Replace the marks of the former owner."""
        doing = f"mark {request.volume.handle} of {request.volume.name}"
        name = accounts_of_volume(request.volume.attributes).get("provisioner", "")
        with self.translating_errors(doing, name):
            call = HookCall(request.context, self._clock, self._clock())
            return self.account(name).operations.adopt(request, call)

    # --- attachments --------------------------------------------------------------------------------------------

    @hookimpl
    def attach(self, request: AttachRequest) -> Attachment | InProgress:
        """Attach the disk to the machine of the node's providerID."""
        self._nodes.remember(request.node)
        doing = f"attach {request.volume.handle} to {request.node.name}"
        return self._of_volume(
            request, doing, "controller-publish", lambda account, call: account.operations.attach(request, call)
        )

    @hookimpl
    def detach(self, request: DetachRequest) -> Done | InProgress:
        """Detach the disk from that machine only, and only the attachment that was found."""
        self._nodes.remember(request.node)
        doing = f"detach {request.volume.handle} from {request.node.name}"
        return self._of_volume(
            request, doing, "controller-publish", lambda account, call: account.operations.detach(request, call)
        )

    # --- snapshots ----------------------------------------------------------------------------------------------

    def account_of_snapshot(self, parameters: Mapping[str, Any], volume: VolumeIdentity) -> str:
        """Return the account for a new snapshot: the one of its class, else that by which its volume was made."""
        named = accounts_of_class(parameters, self.assumes, self._others, SNAPSHOTS)
        return named.get("snapshotter") or accounts_of_volume(volume.attributes).get("provisioner", "")

    @hookimpl
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot | InProgress:
        """Make a snapshot, and return it as soon as its moment has passed."""
        doing, name = f"make the snapshot {request.name}", self.account_of_snapshot(request.parameters, request.volume)
        return self.in_turns(
            request.context, doing, name, lambda account, call: account.operations.create_snapshot(request, call)
        )

    @hookimpl
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Done | InProgress:
        """Check that the snapshot is ours, and delete it."""
        doing, name = f"delete the snapshot {request.handle}", ""
        if self._others:
            question = FindSnapshotRequest(context=request.context, handle=request.handle)
            name, _ = self.shown_by(doing, partial(self._find_snapshot, question))
        return self.in_turns(
            request.context, doing, name, lambda account, call: account.operations.delete_snapshot(request, call)
        )

    @hookimpl
    def find_snapshot(self, request: FindSnapshotRequest) -> Snapshot | Absent:
        """Look at the snapshot, as many as are asked for by one call, and take its next step."""
        doing = f"look for the snapshot {request.handle or request.name}"
        return self.shown_by(doing, partial(self._find_snapshot, request))[1]

    def _find_snapshot(self, request: FindSnapshotRequest, account: DiskAccount) -> Snapshot | Absent:
        return account.operations.find_snapshot(request, HookCall(request.context, self._clock, self._clock()))

    @hookimpl
    def list_snapshots(self, request: ListSnapshotsRequest) -> SnapshotPage:
        """List all snapshots with marks, of any cluster."""
        return self._page(
            request.page, "list the snapshots", lambda of, page: of.list_snapshots(replace(request, page=page))
        )


# --- parts of operations ----------------------------------------------------------------------------------------


def csi_source(settings: DiskOptions, handle: str, mode: VolumeMode, fs_type: str) -> VolumeSource:
    """Return the source of a new PersistentVolume. fs_type: for a volume with a file system."""
    fields: dict[str, Any] = {"driver": settings.csi_driver_name, "volumeHandle": handle}
    if mode is VolumeMode.FILESYSTEM:
        fields["fsType"] = fs_type
    return VolumeSource(kind="csi", fields=fields)


def csi_asset(
    settings: DiskOptions,
    handle: str,
    source: VolumeSource,
    *,
    size_gib: int,
    zones: Sequence[str],
    driver: str,
    attributes: Mapping[str, str] | None = None,
) -> Asset:
    """Return the asset of a disk that can be reached from these zones.

    driver: of the call's context. attributes: for the node plugin; a source that is not csi has none.
    """
    return Asset(
        handle=handle,
        source=source,
        capacity_bytes=size_gib * GIB,
        node_affinity=tuple({settings.zone_label: zone} for zone in zones),
        attributes={**(attributes or {}), _IDENTITY: driver} if source.kind == "csi" else {},
    )


def pod_scrub(request: RecycleRequest, disk: str, attached_to: Sequence[str], code: str) -> PodScrub:
    """Return how a pod erases a disk that is proven to be the volume's: the pod gets it by a claim.

    disk: its name in messages. attached_to: nodes. code: of the error `VolumeInUse`. Raises `Unsupported` for a file
    system that a pod on Linux cannot mount.
    """
    if request.volume.source.fields.get("fsType") == "ntfs":
        raise Unsupported(
            f"{disk} has the file system ntfs: scrubber pods run on Linux; set the reclaim policy to Retain or Delete"
        )
    if attached_to:
        raise VolumeInUse(f"{disk} cannot be scrubbed while it is attached to {', '.join(attached_to)}", code=code)
    return PodScrub()
