"""The cluster of the testing kit: backends in it, virtual time, faults of the API, and an exact end of all work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest

from volplane import ProvisionRequest, Unavailable, hookimpl
from volplane_testing import (
    Answer,
    Cluster,
    FailAfter,
    FailBefore,
    FaultyBackend,
    Hang,
    MemoryBackend,
    MemoryStorage,
    Slow,
)
from volplane_testing.clock import run
from volplane_testing.memory import ZONE


class Witness:
    """An extension that sees every call of provision."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @hookimpl(wrapper=True)
    def provision(self, request: ProvisionRequest) -> Generator[None, Any, Any]:
        self.seen.append(request.context.driver)
        return (yield)


Story = Callable[[Cluster], Coroutine[Any, Any, None]]


async def test_a_volume_lives_its_life() -> None:
    async with Cluster() as cluster:
        await cluster.create_class("fast", parameters={"colour": "red"})
        claim = await cluster.create_claim("data", storage_class="fast", capacity="2Gi")
        volume = await cluster.wait_bound(claim)
        assert volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
        assert cluster.backend.storage.assets[volume["metadata"]["name"]].capacity_bytes == 2 << 30
        await cluster.delete_claim(claim)
        await cluster.settle()
        assert claim not in cluster.api
        assert volume not in cluster.api
        assert cluster.backend.storage.assets == {}


async def test_the_default_class_serves_claims_without_one() -> None:
    async with Cluster() as cluster:
        await cluster.create_class("fast", default=True)
        volume = await cluster.wait_bound(await cluster.create_claim("data", namespace="elsewhere"))
        assert volume["spec"]["storageClassName"] == "fast"


async def test_a_volume_made_by_hand_is_bound() -> None:
    async with Cluster() as cluster:
        made = await cluster.create_volume("by-hand", {"hostPath": {"path": "/srv/data"}})
        volume = await cluster.wait_bound(await cluster.create_claim("data", storage_class=""))
        assert volume["metadata"]["uid"] == made["metadata"]["uid"]


async def test_failures_of_the_api_are_survived() -> None:
    async with Cluster() as cluster:
        await cluster.create_class("fast")
        claim = await cluster.create_claim("data", storage_class="fast")
        volume = await cluster.wait_bound(claim)
        cluster.fail("delete", "persistentvolumes", status=409, times=2)
        await cluster.delete_claim(claim)
        await cluster.settle()
        assert volume not in cluster.api
        told = [
            each.status for each in cluster.requests if each.verb == "delete" and each.resource == "persistentvolumes"
        ]
        assert told[:2] == [409, 409]
        assert told[-1] == 200


async def test_a_lost_answer_of_the_api_makes_no_second_asset() -> None:
    async with Cluster() as cluster:
        await cluster.create_class("fast")
        cluster.fail("create", "persistentvolumes", status=0, after=True)
        await cluster.wait_bound(await cluster.create_claim("data", storage_class="fast"))
        await cluster.settle()
        assert cluster.backend.storage.made == 1
        assert len(cluster.api.all("persistentvolumes")) == 1


async def test_dropped_watches_and_a_compacted_history_are_survived() -> None:
    async with Cluster() as cluster:
        await cluster.create_class("fast")
        for number in range(3):
            cluster.drop_watches()
            claim = await cluster.create_claim(f"data-{number}", storage_class="fast")
            cluster.compact()
            cluster.fail("watch", "*", status=503, times=3)
            await cluster.wait_bound(claim)
        await cluster.settle()
        assert len(cluster.backend.storage.assets) == 3


async def test_a_slow_api_is_waited_for() -> None:
    async with Cluster() as cluster:
        await cluster.create_class("fast")
        cluster.delay("create", "persistentvolumes", seconds=7)
        begun = asyncio.get_running_loop().time()
        await cluster.create_claim("data", storage_class="fast")
        await cluster.settle()
        assert 7 <= asyncio.get_running_loop().time() - begun < 8
        assert cluster.api.all("persistentvolumes")[0]["status"]["phase"] == "Bound"


