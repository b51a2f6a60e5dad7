"""Overload: a storage, a crowd or the API server is too slow. Nothing starves, and no driver waits for another."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from bench.backends import MemoryBackend

from volplane.controller.leader import Elector, Leadership
from volplane.kube.client import Client
from volplane.kube.leases import LeaseLock
from volplane.kube.transport import Response
from volplane.operations.operation import DriverLimits
from volplane.process.process import LEASE_SECONDS, RENEWED_WITHIN
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing import Cluster, clock
from volplane_testing.faults import FaultyBackend, Slow
from volplane_testing.transport import ApiCall, Ask, FaultTransport, refusal

WINDOW = 10.0


class Binds:
    """When each claim was created and bound, by loop time."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.created: dict[str, float] = {}
        self.bound: dict[str, float] = {}
        cluster.server.store.subscribe("persistentvolumeclaims", self._changed)

    def _changed(self, change: Any) -> None:
        name, now = change.key.rpartition("/")[2], asyncio.get_running_loop().time()
        if change.type == "ADDED":
            self.created[name] = now
        elif name not in self.bound and change.new()["status"].get("phase") == "Bound":
            self.bound[name] = now

    async def create(self, storage_class: str, number: int) -> None:
        await self.cluster.create_claim(f"{storage_class}-{number}", storage_class=storage_class)

    def waited(self, *classes: str) -> list[float]:
        """Seconds from creation to Bound, ascending; infinity for a claim that is not bound."""
        of = [name for name in self.created if name.rpartition("-")[0] in classes]
        return sorted(self.bound.get(name, math.inf) - self.created[name] for name in of)

    def fairness(self, *classes: str) -> float:
        """Jain's index of the binds of these classes, at its worst in any window: 1 = all got the same."""
        windows: dict[int, Counter[str]] = {}
        for name, at in self.bound.items():
            if (of := name.rpartition("-")[0]) in classes:
                windows.setdefault(int(at // WINDOW), Counter())[of] += 1
        # The first and the last window are not whole.
        shares = [[windows[each][name] for name in classes] for each in sorted(windows)[1:-1]]
        assert len(shares) > 1
        return min(sum(each) ** 2 / (len(each) * sum(x * x for x in each)) for each in shares)


def drivers(*names: str, slow: Mapping[str, float] | None = None) -> dict[str, object]:
    made: dict[str, object] = {}
    for name in names:
        seconds = (slow or {}).get(name)
        backend = MemoryBackend({})
        faults = {"provision": [Slow(before=seconds)] * 10_000} if seconds is not None else {}
        made[f"{name}.example.com"] = FaultyBackend(backend, faults)
    return made


async def test_a_driver_that_takes_half_a_minute_for_a_call_delays_no_other() -> None:
    names = [f"d{number}" for number in range(10)]
    healthy = names[1:]
    async with Cluster(drivers(*names, slow={"d0": 30.0})) as cluster:
        for name in names:
            await cluster.create_class(name, driver=f"{name}.example.com")
        binds = Binds(cluster)
        for number in range(4, 20):
            for name in names:
                await binds.create(name, number)
            await asyncio.sleep(2.5)
        assert binds.waited(*healthy)[-1] < 0.1
        assert binds.fairness(*healthy) >= 0.95
        await asyncio.sleep(120.0)
        assert binds.waited("d0")[-1] < 120.0


async def crowd(claims: int) -> None:
    """Claims of one class that makes five a second, at once, while four others of the same driver get what they ask."""
    few = [f"few{number}" for number in range(4)]
    limits = {"rated.example.com": DriverLimits(rate=5.0)}
    async with Cluster(drivers("rated", "other"), limits=limits) as cluster:
        await cluster.create_class("crowd", driver="rated.example.com")
        await cluster.create_class("other", driver="other.example.com")
        for name in few:
            await cluster.create_class(name, driver="rated.example.com")
        binds = Binds(cluster)
        for number in range(claims):
            await binds.create("crowd", number)
        await asyncio.sleep(5.0)
        for number in range(30):
            for name in (*few, "other"):
                await binds.create(name, number)
            await asyncio.sleep(0.5)
        plane = cluster.controllers.plane
        assert len(plane.operations.snapshot()) <= claims + 150
        assert binds.waited("other")[-1] < 0.1
        await asyncio.sleep(200.0)
        assert binds.fairness(*few) >= 0.95
        assert binds.waited(*few)[-1] < 200.0
        assert len(binds.bound) >= min(5 * 200, claims + 150)


async def test_a_crowd_of_one_class_leaves_the_other_classes_their_share() -> None:
    await crowd(150)


@pytest.mark.soak
async def test_ten_thousand_claims_of_one_class_leave_the_other_classes_their_share() -> None:
    await crowd(10_000)


async def undisturbed(trouble: str) -> list[float]:
    """Seconds that claims of class `quiet` take to Bound, eight a second, while another storage, or a crowd of another
    class, has trouble.
    """
    limits = {"d0.example.com": DriverLimits(rate=5.0)} if trouble == "a crowd" else {}
    slow = {"d0": 30.0} if trouble == "a slow storage" else {}
    async with Cluster(drivers("d0", "d1", slow=slow), limits=limits) as cluster:
        cluster.script.latency = 0.01
        await cluster.create_class("troubled", driver="d0.example.com")
        await cluster.create_class("quiet", driver="d1.example.com")
        binds = Binds(cluster)
        for number in range(100 if trouble else 0):
            await binds.create("troubled", number)
        for number in range(40):
            await binds.create("quiet", number)
            await asyncio.sleep(0.125)
        await asyncio.sleep(1.0)
        return binds.waited("quiet")


@pytest.mark.parametrize("trouble", ["a slow storage", "a crowd"])
async def test_trouble_of_a_storage_or_a_crowd_makes_others_wait_half_as_long_again_at_most(trouble: str) -> None:
    quiet, troubled = await undisturbed(""), await undisturbed(trouble)
    assert len(quiet) == len(troubled) == 40
    assert 0 < troubled[-1] <= 1.5 * quiet[-1], "the longest; in virtual time, so only rounds to the server count"


async def too_many(_call: ApiCall, _ask: Ask) -> Response:
    answer = refusal(429, "too many requests, please try again later", reason="TooManyRequests")
    return Response(answer.status, {**answer.headers, "retry-after": "1"}, answer.body)


@pytest.mark.parametrize("trouble", ["latency", "429"])
async def test_claims_are_bound_and_the_lease_is_kept_while_watches_are_cut_and_the_server_has(trouble: str) -> None:
    async with Cluster(drivers("d")) as cluster:
        await cluster.create_class("d", driver="d.example.com")
        script, turns = cluster.script, Random(7)
        client = Client(FaultTransport(InProcessTransport(cluster.server), script))
        lock = LeaseLock(
            client, namespace="default", name="volplane", identity="one", now=clock.now, duration=LEASE_SECONDS
        )
        terms: list[Leadership] = []

        async def work(leadership: Leadership) -> None:
            terms.append(leadership)
            await asyncio.Event().wait()

        elector = Elector(lock, random=Random(1), overrun=lambda: None, renew_seconds=LEASE_SECONDS * RENEWED_WITHIN)
        leading = asyncio.create_task(elector.run(work))
        await cluster.settle()
        if trouble == "latency":
            script.latency = 2.5  # to the server; its answer takes as long
        else:
            script.latency = 0.01
            script.add(lambda call: call.verb != "watch" and turns.random() < 1 / 3, too_many, times=math.inf)
        binds = Binds(cluster)
        for number in range(25):
            await binds.create("d", number)
            if number % 10 == 0:
                cluster.drop_watches()
            await asyncio.sleep(6.0)
        await asyncio.sleep(120.0)
        leading.cancel()
        assert len(terms) == 1
        assert binds.waited("d")[-1] < 120.0
