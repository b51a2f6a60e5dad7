"""Who may call the API server first: writes that matter at once, courtesies (events) when there is room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

__all__ = ["Courtesy"]


class Courtesy:
    """Keeps low-priority calls out of the way of the others.

    enter and leave: around a call that never waits, and is only counted. after_others: at most `width` run at a time, and each waits until fewer than
    `busy` others are in flight, but no longer than `patience` seconds, so that it is late rather than lost.
    """

    def __init__(self, *, width: int = 2, busy: int = 4, patience: float = 5.0) -> None:
        self._width = asyncio.Semaphore(width)
        self._busy = busy
        self._patience = patience
        self._in_flight = 0
        self._calm = asyncio.Event()
        self._calm.set()

    @asynccontextmanager
    async def after_others(self) -> AsyncIterator[None]:
        async with self._width:
            if not self._calm.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._patience):
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
