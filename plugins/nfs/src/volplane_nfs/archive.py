"""Directories that a class keeps when their volumes are deleted: `.volplane/archive/<volume>@<generation>.<time>/data`.

Each is beside its marker.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from volplane import Unavailable
from volplane.directory import ArchivedDirectory
from volplane_nfs.markers import LARGEST, VolumeMarker
from volplane_nfs.nfs4 import NfsError, Status, values_of
from volplane_nfs.nfs4.files import (
    FULL,
    MISSING,
    NotADirectory,
    create_directory,
    create_link,
    directory_handle,
    names,
    read_link,
    several,
    walk,
)
from volplane_nfs.nfs4.operations import GETFH, LOOKUP, PUTFH, REMOVE, RENAME, SAVEFH, Request
from volplane_nfs.share import Handles, Share
from volplane_nfs.volumes import leave_parent

DATA: Final = b"data"
MARKER: Final = b"marker"
_AGAIN: Final = 0.2


def archive_directory(share: Share, handles: Handles, marker: VolumeMarker, *, again: bool) -> None:
    """Move the directory of a volume into the archive. One that is missing has been moved by an earlier call.

    again: whether earlier calls may have made archives that are still without `data`.
    """
    path = marker.components
    (there,) = share.client.pipeline([walk(handles.root, path)])
    if there.status in MISSING:
        return
    if again:
        _remove_leftovers(share, handles, marker)
    archive = ArchivedDirectory.of(marker, marker.encode(), longest=LARGEST)
    name = archive.name.encode()
    leave = leave_parent(share, handles, path, more=3)
    if leave is None:
        return
    share.client.compound(PUTFH(handles.archive), create_directory(name, 0o700), create_link(MARKER, archive.content))
    container = directory_handle(share.client, handles.archive, (name,))
    if container is None:
        raise Unavailable(f"{marker.name} is archived by another call", retry_after=_AGAIN)
    (reply,) = share.client.pipeline([[*leave, SAVEFH(), PUTFH(container), RENAME(path[-1], DATA)]])
    if reply.status:
        share.client.pipeline([_removal(handles, name, marked=True)])
    if reply.status in {Status.NOT_SAME, Status.NOTDIR, Status.SYMLINK}:
        raise NotADirectory(path[-1])
    values_of(reply)
    if archive.until is not None:
        share.archives_due = min(share.archives_due, archive.until)


def _remove_leftovers(share: Share, handles: Handles, marker: VolumeMarker) -> None:
    """Remove the archives of a volume that calls made which were lost before they moved the directory."""
    client = share.client
    of_volume = [name for name in names(client, handles.archive) if name.startswith(marker.key + b".")]
    looks = several(client, [[PUTFH(handles.archive), LOOKUP(name), LOOKUP(DATA)] for name in of_volume])
    for name, look in zip(of_volume, looks, strict=True):
        if look.status not in MISSING:
            continue
        with suppress(NfsError):
            content = read_link(client, client.compound(*walk(handles.archive, (name,)), GETFH())[-1], MARKER)
            (reply,) = client.pipeline([_removal(handles, name, marked=content is not None)])
            if content is not None and reply.results[-1].operation is REMOVE and reply.status in FULL:
                # Another call has moved the directory into it meanwhile.
                client.pipeline([[*walk(handles.archive, (name,)), create_link(MARKER, content)]])


def _removal(handles: Handles, name: bytes, *, marked: bool) -> list[Request]:
    """Return the operations that remove an archive without `data`."""
    marker = [*walk(handles.archive, (name,)), REMOVE(MARKER)] if marked else []
    return [*marker, PUTFH(handles.archive), REMOVE(name)]
