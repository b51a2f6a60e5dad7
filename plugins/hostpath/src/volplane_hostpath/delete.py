"""Delete."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress

from volplane import AlreadyExists, BackendError, Context, Unavailable, VolumeIdentity, VolumeInUse
from volplane_hostpath.dirfd import (
    closing,
    directory_exists,
    entry_exists,
    names_in,
    open_directory,
    open_path,
    remove_entry,
    split,
    sync,
)
from volplane_hostpath.index import Ledger
from volplane_hostpath.locks import Locks, TimeSlice
from volplane_hostpath.markers import VolumeMarker, marker_file
from volplane_hostpath.mounts import Mount, mounts_below, mounts_of, read_mounts
from volplane_hostpath.parent_directories import remove_empty_parents, remove_stale_entries
from volplane_hostpath.provision import discard_staged
from volplane_hostpath.rmtree import empty_container
from volplane_hostpath.root import CONTROL, LOCKS, TMP, TRASH, VOLUMES, Root
from volplane_hostpath.static_volumes import beneath_root, refuse_marked, refuse_parent, spellings, static_path

__all__ = [
    "STATIC_PREFIX",
    "delete_marked",
    "delete_static",
    "delete_unmarked",
    "empty_trash",
    "refuse_in_use",
    "refuse_mounts_below",
    "refuse_not_static",
    "static_key",
    "sweep",
    "volume_of",
]

STATIC_PREFIX = "static-"


def static_key(volume: VolumeIdentity) -> str:
    """Name in the trash, and of the lock, for a volume that a person made."""
    return STATIC_PREFIX + hashlib.sha256(f"{volume.name}/{volume.uid}".encode()).hexdigest()[:32]


def refuse_mounts_below(fd: int, label: str, mounts: list[Mount] | None = None) -> None:
    """Raise `VolumeInUse` if something is mounted in the directory. mounts: if they have been read already."""
    below = mounts_below(fd, read_mounts() if mounts is None else mounts)
    if below:
        raise VolumeInUse(f"{below[0]} is a mount point in the volume {label}: unmount it; nothing was removed")


def refuse_in_use(fd: int, label: str) -> None:
    """Raise `VolumeInUse` if something is mounted in the directory, or the directory is mounted elsewhere."""
    mounts = read_mounts()
    refuse_mounts_below(fd, label, mounts)
    used = mounts_of(fd, mounts)
    if used:
        raise VolumeInUse(f"{label} is mounted at {used[0]}: it is still in use; nothing was removed")


def delete_marked(root: Root, ledger: Ledger, marker: VolumeMarker, context: Context) -> bool:
    """Delete a volume of ours; False = not finished, call again. Needs the volume's lock."""
    patience = TimeSlice(context)
    _trash(root, marker.path, marker.key, context)
    if entry_exists(marker.key, root.directory(TMP)):
        # Never finished: it has no other name yet.
        _move(root, marker.key, root.directory(TMP), marker.key)
    if not empty_trash(root, marker.key, patience):
        return False
    with ledger.open(root, patience.left(), context.log):
        remove_empty_parents(root, marker.path)
        ledger.remove(root, marker.name)
    sync(root.directory(VOLUMES))
    return True


def delete_unmarked(root: Root, name: str, volume: VolumeIdentity) -> None:
    """Clean up after a volume of ours that has no marker (any more): it never was, or is gone.

    Raises `AlreadyExists` if its directory is there all the same: without a mark it is not ours to remove.
    """
    discard_staged(root, name)
    path = beneath_root(volume.source, spellings(root.path))
    if path is not None and directory_exists(path, root.fd, root.place, label=root.path):
        raise AlreadyExists(
            f"{root.path}/{path} exists but carries no mark of volume {volume.name}: it is not touched; remove it by "
            "hand if it is not needed"
        )


def delete_static(root: Root, ledger: Ledger, volume: VolumeIdentity, context: Context) -> bool:
    """Delete the directory of a volume that a person made; False = call again. Needs the lock of `static_key`."""
    key, path = static_key(volume), static_path(volume.source, root)
    refuse_not_static(root, ledger, path, context)
    _trash(root, path, key, context)
    return empty_trash(root, key, TimeSlice(context))


