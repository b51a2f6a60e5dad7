"""Holding back while the API server is in trouble: many objects that each retry for themselves would keep it there."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from volplane.backoff import CIRCUIT_OPEN
from volplane.errors import ApiUnavailable

__all__ = ["Patience"]

_TICK = 0.001


class Patience:
    """Lets calls go one by one, ever slower (10 to 1 per second), from the tenth failure in a row to the next answer.

    Belongs to one event loop. The owner tells it how each call ended, and awaits `turn` while `troubled`.
    """

    def __init__(self) -> None:
        self.troubled = False
        self._failures = 0
        self._pause = 0.0
        self._next = 0.0
        self._over = asyncio.Event()

    def answered(self) -> None:
        """A call had a usable answer, a refusal included."""
        self._failures = 0
        if self.troubled:
            self.troubled = False
            self._over.set()

    def failed(self, retry_after: float | None = None) -> None:
        """A call had none: no connection, 429 or 5xx. retry_after: the seconds the server asked for."""
        self._failures += 1
        if self._failures < CIRCUIT_OPEN.threshold:
            return
        now = asyncio.get_running_loop().time()
        if not self.troubled:
            self.troubled = True
            self._over.clear()
        self._pause = CIRCUIT_OPEN.delay(self._failures)
        self._next = now + CIRCUIT_OPEN.delay(self._failures, asked=retry_after)

    async def turn(self, seconds: float, call: str) -> float:
        """Wait until the call may go; the seconds that are left of its time. Raises ApiUnavailable if there are none."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self.troubled:
            # A timer may ring a clock tick early.
            if loop.time() >= self._next - _TICK:
                self._next = loop.time() + self._pause
                break
            if self._next >= end:
                raise ApiUnavailable(f"{call} was not sent: the API server gives no usable answers", status=0)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._next):
                    await self._over.wait()
        return end - loop.time()
