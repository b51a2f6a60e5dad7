"""Subvolumes of btrfs: directories of which the file system makes a copy at one moment (btrfs-subvolume(8)).

Making one needs nothing but the right to write into the directory above; removing one with what is in it needs
CAP_SYS_ADMIN. Without that it is emptied like any other directory.
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Final

from volplane_hostpath.root import Root

_CREATE, _DESTROY, _SNAPSHOT = 0x5000940E, 0x5000940F, 0x50009417
_ARGUMENTS: Final = struct.Struct("=q4088s")
"""struct btrfs_ioctl_vol_args: descriptor, name."""
_ARGUMENTS_2: Final = struct.Struct("=qQQ32x4040s")
"""struct btrfs_ioctl_vol_args_v2: descriptor, transaction, flags, name."""
_READ_ONLY: Final = 1 << 1
_TOP: Final = 256
"""Inode of the top of each subvolume."""


def is_btrfs(root: Root) -> bool:
    """Return whether the root is on btrfs."""
    return root.mounts.kind(root.mount) == "btrfs"


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
