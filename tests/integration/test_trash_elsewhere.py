"""The trash beside a stock binder, and where the processes of nodes have the storage."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from integration.beside import Beside, fast, ours
from scenarios.backends import ScriptedBackend
from scenarios.stories import DRIVER
from volplane.drivers.driver import BrokenDriver
from volplane.kube.names import NODE, TRASH, TRASH_CHOICE, TRASHED, UNDELETE
from volplane_testing import clock
from volplane_testing.distributed import CENTRAL, DistributedCluster

HOUR = 3600.0
VOLUMES = "persistentvolumes"
CLAIMS = "persistentvolumeclaims"
Json = dict[str, Any]


def record(volume: Json | None) -> Json:
    assert volume is not None
    return dict(json.loads(volume["metadata"]["annotations"][TRASHED]))


def asking(volume: Json, name: str = "back", **annotations: str) -> Json:
    """A claim that names the volume with the proof of its owner."""
    body = ours(name, volumeName=volume["metadata"]["name"])
    body["metadata"]["annotations"] = annotations or {UNDELETE: volume["spec"]["claimRef"]["uid"]}
    return body


async def kept(harness: Beside, keeps: str = "10m") -> Json:
    """The volume of a claim that was deleted."""
    await harness.create("classes", fast(parameters={TRASH: keeps}))
    await harness.create("claims", ours())
    await harness.start_both()
    await harness.settle()
    volume = await harness.bound_volume("c")
    await harness.delete("claims", "c")
    await harness.settle()
    return volume


async def test_beside_a_stock_binder_the_volume_of_a_deleted_claim_is_kept_and_then_destroyed() -> None:
    async with Beside() as harness:
        volume = await kept(harness)
        now = await harness.volume(volume["metadata"]["name"])
        left = datetime.fromisoformat(record(now)["until"]) - clock.now()
        assert timedelta(minutes=4) < left <= timedelta(minutes=10)
        assert now["status"]["phase"] == "Released"
        assert len(harness.backend.assets) == 1
        await time_passes(harness, HOUR / 6)
        await harness.nothing_left()


async def time_passes(harness: Beside, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await harness.settle()


async def test_beside_a_stock_binder_the_owner_gets_the_volume_back_and_a_claim_of_the_name_an_empty_one() -> None:
    async with Beside() as harness:
        volume = await kept(harness)
        await harness.create("claims", ours())
        await harness.create("claims", asking(volume))
        await harness.settle()
        assert (await harness.bound_volume("back"))["metadata"]["uid"] == volume["metadata"]["uid"]
        assert (await harness.bound_volume("c"))["metadata"]["uid"] != volume["metadata"]["uid"]
        await time_passes(harness, HOUR / 6)
        assert len(harness.backend.assets) == 2


async def test_beside_a_stock_binder_what_a_bound_claim_chooses_is_written_on_its_volume() -> None:
    async with Beside() as harness:
        await harness.create("classes", fast(parameters={TRASH: "1h"}))
        await harness.create("claims", ours())
        await harness.start_both()
        await harness.settle()
        await harness.patch("claims", "c", {"metadata": {"annotations": {TRASH: "skip"}}})
        await harness.settle()
        assert (await harness.bound_volume("c"))["metadata"]["annotations"][TRASH_CHOICE] == "skip"
        await harness.delete("claims", "c")
        await harness.settle()
        await harness.nothing_left()


async def test_what_is_in_the_trash_stays_there_quietly_while_its_driver_is_broken() -> None:
    async with Beside(ScriptedBackend(DRIVER)) as harness:
        volume = await kept(harness, "1h")
        harness.broken = (BrokenDriver(name=DRIVER, backend="scripted", error="out of order"),)
        backend = harness.backends.pop(DRIVER)
        await harness.restart()
        await harness.settle()
        assert not harness.messages("VolumeFailedDelete")
        await harness.create("claims", asking(volume))
        await harness.settle()
        assert (await harness.bound_volume("back"))["metadata"]["uid"] == volume["metadata"]["uid"]
        assert len(backend.assets) == 1


# --- on nodes ---------------------------------------------------------------------------------------------------------


async def on_node(cluster: DistributedCluster) -> Json:
    """The volume of a claim that was deleted, on node a."""
    cluster.create_class("local", parameters={TRASH: "1h"})
    cluster.create_claim("data", "local", node="a")
    await cluster.settle()
    volume = cluster.volume("data")
    assert volume is not None
    cluster.api.delete(CLAIMS, "data")
    return volume


@pytest.mark.parametrize("race", [None, (0.5, 5.0)], ids=["assigned", "raced"])
async def test_a_volume_on_a_node_is_kept_by_the_central_process_and_destroyed_by_that_of_its_node(race: Any) -> None:
    async with DistributedCluster(["a"], race=race) as cluster:
        volume = await on_node(cluster)
        await cluster.advance(5)
        assert record(cluster.api.get(VOLUMES, volume["metadata"]["name"]))["released"] == "default/data"
        assert cluster.assets()["a"]
        await cluster.advance(HOUR)
        assert volume not in cluster.api
        assert not cluster.assets()["a"]


async def test_the_process_of_a_node_destroys_nothing_before_the_central_one_has_said_until_when() -> None:
    async with DistributedCluster(["a"]) as cluster:
        cluster.create_class("local", parameters={TRASH: "1h"})
        cluster.create_claim("data", "local", node="a")
        await cluster.settle()
        volume = cluster.volume("data")
        assert volume is not None
        await cluster.kill(CENTRAL)
        name = volume["metadata"]["name"]
        cluster.api.patch(CLAIMS, "data", {"metadata": {"finalizers": None}})
        cluster.api.delete(CLAIMS, "data")
        cluster.api.patch(VOLUMES, name, {"status": {"phase": "Released"}}, subresource="status")
        await cluster.advance(120)
        assert cluster.assets()["a"]
        assert any("puts it into the trash" in why for why in cluster.why(name))
        await cluster.start(CENTRAL)
        await cluster.advance(5)
        assert record(cluster.api.get(VOLUMES, name))


@pytest.mark.parametrize("race", [None, (0.5, 5.0)], ids=["assigned", "raced"])
async def test_a_volume_on_a_node_is_given_to_a_claim_of_its_owner(race: Any) -> None:
    async with DistributedCluster(["a", "b"], race=race) as cluster:
        volume = await on_node(cluster)
        await cluster.advance(5)
        body = asking(volume)
        body["spec"]["storageClassName"] = "local"
        claim = cluster.api.create(CLAIMS, body)
        await cluster.advance(30)
        found = cluster.api.get(CLAIMS, claim["metadata"]["name"])
        assert found is not None
        assert found["status"]["phase"] == "Bound"
        await cluster.advance(2 * HOUR)
        now = cluster.api.get(VOLUMES, volume["metadata"]["name"])
        assert now is not None
        assert race or now["metadata"]["labels"][NODE]
        assert cluster.assets()["a"]
