"""The hook `delete`: check that the volume is ours and unused, move it to the trash, empty that, remove the marker.

The marker is removed last: an interrupted deletion is continued by the next call, and the promised size is free only
when the space is. The end of the module removes what crashed calls left in tmp and trash.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from volplane import AlreadyExists, BackendError, Context, Unavailable, VolumeIdentity
from volplane.directory import ARCHIVE, CONTROL, RETAINED, CorruptMarker, entry_of, static_key
from volplane.directory.dirfd import (
    ancestors,
    closing,
    directory_exists,
    entry_exists,
    names_in,
    open_directory,
    open_path,
    printable,
    read_file,
    remove_entry,
    split,
)
from volplane_hostpath.copies import discard, is_abandoned
from volplane_hostpath.disk_waits import DiskWaits
from volplane_hostpath.index import VolumeIndex, read_volume_marker
from volplane_hostpath.locks import Deadline, Locks
from volplane_hostpath.markers import VolumeMarker, marker_file
from volplane_hostpath.parent_directories import forget_parents, remove_empty_parents, remove_stale_entries
from volplane_hostpath.provision import discard_staged, is_copy
from volplane_hostpath.root import COPIES, LOCKS, TMP, TRASH, VOLUMES, Root
from volplane_hostpath.static_volumes import (
    path_below_root,
    refuse_not_static,
    root_spellings,
    static_path,
)
from volplane_hostpath.trash import empty_trash, refuse_in_use, refuse_mounted_above, remove_or_move

STATIC_PREFIX = "static-"


def delete_marked(root: Root, index: VolumeIndex, waits: DiskWaits, marker: VolumeMarker, context: Context) -> bool:
    """Delete a volume that has a marker; False = not finished, call again. Needs the volume's lock."""
    deadline = Deadline(context)
    if not _take_away(root, marker.path, marker.entry, deadline):
        return False
    # It may never have been moved into place.
    place = root.directory(COPIES if is_copy(marker) else TMP)
    if not remove_or_move(root, marker.entry, place, marker.entry, deadline):
        return False
    with index.open(root, deadline.remaining(), context.log):
        remove_empty_parents(root, marker.path)
    # First wait: the directory leaves its place before its marker and the entries of its parents go. Otherwise it would
    # come back after a power failure as a foreign one.
    above = [(root.fd, parent) for parent in ancestors(marker.path)]
    waits.wait(root, [*above, (root.fd, ""), (root.directory(TRASH), ""), (root.directory(TRASH), marker.entry)])
    if not empty_trash(root, marker.entry, deadline):
        return False
    archived = marker.demand.get("on_delete") == ARCHIVE
    if marker.project is not None and not archived:
        with suppress(OSError):  # Without its directory the limit holds nobody, and the next owner sets its own.
            root.quotas.set_limit(root.fd, marker.project, 0)
    with index.open(root, deadline.remaining(), context.log):
        forget_parents(root, index, marker.path, counted=1)
        index.remove(root, marker.name)
        if archived:
            index.look_again()
    # Second wait: the volume stays deleted. An entry of a parent that comes back is removed by the next start.
    waits.wait(root, [(root.directory(VOLUMES), "")])
    return True


def holds_something(root: Root, marker: VolumeMarker) -> bool:
    """Return whether the directory of a volume is in its place, with something in it."""
    try:
        directory = open_path(marker.path, root.fd, root.mount, label=root.path)
    except FileNotFoundError:
        return False
    with closing(directory):
        return bool(names_in(directory))


def forget_marked(root: Root, index: VolumeIndex, waits: DiskWaits, marker: VolumeMarker, context: Context) -> None:
    """Take the marker of a volume whose directory stays out of the volumes. Needs the volume's lock."""
    with index.open(root, Deadline(context).remaining(), context.log):
        index.retain(root, marker)
    waits.wait(root, [(root.directory(RETAINED), ""), (root.directory(VOLUMES), "")])


def _is_retained(root: Root, volume: VolumeIdentity, path: str) -> bool:
    """Return whether an earlier call deleted this volume and left its directory at the path."""
    try:
        marker = VolumeMarker.decode(read_file(entry_of(volume), root.directory(RETAINED)))
    except (OSError, CorruptMarker):
        return False
    return marker.belongs_to(volume.owner) and marker.path == path


def remove_retained_markers(root: Root, index: VolumeIndex, log: logging.Logger) -> None:
    """Remove the markers of retained directories that are gone, or a volume's again. Needs the lock of the index."""
    if not entry_exists(RETAINED, root.control):
        return
    retained = root.directory(RETAINED)
    for entry in names_in(retained):
        try:
            marker = VolumeMarker.decode(read_file(entry, retained))
            again = index.volume_above(marker.path) is not None
            if again or not directory_exists(marker.path, root.fd, root.mount, label=root.path):
                remove_entry(entry, retained)
        except (BackendError, CorruptMarker, OSError) as error:
            index.reports.warn(log, f"{root.path}/{CONTROL}/{RETAINED}/{printable(entry)}", error)


