"""What is checked of snapshots and of sources before a cloud is asked, the same for each. Pure functions."""

from __future__ import annotations

from volplane.assets import Snapshot
from volplane.cloud.disks import GIB
from volplane.errors import AlreadyExists, BackendError, InvalidArgument, NotFound, Unavailable
from volplane.requests import SnapshotRequest

__all__ = ["refuse_other_snapshot", "refuse_smaller", "refuse_unusable"]


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
