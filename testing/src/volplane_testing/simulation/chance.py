"""Random numbers as a function of the seed and of a name, not of the number of draws before.

A schedule without one action or fault is therefore the same elsewhere, which lets a failing schedule shrink.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import Final, TypeVar

__all__ = ["Chance", "is_mark", "mark_of"]

T = TypeVar("T")

_SCALE: Final = 2.0**-64


def mark_of(fault: str) -> str:
    """Short for the name of a fault, as a command line can carry it: `f` and eight hex digits."""
    return f"f{blake2b(fault.encode(), digest_size=4).hexdigest()}"


def is_mark(text: str) -> bool:
    """Tell whether `mark_of` could have returned this."""
    return re.fullmatch("f[0-9a-f]{8}", text) is not None


class Chance:
    """The random decisions of one run.

    only: marks of the faults that may happen; None = any. `fired` lists the marks of those that did, in order. Once
    `calm` is set there are none any more. Needs a running loop.
    """

    def __init__(self, seed: int, *, only: Collection[str] | None = None) -> None:
        self._keyed = blake2b(digest_size=8, key=str(seed).encode())
        self._only = None if only is None else frozenset(only)
        self.fired: list[str] = []
        self.calm = asyncio.Event()

    def number(self, about: str) -> float:
        """Return a number in [0, 1), always the same for the same words."""
        keyed = self._keyed.copy()
        keyed.update(about.encode())
        return int.from_bytes(keyed.digest(), "little") * _SCALE

    def between(self, low: float, high: float, about: str) -> float:
        return low + (high - low) * self.number(about)

    def choice(self, options: Sequence[T], about: str) -> T:
        return options[int(self.number(about) * len(options))]

    def strikes(self, fault: str, rate: float) -> bool:
        """Tell whether the fault of this name happens. Each name is asked about once."""
        if self.calm.is_set() or rate <= 0.0 or self.number(fault) >= rate:
            return False
        mark = mark_of(fault)
        if self._only is not None and mark not in self._only:
            return False
        self.fired.append(mark)
        return True
