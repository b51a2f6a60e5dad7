"""File operations relative to directory descriptors (openat(2)). None follows a link or leaves the root's mount.

Among them are system calls that the standard library does not have: openat2(2) (Linux 5.6) and syncfs(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from volplane.errors import PermissionDenied, VolumeInUse

__all__ = [
    "AVAILABLE",
    "MountIdentity",
    "NotADirectory",
    "ancestors",
    "closing",
    "create_file",
    "directory_exists",
    "entry_exists",
    "ioctl_alone",
    "mount_id",
    "names_in",
    "open_beneath",
    "open_directory",
    "open_path",
    "printable",
    "read_file",
    "remove_entry",
    "split",
    "suppress_errno",
    "sync",
    "syncfs",
]

_LIBC = ctypes.CDLL(None, use_errno=True)
_SYSCALL = _LIBC.syscall
_SYSCALL.restype = ctypes.c_long
_SYSCALL.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_OPENAT2 = 437
"""The number on all architectures but alpha, where Python wheels of volplane's dependencies do not exist."""
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 1 << 16
_NO_ENTRY = frozenset({errno.ENOENT, errno.ENAMETOOLONG})
_NOT_PLAIN = frozenset({errno.ENOTDIR, errno.ELOOP})
_REFUSED = _NOT_PLAIN | {errno.EXDEV}


@dataclass(frozen=True, slots=True)
class MountIdentity:
    """The mount of an open directory: st_dev, and the id of the mount through which it was opened."""

    device: int
    mount: int

    @classmethod
    def of(cls, fd: int) -> MountIdentity:
        return cls(os.fstat(fd).st_dev, mount_id(fd))


def mount_id(fd: int) -> int:
    """Return the mount through which fd was opened (proc_pid_fdinfo(5), kernel 3.15)."""
    info = os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for line in os.read(info, 1024).splitlines():
            if line.startswith(b"mnt_id:"):
                return int(line[7:])
    finally:
        os.close(info)
    raise OSError(f"/proc/self/fdinfo/{fd} has no mnt_id")


def printable(name: str) -> str:
    """Return a file name as valid text for events and logs: undecodable bytes become escapes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class NotADirectory(PermissionDenied):
    """A component is a symbolic link or a file where a directory must be."""


@contextmanager
def closing(fd: int) -> Iterator[int]:
    """Close the descriptor at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def split(path: str) -> tuple[str, str]:
    """Return ("a/b", "c") of "a/b/c"; the first is empty for a single component."""
    parent, _, name = path.rpartition("/")
    return parent, name


def ancestors(path: str) -> Iterator[str]:
    """Yield the directories above a path, from the top: "a" and "a/b" of "a/b/c"."""
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)


def open_directory(name: str, parent: int, mount: MountIdentity, *, label: str, access: int = os.O_RDONLY) -> int:
    """Open one component. mount: of the root. label: its name in messages. access: O_PATH needs no read permission.

    Raises FileNotFoundError; `NotADirectory` for a symbolic link or a file; `VolumeInUse` for another mount.
    """
    try:
        if AVAILABLE:
            return open_beneath(name, parent, _DIRECTORY | access)
        fd = os.open(name, _DIRECTORY | access, dir_fd=parent)
    except OSError as error:
        if error.errno in _NOT_PLAIN:
            raise NotADirectory(
                f"{printable(label)} is no directory but a symbolic link or a file; it was not touched", code="ELOOP"
            ) from error
        if error.errno == errno.EXDEV:
            raise _other_mount(label) from error
        raise
    try:
        found = MountIdentity.of(fd)
    except BaseException:
        os.close(fd)
        raise
    if found == mount:
        return fd
    os.close(fd)
    raise _other_mount(label)


def _other_mount(label: str) -> VolumeInUse:
    return VolumeInUse(
        f"{printable(label)} is a mount point: another file system is mounted there; unmount it", code="EXDEV"
    )


def open_path(path: str, root: int, mount: MountIdentity, *, label: str, access: int = os.O_RDONLY) -> int:
    """Open a directory some levels below root ("" = root itself), checking each component as `open_directory` does."""
    if path and AVAILABLE:
        try:
            return open_beneath(path, root, _DIRECTORY | access)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
    # Component by component: it finds the one to name in the message.
    current = os.dup(root)
    walked = label
    for name in filter(None, path.split("/")):
        walked = f"{walked}/{name}"
        try:
            below = open_directory(name, current, mount, label=walked, access=access)
        finally:
            os.close(current)
        current = below
    return current


def directory_exists(path: str, root: int, mount: MountIdentity, *, label: str) -> bool:
    """Return whether there is a directory. Raises as `open_path` does for anything else."""
    try:
        os.close(open_path(path, root, mount, label=label, access=os.O_PATH))
    except FileNotFoundError:
        return False
    return True


def entry_exists(name: str, parent: int) -> bool:
    """Return whether there is any entry of this name."""
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_ENTRY:
            raise
        return False
    return True


def names_in(fd: int) -> list[str]:
    """Return the names of all entries of an open directory."""
    # Opened again: threads that share a descriptor share its position in the directory.
    with closing(os.open(".", _DIRECTORY | os.O_RDONLY, dir_fd=fd)) as own:
        return os.listdir(own)  # noqa: PTH208


def read_file(name: str, parent: int) -> bytes:
    """Return the contents of a regular file."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with closing(os.open(name, flags, dir_fd=parent)) as fd:
        content = block = os.read(fd, _BLOCK)
        while len(block) == _BLOCK:
            block = os.read(fd, _BLOCK)
            content += block
    return content


def create_file(name: str, parent: int, content: bytes, *, durable: bool) -> None:
    """Write a file. durable: wait until its content is on the disk; its name is only after `sync` of the directory."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with closing(os.open(name, flags, 0o600, dir_fd=parent)) as fd:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
        if durable:
            os.fsync(fd)


def sync(fd: int) -> None:
    """Fsync a directory. EINVAL is ignored: such file systems need none."""
    with suppress_errno(errno.EINVAL, errno.ENOTSUP):
        os.fsync(fd)


@contextmanager
def suppress_errno(*numbers: int) -> Iterator[None]:
    """Ignore an OSError with one of these numbers."""
    try:
        yield
    except OSError as error:
        if error.errno not in numbers:
            raise


def remove_entry(name: str, parent: int) -> None:
    """Unlink a file, which may be gone."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)


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
