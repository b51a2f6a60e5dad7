"""What is used of a mounted volume, for the kubelet: the kernel's count for its project, else measured."""

from __future__ import annotations

import os
import stat
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

from volplane.csi.mounts import Published

_LONGEST: Final = 10.0
"""Seconds for measuring a tree; then what was found is a lower bound."""
_AGAIN: Final = 60.0
"""Seconds until a tree is measured again, at least."""
_REST: Final = 20
"""Times as long as a measuring took it is not repeated."""
_DEEPEST: Final = 100
"""Directories that are open at once; what lies deeper is not counted."""
_BLOCK: Final = 512


@dataclass(frozen=True, slots=True)
class Figures:
    """Of bytes, or of inodes."""

    total: int
    used: int
    available: int


@dataclass(slots=True)
class _Measured:
    size: int
    inodes: int
    until: float


class Usages:
    """The usage of volumes, by their ids. Threads may share it, but not for the same volume."""

    def __init__(self) -> None:
        self._known: dict[str, _Measured] = {}

    def forget(self, id_: str) -> None:
        self._known.pop(id_, None)

    def of(self, id_: str, volume: Published, capacity: int) -> tuple[Figures, ...]:
        """Return bytes and inodes, of a block device the bytes alone. capacity: of the volume; 0 = not known."""
        if volume.volume.is_device:
            return (Figures(capacity, 0, 0),)
        own, above = os.fstatvfs(volume.fd), volume.volume.above
        bytes_ = Figures(
            own.f_blocks * own.f_frsize, (own.f_blocks - own.f_bfree) * own.f_frsize, own.f_bavail * own.f_frsize
        )
        inodes = Figures(own.f_files, own.f_files - own.f_ffree, own.f_favail)
        if above is None or own.f_blocks != os.fstatvfs(above).f_blocks:
            return bytes_, inodes  # It has a quota of its own, or is a file system of its own.
        measured = self._known.get(id_)
        if measured is None or measured.until <= time.monotonic():
            begun = time.monotonic()
            size, count = measure(volume.fd, begun + _LONGEST)
            took = time.monotonic() - begun
            measured = self._known[id_] = _Measured(size, count, begun + max(_AGAIN, took * _REST))
        total = capacity or bytes_.total
        left = max(min(total - measured.size, bytes_.available), 0)
        return Figures(total, measured.size, left), Figures(inodes.total, measured.inodes, inodes.available)


def measure(top: int, deadline: float) -> tuple[int, int]:
    """Return bytes and inodes of a tree, without what is mounted in it. deadline: of `time.monotonic()`."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with ExitStack() as whole:
        levels = [_Level(whole.enter_context(ExitStack()), os.open(f"/proc/self/fd/{top}", flags))]
        first = os.fstat(levels[0].fd)
        size, count = float(first.st_blocks * _BLOCK), 1.0
        while levels and time.monotonic() <= deadline:
            fd = levels[-1].fd
            entry = next(levels[-1].entries, None)
            if entry is None:
                levels.pop().stack.close()
                continue
            with suppress(OSError):  # It is gone meanwhile, or nothing that can be read.
                seen = os.stat(entry.name, dir_fd=fd, follow_symlinks=False)
                if seen.st_dev != first.st_dev:
                    continue
                is_directory = stat.S_ISDIR(seen.st_mode)
                # Each link counts for its part: to keep in mind which were seen takes what tenants make it take.
                part = 1.0 if is_directory else 1.0 / max(seen.st_nlink, 1)
                size += seen.st_blocks * _BLOCK * part
                count += part
                if is_directory and len(levels) < _DEEPEST:
                    below = os.open(entry.name, flags | os.O_NOFOLLOW, dir_fd=fd)
                    levels.append(_Level(whole.enter_context(ExitStack()), below))
        return round(size), round(count)


class _Level:
    """A directory that is being read."""

    def __init__(self, stack: ExitStack, fd: int) -> None:
        """Take over the descriptor; the stack closes it."""
        stack.callback(os.close, fd)
        self.stack = stack
        self.fd = fd
        self.entries = stack.enter_context(os.scandir(fd))
