"""Directories between the root and volumes. Only those that the driver made are used and removed.

Each has an entry in `.volplane/parents`. A directory that somebody else made may be a volume itself: its users could
replace a volume in it by a symbolic link, and deleting it would delete both. All functions need the lock of the index.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress

from volplane import AlreadyExists
from volplane_hostpath.dirfd import (
    closing,
    create_file,
    directory_exists,
    entry_exists,
    names_in,
    open_directory,
    open_path,
    read_file,
    remove_entry,
    split,
    sync,
)
from volplane_hostpath.root import PARENTS, Root

__all__ = [
    "is_ours",
    "make_parent_directories",
    "refuse_foreign_parents",
    "remove_empty_parents",
    "remove_stale_entries",
]

_MODE = 0o711


def _entry(path: str) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:32]


def _ancestors(path: str) -> Iterator[str]:
    """The parents of a path, from the top: "a" and "a/b" of "a/b/c"."""
    parts = path.split("/")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts)))


def is_ours(root: Root, path: str) -> bool:
    """Whether the driver made this directory to hold volumes."""
    return entry_exists(_entry(path), root.directory(PARENTS))


def refuse_foreign_parents(root: Root, path: str) -> None:
    """Raise `AlreadyExists` if a parent of the path exists that the driver did not make."""
    for above in _ancestors(path):
        if not directory_exists(above, root.fd, root.mount, label=root.path):
            return
        if not is_ours(root, above):
            raise AlreadyExists(
                f"{root.path}/{above} exists and was not made by this driver; move it away or change pathTemplate"
            )


def make_parent_directories(root: Root, path: str) -> int:
    """Open the parent directory of a volume's path; makes what is missing. Returns its descriptor."""
    refuse_foreign_parents(root, path)
    current = os.dup(root.fd)
    for above in _ancestors(path):
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
    # The entry first: a directory without entry would count as foreign after a crash.
    create_file(_entry(path), root.directory(PARENTS), path.encode())
    sync(root.directory(PARENTS))
    os.mkdir(name, _MODE, dir_fd=parent)
    sync(parent)
    return open_directory(name, parent, root.mount, label=label)


def remove_empty_parents(root: Root, path: str) -> None:
    """Remove the parents of a path that the driver made and that are empty."""
    for above in reversed(list(_ancestors(path))):
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
            sync(fd)
        remove_entry(_entry(above), root.directory(PARENTS))


def remove_stale_entries(root: Root) -> None:
    """Remove entries of missing directories: a directory that somebody makes there later must not count as ours."""
    parents = root.directory(PARENTS)
    for entry in names_in(parents):
        path = os.fsdecode(read_file(entry, parents))
        # An entry that a crash cut short names another path; its directory was never made.
        if _entry(path) != entry or not directory_exists(path, root.fd, root.mount, label=root.path):
            remove_entry(entry, parents)
