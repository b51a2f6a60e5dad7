"""Folders that are attached to one node at a time, and grow. Their marks say how large they are, and where they are."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from volplane_folders import ClassParameters, FoldersBackend, Marks

from volplane import (
    AlreadyExists,
    Asset,
    AssetPage,
    AttachedElsewhere,
    Attachment,
    AttachRequest,
    DeleteRequest,
    DescribeRequest,
    DetachRequest,
    Done,
    DriverInfo,
    ExpandRequest,
    ListRequest,
    NotFound,
    Ownership,
    Param,
    ParameterSchema,
    ProvisionRequest,
    Unsupported,
    VolumeIdentity,
    VolumeInUse,
    VolumeSource,
    hookimpl,
    read_parameters,
)
from volplane_testing.disks import DiskDirectory  # plays the node plugin

CSI_DRIVER = "shelf.example.com"


@dataclass(frozen=True)
class Options:
    """The options of a driver, in the configuration file."""

    root: Annotated[str, Param("Directory that holds the folders; it must exist.")]
    nodes: Annotated[tuple[str, ...], Param("Nodes that folders can be attached to.")]
    disks: Annotated[str, Param("Where `volplane dev --disks` looks for attached folders; empty: nowhere.")] = ""


class ShelfBackend(FoldersBackend):
    """FoldersBackend with `attach`, `detach` and `expand`."""

    options_schema = ParameterSchema.of(Options)

    def __init__(self, options: Mapping[str, Any]) -> None:
        settings = read_parameters(Options, options)
        super().__init__({"root": settings.root})
        self._nodes = settings.nodes
        self._disks = DiskDirectory(Path(settings.disks)) if settings.disks else None

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return replace(super().describe(request), csi_driver_name=CSI_DRIVER, attach_required=True)

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset:
        if request.source_snapshot or request.source_volume:
            raise Unsupported("folders cannot be made from a snapshot or from another volume")
        wanted = {
            "owner": asdict(request.owner),
            "capacity_bytes": request.capacity_bytes,
            "colour": read_parameters(ClassParameters, request.parameters).colour,
        }
        with self._locked():
            marks = self._read(request.name)
            if marks is None:
                marks = {**wanted, "size_bytes": request.capacity_bytes, "node": ""}
                self._write(request.name, marks)
            elif {key: marks[key] for key in wanted} != wanted:
                raise AlreadyExists(f"folder {request.name} was made for another demand: {marks}")
            return self._made(request.name, marks)

    @hookimpl
    def attach(self, request: AttachRequest) -> Attachment:
        with self._locked():
            marks = self._owned(request.volume)
            if request.node.name not in self._nodes:
                raise NotFound(f"node {request.node.name} is none of {', '.join(self._nodes)}")
            if marks["node"] not in ("", request.node.name):
                raise AttachedElsewhere(f"it is attached to {marks['node']}", node=marks["node"])
            self._change(request.volume.handle, marks, node=request.node.name)
            return Attachment()

    @hookimpl
    def detach(self, request: DetachRequest) -> Done:
        with self._locked():
            marks = self._read(request.volume.handle)
            if marks is not None and marks["node"] == request.node.name:
                self._change(request.volume.handle, self._owned(request.volume), node="")
            return Done()

    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset:
        with self._locked():
            marks = self._owned(request.volume)
            if marks["size_bytes"] < request.capacity_bytes:
                marks = self._change(request.volume.handle, marks, size_bytes=request.capacity_bytes)
            return self._made(request.volume.handle, marks)

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done:
        with self._locked():
            if (marks := self._read(request.volume.handle)) is not None and marks["node"]:
                self._owned(request.volume)
                raise VolumeInUse(f"folder {request.volume.handle} is attached to {marks['node']}")
        done = super().delete(request)
        self._show()
        return done

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        listed = []
        for each in super().list_assets(request).assets:
            marks = self._read(each.handle) or {"size_bytes": each.capacity_bytes, "node": ""}
            nodes = (marks["node"],) if marks["node"] else ()
            listed.append(replace(each, capacity_bytes=marks["size_bytes"], attached_to=nodes))
        return AssetPage(assets=tuple(listed))

    def _owned(self, volume: VolumeIdentity) -> Marks:
        """Return the marks of the volume's folder. Raises NotFound, AlreadyExists if they are another claim's."""
        marks = self._read(volume.handle)
        if marks is None:
            raise NotFound(f"folder {volume.handle} does not exist")
        if volume.owner is None or Ownership(**marks["owner"]) != volume.owner:
            raise AlreadyExists(f"folder {volume.handle} was made for {marks['owner']}")
        return marks

    def _change(self, name: str, marks: Marks, **changes: Any) -> Marks:
        changed = {**marks, **changes}
        self._write(name, changed)
        self._show()
        return changed

    def _show(self) -> None:
        """Show what is attached to the pods of `volplane dev`."""
        if self._disks is not None:
            names = [path.stem for path in self.marks.glob("[!.]*.json")]
            nodes = {name: (self._read(name) or {}).get("node", "") for name in names}
            self._disks.show({name: [node] if node else [] for name, node in nodes.items()})

    def _made(self, name: str, marks: Marks) -> Asset:
        made = super()._made(name, marks)
        source = VolumeSource(kind="csi", fields={"driver": CSI_DRIVER, "volumeHandle": name})
        return replace(made, source=source, capacity_bytes=marks["size_bytes"])
