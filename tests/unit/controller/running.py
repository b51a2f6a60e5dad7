"""A runner at work in a small world: what it wrote, told and started."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from volplane.controller.actions import Action, EventRecord, LiveReads, Patch, Run
from volplane.controller.runner import Runner
from volplane.errors import OperationError
from volplane.kube.cache import Cache
from volplane.kube.kinds import VOLUMES
from volplane.kube.objects import Volume
from volplane.kube.reflector import Reflector
from volplane_testing.control_plane import idle

SPEC = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/tmp/x"}}


async def nothing(_run: Run) -> None:
    await asyncio.sleep(0)


@dataclass
class Notices:
    seen: list[EventRecord] = field(default_factory=list)

    def record(self, event: EventRecord) -> None:
        self.seen.append(event)


class Dispatcher:
    """Starts everything at once, unless told what to raise."""

    def __init__(self) -> None:
        self.started: list[Run] = []
        self.work: Callable[[Run], Coroutine[Any, Any, None]] = nothing
        self.refuse: list[OperationError] = []
        self.waiting: list[Callable[[], None]] = []

    def start(self, run: Run, requeue: Callable[[], None]) -> None:
        if self.refuse:
            self.waiting.append(requeue)
            raise self.refuse.pop(0)
        self.started.append(run)
        self.task = asyncio.ensure_future(self.work(run))
        self.task.add_done_callback(lambda _: requeue())


class World:
    """A runner over volumes on an embedded server. `watching`: whether the cache also hears of what others do."""

    def __init__(self, wire: Any) -> None:
        self.wire = wire
        self.cache = Cache(VOLUMES)
        self.events = Notices()
        self.operations = Dispatcher()
        self.decided: list[str] = []
        self.leads = True
        self.runner: Runner
        self.run: asyncio.Task[None]

    def volume(self, name: str = "a") -> Volume:
        found = self.cache.get(name)
        assert found is not None
        return found

    async def make(self, name: str = "a", **metadata: Any) -> Volume:
        made: Volume = await self.wire.client.create(
            VOLUMES, VOLUMES.body(metadata={"name": name, **metadata}, spec=SPEC)
        )
        self.cache.observe(made)
        return made

    async def live(self, name: str = "a") -> Volume:
        found: Volume = await self.wire.client.get(VOLUMES, name)
        return found

    async def quiet(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        while not idle(self.runner):
            await asyncio.sleep(0)


@asynccontextmanager
async def running(
    world: World,
    decide: Callable[[str, LiveReads], Action],
    *,
    watching: bool = False,
    workers: int = 4,
    predicate: Callable[[str], bool] | None = None,
) -> AsyncIterator[World]:
    def noting(key: str, reads: LiveReads) -> Action:
        world.decided.append(key)
        return decide(key, reads)

    world.runner = Runner(
        "volumes",
        noting,
        kind=VOLUMES,
        caches={"persistentvolumes": world.cache},
        client=world.wire.client,
        recorder=world.events,
        start_operation=world.operations.start,
        workers=workers,
        predicate=predicate,
        may_begin=lambda: world.leads,
    )
    world.run = asyncio.create_task(world.runner.run())
    tasks = [world.run]
    if watching:
        tasks.append(asyncio.create_task(Reflector(world.wire.client, world.cache, random=Random(1)).run()))
    else:
        world.cache.listed.set()
    try:
        yield world
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def label(volume: Volume, value: str, **more: Any) -> Patch:
    return Patch(
        kind=VOLUMES, target=volume, body={"metadata": {"labels": {"step": value}}}, why=f"reach {value}", **more
    )


def labelled(volume: Volume) -> str:
    return (volume.metadata.labels or {}).get("step", "0")
