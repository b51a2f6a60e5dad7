"""Waits for the disk. Calls that wait at the same time share one: the first syncs for all.

On a local file system a wait is one syncfs(2), however many files were written. It also waits for what others have
written to that file system. Elsewhere, as on NFS and FUSE, syncfs does not reach the server: there each file and
directory is fsynced.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable

from volplane.directory import dirfd
from volplane.directory.dirfd import closing, sync
from volplane_hostpath.root import Root

Target = tuple[int, str]
"""What must be on the disk: an open directory and the path of a file or directory in it, "" for itself."""

_LOCAL = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "xfs", "zfs"})
_MEMORY = frozenset({"ramfs", "tmpfs"})


def syncs_whole(root: Root) -> bool:
    """Return whether one wait is for everything on the file system, or nothing there has to be waited for."""
    return root.kind in _LOCAL | _MEMORY


class _Round:
    def __init__(self) -> None:
        self.roots: dict[int, Root] = {}
        self.targets: dict[int, dict[Target, None]] = {}
        self.done = False
        self.error: BaseException | None = None

    def add(self, root: Root, targets: Iterable[Target]) -> None:
        self.roots[root.fd] = root
        self.targets.setdefault(root.fd, {}).update(dict.fromkeys(targets))

    def sync(self) -> None:
        for fd, root in self.roots.items():
            if root.kind in _LOCAL:
                dirfd.syncfs(fd)
            else:
                for target in self.targets[fd]:
                    _fsync(target)


class DiskWaits:
    """The waits of one driver. A round starts when the one before it has ended, and takes all who wait by then."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next = _Round()
        self._busy = False

    def wait(self, root: Root, targets: Iterable[Target]) -> None:
        """Return when the targets are on the disk; raises OSError. The caller keeps root and targets open."""
        if root.kind in _MEMORY:
            return
        with self._changed:
            mine = self._next
            mine.add(root, targets)
            while self._busy and not mine.done:
                self._changed.wait()
            if mine.done:
                if mine.error is not None:
                    number = mine.error.errno if isinstance(mine.error, OSError) else None
                    raise OSError(number or errno.EIO, os.strerror(number or errno.EIO)) from mine.error
                return
            self._busy = True
            self._next = _Round()
        try:
            mine.sync()
        except BaseException as error:
            mine.error = error
            raise
        finally:
            with self._changed:
                self._busy = False
                mine.done = True
                self._changed.notify_all()


def _fsync(target: Target) -> None:
    parent, name = target
    if not name:
        sync(parent)
        return
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    except FileNotFoundError:
        return  # Its removal is on the disk when its directory is.
    with closing(fd):
        sync(fd)
