"""How much may be in flight: as much as helps. On a loop that is always busy more makes nothing faster, and all of it later."""

from __future__ import annotations

import asyncio
import time
from typing import Final

__all__ = ["Congestion"]

_LONG: Final = 0.002
_SHORT: Final = 0.001
"""Seconds of work from asking for a turn of the loop to getting it: a loop at leisure has a tenth of that."""
_CUT: Final = 0.9
_RAISE: Final = 0.25


class Congestion:
    """Asks the loop for a turn now and then, and lowers `allowed` as that takes long: additive increase, multiplicative decrease.

    Only what this thread itself computes until then counts, not the time for which it was denied a processor: with less
    in flight it would not get one sooner. In a loop of virtual time no time passes.
    """

    def __init__(self, *, most: int, fewest: int) -> None:
        """most, fewest: bounds of `allowed`, which begins with `most`."""
        self.most = most
        """How many may be in flight where nobody is delayed by it."""
        self._fewest = float(min(fewest, most))
        self._allowed = float(most)
        self._asking = False

    @property
    def allowed(self) -> int:
        """How many may be in flight now."""
        return int(self._allowed)

    def ask(self) -> None:
        """See how long a turn takes, unless that is under way. Call it when work begins: who has none need not know."""
        if not self._asking:
            self._asking = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._answer, loop, loop.time(), time.thread_time())

    def _answer(self, loop: asyncio.AbstractEventLoop, then: float, used: float) -> None:
        self._asking = False
        took = min(loop.time() - then, time.thread_time() - used)
        if took > _LONG:
            self._allowed = max(self._fewest, self._allowed * _CUT)
        elif took < _SHORT:
            self._allowed = min(float(self.most), self._allowed + _RAISE)
