"""Snapshots through random schedules: objects removed by force, crashes, failing hooks and writes at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from integration.snapshot_world import World, beside, of_snapshots, storage, strip
from volplane import Unavailable
from volplane.kube import names
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing import Cluster
from volplane_testing.control_plane import Controllers, ControllerSpec
from volplane_testing.faults import FailAfter, FailBefore, FaultyBackend, Slow
from volplane_testing.memory import MemoryBackend
from volplane_testing.memory_storage import MemorySnapshot
from volplane_testing.transport import FaultScript, FaultTransport, answer_lost, refuse

SEEDS = range(6)
BY_PEOPLE = ("cut", "cut", "delete", "crash", "fail")
BY_FORCE = ("delete content", "strip", "strip content", "lose", "class")


class Recorded(dict[str, MemorySnapshot]):
    """Snapshots by handle, with the names under which any was ever cut."""

    def __init__(self) -> None:
        super().__init__()
        self.cut: list[str] = []

    def __setitem__(self, handle: str, made: MemorySnapshot) -> None:
        self.cut.append(made.name)
        super().__setitem__(handle, made)


class Schedule:
    """One seed: what happens to the snapshots of one claim."""

    def __init__(self, world: World, random: Random, kept: Recorded, actions: Sequence[str]) -> None:
        self.world = world
        self.actions = actions
        self.kept = kept
        self.random = random
        self.made = 0
        self.unled: set[str] = set()
        """Names on the storage to which no object may lead: their content was removed by force, or is retained."""
        self.moments: dict[str, str] = {}

    def snapshots(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.world.api.all("volumesnapshots")]

    def contents(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.world.api.all("volumesnapshotcontents")]

    async def act(self) -> None:
        api, random = self.world.api, self.random
        does = random.choice(self.actions)
        if does == "cut":
            self.made += 1
            self.world.cut(f"s{self.made}", volumeSnapshotClassName="daily")
        elif does == "delete" and (found := self.snapshots()):
            api.delete("volumesnapshots", random.choice(found))
        elif does == "delete content" and (found := self.contents()):
            name = random.choice(found)
            content = api.get("volumesnapshotcontents", name)
            if content is not None and content["spec"]["deletionPolicy"] == "Retain":
                self.unled.add(f"snapshot-{content['spec']['volumeSnapshotRef']['uid']}")
            api.delete("volumesnapshotcontents", name)
        elif does == "strip" and (found := self.snapshots()):
            strip(self.world.cluster, "volumesnapshots", random.choice(found))
        elif does == "strip content" and (found := self.contents()):
            name = random.choice(found)
            self.unled.add(name.replace("snapcontent-", "snapshot-"))
            strip(self.world.cluster, "volumesnapshotcontents", name)
        elif does == "crash":
            await self.world.cluster.restart()
        elif does == "fail":
            fault = random.choice([refuse(409), refuse(500), answer_lost])
            self.world.cluster.script.add(of_snapshots, fault, skip=random.randrange(4))
        elif does == "lose" and self.kept:
            # A VolumeSnapshot that does not show its moment yet had none for anybody: it may be cut again.
            handle = random.choice(sorted(self.kept))
            uid = self.kept[handle].name.removeprefix("snapshot-")
            if uid in self.moments:
                del self.kept[handle]
        elif does == "class":
            policy = random.choice(["Delete", "Retain"])
            api.patch("volumesnapshotclasses", "daily", {"deletionPolicy": policy})
        self.look()

    def look(self) -> None:
        """The moment that a VolumeSnapshot shows never changes."""
        for each in self.world.api.all("volumesnapshots"):
            if (at := (each.get("status") or {}).get("creationTime")) is not None:
                assert self.moments.setdefault(each["metadata"]["uid"], at) == at

    async def end(self) -> None:
        """Heal everything, and delete every object, with the snapshots."""
        cluster, api = self.world.cluster, self.world.api
        cluster.heal()
        for name in self.contents():
            api.patch("volumesnapshotcontents", name, {"spec": {"deletionPolicy": "Delete"}})
        for name in self.snapshots():
            api.delete("volumesnapshots", name)
        await self.world.wait(lambda: not self.snapshots(), seconds=7200.0, what="no VolumeSnapshot is left")
        for name in self.contents():
            api.delete("volumesnapshotcontents", name)
        await self.world.wait(lambda: not self.contents(), seconds=7200.0, what="no content is left")
        await self.world.wait(lambda: names.CLAIM_AS_SOURCE not in self.world.finalizers(), what="the claim is free")


def faults(random: Random) -> Any:
    def some() -> list[Any]:
        return [
            random.choice([Slow(), Slow(), Slow(after=3.0), FailBefore(Unavailable("no")), FailAfter()])
            for _ in range(20)
        ]

    return {hook: some() for hook in ("create_snapshot", "find_snapshot", "delete_snapshot")}


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_is_cut_twice_or_lost_or_stuck(seed: int) -> None:
    random = Random(seed)
    made, kept = storage(), Recorded()
    made.snapshots = kept
    async with Cluster([FaultyBackend(MemoryBackend(storage=made), faults(random))], seed=seed) as cluster:
        world = World(cluster)
        await world.begin()
        schedule = Schedule(world, random, kept, (*BY_PEOPLE, *BY_FORCE))
        made.delay = random.choice([0.0, 5.0])
        for _ in range(14):
            await schedule.act()
            await asyncio.sleep(random.choice([0.0, 0.0, 0.001, 0.1, 2.0, 20.0]))
        await schedule.end()
        schedule.look()
        left = {each.name for each in kept.values()} - schedule.unled
        assert not left, (left, kept.cut)
        assert len(kept.cut) == len(set(kept.cut)), kept.cut


@pytest.mark.parametrize("seed", SEEDS)
async def test_beside_a_stock_controller_nothing_is_cut_twice_or_lost_or_stuck(seed: int) -> None:
    random = Random(seed)
    made, kept = storage(), Recorded()
    made.snapshots = kept
    async with beside(made, faults(random)) as world:
        schedule = Schedule(world, random, kept, BY_PEOPLE)
        made.delay = random.choice([0.0, 5.0])
        for _ in range(14):
            await schedule.act()
            await asyncio.sleep(random.choice([0.0, 0.0, 0.001, 0.1, 2.0, 20.0]))
        await schedule.end()
        assert not kept, kept.cut
        assert len(kept.cut) == len(set(kept.cut)), kept.cut


@pytest.mark.parametrize("seed", SEEDS)
async def test_two_processes_that_both_lead_cut_nothing_twice_and_lose_nothing(seed: int) -> None:
    """As after a failover that the former leader has not noticed."""
    random = Random(seed)
    made, kept = storage(), Recorded()
    made.snapshots = kept
    backend = FaultyBackend(MemoryBackend(storage=made), faults(random))
    async with Cluster([backend], seed=seed) as cluster:
        world = World(cluster)
        await world.begin()
        spec = ControllerSpec(
            backends={cluster.driver: backend}, controllers=frozenset({"snapshot-controller", "snapshotter"})
        )
        transport = FaultTransport(InProcessTransport(cluster.server), FaultScript())
        former = Controllers(spec, cluster.server, transport, Random(seed))
        await former.start()
        schedule = Schedule(world, random, kept, (*BY_PEOPLE, *BY_FORCE))
        made.delay = random.choice([0.0, 5.0])
        for _ in range(14):
            await schedule.act()
            await asyncio.sleep(random.choice([0.0, 0.0, 0.001, 0.1, 2.0, 20.0]))
        await former.kill()
        await schedule.end()
        schedule.look()
        left = {each.name for each in kept.values()} - schedule.unled
        assert not left, (left, kept.cut)
        assert len(kept.cut) == len(set(kept.cut)), kept.cut
