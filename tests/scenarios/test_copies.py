"""Copies of claims in virtual time: what is in them, where they are, and what a crash repeats."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import pytest

from volplane.kube.client import Client
from volplane.kube.events import EventRecorder
from volplane.process.duties import ALL_CONTROLLERS
from volplane_embedded.informers import Informers
from volplane_embedded.inprocess import InProcessTransport
from volplane_embedded.scheduler.scheduler import Scheduler
from volplane_testing import Cluster, MemoryBackend, clock
from volplane_testing.memory import ZONE
from volplane_testing.memory_storage import MemoryAsset, MemoryStorage

CLAIMS, VOLUMES = "persistentvolumeclaims", "persistentvolumes"
SELECTED: Final = "volume.kubernetes.io/selected-node"
CLONING: Final = "provisioner.storage.kubernetes.io/cloning-protection"
CONTROLLERS: Final = frozenset(ALL_CONTROLLERS) - {"snapshot-controller", "snapshotter"}
"""Tests of restores play the others themselves."""
Json = dict[str, Any]


@asynccontextmanager
async def a_cluster(
    *zones: str, binding_mode: str = "Immediate", controllers: frozenset[str] = CONTROLLERS, **of_class: Any
) -> AsyncIterator[Cluster]:
    """A cluster with the class `fast`, and a node in each zone."""
    storage = MemoryStorage(zones=zones)
    async with Cluster([MemoryBackend(storage=storage)], controllers=controllers) as cluster:
        await cluster.create_class("fast", binding_mode=binding_mode, **of_class)
        for zone in zones:
            cluster.api.create("nodes", {"metadata": {"name": f"node-{zone}", "labels": {ZONE: zone}}})
        yield cluster


def source(name: str = "origin") -> Json:
    return {"dataSource": {"kind": "PersistentVolumeClaim", "name": name}}


def asset(cluster: Cluster, volume: Json) -> MemoryAsset:
    found = cluster.backend.storage.by_handle(volume["spec"]["csi"]["volumeHandle"])
    assert found is not None
    return found


async def an_origin(cluster: Cluster, **more: Any) -> Json:
    """The volume of a claim in which somebody wrote."""
    volume = await cluster.wait_bound(await cluster.create_claim("origin", storage_class="fast", **more))
    await cluster.settle()
    asset(cluster, volume).contents.append("before")
    return volume


def now(cluster: Cluster, name: str) -> Json:
    found = cluster.api.get(CLAIMS, name)
    assert found is not None
    return found


def told(cluster: Cluster, claim: Json) -> str:
    return "\n".join(each["message"] for each in cluster.api.events(claim) if each["type"] == "Warning")


async def test_a_copy_has_what_its_source_had_and_not_what_is_written_later() -> None:
    async with a_cluster() as cluster:
        origin = await an_origin(cluster)
        copied = await cluster.wait_bound(await cluster.create_claim("copy", storage_class="fast", **source()))
        asset(cluster, origin).contents.append("after")
        assert asset(cluster, copied).contents == ["before"]
        assert copied["metadata"]["name"] != origin["metadata"]["name"]


async def test_a_claim_that_was_written_before_its_source_is_made_when_that_is_bound() -> None:
    async with a_cluster() as cluster:
        claim = await cluster.create_claim("copy", storage_class="fast", **source())
        await cluster.settle()
        assert 'persistentvolumeclaims "origin" not found' in told(cluster, claim)
        assert cluster.backend.storage.assets == {}
        await an_origin(cluster)
        assert asset(cluster, await cluster.wait_bound(claim)).contents in (["before"], [])


async def test_a_smaller_copy_is_refused_with_both_sizes_and_nothing_is_made() -> None:
    async with a_cluster() as cluster:
        await an_origin(cluster, capacity="2Gi")
        claim = await cluster.create_claim("copy", storage_class="fast", **source())
        await cluster.settle()
        assert f"requested {2**30} but source is {2**31}" in told(cluster, claim)
        assert len(cluster.backend.storage.assets) == 1


async def test_five_copies_at_once_are_made() -> None:
    async with a_cluster() as cluster:
        await an_origin(cluster)
        claims = [await cluster.create_claim(f"copy-{n}", storage_class="fast", **source()) for n in range(5)]
        made = [asset(cluster, await cluster.wait_bound(claim)) for claim in claims]
        assert [each.contents for each in made] == [["before"]] * 5
        assert len({each.handle for each in made}) == 5


async def test_a_source_is_held_until_no_copy_waits_and_goes_then() -> None:
    async with a_cluster() as cluster:
        await an_origin(cluster)
        cluster.fail("create", VOLUMES, status=403, times=1000)
        claim = await cluster.create_claim("copy", storage_class="fast", **source())
        await cluster.settle(60.0)
        assert CLONING in now(cluster, "origin")["metadata"]["finalizers"]
        cluster.api.delete(CLAIMS, "origin")
        await cluster.advance(600.0)
        assert now(cluster, "origin")["metadata"]["finalizers"] == [CLONING]
        cluster.heal()
        assert asset(cluster, await cluster.wait_bound(claim, 3600.0)).contents == ["before"]
        await cluster.settle()
        assert cluster.api.get(CLAIMS, "origin") is None
        assert len(cluster.backend.storage.assets) == 1, "the volume of the source went with it"


async def test_a_source_goes_with_the_copy_that_is_given_up() -> None:
    async with a_cluster() as cluster:
        await an_origin(cluster)
        cluster.fail("create", VOLUMES, status=403, times=1000)
        claim = await cluster.create_claim("copy", storage_class="fast", **source())
        await cluster.settle(60.0)
        cluster.api.delete(CLAIMS, "origin")
        await cluster.delete_claim(claim)
        await cluster.settle()
        assert cluster.api.all(CLAIMS) == []
        assert cluster.backend.storage.assets == {}


async def test_a_copy_in_place_is_made_in_the_zone_of_its_source() -> None:
    async with a_cluster("a", "b", "c") as cluster:
        origin = await an_origin(cluster, selected_node="node-b")
        copied = await cluster.wait_bound(await cluster.create_claim("copy", storage_class="fast", **source()))
        assert asset(cluster, origin).segment == asset(cluster, copied).segment == {ZONE: "b"}


@pytest.mark.parametrize("then", ["node-b", "node-a"])
async def test_a_scheduler_that_chose_another_zone_gets_the_claim_back_and_is_bound_by_the_volume(then: str) -> None:
    """It may choose the same node again, as it knows nothing of the source."""
    async with a_cluster("a", "b", binding_mode="WaitForFirstConsumer") as cluster:
        await an_origin(cluster, selected_node="node-b")
        claim = await cluster.create_claim("copy", storage_class="fast", selected_node="node-a", **source())
        await cluster.settle()
        assert SELECTED not in now(cluster, "copy")["metadata"].get("annotations", {})
        assert f'PersistentVolumeClaim "origin" can only be used at {ZONE}=b' in told(cluster, claim)
        cluster.api.patch(CLAIMS, "copy", {"metadata": {"annotations": {SELECTED: then}}})
        volume = await cluster.wait_bound(claim)
        assert asset(cluster, volume).segment == {ZONE: "b"}
        [term] = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert term["matchExpressions"] == [{"key": ZONE, "operator": "In", "values": ["b"]}]


async def test_a_class_that_excludes_the_zone_of_the_source_is_told_with_both() -> None:
    async with a_cluster("a", "b") as cluster:
        await an_origin(cluster, selected_node="node-b")
        allowed = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a"]}]}]
        await cluster.create_class("only-a", allowedTopologies=allowed)
        claim = await cluster.create_claim("copy", storage_class="only-a", **source())
        await cluster.settle()
        assert f'can only be used at {ZONE}=b, and class "only-a" allows {ZONE}=a' in told(cluster, claim)


@pytest.mark.parametrize("write", range(7))
async def test_a_crash_after_any_write_repeats_the_same_demand(write: int) -> None:
    """The next process may find the source without the volume that is being copied."""
    async with a_cluster() as cluster:
        await an_origin(cluster)
        before = len(_writes(cluster))
        claim = await cluster.create_claim("copy", storage_class="fast", **source())
        await cluster.wait_for(lambda: len(_writes(cluster)) > before + write or _is_bound(cluster), 600.0, "a write")
        await cluster.restart()
        asset(cluster, await cluster.wait_bound(claim))
        await cluster.settle()
        copies = [each for each in cluster.backend.storage.assets.values() if each.handle != "memory-1"]
        assert [each.contents for each in copies] == [["before"]]
        assert "volplane.dev/intent" not in now(cluster, "copy")["metadata"]["annotations"]


def _writes(cluster: Cluster) -> list[Any]:
    return [each for each in cluster.requests if each.verb in ("create", "patch") and each.resource != "events"]


def _is_bound(cluster: Cluster) -> bool:
    return bool(now(cluster, "copy")["status"].get("phase") == "Bound")


async def test_a_source_that_is_removed_by_force_while_the_copy_is_made_does_not_change_the_demand() -> None:
    async with a_cluster() as cluster:
        origin = await an_origin(cluster)
        cluster.fail("create", VOLUMES, status=403, times=1000)
        claim = await cluster.create_claim("copy", storage_class="fast", **source())
        await cluster.settle(60.0)
        for resource, name in ((CLAIMS, "origin"), (VOLUMES, origin["metadata"]["name"])):
            cluster.api.patch(resource, name, {"metadata": {"finalizers": None}})
            cluster.api.delete(resource, name)
        await cluster.restart()
        cluster.heal()
        assert asset(cluster, await cluster.wait_bound(claim, 3600.0)).contents == ["before"]


@asynccontextmanager
async def scheduled(cluster: Cluster) -> AsyncIterator[None]:
    """A scheduler that knows nothing of sources, and keeps to the node that it chose first."""
    client, informers = Client(InProcessTransport(cluster.server)), Informers()
    following = asyncio.create_task(informers.follow(client, random.Random(3)))
    await informers.wait_synced()
    recorder = EventRecorder(client, "scheduler", instance="tests", now=clock.now)
    scheduling = asyncio.create_task(Scheduler(client, informers, recorder=recorder, now=clock.now).run())
    try:
        yield
    finally:
        for task in (scheduling, following):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_a_pod_that_uses_a_copy_comes_to_the_zone_of_the_source_by_itself() -> None:
    async with a_cluster("a", "b", binding_mode="WaitForFirstConsumer") as cluster:
        await an_origin(cluster, selected_node="node-b")
        await cluster.create_claim("copy", storage_class="fast", **source())
        used = {"name": "v", "persistentVolumeClaim": {"claimName": "copy"}}
        spec = {
            "volumes": [used],
            "containers": [{"name": "c", "image": "i"}],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}],
        }
        cluster.api.create("pods", {"metadata": {"name": "p"}, "spec": spec})

        def node() -> str:
            found = cluster.api.get("pods", "p")
            return found["spec"].get("nodeName", "") if found is not None else ""

        before = len(_writes(cluster))
        async with scheduled(cluster):
            await cluster.wait_for(node, 600.0, "the pod has a node")
        assert node() == "node-b"
        given_back = [each for each in cluster.api.events(now(cluster, "copy")) if "is given" in each["message"]]
        assert len(given_back) <= 1
        assert len(_writes(cluster)) - before < 20, "nothing was passed to and fro"
