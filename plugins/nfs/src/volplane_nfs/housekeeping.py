"""What no call waits for: leftovers of crashed calls. What cannot be read or removed is told once, and skipped."""

from __future__ import annotations

import time
from typing import Final

from volplane import Context
from volplane.directory import RETAINED
from volplane_nfs.copies import COPIES, Copies
from volplane_nfs.delete import SLICE, empty_trash, remove_retained_markers
from volplane_nfs.errors import printable
from volplane_nfs.exports import Exports
from volplane_nfs.ganesha.export_ids import free_unused
from volplane_nfs.listing import read_markers
from volplane_nfs.markers import is_deleting
from volplane_nfs.nfs4.attributes import TIME_METADATA, mask_of
from volplane_nfs.nfs4.files import entries, names
from volplane_nfs.nfs4.operations import LOOKUP, PUTFH, REMOVE
from volplane_nfs.share import Handles, Share
from volplane_nfs.volumes import directory_attributes

_OLD: Final = 3600.0
"""Seconds after which a marker in tmp, and an Export_Id without a volume, are no one's any more."""


def tidy_up(share: Share, handles: Handles, copies: Copies, context: Context) -> None:
    """Remove what crashed calls left, for about `SLICE` seconds."""
    for entry in list(entries(share.client, handles.exports, mask_of(TIME_METADATA))):
        with share.skipping(context.log, f"exports/{printable(entry.name)}"):
            if entry.name.isdigit() and is_old(entry.attributes.get(TIME_METADATA)):
                free_unused(share, handles, entry.name)
    for entry in list(entries(share.client, handles.tmp, mask_of(TIME_METADATA))):
        if is_old(entry.attributes.get(TIME_METADATA)):
            share.client.pipeline([[PUTFH(handles.tmp), REMOVE(entry.name)]])
    with share.skipping(context.log, printable(COPIES)):
        copies.remove_abandoned(handles, is_old)
    with share.skipping(context.log, RETAINED):
        remove_retained_markers(share, handles, context.log)
    empty_leftovers(share, handles, context, time.monotonic() + SLICE)


def empty_leftovers(share: Share, handles: Handles, context: Context, deadline: float) -> None:
    """Remove what is in the trash and belongs to no volume, until the deadline (monotonic)."""
    for key in names(share.client, handles.trash):
        if time.monotonic() >= deadline:
            return
        with share.skipping(context.log, f"trash/{printable(key)}"):
            deleting, volume = share.client.pipeline(
                [[PUTFH(handles.volumes), LOOKUP(name)] for name in (key, key.partition(b"@")[0])]
            )
            if deleting.status and volume.status:
                empty_trash(share, handles, key, printable(key))


def repair_exports(share: Share, handles: Handles, exports: Exports, context: Context) -> None:
    """Make the exports again that are lost: with the folder of their files, by a power cut, or by hand."""
    with share.skipping(context.log, "volumes"):
        files = exports.lost() if exports.complete else names(share.client, handles.volumes)
        found = read_markers(share, handles, [file for file in files if not is_deleting(file)])
        for marker in exports.learn(marker for _, marker in found if marker is not None):
            with share.skipping(context.log, f"volumes/{marker.name}"):
                # One that is not finished, too: a pod may give its directory any mode, as postgres does.
                if directory_attributes(share, handles, marker.components) is not None:
                    exports.ensure(share, handles, marker)
        exports.complete = True


def is_old(changed: tuple[int, int] | None) -> bool:
    """Return whether nobody works any more on what was changed at this time."""
    return changed is not None and changed[0] < time.time() - _OLD
