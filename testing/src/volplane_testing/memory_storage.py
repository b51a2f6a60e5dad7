"""The state of the backend in memory. It outlives the backend instances that use it, as a storage system would."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from volplane import Ownership, Segment, SnapshotOwnership, Unavailable

__all__ = ["MemoryAsset", "MemorySnapshot", "MemoryStorage"]


@dataclass(slots=True)
class MemoryAsset:
    """One asset. demand: what was asked, to tell an equal demand from another. ready_at: by the storage's clock.

    owner: None = it carries no marks; a user made it.
    """

    handle: str
    name: str
    owner: Ownership | None
    capacity_bytes: int
    demand: tuple[object, ...]
    segment: Segment | None = None
    ready_at: float = 0.0
    deleting_until: float | None = None
    contents: list[str] = field(default_factory=list)
    attached_to: list[str] = field(default_factory=list)
    modified: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class MemorySnapshot:
    """A snapshot, with what was in the asset at its moment."""

    name: str
    source: str
    """Handle of the asset."""
    owner: SnapshotOwnership | None
    size_bytes: int
    created_at: float
    ready_at: float = 0.0
    contents: list[str] = field(default_factory=list)
    segment: Segment | None = None
    group: str = ""
    """Handle of the group with which it was cut; "" = alone."""


class _Refusing(AbstractContextManager[object]):
    """In the place of the lock while the storage refuses every call."""

    def __enter__(self) -> NoReturn:
        raise Unavailable("the storage cannot be reached")

    def __exit__(self, *_: object) -> None:
        """Nothing was taken."""


@dataclass(slots=True)
class MemoryStorage:
    """The state of the storage. Use `assets` (by name) and `snapshots` (by handle) in assertions.

    delay: seconds that making and deleting take by `clock`, and that a snapshot takes to become ready; 0 = at once.
    now: Unix time of snapshots. largest: bytes of an asset.
    nodes: to which assets can be attached, most_attached: how many to one. zones: none =
    assets can be reached from every node. clones: as in `DriverInfo`. prefix: of handles; give the storages of one
    cluster different ones, since a handle names one disk.
    """

    capacity_bytes: int = 1 << 50
    largest: int | None = None
    delay: float = 0.0
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    nodes: Sequence[str] = ("node-1", "node-2", "node-3")
    most_attached: int | None = None
    zones: Sequence[str] = ()
    clones: Literal["", "in place", "anywhere"] = "in place"
    page: int = 100
    prefix: str = "memory"
    assets: dict[str, MemoryAsset] = field(default_factory=dict)
    snapshots: dict[str, MemorySnapshot] = field(default_factory=dict)
    made: int = 0
    """How many assets were ever made; part of their handles."""
    lock: AbstractContextManager[object] = field(default_factory=threading.RLock, repr=False, compare=False)
    """Held by whoever reads or changes something."""

    def by_handle(self, handle: str) -> MemoryAsset | None:
        """Return the asset with this handle."""
        return next((asset for asset in self.assets.values() if asset.handle == handle), None)

    def room(self) -> int:
        """Free bytes."""
        return self.capacity_bytes - sum(asset.capacity_bytes for asset in self.assets.values())

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Refuse every call while the block runs."""
        lock, self.lock = self.lock, _Refusing()
        try:
            yield
        finally:
            self.lock = lock

    def sweep(self) -> None:
        """Remove the assets whose deletion is due."""
        now = self.clock()
        for name, asset in list(self.assets.items()):
            if asset.deleting_until is not None and asset.deleting_until <= now:
                del self.assets[name]
