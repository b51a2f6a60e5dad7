"""A correct backend in memory, for tests of the controllers and as the model of the conformance suite.

The storage is an object of its own: it outlives the backend instances that use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

from volplane import (
    Absent,
    AccessMode,
    AdoptRequest,
    AlreadyExists,
    Asset,
    AssetPage,
    AttachedElsewhere,
    Attachment,
    AttachRequest,
    BackendSpec,
    Capacity,
    CapacityRequest,
    DeleteGroupSnapshotRequest,
    DeleteRequest,
    DeleteSnapshotRequest,
    DescribeRequest,
    DetachRequest,
    Done,
    DriverInfo,
    Erased,
    ExpandRequest,
    FindGroupSnapshotRequest,
    FindRequest,
    FindSnapshotRequest,
    GroupSnapshot,
    GroupSnapshotRequest,
    InProgress,
    InspectRequest,
    InvalidArgument,
    ListedAsset,
    ListRequest,
    ListSnapshotsRequest,
    ModifyRequest,
    NotFound,
    OutOfRange,
    OwnsRequest,
    Parameter,
    ParameterSchema,
    PodScrub,
    ProbeRequest,
    ProvisionRequest,
    RecycleRequest,
    ResourceExhausted,
    Snapshot,
    SnapshotOwnership,
    SnapshotPage,
    SnapshotRequest,
    StartRequest,
    StopRequest,
    Unavailable,
    ValidateRequest,
    VolumeIdentity,
    VolumeInUse,
    VolumeMode,
    VolumeSource,
    hookimpl,
)
from volplane_testing.memory_storage import MemoryAsset, MemorySnapshot, MemoryStorage

__all__ = ["DRIVER", "ZONE", "MemoryBackend"]

DRIVER: Final = "memory.volplane.dev"
ZONE: Final = "topology.kubernetes.io/zone"
_MANY: Final = frozenset({AccessMode.READ_ONLY_MANY, AccessMode.READ_WRITE_MANY})


class MemoryBackend(BackendSpec):
    """Every hook of the contract, over a `MemoryStorage`. Subclasses may name assets and their sources otherwise."""

    default_driver_name: ClassVar[str] = DRIVER

    def __init__(self, options: Mapping[str, Any] | None = None, *, storage: MemoryStorage | None = None) -> None:
        """storage: None = one of its own. There are no options."""
        super().__init__(options or {})
        self.storage = storage if storage is not None else MemoryStorage()

    def handle_of(self, name: str) -> str:
        """Return the handle of a new asset that is called `name`."""
        return f"{self.storage.prefix}-{self.storage.made}"

    def source_of(self, asset: MemoryAsset) -> VolumeSource:
        """Return where volumes of this asset find it."""
        return VolumeSource(kind="csi", fields={"driver": DRIVER, "volumeHandle": asset.handle})

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        """Describe a driver with one text parameter, `colour`, and every mode of the contract."""
        return DriverInfo(
            version="1",
            parameters=ParameterSchema(parameters=(Parameter(name="colour", doc="Kept with the asset."),)),
            topology_keys=(ZONE,) if self.storage.zones else (),
            access_modes=frozenset(AccessMode),
            volume_modes=frozenset(VolumeMode),
            csi_driver_name=DRIVER,
            attach_required=True,
            maximum_bytes=self.storage.largest,
            max_attached_per_node=self.storage.most_attached,
            snapshot_parameters=ParameterSchema(parameters=(Parameter(name="label", doc="Kept nowhere."),)),
            clones=self.storage.clones,
        )

    @hookimpl
    def start(self, request: StartRequest) -> Done:
        """There is nothing to open."""
        return Done()

    @hookimpl
    def stop(self, request: StopRequest) -> Done:
        """There is nothing to close."""
        return Done()

    @hookimpl
    def probe(self, request: ProbeRequest) -> Done:
        """Memory is available but in an `outage`."""
        with self.storage.lock:
            return Done()

    @hookimpl
    def validate(self, request: ValidateRequest) -> Done:
        """Accept every colour."""
        return Done()

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        """Create the asset, or return the existing one."""
        storage = self.storage
        with storage.lock:
            storage.sweep()
            asset = storage.assets.get(request.name)
            if asset is None:
                self._check_size(request.capacity_bytes)
                self._check(request)
                asset = self._make(request)
            elif (asset.owner, asset.demand) != (request.owner, _demand_of(request)):
                raise AlreadyExists(f"{request.name} was made for {_claim_of(asset)} with another demand")
            if asset.deleting_until is not None:
                return InProgress(retry_after=max(asset.deleting_until - storage.clock(), 0.0), state={"step": "wait"})
            if asset.ready_at > storage.clock():
                return InProgress(retry_after=asset.ready_at - storage.clock(), state={"handle": asset.handle})
            return self._seen(asset)

    def _check_size(self, size: int) -> None:
        largest = self.storage.largest
        if largest is not None and size > largest:
            raise OutOfRange(f"{size} bytes were asked for, an asset has at most {largest}")

    def _check(self, request: ProvisionRequest) -> None:
        if request.source_volume is not None:
            source = self.storage.by_handle(request.source_volume)
            if source is None:
                raise NotFound(f"source volume {request.source_volume} does not exist", nothing_done=True)
            if request.capacity_bytes < source.capacity_bytes:
                asked = f"{request.capacity_bytes} bytes were asked for"
                raise InvalidArgument(f"a copy of {source.handle} needs {source.capacity_bytes} bytes, {asked}")
            if self.storage.clones == "in place" and source.segment and request.segment not in (None, source.segment):
                raise InvalidArgument(
                    f"{source.handle} is in {source.segment}, it cannot be copied to {request.segment}"
                )
        if request.source_snapshot is not None:
            made = self.storage.snapshots.get(request.source_snapshot)
            if made is None:
                raise NotFound(f"snapshot {request.source_snapshot} does not exist", nothing_done=True)
            if made.ready_at > self.storage.clock():
                raise Unavailable(f"snapshot {request.source_snapshot} is not ready", nothing_done=True)
            if request.capacity_bytes < made.size_bytes:
                asked = f"{request.capacity_bytes} bytes were asked for"
                raise InvalidArgument(f"snapshot {request.source_snapshot} needs {made.size_bytes} bytes, {asked}")
        zone = (request.segment or {}).get(ZONE)
        if self.storage.zones and zone is not None and zone not in self.storage.zones:
            raise InvalidArgument(f"zone {zone} does not exist, there are {', '.join(self.storage.zones)}")

    def _make(self, request: ProvisionRequest) -> MemoryAsset:
        storage = self.storage
        if request.capacity_bytes > storage.room():
            raise ResourceExhausted(
                f"{request.capacity_bytes} bytes were asked for, there are {storage.room()}", nothing_done=True
            )
        storage.made += 1
        segment = request.segment
        if storage.zones and segment is None:
            source = storage.by_handle(request.source_volume) if request.source_volume is not None else None
            segment = source.segment if source is not None else {ZONE: storage.zones[0]}
        asset = MemoryAsset(
            handle=self.handle_of(request.name),
            name=request.name,
            owner=request.owner,
            capacity_bytes=request.capacity_bytes,
            demand=_demand_of(request),
            segment=segment if storage.zones else None,
            ready_at=storage.clock() + storage.delay if storage.delay else 0.0,
            contents=self._copied(request),
        )
        storage.assets[request.name] = asset
        return asset

    def _copied(self, request: ProvisionRequest) -> list[str]:
        """Return what is in the source of the demand; nothing without one."""
        if request.source_snapshot is not None:
            return list(self.storage.snapshots[request.source_snapshot].contents)
        source = self.storage.by_handle(request.source_volume) if request.source_volume is not None else None
        return list(source.contents) if source is not None else []

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        """By name, for the owner it was made for."""
        with self.storage.lock:
            self.storage.sweep()
            asset = self.storage.assets.get(request.name)
            if asset is None or asset.owner != request.owner or asset.deleting_until is not None:
                return Absent()
            return self._seen(asset)

    @hookimpl
    def inspect(self, request: InspectRequest) -> ListedAsset | Absent:
        """By handle, whoever made it."""
        with self.storage.lock:
            asset = self.storage.by_handle(request.handle)
            return self._listed(asset) if asset is not None else Absent()

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        """Refused while it is attached, and for another owner's asset."""
        with self.storage.lock:
            self.storage.sweep()
            asset = self._asset_of(request.volume)
            if asset is None:
                return Done()
            if asset.attached_to:
                raise VolumeInUse(f"{asset.handle} is attached to {asset.attached_to[0]}")
            if not self.storage.delay:
                del self.storage.assets[asset.name]
                return Done()
            now = self.storage.clock()
            asset.deleting_until = asset.deleting_until or now + self.storage.delay
            return InProgress(retry_after=asset.deleting_until - now, state={"handle": asset.handle})

    def _asset_of(self, volume: VolumeIdentity) -> MemoryAsset | None:
        """Return the volume's asset; raises AlreadyExists for another's."""
        asset = self.storage.by_handle(volume.handle)
        if asset is not None and asset.owner != volume.owner:
            raise AlreadyExists(f"{asset.handle} carries the marks of claim {_claim_of(asset)}")
        return asset

    def _there(self, volume: VolumeIdentity) -> MemoryAsset:
        asset = self._asset_of(volume)
        if asset is None:
            raise NotFound(f"asset {volume.handle} does not exist")
        return asset

    @hookimpl
    def adopt(self, request: AdoptRequest) -> Done:
        """Change the owner from the former one; idempotent."""
        with self.storage.lock:
            asset = self.storage.by_handle(request.volume.handle)
            if asset is None:
                raise NotFound(f"asset {request.volume.handle} does not exist")
            if request.volume.owner is None or asset.owner not in (request.former, request.volume.owner):
                raise AlreadyExists(f"{asset.handle} carries the marks of claim {_claim_of(asset)}")
            asset.owner = request.volume.owner
        return Done()

    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        """Own volumes of our CSI driver with a handle."""
        fields = request.source.fields
        handle = fields.get("volumeHandle")
        return (
            request.source.kind == "csi" and fields.get("driver") == DRIVER and isinstance(handle, str) and handle != ""
        )

    @hookimpl
    def recycle(self, request: RecycleRequest) -> Erased | PodScrub:
        """Forget the contents."""
        with self.storage.lock:
            self._there(request.volume).contents.clear()
        return Erased()

    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset:
        """Grow, if there is room."""
        with self.storage.lock:
            asset = self._there(request.volume)
            more = request.capacity_bytes - asset.capacity_bytes
            if more > self.storage.room():
                room = self.storage.room()
                raise ResourceExhausted(f"{more} bytes more were asked for, there are {room}", nothing_done=True)
            asset.capacity_bytes += max(more, 0)
            return self._seen(asset)

    @hookimpl
    def modify(self, request: ModifyRequest) -> Done:
        """Store the colour."""
        with self.storage.lock:
            asset = self._there(request.volume)
            for key, value in request.parameters.items():
                if key != "colour":
                    raise InvalidArgument(f"parameter {key!r} (value {value!r}) cannot be modified; colour can")
            asset.modified.update(request.parameters)
        return Done()

    @hookimpl
    def attach(self, request: AttachRequest) -> Attachment:
        """Attach to one node, or to many where an access mode allows that."""
        with self.storage.lock:
            asset, node = self._there(request.volume), request.node.name
            if node not in self.storage.nodes:
                raise NotFound(f"node {node} does not exist")
            if node not in asset.attached_to:
                self._refuse_attach(asset, node, request.volume)
                asset.attached_to.append(node)
            return Attachment(metadata={"device": f"/dev/{asset.handle}"})

    def _refuse_attach(self, asset: MemoryAsset, node: str, volume: VolumeIdentity) -> None:
        if asset.attached_to and not _MANY.intersection(volume.access_modes):
            raise AttachedElsewhere(f"{asset.handle} is attached to {asset.attached_to[0]}", node=asset.attached_to[0])
        most = self.storage.most_attached
        if most is not None and sum(node in each.attached_to for each in self.storage.assets.values()) >= most:
            text = f"node {node} has {most} assets, the most it can have"
            raise ResourceExhausted(text, scope=node, nothing_done=True)

    @hookimpl
    def detach(self, request: DetachRequest) -> Done:
        """Detach from that node only."""
        with self.storage.lock:
            asset = self.storage.by_handle(request.volume.handle)
            if asset is not None and request.node.name in asset.attached_to:
                asset.attached_to.remove(request.node.name)
        return Done()

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        """List in the order of names. A page token is the last name of the page before."""
        with self.storage.lock:
            self.storage.sweep()
            names = sorted(name for name in self.storage.assets if request.page is None or name > request.page)
            taken = names[: min(self.storage.page, request.max_entries or self.storage.page)]
            assets = tuple(self._listed(self.storage.assets[name]) for name in taken)
            return AssetPage(assets=assets, next_page=taken[-1] if len(names) > len(taken) else None)

    @hookimpl
    def get_capacity(self, request: CapacityRequest) -> Capacity:
        """Return the capacity of one pool for all zones."""
        zone = (request.segment or {}).get(ZONE)
        if self.storage.zones and zone is not None and zone not in self.storage.zones:
            return Capacity(available_bytes=0)
        with self.storage.lock:
            self.storage.sweep()
            return Capacity(available_bytes=self.storage.room())

    @hookimpl
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        """Make a snapshot of the present contents of the asset."""
        storage = self.storage
        with storage.lock:
            for handle, made in storage.snapshots.items():
                if made.name == request.name and (made.source, made.owner) != (request.volume.handle, request.owner):
                    raise AlreadyExists(f"snapshot {made.name} is of {made.source}, not of {request.volume.handle}")
                if made.name == request.name:
                    return self._cut(handle, made)
            handle = self._keep(self._there(request.volume), request.name, request.owner, storage.now())
            return self._cut(handle, storage.snapshots[handle])

    def _keep(self, asset: MemoryAsset, name: str, owner: SnapshotOwnership, moment: float, *, group: str = "") -> str:
        storage = self.storage
        storage.made += 1
        handle = f"{storage.prefix}-snapshot-{storage.made}"
        storage.snapshots[handle] = MemorySnapshot(
            name=name,
            source=asset.handle,
            owner=owner,
            size_bytes=asset.capacity_bytes,
            created_at=moment,
            ready_at=storage.clock() + storage.delay if storage.delay else 0.0,
            contents=list(asset.contents),
            segment=asset.segment,
            group=group,
        )
        return handle

    @hookimpl
    def find_snapshot(self, request: FindSnapshotRequest) -> Snapshot | Absent:
        """By handle, else by name for the owner it was made for."""
        with self.storage.lock:
            for handle, made in self.storage.snapshots.items():
                named = made.name == request.name and request.owner in (None, made.owner)
                if handle == request.handle or (not request.handle and named):
                    return self._cut(handle, made)
        return Absent()

    @hookimpl
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Done:
        """Idempotent; refuses a snapshot with the marks of another owner."""
        with self.storage.lock:
            made = self.storage.snapshots.get(request.handle)
            if made is None:
                return Done()
            cluster = request.context.cluster_id
            foreign = made.owner is not None and made.owner.cluster_id != cluster
            if made.owner != request.owner if request.owner is not None else foreign:
                raise AlreadyExists(f"snapshot {request.handle} was made for {made.owner}: it is not touched")
            del self.storage.snapshots[request.handle]
        return Done()

    @hookimpl
    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        """Make snapshots of the present contents of all assets."""
        storage, wanted = self.storage, {each.handle for each in request.volumes}
        with storage.lock:
            made = self._group(request.name, request.owner)
            if made is not None and {each.source for each in made.snapshots} != wanted:
                raise AlreadyExists(f"group {request.name} is not of {', '.join(sorted(wanted))}")
            if made is not None:
                return made
            assets = [self._there(each) for each in request.volumes]
            moment = storage.now()
            for asset in assets:
                self._keep(asset, request.name, request.owner, moment, group=request.name)
            return self._group(request.name, request.owner) or GroupSnapshot(handle=request.name, snapshots=())

    @hookimpl
    def find_group_snapshot(self, request: FindGroupSnapshotRequest) -> GroupSnapshot | Absent:
        """By handle, else by name for the owner it was made for."""
        with self.storage.lock:
            return self._group(request.handle or request.name, request.owner) or Absent()

    @hookimpl
    def delete_group_snapshot(self, request: DeleteGroupSnapshotRequest) -> Done:
        """Idempotent; refuses a group with the marks of another owner."""
        with self.storage.lock:
            members = {h: made for h, made in self.storage.snapshots.items() if made.group == request.handle}
            for made in members.values():
                foreign = made.owner is not None and made.owner.cluster_id != request.context.cluster_id
                if made.owner != request.owner if request.owner is not None else foreign:
                    raise AlreadyExists(f"group {request.handle} was made for {made.owner}: it is not touched")
            for handle in members:
                del self.storage.snapshots[handle]
        return Done()

    def _group(self, handle: str, owner: SnapshotOwnership | None) -> GroupSnapshot | None:
        members = [
            self._cut(each, made)
            for each, made in self.storage.snapshots.items()
            if made.group == handle and owner in (None, made.owner)
        ]
        return GroupSnapshot(handle=handle, snapshots=tuple(members)) if members else None

    @hookimpl
    def list_snapshots(self, request: ListSnapshotsRequest) -> SnapshotPage:
        """List in the order of handles. A page token is the last handle of the page before."""
        with self.storage.lock:
            handles = sorted(h for h in self.storage.snapshots if request.page is None or h > request.page)
            taken = handles[: min(self.storage.page, request.max_entries or self.storage.page)]
            cut = tuple(self._cut(handle, self.storage.snapshots[handle]) for handle in taken)
            return SnapshotPage(snapshots=cut, next_page=taken[-1] if len(handles) > len(taken) else None)

    def _cut(self, handle: str, made: MemorySnapshot) -> Snapshot:
        left = max(made.ready_at - self.storage.clock(), 0.0)
        return Snapshot(
            handle=handle,
            size_bytes=made.size_bytes,
            ready=not left,
            created_at=made.created_at,
            source=made.source,
            owner=made.owner,
            name=made.name,
            state=f"ready in {left:g} s" if left else "",
            retry_after=left or 15.0,
            node_affinity=(dict(made.segment),) if made.segment else (),
        )

    def _seen(self, asset: MemoryAsset) -> Asset:
        return Asset(
            handle=asset.handle,
            source=self.source_of(asset),
            capacity_bytes=asset.capacity_bytes,
            node_affinity=(dict(asset.segment),) if asset.segment else (),
        )

    def _listed(self, asset: MemoryAsset) -> ListedAsset:
        return ListedAsset(
            handle=asset.handle,
            name=asset.name,
            capacity_bytes=asset.capacity_bytes,
            owner=asset.owner and replace(asset.owner),
            attached_to=tuple(asset.attached_to),
            source=self.source_of(asset),
        )


def _claim_of(asset: MemoryAsset) -> str:
    return asset.owner.claim_uid if asset.owner is not None else "none"


def _demand_of(request: ProvisionRequest) -> tuple[object, ...]:
    modes = tuple(sorted(request.access_modes))
    parameters = tuple(sorted((key, str(value)) for key, value in request.parameters.items()))
    return (
        request.capacity_bytes,
        modes,
        request.volume_mode,
        parameters,
        tuple(sorted((request.segment or {}).items())),
        request.source_snapshot,
        request.source_volume,
    )
