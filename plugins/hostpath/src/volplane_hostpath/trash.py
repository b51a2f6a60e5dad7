"""The trash: `.volplane/trash/<key>/`, into which directories are moved before they are removed."""

from __future__ import annotations

import os
from contextlib import suppress

from volplane import VolumeInUse
from volplane.directory import CONTROL
from volplane.directory.dirfd import closing, entry_exists, open_directory, printable
from volplane_hostpath import subvolumes
from volplane_hostpath.errors import NO_SPACE
from volplane_hostpath.locks import Deadline
from volplane_hostpath.mounts import IMAGE, Mount, loop_over, mounts_above, mounts_below, mounts_of
from volplane_hostpath.rmtree import empty_directory
from volplane_hostpath.root import TRASH, Root
from volplane_hostpath.subvolumes import is_btrfs


def refuse_mounts_below(mounts: list[Mount], fd: int, label: str) -> None:
    """Raise `VolumeInUse` if something is mounted in the directory. mounts: as of now."""
    below = mounts_below(fd, mounts)
    if below:
        raise VolumeInUse(f"{below[0]} is a mount point in the volume {label}: unmount it; nothing was removed")


def refuse_in_use(root: Root, fd: int, label: str) -> None:
    """Raise `VolumeInUse` if something is mounted in the directory, or the directory is mounted elsewhere."""
    mounts = root.mounts.current()
    refuse_mounts_below(mounts, fd, label)
    used = mounts_of(fd, mounts)
    if used:
        raise VolumeInUse(f"{label} is mounted at {used[0]}: it is still in use; nothing was removed")
    if entry_exists(IMAGE, fd) and (loop := loop_over(fd)):
        raise VolumeInUse(f"{label} is the block device {loop}: it is still in use; nothing was removed")


def refuse_mounted_above(root: Root, fd: int, label: str) -> None:
    """Raise `VolumeInUse` if a directory that contains this one, below the root, is mounted elsewhere."""
    used = mounts_above(fd, root.fd, root.mounts.current())
    if used:
        raise VolumeInUse(
            f"{label} lies in a directory that is mounted at {used[0]}, as the volume of a pod is: it is not touched"
        )


def remove_or_move(root: Root, name: str, parent: int, key: str, deadline: Deadline) -> bool:
    """Remove a directory if it is empty, or move it to the trash; False = not finished. It may be missing.

    Without space for the move it is emptied where it is: what gives space back must not need any.
    """
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError:
        pass  # Usually not empty.
    else:
        return True
    if is_btrfs(root) and subvolumes.destroy(parent, name):
        return True
    try:
        _move_into_trash(root, name, parent, key)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        label = f"{root.path}: {printable(name)}"
        with closing(open_directory(name, parent, root.mount, label=label)) as fd:
            if not empty_directory(fd, root.mount, label=label, should_stop=deadline.expired):
                return False
        os.rmdir(name, dir_fd=parent)
    return True


def _move_into_trash(root: Root, name: str, parent: int, key: str) -> None:
    trash = root.directory(TRASH)
    with suppress(FileExistsError):
        os.mkdir(key, 0o700, dir_fd=trash)
    with closing(open_directory(key, trash, root.mount, label=_label(root, key))) as container:
        # A new name: an earlier attempt may have left a directory here.
        os.rename(name, os.urandom(8).hex(), src_dir_fd=parent, dst_dir_fd=container)


def _label(root: Root, key: str) -> str:
    return f"{root.path}/{CONTROL}/{TRASH}/{key}"


def empty_trash(root: Root, key: str, deadline: Deadline) -> bool:
    """Remove what the trash holds under this key, if anything; False = not finished."""
    trash = root.directory(TRASH)
    try:
        container = open_directory(key, trash, root.mount, label=_label(root, key))
    except FileNotFoundError:
        return True
    with closing(container):
        refuse_in_use(root, container, _label(root, key))
        if not empty_directory(container, root.mount, label=_label(root, key), should_stop=deadline.expired):
            return False
    with suppress(FileNotFoundError):
        os.rmdir(key, dir_fd=trash)
    return True
