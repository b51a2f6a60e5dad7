"""Backends with one mistake each about snapshots and copies, and the rule that each breaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from volplane import (
    Absent,
    Asset,
    DeleteRequest,
    DeleteSnapshotRequest,
    Done,
    FindSnapshotRequest,
    InProgress,
    InvalidArgument,
    ListSnapshotsRequest,
    NotFound,
    ProvisionRequest,
    Snapshot,
    SnapshotPage,
    SnapshotRequest,
    VolumeInUse,
    hookimpl,
)
from volplane_testing.memory import MemoryBackend
from volplane_testing.memory_storage import MemoryAsset, MemorySnapshot, MemoryStorage


class _Cuts(MemoryBackend):
    def named(self, name: str) -> tuple[str, MemorySnapshot] | None:
        return next((each for each in self.storage.snapshots.items() if each[1].name == name), None)


class CutsAgain(_Cuts):
    """An equal demand cuts a second time."""

    @hookimpl
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot | InProgress:
        if (there := self.named(request.name)) is not None:
            there[1].name = there[0]
        return super().create_snapshot(request)


class ComparesNoAsset(_Cuts):
    @hookimpl
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot | InProgress:
        there = self.named(request.name)
        return self._cut(*there) if there is not None else super().create_snapshot(request)


class CutsNothing(_Cuts):
    """An empty snapshot for whoever wanted what is gone."""

    @hookimpl
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot | InProgress:
        if self.storage.by_handle(request.volume.handle) is not None or self.named(request.name) is not None:
            return super().create_snapshot(request)
        made = MemorySnapshot(
            name=request.name, source=request.volume.handle, owner=request.owner, size_bytes=0, created_at=0.0
        )
        self.storage.snapshots["memory-snapshot-empty"] = made
        return self._cut("memory-snapshot-empty", made)


class CutsSnapshotNames(_Cuts):
    """The storage takes 60 characters."""

    @hookimpl
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot | InProgress:
        return super().create_snapshot(replace(request, name=request.name[:60]))

    @hookimpl
    def find_snapshot(self, request: FindSnapshotRequest) -> Snapshot | Absent:
        return super().find_snapshot(replace(request, name=request.name[:60]))


class FindsWithoutMarks(_Cuts):
    @hookimpl
    def find_snapshot(self, request: FindSnapshotRequest) -> Snapshot | Absent:
        found = super().find_snapshot(request)
        return replace(found, owner=None) if isinstance(found, Snapshot) and request.handle else found


class TellsTheTimeOfTheAnswer(_Cuts):
    def _cut(self, handle: str, made: MemorySnapshot) -> Snapshot:
        return replace(super()._cut(handle, made), created_at=self.storage.now())


class FindsSnapshotsForAnybody(_Cuts):
    @hookimpl
    def find_snapshot(self, request: FindSnapshotRequest) -> Snapshot | Absent:
        return super().find_snapshot(replace(request, owner=None))


class ParsesHandles(_Cuts):
    """What a person wrote wrong is an error, not an absence."""

    @hookimpl
    def find_snapshot(self, request: FindSnapshotRequest) -> Snapshot | Absent:
        if request.handle and not request.handle.startswith("memory-snapshot-"):
            raise InvalidArgument(f"{request.handle} is no snapshot of memory")
        return super().find_snapshot(request)


class DeletesTheChain(_Cuts):
    """Later snapshots of the asset build on it."""

    @hookimpl
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Done | InProgress:
        there = self.storage.snapshots.get(request.handle)
        result = super().delete_snapshot(request)
        if there is not None:
            chain = [handle for handle, made in self.storage.snapshots.items() if made.source == there.source]
            for handle in chain:
                del self.storage.snapshots[handle]
        return result


class MissesSnapshotsThatAreGone(_Cuts):
    @hookimpl
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Done | InProgress:
        if request.handle not in self.storage.snapshots:
            raise NotFound(f"snapshot {request.handle} does not exist")
        return super().delete_snapshot(request)


class DeletesSnapshotsOfOthers(_Cuts):
    @hookimpl
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Done | InProgress:
        there = self.storage.snapshots.get(request.handle)
        owner = there.owner if there is not None and request.owner is not None else request.owner
        return super().delete_snapshot(replace(request, owner=owner))


class TrustsContents(_Cuts):
    """Whoever writes a content may delete what it names."""

    @hookimpl
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Done | InProgress:
        there = self.storage.snapshots.get(request.handle)
        owner = request.owner or (there.owner if there is not None else None)
        return super().delete_snapshot(replace(request, owner=owner))


class ListsNoSources(_Cuts):
    @hookimpl
    def list_snapshots(self, request: ListSnapshotsRequest) -> SnapshotPage:
        page = super().list_snapshots(request)
        return replace(page, snapshots=tuple(replace(each, source="") for each in page.snapshots))


class CountsPagesOfSnapshots(_Cuts):
    """The token is a number of rows, which move while things come and go."""

    @hookimpl
    def list_snapshots(self, request: ListSnapshotsRequest) -> SnapshotPage:
        begin, handles = int(request.page or 0), list(self.storage.snapshots)
        cut = tuple(self._cut(each, self.storage.snapshots[each]) for each in handles[begin : begin + 3])
        return SnapshotPage(snapshots=cut, next_page=str(begin + 3) if len(handles) > begin + 3 else None)


class CutsItsListOfSnapshots(_Cuts):
    """It returns no more than the caller wants, and says nothing of the rest."""

    @hookimpl
    def list_snapshots(self, request: ListSnapshotsRequest) -> SnapshotPage:
        page = super().list_snapshots(request)
        return replace(page, next_page=None) if request.max_entries else page


class ComparesNoSource(_Cuts):
    """Whoever asks for an empty asset gets the copy of a snapshot."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        there = self.storage.assets.get(request.name)
        if there is not None and isinstance(restored := there.demand[5], str):
            request = replace(request, source_snapshot=restored)
        return super().provision(request)


