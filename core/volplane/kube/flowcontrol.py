"""When a call of the API server may be sent: writes before Events, and few calls while the server is in trouble."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from volplane._delays import CIRCUIT_OPEN
from volplane.errors import ApiUnavailable

__all__ = ["CircuitBreaker", "PriorityGate"]

_TICK = 0.001
_LATE = 2.0
"""Seconds by which a timer rings late only where the process was stopped: then what was decided before may be over."""


class PriorityGate:
    """Delays calls of low priority (Events) while many others are in flight.

    enter and leave: around a call of normal priority; it is counted and never waits. low_priority: around any other: at
    most `width` of them run at a time, and each waits until fewer than `busy` calls of normal priority are in flight,
    but at most `longest_wait` seconds, so that it is delayed and not lost.
    """

    def __init__(self, *, width: int = 2, busy: int = 4, longest_wait: float = 5.0) -> None:
        self._width = asyncio.Semaphore(width)
        self._busy = busy
        self._longest_wait = longest_wait
        self._in_flight = 0
        self._calm = asyncio.Event()
        self._calm.set()

    @asynccontextmanager
    async def low_priority(self) -> AsyncIterator[None]:
        async with self._width:
            if not self._calm.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._longest_wait):
                        await self._calm.wait()
            yield

    def enter(self) -> None:
        self._in_flight += 1
        if self._in_flight == self._busy:
            self._calm.clear()

    def leave(self) -> None:
        self._in_flight -= 1
        if self._in_flight == self._busy - 1:
            self._calm.set()


class CircuitBreaker:
    """Lets calls pass one by one while the API server gives no usable answers.

    Many objects that each retry for themselves would keep an overloaded server overloaded. The circuit opens at the
    tenth failure in a row; then one call at a time passes, at intervals of 0.15 to 1 s (`backoff.CIRCUIT_OPEN`). The
    next usable answer closes it. The owner records how each call ended, and awaits `wait` while the circuit is `open`.
    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self.open = False
        self._failures = 0
        self._interval = 0.0
        self._next = 0.0
        self._closed = asyncio.Event()

    def record_success(self) -> None:
        """Record a call with a usable answer. A refusal is one."""
        self._failures = 0
        if self.open:
            self.open = False
            self._closed.set()

    def record_failure(self, retry_after: float | None = None) -> None:
        """Record a call without one: no connection, 429 or 5xx. retry_after: the seconds the server asked for."""
        self._failures += 1
        if self._failures < CIRCUIT_OPEN.threshold:
            return
        now = asyncio.get_running_loop().time()
        if not self.open:
            self.open = True
            self._closed.clear()
        self._interval = CIRCUIT_OPEN.delay(self._failures)
        self._next = now + CIRCUIT_OPEN.delay(self._failures, asked=retry_after)

    async def wait(self, seconds: float, call: str) -> float:
        """Wait until the call may be sent; returns what is left of its `seconds`.

        Raises ApiUnavailable if its time would be over before, or if the process was stopped meanwhile. call: method
        and path, for the error.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self.open:
            # A timer may ring a clock tick early.
            if loop.time() >= self._next - _TICK:
                self._next = loop.time() + self._interval
                break
            due = self._next
            if due >= end:
                raise ApiUnavailable(f"{call} was not sent: the API server gives no usable answers", status=0)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._closed.wait()
            if loop.time() > due + _LATE:
                raise ApiUnavailable(f"{call} was not sent: the process was stopped while it waited", status=0)
        return end - loop.time()
