"""The hooks. Each opens the root afresh, checks its marker, holds the volume's lock, and leaves the work to others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, ClassVar

from volplane import (
    Absent,
    AccessMode,
    AdoptRequest,
    AlreadyExists,
    Asset,
    AssetPage,
    BackendError,
    BackendSpec,
    Capacity,
    CapacityRequest,
    Context,
    DeleteRequest,
    DescribeRequest,
    Done,
    DriverInfo,
    ExpandRequest,
    FindRequest,
    InProgress,
    InvalidArgument,
    ListRequest,
    NotFound,
    OwnsRequest,
    ParameterSchema,
    PodScrub,
    ProbeRequest,
    ProvisionRequest,
    RecycleRequest,
    StartRequest,
    StopRequest,
    Unavailable,
    Unsupported,
    ValidateRequest,
    VolumeIdentity,
    VolumeMode,
    hookimpl,
)
from volplane_hostpath.delete import (
    delete_marked,
    delete_static,
    delete_unmarked,
    refuse_mounts_below,
    refuse_not_static,
    static_key,
    sweep,
)
from volplane_hostpath.dirfd import NotPlain, closing, entry_exists, open_path
from volplane_hostpath.errors import storage_errors
from volplane_hostpath.index import Ledger, read_volume_marker
from volplane_hostpath.listing import list_page
from volplane_hostpath.locks import Locks, TimeSlice
from volplane_hostpath.markers import CorruptMarker, Handle, VolumeMarker, check_name, marker_file
from volplane_hostpath.path_template import PathTemplate
from volplane_hostpath.provision import Node, asset_of, begin, complete, discard_staged, new_marker, refuse_other_demand
from volplane_hostpath.root import CONTROL, LEDGER, LOCKS, TRASH, VOLUMES, Root, initialised, opened
from volplane_hostpath.settings import OPTIONS, PARAMETERS, Settings, Shape
from volplane_hostpath.static_volumes import beneath_root, spellings, static_path
from volplane_hostpath.update import adopted, expanded

__all__ = ["HostPathBackend"]

_ONE_NODE = frozenset({AccessMode.READ_WRITE_ONCE, AccessMode.READ_WRITE_ONCE_POD})
_SOON = 0.1


class HostPathBackend(BackendSpec):
    """Volumes as directories of one file system of a node, or of one that all nodes share."""

    default_driver_name: ClassVar[str] = "hostpath.volplane.dev"
    options_schema: ClassVar[ParameterSchema] = OPTIONS

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Check the options; raises `InvalidArgument`."""
        super().__init__(options)
        self._settings = Settings.of(options)
        self._root_id = self._settings.root_id
        self._node = Node("", self._settings.affinity_label, self._settings.node_value)
        self._access_modes = frozenset(AccessMode) if self._settings.shared else _ONE_NODE
        self._ledger = Ledger(self._settings.overcommit_percent)
        self._locks = Locks()

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        """Access modes and topology follow from the option `shared`."""
        return DriverInfo(
            version=version("volplane-hostpath"),
            parameters=PARAMETERS,
            topology_keys=() if self._settings.shared else (self._settings.affinity_label,),
            access_modes=self._access_modes,
            volume_modes=frozenset({VolumeMode.FILESYSTEM}),
        )

    @hookimpl
    def start(self, request: StartRequest) -> Done:
        """Mark a new root, or make sure that it is the right one; then finish what a crash left."""
        if request.node_name:
            self._node = Node(request.node_name, self._settings.affinity_label, request.node_name)
        with storage_errors(root=self._settings.root, doing="use the root"):
            self._root_id = initialised(self._settings, self._root_id, request.context).root_id
        with self._root(request.context, "tidy up") as root:
            sweep(root, self._ledger, self._locks, request.context)
        return Done()

    @hookimpl
    def stop(self, request: StopRequest) -> Done:
        """Nothing is kept open between calls."""
        return Done()

    @hookimpl
    def probe(self, request: ProbeRequest) -> Done:
        """The root is there, is ours, and takes a write."""
        with self._root(request.context, "write") as root:
            root.require_writable()
            with closing(os.open(LEDGER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=root.control)) as fd:
                os.utime(fd)
        return Done()

    @hookimpl
    def validate(self, request: ValidateRequest) -> Done:
        """The template, and a volume type that fits the root."""
        PathTemplate.parse(Shape.of(request.parameters, self._settings).path_template)
        return Done()

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset:
        """Make the directory, or finish or return the one that an earlier call made."""
        check_name(request.name)
        self._check_demand(request)
        shape = Shape.of(request.parameters, self._settings)
        context = request.context
        with self._volume(request.name, context, f"make the directory of {request.name}") as root:
            marker = _marker(root, request.name)
            if marker is None:
                marker = new_marker(request, shape, {} if self._settings.shared else self._node.segment(request))
                begin(root, self._ledger, self._settings, marker, context)
            else:
                refuse_other_demand(marker, request, shape)
            complete(root, self._ledger, marker, context, make=True)
            return asset_of(root, marker)

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        """Finish what an attempt or a deletion began; clean up what did not get as far as its marker."""
        name, context = check_name(request.name), request.context
        with self._volume(name, context, f"look for the directory of {name}") as root:
            marker = _marker(root, name)
            if marker is None:
                discard_staged(root, name)
                return Absent()
            if not marker.belongs_to(request.owner) or marker.owner.generation != request.owner.generation:
                return Absent()
            deleting = entry_exists(marker.key, root.directory(TRASH))
            if not deleting and complete(root, self._ledger, marker, context, make=False):
                return asset_of(root, marker)
            if not delete_marked(root, self._ledger, marker, context):
                raise Unavailable(f"{name} is still being removed", retry_after=_SOON)
            return Absent()

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        """Remove the directory and everything in it, if it is proven to be this volume's."""
        volume, context = request.volume, request.context
        doing = f"remove {volume.name}"
        if volume.owner is None:
            with self._volume(static_key(volume), context, doing) as root:
                finished = delete_static(root, self._ledger, volume, context)
        else:
            name = _name_of(volume)
            with self._volume(name, context, doing) as root:
                _check_root(root, volume)
                finished = self._delete_owned(root, name, volume, context)
        return Done() if finished else InProgress(retry_after=_SOON)

    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        """A directory strictly below the root, reached without a symbolic link as far as that can be seen."""
        path = beneath_root(request.source, spellings(self._settings.root))
        if path is None:
            return False
        try:
            with Root(self._settings.root) as root:
                os.close(open_path(path, root.fd, root.place, label=root.path, access=os.O_PATH))
        except NotPlain:
            return False
        except (BackendError, OSError):
            return True  # Not there, or not there now: the path alone decides.
        return True

    @hookimpl
    def recycle(self, request: RecycleRequest) -> PodScrub:
        """Let a pod empty the directory, if it is there and proven to be this volume's."""
        volume, context = request.volume, request.context
        with self._root(context, f"look at {volume.name}") as root:
            path = self._path_to_scrub(root, volume, context)
            label = f"{root.path}/{path}"
            try:
                fd = open_path(path, root.fd, root.place, label=root.path, access=os.O_PATH)
            except FileNotFoundError:
                raise NotFound(f"{label} of volume {volume.name} is gone: there is nothing to scrub") from None
            with closing(fd):
                refuse_mounts_below(fd, label)
        return PodScrub(volume={"hostPath": {"path": label, "type": "Directory"}})

    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset:
        """Raise the promise."""
        volume, context = request.volume, request.context
        if volume.owner is None:
            raise Unsupported(f"{volume.name} was not made by this driver: nothing was promised to it")
        name = _name_of(volume)
        with self._volume(name, context, f"grow {volume.name}") as root:
            _check_root(root, volume)
            marker = _owned_marker(root, name, volume)
            return asset_of(root, expanded(root, self._ledger, marker, request.capacity_bytes, context))

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        """Volumes, what crashed calls left, and every other directory as foreign."""
        with self._root(request.context, "list the volumes") as root:
            if request.page is None:
                sweep(root, self._ledger, self._locks, request.context)
            return list_page(root, self._ledger, request.page, request.context)

    @hookimpl
    def adopt(self, request: AdoptRequest) -> Done:
        """Write the new marks into the volume's marker."""
        volume, context = request.volume, request.context
        if volume.owner is None:
            raise Unsupported(f"{volume.name} was not made by this driver: it carries no marks")
        name = _name_of(volume)
        with self._volume(name, context, f"take over {volume.name}") as root:
            _check_root(root, volume)
            adopted(root, self._ledger, _present_marker(root, name, volume), request)
        return Done()

    @hookimpl
    def get_capacity(self, request: CapacityRequest) -> Capacity:
        """What may still be promised; nothing in places that the root cannot serve."""
        if not self._settings.shared and not self._node.is_here(request.segment):
            return Capacity(available_bytes=0)
        context = request.context
        with (
            self._root(context, "ask for free space") as root,
            self._ledger.open(root, TimeSlice(context).left(), context.log),
        ):
            return Capacity(available_bytes=self._ledger.room(root))

    @contextmanager
    def _root(self, context: Context, doing: str) -> Iterator[Root]:
        with (
            storage_errors(root=self._settings.root, doing=doing),
            opened(self._settings, self._root_id, context) as root,
        ):
            yield root

    @contextmanager
    def _volume(self, name: str, context: Context, doing: str) -> Iterator[Root]:
        """The root, writable, with the lock of one volume held."""
        with self._root(context, doing) as root:
            root.require_writable()
            with self._locks.hold(name, root.directory(LOCKS), TimeSlice(context).left()):
                yield root

    def _check_demand(self, request: ProvisionRequest) -> None:
        if request.volume_mode is not VolumeMode.FILESYSTEM:
            raise Unsupported(f"volumeMode {request.volume_mode}: directories serve volumeMode Filesystem only")
        other = sorted(str(mode) for mode in set(request.access_modes) - self._access_modes)
        if other:
            served = ", ".join(sorted(str(mode) for mode in self._access_modes))
            raise Unsupported(
                f"access mode {other[0]} needs a file system that every node sees (option shared); served are {served}"
            )
        if request.source_snapshot is not None or request.source_volume is not None:
            raise Unsupported("directories cannot be made from a snapshot or from another volume")
        if request.mount_options:
            raise InvalidArgument(f"mountOptions {list(request.mount_options)}: a directory has none; remove them")
        if request.capacity_bytes < 1:
            raise InvalidArgument(f"capacity {request.capacity_bytes} must be at least 1 byte")
        if request.limit_bytes is not None and request.limit_bytes < request.capacity_bytes:
            raise InvalidArgument(f"limit {request.limit_bytes} is less than the request {request.capacity_bytes}")

    def _delete_owned(self, root: Root, name: str, volume: VolumeIdentity, context: Context) -> bool:
        if not entry_exists(marker_file(name), root.directory(VOLUMES)):
            delete_unmarked(root, name, volume)
            return True
        marker = _owned_marker(root, name, volume)
        handle = Handle.parse(volume.handle)
        if handle is not None and handle.generation != marker.owner.generation:
            return True  # Another generation has taken the name: this one is gone.
        return delete_marked(root, self._ledger, marker, context)

    def _path_to_scrub(self, root: Root, volume: VolumeIdentity, context: Context) -> str:
        if volume.owner is None:
            path = static_path(volume.source, root)
            refuse_not_static(root, self._ledger, path, context)
            return path
        _check_root(root, volume)
        return _owned_marker(root, _name_of(volume), volume).path


