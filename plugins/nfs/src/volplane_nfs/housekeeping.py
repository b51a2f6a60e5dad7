"""What no call waits for: leftovers of crashed calls. What cannot be read or removed is told once, and skipped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from volplane import BackendError, Context
from volplane.directory import CONTROL, CorruptMarker
from volplane_nfs.archive import remove_expired
from volplane_nfs.delete import SLICE, empty_trash
from volplane_nfs.errors import printable
from volplane_nfs.exports import Exports
from volplane_nfs.ganesha.export_ids import free_unused
from volplane_nfs.listing import read_markers
from volplane_nfs.markers import is_deleting
from volplane_nfs.nfs4 import NfsError
from volplane_nfs.nfs4.attributes import TIME_METADATA, mask_of
from volplane_nfs.nfs4.files import NotADirectory, entries, names
from volplane_nfs.nfs4.operations import LOOKUP, PUTFH, REMOVE
from volplane_nfs.share import Handles, Share
from volplane_nfs.volumes import directory_attributes, is_unfinished

_OLD: Final = 3600.0
"""Seconds after which a marker in tmp, and an Export_Id without a volume, are no one's any more."""


@contextmanager
def _skipping(share: Share, context: Context, entry: str) -> Iterator[None]:
    """Tell of what is wrong with an entry below `.volplane`, and go on."""
    try:
        yield
    except (BackendError, NfsError, NotADirectory, CorruptMarker) as error:
        share.reports.warn(context.log, f"{share}/{CONTROL}/{entry}", error)


def tidy_up(share: Share, handles: Handles, context: Context) -> None:
    """Remove what crashed calls and expired archives left, for at most `SLICE` seconds."""
    deadline = time.monotonic() + SLICE
    for name in names(share.client, handles.archive):
        with _skipping(share, context, f"archive/{printable(name)}"):
            remove_expired(share, handles, name)
    for entry in list(entries(share.client, handles.exports, mask_of(TIME_METADATA))):
        with _skipping(share, context, f"exports/{printable(entry.name)}"):
            if entry.name.isdigit() and _is_old(entry.attributes.get(TIME_METADATA)):
                free_unused(share, handles, entry.name)
    for entry in list(entries(share.client, handles.tmp, mask_of(TIME_METADATA))):
        if _is_old(entry.attributes.get(TIME_METADATA)):
            share.client.pipeline([[PUTFH(handles.tmp), REMOVE(entry.name)]])
    for key in names(share.client, handles.trash):
        if time.monotonic() >= deadline:
            return
        with _skipping(share, context, f"trash/{printable(key)}"):
            deleting, volume = share.client.pipeline(
                [[PUTFH(handles.volumes), LOOKUP(name)] for name in (key, key.partition(b"@")[0])]
            )
            if deleting.status and volume.status:
                empty_trash(share, handles, key, printable(key))


def repair_exports(share: Share, handles: Handles, exports: Exports, context: Context) -> None:
    """Make the exports again that are lost: with the folder of their files, by a power cut, or by hand."""
    with _skipping(share, context, "volumes"):
        files = exports.lost() if exports.complete else names(share.client, handles.volumes)
        found = read_markers(share, handles, [file for file in files if not is_deleting(file)])
        for marker in exports.learn(marker for _, marker in found if marker is not None):
            with _skipping(share, context, f"volumes/{marker.name}"):
                directory = directory_attributes(share, handles, marker.components)
                if directory is not None and not is_unfinished(directory[0], marker):
                    exports.ensure(share, handles, marker)
        exports.complete = True


def _is_old(changed: tuple[int, int] | None) -> bool:
    return changed is not None and changed[0] < time.time() - _OLD
