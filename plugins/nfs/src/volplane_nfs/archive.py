"""Directories that a class keeps when their volumes are deleted: `.volplane/archive/<volume>@<generation>.<time>/data`.

Each is beside its marker, which holds what a volume needs that is restored from it, and when it may go. The name holds
time and a random number: two archives never collide. It ends with the time until which the archive is kept, so that no
marker is read before.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from typing import Any, Final

from volplane.directory import encode_fields
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
from volplane_nfs.volumes import leave_parent

DATA: Final = b"data"
MARKER: Final = b"marker"
ENDING: Final = re.compile(rb"\.(?:kept|until-(?P<until>[0-9]{1,15}))$")
_LONGEST: Final = 255


def archive_directory(share: Share, handles: Handles, marker: VolumeMarker) -> None:
    """Move the directory of a volume into the archive. One that is missing has been moved by an earlier call."""
    path = marker.components
    (there,) = share.client.pipeline([walk(handles.root, path)])
    if there.status in MISSING:
        return
    retention = marker.demand.get("retention")
    now = time.time()
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    until = None if retention is None else round(now + float(retention), 3)
    tail = f".{stamp}-{secrets.token_hex(4)}".encode() + ending(until)
    name = marker.key[: _LONGEST - len(tail)] + tail
    kept = {"path": marker.path, "claim": marker.claim, "archived_at": round(now, 3), "expires_at": until}
    volume = {key: value for key, value in marker.fields().items() if key not in kept}
    content = encode_fields({**kept, "volume": volume})
    if len(content) > LARGEST:
        content = encode_fields(kept)
    leave = leave_parent(share, handles, path, more=3)
    if leave is None:
        return
    share.client.compound(PUTFH(handles.archive), create_directory(name, 0o700), create_link(MARKER, content))
    container = directory_handle(share.client, handles.archive, (name,))
    if container is None:
        return
    (reply,) = share.client.pipeline([[*leave, SAVEFH(), PUTFH(container), RENAME(path[-1], DATA)]])
    if reply.status:
        share.client.pipeline([[PUTFH(container), REMOVE(MARKER)], [PUTFH(handles.archive), REMOVE(name)]])
    if reply.status in {Status.NOT_SAME, Status.NOTDIR, Status.SYMLINK}:
        raise NotADirectory(path[-1])
    if reply.status not in MISSING:
        values_of(reply)
    if until is not None:
        share.archives_due = min(share.archives_due, until)


def archived_volume(fields: Mapping[str, Any]) -> VolumeMarker | None:
    """Return the marker of the volume whose directory was archived, by the fields of the archive's; None if it does not
    hold one, as those of earlier versions, and those that would be too large.

    Raises `CorruptMarker`.
    """
    volume = fields.get("volume")
    if not isinstance(volume, dict):
        return None
    whole = {**volume, "path": fields.get("path"), "claim": fields.get("claim"), "export_id": None}
    return VolumeMarker.decode(encode_fields(whole))


def expires_at(fields: Mapping[str, Any]) -> float | None:
    """Return when an archive may go (Unix time), by the fields of its marker; None if a person has to remove it."""
    value = fields.get("expires_at")
    return float(value) if isinstance(value, int | float) else None


def ending(until: float | None) -> bytes:
    """Return the end of an archive's name."""
    return b".kept" if until is None else b".until-%d" % until