def _marker(root: Root, name: str) -> VolumeMarker | None:
    try:
        return read_volume_marker(root, name)
    except CorruptMarker as error:
        raise Unavailable(
            f"{root.path}/{CONTROL}/{VOLUMES}/{marker_file(name)} cannot be used: {error}; restore or repair it"
        ) from error


def _present_marker(root: Root, name: str, volume: VolumeIdentity) -> VolumeMarker:
    marker = _marker(root, name)
    if marker is None:
        raise NotFound(f"{volume.name} has no marker under root {root.path}: it is gone or was never made here")
    return marker


def _owned_marker(root: Root, name: str, volume: VolumeIdentity) -> VolumeMarker:
    marker = _present_marker(root, name, volume)
    if volume.owner is None or not marker.belongs_to(volume.owner):
        raise AlreadyExists(
            f"{root.path}/{marker.path} belongs to claim {marker.owner.claim_uid} of cluster "
            f"{marker.owner.cluster_id!r}, not to {volume.name}: it is not touched"
        )
    return marker


def _name_of(volume: VolumeIdentity) -> str:
    """Under which name the volume was made."""
    handle = Handle.parse(volume.handle)
    if handle is not None:
        return check_name(handle.volume_name)
    return check_name(volume.owner.volume_name if volume.owner else volume.name)


def _check_root(root: Root, volume: VolumeIdentity) -> None:
    """A volume of another root is not gone, it is elsewhere."""
    handle = Handle.parse(volume.handle)
    if handle is not None and handle.root_id != root.id:
        raise Unavailable(
            f"{handle.volume_name} lies on the root with id {handle.root_id}, at {root.path} is {root.id}: mount the "
            "disk it lies on"
        )
