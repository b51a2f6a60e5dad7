"""How many bytes may still be promised. Pure arithmetic on figures of statvfs and of the index."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes of a file system by statvfs(3)."""

    total: int
    """Without the blocks reserved for the superuser, as in df(1)."""
    available: int

    @classmethod
    def of(cls, fd: int) -> Space:
        """Return the file system of an open directory."""
        figures = os.fstatvfs(fd)
        unit = figures.f_frsize
        kept = figures.f_bfree - figures.f_bavail
        return cls(total=(figures.f_blocks - kept) * unit, available=figures.f_bavail * unit)

    @property
    def used(self) -> int:
        return self.total - self.available


def used_by_others(space: Space, *, promised: int, others: int) -> int:
    """Return the bytes that files other than volumes use.

    others: bytes used when there were no volumes. This may have changed since. Without counting every file it is only
    known that it is at most what is used now, and at least what is used beyond all promised sizes.
    """
    return min(max(others, space.used - promised), space.used)


def room(space: Space, *, promised: int, others: int, overcommit_percent: int) -> int:
    """Return the bytes that may still be promised to volumes.

    A promised size counts in full, whether written or not. The result is never more than what is free now times the
    overcommit, so that a file system that others have filled has no room for volumes.
    """
    usable = space.total - used_by_others(space, promised=promised, others=others)
    budget = usable * overcommit_percent // 100 - promised
    free_now = space.available * max(overcommit_percent, 100) // 100
    return max(0, min(budget, free_now))
