"""Directories that a class keeps when their volumes are deleted: `.volplane/archive/<volume>@<generation>.<time>/data`.

Each is beside its marker.
"""

from __future__ import annotations

from typing import Final

from volplane import Unavailable
from volplane.directory import ArchivedDirectory
from volplane_nfs.markers import LARGEST, VolumeMarker
from volplane_nfs.nfs4 import Status, values_of
from volplane_nfs.nfs4.files import (
    MISSING,
    NotADirectory,
    create_directory,
    create_link,
    directory_handle,
    walk,
)
from volplane_nfs.nfs4.operations import PUTFH, REMOVE, RENAME, SAVEFH
from volplane_nfs.share import Handles, Share
from volplane_nfs.volumes import leave_parent, text

DATA: Final = b"data"
MARKER: Final = b"marker"


def archive_directory(share: Share, handles: Handles, marker: VolumeMarker) -> None:
    """Move the directory of a volume into the archive. One that is missing has been moved by an earlier call."""
    path = marker.components
    (there,) = share.client.pipeline([walk(handles.root, path)])
    if there.status in MISSING:
        return
    archive = ArchivedDirectory.of(marker, marker.encode(), longest=LARGEST)
    name = archive.name.encode()
    leave = leave_parent(share, handles, path, more=3)
    if leave is None:
        return
    share.client.compound(PUTFH(handles.archive), create_directory(name, 0o700), create_link(MARKER, archive.content))
    container = directory_handle(share.client, handles.archive, (name,))
    if container is None:
        raise Unavailable(
            f"the archive of {text(share, path)} was removed while it was made; this call will be repeated"
        )
    (reply,) = share.client.pipeline([[*leave, SAVEFH(), PUTFH(container), RENAME(path[-1], DATA)]])
    if reply.status:
        share.client.pipeline([[PUTFH(container), REMOVE(MARKER)], [PUTFH(handles.archive), REMOVE(name)]])
    if reply.status in {Status.NOT_SAME, Status.NOTDIR, Status.SYMLINK}:
        raise NotADirectory(path[-1])
    values_of(reply)
    if archive.until is not None:
        share.archives_due = min(share.archives_due, archive.until)
