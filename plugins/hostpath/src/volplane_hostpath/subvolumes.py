"""Subvolumes of btrfs: directories of which the file system makes a copy at one moment (btrfs-subvolume(8)).

Making one needs nothing but the right to write into the directory above; removing one with what is in it needs
CAP_SYS_ADMIN. Without that it is emptied like any other directory.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from volplane.directory.dirfd import ioctl_alone
from volplane_hostpath.root import Root

_CREATE, _DESTROY, _SNAPSHOT = 0x5000940E, 0x5000940F, 0x50009417
_SYNC, _SUBVOLUME = 0x9408, 0x81F8943C
_GET_FLAGS, _SET_FLAGS = 0x80089419, 0x4008941A
_FLAGS: Final = struct.Struct("=Q")
_INFORMATION: Final = struct.Struct("=352xQ144x")
"""struct btrfs_ioctl_get_subvol_info_args: only `otransid`, the transaction in which it was made."""
_ARGUMENTS: Final = struct.Struct("=q4088s")
"""struct btrfs_ioctl_vol_args: descriptor, name."""
_ARGUMENTS_2: Final = struct.Struct("=qQQ32x4040s")
"""struct btrfs_ioctl_vol_args_v2: descriptor, transaction, flags, name."""
_READ_ONLY: Final = 1 << 1
_TOP: Final = 256
"""Inode of the top of each subvolume."""


def is_btrfs(root: Root) -> bool:
    """Return whether the root is on btrfs."""
    return root.kind == "btrfs"


def is_subvolume(root: Root, fd: int) -> bool:
    """Return whether an open directory is one."""
    return is_btrfs(root) and os.fstat(fd).st_ino == _TOP


def create(parent: int, name: str) -> None:
    """Make an empty one. Raises OSError."""
    _call(parent, _CREATE, _ARGUMENTS.pack(0, os.fsencode(name)))


def snapshot(source: int, parent: int, name: str, *, read_only: bool) -> None:
    """Make a copy of an open one. Raises OSError."""
    flags = _READ_ONLY if read_only else 0
    _call(parent, _SNAPSHOT, _ARGUMENTS_2.pack(source, 0, flags, os.fsencode(name)))


def make_read_only(fd: int) -> None:
    """Let nobody write into an open one any more. Raises OSError."""
    (flags,) = _FLAGS.unpack(fcntl.ioctl(fd, _GET_FLAGS, bytes(_FLAGS.size)))
    if not flags & _READ_ONLY:
        fcntl.ioctl(fd, _SET_FLAGS, _FLAGS.pack(flags | _READ_ONLY))


def snapshot_together(root: int, pairs: Sequence[tuple[int, int]], name: str, *, head_start: float) -> set[int]:
    """Make read-only copies of open ones, each (source, parent) in a directory of its own; return their transactions.

    Those of one transaction are of one moment: whatever was on the disk in one of them before something in another is
    in its copy. The kernel commits for each copy, and what asks meanwhile is committed next, all of it together: so a
    commit is begun first, and the copies are asked for so many seconds later, while it goes on. Raises OSError.
    """
    with ThreadPoolExecutor(len(pairs) + 1) as pool:
        ready = threading.Barrier(len(pairs) + 1)

        def cut(source: int, parent: int) -> None:
            arguments = _ARGUMENTS_2.pack(source, 0, _READ_ONLY, os.fsencode(name))
            ready.wait()
            time.sleep(head_start)
            ioctl_alone(parent, _SNAPSHOT, arguments)

        def commit() -> None:
            ready.wait()
            ioctl_alone(root, _SYNC, b"")

        for each in [pool.submit(commit), *(pool.submit(cut, source, parent) for source, parent in pairs)]:
            each.result()
    return {_made_in(parent, name) for _, parent in pairs}


def _made_in(parent: int, name: str) -> int:
    """Return the transaction in which a subvolume was made."""
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        told = bytearray(_INFORMATION.size)
        fcntl.ioctl(fd, _SUBVOLUME, told)
    finally:
        os.close(fd)
    made: int = _INFORMATION.unpack(told)[0]
    return made


def destroy(parent: int, name: str) -> bool:
    """Remove one with what is in it, which the file system does later; False if it is none, or cannot be removed so."""
    try:
        if os.stat(name, dir_fd=parent, follow_symlinks=False).st_ino != _TOP:
            return False
        _call(parent, _DESTROY, _ARGUMENTS.pack(0, os.fsencode(name)))
    except OSError:
        return False
    return True


def _call(parent: int, what: int, arguments: bytes) -> None:
    fcntl.ioctl(parent, what, bytearray(arguments))  # What cannot be written may have 1,024 bytes at most.
