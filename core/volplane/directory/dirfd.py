"""File operations relative to directory descriptors (openat(2)). None follows a link or leaves the root's mount."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from volplane.directory import syscalls
from volplane.errors import PermissionDenied, VolumeInUse

__all__ = [
    "MountIdentity",
    "NotADirectory",
    "ancestors",
    "closing",
    "create_file",
    "directory_exists",
    "entry_exists",
    "mount_id",
    "names_in",
    "open_directory",
    "open_path",
    "printable",
    "read_file",
    "remove_entry",
    "split",
    "suppress_errno",
    "sync",
]

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
        if syscalls.AVAILABLE:
            return syscalls.open_beneath(name, parent, _DIRECTORY | access)
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
    if path and syscalls.AVAILABLE:
        try:
            return syscalls.open_beneath(path, root, _DIRECTORY | access)
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
