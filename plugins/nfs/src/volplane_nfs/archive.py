"""Directories that a class keeps when their volumes are deleted: `.volplane/archive/<volume>@<generation>.<time>/data`.

Each is beside its marker, which names the claim and when the directory may go. The name holds time and a random number:
two archives never collide.
"""

from __future__ import annotations

import secrets
import time
from typing import Final

from volplane.directory import encode_fields
from volplane_nfs.markers import VolumeMarker
from volplane_nfs.nfs4 import Status, values_of
from volplane_nfs.nfs4.files import (
    MISSING,
    NotADirectory,
    create_directory,
    create_link,
    directory_handle,
    rename,
    walk,
)
from volplane_nfs.nfs4.operations import PUTFH, REMOVE, RENAME, SAVEFH
from volplane_nfs.share import Handles, Share
from volplane_nfs.volumes import is_directory, read_fields

_DATA: Final = b"data"
_MARKER: Final = b"marker"


def archive_directory(share: Share, handles: Handles, marker: VolumeMarker) -> None:
    """Move the directory of a volume into the archive. One that is missing has been moved by an earlier call."""
    path = marker.components
    (there,) = share.client.pipeline([walk(handles.root, path)])
    if there.status in MISSING:
        return
    retention = marker.demand.get("retention")
    now = time.time()
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    name = marker.key + f".{stamp}-{secrets.token_hex(4)}".encode()
    kept = encode_fields(
        {
            "path": marker.path,
            "claim": marker.claim,
            "archived_at": round(now, 3),
            "expires_at": None if retention is None else round(now + float(retention), 3),
        }
    )
    share.client.compound(PUTFH(handles.archive), create_directory(name, 0o700), create_link(_MARKER, kept))
    container = directory_handle(share.client, handles.archive, (name,))
    if container is None:
        return
    (reply,) = share.client.pipeline(
        [
            [
                *is_directory(handles.root, path),
                *walk(handles.root, path[:-1]),
                SAVEFH(),
                PUTFH(container),
                RENAME(path[-1], _DATA),
            ]
        ]
    )
    if reply.status:
        share.client.pipeline([[PUTFH(container), REMOVE(_MARKER)], [PUTFH(handles.archive), REMOVE(name)]])
    if reply.status in {Status.NOT_SAME, Status.NOTDIR, Status.SYMLINK}:
        raise NotADirectory(path[-1])
    if reply.status not in MISSING:
        values_of(reply)


def remove_expired(share: Share, handles: Handles, name: bytes) -> None:
    """Move an archive whose time is over to the trash, from where it is removed in slices. Raises `CorruptMarker`."""
    container = directory_handle(share.client, handles.archive, (name,))
    fields = None if container is None else read_fields(share, container, _MARKER)
    if fields is None:
        return
    expires_at = fields.get("expires_at")
    if isinstance(expires_at, int | float) and expires_at <= time.time():
        share.client.pipeline([rename(handles.archive, name, handles.trash, name)])
