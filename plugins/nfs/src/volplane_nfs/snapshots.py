"""Snapshots: copies of volumes in `.volplane/snapshots/<name>/data`, each beside its `marker`.

A snapshot is made as `volplane_nfs.copies` says, gets its marker once it is whole, and is renamed to its place with it.
"""

from __future__ import annotations

import os
import time
from typing import Final

from volplane import (
    Context,
    DeleteSnapshotRequest,
    InProgress,
    NotFound,
    Snapshot,
    SnapshotPage,
    SnapshotRequest,
    Unavailable,
    read_parameters,
)
from volplane.directory import CopyParameters, CorruptMarker, SnapshotMarker
from volplane_nfs.archive import DATA, MARKER
from volplane_nfs.backing import VOLUMES, release_snapshot
from volplane_nfs.copies import COPY, Copies, Wanted, control_directory, remove_tree
from volplane_nfs.delete import empty_trash
from volplane_nfs.errors import printable
from volplane_nfs.markers import SNAPSHOTS, VolumeMarker
from volplane_nfs.nfs4 import Status, values_of
from volplane_nfs.nfs4.files import (
    FULL,
    MISSING,
    NO_SPACE,
    batches,
    create_link,
    directory_handle,
    make_directory,
    names,
    rename,
    several,
)
from volplane_nfs.nfs4.operations import LOOKUP, PUTFH, READLINK, REMOVE, Reply
from volplane_nfs.share import Handles, Share
from volplane_nfs.space import used_counts
from volplane_nfs.volumes import read_marker, text

PAGE = 5000
"""Snapshots of one page, at most."""
_PART: Final = 500
_PAGE_SECONDS: Final = 1.0
_AGAIN: Final = 0.1


def read_snapshot(share: Share, handles: Handles, name: str) -> SnapshotMarker | None:
    """Return the marker of a snapshot; None if there is none. Raises `CorruptMarker`, NfsError."""
    above = control_directory(share, handles, SNAPSHOTS, make=False)
    return None if above is None else _read(share, above, name.encode())


def _read(share: Share, above: bytes, name: bytes) -> SnapshotMarker | None:
    (reply,) = share.client.pipeline([[PUTFH(above), LOOKUP(name), LOOKUP(MARKER), READLINK()]])
    return _marker_in(reply)


def _marker_in(reply: Reply) -> SnapshotMarker | None:
    if reply.status in MISSING | {Status.NOTDIR, Status.SYMLINK}:
        return None
    if reply.status in {Status.INVAL, Status.WRONG_TYPE, Status.ISDIR}:
        raise CorruptMarker("it is no symbolic link")
    return SnapshotMarker.decode(values_of(reply)[-1])


def snapshot_data(share: Share, handles: Handles, name: str) -> bytes:
    """Return the handle of the directory with the data of a snapshot. Raises `NotFound`."""
    handle = directory_handle(share.client, handles.control, (SNAPSHOTS, name.encode(), DATA))
    if handle is None:
        raise NotFound(f"snapshot {name} is not on {share}: it is deleted")
    return handle


