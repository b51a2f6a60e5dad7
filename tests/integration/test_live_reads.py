"""What a deletion reads live before it destroys an asset: nothing that the server has said a moment ago."""

from __future__ import annotations

import asyncio
from typing import Any

from volplane.operations.operation import DriverLimits
from volplane_testing import Cluster, FaultyBackend, MemoryBackend, MemoryStorage, Slow


async def bound(cluster: Cluster, name: str) -> tuple[Any, str]:
    """A claim, and the name of the volume that was made for it."""
    claim = await cluster.create_claim(name, storage_class="fast")
    return claim, (await cluster.wait_bound(claim))["metadata"]["name"]


def reads(cluster: Cluster, volume: str) -> list[str]:
    return [call.verb for call in cluster.requests if call.name == volume and call.verb in {"get", "delete"}]


def slow(storage: MemoryStorage) -> FaultyBackend:
    """Takes ten seconds for its first deletion."""
    return FaultyBackend(MemoryBackend(storage=storage), {"delete": [Slow(before=10)]})


async def test_the_answer_to_its_own_deletion_is_the_live_state_of_the_volume() -> None:
    storage = MemoryStorage()
    async with Cluster([MemoryBackend(storage=storage)]) as cluster:
        await cluster.create_class("fast")
        claim, volume = await bound(cluster, "data")
        await cluster.delete_claim(claim)
        await cluster.settle()
        assert storage.assets == {}
        assert reads(cluster, volume) == ["delete"]


async def test_a_deletion_that_waited_for_its_turn_reads_the_policy_again() -> None:
    storage, one = MemoryStorage(), {"memory.example.com": DriverLimits(concurrency=1)}
    async with Cluster({"memory.example.com": slow(storage)}, limits=one) as cluster:
        await cluster.create_class("fast")
        first, _ = await bound(cluster, "first")
        second, kept = await bound(cluster, "second")
        await cluster.delete_claim(first)
        await asyncio.sleep(1)
        await cluster.delete_claim(second)
        await asyncio.sleep(1)
        cluster.api.patch("persistentvolumes", kept, {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
        await cluster.advance(60)
        assert list(storage.assets) == [kept]
        assert reads(cluster, kept) == ["delete", "get"]


async def test_a_process_that_finds_a_deletion_begun_reads_the_volume_before_it_goes_on() -> None:
    storage = MemoryStorage()
    async with Cluster([slow(storage)]) as cluster:
        await cluster.create_class("fast")
        claim, volume = await bound(cluster, "data")
        await cluster.delete_claim(claim)
        await asyncio.sleep(1)
        await cluster.restart()
        await cluster.advance(60)
        assert storage.assets == {}
        assert reads(cluster, volume)[:2] == ["delete", "get"]
