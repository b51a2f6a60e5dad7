"""What goes on for callers: work that outlives them. An equal call joins it, another one for the same thing waits.

Nothing here knows gRPC. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from volplane.controller.actions import Run
from volplane.csi.codes import CsiError
from volplane.operations.operation import RUNNING, Operation

T = TypeVar("T")
log = logging.getLogger(__name__)

PATIENCE = 600.0
"""Seconds after which work that waits for its storage, and for which nobody waits any more, is left to a next call."""


@dataclass(eq=False)
class Flight:
    """One piece of work. Its keys are taken until it and every hook that it has called have ended."""

    digest: bytes
    """Equal for equal calls."""
    method: str
    keys: list[str]
    operation: Operation
    callers: int = 0
    alone_since: float = 0.0
    """Loop time at which its last caller left."""
    task: asyncio.Task[Any] = field(init=False)
    over: asyncio.Future[None] = field(init=False)

    @property
    def abandoned(self) -> bool:
        """Whether nobody has waited for it for so long that it need not go on."""
        now = asyncio.get_running_loop().time()
        return not self.callers and now - self.alone_since > PATIENCE


async def _nothing() -> None:
    """Stand for the work of an operation, which the flight does itself."""


class Flights:
    """All work of a bridge, by the names and ids that it is about."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._taken: dict[str, Flight] = {}

    def __len__(self) -> int:
        return len({id(flight) for flight in self._taken.values()})

    async def run(
        self, method: str, key: str, digest: bytes, work: Callable[[Flight], Awaitable[T]], seconds: float
    ) -> T:
        """Return the result of the work, begun now or by an equal call before. Raises what it raises.

        seconds: that the caller still waits; then it gets ABORTED, and the work goes on.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (flight := self._taken.get(key)) is not None and flight.digest != digest:
            await asyncio.wait([flight.over], timeout=max(end - loop.time(), 0.0))
            if not flight.over.done():
                raise CsiError("ABORTED", f"{flight.method} of the same object goes on; ask again")
        if flight is None:
            flight = self._begin(method, key, digest, work)
        flight.callers += 1
        try:
            await asyncio.wait([flight.task], timeout=max(end - loop.time(), 0.0))
        finally:
            flight.callers -= 1
            flight.alone_since = loop.time()
        if not flight.task.done():
            raise CsiError("ABORTED", f"{method} goes on; ask again")
        result: T = flight.task.result()
        return result

    def _begin(self, method: str, key: str, digest: bytes, work: Callable[[Flight], Awaitable[T]]) -> Flight:
        loop = asyncio.get_running_loop()
        run = Run(verb=method, key=key, uid="", driver=self._driver, asset=key)
        operation = Operation(
            run=run, name=f"{method} {key}", work=_nothing, requeue=lambda: None, since=loop.time(), failures=0
        )
        flight = Flight(digest, method, [key], operation)
        flight.over = loop.create_future()
        self._taken[key] = flight

        async def perform() -> T:
            RUNNING.set(operation)
            return await work(flight)

        flight.task = loop.create_task(perform(), name=operation.name)
        flight.task.add_done_callback(lambda _task: self._ended(flight))
        return flight

    def also(self, flight: Flight, key: str) -> None:
        """Take a further key for the work. Raises CsiError if another one has it."""
        other = self._taken.get(key)
        if other is not None and other is not flight:
            raise CsiError("ABORTED", f"{other.method} of the same object goes on; ask again")
        self._taken[key] = flight
        flight.keys.append(key)

    def _ended(self, flight: Flight) -> None:
        if not flight.task.cancelled():
            flight.task.exception()  # It has been seen, also where no caller is left.
        running = [each for each in flight.operation.held if not each.done()]
        if running:
            # A hook overran its time: nothing else may touch what it works on.
            running[0].add_done_callback(lambda _returned: self._ended(flight))
            return
        for key in flight.keys:
            if self._taken.get(key) is flight:
                del self._taken[key]
        if not flight.over.done():
            flight.over.set_result(None)

    async def drain(self, seconds: float) -> Sequence[str]:
        """Wait until all work has ended; return what has not."""
        overs = [flight.over for flight in set(self._taken.values())]
        if overs:
            await asyncio.wait(overs, timeout=seconds)
        return sorted({f"{flight.method} {flight.keys[0]}" for flight in self._taken.values()})
