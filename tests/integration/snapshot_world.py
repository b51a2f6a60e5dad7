"""A cluster with a bound claim and snapshots of it, for tests of snapshots: in virtual time, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from integration.stock_api import StockApi
from integration.stock_snapshots import StockSnapshotController
from volplane.kube import names
from volplane_testing import Cluster
from volplane_testing.control_plane import reasons_of
from volplane_testing.faults import FaultyBackend
from volplane_testing.memory import MemoryBackend
from volplane_testing.memory_storage import MemoryStorage
from volplane_testing.transport import ApiCall, Ask

WRITES = ("create", "patch", "delete")


def of_snapshots(call: ApiCall) -> bool:
    """Whether a request writes an object, other than an event."""
    return call.verb in WRITES and call.resource != "events"


def storage(delay: float = 0.0) -> MemoryStorage:
    clock = asyncio.get_running_loop().time
    return MemoryStorage(delay=delay, clock=clock, now=lambda: 1_767_225_600.0 + clock())


class World:
    """A cluster with a class of snapshots, and a bound claim."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.api = cluster.api

    async def begin(self, *, policy: str = "Delete", default: bool = True, **fields: Any) -> None:
        await self.cluster.create_class("fast")
        self.claim = await self.cluster.create_claim("data", storage_class="fast")
        await self.cluster.wait_bound(self.claim)
        self.create_class(policy=policy, default=default, **fields)

    def create_class(self, name: str = "daily", *, policy: str = "Delete", default: bool = True, **fields: Any) -> Any:
        marks = {names.DEFAULT_SNAPSHOT_CLASS: "true"} if default else {}
        metadata = {"name": name, "annotations": marks}
        body = {"metadata": metadata, "driver": self.cluster.driver, "deletionPolicy": policy, **fields}
        return self.api.create("volumesnapshotclasses", body)

    def cut(self, name: str = "s", **spec: Any) -> Any:
        body = {"source": {"persistentVolumeClaimName": "data"}, **spec}
        return self.api.create("volumesnapshots", {"metadata": {"name": name}, "spec": body})

    def snapshot(self, name: str = "s") -> Any:
        return self.api.get("volumesnapshots", name)

    def content(self, name: str = "s") -> Any:
        shown = self.snapshot(name)
        contents = self.api.all("volumesnapshotcontents")
        return next((c for c in contents if shown and c["metadata"]["name"].endswith(shown["metadata"]["uid"])), None)

    async def status(self, name: str = "s", seconds: float = 600.0, **wanted: Any) -> Any:
        """The status of a VolumeSnapshot once it has these values."""

        def shown() -> Any:
            status = (self.snapshot(name) or {}).get("status") or {}
            return status if all(status.get(key) == value for key, value in wanted.items()) else None

        return await self.wait(shown, seconds, f"{name} shows {wanted}")

    async def wait(self, condition: Any, seconds: float = 600.0, what: str = "it happens") -> Any:
        loop = asyncio.get_running_loop()
        began, pause = loop.time(), 0.01
        while not (found := condition()):
            self.cluster.controllers.check()
            if loop.time() > began + seconds:
                reasons = reasons_of(self.cluster.controllers.plane)
                raise AssertionError(f"after {seconds:g} s not: {what}; {reasons}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.2, 20.0)
        return found

    async def gone(self, name: str = "s") -> None:
        await self.wait(lambda: self.snapshot(name) is None, what=f"{name} is gone")

    def writes(self) -> list[str]:
        """The writes of the controllers so far, without those of events."""
        return [f"{each.verb} {each.resource}" for each in self.cluster.requests if of_snapshots(each)]

    def finalizers(self) -> Any:
        found = self.api.get("persistentvolumeclaims", "data") or {"metadata": {}}
        return found["metadata"].get("finalizers") or []


async def crash_at(world: World, number: int, act: Callable[[], Any], *, lost: bool = False) -> bool:
    """Kill the controllers right after their write of this number since `act`; False if there are fewer.

    lost: before that write reaches the server.
    """
    died = asyncio.Event()

    async def die(_call: ApiCall, ask: Ask) -> Any:
        if not lost:
            await ask()
        died.set()
        return await asyncio.get_running_loop().create_future()

    fault = world.cluster.script.add(of_snapshots, die, skip=number)
    act()
    try:
        async with asyncio.timeout(300.0):
            await died.wait()
    except TimeoutError:
        return False
    finally:
        fault.times = 0
    await world.cluster.restart()
    return True


def strip(cluster: Cluster, resource: str, name: str) -> None:
    """Delete an object although finalizers hold it."""
    cluster.api.delete(resource, name)
    if cluster.api.get(resource, name) is not None:
        cluster.api.patch(resource, name, {"metadata": {"finalizers": None}})


@asynccontextmanager
async def beside(made: MemoryStorage, faults: Any = None) -> AsyncIterator[World]:
    """A world in which a stock snapshot-controller runs, and holds its Lease."""
    backend = FaultyBackend(MemoryBackend(storage=made), faults or {})
    async with Cluster([backend]) as cluster:
        cluster.api.create("leases", {"metadata": {"name": "other"}}, "kube-system")
        stock = asyncio.create_task(StockSnapshotController(StockApi(cluster.server, 0.002)).run())
        try:
            await asyncio.sleep(1.0)
            world = World(cluster)
            await world.begin()
            await cluster.settle()
            yield world
            assert not stock.done()
        finally:
            stock.cancel()
            await asyncio.wait([stock])
