"""Volumes that are a snapshot themselves, read only: no copy is made, and pods see the snapshot's own directory.

<share>/.volplane/snapshots/<name>/volumes/<volume name>    a volume that shows the snapshot

The marker of such a volume has the snapshot's directory as its path. It is made first, then the entry in `volumes`. A
deletion takes the marker away first, then the entry: whoever makes the entry looks for the marker afterwards. The
deletion of the snapshot removes the directory `volumes` first, which an entry prevents; without it no entry is made any
more. So neither needs a lock, and a snapshot is never removed under a volume.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from volplane import InvalidArgument, NotFound, ProvisionRequest, Unavailable, VolumeInUse
from volplane.directory import CONTROL, SnapshotHandle, SnapshotMarker, check_backing
from volplane_nfs.errors import printable
from volplane_nfs.exports import Exports, NoExports
from volplane_nfs.markers import SNAPSHOTS, VolumeMarker
from volplane_nfs.nfs4 import Status, values_of
from volplane_nfs.nfs4.files import FULL, MISSING, NO_SPACE, create_link, directory_handle, names, read_link
from volplane_nfs.nfs4.operations import PUTFH, REMOVE, RENAME, SAVEFH, Reply
from volplane_nfs.parameters import ClassParameters
from volplane_nfs.share import Handles, Share
from volplane_nfs.volumes import add_marker, read_marker

VOLUMES: Final = b"volumes"
_AGAIN: Final = 0.2
_MOST_NAMES: Final = 5


def provision_backed(
    share: Share,
    handles: Handles,
    request: ProvisionRequest,
    parameters: ClassParameters,
    *,
    exports: Exports | NoExports,
) -> VolumeMarker:
    """Make the marker and the entry of a volume that shows a snapshot. The export is not made here."""
    check_backing(request)
    snapshot = SnapshotHandle.parse(request.source_snapshot or "")
    if snapshot is None:
        raise NotFound(f"snapshot {request.source_snapshot} is none of this driver")
    wanted = VolumeMarker.new(request, parameters)
    wanted = replace(wanted, path=f"{CONTROL}/{SNAPSHOTS.decode()}/{snapshot.name}/data")
    marker = read_marker(share, handles.volumes, wanted.file)
    if marker is None:
        _require_source(share, handles, request, snapshot.name)
        _require_not_deleting(share, handles, wanted)
        marker = exports.prepare(share, handles, wanted)
        if not add_marker(share, handles, marker):
            exports.release(share, handles, marker)
            raise Unavailable(f"{request.name} is made by another call", retry_after=_AGAIN)
    marker.refuse_other_demand(request, wanted.demand)
    _enter(share, handles, marker, snapshot.name)
    return marker


def _require_source(share: Share, handles: Handles, request: ProvisionRequest, name: str) -> None:
    directory = directory_handle(share.client, handles.control, (SNAPSHOTS, name.encode()))
    known = None if directory is None else read_link(share.client, directory, b"marker")
    if known is None:
        raise NotFound(f"snapshot {name} is not on {share}: it is deleted")
    size = SnapshotMarker.decode(known).size_bytes
    if request.capacity_bytes < size:
        raise InvalidArgument(f"{request.name} is to have {request.capacity_bytes} bytes, snapshot {name} needs {size}")


def _require_not_deleting(share: Share, handles: Handles, wanted: VolumeMarker) -> None:
    for generation in range(1, wanted.owner.generation + 1):
        if read_marker(share, handles.volumes, f"{wanted.name}@{generation}".encode()) is not None:
            raise Unavailable(f"{wanted.name} is being deleted", retry_after=1.0)


def _volumes_of(share: Share, handles: Handles, snapshot: str) -> bytes | None:
    return directory_handle(share.client, handles.control, (SNAPSHOTS, snapshot.encode(), VOLUMES))


def _enter(share: Share, handles: Handles, marker: VolumeMarker, snapshot: str) -> None:
    volumes = _volumes_of(share, handles, snapshot)
    if volumes is None:
        raise NotFound(f"snapshot {snapshot} is not on {share}: it is deleted, or is being deleted")
    entry = create_link(marker.file, marker.claim.encode() or b"-")
    (reply,) = share.client.pipeline([[PUTFH(volumes), entry]])
    if reply.status in MISSING | {Status.STALE}:
        raise NotFound(f"snapshot {snapshot} is being deleted from {share}")
    if reply.status != Status.EXIST:
        values_of(reply)
    if read_marker(share, handles.volumes, marker.file) is None:
        share.client.pipeline([[PUTFH(volumes), REMOVE(marker.file)]])
        raise Unavailable(f"{marker.name} is being deleted", retry_after=_AGAIN)


def delete_backed(share: Share, handles: Handles, marker: VolumeMarker, exports: Exports | NoExports) -> bool:
    """Delete a volume that shows a snapshot; nothing of the snapshot is touched. Any step may be done."""
    exports.remove(marker)
    (reply,) = share.client.pipeline([[PUTFH(handles.volumes), SAVEFH(), RENAME(marker.file, marker.key)]])
    file = marker.file if reply.status in NO_SPACE else marker.key
    _allow(reply, MISSING | NO_SPACE)
    volumes = _volumes_of(share, handles, marker.backing)
    if volumes is not None:
        _allow(share.client.pipeline([[PUTFH(volumes), REMOVE(marker.file)]])[0], MISSING)
    exports.release(share, handles, marker)
    _allow(share.client.pipeline([[PUTFH(handles.volumes), REMOVE(file)]])[0], MISSING)
    return True


def _allow(reply: Reply, allowed: frozenset[int]) -> None:
    if reply.status not in allowed:
        values_of(reply)


def release_snapshot(share: Share, handles: Handles, snapshot: bytes, name: str) -> None:
    """Let no volume show a snapshot any more. snapshot: its directory. Raises `VolumeInUse` while one does."""
    volumes = directory_handle(share.client, snapshot, (VOLUMES,))
    if volumes is None:
        return
    users: list[str] = []
    for file in names(share.client, volumes):
        if read_marker(share, handles.volumes, file) is None:
            # A process ended that had made it behind a deletion. Another may make the volume again just now.
            _allow(share.client.pipeline([[PUTFH(volumes), REMOVE(file)]])[0], MISSING)
            if read_marker(share, handles.volumes, file) is None:
                continue
            _allow(share.client.pipeline([[PUTFH(volumes), create_link(file, b"-")]])[0], frozenset({Status.EXIST}))
        users.append(printable(file))
    (reply,) = share.client.pipeline([[PUTFH(snapshot), REMOVE(VOLUMES)]])
    if reply.status not in FULL:
        _allow(reply, MISSING)
        return
    users.sort()
    more = f" and {len(users) - _MOST_NAMES} more" if len(users) > _MOST_NAMES else ""
    raise VolumeInUse(
        f"snapshot {name} is shown, without a copy, by volume {', '.join(users[:_MOST_NAMES])}{more}: it is deleted "
        "once no volume shows it"
    )
