"""Exponential back-off with jitter."""

from __future__ import annotations

from random import Random

__all__ = ["Backoff"]


class Backoff:
    """How long to pause before the next try of one thing.

    `next()` grows from `first` seconds by `factor` up to `cap`, each time taken from the upper half of the span at
    random, so that many clients of a server that comes back do not come back together. `reset()` after a success.
    """

    def __init__(self, first: float, cap: float, *, random: Random, factor: float = 2.0) -> None:
        self._first = first
        self._cap = cap
        self._factor = factor
        self._random = random
        self._span = first

    def next(self) -> float:
        """Seconds to wait now."""
        span = self._span
        self._span = min(self._cap, span * self._factor)
        return span * (0.5 + self._random.random() / 2)

    def reset(self) -> None:
        self._span = self._first
