"""How far a long copy is, on the claim and the VolumeSnapshot, in virtual time."""

from __future__ import annotations

from typing import Any

from integration.snapshot_world import World, storage
from volplane import InProgress
from volplane_testing import Cluster
from volplane_testing.faults import Answer, FaultyBackend
from volplane_testing.memory import MemoryBackend


def answers(seconds: int) -> list[Any]:
    """A call that is told to come again every five seconds for so long; its state stays as it is."""
    return [
        Answer(InProgress(retry_after=5.0, state={"job": 7}, progress=f"{number} of 60 GiB are copied"), effect=False)
        for number in range(seconds // 5)
    ]


def told(cluster: Cluster, about: Any, reason: str) -> list[dict[str, Any]]:
    return [each for each in cluster.api.events(about) if each["reason"] == reason]


async def test_how_far_a_volume_is_that_takes_long_is_told_on_its_claim_once_a_minute() -> None:
    async with Cluster([FaultyBackend(MemoryBackend(storage=storage()), {"provision": answers(210)})]) as cluster:
        await cluster.create_class("fast")
        claim = await cluster.create_claim("data", storage_class="fast")
        await cluster.wait_bound(claim, 300.0)
        await cluster.settle()
        (event,) = told(cluster, claim, "ProvisioningProgress")
        assert event["type"] == "Normal"
        assert event["count"] == 3
        assert event["message"].endswith("36 of 60 GiB are copied")
        written = [each for each in cluster.requests if each.resource == "events" and each.verb == "patch"]
        assert len(written) == 2  # Of this event, after its creation.
        kept = [each for each in cluster.requests if each.verb == "patch" and each.resource == "persistentvolumeclaims"]
        assert len(kept) <= 5  # The intent, the state of the first answer, the bind.


async def test_a_copy_that_ends_within_seconds_costs_no_event() -> None:
    faults = {"provision": answers(20), "create_snapshot": answers(20)}
    async with Cluster([FaultyBackend(MemoryBackend(storage=storage()), faults)]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.status(readyToUse=True)
        assert not told(cluster, world.claim, "ProvisioningProgress")
        assert not told(cluster, world.snapshot(), "SnapshotPending")


async def test_how_far_a_snapshot_is_is_told_on_it() -> None:
    async with Cluster([FaultyBackend(MemoryBackend(storage=storage()), {"create_snapshot": answers(90)})]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.status(readyToUse=True)
        (event,) = told(cluster, world.snapshot(), "SnapshotPending")
        assert (
            event["message"] == "VolumeSnapshot default/s is being made by memory.volplane.dev: 12 of 60 GiB are copied"
        )


async def test_explain_and_status_show_how_far_a_copy_is_whether_or_not_a_call_runs() -> None:
    backend = FaultyBackend(
        MemoryBackend(storage=storage()), {"provision": answers(60), "create_snapshot": answers(60)}
    )
    async with Cluster([backend]) as cluster:
        plane = cluster.controllers.plane
        await cluster.create_class("fast")
        claim = await cluster.create_claim("data", storage_class="fast")

        def shown() -> bool:
            return "of 60 GiB are copied" in " ".join(plane.explain("claim", "default/data").next)

        world = World(cluster)
        await world.wait(shown, 20.0)
        assert "of 60 GiB are copied" in plane.reasons()["claims"]["default/data"]
        await cluster.wait_bound(claim, 120.0)
        world.create_class()
        world.cut()

        def shown_of_snapshot() -> bool:
            return "of 60 GiB are copied" in " ".join(plane.explain("snapshot", "default/s").next)

        await world.wait(shown_of_snapshot, 20.0)
        await world.status(readyToUse=True)
