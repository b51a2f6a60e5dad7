"""The calls of the kernel that mounting takes, and what it says of mounts. Linux 5.12 or newer."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 430, 431, 432, 437, 442
"""The numbers on all architectures but alpha."""
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_AT_EMPTY_PATH: Final = 0x1000
_CLONE: Final = 0x1
_FROM_AND_TO_EMPTY_PATH: Final = 0x04 | 0x40
_CLOEXEC: Final = 0x1
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_PRIVATE: Final = 1 << 18
_DETACH, _UMOUNT_NOFOLLOW = 0x2, 0x8
_OCTAL: Final = re.compile(r"\\([0-7]{3})")

RDONLY: Final = 0x1
ATTRIBUTES: Final = {
    "ro": RDONLY,
    "nosuid": 0x2,
    "nodev": 0x4,
    "noexec": 0x8,
    "noatime": 0x10,
    "strictatime": 0x20,
    "nodiratime": 0x80,
    "nosymfollow": 0x200000,
    "rw": 0,
    "suid": 0,
    "dev": 0,
    "exec": 0,
    "relatime": 0,
}
"""Mount options of any file system -> attribute of the mount."""
OF_DIRECTORY: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _Attributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd"))


def call(number: int, path: str, *arguments: object) -> int:
    """Call the kernel. path: for the OSError that is raised."""
    while True:
        result = int(_LIBC.syscall(ctypes.c_long(number), *arguments))
        if result >= 0:
            return result
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code), path)


def open_below(parent: int, path: str) -> int:
    """Open a directory without following any link. Raises OSError: ELOOP for a link, ENOTDIR for no directory."""
    how = _How(OF_DIRECTORY, 0, _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    return call(_OPENAT2, path, ctypes.c_int(parent), os.fsencode(path), ctypes.byref(how), size)


# --- mounts that are nowhere yet ----------------------------------------------------------------------------------


def clone(fd: int, path: str) -> int:
    """Return a mount of what is open, without what is mounted in it."""
    flags = ctypes.c_uint(_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH)
    return call(_OPEN_TREE, path, ctypes.c_int(fd), ctypes.c_char_p(b""), flags)


class FileSystem:
    """A file system that is being set up; `close` it."""

    def __init__(self, kind: str, label: str) -> None:
        """Raises OSError: ENODEV where the kernel has none of this kind."""
        self._label = label
        self._fd = call(_FSOPEN, label, kind.encode(), ctypes.c_uint(_CLOEXEC))

    def close(self) -> None:
        os.close(self._fd)

    def set(self, key: str, value: str | None = None) -> None:
        """Set an option. Raises OSError."""
        command, text = (_SET_FLAG, None) if value is None else (_SET_STRING, value.encode())
        self._configure(command, key.encode(), text)

    def mount(self, attributes: int) -> int:
        """Return a mount of it. Raises OSError."""
        self._configure(_CREATE, None, None)
        flags, set_ = ctypes.c_uint(_CLOEXEC), ctypes.c_uint(attributes)
        return call(_FSMOUNT, self._label, ctypes.c_int(self._fd), flags, set_)

    def messages(self) -> str:
        """Return what the kernel says to the last error; "" = nothing."""
        found = []
        with suppress(OSError):  # There is no more.
            while True:
                found.append(os.read(self._fd, 4096).decode("utf-8", "replace").removeprefix("e ").strip())
        return "; ".join(found)

    def _configure(self, command: int, key: bytes | None, value: bytes | None) -> None:
        texts = ctypes.c_char_p(key), ctypes.c_char_p(value)
        call(_FSCONFIG, self._label, ctypes.c_int(self._fd), ctypes.c_uint(command), *texts, ctypes.c_int(0))


def put(mount: int, point: int, path: str, *, read_only: bool) -> None:
    """Put a mount where `point` is open, private: what a pod mounts in its volume is not to appear in the storage."""
    empty = ctypes.c_char_p(b"")
    wanted = _Attributes(RDONLY if read_only else 0, 0, _PRIVATE, 0)
    size, flags = ctypes.c_size_t(ctypes.sizeof(wanted)), ctypes.c_uint(_AT_EMPTY_PATH)
    call(_MOUNT_SETATTR, path, ctypes.c_int(mount), empty, flags, ctypes.byref(wanted), size)
    flags = ctypes.c_uint(_FROM_AND_TO_EMPTY_PATH)
    call(_MOVE_MOUNT, path, ctypes.c_int(mount), empty, ctypes.c_int(point), empty, flags)


def unmount(parent: int, name: str, path: str, *, busy: bool = False) -> None:
    """Unmount what is topmost at a name of an open directory. Raises OSError.

    busy: also if it is in use, for which it then stays until it is not.
    """
    flags = ctypes.c_int(_UMOUNT_NOFOLLOW | (_DETACH if busy else 0))
    if _LIBC.umount2(os.fsencode(f"/proc/self/fd/{parent}/{name}"), flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)


# --- mounts that there are ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of /proc/self/mountinfo (proc_pid_mountinfo(5))."""

    number: int
    device: str
    root: str
    """The mounted directory of the file system."""
    point: str
    read_only: bool
    source: str
    """Where the file system comes from, such as a share."""


def mounts() -> list[Mount]:
    """Return all mounts that this process sees."""

    def unescaped(text: str) -> str:
        return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)

    content = Path("/proc/self/mountinfo").read_bytes().decode("utf-8", "surrogateescape")
    found = []
    for line in filter(None, content.split("\n")):
        ours, _, of_file_system = line.partition(" - ")
        number, _, device, root, point, options = ours.split(" ")[:6]
        source = of_file_system.split(" ")[1]
        read_only = "ro" in options.split(",")
        found.append(Mount(int(number), device, unescaped(root), unescaped(point), read_only, unescaped(source)))
    return found


def mount_id(fd: int) -> int:
    """Return the mount through which fd was opened (proc_pid_fdinfo(5))."""
    for line in Path(f"/proc/self/fdinfo/{fd}").read_text("ascii").splitlines():
        if line.startswith("mnt_id:"):
            return int(line[7:])
    raise OSError(f"/proc/self/fdinfo/{fd} has no mnt_id")
