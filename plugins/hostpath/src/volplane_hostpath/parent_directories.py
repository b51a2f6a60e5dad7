"""Directories above volumes. We use and remove only those that we made: each has an entry in `.volplane/parents`.

A directory that somebody else made may be a volume: whoever can write there could replace what lies in it by a
symbolic link, and it would go when that volume goes. Everything here happens inside the ledger.
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

__all__ = ["is_parent", "make_parents", "refuse_foreign_parents", "remove_empty_parents", "remove_stale_entries"]

_MODE = 0o711


def _entry(path: str) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:32]


def _ancestors(path: str) -> Iterator[str]:
    """From the top: "a" and "a/b" of "a/b/c"."""
    parts = path.split("/")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts)))


def is_parent(root: Root, path: str) -> bool:
    """Did we make this directory, to hold volumes?"""
    return entry_exists(_entry(path), root.directory(PARENTS))


def refuse_foreign_parents(root: Root, path: str) -> None:
    """Raise `AlreadyExists` if a directory above the path exists that we did not make."""
    for above in _ancestors(path):
        if not directory_exists(above, root.fd, root.place, label=root.path):
            return
        if not is_parent(root, above):
            raise AlreadyExists(
                f"{root.path}/{above} exists and was not made by this driver; move it away or change pathTemplate"
            )


def make_parents(root: Root, path: str) -> int:
    """Open the directory above a volume's path, making what is missing."""
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
        return open_directory(name, parent, root.place, label=label)
    except FileNotFoundError:
        pass
    # The entry first, so that no crash leaves a directory that we would later take for foreign.
    create_file(_entry(path), root.directory(PARENTS), path.encode())
    sync(root.directory(PARENTS))
    os.mkdir(name, _MODE, dir_fd=parent)
    sync(parent)
    return open_directory(name, parent, root.place, label=label)


def remove_empty_parents(root: Root, path: str) -> None:
    """Remove the directories above a volume that we made and that hold nothing any more."""
    for above in reversed(list(_ancestors(path))):
        if not is_parent(root, above):
            return
        before, name = split(above)
        with suppress(FileNotFoundError), closing(open_path(before, root.fd, root.place, label=root.path)) as fd:
            try:
                os.rmdir(name, dir_fd=fd)
            except FileNotFoundError:
                pass
            except OSError:
                # Not empty, most of the time; whatever it is, an empty directory does no harm.
                return
            sync(fd)
        remove_entry(_entry(above), root.directory(PARENTS))


def remove_stale_entries(root: Root) -> None:
    """Forget parents that are gone, so that a directory that somebody makes there later is not taken for ours."""
    parents = root.directory(PARENTS)
    for entry in names_in(parents):
        path = os.fsdecode(read_file(entry, parents))
        # An entry torn by a crash names no path; its directory was never made.
        if _entry(path) != entry or not directory_exists(path, root.fd, root.place, label=root.path):
            remove_entry(entry, parents)