class RestoresTheOldSize(_Cuts):
    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        there = self.storage.snapshots.get(request.source_snapshot or "")
        size = min(request.capacity_bytes, there.size_bytes) if there is not None else request.capacity_bytes
        return super().provision(replace(request, capacity_bytes=size))


class RestoresAPart(_Cuts):
    def _check(self, request: ProvisionRequest) -> None:
        there = self.storage.snapshots.get(request.source_snapshot or "")
        size = max(request.capacity_bytes, there.size_bytes) if there is not None else request.capacity_bytes
        super()._check(replace(request, capacity_bytes=size))


class SnapshotsDieWithTheirSource(_Cuts):
    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        result = super().delete(request)
        gone = [h for h, made in self.storage.snapshots.items() if made.source == request.volume.handle]
        for handle in gone:
            del self.storage.snapshots[handle]
        return result


class NeedsTheSourceLonger(_Cuts):
    """Until somebody asks for the snapshot it is a view of the asset."""

    def __init__(self, options: Mapping[str, Any], *, storage: MemoryStorage) -> None:
        super().__init__(options, storage=storage)
        self.unready: dict[str, str] = {}

    @hookimpl
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot | InProgress:
        known = self.named(request.name) is not None
        result = super().create_snapshot(request)
        assert isinstance(result, Snapshot)
        if not known:
            self.unready[result.handle] = request.volume.handle
        return replace(result, ready=known)

    @hookimpl
    def find_snapshot(self, request: FindSnapshotRequest) -> Snapshot | Absent:
        found = super().find_snapshot(request)
        self.unready.pop(getattr(found, "handle", ""), None)
        return found

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        for handle, source in self.unready.items():
            if source == request.volume.handle:
                self.storage.snapshots.pop(handle, None)
        return super().delete(request)


class CutsLater(_Cuts):
    """The snapshot is a view of the asset until it is used."""

    @hookimpl
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot | InProgress:
        result = super().create_snapshot(request)
        there, asset = self.named(request.name), self.storage.by_handle(request.volume.handle)
        assert there is not None
        if asset is not None:
            there[1].contents = asset.contents
        return result


class GivesTheSource(_Cuts):
    """A copy is the asset under another name."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        source = self.storage.by_handle(request.source_volume) if request.source_volume else None
        return self._seen(source) if source is not None else super().provision(request)


class CopiesBesideTheSource(_Cuts):
    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        source = self.storage.by_handle(request.source_volume) if request.source_volume else None
        segment = source.segment if source is not None else request.segment
        return super().provision(replace(request, segment=segment))


class CopiesNothing(_Cuts):
    """The copy is a view of its source."""

    def _copied(self, request: ProvisionRequest) -> list[str]:
        source = self.storage.by_handle(request.source_volume) if request.source_volume else None
        return source.contents if source is not None else super()._copied(request)


class LooksForTheSourceFirst(_Cuts):
    """Also when the copy was made long ago."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        if request.source_volume and self.storage.by_handle(request.source_volume) is None:
            raise NotFound(f"source volume {request.source_volume} does not exist", nothing_done=True)
        return super().provision(request)


class NeedsItsStateToCut(_Cuts):
    """Without the state of the last answer it cuts again, and what it had cut stays."""

    @hookimpl
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot | InProgress:
        if self.named(request.name) is not None:
            return super().create_snapshot(request)
        if "part" in request.context.state:
            there = self.storage.snapshots[request.context.state["part"]]
            there.name = request.name
            return super().create_snapshot(request)
        part = super().create_snapshot(replace(request, name=f"{request.name}-{self.storage.made}"))
        assert isinstance(part, Snapshot)
        return InProgress(retry_after=1.0, state={"part": part.handle})


