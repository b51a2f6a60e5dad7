"""System calls that the standard library does not have: openat2(2) (Linux 5.6) and syncfs(2)."""

from __future__ import annotations

import ctypes
import errno
import os

__all__ = ["AVAILABLE", "ioctl_alone", "open_beneath", "syncfs"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_SYSCALL = _LIBC.syscall
_SYSCALL.restype = ctypes.c_long
_SYSCALL.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_OPENAT2 = 437
"""The number on all architectures but alpha, where Python wheels of volplane's dependencies do not exist."""
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW: dict[int, _How] = {}


def open_beneath(path: str, parent: int, flags: int) -> int:
    """Open a path of one or more components below an open directory.

    Raises OSError: ELOOP for a symbolic link, EXDEV for a mount point, bind mounts included.
    """
    how = _HOW.get(flags)
    if how is None:
        how = _HOW.setdefault(flags, _How(flags, 0, _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH))
    name = os.fsencode(path)
    while True:
        fd: int = _SYSCALL(_OPENAT2, parent, name, ctypes.addressof(how), ctypes.sizeof(how))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), path)


def syncfs(fd: int) -> None:
    """Wait until everything that was written to the file system of an open directory is on the disk."""
    if _LIBC.syncfs(fd):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def ioctl_alone(fd: int, request: int, arguments: bytes) -> None:
    """Call ioctl(2) while other threads run, which `fcntl.ioctl` does not for long arguments. Raises OSError."""
    if _LIBC.ioctl(fd, ctypes.c_ulong(request), ctypes.create_string_buffer(arguments, max(len(arguments), 1))) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _available() -> bool:
    # ENOSYS on older kernels, EPERM from the seccomp filters of older container runtimes.
    parent = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        os.close(open_beneath(".", parent, os.O_PATH | os.O_CLOEXEC))
    except OSError:
        return False
    finally:
        os.close(parent)
    return True


AVAILABLE = _available()
