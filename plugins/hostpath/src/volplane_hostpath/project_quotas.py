"""Limits of volumes: project quotas, which xfs and ext4 have (ioctl_xfs_fssetxattr(2), quotactl(2)).

A directory gets the number of a project, which all that is made in it inherits, and the project gets a limit. What
statvfs(2) tells of the directory is then the limit and what is used of it, which is also what a kubelet measures.

The number comes from the volume's name, so that a repeated call finds it again. It is free if nothing is in the
project: the directory of a volume itself counts, so no index of numbers is needed, and other users of the file system
are seen too.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from volplane import ResourceExhausted, Unsupported

NONE, REQUIRED = "none", "required"
"""Values of the class parameter `quota`."""
BLOCK: Final = 1024
"""Bytes: limits are counted in these."""
_LOWEST, _NUMBERS = 1 << 24, (1 << 31) - (1 << 24)
"""Administrators give small numbers by hand."""
_TRIES: Final = 64
_NO_QUOTAS = frozenset({errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOSYS, errno.ESRCH, errno.EINVAL})
"""Errors of a file system or kernel without project quotas, or with quotas that are not switched on."""


class ProjectQuotas(Protocol):
    """What the kernel does. fd: an open directory. Raises OSError."""

    def set_project(self, fd: int, number: int) -> None:
        """Give a directory its project, which what is made in it inherits."""

    def used(self, fd: int, number: int) -> tuple[int, int]:
        """Return the bytes and inodes of the file system that are in the project."""

    def set_limit(self, fd: int, number: int, size: int) -> None:
        """Let the project have so many bytes, a multiple of `BLOCK`; 0 = any."""

    def size_of(self, fd: int) -> int:
        """Return the bytes that the directory can hold, as statvfs(2) tells."""


def numbers_for(name: str) -> Iterator[int]:
    """Yield the numbers that the project of a volume may have, the same for each call."""
    for attempt in range(_TRIES):
        digest = hashlib.sha256(f"{name}/{attempt}".encode()).digest()
        yield _LOWEST + int.from_bytes(digest[:8], "big") % _NUMBERS


def limit_for(capacity_bytes: int) -> int:
    """Return the limit of a volume of this size: no less, in whole blocks."""
    return -(-capacity_bytes // BLOCK) * BLOCK


def choose_number(name: str, is_free: Callable[[int], bool]) -> int:
    """Return the number of the project of a new volume. Raises `ResourceExhausted`."""
    for number in numbers_for(name):
        if is_free(number):
            return number
    raise ResourceExhausted(f"no project of {_TRIES} that were tried is free for {name}", nothing_done=True)


def limit_directory(quotas: ProjectQuotas, fd: int, number: int, capacity_bytes: int, *, root: str) -> None:
    """Put an open, empty directory into a project with this limit. Raises `Unsupported` if none can hold, OSError."""
    limit = limit_for(capacity_bytes)
    try:
        quotas.set_project(fd, number)
        quotas.set_limit(fd, number, limit)
    except OSError as error:
        raise unsupported(error, root) from error
    if quotas.size_of(fd) > limit:
        raise Unsupported(
            f"parameter quota: the file system of root {root} counts projects and does not limit them: mount it with "
            "prjquota, or take quota out of the class"
        )


def unsupported(error: OSError, root: str) -> Exception:
    """Return the error of a file system without project quotas as one that says what to do; any other as it is."""
    if error.errno == errno.EPERM:
        return Unsupported(f"parameter quota: limits on root {root} need CAP_SYS_ADMIN; run volplane as root")
    if error.errno not in _NO_QUOTAS:
        return error
    return Unsupported(
        f"parameter quota: root {root} is on a file system or kernel without project quotas ({error.strerror}): use "
        "xfs, or ext4 with the features quota and project, mounted with prjquota on Linux 5.14 or later, or take quota "
        "out of the class"
    )


_GET_ATTRIBUTES, _SET_ATTRIBUTES = 0x801C581F, 0x401C5820
_ATTRIBUTES = struct.Struct("=IIIII8s")
"""struct fsxattr: flags, extent size, extents, project, copy-on-write extent size."""
_INHERIT = 0x200
_QUOTACTL_FD = 443
"""Linux 5.14; the number on all architectures but alpha."""
_PROJECTS = 2
_GET_QUOTA, _SET_QUOTA = 0x800007 << 8 | _PROJECTS, 0x800008 << 8 | _PROJECTS
_QUOTA = struct.Struct("=QQQQQQQQI4x")
"""struct if_dqblk: hard and soft limit in blocks, bytes used; the same of inodes; two times; which fields are valid."""
_BLOCK_LIMITS = 1
_syscall = ctypes.CDLL(None, use_errno=True)["syscall"]
_syscall.restype = ctypes.c_long
_syscall.argtypes = (ctypes.c_long, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p)


class KernelQuotas:
    """Those of the kernel."""

    def set_project(self, fd: int, number: int) -> None:
        buffer = bytearray(_ATTRIBUTES.size)
        fcntl.ioctl(fd, _GET_ATTRIBUTES, buffer)
        flags, extent, extents, _, copied, padding = _ATTRIBUTES.unpack(buffer)
        fcntl.ioctl(fd, _SET_ATTRIBUTES, _ATTRIBUTES.pack(flags | _INHERIT, extent, extents, number, copied, padding))

    def used(self, fd: int, number: int) -> tuple[int, int]:
        try:
            _, _, size, _, _, inodes, *_ = _QUOTA.unpack(_quotactl(fd, _GET_QUOTA, number, bytes(_QUOTA.size)))
        except FileNotFoundError:  # xfs has no record of it.
            return 0, 0
        return size, inodes

    def set_limit(self, fd: int, number: int, size: int) -> None:
        _quotactl(fd, _SET_QUOTA, number, _QUOTA.pack(size // BLOCK, 0, 0, 0, 0, 0, 0, 0, _BLOCK_LIMITS))

    def size_of(self, fd: int) -> int:
        figures = os.fstatvfs(fd)
        return figures.f_blocks * figures.f_frsize


def _quotactl(fd: int, command: int, number: int, record: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(record, len(record))
    if _syscall(_QUOTACTL_FD, fd, command, number, ctypes.addressof(buffer)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return buffer.raw