class MarksCutsLast(_Cuts):
    @hookimpl
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot | InProgress:
        if self.named(request.name) is not None:
            return super().create_snapshot(request)
        super().create_snapshot(request)
        there = self.named(request.name)
        assert there is not None
        there[1].owner = None
        marks = request.owner
        handle, cut = there
        cut.owner = marks
        return self._cut(handle, cut)


class UnmarksCutsFirst(_Cuts):
    @hookimpl
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Done | InProgress:
        there = self.storage.snapshots.get(request.handle)
        if there is not None and there.owner == request.owner:
            there.owner = None
            del self.storage.snapshots[request.handle]
        return super().delete_snapshot(request)


class _ShowsSnapshots(MemoryBackend):
    """Assets of the colour "backing" are their snapshot itself."""

    def _seen(self, asset: MemoryAsset) -> Asset:
        shown = str(asset.demand[-2]) if ("colour", "backing") in cast("tuple[object, ...]", asset.demand[3]) else ""
        return replace(super()._seen(asset), backing_snapshot=shown)

    @hookimpl
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Done:
        self._refuse_shown(request.handle)
        return super().delete_snapshot(request)

    def _refuse_shown(self, handle: str) -> None:
        shown = [asset.name for asset in self.storage.assets.values() if self._seen(asset).backing_snapshot == handle]
        if shown:
            raise VolumeInUse(f"{handle} is shown by {shown}")


class DeletesSnapshotsUnderAssets(_ShowsSnapshots):
    def _refuse_shown(self, handle: str) -> None: ...


class DeletesShownSnapshotsWithAssets(_ShowsSnapshots):
    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        asset = self.storage.by_handle(request.volume.handle)
        if asset is not None and (shown := self._seen(asset).backing_snapshot):
            self.storage.snapshots.pop(shown, None)
        return super().delete(request)


SNAPSHOT_BUGS: dict[type[MemoryBackend], str] = {
    CutsAgain: "a-snapshot-is-made-once",
    ComparesNoAsset: "a-snapshot-of-another-asset-is-refused",
    CutsNothing: "a-snapshot-of-what-is-gone-is-not-found",
    CutsSnapshotNames: "the-longest-snapshot-name-works",
    FindsWithoutMarks: "find-snapshot-answers-with-the-snapshot",
    TellsTheTimeOfTheAnswer: "the-time-of-a-snapshot-is-its-moment",
    FindsSnapshotsForAnybody: "find-snapshot-does-not-show-the-snapshots-of-others",
    ParsesHandles: "find-snapshot-of-what-never-was-is-absent",
    DeletesTheChain: "delete-snapshot-removes-the-snapshot",
    MissesSnapshotsThatAreGone: "delete-snapshot-of-what-is-gone-is-done",
    DeletesSnapshotsOfOthers: "delete-snapshot-refuses-the-snapshot-of-others",
    TrustsContents: "a-content-that-a-person-wrote-deletes-nothing-of-another-cluster",
    ListsNoSources: "list-snapshots-shows-the-marks",
    CutsItsListOfSnapshots: "list-snapshots-shows-the-marks",
    CountsPagesOfSnapshots: "list-snapshots-is-complete-while-things-change",
    ComparesNoSource: "an-asset-is-made-from-a-snapshot",
    RestoresTheOldSize: "an-asset-from-a-snapshot-can-be-larger",
    RestoresAPart: "an-asset-smaller-than-its-snapshot-is-refused",
    SnapshotsDieWithTheirSource: "a-snapshot-outlives-its-source",
    DeletesSnapshotsUnderAssets: "a-snapshot-stays-under-assets-that-show-it",
    DeletesShownSnapshotsWithAssets: "a-snapshot-stays-under-assets-that-show-it",
    NeedsTheSourceLonger: "the-source-is-free-once-the-moment-has-passed",
    CutsLater: "an-asset-from-a-snapshot-has-the-data-of-its-moment",
    GivesTheSource: "an-asset-is-copied",
    CopiesBesideTheSource: "a-copy-is-made-in-the-place-asked-for",
    CopiesNothing: "a-copy-has-the-data-and-is-another",
    LooksForTheSourceFirst: "a-copy-outlives-its-source",
    NeedsItsStateToCut: "a-lost-answer-of-create-snapshot-is-resolved",
    MarksCutsLast: "a-crash-in-the-middle-of-create-snapshot-leaves-nothing-unseen",
    UnmarksCutsFirst: "a-crash-in-the-middle-of-delete-snapshot-is-finished",
}
