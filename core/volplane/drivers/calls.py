"""What a driver's thread does to call a hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from volplane.drivers.driver import Driver
from volplane.errors import Fenced
from volplane.requests import HookRequest

__all__ = ["CallHook", "call_hook", "telling"]

R = TypeVar("R")


class CallHook(Protocol):
    """Calls a hook in a driver's thread."""

    def __call__(self, driver: Driver, request: HookRequest[R], /) -> R: ...


def call_hook(driver: Driver, request: HookRequest[R], /) -> R:
    """Call the hook and nothing else."""
    return driver.call(request)


def telling(fenced: Callable[[str], None], call: CallHook = call_hook) -> CallHook:
    """Call `fenced` with the later term, in the driver's thread, whenever a storage refuses a call because of one."""

    def call_and_tell(driver: Driver, request: HookRequest[R], /) -> R:
        try:
            return call(driver, request)
        except Fenced as error:
            fenced(error.fence)
            raise

    return call_and_tell
