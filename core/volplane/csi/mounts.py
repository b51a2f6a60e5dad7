"""Bind mounts of directories below a directory of the kubelet. Nothing else of volplane mounts.

A path is followed from an open directory, and no symbolic link in it: tenants write into what lies near. What is
mounted is read from the kernel each time, so that nothing need be remembered. Linux 5.12 or newer: a mount is made
apart, set read-only, and only then put into its place, so that it is never seen half made.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from volplane.csi.codes import CsiError

_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
"""The numbers on all architectures but alpha."""
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_AT_EMPTY_PATH: Final = 0x1000
_CLONE: Final = 0x1
_FROM_AND_TO_EMPTY_PATH: Final = 0x04 | 0x40
_ATTR_RDONLY: Final = 0x1
_PRIVATE: Final = 1 << 18
_UMOUNT_NOFOLLOW: Final = 0x8
_OF_DIRECTORY: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_SUBPATHS: Final = "/volume-subpaths/"
"""In paths where a kubelet mounts a part of a volume for the same pod."""
MOST_STACKED: Final = 100
"""Mounts on top of each other that an unpublishing takes away."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _Attributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd"))


def _call(number: int, path: str, *arguments: object) -> int:
    while True:
        result = int(_LIBC.syscall(ctypes.c_long(number), *arguments))
        if result >= 0:
            return result
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code), path)


