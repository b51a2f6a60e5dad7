"""One call of a hook: how long it may go on, and how it ends early without holding its thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from volplane import Context, Unavailable

__all__ = ["Later", "Turn", "fence_of"]

_LATEST_START = 0.5
"""No change is begun once so much of the call's time is over: its answer would come when nobody waits any more."""


class Later(Exception):
    """Nothing to do before so many seconds have passed; the hook ends with `InProgress`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"in {seconds:.3g} s")
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Turn:
    """The running call. began: seconds of the driver's clock."""

    context: Context
    clock: Callable[[], float]
    began: float

    def before_a_change(self) -> None:
        """Raise unless there is somebody and enough time to wait for a change that begins now."""
        if self.context.cancelled():
            raise Unavailable("nobody waits for this call any more, so nothing was begun")
        if self.clock() - self.began > self.context.timeout * _LATEST_START:
            raise Later(0.1)


def fence_of(context: Context) -> int | None:
    """The number in front of the fence, which rises with every change of leader; None if there is none to compare."""
    number = context.fence.partition("/")[0]
    return int(number) if number.isdigit() else None
