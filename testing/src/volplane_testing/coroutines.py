"""Runs a coroutine test and its fixtures in one task of one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

__all__ = ["CoroutineRunner"]

T = TypeVar("T")


class CoroutineRunner:
    """Runs coroutines one after the other in the same task, for as long as the context lasts.

    A fixture may therefore enter a task group or a timeout before the test and leave it afterwards: asyncio wants both
    in one task. What is left running at the end is cancelled, as by `asyncio.run`.
    """

    def __init__(self, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._runner = asyncio.Runner(loop_factory=loop_factory)
        self._calls: asyncio.Queue[tuple[Awaitable[Any], asyncio.Future[Any]]] = asyncio.Queue()

    def __enter__(self) -> Self:
        self._runner.__enter__()
        self._task = self.loop.create_task(self._serve(), name="test")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.close()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, which runs only inside `run`."""
        return self._runner.get_loop()

    def run(self, coroutine: Awaitable[T], *, seconds: float | None = None) -> T:
        """Run it to its end and return its result. Raises TimeoutError after `seconds` of the loop's time.

        An exception of the loop itself (`Deadlock`, KeyboardInterrupt) cancels the coroutine and is raised.
        """
        done: asyncio.Future[T] = self.loop.create_future()
        self._calls.put_nowait((_bounded(coroutine, seconds), done))
        try:
            return self.loop.run_until_complete(done)
        except BaseException:
            if not done.done():
                self._task.cancel()
                with suppress(Exception, asyncio.CancelledError):
                    self.loop.run_until_complete(done)
            raise

    async def _serve(self) -> None:
        while True:
            call, done = await self._calls.get()
            try:
                result = await call
            except asyncio.CancelledError:
                self._task.uncancel()
                done.cancel()
            except BaseException as error:  # noqa: BLE001 - `run` raises it
                done.set_exception(error)
            else:
                done.set_result(result)


async def _bounded(coroutine: Awaitable[T], seconds: float | None) -> T:
    async with asyncio.timeout(seconds):
        return await coroutine
