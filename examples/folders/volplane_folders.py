"""Volumes as folders under one root, each with a file of marks beside it that says whose it is."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from volplane import (
    Absent,
    AlreadyExists,
    Asset,
    AssetPage,
    BackendSpec,
    DeleteRequest,
    DescribeRequest,
    Done,
    DriverInfo,
    FindRequest,
    ListedAsset,
    ListRequest,
    NotFound,
    Ownership,
    Param,
    ParameterSchema,
    ProbeRequest,
    ProvisionRequest,
    StartRequest,
    Unavailable,
    Unsupported,
    VolumeSource,
    hookimpl,
    read_parameters,
)

__all__ = ["FoldersBackend"]

Marks = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """The options of a driver, in the configuration file."""

    root: Annotated[str, Param("Directory that holds the folders; it must exist.")]


@dataclass(frozen=True)
class ClassParameters:
    """The parameters of a StorageClass."""

    colour: Annotated[str, Param("Kept in the marks.")] = "grey"


class FoldersBackend(BackendSpec):
    """A directory with folders: `volumes/<name>` is what pods see, `marks/<name>.json` what was asked, and by whom."""

    options_schema = ParameterSchema.of(Options)

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.root = Path(read_parameters(Options, options).root)
        self.volumes = self.root / "volumes"
        self.marks = self.root / "marks"

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return DriverInfo(version="0.1.0", parameters=ParameterSchema.of(ClassParameters))

    @hookimpl
    def start(self, request: StartRequest) -> Done:
        self._require_root()
        self.volumes.mkdir(exist_ok=True)
        self.marks.mkdir(exist_ok=True)
        with self._locked():
            for half_written in self.marks.glob(".*.new"):  # by a process that died
                half_written.unlink()
        return Done()

    @hookimpl
    def probe(self, request: ProbeRequest) -> Done:
        self._require_root()
        return Done()

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
                marks = wanted
                self._write(request.name, marks)
            elif marks != wanted:
                raise AlreadyExists(f"folder {request.name} was made for another demand: {marks}")
            return self._made(request.name, marks)

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        with self._locked():
            marks = self._read(request.name)
            if marks is None or marks["owner"] != asdict(request.owner):
                return Absent()
            if request.only_look and not self._folder(request.name).exists():
                return Absent()
            return self._made(request.name, marks)

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done:
        name, owner = request.volume.handle, request.volume.owner
        if owner is None:
            raise Unsupported("this backend deletes only what it has made")
        with self._locked():
            marks = self._read(name)
            if marks is None:
                return Done()
            found = Ownership(**marks["owner"])
            if (found.cluster_id, found.claim_uid) != (owner.cluster_id, owner.claim_uid):
                raise AlreadyExists(f"folder {name} belongs to claim {found.claim_uid} of cluster {found.cluster_id}")
            if found.generation != owner.generation:
                return Done()
            if self._folder(name).exists():
                shutil.rmtree(self._folder(name))
            self._marks_of(name).unlink()
            return Done()

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        assets = []
        with self._locked():
            for name in sorted(path.name.removesuffix(".json") for path in self.marks.glob("[!.]*.json")):
                marks = self._read(name) or {}
                owner = Ownership(**marks["owner"])
                listed = ListedAsset(handle=name, name=name, capacity_bytes=marks["capacity_bytes"], owner=owner)
                assets.append(listed)
        return AssetPage(assets=tuple(assets))

    def _require_root(self) -> None:
        if not self.root.is_dir():
            raise Unavailable(f"{self.root} is no directory; mount its disk or change the option root")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock out other calls in all processes. The kernel frees the lock of a process that dies."""
        try:
            lock = (self.root / "lock").open("w")
        except FileNotFoundError:
            raise Unavailable(f"{self.root} is gone; mount its disk again") from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _folder(self, name: str) -> Path:
        return self.volumes / name

    def _marks_of(self, name: str) -> Path:
        if name in {"", ".", ".."} or "/" in name or "\0" in name:
            raise NotFound(f"{name!r} is no name of a folder")
        return self.marks / f"{name}.json"

    def _read(self, name: str) -> Marks | None:
        try:
            marks: Marks = json.loads(self._marks_of(name).read_text())
        except (FileNotFoundError, NotFound):
            return None
        return marks

    def _write(self, name: str, marks: Marks) -> None:
        """Write all or nothing, even if the machine stops."""
        new = self.marks / f".{name}.new"
        with new.open("w") as file:
            json.dump(marks, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._marks_of(name))

    def _made(self, name: str, marks: Marks) -> Asset:
        """Return the asset of these marks; its folder may be missing if a crash came between."""
        self._folder(name).mkdir(exist_ok=True)
        source = VolumeSource(kind="hostPath", fields={"path": str(self._folder(name)), "type": "Directory"})
        return Asset(handle=name, source=source, capacity_bytes=marks["capacity_bytes"])
