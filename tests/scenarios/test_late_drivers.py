"""Drivers that are made after the control plane has begun to work: a slow import, a constructor that hangs."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from volplane.drivers.driver import BrokenDriver, Driver, DriverState, LoadedDrivers, PendingDriver
from volplane.state.naming import node_hash
from volplane_testing import Cluster, MemoryStorage
from volplane_testing.control_plane import Controllers, reasons_of
from volplane_testing.distributed import CENTRAL, NODE_DRIVER, DistributedCluster
from volplane_testing.memory import DRIVER, MemoryBackend

GOOD = "good.example.com"


class Late:
    """Keeps one driver of each process back until it is `made`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._held: list[tuple[PendingDriver, Driver]] = []

    def hold(self, loaded: LoadedDrivers) -> LoadedDrivers:
        """What was loaded without the driver."""
        (driver,) = (each for each in (*loaded.drivers, *loaded.distributed) if each.name == self.name)
        pending = PendingDriver(
            name=self.name, backend="late", on_nodes=driver in loaded.distributed, doing="importing the backend"
        )
        self._held.append((pending, driver))
        return replace(
            loaded,
            drivers=tuple(each for each in loaded.drivers if each is not driver),
            distributed=tuple(each for each in loaded.distributed if each is not driver),
            pending=(pending,),
        )

    def made(self) -> None:
        for pending, driver in self._held:
            if not pending.made.done():
                pending.made.set_result(driver)

    def failed(self, error: str) -> None:
        for pending, _ in self._held:
            pending.made.set_result(BrokenDriver(name=self.name, backend="late", error=error))


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Late:
    """The driver in memory is late, in every process of the test."""
    kept = Late(DRIVER)
    load: Callable[[Any], LoadedDrivers] = Controllers._load
    monkeypatch.setattr(Controllers, "_load", lambda self: kept.hold(load(self)))
    return kept


@asynccontextmanager
async def two_drivers() -> AsyncIterator[Cluster]:
    """A good driver and the late one, both in memory, each with a class."""
    async with Cluster({GOOD: MemoryBackend(), DRIVER: MemoryBackend(storage=MemoryStorage(prefix="late"))}) as cluster:
        cluster.api.create("nodes", {"metadata": {"name": "node-1"}, "spec": {"providerID": "memory:///node-1"}})
        await cluster.create_class("good", driver=GOOD)
        await cluster.create_class("late", driver=DRIVER)
        yield cluster


def state(cluster: Cluster, name: str = DRIVER) -> tuple[DriverState, str]:
    (found,) = (each for each in cluster.controllers.plane.drivers.status() if each.name == name)
    return found.state, found.error


def reason(cluster: Cluster, key: str) -> str:
    return cluster.controllers.plane.reason("claims", key)


async def test_a_late_driver_delays_no_claim_of_another_and_serves_its_own_once_it_is_made(late: Late) -> None:
    async with two_drivers() as cluster:
        held = await cluster.create_claim("held", storage_class="late", capacity="1Gi")
        quick = await cluster.create_claim("quick", storage_class="good", capacity="1Gi")
        await cluster.wait_bound(quick)
        assert state(cluster) == (DriverState.STARTING, "")
        assert reason(cluster, "default/held") == f'driver "{DRIVER}" is starting'
        assert not [each for each in cluster.api.events(held) if each["type"] == "Warning"]
        await cluster.advance(20.0)
        assert state(cluster) == (DriverState.STARTING, "importing the backend has not ended yet")
        assert "importing the backend has not ended yet" in reason(cluster, "default/held")
        late.made()
        await cluster.wait_bound(held)
        assert state(cluster) == (DriverState.READY, "")


async def test_a_driver_that_is_never_made_becomes_broken_and_its_claims_say_why(late: Late) -> None:
    async with two_drivers() as cluster:
        await cluster.create_claim("held", storage_class="late", capacity="1Gi")
        await cluster.advance(30.0)
        late.failed("making the backend did not end within 30 s")
        await cluster.advance(1.0)
        assert state(cluster) == (DriverState.BROKEN, "making the backend did not end within 30 s")
        assert "making the backend did not end within 30 s" in reason(cluster, "default/held")
        await cluster.wait_bound(await cluster.create_claim("quick", storage_class="good", capacity="1Gi"))


async def test_the_next_leader_waits_no_longer_for_it_than_the_one_before(late: Late) -> None:
    async with two_drivers() as cluster:
        held = await cluster.create_claim("held", storage_class="late", capacity="1Gi")
        await cluster.advance(20.0)
        await cluster.restart()
        await cluster.wait_bound(await cluster.create_claim("quick", storage_class="good", capacity="1Gi"))
        assert state(cluster)[0] is DriverState.STARTING
        late.made()
        await cluster.wait_bound(held)


async def test_attachments_of_a_late_driver_wait_for_it_and_nobody_else_serves_them(late: Late) -> None:
    """The other driver has the same CSI driver name, and finds no such disk."""
    async with two_drivers() as cluster:
        volume = await volume_of_the_late_driver(cluster, late)
        await cluster.restart()
        attach(cluster, volume)
        await cluster.advance(20.0)
        assert not attached(cluster, volume)
        assert "importing the backend has not ended yet" in reasons_of(cluster.controllers.plane)[f"attacher {volume}"]
        late.made()
        await cluster.advance(5.0)
        assert attached(cluster, volume)


