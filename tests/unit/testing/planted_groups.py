"""Backends with one mistake each about groups of snapshots, and the rule that each breaks."""

from __future__ import annotations

from dataclasses import replace

from volplane import (
    Absent,
    DeleteGroupSnapshotRequest,
    Done,
    FindGroupSnapshotRequest,
    GroupSnapshot,
    GroupSnapshotRequest,
    NotFound,
    hookimpl,
)
from volplane_testing.memory import MemoryBackend


class CutsGroupsAgain(MemoryBackend):
    """An equal demand cuts a second time."""

    @hookimpl
    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        for made in self.storage.snapshots.values():
            made.group = "" if made.group == request.name else made.group
        return super().create_group_snapshot(request)


class CutsOneAfterTheOther(MemoryBackend):
    @hookimpl
    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        group = super().create_group_snapshot(request)
        for number, member in enumerate(group.snapshots):
            made = self.storage.snapshots[member.handle]
            made.created_at = min(made.created_at, group.snapshots[0].created_at or 0.0) + 60.0 * number
        return self._group(group.handle, None) or group


class ComparesNoMembers(MemoryBackend):
    @hookimpl
    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        return self._group(request.name, request.owner) or super().create_group_snapshot(request)


class CutsWhatIsThere(MemoryBackend):
    """It refuses only once it has cut the others."""

    @hookimpl
    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        there = tuple(each for each in request.volumes if self.storage.by_handle(each.handle) is not None)
        group = super().create_group_snapshot(replace(request, volumes=there))
        if len(there) < len(request.volumes) and len(group.snapshots) < len(request.volumes):
            raise NotFound("an asset is gone")
        return group


class FindsGroupsForAnybody(MemoryBackend):
    @hookimpl
    def find_group_snapshot(self, request: FindGroupSnapshotRequest) -> GroupSnapshot | Absent:
        return super().find_group_snapshot(replace(request, owner=None))


class DeletesOneMember(MemoryBackend):
    @hookimpl
    def delete_group_snapshot(self, request: DeleteGroupSnapshotRequest) -> Done:
        kept = dict(self.storage.snapshots)
        result = super().delete_group_snapshot(request)
        gone = [handle for handle in kept if handle not in self.storage.snapshots]
        self.storage.snapshots.update({handle: kept[handle] for handle in gone[1:]})
        return result


class DeletesGroupsOfOthers(MemoryBackend):
    @hookimpl
    def delete_group_snapshot(self, request: DeleteGroupSnapshotRequest) -> Done:
        made = next((each for each in self.storage.snapshots.values() if each.group == request.handle), None)
        return super().delete_group_snapshot(replace(request, owner=made.owner if made is not None else None))


GROUP_BUGS: dict[type[MemoryBackend], str] = {
    CutsGroupsAgain: "a-group-is-made-once",
    CutsOneAfterTheOther: "all-snapshots-of-a-group-are-of-one-moment",
    ComparesNoMembers: "a-group-of-other-assets-is-refused",
    CutsWhatIsThere: "a-group-with-an-asset-that-is-gone-makes-nothing",
    FindsGroupsForAnybody: "find-group-snapshot-answers-with-the-group",
    DeletesOneMember: "delete-group-snapshot-removes-all-members",
    DeletesGroupsOfOthers: "delete-group-snapshot-refuses-the-group-of-others",
}