async def test_settling_does_not_wait_for_what_comes_later() -> None:
    async with Cluster(
        [FaultyBackend(MemoryBackend(), {"provision": [FailBefore(Unavailable("the filer is rebooting"))]})]
    ) as cluster:
        await cluster.create_class("fast")
        claim = await cluster.create_claim("data", storage_class="fast")
        begun = asyncio.get_running_loop().time()
        await cluster.settle()
        assert asyncio.get_running_loop().time() - begun < 0.2
        assert cluster.backend.asked["provision"] == 1
        assert cluster.api.all("persistentvolumes") == []
        [event] = [each for each in cluster.api.events(claim) if each["reason"] == "ProvisioningFailed"]
        assert "the filer is rebooting; next attempt in 0.5 s" in event["message"]
        await cluster.advance(0.6)
        assert cluster.backend.asked["provision"] == 2
        assert len(cluster.api.all("persistentvolumes")) == 1


async def test_settling_waits_for_operations_in_flight() -> None:
    async with Cluster([FaultyBackend(MemoryBackend(), {"provision": [Slow(before=10, after=20)]})]) as cluster:
        await cluster.create_class("fast")
        begun = asyncio.get_running_loop().time()
        await cluster.create_claim("data", storage_class="fast")
        await cluster.settle()
        assert 30 <= asyncio.get_running_loop().time() - begun < 30.2
        assert len(cluster.api.all("persistentvolumes")) == 1


async def test_an_answer_that_came_after_the_deadline_makes_no_second_asset() -> None:
    async with Cluster([FaultyBackend(MemoryBackend(), {"provision": [Slow(after=200)]})]) as cluster:
        await cluster.create_class("fast")
        await cluster.wait_bound(await cluster.create_claim("data", storage_class="fast"), seconds=1000)
        await cluster.settle()
        assert cluster.backend.backend.storage.made == 1
        assert cluster.backend.asked["provision"] > 1


async def test_a_hook_that_hangs_for_ever_leaves_the_rest_running() -> None:
    async with Cluster([FaultyBackend(MemoryBackend(), {"provision": [Hang()]})]) as cluster:
        await cluster.create_class("fast")
        stuck = await cluster.create_claim("stuck", storage_class="fast")
        await cluster.settle()
        await cluster.wait_bound(await cluster.create_claim("data", storage_class="fast"))
        with pytest.raises(TimeoutError, match=r"claim default/stuck is bound.*provision-default/stuck.*is overrun"):
            await cluster.wait_bound(stuck, seconds=300)


@pytest.mark.parametrize("fault", [FailAfter(), Answer(None), Answer("done"), FailAfter(Unavailable("gone"))])
async def test_whatever_a_backend_answers_there_is_one_asset_in_the_end(fault: Any) -> None:
    async with Cluster([FaultyBackend(MemoryBackend(), {"provision": [fault], "delete": [fault]})]) as cluster:
        await cluster.create_class("fast")
        claim = await cluster.create_claim("data", storage_class="fast")
        await cluster.wait_bound(claim)
        assert cluster.backend.backend.storage.made == 1
        await cluster.delete_claim(claim)
        await cluster.advance(60)
        assert cluster.backend.backend.storage.assets == {}


async def test_a_restart_in_the_middle_goes_on_where_it_was() -> None:
    storage = MemoryStorage()

    async with Cluster({"memory.volplane.dev": lambda: MemoryBackend(storage=storage)}) as cluster:
        storage.clock = asyncio.get_running_loop().time
        storage.delay = 40.0
        await cluster.create_class("fast")
        claim = await cluster.create_claim("data", storage_class="fast")
        await asyncio.sleep(10)
        first = cluster.backend
        await cluster.restart()
        volume = await cluster.wait_bound(claim)
        assert cluster.backend is not first
        assert storage.made == 1
        await cluster.delete_claim(claim)
        await asyncio.sleep(10)
        await cluster.restart()
        await cluster.advance(60)
        assert volume not in cluster.api
        assert storage.assets == {}


