"""Directories between the root and volumes. Only those that the driver made are used and removed.

Each has an entry in `.volplane/parents`. A directory that others made may be a volume itself: its users could
replace a volume in it by a symbolic link, and deleting it would delete both. All functions need the lock of the index.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

from volplane import AlreadyExists, BackendError, Unavailable
from volplane.directory import CONTROL, parent_key
from volplane.directory.dirfd import (
    ancestors,
    closing,
    create_file,
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
from volplane_hostpath.disk_waits import Target
from volplane_hostpath.index import VolumeIndex
from volplane_hostpath.root import PARENTS, Root

_MODE = 0o711


def is_ours(root: Root, path: str) -> bool:
    """Return whether the driver made this directory to hold volumes."""
    return entry_exists(parent_key(os.fsencode(path)), root.directory(PARENTS))


def refuse_foreign_parents(root: Root, path: str, *, used: bool) -> list[str]:
    """Raise `AlreadyExists` if a parent of the path exists that the driver did not make. Returns the missing ones.

    used: whether such parents are used, unless others than their owner may exchange what is in them.
    """
    parents = list(ancestors(path))
    while parents and not directory_exists(parents[-1], root.fd, root.mount, label=root.path):
        parents.pop()
    for above in parents:
        if is_ours(root, above):
            continue
        if not used:
            raise AlreadyExists(
                f"{root.path}/{above} exists and was not made by this driver; move it away or change pathTemplate"
            )
        with closing(open_path(above, root.fd, root.mount, label=root.path, access=os.O_PATH)) as fd:
            if os.fstat(fd).st_mode & 0o022:
                raise AlreadyExists(
                    f"{root.path}/{above} can be written by others than its owner, who could exchange volumes in it: "
                    "no volume is made there; take that away, as by chmod 0755"
                )
    return list(ancestors(path))[len(parents) :]


def register_parents(root: Root, missing: list[str]) -> None:
    """Write the entries of parents that are to be made. A directory without entry would count as foreign.

    While the index has a volume below a parent, its entry is not removed.
    """
    for path in missing:
        create_file(parent_key(os.fsencode(path)), root.directory(PARENTS), path.encode(), durable=False)


def entries_of(root: Root, path: str) -> list[Target]:
    """Return what must be on the disk before the parents of a path are made."""
    parents = root.directory(PARENTS)
    return [(parents, ""), *((parents, parent_key(os.fsencode(above))) for above in ancestors(path))]


def make_parent_directories(root: Root, path: str, *, used: bool) -> int:
    """Open the parent directory of a volume's path; makes what is missing. Returns its descriptor.

    The entries of missing ones are on the disk. Raises `AlreadyExists` as `refuse_foreign_parents` does.
    """
    parent, _ = split(path)
    if not refuse_foreign_parents(root, path, used=used):
        return open_path(parent, root.fd, root.mount, label=root.path)
    current = os.dup(root.fd)
    for above in ancestors(path):
        try:
            below = _open_or_make(root, above, current)
        finally:
            os.close(current)
        current = below
    return current


def _open_or_make(root: Root, path: str, parent: int) -> int:
    _, name = split(path)
    label = f"{root.path}/{path}"
    try:
        return open_directory(name, parent, root.mount, label=label)
    except FileNotFoundError:
        pass
    if not is_ours(root, path):
        raise Unavailable(f"{label} was removed while a volume was made in it; this call will be repeated")
    os.mkdir(name, _MODE, dir_fd=parent)
    return open_directory(name, parent, root.mount, label=label)


def remove_empty_parents(root: Root, path: str) -> None:
    """Remove the parents of a path that the driver made and that are empty. Their entries stay.

    A volume that is about to be moved into one makes it again.
    """
    for above in reversed(list(ancestors(path))):
        if not is_ours(root, above):
            return
        before, name = split(above)
        with suppress(FileNotFoundError), closing(open_path(before, root.fd, root.mount, label=root.path)) as fd:
            try:
                os.rmdir(name, dir_fd=fd)
            except FileNotFoundError:
                pass
            except OSError:
                # Usually not empty. After any other error an empty directory is left, which does no harm.
                return


def forget_parents(root: Root, index: VolumeIndex, path: str, *, counted: int) -> None:
    """Remove the entries of the parents of a path that are gone. Their removal is on the disk.

    Otherwise a directory would come back without its entry after a power failure. Those with more
    than `counted` volumes below stay.
    """
    for above in ancestors(path):
        if index.volumes_below(above) <= counted and not directory_exists(above, root.fd, root.mount, label=root.path):
            remove_entry(parent_key(os.fsencode(above)), root.directory(PARENTS))


def remove_stale_entries(root: Root, index: VolumeIndex, log: logging.Logger) -> None:
    """Remove entries of missing directories: a directory that is made there later must not count as ours."""
    parents = root.directory(PARENTS)
    for entry in names_in(parents):
        try:
            if _is_stale(root, index, entry):
                remove_entry(entry, parents)
        except (BackendError, OSError) as error:
            index.reports.warn(log, f"{root.path}/{CONTROL}/{PARENTS}/{printable(entry)}", error)


def _is_stale(root: Root, index: VolumeIndex, entry: str) -> bool:
    path = os.fsdecode(read_file(entry, root.directory(PARENTS)))
    if parent_key(os.fsencode(path)) != entry:
        return True  # A crash cut the entry short; its directory was never made.
    # A volume may be about to be moved into it.
    return not index.volumes_below(path) and not directory_exists(path, root.fd, root.mount, label=root.path)
