"""A registry under test in virtual time, and operations that fail or take long."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from volplane.controller.actions import Run
from volplane.operations.operation import DriverLimits, Phase
from volplane.operations.registry import OperationRegistry

Work = Callable[[], Awaitable[None]]


class Ended(NamedTuple):
    """What is observed of a run that is over."""

    run: Run
    seconds: float
    error: BaseException | None


class Bench:
    """A registry whose objects, when queued again, write down when that was."""

    def __init__(self, limits: dict[str, DriverLimits] | None = None) -> None:
        self.ended: list[Ended] = []
        self.registry = OperationRegistry(limits, observe=lambda *seen: self.ended.append(Ended(*seen)))
        self.requeued: list[tuple[str, float]] = []
        self.ran: list[tuple[str, float]] = []

    def start(
        self,
        name: str,
        work: Work | None = None,
        *,
        asset: str = "a",
        driver: str = "d",
        node: str = "",
        requeue: Callable[[], None] | None = None,
    ) -> None:
        async def body() -> None:
            self.ran.append((name, now()))
            if work is not None:
                await work()

        self.registry.start(
            an_operation(name, asset=asset, driver=driver, node=node),
            body,
            requeue or (lambda: self.requeued.append((name, now()))),
        )

    def holder(self, asset: str, node: str = "") -> str | None:
        """The operation of driver d that holds this asset, on this node if one is named."""
        held = (s for s in self.registry.snapshot() if s.phase is not Phase.WAITING)
        return next(
            (r.verb for r in held if (r.driver, r.asset) == ("d", asset) and not (node and r.node and r.node != node)),
            None,
        )

    def phases(self) -> dict[str, Phase]:
        return {state.verb: state.phase for state in self.registry.snapshot()}


def an_operation(name: str, *, asset: str = "a", driver: str = "d", node: str = "", group: str = "") -> Run:
    """An operation that tests call by its verb."""
    return Run(verb=name, key="data", uid="uid", driver=driver, asset=asset, node=node, group=group)


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


def failing(error: Exception) -> Work:
    async def work() -> None:
        raise error

    return work


def sleeping(seconds: float) -> Work:
    async def work() -> None:
        await asyncio.sleep(seconds)

    return work