def _open_below(parent: int, path: str) -> int:
    """Open a directory without following any link. Raises OSError: ELOOP for a link, ENOTDIR for no directory."""
    how = _How(_OF_DIRECTORY, 0, _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    return _call(_OPENAT2, path, ctypes.c_int(parent), os.fsencode(path), ctypes.byref(how), size)


def _mount_id(fd: int) -> int:
    """Return the mount through which fd was opened (proc_pid_fdinfo(5))."""
    for line in Path(f"/proc/self/fdinfo/{fd}").read_text("ascii").splitlines():
        if line.startswith("mnt_id:"):
            return int(line[7:])
    raise OSError(f"/proc/self/fdinfo/{fd} has no mnt_id")


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of /proc/self/mountinfo (proc_pid_mountinfo(5))."""

    number: int
    device: str
    root: str
    """The mounted directory of the file system."""
    point: str
    read_only: bool


def _mounts() -> list[Mount]:
    def unescaped(text: str) -> str:
        return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)

    content = Path("/proc/self/mountinfo").read_bytes().decode("utf-8", "surrogateescape")
    lines = [line.split(" ", 6) for line in content.split("\n") if line]
    return [
        Mount(int(line[0]), line[2], unescaped(line[3]), unescaped(line[4]), "ro" in line[5].split(","))
        for line in lines
    ]


@dataclass(frozen=True, slots=True)
class Published:
    """A mounted volume, open for a look."""

    fd: int
    source: int
    above: int
    """The directory that the volume's lies in."""


class Targets:
    """The places below one directory of a kubelet (or of Nomad) where volumes are mounted. All calls may hang."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def check(self, path: str, field: str, code: str = "INVALID_ARGUMENT") -> str:
        """Return a path below the directory. Raises CsiError for any other one."""
        if os.path.normpath(path) != path or not path.startswith(f"{self._directory}/") or "\0" in path:
            raise CsiError(code, f"{field} is {path!r}, expected a path below {self._directory} (--kubelet-dir)")
        return path

    def publish(self, source: str, target: str, *, read_only: bool, alone: bool) -> None:
        """Mount the directory `source` at `target`, which is made; nothing if it is mounted there.

        alone: nowhere else than there. Raises CsiError, and OSError where a next attempt may do better.
        """
        with ExitStack() as stack:
            fd, _ = self._source(source, stack)
            parent, name = self._parent(target, stack)
            undoing = stack.enter_context(ExitStack())
            with suppress(FileExistsError):
                os.mkdir(name, 0o750, dir_fd=parent)
                undoing.callback(_remove_empty, parent, name)
            point = self._point(parent, name, target, stack)
            mounts = _mounts()
            if _mount_id(point) != _mount_id(parent):
                self._require_same(fd, point, target, mounts, read_only=read_only)
                return
            if alone and (others := self._others(fd, mounts)):
                raise CsiError("FAILED_PRECONDITION", f"the volume is for a single pod, and {others[0]} has it")
            empty = ctypes.c_char_p(b"")
            flags = ctypes.c_uint(_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH)
            tree = _call(_OPEN_TREE, source, ctypes.c_int(fd), empty, flags)
            stack.callback(os.close, tree)
            # Private: what a pod mounts below its volume is not to appear in the storage.
            wanted = _Attributes(_ATTR_RDONLY if read_only else 0, 0, _PRIVATE, 0)
            size = ctypes.c_size_t(ctypes.sizeof(wanted))
            of_tree = ctypes.c_uint(_AT_EMPTY_PATH)
            _call(_MOUNT_SETATTR, source, ctypes.c_int(tree), empty, of_tree, ctypes.byref(wanted), size)
            flags = ctypes.c_uint(_FROM_AND_TO_EMPTY_PATH)
            _call(_MOVE_MOUNT, target, ctypes.c_int(tree), empty, ctypes.c_int(point), empty, flags)
            undoing.pop_all()

    def unpublish(self, target: str) -> None:
        """Unmount all that is mounted at `target`, and remove it; nothing if it is gone. No content is removed."""
        with ExitStack() as stack:
            try:
                parent, name = self._parent(target, stack)
            except FileNotFoundError:
                return
            # What is mounted is not opened: its server may be gone.
            path = os.path.join(os.readlink(f"/proc/self/fd/{parent}"), name)  # noqa: PTH115, PTH118
            for _ in range(MOST_STACKED):
                if all(each.point != path for each in _mounts()):
                    break
                place = os.fsencode(f"/proc/self/fd/{parent}/{name}")
                if _LIBC.umount2(place, ctypes.c_int(_UMOUNT_NOFOLLOW)):
                    code = ctypes.get_errno()
                    raise OSError(code, os.strerror(code), target)
            try:
                os.rmdir(name, dir_fd=parent)
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
                text = f"{target} is no mount, and no empty directory either: it is kept"
                raise CsiError("FAILED_PRECONDITION", text) from None

    @contextmanager
    def published(self, source: str, path: str) -> Iterator[Published]:
        """Open a place where `source` is mounted. Raises CsiError if it is not mounted there, OSError."""
        with ExitStack() as stack:
            self.check(path, "volume_path", "NOT_FOUND")
            fd, above = self._source(source, stack)
            try:
                parent, name = self._parent(path, stack)
                point = self._point(parent, name, path, stack)
            except FileNotFoundError:
                raise CsiError("NOT_FOUND", f"{path} does not exist") from None
            if _mount_id(point) == _mount_id(parent) or not _same(fd, point):
                raise CsiError("NOT_FOUND", f"the volume is not mounted at {path}")
            yield Published(point, fd, above)

    # --- parts ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _source(path: str, stack: ExitStack) -> tuple[int, int]:
        """Open the directory of a volume, and the one above."""
        try:
            top = os.open("/", _OF_DIRECTORY)
            stack.callback(os.close, top)
            above = _open_below(top, os.path.dirname(path).lstrip("/") or ".")  # noqa: PTH120
            stack.callback(os.close, above)
            fd = _open_below(above, os.path.basename(path))  # noqa: PTH119
        except OSError as error:
            if error.errno == errno.ELOOP:
                text = f"{path} leads through a symbolic link; give the backend the path without links"
                raise CsiError("FAILED_PRECONDITION", text) from None
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                raise CsiError("UNAVAILABLE", f"{path} is no directory here: is its disk mounted?") from None
            raise
        stack.callback(os.close, fd)
        return fd, above

    def _parent(self, target: str, stack: ExitStack) -> tuple[int, str]:
        """Open the directory above a target, and return the target's name in it."""
        path, name = os.path.split(os.path.relpath(target, self._directory))
        top = os.open(self._directory, _OF_DIRECTORY)
        stack.callback(os.close, top)
        try:
            parent = _open_below(top, path or ".")
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                text = f"{target} leads through what is no directory, or a link"
                raise CsiError("FAILED_PRECONDITION", text) from None
            raise
        stack.callback(os.close, parent)
        return parent, name

    @staticmethod
    def _point(parent: int, name: str, target: str, stack: ExitStack) -> int:
        """Open the target itself, which is the mounted directory if something is mounted there."""
        point = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        stack.callback(os.close, point)
        if not stat.S_ISDIR(os.fstat(point).st_mode):
            raise CsiError("FAILED_PRECONDITION", f"{target} is no directory: it is not touched")
        return point

    @staticmethod
    def _require_same(source: int, point: int, target: str, mounts: list[Mount], *, read_only: bool) -> None:
        if not _same(source, point):
            raise CsiError("ALREADY_EXISTS", f"something else is mounted at {target}: it is not touched")
        number = _mount_id(point)
        if any(each.number == number and each.read_only != read_only for each in mounts):
            there = "writable" if read_only else "read-only"
            raise CsiError("ALREADY_EXISTS", f"the volume is mounted at {target}, but {there}")

    def _others(self, source: int, mounts: list[Mount]) -> list[str]:
        """Return all places below the directory where this one is mounted."""
        number, path = _mount_id(source), os.readlink(f"/proc/self/fd/{source}")  # noqa: PTH115
        own = next((each for each in mounts if each.number == number), None)
        if own is None:
            raise OSError(errno.EAGAIN, "the mounts have changed meanwhile", path)
        inside = own.root.rstrip("/") + path[len(own.point.rstrip("/")) :]
        return [
            each.point
            for each in mounts
            if (each.device, each.root) == (own.device, inside or "/")
            and each.point.startswith(f"{os.path.realpath(self._directory)}/")
            and _SUBPATHS not in each.point
        ]


def _remove_empty(parent: int, name: str) -> None:
    with suppress(OSError):
        os.rmdir(name, dir_fd=parent)


def _same(one: int, other: int) -> bool:
    first, second = os.fstat(one), os.fstat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
