"""Reports to the leader election that a storage refused a call because of a later term of leadership (`Fenced`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from volplane.drivers.calls import CallHook, call_hook
from volplane.drivers.driver import Driver
from volplane.errors import Fenced
from volplane.requests import HookRequest

__all__ = ["telling"]

R = TypeVar("R")


def telling(fenced: Callable[[str], None], call: CallHook = call_hook) -> CallHook:
    """Call `fenced` with the later term, in the driver's thread, whenever a storage refuses a call because of one."""

    def call_and_tell(driver: Driver, request: HookRequest[R], /) -> R:
        try:
            return call(driver, request)
        except Fenced as error:
            fenced(error.fence)
            raise

    return call_and_tell
