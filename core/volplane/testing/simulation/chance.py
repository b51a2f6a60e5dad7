"""Chance as a function of the seed and of what it is asked about, not of how often somebody asked before.

So a schedule from which one action or fault was dropped stays the same everywhere else: that is what makes a failing one
shrink.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import Final, TypeVar

__all__ = ["Fate"]

T = TypeVar("T")

_SCALE: Final = 2.0**-64


class Fate:
    """What happens by chance in one run.

    only: the faults that may happen, by name; None = any. `fired` lists those that did, in order. Once `calm` is set there
    are none any more. Needs a running loop.
    """

    def __init__(self, seed: int, *, only: Collection[str] | None = None) -> None:
        self._key = str(seed).encode()
        self._only = None if only is None else frozenset(only)
        self.fired: list[str] = []
        self.calm = asyncio.Event()

    def number(self, about: str) -> float:
        """A number in [0, 1), always the same for the same words."""
        digest = blake2b(about.encode(), digest_size=8, key=self._key).digest()
        return int.from_bytes(digest, "little") * _SCALE

    def between(self, low: float, high: float, about: str) -> float:
        return low + (high - low) * self.number(about)

    def choice(self, options: Sequence[T], about: str) -> T:
        return options[int(self.number(about) * len(options))]

    def strikes(self, fault: str, rate: float) -> bool:
        """Whether the fault of this name happens; each name is asked about once."""
        if self.calm.is_set() or rate <= 0.0 or self.number(fault) >= rate:
            return False
        if self._only is not None and fault not in self._only:
            return False
        self.fired.append(fault)
        return True
