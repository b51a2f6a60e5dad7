"""Calls hooks in the driver's own threads, with a deadline; hooks that change storage run only under the lease."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from volplane._delays import LIVE_STATE_FORBIDS
from volplane.assets import InProgress
from volplane.controller import logs
from volplane.drivers.driver import Driver
from volplane.drivers.executor import HookExecutor
from volplane.drivers.status import LoadedDrivers
from volplane.drivers.view import DriverView
from volplane.errors import BackendError, Fenced, PluginError, Unavailable
from volplane.operations import Again, DriverLimits
from volplane.requests import HookRequest

__all__ = ["CallHook", "DriverMetrics", "HookCalls", "call_hook", "reporting_fenced"]

_ABOUT_THE_DRIVER: Final = frozenset({"owns", "list_assets", "get_capacity", "stop"})
"""Hooks that no operation locks by asset. While one hangs it is not called again; nor are `start` and `probe`."""
_CHANGES_NOTHING: Final = frozenset(
    {"describe", "validate", "find", "owns", "list_assets", "get_capacity", "probe", "start", "stop"}
)
"""Hooks that may run without the lease."""

R = TypeVar("R")


class DriverMetrics(Protocol):
    """Where hook calls are counted."""

    def hook_ended(self, driver: str, hook: str, seconds: float, result: str) -> None:
        """Called after every call. result: "ok", "in_progress", "cancelled", or the class of the error."""


class CallHook(Protocol):
    """A function that calls a hook in a driver's thread."""

    def __call__(self, driver: Driver, request: HookRequest[R], /) -> R: ...


def call_hook(driver: Driver, request: HookRequest[R], /) -> R:
    """Call the hook and nothing else."""
    return driver.call(request)


def reporting_fenced(report: Callable[[str], None], call: CallHook = call_hook) -> CallHook:
    """Return `call` with a report of each `Fenced`: a storage refused the call because of a later term of leadership.

    report: gets the later term, in the driver's thread.
    """

    def call_and_report(driver: Driver, request: HookRequest[R], /) -> R:
        try:
            return call(driver, request)
        except Fenced as error:
            report(error.fence)
            raise

    return call_and_report


class HookCalls:
    """Calls the hooks of all drivers. Belongs to one event loop."""

    def __init__(
        self,
        loaded: LoadedDrivers,
        executor: HookExecutor,
        *,
        metrics: DriverMetrics | None = None,
        call_hook: CallHook = call_hook,
        may_begin: Callable[[], bool] = lambda: True,
    ) -> None:
        """call_hook: what the executor's thread does. may_begin: whether a hook that changes storage may be called
        now; asked in the executor's thread.
        """
        self._drivers = {driver.name: driver for driver in loaded.drivers}
        self._limits = dict(loaded.limits)
        self._executor = executor
        self._metrics = metrics
        self._call_hook = call_hook
        self._may_begin = may_begin

    def add(self, driver: Driver) -> None:
        """Take up a driver that was made after the others."""
        self._drivers[driver.name] = driver

    def limits(self, driver: str) -> DriverLimits:
        """Return the limits of a driver."""
        return self._limits.get(driver, DriverLimits())

    def running(self, driver: str, hook: str) -> bool:
        """Tell whether a call of this hook has not returned, whether it is still awaited or not."""
        return any(call.what == hook for call in self._executor.running(driver))

    def overrun(self, driver: str, hook: str) -> bool:
        """Tell whether a call of this hook has not returned and its caller has stopped waiting."""
        return any(call.overrun and call.what == hook for call in self._executor.running(driver))

    def hung(self, driver: str) -> bool:
        """Tell whether as many calls hang as may run at once. Only a restart of the process can change that."""
        return self._executor.hung(driver)

    async def call(
        self,
        driver: DriverView,
        request: HookRequest[R],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - a hook cannot be cancelled
    ) -> R:
        """Call the hook of this request in the driver's own threads.

        timeout: seconds; None: the driver's. The request's context carries it, and its `cancelled` is true once the
        caller has stopped waiting. Raises what `Driver.call` raises, OutcomeUnknown after the timeout (see
        `HookExecutor`), Again if the lease is over, and KeyError for a driver that was not loaded.
        """
        facade = self._drivers[driver.name]
        if request.hook in _ABOUT_THE_DRIVER and self.overrun(driver.name, request.hook):
            # A hook about the driver as a whole that hangs costs it one thread, not one a call.
            raise Unavailable(f"an earlier call of {request.hook} of driver {driver.name} has not returned")
        seconds = self.limits(driver.name).timeout if timeout is None else timeout
        abandoned = threading.Event()
        context = dataclasses.replace(request.context, timeout=seconds, cancelled=abandoned.is_set)
        complete = dataclasses.replace(request, context=context)
        clock = asyncio.get_running_loop().time
        began, outcome = clock(), "cancelled"
        try:
            with logs.bound(driver=driver.name):
                result = await self._executor.call(
                    driver.name,
                    lambda: self._call_in_thread(facade, complete),
                    seconds,
                    what=request.hook,
                    abandoned=abandoned,
                )
            outcome = "in_progress" if isinstance(result, InProgress) else "ok"
        except (BackendError, PluginError) as error:
            outcome = type(error).__name__
            raise
        finally:
            if self._metrics is not None:
                self._metrics.hook_ended(driver.name, request.hook, clock() - began, outcome)
        return result

    def _call_in_thread(self, driver: Driver, request: HookRequest[R]) -> R:
        # The process may have lost the lease since the call was decided and queued.
        if request.hook not in _CHANGES_NOTHING and not self._may_begin():
            raise Again(after=LIVE_STATE_FORBIDS.delay())
        return self._call_hook(driver, request)