def refuse_not_static(root: Root, ledger: Ledger, path: str, context: Context) -> None:
    """Raise `AlreadyExists` if the path has to do with volumes that we made."""
    label = f"{root.path}/{path}"
    with ledger.open(root, TimeSlice(context).left(), context.log):
        refuse_marked(ledger, path, label)
        refuse_parent(root, path, label)


def _trash(root: Root, path: str, key: str, context: Context) -> None:
    """Move the directory at the path to the trash, if it is there."""
    label = f"{root.path}/{path}"
    parent, name = split(path)
    with suppress(FileNotFoundError), closing(open_path(parent, root.fd, root.place, label=root.path)) as above:
        with closing(open_directory(name, above, root.place, label=label, access=os.O_PATH)) as fd:
            refuse_in_use(fd, label)
        _move(root, name, above, key)
        sync(above)
        context.log.debug("%s is in the trash as %s", label, key)


def _move(root: Root, name: str, parent: int, key: str) -> None:
    trash = root.directory(TRASH)
    with suppress(FileExistsError):
        os.mkdir(key, 0o700, dir_fd=trash)
    with closing(open_directory(key, trash, root.place, label=_label(root, key))) as container:
        # A name of its own: an earlier attempt may have left something here.
        os.rename(name, os.urandom(8).hex(), src_dir_fd=parent, dst_dir_fd=container)


def _label(root: Root, key: str) -> str:
    return f"{root.path}/{CONTROL}/{TRASH}/{key}"


def empty_trash(root: Root, key: str, patience: TimeSlice) -> bool:
    """Remove what is in the trash under this key, which may be nothing; False = not finished."""
    trash = root.directory(TRASH)
    try:
        container = open_directory(key, trash, root.place, label=_label(root, key))
    except FileNotFoundError:
        return True
    with closing(container):
        refuse_in_use(container, _label(root, key))
        if not empty_container(container, root.place, label=_label(root, key), over=patience.over):
            return False
    with suppress(FileNotFoundError):
        os.rmdir(key, dir_fd=trash)
    return True


_PATIENCE = 0.05
"""Seconds to wait for a volume's lock: who holds it is at work on it and needs no sweeping."""


def volume_of(entry: str) -> str:
    """The volume to which an entry of tmp or trash belongs."""
    return entry.partition("@")[0] if "@" in entry else entry.removesuffix(marker_file(""))


def sweep(root: Root, ledger: Ledger, locks: Locks, context: Context) -> None:
    """Remove from tmp and trash what belongs to no volume, as far as time allows. Never raises a `BackendError`."""
    patience = TimeSlice(context)
    try:
        with ledger.open(root, patience.left(), context.log):
            remove_stale_entries(root)
    except (BackendError, OSError) as error:
        context.log.warning("cannot tidy up %s: %s", root.path, error)
    for place in (TMP, TRASH):
        for entry in names_in(root.directory(place)):
            if patience.over():
                return
            if _is_wanted(root, entry):
                continue
            try:
                with locks.hold(_lock_name(entry), root.directory(LOCKS), _PATIENCE):
                    _sweep_entry(root, place, entry, patience)
            except Unavailable:
                context.log.debug("%s of %s is being worked on", entry, root.path)
            except (BackendError, OSError) as error:
                context.log.warning("cannot remove %s of %s yet: %s", entry, root.path, error)


def _lock_name(entry: str) -> str:
    return entry if entry.startswith(STATIC_PREFIX) else volume_of(entry)


def _is_wanted(root: Root, entry: str) -> bool:
    """The next provision or delete of this volume finishes it."""
    marker = marker_file(volume_of(entry))
    return entry != marker and entry_exists(marker, root.directory(VOLUMES))


def _sweep_entry(root: Root, place: str, entry: str, patience: TimeSlice) -> None:
    if _is_wanted(root, entry):
        return  # Its marker has come while we waited for the lock.
    if entry == marker_file(volume_of(entry)):
        # Nobody who holds the lock is about to put it in place.
        remove_entry(entry, root.directory(TMP))
    elif place == TMP:
        discard_staged(root, volume_of(entry))
    else:
        empty_trash(root, entry, patience)
