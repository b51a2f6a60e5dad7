"""How much may still be promised. Pure arithmetic; the figures come from statvfs and from the ledger."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["Space", "human", "others_within", "room"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class Space:
    """What statvfs says, in bytes. total leaves out what is kept for the superuser, as `df` does."""

    total: int
    available: int

    @classmethod
    def of(cls, fd: int) -> Space:
        """The file system of an open directory."""
        figures = os.fstatvfs(fd)
        unit = figures.f_frsize
        kept = figures.f_bfree - figures.f_bavail
        return cls(total=(figures.f_blocks - kept) * unit, available=figures.f_bavail * unit)

    @property
    def used(self) -> int:
        return self.total - self.available


def others_within(space: Space, *, promised: int, others: int) -> int:
    """How much of the used space is not the volumes'.

    others: what was used when there were no volumes. It can have grown or shrunk since; without counting every
    file we only know that it is at most what is used, and at least what is used beyond all promises.
    """
    return min(max(others, space.used - promised), space.used)


def room(space: Space, *, promised: int, others: int, overcommit_percent: int) -> int:
    """Bytes that may still be promised to volumes.

    A promise counts in full from the day it is made, whether written or not. Never more than what is free now
    (times the overcommit), so that a file system filled by somebody else is full for us too.
    """
    usable = space.total - others_within(space, promised=promised, others=others)
    budget = usable * overcommit_percent // 100 - promised
    free_now = space.available * max(overcommit_percent, 100) // 100
    return max(0, min(budget, free_now))


def human(size: int) -> str:
    """A size for people: "1.5 GiB"."""
    figure = float(size)
    for unit in _UNITS:
        if figure < 1024 or unit == _UNITS[-1]:
            return f"{figure:.0f} {unit}" if figure == int(figure) else f"{figure:.1f} {unit}"
        figure /= 1024
    raise AssertionError(size)
