"""A storage system that makes snapshots, and assets from snapshots and from other assets.

What is in an asset is a list of numbers, one for each write. A snapshot may take effect late, takes its time to become
ready, and some never do. It trusts its caller: it makes assets from snapshots that are not ready, with half of what
should be in them, and cuts under a name again whose snapshot is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from volplane import (
    Absent,
    AlreadyExists,
    DeleteSnapshotRequest,
    DescribeRequest,
    Done,
    DriverInfo,
    FindSnapshotRequest,
    GroupSnapshotRequest,
    InProgress,
    InvalidArgument,
    ListSnapshotsRequest,
    NotFound,
    ProvisionRequest,
    Snapshot,
    SnapshotOwnership,
    SnapshotPage,
    SnapshotRequest,
    hookimpl,
)
from volplane.errors import BackendError
from volplane_testing import clock
from volplane_testing.simulation.backends import BackendTraits, LookingBackend, Stored
from volplane_testing.simulation.chance import Chance

__all__ = ["Born", "CutSnapshot", "CuttingBackend"]

LONGEST_CUT: Final = 30.0
"""Seconds after which a cut that was answered with InProgress is made, whoever asks or not."""
R = TypeVar("R", SnapshotRequest, GroupSnapshotRequest)


@dataclass(frozen=True, slots=True)
class CutSnapshot:
    """A snapshot on the storage. ready: loop time. failed: it never is."""

    handle: str
    name: str
    source: str
    owner: SnapshotOwnership
    size: int
    contents: tuple[int, ...]
    created: float
    ready: float
    failed: bool
    group: str = ""
    """Handle of the group of which it is a member; "" = of none."""


@dataclass(frozen=True, slots=True)
class Born:
    """What an asset was made of: the handle of a snapshot or of an asset, and what was in it then."""

    snapshot: str
    volume: str
    contents: tuple[int, ...]


class CuttingBackend(LookingBackend):
    """Its snapshots and copies can be used everywhere."""

    def __init__(self, name: str, traits: BackendTraits, chance: Chance) -> None:
        super().__init__(name, traits, chance)
        self.snapshots: dict[str, CutSnapshot] = {}
        """By handle."""
        self.contents: dict[str, tuple[int, ...]] = {}
        """By handle of an asset."""
        self.born: dict[str, Born] = {}
        """By handle of an asset that was made of something."""
        self.cut: Callable[[CutSnapshot], None] = lambda _made: None
        self.dropped: Callable[[CutSnapshot], None] = lambda _made: None
        """Both are called at once."""
        self.is_kept: Callable[[str], bool] = lambda _name: False
        """Whether an object has the state of the InProgress that answered the request with this name."""
        self._cuts = 0
        self._used: set[str] = set()
        """Names of all snapshots that ever were."""

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return replace(super().describe(request), clones="anywhere")

    # --- snapshots ----------------------------------------------------------------------------------------------

    @hookimpl
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot | InProgress:
        self._check_fence(request.name, request.context)
        handle = request.volume.handle
        if (made := self._named(request.name)) is not None:
            if (made.owner, made.source) != (request.owner, handle):
                raise AlreadyExists(f"{made.handle} is of {made.source}, with the marks {made.owner}")
            return self._shown(made)
        about = f"{request.snapshot.namespace}/{request.snapshot.name} {self._cuts}"
        loop = asyncio.get_running_loop()
        if self._chance.strikes(f"{about} cut late", 2 * self.traits.late):
            self.listeners.trouble("storage: acts late")
            loop.call_later(self._chance.between(0.0, self.traits.settle * 0.9, f"{about} delay"), self._late, request)
            raise ConnectionError("the request was sent, and nothing came back")
        if self._is_long(f"{about} cut", request.context):
            self.listeners.trouble("storage: cuts later")
            self.cut_later(request, f"{about} later", self._late)
            return InProgress(retry_after=1.0, state={"cutting": handle})
        return self._shown(self._make_cut(request))

    @hookimpl
    def find_snapshot(self, request: FindSnapshotRequest) -> Snapshot | Absent:
        if request.name:
            self._check_fence(request.name, request.context)
        made = self.snapshots.get(request.handle) if request.handle else self._named(request.name)
        if made is None or (not request.handle and request.owner not in (None, made.owner)):
            return Absent()
        return self._shown(made)

    @hookimpl
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Done | InProgress:
        if (made := self.snapshots.get(request.handle)) is None:
            return Done()
        self._check_fence(made.name, request.context)
        if request.owner not in (None, made.owner):
            raise AlreadyExists(f"{made.handle} carries the marks {made.owner}")
        if self._is_long(f"{made.handle} goes", request.context):
            return InProgress(retry_after=1.0, state={"deleting": made.handle})
        del self.snapshots[made.handle]
        self.dropped(made)
        return Done()

    @hookimpl
    def list_snapshots(self, request: ListSnapshotsRequest) -> SnapshotPage:
        return SnapshotPage(snapshots=tuple(self._shown(made) for made in self.snapshots.values()))

    def is_ready(self, made: CutSnapshot) -> bool:
        return not made.failed and made.ready <= asyncio.get_running_loop().time()

    def write(self, handle: str, number: int) -> None:
        """Let a user write into an asset."""
        self.contents[handle] = (*self.contents.get(handle, ()), number)

    def _named(self, name: str) -> CutSnapshot | None:
        return next((made for made in self.snapshots.values() if made.name == name), None)

    def cut_later(self, request: R, about: str, cut: Callable[[R], None]) -> None:
        """Cut in a while: within `settle` seconds if nobody has kept the state with which the call goes on."""
        seconds, settled = self._chance.between(0.5, LONGEST_CUT, about), self.traits.settle * 0.9
        loop = asyncio.get_running_loop()

        def settle() -> None:
            loop.call_later(seconds - settled if self.is_kept(request.name) else 0.0, cut, request)

        if seconds > settled:
            loop.call_later(settled, settle)
        else:
            loop.call_later(seconds, cut, request)

    def _late(self, request: SnapshotRequest) -> None:
        if request.name not in self._used and request.volume.handle in self._memory.assets:
            self._make_cut(request)

    def _make_cut(self, request: SnapshotRequest) -> CutSnapshot:
        source = self._memory.assets.get(request.volume.handle)
        if source is None:
            raise NotFound(f"{request.volume.handle} does not exist")
        self._cuts += 1
        self._used.add(request.name)
        about, now = f"snapshot {self._cuts} of {self.name}", asyncio.get_running_loop().time()
        slow = self._chance.number(f"{about} slow") < 0.5
        made = CutSnapshot(
            handle=f"{self.root}/snapshots/{self._cuts}",
            name=request.name,
            source=source.handle,
            owner=request.owner,
            size=source.capacity,
            contents=self.contents.get(source.handle, ()),
            created=clock.now().timestamp(),
            ready=now + (self._chance.between(1.0, 60.0, f"{about} ready") if slow else 0.0),
            failed=self._chance.number(f"{about} fails") < 0.05,
        )
        self.snapshots[made.handle] = made
        self.cut(made)
        return made

    def _shown(self, made: CutSnapshot) -> Snapshot:
        return Snapshot(
            handle=made.handle,
            name=made.name,
            size_bytes=made.size,
            ready=self.is_ready(made),
            created_at=made.created,
            source=made.source,
            owner=made.owner,
            failed="its blocks cannot be read" if made.failed else "",
            retry_after=5.0,
        )

    # --- what is made from them ---------------------------------------------------------------------------------

    def _make(self, handle: str, zone: str, request: ProvisionRequest) -> Stored:
        born = self._born(request)
        stored = super()._make(handle, zone, request)
        self.contents[handle] = born.contents if born is not None else ()
        self.born.pop(handle, None)
        if born is not None:
            self.born[handle] = born
        return stored

    def _make_late(self, handle: str, zone: str, request: ProvisionRequest) -> None:
        try:
            super()._make_late(handle, zone, request)
        except BackendError:
            return  # Nobody hears of it.

    def _born(self, request: ProvisionRequest) -> Born | None:
        if request.source_snapshot is not None:
            made = self.snapshots.get(request.source_snapshot)
            if made is None:
                raise NotFound(f"snapshot {request.source_snapshot} does not exist")
            if made.size > request.capacity_bytes:
                raise InvalidArgument(f"snapshot {made.handle} has {made.size} bytes")
            whole = self.is_ready(made)
            return Born(made.handle, "", made.contents if whole else (*made.contents[:-1], 0))
        if request.source_volume is not None:
            source = self._memory.assets.get(request.source_volume)
            if source is None:
                raise NotFound(f"{request.source_volume} does not exist")
            return Born("", source.handle, self.contents.get(source.handle, ()))
        return None
