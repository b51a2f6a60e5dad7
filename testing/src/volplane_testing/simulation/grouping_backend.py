"""A storage system that cuts several assets at one moment: all of them or none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from volplane import (
    Absent,
    AlreadyExists,
    DeleteGroupSnapshotRequest,
    Done,
    FindGroupSnapshotRequest,
    GroupSnapshot,
    GroupSnapshotRequest,
    InProgress,
    NotFound,
    SnapshotOwnership,
    hookimpl,
)
from volplane_testing import clock
from volplane_testing.simulation.backends import BackendTraits
from volplane_testing.simulation.chance import Chance
from volplane_testing.simulation.cutting_backend import CutSnapshot, CuttingBackend

__all__ = ["GroupingBackend"]

_FAILED: Final = 0.05


class GroupingBackend(CuttingBackend):
    """Its snapshots of a group are ready one by one, some of them never. It cuts a group again whose snapshots are
    gone.
    """

    def __init__(self, name: str, traits: BackendTraits, chance: Chance) -> None:
        super().__init__(name, traits, chance)
        self.grouped: Callable[[list[CutSnapshot]], None] = lambda _made: None
        self.ungrouped: Callable[[list[CutSnapshot]], None] = lambda _made: None
        """Both are called at once, with the snapshots of a group."""
        self._groups = 0

    def members(self, group: str) -> list[CutSnapshot]:
        """Return the snapshots of a group, which is named by its handle."""
        return [made for made in self.snapshots.values() if made.group == group]

    @hookimpl
    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot | InProgress:
        self._check_fence(request.name, request.context)
        made = self.members(request.name)
        if made:
            wanted = {each.handle for each in request.volumes}
            if {each.source for each in made} != wanted or made[0].owner != request.owner:
                raise AlreadyExists(f"{request.name} is of {[each.source for each in made]}")
            return self._group(request.name, made)
        about, loop = f"{request.group.namespace}/{request.group.name} {self._groups}", asyncio.get_running_loop()
        if self._chance.strikes(f"{about} cut late", 2 * self.traits.late):
            self.listeners.trouble("storage: acts late")
            loop.call_later(self._chance.between(0.0, self.traits.settle * 0.9, f"{about} delay"), self._later, request)
            raise ConnectionError("the request was sent, and nothing came back")
        if self._is_long(f"{about} cut", request.context):
            self.listeners.trouble("storage: cuts later")
            self.cut_later(request, f"{about} later", self._later)
            return InProgress(retry_after=1.0, state={"cutting": request.name})
        return self._group(request.name, self._cut_group(request))

    @hookimpl
    def find_group_snapshot(self, request: FindGroupSnapshotRequest) -> GroupSnapshot | Absent:
        if request.name:
            self._check_fence(request.name, request.context)
        made = self.members(request.handle or request.name)
        if not made or (not request.handle and not _ours(made, request.owner)):
            return Absent()
        return self._group(made[0].group, made)

    @hookimpl
    def delete_group_snapshot(self, request: DeleteGroupSnapshotRequest) -> Done | InProgress:
        made = self.members(request.handle)
        if not made:
            return Done()
        self._check_fence(request.handle, request.context)
        if not _ours(made, request.owner):
            raise AlreadyExists(f"{request.handle} carries the marks {made[0].owner}")
        if self._is_long(f"{request.handle} goes", request.context):
            return InProgress(retry_after=1.0, state={"deleting": request.handle})
        for each in made:
            del self.snapshots[each.handle]
        self.ungrouped(made)
        return Done()

    def _later(self, request: GroupSnapshotRequest) -> None:
        there = all(each.handle in self._memory.assets for each in request.volumes)
        if request.name not in self._used and there:
            self._cut_group(request)

    def _cut_group(self, request: GroupSnapshotRequest) -> list[CutSnapshot]:
        for volume in request.volumes:
            if volume.handle not in self._memory.assets:
                raise NotFound(f"{volume.handle} does not exist")
        self._groups += 1
        self._used.add(request.name)
        made, now = list[CutSnapshot](), asyncio.get_running_loop().time()
        for number, volume in enumerate(request.volumes):
            about = f"member {number} of group {self._groups} of {self.name}"
            slow = self._chance.number(f"{about} slow") < 0.5
            made.append(
                CutSnapshot(
                    handle=f"{self.root}/snapshots/g{self._groups}-{number}",
                    name=f"{request.name}-{number}",
                    source=volume.handle,
                    owner=request.owner,
                    size=self._memory.assets[volume.handle].capacity,
                    contents=self.contents.get(volume.handle, ()),
                    created=clock.now().timestamp(),
                    ready=now + (self._chance.between(1.0, 60.0, f"{about} ready") if slow else 0.0),
                    failed=self._chance.number(f"{about} fails") < _FAILED,
                    group=request.name,
                )
            )
        self.snapshots.update({each.handle: each for each in made})
        self.grouped(made)
        return made

    def _group(self, handle: str, made: list[CutSnapshot]) -> GroupSnapshot:
        return GroupSnapshot(handle=handle, snapshots=tuple(map(self._shown, made)))


def _ours(made: list[CutSnapshot], owner: SnapshotOwnership | None) -> bool:
    return all(owner in (None, each.owner) for each in made)
