"""Folders with snapshots: `snapshots/<name>/data` is a copy, `snapshots/<name>/marks.json` says whose, and of what."""

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from volplane_folders import ClassParameters, FoldersBackend, Marks

from volplane import (
    Absent,
    AlreadyExists,
    Asset,
    DeleteSnapshotRequest,
    DescribeRequest,
    Done,
    DriverInfo,
    FindSnapshotRequest,
    InvalidArgument,
    ListSnapshotsRequest,
    NotFound,
    ProvisionRequest,
    Snapshot,
    SnapshotOwnership,
    SnapshotPage,
    SnapshotRequest,
    StartRequest,
    hookimpl,
    read_parameters,
)


class SnapshotsBackend(FoldersBackend):
    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.snapshots = self.root / "snapshots"

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return replace(super().describe(request), clones="anywhere")

    @hookimpl
    def start(self, request: StartRequest) -> Done:
        super().start(request)
        self.snapshots.mkdir(exist_ok=True)
        with self._locked():
            for place in (self.snapshots, self.volumes):
                for unfinished in place.glob(".*"):  # by a process that died
                    shutil.rmtree(unfinished)
        return Done()

    # --- snapshots

    @hookimpl
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        with self._locked():
            cut = self._cut(request.name)
            if cut is None:
                source = self._read(request.volume.handle)
                if source is None:
                    raise NotFound(f"folder {request.volume.handle} does not exist")
                cut = {
                    "owner": asdict(request.owner),
                    "source": request.volume.handle,
                    "size_bytes": source["capacity_bytes"],
                    "created_at": time.time(),
                }
                self._copy(self._folder(request.volume.handle), self.snapshots / request.name, cut)
            elif (cut["owner"], cut["source"]) != (asdict(request.owner), request.volume.handle):
                raise AlreadyExists(f"snapshot {request.name} is of folder {cut['source']}, made for {cut['owner']}")
            return self._snapshot(request.name, cut)

    @hookimpl
    def find_snapshot(self, request: FindSnapshotRequest) -> Snapshot | Absent:
        name = request.handle or request.name
        with self._locked():
            cut = self._cut(name)
            if cut is None:
                return Absent()
            if not request.handle and request.owner is not None and cut["owner"] != asdict(request.owner):
                return Absent()
            return self._snapshot(name, cut)

    @hookimpl
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Done:
        with self._locked():
            cut = self._cut(request.handle)
            if cut is None:
                return Done()
            if request.owner is not None:
                ours = cut["owner"] == asdict(request.owner)
            else:  # of a content that a person wrote
                ours = cut["owner"]["cluster_id"] == request.context.cluster_id
            if not ours:
                raise AlreadyExists(f"snapshot {request.handle} was made for {cut['owner']}: it is not touched")
            doomed = (self.snapshots / request.handle).rename(self.snapshots / f".{request.handle}.old")
            shutil.rmtree(doomed)
            return Done()

    @hookimpl
    def list_snapshots(self, request: ListSnapshotsRequest) -> SnapshotPage:
        with self._locked():
            return SnapshotPage(snapshots=tuple(self._all()))

    def _all(self) -> Iterator[Snapshot]:
        for place in sorted(self.snapshots.glob("[!.]*")):
            cut = self._cut(place.name)
            if cut is not None:
                yield self._snapshot(place.name, cut)

    def _cut(self, name: str) -> Marks | None:
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            return None
        try:
            cut: Marks = json.loads((self.snapshots / name / "marks.json").read_text())
        except FileNotFoundError:
            return None
        return cut

    def _snapshot(self, name: str, cut: Marks) -> Snapshot:
        given = {**cut, "owner": SnapshotOwnership(**cut["owner"])}
        return Snapshot(handle=name, name=name, ready=True, **given)

    # --- what is made from them

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset:
        wanted = {
            "owner": asdict(request.owner),
            "capacity_bytes": request.capacity_bytes,
            "colour": read_parameters(ClassParameters, request.parameters).colour,
            "snapshot": request.source_snapshot,
            "volume": request.source_volume,
        }
        with self._locked():
            marks = self._read(request.name)
            if marks is None:
                self._require_source(request)
                marks = wanted
                self._write(request.name, marks)
            elif marks != wanted:
                raise AlreadyExists(f"folder {request.name} was made for another demand: {marks}")
            return self._made(request.name, marks)

    def _require_source(self, request: ProvisionRequest) -> None:
        if request.source_snapshot is not None:
            name, source = request.source_snapshot, self._cut(request.source_snapshot)
        elif request.source_volume is not None:
            name, source = request.source_volume, self._read(request.source_volume)
        else:
            return
        if source is None:
            raise NotFound(f"{name} does not exist, so nothing can be made from it")
        size = source.get("size_bytes") or source["capacity_bytes"]
        if request.capacity_bytes < size:
            raise InvalidArgument(f"{request.capacity_bytes} bytes were asked for, {name} has {size}")

    def _made(self, name: str, marks: Marks) -> Asset:
        folder = self._folder(name)
        if not folder.exists():
            if marks["snapshot"] is not None:
                self._copy(self.snapshots / marks["snapshot"] / "data", folder)
            elif marks["volume"] is not None:
                self._copy(self._folder(marks["volume"]), folder)
        return super()._made(name, marks)

    def _copy(self, source: Path, target: Path, cut: Marks | None = None) -> None:
        """Make a copy that is there whole or not at all; of a snapshot with its marks."""
        new = target.with_name(f".{target.name}.new")
        shutil.rmtree(new, ignore_errors=True)  # of an attempt that failed
        try:
            shutil.copytree(source, new / "data" if cut is not None else new, symlinks=True)
        except FileNotFoundError:
            raise NotFound(f"{source.name} is gone, so nothing can be made from it") from None
        if cut is not None:
            (new / "marks.json").write_text(json.dumps(cut))
        new.rename(target)