def make_snapshot(
    share: Share,
    handles: Handles,
    request: SnapshotRequest,
    volume: VolumeMarker,
    directory: bytes,
    *,
    copies: Copies,
    check_space: bool,
) -> Snapshot | InProgress:
    """Make a snapshot of a volume that is there, or go on with it. directory: handle of the volume's."""
    key = request.name.encode()
    container = copies.container(handles, key)
    marker = None if container is None else _read(share, copies_of(share, handles), key)
    if container is None or marker is None:
        wanted = Wanted(
            key=key,
            source=directory,
            path=volume.components,
            made_for={
                "snapshot": request.owner.snapshot_uid,
                "cluster": request.owner.cluster_id,
                "of": volume.key.decode(),
            },
            parameters=read_parameters(CopyParameters, request.parameters),
            label=text(share, volume.components),
            whole=used_counts(share, directory),
        )
        made = copies.work(handles, wanted, request.context, check_space=check_space)
        if isinstance(made, InProgress):
            return made
        if read_marker(share, handles.volumes, volume.file) is None:
            # A deletion began meanwhile: what was copied last may not be all of it.
            copies.discard(handles, key)
            raise NotFound(f"{volume.name} was deleted while it was copied")
        container = copies.container(handles, key)
        if container is None:
            raise Unavailable(f"{request.name} was removed while it was made", retry_after=_AGAIN)
        marker = SnapshotMarker(
            name=request.name,
            owner=request.owner,
            source=request.volume.handle,
            size_bytes=volume.capacity_bytes,
            created_at=round(time.time(), 3),
            counts=made,
        )
        share.client.compound(PUTFH(container), create_link(MARKER, marker.encode()))
    marker.refuse_other_demand(request.owner, request.volume.handle)
    copies.drop_links(handles, container)
    above = control_directory(share, handles, SNAPSHOTS, make=True)
    if above is None:
        raise Unavailable(f".volplane/{SNAPSHOTS.decode()} of {share} vanished while it was made", retry_after=_AGAIN)
    make_directory(share.client, container, VOLUMES, 0o700)
    share.client.pipeline([[PUTFH(container), REMOVE(COPY)]])
    (reply,) = share.client.pipeline([rename(copies_of(share, handles), key, above, key)])
    if reply.status in FULL:
        # Another call was quicker.
        copies.discard(handles, key)
    elif reply.status not in MISSING:
        values_of(reply)
    copies.forget(key)
    found = _read(share, above, key)
    if found is None:
        raise Unavailable(f"{request.name} was made and deleted meanwhile", retry_after=_AGAIN)
    found.refuse_other_demand(request.owner, request.volume.handle)
    return found.snapshot(handles.share_id)


def copies_of(share: Share, handles: Handles) -> bytes:
    """Return the handle of the directory of copies."""
    return control_directory(share, handles, b"copies", make=True) or b""


def delete_snapshot(share: Share, handles: Handles, name: str, request: DeleteSnapshotRequest) -> bool:
    """Remove a snapshot; False = not finished, call again. Raises `AlreadyExists`."""
    key = name.encode()
    above = control_directory(share, handles, SNAPSHOTS, make=False)
    marker = None if above is None else _read(share, above, key)
    if above is not None and marker is not None:
        marker.refuse_other_owner(request.owner, request.context.cluster_id)
        if (snapshot := directory_handle(share.client, above, (key,))) is not None:
            release_snapshot(share, handles, snapshot, name)
        (reply,) = share.client.pipeline([rename(above, key, handles.trash, key)])
        if reply.status in NO_SPACE:
            return remove_tree(share, handles, above, key)
        if reply.status not in MISSING:
            values_of(reply)
    return empty_trash(share, handles, key, name)


def snapshots_page(share: Share, handles: Handles, context: Context, page: str | None) -> SnapshotPage:
    """Return the snapshots of a share after the token, which is a name."""
    above = control_directory(share, handles, SNAPSHOTS, make=False)
    if above is None:
        return SnapshotPage(snapshots=())
    after, end = os.fsencode(page or ""), time.monotonic() + _PAGE_SECONDS
    found = sorted(name for name in names(share.client, above) if name > after)
    listed: list[Snapshot] = []
    for part in batches(found[:PAGE], _PART):
        reads = [[PUTFH(above), LOOKUP(name), LOOKUP(MARKER), READLINK()] for name in part]
        for name, reply in zip(part, several(share.client, reads), strict=True):
            try:
                marker = _marker_in(reply)
            except CorruptMarker as error:
                share.reports.warn(context.log, f"snapshot {printable(name)} on {share}", error)
                listed.append(SnapshotMarker.of_nobody(handles.share_id, printable(name)))
            else:
                listed += [marker.snapshot(handles.share_id)] if marker is not None else []
        after = part[-1]
        if time.monotonic() > end:
            break
    more = bool(found) and after != found[-1]
    return SnapshotPage(snapshots=tuple(listed), next_page=os.fsdecode(after) if more else None)