def delete_unmarked(root: Root, index: VolumeIndex, name: str, volume: VolumeIdentity, context: Context) -> None:
    """Clean up after a volume without a marker: it was never made, or is deleted.

    Raises `AlreadyExists` if its directory exists all the same: a directory without marker is not removed.
    """
    discard_staged(root, name)
    remove_empty_marker(root, index, name, context)
    path = path_below_root(volume.source, root_spellings(root.path))
    if path is None or _is_retained(root, volume, path):
        return
    with index.open(root, Deadline(context).remaining(), context.log):
        if index.volume_above(path) is not None:
            return  # Another volume has taken over what this one left.
    if directory_exists(path, root.fd, root.mount, label=root.path):
        raise AlreadyExists(
            f"{root.path}/{path} exists but carries no mark of volume {volume.name}: it is not touched; remove it by "
            "hand if it is not needed"
        )


def remove_empty_marker(root: Root, index: VolumeIndex, name: str, context: Context) -> None:
    """Remove a marker that a power failure left without content. Needs the volume's lock."""
    if entry_exists(marker_file(name), root.directory(VOLUMES)) and read_volume_marker(root, name) is None:
        with index.open(root, Deadline(context).remaining(), context.log):
            index.remove(root, name)


def delete_static(root: Root, index: VolumeIndex, waits: DiskWaits, volume: VolumeIdentity, context: Context) -> bool:
    """Delete the directory of a static volume; False = not finished, call again. Needs the lock of `static_key`."""
    key, path = static_key(volume), static_path(volume.source, root)
    with index.open(root, Deadline(context).remaining(), context.log):
        # Moved under the lock of the index: nothing may be made there between the check and the move.
        refuse_not_static(root, index, path)
        if not _take_away(root, path, key, Deadline(context), static=True):
            return False
    waits.wait(root, [(root.fd, split(path)[0])])
    return empty_trash(root, key, Deadline(context))


def _take_away(root: Root, path: str, key: str, deadline: Deadline, *, static: bool = False) -> bool:
    """Remove the directory at the path or move it to the trash; False = not finished. It may be missing."""
    with above_unused(root, path, static=static) as above:
        return above is None or remove_or_move(root, split(path)[1], above, key, deadline)


@contextmanager
def above_unused(root: Root, path: str, *, static: bool = False) -> Iterator[int | None]:
    """Open the directory above the one at the path, which nobody uses; None = one of both is missing.

    What is missing later, such as the trash, is an error: it says nothing of the directory. Raises `VolumeInUse`.
    """
    label, (parent, name) = f"{root.path}/{path}", split(path)
    with ExitStack() as opened:
        above: int | None = None
        try:
            above = opened.enter_context(closing(open_path(parent, root.fd, root.mount, label=root.path)))
            directory = open_directory(name, above, root.mount, label=label, access=os.O_PATH)
        except FileNotFoundError:
            above = None
        else:
            with closing(directory):
                if static:
                    refuse_mounted_above(root, directory, label)
                refuse_in_use(root, directory, label)
        yield above


_LOCK_TIMEOUT = 0.05
"""Seconds to wait for a volume's lock. Whoever holds it handles the leftovers of the volume."""


def volume_of_entry(entry: str) -> str:
    """Return the volume to which an entry of tmp or trash belongs."""
    return entry.partition("@")[0] if "@" in entry else entry.removesuffix(marker_file(""))


def remove_leftovers(
    root: Root, index: VolumeIndex, locks: Locks, context: Context, deadline: Deadline | None = None
) -> None:
    """Remove entries of copies, tmp and trash that belong to no volume, until the deadline. Never raises a
    `BackendError`.

    Called at the end of `start` and before a listing: no other call would find these entries.
    """
    deadline = deadline or Deadline(context)
    empty: tuple[str, ...] = ()
    try:
        with index.open(root, deadline.remaining(), context.log):
            remove_stale_entries(root, index, context.log)
            remove_retained_markers(root, index, context.log)
            empty = index.empty
    except (BackendError, OSError) as error:
        index.reports.warn(context.log, root.path, f"it cannot be tidied up: {error}")
    for name in empty:
        with suppress(Unavailable, CorruptMarker), locks.hold(name, root.directory(LOCKS), _LOCK_TIMEOUT):
            remove_empty_marker(root, index, name, context)
    for place in (COPIES, TMP, TRASH):
        for entry in names_in(root.directory(place)):
            if deadline.expired():
                return
            if _has_marker(root, entry) or (place == COPIES and "@" not in entry and not is_abandoned(root, entry)):
                continue
            lock = entry if entry.startswith(STATIC_PREFIX) else volume_of_entry(entry)
            try:
                with locks.hold(lock, root.directory(LOCKS), _LOCK_TIMEOUT):
                    _remove_leftover(root, place, entry, deadline)
            except Unavailable:
                context.log.debug("%s of %s is being worked on", entry, root.path)
            except (BackendError, OSError) as error:
                label = f"{root.path}/{CONTROL}/{place}/{printable(entry)}"
                index.reports.warn(context.log, label, f"it cannot be removed: {error}")


def _has_marker(root: Root, entry: str) -> bool:
    """Return whether the entry belongs to a volume: its next provision or delete finishes it."""
    marker = marker_file(volume_of_entry(entry))
    return entry != marker and entry_exists(marker, root.directory(VOLUMES))


def _remove_leftover(root: Root, place: str, entry: str, deadline: Deadline) -> None:
    if _has_marker(root, entry):
        return  # Its marker was written while this thread waited for the lock.
    if entry == marker_file(volume_of_entry(entry)):
        # Under the lock no call is about to move it into place.
        remove_entry(entry, root.directory(TMP))
    elif place == COPIES:
        discard(root, entry, deadline)
    elif place == TMP:
        discard_staged(root, volume_of_entry(entry))
    else:
        empty_trash(root, entry, deadline)
