"""The hooks. Each takes the lock of the root and reads the marks; after a crash the next call continues."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from volplane import (
    Absent,
    AccessMode,
    AlreadyExists,
    Asset,
    AssetPage,
    BackendSpec,
    Capacity,
    CapacityRequest,
    DeleteRequest,
    DescribeRequest,
    Done,
    DriverInfo,
    Erased,
    ExpandRequest,
    FindRequest,
    InspectRequest,
    InvalidArgument,
    ListedAsset,
    ListRequest,
    NotFound,
    OutOfRange,
    Ownership,
    Param,
    ParameterKind,
    ParameterSchema,
    ProbeRequest,
    ProvisionRequest,
    RecycleRequest,
    ResourceExhausted,
    Segment,
    StartRequest,
    Unsupported,
    VolumeIdentity,
    VolumeInUse,
    VolumeMode,
    VolumeSource,
    hookimpl,
    read_parameters,
)
from volplane_loopfiles.images import Images, Marks
from volplane_loopfiles.loop_devices import attach_image, attached_to, detach_device, device_of, update_capacity

__all__ = ["LoopFilesBackend"]

NODE: Final = "kubernetes.io/hostname"
LARGEST: Final = 1 << 43
"""8 TiB: a file of ext4 has at most 16 TiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a driver."""

    root: Annotated[str, Param("Directory that holds the images, used by nothing else.", pattern="/.+")]
    node_name: Annotated[str, Param("Node that has the root; empty = this host's name.")] = ""
    devices: Annotated[
        bool, Param("Hand out loop devices; needs root. false: plain image files, as hostPath of type File.")
    ] = True
    reserve: Annotated[int, Param("Room to leave free for others.", kind=ParameterKind.SIZE, minimum=0)] = 0
    page: Annotated[int, Param("Assets on a page of the list.", minimum=1)] = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassParameters:
    """The parameters of a StorageClass."""

    fs_type: Annotated[
        Literal["ext4", "xfs"], Param("File system that the kubelet makes, for volumeMode Filesystem.", name="fsType")
    ] = "ext4"
    sparse: Annotated[bool, Param("Allocate blocks when they are written; they are promised all the same.")] = False


class LoopFilesBackend(BackendSpec):
    """Image files of one file system of a node, as loop devices, or as plain files where that is not permitted."""

    options_schema: ClassVar[ParameterSchema] = ParameterSchema.of(Options)

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Keep the options."""
        super().__init__(options)
        self._options = read_parameters(Options, options)
        self._images = Images(Path(self._options.root), self._options.reserve)
        self._node = self._options.node_name or socket.gethostname().lower()

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        """VolumeMode Block needs loop devices."""
        return DriverInfo(
            version="0.1.0",
            parameters=ParameterSchema.of(ClassParameters),
            topology_keys=(NODE,),
            access_modes=frozenset({AccessMode.READ_WRITE_ONCE, AccessMode.READ_WRITE_ONCE_POD}),
            volume_modes=frozenset(VolumeMode) if self._options.devices else frozenset({VolumeMode.FILESYSTEM}),
            maximum_bytes=LARGEST,
        )

    @hookimpl
    def start(self, request: StartRequest) -> Done:
        """Make the directories, and a loop device for every volume: loop devices do not survive a reboot."""
        if request.node_name:
            self._node = request.node_name
        self._images.prepare()
        with self._images.locked("give volumes their devices"):
            self._images.remove_half_made()
            for name in self._images.names() if self._options.devices else ():
                if self._images.image(name).exists():
                    self._images.set_link(name, attach_image(self._images.image(name)))
        return Done()

    @hookimpl
    def probe(self, request: ProbeRequest) -> Done:
        """Check that the root exists and can be locked."""
        with self._images.locked("lock the root"):
            return Done()

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset:
        """Make marks, image and device, as far as an earlier call has not."""
        self._check(request)
        with self._images.locked(f"make the image of {request.name}"):
            wanted = _marks_of(request)
            marks = self._images.read(request.name)
            if marks is None:
                marks = wanted
                self._images.require_room(request.capacity_bytes, f"make {request.name}")
                self._images.write(request.name, marks)
            elif (marks.owner, marks.demand) != (wanted.owner, wanted.demand):
                raise AlreadyExists(f"{request.name} was made for claim {marks.owner.claim_uid}, or for another demand")
            try:
                return self._complete(request.name, marks)
            except OSError as error:
                self._undo(request.name, error)
                raise

    def _check(self, request: ProvisionRequest) -> None:
        if request.source_snapshot or request.source_volume:
            raise Unsupported("images cannot be made from a snapshot or from another volume")
        if request.segment is not None and dict(request.segment) != self._segment():
            raise InvalidArgument(f"segment {dict(request.segment)} is out of reach, images are on {self._segment()}")
        if request.capacity_bytes > LARGEST:
            raise OutOfRange(f"capacity {request.capacity_bytes} is above {LARGEST} bytes, the largest image")

    def _undo(self, name: str, error: OSError) -> None:
        """Remove everything: the file system has no blocks for a new image."""
        self._release(name)
        self._images.remove(name)
        self._images.remove_marks(name)
        raise ResourceExhausted(f"image {name} could not be filled: {error.strerror}", nothing_done=True) from error

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        """Finish an interrupted provision of this owner."""
        with self._images.locked(f"look for {request.name}"):
            marks = self._images.read(request.name)
            if marks is None or marks.owner != request.owner:
                return Absent()
            if request.only_look and not self._images.image(request.name).exists():
                return Absent()
            return self._complete(request.name, marks)

    @hookimpl
    def inspect(self, request: InspectRequest) -> ListedAsset | Absent:
        """Look at the marks of an image."""
        name = request.handle
        with self._images.locked(f"look at {name}"):
            marks = self._images.read(name) if name in self._images.names() else None
            return Absent() if marks is None else replace(self._listed(name), source=self._source(name, marks))

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done:
        """Remove device, image and marks, in this order."""
        volume = request.volume
        with self._images.locked(f"remove {volume.handle}"):
            try:
                marks = self._owned(volume)
            except (NotFound, InvalidArgument):
                return Done()
            if volume.owner is not None and marks.owner.generation != volume.owner.generation:
                return Done()
            self._release(volume.handle)
            self._images.remove(volume.handle)
            self._images.remove_marks(volume.handle)
        return Done()

    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset:
        """Allocate blocks, then raise the size in the marks, then that of the device."""
        name = request.volume.handle
        with self._images.locked(f"grow {name}"):
            marks = self._owned(request.volume)
            if request.capacity_bytes > marks.capacity_bytes:
                if request.capacity_bytes > LARGEST:
                    raise OutOfRange(f"capacity {request.capacity_bytes} is above {LARGEST} bytes, the largest image")
                self._images.require_room(request.capacity_bytes - marks.capacity_bytes, f"grow {name}")
                marks = replace(marks, capacity_bytes=request.capacity_bytes)
                self._images.fill(name, marks)
                self._images.write(name, marks)
            asset = self._complete(name, marks)
            device = device_of(self._images.image(name)) if self._options.devices else None
            if device is not None:
                update_capacity(device)
            return asset

    @hookimpl
    def recycle(self, request: RecycleRequest) -> Erased:
        """Replace all blocks by new ones. The device is detached meanwhile, which drops its cached blocks."""
        name = request.volume.handle
        with self._images.locked(f"erase {name}"):
            marks = self._owned(request.volume)
            self._release(name)
            self._images.empty(name)
            self._complete(name, marks)
        return Erased()

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        """List volumes, and images without marks, by name. The page token is the last name."""
        with self._images.locked("list the images"):
            images_without_marks = set(self._images.images_without_marks())
            names = [
                n
                for n in sorted({*self._images.names(), *images_without_marks})
                if request.page is None or n > request.page
            ]
            taken = names[: self._options.page]
            assets = tuple(self._listed(name) for name in taken)
        return AssetPage(assets=assets, next_page=taken[-1] if len(names) > len(taken) else None)

    @hookimpl
    def get_capacity(self, request: CapacityRequest) -> Capacity:
        """Free bytes of this node; 0 for other nodes."""
        if request.segment is not None and dict(request.segment) != self._segment():
            return Capacity(available_bytes=0)
        with self._images.locked("ask for free room"):
            return Capacity(available_bytes=self._images.room(), maximum_volume_bytes=LARGEST)

    def _segment(self) -> Segment:
        return {NODE: self._node}

    def _complete(self, name: str, marks: Marks) -> Asset:
        """Make image and device as the marks say, as far as they are missing; returns the asset."""
        self._images.fill(name, marks)
        if self._options.devices:
            self._images.set_link(name, attach_image(self._images.image(name)))
        return Asset(
            handle=name,
            source=self._source(name, marks),
            capacity_bytes=marks.capacity_bytes,
            node_affinity=(self._segment(),),
        )

    def _source(self, name: str, marks: Marks) -> VolumeSource:
        if not self._options.devices:
            return VolumeSource(kind="hostPath", fields={"path": str(self._images.image(name)), "type": "File"})
        fields = {"path": str(self._images.link(name))}
        if marks.demand["volume_mode"] == VolumeMode.FILESYSTEM:
            fields["fsType"] = marks.demand["fs_type"]
        return VolumeSource(kind="local", fields=fields)

    def _release(self, name: str) -> None:
        """Detach the devices of an image. Raises VolumeInUse if one is in use, or without the option `devices`."""
        for device in attached_to(self._images.image(name)):
            if not self._options.devices:
                raise VolumeInUse(f"image {name} is in use as {device}: detach it; nothing was removed")
            detach_device(device, f"image {name}")

    def _owned(self, volume: VolumeIdentity) -> Marks:
        marks = self._images.read(volume.handle)
        if marks is None:
            raise NotFound(f"image {volume.handle} does not exist under {self._images.root}")
        if volume.owner is None or _identity(marks.owner) != _identity(volume.owner):
            raise AlreadyExists(
                f"image {volume.handle} carries the marks of claim {marks.owner.claim_uid}: it is not touched"
            )
        return marks

    def _listed(self, name: str) -> ListedAsset:
        marks = self._images.read(name)
        if marks is None:
            return ListedAsset(
                handle=name, name=name, capacity_bytes=self._images.image(name).stat().st_size, owner=None
            )
        return ListedAsset(handle=name, name=name, capacity_bytes=marks.capacity_bytes, owner=marks.owner)


def _identity(owner: Ownership) -> tuple[str, str, str]:
    return owner.cluster_id, owner.claim_uid, owner.volume_name


def _marks_of(request: ProvisionRequest) -> Marks:
    parameters = read_parameters(ClassParameters, request.parameters)
    demand = {
        "capacity_bytes": request.capacity_bytes,
        "access_modes": sorted(request.access_modes),
        "volume_mode": str(request.volume_mode),
        "fs_type": parameters.fs_type,
        "sparse": parameters.sparse,
    }
    return Marks(owner=request.owner, capacity_bytes=request.capacity_bytes, sparse=parameters.sparse, demand=demand)
