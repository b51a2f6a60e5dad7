"""A registry under test in virtual time, and operations that fail or take long."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from volplane.operations import DriverLimits, Ended, OperationRegistry, Phase
from volplane_testing.clock import run

Run = Callable[[], Awaitable[None]]


class Bench:
    """A registry whose objects, when queued again, write down when that was."""

    def __init__(self, limits: dict[str, DriverLimits] | None = None) -> None:
        self.ended: list[Ended] = []
        self.registry = OperationRegistry(limits, observe=self.ended.append)
        self.requeued: list[tuple[str, float]] = []
        self.ran: list[tuple[str, float]] = []

    def start(
        self,
        name: str,
        work: Run | None = None,
        *,
        asset: str = "a",
        driver: str = "d",
        node: str | None = None,
        requeue: Callable[[], None] | None = None,
    ) -> None:
        async def body() -> None:
            self.ran.append((name, now()))
            if work is not None:
                await work()

        self.registry.start(
            name,
            driver=driver,
            asset=asset,
            run=body,
            requeue=requeue or (lambda: self.requeued.append((name, now()))),
            node=node,
        )

    def phases(self) -> dict[str, Phase]:
        return {state.name: state.phase for state in self.registry.snapshot()}


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


def during(main: Callable[[Bench], Coroutine[Any, Any, None]], limits: dict[str, DriverLimits] | None = None) -> Bench:
    bench: list[Bench] = []

    async def outer() -> None:
        bench.append(Bench(limits))
        await main(bench[0])

    run(outer())
    return bench[0]


def failing(error: Exception) -> Run:
    async def work() -> None:
        raise error

    return work


def sleeping(seconds: float) -> Run:
    async def work() -> None:
        await asyncio.sleep(seconds)

    return work