async def test_claims_of_a_late_driver_grow_once_it_is_made(late: Late) -> None:
    async with two_drivers() as cluster:
        cluster.api.patch("storageclasses", "late", {"allowVolumeExpansion": True})
        await volume_of_the_late_driver(cluster, late)
        await cluster.restart()
        [claim] = cluster.api.all("persistentvolumeclaims")
        name, size = claim["metadata"]["name"], {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
        cluster.api.patch("persistentvolumeclaims", name, size)
        await cluster.advance(20.0)
        assert "importing the backend" in reasons_of(cluster.controllers.plane)[f"resizer default/{name}"]
        late.made()
        await cluster.advance(5.0)
        [claim] = cluster.api.all("persistentvolumeclaims")
        assert claim["status"]["capacity"] == {"storage": "2Gi"}


async def test_the_attacher_runs_though_no_driver_that_attaches_was_made_before_the_term(late: Late) -> None:
    async with Cluster() as cluster:
        cluster.api.create("nodes", {"metadata": {"name": "node-1"}, "spec": {"providerID": "memory:///node-1"}})
        await cluster.create_class("late")
        volume = await volume_of_the_late_driver(cluster, late)
        await cluster.restart()
        attach(cluster, volume)
        await cluster.advance(20.0)
        assert "importing the backend has not ended yet" in reasons_of(cluster.controllers.plane)[f"attacher {volume}"]
        late.made()
        await cluster.advance(5.0)
        assert attached(cluster, volume)
        cluster.api.delete("volumeattachments", volume)
        await cluster.wait_for(lambda: not cluster.api.get("volumeattachments", volume), 60.0, "detached")


async def volume_of_the_late_driver(cluster: Cluster, late: Late) -> str:
    late.made()
    bound = await cluster.wait_bound(await cluster.create_claim("data", storage_class="late", capacity="1Gi"))
    name: str = bound["metadata"]["name"]
    return name


def attach(cluster: Cluster, volume: str) -> None:
    """Ask for an attachment, which gets the volume's name."""
    spec = {"attacher": DRIVER, "nodeName": "node-1", "source": {"persistentVolumeName": volume}}
    cluster.api.create("volumeattachments", {"metadata": {"name": volume}, "spec": spec})


def attached(cluster: Cluster, volume: str) -> bool:
    found = cluster.api.get("volumeattachments", volume) or {}
    return bool(found.get("status", {}).get("attached"))


def hold_in(monkeypatch: pytest.MonkeyPatch, *processes: str) -> Late:
    """The distributed driver is late in these processes: of nodes, or "" for the one that assigns."""
    late = Late(NODE_DRIVER)
    load: Callable[[Any, str], LoadedDrivers] = DistributedCluster._loaded

    def loaded(self: DistributedCluster, node: str) -> LoadedDrivers:
        return late.hold(load(self, node)) if node in processes else load(self, node)

    monkeypatch.setattr(DistributedCluster, "_loaded", loaded)
    return late


async def test_a_late_driver_of_nodes_has_its_claims_placed_once_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the caches hold by then counts: the volume on node a, and the room of both."""
    late = hold_in(monkeypatch, "")
    async with DistributedCluster(["a", "b"], capacity=10 << 30) as cluster:
        cluster.create_class("local")
        late.made()
        cluster.create_claim("first", "local", "6Gi", node="a")
        await cluster.settle()
        await cluster.kill(CENTRAL)
        cluster.api.delete("csidrivers", NODE_DRIVER)
        await cluster.start(CENTRAL)
        second = cluster.create_claim("second", "local", "6Gi")
        await cluster.advance(30.0)
        assert f'central: assigner: driver "{NODE_DRIVER}" is starting' in cluster.why("second")
        assert not [each for each in cluster.api.events(second) if each["type"] == "Warning"]
        assert not [each for each in cluster.why("first") if "starting" in each], "it is bound"
        assert [each.state for each in cluster.plane(CENTRAL).drivers.status()] == [DriverState.STARTING]
        late.made()
        await cluster.settle()
        assert (cluster.node_of("first"), cluster.node_of("second")) == ("a", "b")
        placing = inspect.getclosurevars(cluster.plane(CENTRAL).controllers["assigner"].decide).nonlocals["state"]
        assert [placing.usage.counts[NODE_DRIVER, node_hash(name)] for name in ("a", "b")] == [1, 1]
        assert placing.count_lost() == {NODE_DRIVER: 0}
        described = cluster.api.get("csidrivers", NODE_DRIVER)
        assert described is not None
        assert described["spec"]["storageCapacity"]
        assert cluster.plane(CENTRAL).drivers.status() == (), "the processes of the nodes tell of it"


async def test_a_volume_of_a_late_driver_of_nodes_is_deleted_by_the_process_of_its_node_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = hold_in(monkeypatch, "")
    async with DistributedCluster(["a"]) as cluster:
        cluster.create_class("local")
        late.made()
        cluster.create_claim("data", "local", node="a")
        await cluster.settle()
        await cluster.restart(CENTRAL)
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.advance(30.0)
        assert cluster.assets() == {"a": []}


async def test_the_process_of_a_node_publishes_the_room_of_a_late_driver_and_serves_its_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = hold_in(monkeypatch, "a")
    async with DistributedCluster(["a", "b"]) as cluster:
        cluster.create_class("local")
        cluster.create_claim("here", "local", node="a")
        cluster.create_claim("there", "local", node="b")
        await cluster.advance(30.0)
        assert cluster.node_of("there") == "b"
        assert not cluster.node_of("here")
        assert not cluster.plane("a").state.capacities.keys()
        late.made()
        await cluster.settle()
        assert cluster.node_of("here") == "a"
        assert len(cluster.plane("a").state.capacities.keys()) == 1
