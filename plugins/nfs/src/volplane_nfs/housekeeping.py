"""What no call waits for: leftovers of crashed calls. What cannot be read or removed is told once, and skipped."""

from __future__ import annotations

import random
import time
from typing import Final

from volplane import Context
from volplane.directory import RETAINED, decode_fields
from volplane_nfs.copies import COPIES, Copies
from volplane_nfs.delete import SLICE, empty_trash, remove_empty_parents, remove_retained_markers
from volplane_nfs.errors import printable
from volplane_nfs.exports import Exports
from volplane_nfs.ganesha.export_ids import free_unused
from volplane_nfs.listing import read_markers
from volplane_nfs.markers import is_deleting, parent_file, parent_marker
from volplane_nfs.nfs4 import values_of
from volplane_nfs.nfs4.attributes import NUMLINKS, TIME_METADATA, mask_of
from volplane_nfs.nfs4.files import MISSING, Path, batches, create_link, entries, names, several, walk
from volplane_nfs.nfs4.operations import GETATTR, LOOKUP, PUTFH, REMOVE
from volplane_nfs.share import Handles, Share
from volplane_nfs.volumes import directory_attributes, read_request

_PART: Final = 500
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
    deadline = time.monotonic() + SLICE
    empty_leftovers(share, handles, context, deadline)
    _remove_parents(share, handles, context, deadline)


def _remove_parents(share: Share, handles: Handles, context: Context, deadline: float) -> None:
    """Remove directories above volumes that were made for a volume which never was, until the deadline (monotonic)."""
    keys = names(share.client, handles.parents)
    for part in batches(random.sample(keys, len(keys)), _PART):
        if time.monotonic() >= deadline:
            return
        found: list[Path] = []
        reads = several(share.client, [read_request(handles.parents, key) for key in part])
        for key, reply in zip(part, reads, strict=True):
            with share.skipping(context.log, f"parents/{printable(key)}"):
                path = tuple(str(decode_fields(values_of(reply)[-1]).get("path", "")).encode().split(b"/"))
                found += [path] if parent_file(path) == key else []
        looks = several(share.client, [[*walk(handles.root, path), GETATTR(mask_of(NUMLINKS))] for path in found])
        for path, look in zip(found, looks, strict=True):
            if time.monotonic() >= deadline:
                return
            key = parent_file(path)
            if look.status in MISSING:
                forget = [PUTFH(handles.parents), REMOVE(key), *walk(handles.root, path)]
                if not share.client.pipeline([forget])[0].status:  # It was made meanwhile.
                    share.client.pipeline([[PUTFH(handles.parents), create_link(key, parent_marker(path))]])
            elif not look.status and look.results[-1].value.get(NUMLINKS, 0) <= 2:
                # One without directories in it has two links, or one where they are not counted.
                remove_empty_parents(share, handles, (*path, b""))


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
