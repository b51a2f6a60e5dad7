"""The hooks of the driver: each opens the root, checks its marker, takes the volume's lock and calls other modules."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from typing import Any, ClassVar

from volplane import (
    Absent,
    AccessMode,
    AdoptRequest,
    Asset,
    AssetPage,
    BackendError,
    BackendSpec,
    Capacity,
    CapacityRequest,
    Context,
    DeleteGroupSnapshotRequest,
    DeleteRequest,
    DeleteSnapshotRequest,
    DescribeRequest,
    Done,
    DriverInfo,
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
    NotFound,
    OutOfRange,
    OwnsRequest,
    ParameterSchema,
    PodScrub,
    ProbeRequest,
    ProvisionRequest,
    RecycleRequest,
    Snapshot,
    SnapshotPage,
    SnapshotRequest,
    StartRequest,
    StopRequest,
    Unavailable,
    Unsupported,
    ValidateRequest,
    VolumeIdentity,
    VolumeMode,
    hookimpl,
    read_parameters,
)
from volplane.directory import (
    ARCHIVE,
    DELETE,
    RETAIN,
    SNAPSHOT_PARAMETERS,
    Handle,
    UsageReport,
    check_backing,
    check_demand,
    check_name,
    name_of,
    static_key,
)
from volplane.directory.dirfd import NotADirectory, closing, directory_exists, entry_exists, open_path
from volplane_hostpath.archive import Expiry, archive_directory, list_archives
from volplane_hostpath.copies import Copies, Source, discard
from volplane_hostpath.delete import (
    delete_marked,
    delete_static,
    delete_unmarked,
    forget_marked,
    holds_something,
    remove_leftovers,
    remove_retained_markers,
)
from volplane_hostpath.disk_waits import DiskWaits
from volplane_hostpath.errors import NO_SPACE, storage_errors
from volplane_hostpath.group_snapshots import GroupSnapshots, known_group, members_of, shown, unfinished
from volplane_hostpath.index import VolumeIndex, known_volume_marker
from volplane_hostpath.inspect import inspect_volume
from volplane_hostpath.listing import list_page
from volplane_hostpath.locks import Deadline, Locks
from volplane_hostpath.markers import VolumeMarker
from volplane_hostpath.mounts import MountTable
from volplane_hostpath.project_quotas import NONE, ProjectQuotas
from volplane_hostpath.provision import (
    NodeTopology,
    asset_of,
    fill_volume,
    finish_volume,
    forget_volume,
    is_backed,
    is_copy,
    stage_volume,
)
from volplane_hostpath.root import INDEX, LOCKS, TRASH, OpenRoots, Root, initialise
from volplane_hostpath.settings import PARAMETERS, ClassParameters, Settings
from volplane_hostpath.snapshots import (
    Snapshots,
    known_snapshot,
    list_snapshots,
    open_snapshot,
    open_volume,
    snapshot_name,
)
from volplane_hostpath.static_volumes import path_below_root, refuse_not_static, root_spellings, static_path
from volplane_hostpath.statistics import measure_volumes
from volplane_hostpath.trash import refuse_mounted_above, refuse_mounts_below
from volplane_hostpath.update import adopt_marker, expand_marker

_ONE_NODE = frozenset({AccessMode.READ_WRITE_ONCE, AccessMode.READ_WRITE_ONCE_POD})
_RETRY_SECONDS = 0.1
_LONGEST_GROUP = 238
"""Characters of a group's name, to which its members add a number."""
_ARCHIVE_SECONDS = 2.0
"""Of each probe, for archives whose time is over."""


