"""Runs hooks in the event loop itself, for tests and simulations in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from volplane.drivers.executor import PendingCall, ThreadExecutor
from volplane.errors import OutcomeUnknown

__all__ = ["InlineExecutor", "Latency"]

Latency = Callable[[str, str], tuple[float, float]]
"""(driver, what) -> loop seconds that pass before the hook takes effect, and between its effect and its return."""


class InlineExecutor(ThreadExecutor):
    """Runs hooks in the loop itself instead of threads, for simulations in virtual time: hooks must not block.

    `latency` makes hooks slow, or late: one that takes longer than its deadline still takes effect afterwards, as a
    thread would.
    """

    def __init__(self, latency: Latency = lambda _driver, _what: (0.0, 0.0)) -> None:
        self._latency = latency
        self._tasks: dict[PendingCall, asyncio.Task[None]] = {}

    async def call(self, call: PendingCall) -> Any:
        loop = asyncio.get_running_loop()
        call.begun = loop.time()
        task = self._tasks[call] = loop.create_task(self._perform(call), name=f"{call.driver} {call.what}")
        task.add_done_callback(lambda _task: self._settle(call, loop.time()))
        return await call.wait(lambda _call: False)

    def running(self, driver: str | None = None) -> tuple[PendingCall, ...]:
        return tuple(call for call in self._tasks if driver in (None, call.driver))

    def close(self) -> None:
        """Cancel the calls that have not returned. A call without an effect by now never has one."""
        for task in self._tasks.values():
            task.cancel()

    async def _perform(self, call: PendingCall) -> None:
        before, after = self._latency(call.driver, call.what)
        await asyncio.sleep(before)
        call.perform()
        await asyncio.sleep(after)

    def _settle(self, call: PendingCall, now: float) -> None:
        task = self._tasks.pop(call)
        if task.cancelled():
            call.error = OutcomeUnknown(f"{call.what} of driver {call.driver} was cut off")
        call.settle(now)
