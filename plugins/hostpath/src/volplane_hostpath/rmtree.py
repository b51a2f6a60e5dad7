"""Removing a tree of files that somebody hostile may have made, and may still be changing.

Only names in directories that are open are ever touched; no symbolic link is followed, no mount is entered, no path is
built. Depth costs neither recursion nor descriptors: what lies deeper than `DEPTH` is first moved up into the container,
which is also why a removal can stop and go on at any point.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from volplane import PermissionDenied, VolumeInUse
from volplane_hostpath.dirfd import NotPlain, names_in, open_directory, suppress_errno
from volplane_hostpath.errors import shown
from volplane_hostpath.mounts import Place

__all__ = ["DEPTH", "empty_container"]

DEPTH = 16
"""Directories held open at once, with two descriptors each."""
_ROUNDS = 8
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)
_IS_DIRECTORY = (errno.EISDIR, errno.EPERM)


def empty_container(container: int, place: Place, *, label: str, over: Callable[[], bool]) -> bool:
    """Remove everything in an open directory, not the directory itself.

    over: asked between entries; True = stop and return False, the next call goes on. At least one entry is removed
    by every call. label: what messages call the container.
    Raises `VolumeInUse` for a mount or for somebody who keeps writing, `PermissionDenied`, OSError.
    """
    return _Removal(container, place, label, over).run()


class _Entries(Protocol):
    def __next__(self) -> os.DirEntry[str]: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Frame:
    name: str
    fd: int
    entries: _Entries
    rounds: int = 0

    def rewind(self) -> None:
        self.entries = os.scandir(self.fd)
        self.rounds += 1

    def close(self) -> None:
        self.entries.close()
        os.close(self.fd)


class _Removal:
    def __init__(self, container: int, place: Place, label: str, over: Callable[[], bool]) -> None:
        self._container = container
        self._place = place
        self._label = label
        self._over = over
        self._removed = 0
        self._stack: list[_Frame] = []

    def run(self) -> bool:
        fd = os.dup(self._container)
        self._stack = [_Frame(self._label, fd, os.scandir(fd))]
        try:
            while self._stack:
                if self._removed and self._over():
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
            self._leave(frame)
            return
        if entry.is_dir(follow_symlinks=False):
            self._enter(frame, entry.name)
        else:
            self._unlink(frame, entry.name)

    def _leave(self, frame: _Frame) -> None:
        """All entries were seen: remove the directory, unless new ones have come."""
        is_container = len(self._stack) == 1
        gone = not names_in(frame.fd) if is_container else self._rmdir(frame)
        if gone:
            self._stack.pop().close()
            self._removed += 1
        elif frame.rounds >= _ROUNDS and not is_container:
            raise VolumeInUse(f"{self._path()} does not become empty: somebody still writes there")
        else:
            frame.rewind()

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
                raise self._denied(error, frame.name) from error
            os.fchmod(parent, 0o700)
            os.rmdir(frame.name, dir_fd=parent)
        return True

    def _enter(self, frame: _Frame, name: str) -> None:
        try:
            if len(self._stack) > DEPTH:
                self._lift(frame, name)
                return
            fd = self._open(frame, name)
        except (FileNotFoundError, NotPlain):
            return  # Exchanged under our hands; the next round sees what it is.
        self._stack.append(_Frame(name, fd, os.scandir(fd)))

    def _open(self, frame: _Frame, name: str) -> int:
        label = f"{self._path()}/{shown(name)}"
        try:
            return open_directory(name, frame.fd, self._place, label=label)
        except OSError as error:
            if error.errno != errno.EACCES:
                raise
        self._grant(frame, name, label)
        return open_directory(name, frame.fd, self._place, label=label)

    def _grant(self, frame: _Frame, name: str, label: str) -> None:
        """Let its owner, who we may be, read and change a directory."""
        with suppress_errno(errno.EACCES):
            # The directory above may forbid to look into it.
            os.fchmod(frame.fd, 0o700)
        fd = open_directory(name, frame.fd, self._place, label=label, access=os.O_PATH)
        try:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)  # noqa: PTH101
        except PermissionError as error:
            raise self._denied(error, name) from error
        finally:
            os.close(fd)

    def _lift(self, frame: _Frame, name: str) -> None:
        """Move a deep directory up, where the walk finds it again."""
        fresh = secrets.token_hex(8)
        try:
            os.rename(name, fresh, src_dir_fd=frame.fd, dst_dir_fd=self._container)
        except PermissionError:
            # Moving a directory changes its "..", so its owner must be allowed to write it.
            self._grant(frame, name, f"{self._path()}/{shown(name)}")
            os.rename(name, fresh, src_dir_fd=frame.fd, dst_dir_fd=self._container)

    def _unlink(self, frame: _Frame, name: str) -> None:
        try:
            os.unlink(name, dir_fd=frame.fd)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise VolumeInUse(f"{self._path()}/{shown(name)} is a mount point; unmount it", code="EBUSY") from error
            if error.errno in _IS_DIRECTORY and _is_directory(name, frame.fd):
                return  # Exchanged under our hands; the next round sees what it is.
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

    def _denied(self, error: OSError, name: str) -> Exception:
        if error.errno not in (errno.EPERM, errno.EACCES):
            return error
        return PermissionDenied(
            f"{self._path()}/{shown(name)} cannot be removed: {error.strerror}; run volplane as root, and lsattr shows "
            "whether the file is immutable (chattr -i)",
            code=errno.errorcode[error.errno],
        )

    def _path(self) -> str:
        return "/".join(shown(frame.name) for frame in self._stack)


def _is_directory(name: str, parent: int) -> bool:
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return False
    os.close(fd)
    return True