class HostPathBackend(BackendSpec):
    """Volumes as directories of one file system of a node, or of one that all nodes share."""

    default_driver_name: ClassVar[str] = "hostpath.volplane.dev"
    options_schema: ClassVar[ParameterSchema] = ParameterSchema.of(Settings)

    def __init__(self, options: Mapping[str, Any], *, quotas: ProjectQuotas | None = None) -> None:
        """Check the options; raises `InvalidArgument`. quotas: how limits are set; None = by the kernel."""
        super().__init__(options)
        self._settings = read_parameters(Settings, options)
        self._root_id = self._settings.root_id
        self._topology = NodeTopology("", self._settings.affinity_label, self._settings.node_value)
        self._access_modes = frozenset(AccessMode) if self._settings.shared else _ONE_NODE
        self._index = VolumeIndex(self._settings.overcommit_percent)
        self._locks = Locks()
        self._mounts = MountTable()
        self._roots = OpenRoots(self._settings, self._mounts, quotas)
        self._waits = DiskWaits()
        self._expiry = Expiry()
        self._usage = UsageReport()
        self._copies = Copies()
        self._snapshots = Snapshots(self._index, self._waits, self._copies)
        self._groups = GroupSnapshots(self._index, self._waits, self._snapshots)

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        """Return access modes and topology as the option `shared` has them."""
        return DriverInfo(
            version=version("volplane-hostpath"),
            parameters=PARAMETERS,
            topology_keys=() if self._settings.shared else (self._settings.affinity_label,),
            access_modes=self._access_modes,
            volume_modes=frozenset(VolumeMode if self._settings.images else {VolumeMode.FILESYSTEM}),
            snapshot_parameters=SNAPSHOT_PARAMETERS,
            clones="anywhere" if self._settings.shared else "in place",
            archives=True,
        )

    @hookimpl
    def start(self, request: StartRequest) -> Done:
        """Mark a new root or check the marker of a known one; then remove what crashed calls left."""
        if request.node_name:
            self._topology = NodeTopology(request.node_name, self._settings.affinity_label, request.node_name)
        with storage_errors(root=self._settings.root, doing="use the root"):
            self._root_id = initialise(self._settings, self._root_id, self._mounts, request.context).root_id
        self._mounts.current()
        with self._root(request.context, "tidy up") as root:
            remove_leftovers(root, self._index, self._locks, request.context)
        return Done()

    @hookimpl
    def stop(self, request: StopRequest) -> Done:
        """Close the table of mounts: nothing else is open between calls."""
        self._mounts.close()
        self._usage.close()
        return Done()

    @hookimpl
    def probe(self, request: ProbeRequest) -> Done:
        """Return the root exists, is ours, and can be written."""
        with self._root(request.context, "write") as root:
            root.require_writable()
            with closing(os.open(INDEX, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=root.control)) as fd:
                os.utime(fd)
            self._remove_archives(root, request.context)
            with self._index.open(root, Deadline(request.context).remaining(), request.context.log):
                remove_retained_markers(root, self._index, request.context.log)
            if self._settings.volume_statistics:
                measure_volumes(root, self._usage, self._index.reports, request.context)
        return Done()

    def _remove_archives(self, root: Root, context: Context) -> None:
        """Remove archives whose time is over, for a while; what is left of them in the trash goes at a next call."""
        deadline = Deadline(context, _ARCHIVE_SECONDS)
        if self._expiry.work(root, self._index, context, deadline):
            remove_leftovers(root, self._index, self._locks, context, deadline)

    @hookimpl
    def validate(self, request: ValidateRequest) -> Done:
        """Check the path template, and that the volume type suits the root."""
        ClassParameters.of(request.parameters, self._settings)
        return Done()

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        """Make the directory, or finish and return that of an earlier call. A copy is filled in slices."""
        check_name(request.name)
        self._check_demand(request)
        parameters = ClassParameters.of(request.parameters, self._settings)
        if parameters.backing_snapshot:
            check_backing(request)
        if request.volume_mode is VolumeMode.BLOCK and parameters.quota != NONE:
            raise InvalidArgument(
                "parameter quota: the image of a block volume of that size would not fit in; leave it out"
            )
        context = request.context
        with self._volume(request.name, context, f"make the directory of {request.name}") as root:
            marker = known_volume_marker(root, request.name)
            if marker is not None:
                # A field that the marker of an older version does not have is not compared; that had no sources.
                known = {"source", *marker.demand}
                demand = {key: asked for key, asked in parameters.demand(request).items() if key in known}
                marker.refuse_other_demand(request, demand)
                if not is_copy(marker) or directory_exists(marker.path, root.fd, root.mount, label=root.path):
                    finish_volume(root, self._index, self._waits, marker, context, staged=False)
                    discard(root, marker.entry, Deadline(context))
                    return asset_of(root, marker)
            with self._source(root, request, marker) as source:
                staged = marker is None
                if marker is None:
                    segment = {} if self._settings.shared else self._topology.segment(request)
                    marker = VolumeMarker.new(
                        request, parameters, volume_type=parameters.volume_type, segment=dict(segment)
                    )
                    marker = stage_volume(
                        root, self._index, self._waits, self._settings, marker=marker, context=context
                    )
                if source is not None:
                    unfinished = fill_volume(
                        root,
                        self._index,
                        self._waits,
                        self._copies,
                        marker=marker,
                        source=source,
                        parameters=parameters,
                        context=context,
                    )
                    if unfinished is not None:
                        return unfinished
            finish_volume(root, self._index, self._waits, marker, context, staged=staged)
            return asset_of(root, marker)

    @contextmanager
    def _source(self, root: Root, request: ProvisionRequest, marker: VolumeMarker | None) -> Iterator[Source | None]:
        """Open what the volume is a copy of; None = it is to be empty. Of an unfinished one that has no source any
        more nothing is left.
        """
        with ExitStack() as opened:
            try:
                source = self._open_source(root, request, opened)
            except NotFound as error:
                undone = marker is None or (
                    discard(root, marker.entry, Deadline(request.context))
                    and forget_volume(root, self._index, marker, request.context)
                )
                raise NotFound(error.message, nothing_done=undone) from error
            if source is not None and request.capacity_bytes < source.size_bytes:
                raise OutOfRange(
                    f"{request.capacity_bytes} bytes are less than the {source.size_bytes} of {source.label}, of which "
                    "the volume is to be a copy"
                )
            yield source

    def _open_source(self, root: Root, request: ProvisionRequest, opened: ExitStack) -> Source | None:
        if request.source_snapshot is not None:
            return opened.enter_context(open_snapshot(root, request.source_snapshot))
        if request.source_volume is None:
            return None
        if request.source_asset is None or request.source_asset.handle != request.source_volume:
            raise NotFound(f"there is no volume {request.source_volume} to copy")
        return opened.enter_context(open_volume(root, self._index, request.source_asset, request.context))

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        """Return the asset of a marker: `provision` finishes what it stands for, `delete` removes it. Nothing changes.

        In a mere look the directory has to be there.
        """
        name = check_name(request.name)
        with self._volume(name, request.context, f"look for the directory of {name}") as root:
            marker = known_volume_marker(root, name)
            if marker is None or not marker.belongs_to(request.owner):
                return Absent()
            if marker.owner.generation != request.owner.generation:
                return Absent()
            if request.only_look:
                if entry_exists(marker.entry, root.directory(TRASH)):
                    raise Unavailable(f"{name} is still being removed", retry_after=_RETRY_SECONDS)
                if not directory_exists(marker.path, root.fd, root.mount, label=root.path):
                    return Absent()
            return asset_of(root, marker)

    @hookimpl
    def inspect(self, request: InspectRequest) -> ListedAsset | Absent:
        """Look at the marker and the directory of a volume."""
        with self._root(request.context, f"look at {request.handle!r}") as root:
            return inspect_volume(root, request.handle)

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        """Remove the directory and its contents, if its marker or its path proves that it is this volume's."""
        volume, context = request.volume, request.context
        doing = f"remove {volume.name}"
        if volume.owner is None:
            with self._volume(static_key(volume), context, doing) as root:
                finished = delete_static(root, self._index, self._waits, volume, context)
        else:
            name = name_of(volume)
            with self._copies.deleting(), self._volume(name, context, doing) as root:
                _check_root(root, volume)
                finished = self._delete_owned(root, name, volume, context)
        return Done() if finished else InProgress(retry_after=_RETRY_SECONDS)

    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        """Return a directory strictly below the root, with no symbolic link in its path as far as it exists."""
        path = path_below_root(request.source, root_spellings(self._settings.root))
        if path is None:
            return False
        try:
            with Root(self._settings.root, self._mounts) as root:
                os.close(open_path(path, root.fd, root.mount, label=root.path, access=os.O_PATH))
        except NotADirectory:
            return False
        except (BackendError, OSError):
            return True  # It does not exist, or not now: the path alone decides.
        return True

    @hookimpl
    def recycle(self, request: RecycleRequest) -> PodScrub:
        """Let a pod empty the directory, if it exists and is proven to be this volume's."""
        volume, context = request.volume, request.context
        with self._root(context, f"look at {volume.name}") as root:
            path = self._path_to_scrub(root, volume, context)
            label = f"{root.path}/{path}"
            try:
                fd = open_path(path, root.fd, root.mount, label=root.path, access=os.O_PATH)
            except FileNotFoundError:
                raise NotFound(f"{label} of volume {volume.name} is gone: there is nothing to scrub") from None
            with closing(fd):
                refuse_mounts_below(root.mounts.current(), fd, label)
                if volume.owner is None:
                    refuse_mounted_above(root, fd, label)
        # The kubelet resolves a subPath within its volume: what a tenant puts in the way cannot lead out of the root.
        return PodScrub(volume={"hostPath": {"path": root.path, "type": "Directory"}}, sub_path=path)

    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset:
        """Raise the promised size in the marker, and the limit of a volume that has one."""
        volume, context = request.volume, request.context
        if volume.owner is None:
            raise Unsupported(f"{volume.name} was not made by this driver: nothing was promised to it")
        name = name_of(volume)
        with self._volume(name, context, f"grow {volume.name}") as root:
            _check_root(root, volume)
            marker = _owned_marker(root, name, volume)
            return asset_of(
                root,
                expand_marker(
                    root, self._index, self._waits, marker, capacity_bytes=request.capacity_bytes, context=context
                ),
            )

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        """Return the volumes, what crashed calls left, and every other directory as an asset without owner.

        Asked for archives, it returns those.
        """
        with self._root(request.context, "list the volumes") as root:
            if request.archives:
                return list_archives(root, request.page)
            if request.page is None:
                remove_leftovers(root, self._index, self._locks, request.context)
            return list_page(root, self._index, request.page, request.context)

    @hookimpl
    def adopt(self, request: AdoptRequest) -> Done:
        """Write the new owner into the volume's marker."""
        volume, context = request.volume, request.context
        if volume.owner is None:
            raise Unsupported(f"{volume.name} was not made by this driver: it carries no marks")
        name = name_of(volume)
        with self._volume(name, context, f"take over {volume.name}") as root:
            _check_root(root, volume)
            adopt_marker(root, self._index, self._waits, _present_marker(root, name, volume), request)
        return Done()

    @hookimpl
    def get_capacity(self, request: CapacityRequest) -> Capacity:
        """Return the bytes that may still be promised; 0 for segments that the root does not serve."""
        if not self._settings.shared and not self._topology.serves(request.segment):
            return Capacity(available_bytes=0)
        context = request.context
        with (
            self._root(context, "ask for free space") as root,
            self._index.open(root, Deadline(context).remaining(), context.log),
        ):
            return Capacity(available_bytes=self._index.room(root))

    @hookimpl
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot | InProgress:
        """Copy the volume's directory, in slices."""
        name = check_name(request.name)
        with self._volume(name, request.context, f"make snapshot {name}") as root:
            if request.volume.owner is not None:
                _check_root(root, request.volume)
            return self._snapshots.create(root, request)

    @hookimpl
    def find_snapshot(self, request: FindSnapshotRequest) -> Snapshot | Absent:
        """Return a whole snapshot. Nothing changes."""
        with self._root(request.context, "look for a snapshot") as root:
            name = snapshot_name(root, request.handle) if request.handle else request.name
            marker = known_snapshot(root, check_name(name)) if name else None
            other = request.owner is not None and marker is not None and marker.owner != request.owner
            return Absent() if marker is None or other else marker.snapshot(root.id)

    @hookimpl
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Done | InProgress:
        """Remove the copy, if its marker proves that it is the owner's."""
        context = request.context
        with self._root(context, "delete a snapshot", of_any_cluster=True) as root:
            name = snapshot_name(root, request.handle)
            if name is None:
                return Done()
            _refuse_other_snapshot(root, check_name(name), request)
        with self._volume(name, context, f"delete snapshot {name}") as root:
            _refuse_other_snapshot(root, name, request)
            finished = self._snapshots.delete(root, name, context)
        return Done() if finished else InProgress(retry_after=_RETRY_SECONDS)

    @hookimpl
    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        """Cut subvolumes of btrfs at one moment."""
        name = check_name(request.name, _LONGEST_GROUP)
        with self._volume(name, request.context, f"make the snapshots {name}") as root:
            for volume in request.volumes:
                if volume.owner is not None:
                    _check_root(root, volume)
            return self._groups.create(root, request)

    @hookimpl
    def find_group_snapshot(self, request: FindGroupSnapshotRequest) -> GroupSnapshot | Absent:
        """Return a group; what a crash has left of its making is finished."""
        with self._root(request.context, "look for the snapshots of a group") as root:
            name = snapshot_name(root, request.handle) if request.handle else request.name
            record = known_group(root, check_name(name, _LONGEST_GROUP)) if name else None
            if record is None or (request.owner is not None and record.owner != request.owner):
                return Absent()
            if not unfinished(root, record):
                group = shown(root, record)
                return group if group.snapshots else Absent()
        with self._volume(record.name, request.context, f"finish the snapshots {record.name}") as root:
            return self._groups.whole(root, record, request.context)

    @hookimpl
    def delete_group_snapshot(self, request: DeleteGroupSnapshotRequest) -> Done | InProgress:
        """Remove all copies, if the markers of all prove that they are the owner's."""
        context = request.context
        with self._root(context, "delete the snapshots of a group", of_any_cluster=True) as root:
            name = snapshot_name(root, request.handle)
            if name is None:
                return Done()
            known = _refuse_other_group(root, check_name(name, _LONGEST_GROUP), request)
        with self._volume(name, context, f"delete the snapshots {name}") as root:
            known = _refuse_other_group(root, name, request)
            finished = self._groups.delete(root, name, known, context)
        return Done() if finished else InProgress(retry_after=_RETRY_SECONDS)

    @hookimpl
    def list_snapshots(self, request: ListSnapshotsRequest) -> SnapshotPage:
        """Return the whole snapshots of all clusters."""
        with self._root(request.context, "list the snapshots") as root:
            return list_snapshots(root, request.page)

    @contextmanager
    def _root(self, context: Context, doing: str, *, of_any_cluster: bool = False) -> Iterator[Root]:
        with (
            storage_errors(root=self._settings.root, doing=doing),
            self._roots.checked(self._root_id, context, of_any_cluster=of_any_cluster) as root,
        ):
            yield root

    @contextmanager
    def _volume(self, name: str, context: Context, doing: str) -> Iterator[Root]:
        """Yield the root, writable, with the lock of one volume held."""
        with self._root(context, doing) as root:
            root.require_writable()
            with self._locks.hold(name, root.directory(LOCKS), Deadline(context).remaining()):
                yield root

    def _check_demand(self, request: ProvisionRequest) -> None:
        check_demand(request, copies=True, images=self._settings.images)
        other = sorted(str(mode) for mode in set(request.access_modes) - self._access_modes)
        if other:
            served = ", ".join(sorted(str(mode) for mode in self._access_modes))
            raise Unsupported(
                f"access mode {other[0]} needs a file system that every node sees (option shared); served are {served}"
            )
        several = sorted(str(mode) for mode in set(request.access_modes) - _ONE_NODE)
        if request.volume_mode is VolumeMode.BLOCK and several:
            raise Unsupported(
                f"access mode {several[0]} with volumeMode Block: each node would attach the image file by itself, and "
                "their writes would destroy each other's; ask for ReadWriteOnce, or for volumeMode Filesystem"
            )
        if request.mount_options:
            raise InvalidArgument(f"mountOptions {list(request.mount_options)}: a directory has none; remove them")

    def _delete_owned(self, root: Root, name: str, volume: VolumeIdentity, context: Context) -> bool:
        marker = known_volume_marker(root, name)
        if marker is None:
            delete_unmarked(root, self._index, name, volume, context)
            return True
        marker.refuse_other_owner(volume.owner, f"{root.path}/{marker.path}")
        handle = Handle.parse(volume.handle)
        if handle is not None and handle.generation != marker.owner.generation:
            return True  # The name belongs to another generation: this one is gone.
        on_delete = marker.on_delete(used=bool(volume.uid))
        if not volume.uid and not marker.existing and not holds_something(root, marker):
            # An asset that never became a volume holds nothing that anybody would want to keep.
            on_delete = DELETE
        if on_delete == RETAIN:
            forget_marked(root, self._index, self._waits, marker, context)
            return True
        if on_delete == ARCHIVE:
            try:
                self._expiry.note(archive_directory(root, marker))
            except OSError as error:
                if error.errno in NO_SPACE:
                    self._remove_archives(root, context)  # They give some back for the next call.
                raise
        return delete_marked(root, self._index, self._waits, marker, context)

    def _path_to_scrub(self, root: Root, volume: VolumeIdentity, context: Context) -> str:
        if volume.owner is None:
            path = static_path(volume.source, root)
            with self._index.open(root, Deadline(context).remaining(), context.log):
                refuse_not_static(root, self._index, path)
            return path
        _check_root(root, volume)
        marker = _owned_marker(root, name_of(volume), volume)
        if is_backed(marker):
            raise Unsupported(f"{marker.name} is a snapshot, read only: it cannot be emptied")
        marker.refuse_emptying()
        return marker.path


