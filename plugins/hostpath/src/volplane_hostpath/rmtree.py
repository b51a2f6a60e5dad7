"""Removal of a directory tree that a hostile process may have made and may still change.

All operations use names relative to open directories: no symbolic link is followed, no mount is entered, no path is
built. A directory deeper than `DEPTH` is first moved up to the top, so that any depth needs neither recursion nor more
descriptors. A removal can stop and continue at any point.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from volplane import PermissionDenied, VolumeInUse
from volplane.directory.dirfd import MountIdentity, NotADirectory, open_directory, printable, suppress_errno
from volplane_hostpath import subvolumes
from volplane_hostpath.errors import NO_SPACE

DEPTH = 16
"""Number of directories that are open at once, with two descriptors each."""
_DEPTH_WITHOUT_SPACE = 8 * DEPTH
"""The same where a directory cannot be moved for lack of space: what is below gives some back."""
_MAX_ROUNDS = 8
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)
_IS_DIRECTORY = (errno.EISDIR, errno.EPERM)


def empty_directory(directory: int, mount: MountIdentity, *, label: str, should_stop: Callable[[], bool]) -> bool:
    """Remove everything in an open directory, not the directory itself.

    mount: of the directory. label: its name in messages. should_stop: called between entries; True = return False, and
    the next call continues. Every call removes at least one entry.
    Raises `VolumeInUse` for a mount, or if new entries keep appearing; `PermissionDenied`, OSError.
    """
    return _Removal(directory, mount, label, should_stop).run()


class _Entries(Protocol):
    def __next__(self) -> os.DirEntry[str]: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Frame:
    name: str
    fd: int
    entries: _Entries
    removed: int = 0
    """How much the whole removal had removed when these entries began to be read."""
    rounds: int = 0

    def rewind(self, removed: int) -> None:
        self.removed = removed
        self.entries = os.scandir(self.fd)
        self.rounds += 1

    def close(self) -> None:
        self.entries.close()
        os.close(self.fd)


class _Removal:
    def __init__(self, directory: int, mount: MountIdentity, label: str, should_stop: Callable[[], bool]) -> None:
        self._directory = directory
        self._mount = mount
        self._label = label
        self._should_stop = should_stop
        self._removed = 0
        self._stack: list[_Frame] = []
        self._problem: Exception | None = None
        """Why the last entry could not be removed that was left out."""

    def run(self) -> bool:
        fd = os.dup(self._directory)
        self._stack = [_Frame(self._label, fd, os.scandir(fd))]
        try:
            while self._stack:
                if self._removed and self._should_stop():
                    return False
                self._step(self._stack[-1])
        finally:
            for frame in self._stack:
                frame.close()
        return True

    def _step(self, frame: _Frame) -> None:
        try:
            entry = frame.entries.__next__()
        except StopIteration:
            self._ascend(frame)
            return
        try:
            if entry.is_dir(follow_symlinks=False):
                self._descend(frame, entry.name)
            else:
                self._unlink(frame, entry.name)
        except PermissionDenied as error:
            self._problem = error  # it keeps nothing else
        except OSError as error:
            if error.errno != errno.EROFS or not self._destroyed():
                raise

    def _destroyed(self) -> bool:
        """Remove the subvolume of btrfs in which the walk is, which may be read-only; False if it is in none."""
        for index in range(len(self._stack) - 1, 0, -1):
            if subvolumes.destroy(self._stack[index - 1].fd, self._stack[index].name):
                for frame in self._stack[index:]:
                    frame.close()
                del self._stack[index:]
                self._removed += 1
                return True
        return False

    def _ascend(self, frame: _Frame) -> None:
        """Remove the directory after all its entries were read, unless it has new ones."""
        is_top = len(self._stack) == 1
        try:
            gone = not os.listdir(frame.fd) if is_top else self._rmdir(frame)  # noqa: PTH208
        except PermissionDenied as error:
            self._problem = error
            self._stack.pop().close()
            return
        if gone:
            self._stack.pop().close()
            self._removed += 1
        elif self._problem is not None and self._removed == frame.removed:
            # Nothing but what cannot be removed is left here.
            if is_top:
                raise self._problem
            self._stack.pop().close()
        elif frame.rounds >= _MAX_ROUNDS and not is_top:
            raise VolumeInUse(f"{self._path()} does not become empty: something still writes there")
        else:
            frame.rewind(self._removed)

    def _rmdir(self, frame: _Frame) -> bool:
        parent = self._stack[-2].fd
        try:
            os.rmdir(frame.name, dir_fd=parent)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in _NOT_EMPTY:
                return False
            if error.errno == errno.EBUSY:
                raise VolumeInUse(f"{self._path()} is a mount point somewhere; unmount it", code="EBUSY") from error
            if error.errno != errno.EACCES:
                raise self._denied(error) from error
            os.fchmod(parent, 0o700)
            os.rmdir(frame.name, dir_fd=parent)
        return True

    def _descend(self, frame: _Frame, name: str) -> None:
        try:
            if len(self._stack) > DEPTH and self._moved_up(frame, name):
                return
            fd = self._open(frame, name)
        except (FileNotFoundError, NotADirectory):
            return  # It was replaced meanwhile; the next round handles it.
        self._stack.append(_Frame(name, fd, os.scandir(fd), self._removed))

    def _open(self, frame: _Frame, name: str) -> int:
        label = f"{self._path()}/{printable(name)}"
        try:
            return open_directory(name, frame.fd, self._mount, label=label)
        except OSError as error:
            if error.errno != errno.EACCES:
                raise
        self._grant(frame, name, label)
        return open_directory(name, frame.fd, self._mount, label=label)

    def _grant(self, frame: _Frame, name: str, label: str) -> None:
        """Give the owner of a directory, who may be this process, all permissions on it."""
        with suppress_errno(errno.EACCES):
            # The parent directory may lack search permission.
            os.fchmod(frame.fd, 0o700)
        fd = open_directory(name, frame.fd, self._mount, label=label, access=os.O_PATH)
        try:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)  # noqa: PTH101
        except PermissionError as error:
            raise self._denied(error, name) from error
        finally:
            os.close(fd)

    def _moved_up(self, frame: _Frame, name: str) -> bool:
        """Move a deep directory to the top, where the walk finds it again; False: go down, as there is no space."""
        fresh = secrets.token_hex(8)
        try:
            try:
                os.rename(name, fresh, src_dir_fd=frame.fd, dst_dir_fd=self._directory)
            except PermissionError:
                # A rename changes ".." in the directory, so it must be writable.
                self._grant(frame, name, f"{self._path()}/{printable(name)}")
                os.rename(name, fresh, src_dir_fd=frame.fd, dst_dir_fd=self._directory)
        except OSError as error:
            # EXDEV: a pod has put it into another project than the directory at the top, which has a quota.
            if error.errno not in NO_SPACE | {errno.EXDEV} or len(self._stack) > _DEPTH_WITHOUT_SPACE:
                raise
            return False
        return True

    def _unlink(self, frame: _Frame, name: str) -> None:
        try:
            os.unlink(name, dir_fd=frame.fd)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise VolumeInUse(
                    f"{self._path()}/{printable(name)} is a mount point; unmount it", code="EBUSY"
                ) from error
            if error.errno in _IS_DIRECTORY and _is_directory(name, frame.fd):
                return  # It was replaced meanwhile; the next round handles it.
            if error.errno != errno.EACCES:
                raise self._denied(error, name) from error
            self._unlink_forced(frame, name)
        self._removed += 1

    def _unlink_forced(self, frame: _Frame, name: str) -> None:
        try:
            os.fchmod(frame.fd, 0o700)
            os.unlink(name, dir_fd=frame.fd)
        except PermissionError as error:
            raise self._denied(error, name) from error

    def _denied(self, error: OSError, name: str = "") -> Exception:
        if error.errno not in (errno.EPERM, errno.EACCES):
            return error
        path = f"{self._path()}/{printable(name)}".rstrip("/")
        return PermissionDenied(
            f"{path} cannot be removed: {error.strerror}; run volplane as root; lsattr shows whether it is immutable "
            "(chattr -i)",
            code=errno.errorcode[error.errno],
        )

    def _path(self) -> str:
        return "/".join(printable(frame.name) for frame in self._stack)


def _is_directory(name: str, parent: int) -> bool:
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return False
    os.close(fd)
    return True
