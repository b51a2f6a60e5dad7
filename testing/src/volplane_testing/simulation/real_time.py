"""Real time of hooks: virtual time stands still while a hook runs, so nothing else notices one that never returns."""

from __future__ import annotations

import inspect
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final, TypeVar

__all__ = ["IN_TIME", "TooLong", "call_timed"]

IN_TIME: Final = "returns-in-time"
"""The invariant that a hook returns within the patience of its subject."""
T = TypeVar("T")


class TooLong(BaseException):
    """Interrupts a hook. No Exception, so that no hook takes it for an error of its storage and tries again."""


def call_timed(call: Callable[[], T], patience: float | None, late: Callable[[float, str], None]) -> T:
    """Return what the call returns, which `TooLong` ends after so many real seconds.

    late: hears of a call that took longer: how long, and where it was then ("" if unknown). In threads, where no signal
    arrives, it is heard of once it has returned. patience: None = any.
    """
    if patience is None:
        return call()
    where = ""
    begun = time.monotonic()

    def interrupt(_number: int, frame: FrameType | None) -> None:
        nonlocal where
        if frame is not None:
            place = inspect.getframeinfo(frame, context=0)
            where = f"; it waits in {place.function}, {place.filename} line {place.lineno}"
        raise TooLong(f"longer than {patience:g} s")

    alarmed = threading.current_thread() is threading.main_thread()
    if alarmed:
        former = signal.signal(signal.SIGALRM, interrupt)
        left, again = signal.setitimer(signal.ITIMER_REAL, patience)
    try:
        return call()
    finally:
        took = time.monotonic() - begun
        if alarmed:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
            if left:
                signal.setitimer(signal.ITIMER_REAL, max(left - took, 0.001), again)
        if took >= patience:
            late(took, where)
