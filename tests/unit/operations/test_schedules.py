"""Random schedules: whatever happens, assets are never shared and nobody is left waiting."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from schedules import schedules
from unit.operations.bench import an_operation
from volplane.drivers.executor import PendingCall
from volplane.errors import InvalidArgument, OperationError, Throttled, Unavailable
from volplane.operations.operation import Again, DriverLimits
from volplane.operations.registry import OperationRegistry
from volplane_testing.executor import InlineExecutor

LIMITS = {"d": DriverLimits(concurrency=3), "e": DriverLimits(concurrency=2, rate=1.5)}


class Actor:
    """An object that wants its operation to succeed `goal` times, and only ever acts when it is queued."""

    def __init__(self, world: World, name: str, driver: str, asset: str, node: str | None) -> None:
        self.world, self.name, self.driver, self.asset, self.node = world, name, driver, asset, node
        self.goal = world.random.randint(1, 4)

    def queued(self) -> None:
        if self.goal <= 0:
            return
        try:
            self.world.registry.start(
                an_operation(self.name, driver=self.driver, asset=self.asset, node=self.node or ""),
                self.work,
                self.queued,
            )
        except OperationError:
            self.world.refusals += 1

    async def work(self) -> None:
        random, world = self.world.random, self.world
        what = f"{self.name}#{random.random()}"
        await world.executor.call(PendingCall(self.driver, lambda: world.effect(self, what), 10.0, what=what))
        fault = random.random()
        if fault < 0.15:
            raise Unavailable("down")
        if fault < 0.2:
            raise InvalidArgument("bad")
        if fault < 0.25:
            raise Throttled("slow", retry_after=random.uniform(0, 20))
        if fault < 0.35:
            raise Again(after=random.uniform(0, 20))
        if fault < 0.4:
            raise ZeroDivisionError
        self.goal -= 1


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.registry = OperationRegistry(LIMITS)
        self.executor = InlineExecutor(latency=self.latency)
        self.refusals = 0
        self.overruns = 0
        self.shared: list[str] = []
        self.most: Counter[str] = Counter()

    def latency(self, driver: str, what: str) -> tuple[float, float]:
        late = self.random.random() < 0.1
        self.overruns += late
        return self.random.uniform(5, 60) if late else self.random.uniform(0, 2), self.random.uniform(0, 1)

    def effect(self, actor: Actor, what: str) -> None:
        """Where a hook touches its asset: nobody else may have a call out on it."""
        others = [call.what for call in self.executor.running() if call.what != what]
        for name in (other.partition("#")[0] for other in others):
            driver, asset, node, _ = name.split("/")
            apart = node and actor.node and node != actor.node
            if (driver, asset) == (actor.driver, actor.asset) and not apart:
                self.shared.append(f"{what} beside {others}")
        self.most[actor.driver] = max(self.most[actor.driver], sum(o.startswith(actor.driver) for o in others) + 1)


def actors(world: World) -> list[Actor]:
    """On each asset two operations of the whole asset and two of a node each, which exclude the former only."""
    made = []
    for driver in LIMITS:
        for asset in ("1", "2", "3"):
            for node, verb in ((None, "provision"), (None, "delete"), ("m", "attach"), ("n", "attach")):
                made.append(Actor(world, f"{driver}/{asset}/{node or ''}/{verb}", driver, asset, node))
    return made


@pytest.mark.parametrize("seed", schedules(range(40), limit=200_000))
async def test_assets_are_never_shared_and_every_object_reaches_its_goal(seed: int) -> None:
    world = World(seed)
    everybody = actors(world)
    for actor in everybody:
        actor.queued()
    while any(actor.goal > 0 for actor in everybody):
        await asyncio.sleep(1)
    await asyncio.sleep(2000)
    registry = world.registry
    assert not any((registry._operations, registry._holders, registry._pauses.by_name, registry._pauses.by_asset))
    assert world.shared == []
    assert world.refusals > 0
    assert world.overruns > 0
    assert world.most["d"] <= 3
    assert world.most["e"] <= 2