def _refuse_other_snapshot(root: Root, name: str, request: DeleteSnapshotRequest) -> None:
    marker = known_snapshot(root, name)
    if marker is not None:
        marker.refuse_other_owner(request.owner, request.context.cluster_id)


def _refuse_other_group(root: Root, name: str, request: DeleteGroupSnapshotRequest) -> list[str]:
    """Raise `AlreadyExists` if one of the snapshots is another's; return the names that the request knows."""
    known = [check_name(each) for handle in request.snapshots if (each := snapshot_name(root, handle))]
    for member in members_of(root, name, known):
        deletion = DeleteSnapshotRequest(context=request.context, handle=member, owner=request.owner)
        _refuse_other_snapshot(root, member, deletion)
    return known


def _present_marker(root: Root, name: str, volume: VolumeIdentity) -> VolumeMarker:
    marker = known_volume_marker(root, name)
    if marker is None:
        raise NotFound(f"{volume.name} has no marker under root {root.path}: it is gone or was never made here")
    return marker


def _owned_marker(root: Root, name: str, volume: VolumeIdentity) -> VolumeMarker:
    marker = _present_marker(root, name, volume)
    marker.refuse_other_owner(volume.owner, f"{root.path}/{marker.path}")
    return marker


def _check_root(root: Root, volume: VolumeIdentity) -> None:
    """Raise `Unavailable` for a volume of another root: it is not gone."""
    handle = Handle.parse(volume.handle)
    if handle is not None and handle.storage_id != root.id:
        raise Unavailable(
            f"{handle.volume_name} lies on the root with id {handle.storage_id}, at {root.path} is {root.id}: mount "
            "the disk it lies on"
        )