async def test_several_backends_and_extensions_work_side_by_side() -> None:
    witness = Witness()
    other = MemoryBackend(storage=MemoryStorage(prefix="other"))
    backends = {"one.example.com": MemoryBackend(), "two.example.com": other}
    async with Cluster(backends, extensions=[witness]) as cluster:
        await cluster.create_class("one", driver="one.example.com")
        await cluster.create_class("two", driver="two.example.com")
        first = await cluster.wait_bound(await cluster.create_claim("first", storage_class="one"))
        await cluster.wait_bound(await cluster.create_claim("second", storage_class="two"))
        assert first["metadata"]["annotations"]["volplane.dev/driver"] == "one.example.com"
        assert [len(backend.storage.assets) for backend in cluster.controllers.backends.values()] == [1, 1]

        assert sorted(witness.seen) == ["one.example.com", "two.example.com"]


async def test_waiting_in_vain_says_why() -> None:
    async with Cluster() as cluster:
        claim = await cluster.create_claim("data", storage_class="no-such-class")
        with pytest.raises(
            TimeoutError, match=r'claims default/data: storageclass\.storage\.k8s\.io "no-such-class" not found'
        ):
            await cluster.wait_bound(claim, seconds=5)


def test_equal_runs_are_equal() -> None:
    async def requests_of_one_run() -> list[tuple[str, str, str, int]]:
        async with Cluster() as cluster:
            await cluster.create_class("fast")
            for number in range(5):
                await cluster.create_claim(f"data-{number}", storage_class="fast")
            await cluster.settle()
            return [(each.verb, each.resource, each.name, each.status) for each in cluster.requests]

    assert run(requests_of_one_run()) == run(requests_of_one_run())


@pytest.mark.real_time
async def test_it_works_in_real_time_too() -> None:
    async with Cluster() as cluster:
        await cluster.create_class("fast")
        claim = await cluster.create_claim("data", storage_class="fast")
        await cluster.wait_bound(claim, seconds=10)
        await cluster.settle(10)


async def test_a_claim_that_waits_for_its_consumer_goes_where_the_scheduler_says() -> None:
    async with Cluster([MemoryBackend(storage=MemoryStorage(zones=("a", "b")))]) as cluster:
        cluster.api.create("nodes", {"metadata": {"name": "node-1", "labels": {ZONE: "b"}}})
        await cluster.create_class("zonal", binding_mode="WaitForFirstConsumer")
        claim = await cluster.create_claim("data", storage_class="zonal")
        await cluster.settle()
        assert cluster.backend.storage.assets == {}
        selected = {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "node-1"}}}
        cluster.api.patch("persistentvolumeclaims", "data", selected)
        volume = await cluster.wait_bound(claim)
        [term] = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert term["matchExpressions"] == [{"key": ZONE, "operator": "In", "values": ["b"]}]


async def test_a_warm_pool_volume_is_scrubbed_by_a_pod_and_offered_again(tmp_path: Path) -> None:
    hostpath = pytest.importorskip("volplane_hostpath")
    options = {option.name: option.default for option in hostpath.HostPathBackend.options_schema.parameters}
    options |= {"root": str(tmp_path), "node_name": "node-1", "overcommit_percent": 100_000}

    async with Cluster([hostpath.HostPathBackend(options)]) as cluster:
        await cluster.create_class("pool", parameters={"volplane.dev/on-release": "recycle"})
        claim = await cluster.create_claim("data", storage_class="pool")
        volume = await cluster.wait_bound(claim)
        await cluster.delete_claim(claim)
        await cluster.settle()
        [pod] = cluster.api.all("pods")
        assert pod["metadata"]["name"].startswith("volplane-scrub-")
        await cluster.finish_pod(pod["metadata"]["name"])
        await cluster.settle()
        there = cluster.api.get("persistentvolumes", volume["metadata"]["name"])
        assert there is not None
        assert there["status"]["phase"] == "Available"
        assert cluster.api.all("pods") == []
