"""What is checked of snapshots and of sources before a cloud is asked, and when snapshots are looked at again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Generic, TypeVar

from volplane.assets import Snapshot
from volplane.cloud.disks import GIB
from volplane.cloud.polling import StatePoller
from volplane.cloud.turns import StateAges
from volplane.errors import AlreadyExists, BackendError, InvalidArgument, NotFound, Unavailable
from volplane.requests import SnapshotRequest

__all__ = ["SnapshotLooks", "refuse_other_snapshot", "refuse_smaller", "refuse_unusable"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_FIRST_LOOK = 5.0
_LONGEST_LOOK = 60.0


class SnapshotLooks(Generic[K, V]):
    """When snapshots that are not ready are looked at again: later the longer they take, many of them at once. Safe for
    threads.
    """

    def __init__(self, poller: StatePoller[K, V], clock: Callable[[], float]) -> None:
        """poller: by which they are read. clock: seconds, never going back."""
        self._poller = poller
        self._ages = StateAges(clock)

    def paced(self, shown: Snapshot, key: K) -> Snapshot:
        """Return the snapshot with the seconds until the next look, while it is not ready. key: of the poller."""
        if shown.ready or shown.failed:
            self._ages.reset(key, "")
            return shown
        pause = min(max(self._ages.seconds(key, "") / 4, _FIRST_LOOK), _LONGEST_LOOK)
        return replace(shown, retry_after=self._poller.next_poll(key, after=pause))


def refuse_other_snapshot(found: Snapshot, request: SnapshotRequest, source: str, *, belongs: bool) -> None:
    """Raise AlreadyExists unless the snapshot of this name was made for the request.

    source: handle of its volume. belongs: what `Marks.snapshot_belongs` says.
    """
    if found.source != source:
        raise AlreadyExists(
            f"snapshot {request.name} exists as {found.handle}, of {found.source or 'an unknown source'} instead of "
            f"{source}"
        )
    if not belongs:
        owner = found.owner
        whose = f"for {owner.content_name} of cluster {owner.cluster_id!r}" if owner else "without marks of an owner"
        raise AlreadyExists(f"snapshot {request.name} exists as {found.handle}, made {whose}: it is not taken")


def refuse_unusable(found: Snapshot | None, handle: str, size_gib: int) -> None:
    """Raise unless a disk of this size can be made from the snapshot: it is there, ready, and not larger."""
    if found is None:
        raise NotFound(f"snapshot {handle} does not exist (any more), or may not be seen by the driver")
    if found.failed:
        raise BackendError(f"snapshot {handle} cannot be restored: {found.failed}", code="failed")
    if not found.ready:
        state = f" ({found.state})" if found.state else ""
        raise Unavailable(
            f"snapshot {handle} is not ready{state}: the volume is made when it is", retry_after=found.retry_after
        )
    refuse_smaller(f"snapshot {handle}", found.size_bytes // GIB, size_gib)


def refuse_smaller(source: str, source_gib: int, size_gib: int) -> None:
    """Raise InvalidArgument if a disk of this size is smaller than what it is made from."""
    if size_gib < source_gib:
        raise InvalidArgument(
            f"{size_gib} GiB: {source} has {source_gib} GiB, and what is made from it must have at least the "
            f"{source_gib} GiB"
        )
