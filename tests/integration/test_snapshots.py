"""Snapshots from the wish to the deletion, on the embedded API server in virtual time."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from integration.snapshot_world import World, beside, crash_at, of_snapshots, storage, strip
from integration.stock_api import StockApi
from integration.stock_snapshots import StockSnapshotController
from volplane import InProgress, Snapshot, Unavailable, Unsupported
from volplane.cli import snapshots as command
from volplane.controller.metrics import Metrics
from volplane.errors import ConfigurationError, VolplaneError
from volplane.kube import names
from volplane.kube.client import Client
from volplane.snapshots.state import TERMINAL
from volplane_embedded.apiserver.custom_kinds import definitions
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing import Cluster
from volplane_testing.faults import Answer, FailAfter, FailBefore, FaultyBackend
from volplane_testing.memory import MemoryBackend
from volplane_testing.transport import (
    Behaviour,
    FaultScript,
    FaultTransport,
    answer_lost,
    refuse,
    requests,
)


async def test_a_snapshot_is_ready_after_six_writes_and_two_events() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        await cluster.settle()
        before = len(world.writes())
        world.cut()
        status = await world.status(readyToUse=True)
        await world.wait(lambda: names.CLAIM_AS_SOURCE not in world.finalizers())
        await cluster.settle()
        assert world.writes()[before:] == [
            "patch volumesnapshots",
            "patch persistentvolumeclaims",
            "create volumesnapshotcontents",
            "patch volumesnapshotcontents/status",
            "patch volumesnapshots/status",
            "patch persistentvolumeclaims",
        ]
        assert [event["reason"] for event in cluster.api.events(world.snapshot())] == [
            "CreatingSnapshot",
            "SnapshotReady",
        ]
        assert status["restoreSize"] == "1Gi"
        assert "error" not in status


async def test_a_claim_is_released_at_the_cut_and_the_snapshot_is_asked_for_until_it_is_ready() -> None:
    made = storage(delay=0.0)
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        await cluster.settle()
        made.delay = 600.0
        world.cut()
        status = await world.status(readyToUse=False)
        await world.wait(lambda: names.CLAIM_AS_SOURCE not in world.finalizers(), seconds=5.0)
        assert status["creationTime"]
        assert not world.snapshot()["status"]["readyToUse"]
        before = len(world.writes())
        later = await world.status(readyToUse=True, seconds=660.0)
        assert world.writes()[before:] == ["patch volumesnapshotcontents/status", "patch volumesnapshots/status"]
        assert later["creationTime"] == status["creationTime"]
        assert len(made.snapshots) == 1


async def test_how_far_a_snapshot_is_that_takes_long_is_told() -> None:
    made = storage()
    unready = Snapshot(handle="memory-snapshot-2", size_bytes=2**30, ready=False, state="pending, 40 %", retry_after=30)
    faults = {"create_snapshot": [Answer(unready)], "find_snapshot": [Answer(unready)] * 3}
    async with Cluster([FaultyBackend(MemoryBackend(storage=made), faults)]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.status(readyToUse=True)
        events = {each["reason"]: each for each in cluster.api.events(world.snapshot())}
        assert events.keys() == {"CreatingSnapshot", "SnapshotPending", "SnapshotReady"}
        assert "pending, 40 %; next look in 30 s" in events["SnapshotPending"]["message"]


async def test_a_claim_that_waits_for_a_snapshot_is_looked_at_as_soon_as_it_is_ready() -> None:
    made = storage(delay=0.0)
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin(default=False)
        source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}
        restored = await cluster.create_claim("restored", storage_class="fast", dataSource=source)
        world.cut()
        await asyncio.sleep(1000.0)  # The older the claim, the rarer its looks: one a minute by now.
        world.create_class("now")
        await world.status(readyToUse=True, seconds=5.0)
        await cluster.wait_bound(restored, 2.0)


async def test_the_contents_of_the_moment_are_kept() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        next(iter(made.assets.values())).contents.append("before")
        world.cut()
        await world.status(readyToUse=True)
        next(iter(made.assets.values())).contents.append("after")
        [kept] = made.snapshots.values()
        assert kept.contents == ["before"]
        assert kept.owner is not None
        assert kept.owner.snapshot_uid == world.snapshot()["metadata"]["uid"]


async def test_a_deleted_snapshot_is_deleted_on_the_storage_without_class_and_claim() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.status(readyToUse=True)
        await cluster.delete_claim(world.claim)
        await cluster.settle()
        cluster.api.delete("volumesnapshotclasses", "daily")
        before = len(world.writes())
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()
        assert not made.snapshots
        assert not cluster.api.all("volumesnapshotcontents")
        assert world.writes()[before:] == [
            "patch volumesnapshotcontents",
            "delete volumesnapshotcontents",
            "patch volumesnapshotcontents",
            "patch volumesnapshots",
        ]


async def test_a_snapshot_that_is_anothers_is_an_error_of_the_backend_and_nobody_restores_from_it() -> None:
    """A driver that gives one snapshot to two tenants would give one of them the data of the other."""
    made = storage()
    given = Answer(Snapshot(handle="memory-snapshot-2", size_bytes=1 << 30, ready=True), effect=False)
    backend = FaultyBackend(MemoryBackend(storage=made), {"create_snapshot": [None, *[given] * 50]})
    async with Cluster([backend]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.status(readyToUse=True)
        assert world.content()["status"]["snapshotHandle"] == "memory-snapshot-2"
        world.cut("theirs")
        await world.wait(lambda: ((world.snapshot("theirs") or {}).get("status") or {}).get("error"))
        error = world.snapshot("theirs")["status"]["error"]["message"]
        assert f"already that of VolumeSnapshotContent {world.content()['metadata']['name']}" in error
        assert "snapshotHandle" not in (world.content("theirs").get("status") or {})
        assert not world.snapshot("theirs")["status"].get("readyToUse")
        assert [*made.snapshots] == ["memory-snapshot-2"]


async def test_a_retained_content_outlives_its_snapshot_and_is_bound_to_another_one() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin(policy="Retain")
        world.cut()
        first = await world.status(readyToUse=True)
        name = first["boundVolumeSnapshotContentName"]
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()
        assert len(made.snapshots) == 1
        reference = {"name": "again", "namespace": "default", "uid": None, "resourceVersion": None}
        body = {"spec": {"volumeSnapshotRef": reference, "deletionPolicy": "Delete"}}
        cluster.api.patch("volumesnapshotcontents", name, body)
        spec = {"source": {"volumeSnapshotContentName": name}}
        cluster.api.create("volumesnapshots", {"metadata": {"name": "again"}, "spec": spec})
        again = await world.status("again", readyToUse=True)
        assert again["creationTime"] == first["creationTime"]
        cluster.api.delete("volumesnapshots", "again")
        await world.gone("again")
        assert not made.snapshots


async def test_a_content_that_a_person_wrote_is_bound_and_its_snapshot_is_deleted_with_it() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin(policy="Retain")
        world.cut()
        await world.status(readyToUse=True)
        [handle] = made.snapshots
        name = world.content()["metadata"]["name"]
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()
        cluster.api.delete("volumesnapshotcontents", name)
        await world.wait(lambda: not cluster.api.all("volumesnapshotcontents"))
        assert list(made.snapshots) == [handle]
        body = {
            "metadata": {"name": "mine"},
            "spec": {
                "driver": cluster.driver,
                "deletionPolicy": "Delete",
                "source": {"snapshotHandle": handle},
                "volumeSnapshotRef": {"name": "s", "namespace": "default"},
            },
        }
        spec = {"source": {"volumeSnapshotContentName": "mine"}}
        cluster.api.create("volumesnapshots", {"metadata": {"name": "s"}, "spec": spec})
        status = await world.status(readyToUse=False)
        assert status["error"]["message"] == "VolumeSnapshotContent is missing"
        cluster.api.create("volumesnapshotcontents", body)
        status = await world.status(readyToUse=True)
        assert (status["restoreSize"], status["boundVolumeSnapshotContentName"]) == ("1Gi", "mine")
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()
        assert not made.snapshots


async def test_a_claim_that_is_deleted_before_the_cut_stays_until_then() -> None:
    made = storage()
    faults = {"create_snapshot": [FailBefore(Unavailable("no answer")), FailBefore(Unavailable("no answer"))]}
    async with Cluster([FaultyBackend(MemoryBackend(storage=made), faults)]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        status = await world.status(readyToUse=False)
        assert status["error"]["message"] == "Failed to create snapshot: no answer"
        await cluster.delete_claim(world.claim)
        status = await world.status(readyToUse=True)
        assert "error" not in status
        await world.wait(lambda: cluster.api.get("persistentvolumeclaims", "data") is None)
        await cluster.settle()
        assert not made.assets
        assert len(made.snapshots) == 1


async def test_an_unknown_outcome_is_ended_by_another_call_under_the_same_name() -> None:
    made = storage()
    async with Cluster([FaultyBackend(MemoryBackend(storage=made), {"create_snapshot": [FailAfter()]})]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.status(readyToUse=True)
        assert len(made.snapshots) == 1


async def test_a_snapshot_that_is_deleted_while_its_outcome_is_unknown_leaves_nothing() -> None:
    made = storage()
    faults = {"create_snapshot": [FailAfter()] * 100}
    async with Cluster([FaultyBackend(MemoryBackend(storage=made), faults)]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.wait(lambda: made.snapshots)
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()
        assert not made.snapshots
        assert names.CLAIM_AS_SOURCE not in world.finalizers()


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("number", range(6))
async def test_a_crash_at_any_write_loses_nothing_and_cuts_once(number: int, lost: bool) -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        await cluster.settle()
        assert await crash_at(world, number, world.cut, lost=lost)
        await world.status(readyToUse=True)
        assert made.made == 2  # The asset and one snapshot.
        await world.wait(lambda: names.CLAIM_AS_SOURCE not in world.finalizers())
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()
        assert not made.snapshots
        assert not cluster.api.all("volumesnapshotcontents")


@pytest.mark.parametrize(
    "fault", [refuse(409), refuse(500), answer_lost, refuse(403)], ids=["409", "500", "lost", "403"]
)
async def test_writes_that_fail_are_made_again(fault: Behaviour) -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        await cluster.settle()
        for number in range(6):
            cluster.script.add(of_snapshots, fault, skip=number)
        world.cut()
        await world.status(readyToUse=True)
        await world.wait(lambda: names.CLAIM_AS_SOURCE not in world.finalizers())
        assert made.made == 2
        for number in range(4):
            cluster.script.add(of_snapshots, fault, skip=number)
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()
        assert not made.snapshots


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("number", range(4))
async def test_a_crash_at_any_write_of_a_deletion_leaves_nothing(number: int, lost: bool) -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.status(readyToUse=True)
        await world.wait(lambda: names.CLAIM_AS_SOURCE not in world.finalizers())
        assert await crash_at(world, number, lambda: cluster.api.delete("volumesnapshots", "s"), lost=lost)
        await world.gone()
        await world.wait(lambda: not cluster.api.all("volumesnapshotcontents"))
        assert not made.snapshots


async def test_the_content_of_a_ready_snapshot_is_made_again_after_it_was_forced_away() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        status = await world.status(readyToUse=True)
        uid = world.content()["metadata"]["uid"]
        strip(cluster, "volumesnapshotcontents", status["boundVolumeSnapshotContentName"])
        await world.wait(lambda: (world.content() or {}).get("status", {}).get("readyToUse"))
        await cluster.settle()
        assert world.content()["metadata"]["uid"] != uid
        assert made.made == 2
        assert (await world.status(readyToUse=True))["creationTime"] == status["creationTime"]
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()
        assert not made.snapshots


async def test_the_content_is_made_again_by_a_process_whose_driver_starts_late() -> None:
    made, late = storage(), FailBefore(Unavailable("not now"))
    backend = FaultyBackend(MemoryBackend(storage=made), {"start": [None, *[late] * 3]})
    async with Cluster([backend]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        status = await world.status(readyToUse=True)
        cluster.fail("create", "volumesnapshotcontents", times=50)
        strip(cluster, "volumesnapshotcontents", status["boundVolumeSnapshotContentName"])
        await cluster.restart()
        cluster.heal()
        await world.wait(lambda: (world.content() or {}).get("status", {}).get("readyToUse"))


async def test_a_ready_snapshot_that_the_storage_has_lost_with_its_content_is_never_cut_again() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        status = await world.status(readyToUse=True)
        made.snapshots.clear()
        strip(cluster, "volumesnapshotcontents", status["boundVolumeSnapshotContentName"])
        status = await world.status(readyToUse=False)
        assert status["error"]["message"].startswith("terminal: VolumeSnapshotContent is missing")
        await cluster.restart()
        await cluster.advance(3600.0)
        assert not made.snapshots
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()


async def test_a_content_whose_snapshot_was_forced_away_goes_once_a_person_deletes_it() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        name = (await world.status(readyToUse=True))["boundVolumeSnapshotContentName"]
        strip(cluster, "volumesnapshots", "s")
        await cluster.advance(3600.0)
        assert len(made.snapshots) == 1
        assert cluster.api.get("volumesnapshotcontents", name) is not None
        cluster.api.delete("volumesnapshotcontents", name)
        await world.wait(lambda: cluster.api.get("volumesnapshotcontents", name) is None)
        assert not made.snapshots


async def test_a_claim_whose_snapshots_were_forced_away_is_released() -> None:
    made = storage()
    faults = {"create_snapshot": [FailBefore(Unavailable("no answer"))] * 1000}
    async with Cluster([FaultyBackend(MemoryBackend(storage=made), faults)]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.status(readyToUse=False)
        assert names.CLAIM_AS_SOURCE in world.finalizers()
        strip(cluster, "volumesnapshots", "s")
        await world.wait(lambda: names.CLAIM_AS_SOURCE not in world.finalizers())
        await cluster.advance(600.0)
        assert not cluster.api.all("volumesnapshotcontents")
        assert not made.snapshots


async def test_a_content_that_is_deleted_by_hand_waits_for_its_snapshot() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        name = (await world.status(readyToUse=True))["boundVolumeSnapshotContentName"]
        cluster.api.delete("volumesnapshotcontents", name)
        await cluster.advance(3600.0)
        assert len(made.snapshots) == 1
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()
        assert not made.snapshots


async def test_a_deletion_that_fails_is_said_on_the_snapshot_and_tried_again() -> None:
    made = storage()
    faults = {"delete_snapshot": [FailBefore(Unavailable("busy"))] * 3}
    async with Cluster([FaultyBackend(MemoryBackend(storage=made), faults)]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.status(readyToUse=True)
        about = world.snapshot()
        cluster.api.delete("volumesnapshots", "s")
        await world.wait(lambda: "error" in (world.snapshot() or {"status": {}})["status"])
        assert world.snapshot()["status"]["error"]["message"] == "Failed to delete snapshot: busy"
        await world.gone()
        assert not made.snapshots
        assert "SnapshotDeleteError" in {event["reason"] for event in cluster.api.events(about)}


async def test_a_content_that_cannot_be_created_is_told_on_the_snapshot() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        cluster.fail("create", "volumesnapshotcontents", status=403, times=3)
        world.cut()
        await world.status(readyToUse=True)
        assert "CreateSnapshotContentFailed" in {each["reason"] for each in cluster.api.events(world.snapshot())}


async def test_a_snapshot_waits_for_its_claim_and_its_class() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        world.cut(volumeSnapshotClassName="daily")
        status = await world.status(readyToUse=False)
        assert 'persistentvolumeclaim "data" not found' in status["error"]["message"]
        await world.begin()
        await world.status(readyToUse=True)


async def test_a_long_cut_keeps_its_state_on_the_content_over_a_restart() -> None:
    made = storage()
    steps: list[Any] = [Answer(InProgress(retry_after=30.0, state={"job": 7}), effect=False)]
    async with Cluster([FaultyBackend(MemoryBackend(storage=made), {"create_snapshot": steps})]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.wait(
            lambda: (
                '"job":7'
                in ((world.content() or {}).get("metadata", {}).get("annotations") or {}).get(names.INTENT, "")
            )
        )
        assert names.CLAIM_AS_SOURCE in world.finalizers()
        await cluster.restart()
        await world.status(readyToUse=True)


async def test_a_snapshot_whose_asset_was_lost_while_it_was_being_cut_can_be_deleted() -> None:
    made = storage()
    steps: list[Any] = [Answer(InProgress(retry_after=5.0, state={"job": 7}), effect=False)]
    async with Cluster([FaultyBackend(MemoryBackend(storage=made), {"create_snapshot": steps})]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.wait(
            lambda: (
                '"job":7'
                in ((world.content() or {}).get("metadata", {}).get("annotations") or {}).get(names.INTENT, "")
            )
        )
        made.assets.clear()
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()
        assert cluster.api.all("volumesnapshotcontents") == []
        await world.wait(lambda: names.CLAIM_AS_SOURCE not in world.finalizers())


async def test_a_snapshot_is_explained() -> None:
    made = storage()
    faults = {"create_snapshot": [FailBefore(Unavailable("no answer"))] * 1000}
    async with Cluster([FaultyBackend(MemoryBackend(storage=made), faults)]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.status(readyToUse=False)
        await cluster.advance(5.0)
        told = cluster.controllers.plane.explain("snapshot", "default/s")
        assert "snapshot default/s is not cut" in told.situation
        assert any("Failed to create snapshot: no answer" in each for each in told.situation)
        assert any(each.startswith("create_snapshot failed ") for each in told.tried)
        assert not cluster.controllers.plane.explain("snapshot", "default/absent").found
        claim = cluster.controllers.plane.explain("claim", "default/data")
        assert "its snapshots: its VolumeSnapshot s is not cut yet" in claim.situation


# --- beside a stock snapshot-controller -------------------------------------------------------------------------------


async def test_beside_a_stock_controller_only_its_half_of_the_contents_is_written() -> None:
    made = storage()
    async with beside(made) as world:
        before = len(world.writes())
        world.cut(volumeSnapshotClassName="daily")
        await world.status(readyToUse=True)
        await world.wait(lambda: names.CLAIM_AS_SOURCE not in world.finalizers())
        await asyncio.sleep(60.0)
        assert world.writes()[before:] == [
            "patch volumesnapshotcontents",
            "patch volumesnapshotcontents/status",
            "patch volumesnapshotcontents",
        ]
        marks = world.content()["metadata"]["annotations"]
        assert names.SNAPSHOT_BEING_CREATED not in marks
        assert len(made.snapshots) == 1
        before = len(world.writes())
        world.api.delete("volumesnapshots", "s")
        await world.gone()
        assert not made.snapshots
        assert world.writes()[before:] == ["patch volumesnapshotcontents/status", "patch volumesnapshotcontents"]


async def test_beside_a_stock_controller_events_are_about_contents_alone() -> None:
    unready = Snapshot(handle="memory-snapshot-2", size_bytes=2**30, ready=False, state="pending, 40 %", retry_after=30)
    faults = {
        "create_snapshot": [FailBefore(Unavailable("no answer")), Answer(unready)],
        "find_snapshot": [Answer(unready)] * 3,
    }
    async with beside(storage(), faults) as world:
        world.cut(volumeSnapshotClassName="daily")
        await world.status(readyToUse=True)
        ours = {"SnapshotPending", "SnapshotCreationFailed"}
        assert ours <= {each["reason"] for each in world.api.events(world.content())}
        assert not ours & {each["reason"] for each in world.api.events(world.snapshot())}


async def test_beside_a_stock_controller_a_snapshot_that_goes_while_it_is_made_leaves_nothing() -> None:
    made = storage()
    async with beside(made, {"create_snapshot": [FailAfter()] * 4}) as world:
        world.cut(volumeSnapshotClassName="daily")
        await world.wait(lambda: made.snapshots)
        world.api.delete("volumesnapshots", "s")
        await world.gone()
        await world.wait(lambda: not world.api.all("volumesnapshotcontents"))
        assert not made.snapshots


async def test_beside_a_stock_controller_a_content_that_a_person_wrote_is_looked_up() -> None:
    made = storage()
    async with beside(made) as world:
        world.create_class("keep", policy="Retain", default=False)
        world.cut(volumeSnapshotClassName="keep")
        await world.status(readyToUse=True)
        [handle] = made.snapshots
        name = world.content()["metadata"]["name"]
        world.api.delete("volumesnapshots", "s")
        await world.gone()
        world.api.delete("volumesnapshotcontents", name)
        await world.wait(lambda: not world.api.all("volumesnapshotcontents"))
        spec = {
            "driver": world.cluster.driver,
            "deletionPolicy": "Delete",
            "source": {"snapshotHandle": handle},
            "volumeSnapshotRef": {"name": "mine", "namespace": "default"},
        }
        world.api.create("volumesnapshotcontents", {"metadata": {"name": "mine"}, "spec": spec})
        source = {"source": {"volumeSnapshotContentName": "mine"}}
        world.api.create("volumesnapshots", {"metadata": {"name": "mine"}, "spec": source})
        await world.status("mine", readyToUse=True)
        world.api.delete("volumesnapshots", "mine")
        await world.gone("mine")
        assert not made.snapshots


async def test_where_a_stock_controller_is_removed_its_snapshots_are_taken_over() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        cluster.api.create("leases", {"metadata": {"name": "other"}}, "kube-system")
        stock = asyncio.create_task(StockSnapshotController(StockApi(cluster.server, 0.002)).run())
        await asyncio.sleep(1.0)
        world = World(cluster)
        await world.begin()
        world.cut(volumeSnapshotClassName="daily")
        await world.status(readyToUse=True)
        stock.cancel()
        await asyncio.wait([stock])
        world.cut("later")
        await asyncio.sleep(30.0)
        assert "status" not in world.snapshot("later")
        await world.status("later", readyToUse=True)
        for name in ("s", "later"):
            cluster.api.delete("volumesnapshots", name)
            await world.gone(name)
        assert not made.snapshots
        assert names.CLAIM_AS_SOURCE not in world.finalizers()


# --- where the kinds are not served -----------------------------------------------------------------------------------

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def test_where_the_kinds_appear_later_snapshots_begin_then_and_claims_never_waited() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        kinds = definitions("snapshot.storage.k8s.io")
        for kind in kinds:
            cluster.server.handle("DELETE", f"{DEFINITIONS}/{kind['metadata']['name']}", {}, {}, b"")
        await cluster.restart()
        await cluster.create_class("fast")
        await cluster.wait_bound(await cluster.create_claim("data", storage_class="fast"))
        for kind in kinds:
            cluster.server.handle("POST", DEFINITIONS, {}, {}, json.dumps(kind).encode())
        world = World(cluster)
        world.create_class()
        world.cut()
        await world.status(readyToUse=True, seconds=90.0)


async def test_snapshots_are_counted_by_driver_and_state() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut("good")
        world.cut("lost")
        world.cut("wrong", source={"persistentVolumeClaimName": "none"}, volumeSnapshotClassName="daily")
        for name in ("good", "lost"):
            await world.status(name, readyToUse=True)
        lost = world.content("lost")
        made.snapshots.pop(lost["status"]["snapshotHandle"])
        strip(cluster, "volumesnapshotcontents", lost["metadata"]["name"])
        await world.status("lost", readyToUse=False)
        await world.status("wrong", readyToUse=False)
        metrics = Metrics()
        cluster.controllers.plane.controllers["snapshot-contents"].measure(metrics)
        counted = {
            state: metrics.registry.get_sample_value("volplane_snapshots", {"driver": cluster.driver, "state": state})
            for state in ("ready", "failed", "error", "pending")
        }
        assert counted == {"ready": 1.0, "failed": 1.0, "error": 1.0, "pending": None}


# --- the command ------------------------------------------------------------------------------------------------------


def person(cluster: Cluster) -> Client:
    return Client(InProcessTransport(cluster.server))


async def test_the_command_waits_until_the_cut_or_until_the_snapshot_is_ready() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        made.delay = 600.0
        heard: list[str] = []
        await command.wish(person(cluster), "default/data", "default/s")
        cut = await command.until(person(cluster), "default/s", command.is_cut, 60.0, heard.append)
        assert not cut.status.ready_to_use
        assert not command.is_ready(
            await command.until(person(cluster), "default/s", command.is_ready, 60.0, heard.append)
        )
        assert command.is_ready(
            await command.until(person(cluster), "default/s", command.is_ready, 900.0, heard.append)
        )


async def test_the_command_says_why_nothing_can_be_cut() -> None:
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        world = World(cluster)
        with pytest.raises(VolplaneError, match="there is no claim default/data"):
            await command.wish(person(cluster), "default/data", "default/s")
        await cluster.create_claim("waits", storage_class="none")
        with pytest.raises(VolplaneError, match="claim default/waits is Pending"):
            await command.wish(person(cluster), "default/waits", "default/s")
        await world.begin()
        await command.wish(person(cluster), "default/data", "default/s")
        with pytest.raises(VolplaneError, match="exists already; give another --name"):
            await command.wish(person(cluster), "default/data", "default/s")
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()
        cluster.server.handle("DELETE", f"{DEFINITIONS}/volumesnapshots.snapshot.storage.k8s.io", {}, {}, b"")
        with pytest.raises(VolplaneError, match="this cluster serves no VolumeSnapshots"):
            await command.wish(person(cluster), "default/data", "default/t")


async def test_the_restore_command_makes_a_claim_like_that_of_the_snapshot_and_waits_until_it_is_bound() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.status(readyToUse=True)
        done = await command.make(person(cluster), command.Wanted("default/s", "default/back"))
        assert done.text == "claim default/back of snapshot default/s is made: 1Gi, ReadWriteOnce, class fast"
        assert done.notes == ()
        assert await command.bound(person(cluster), "default/back", 60.0)
        again = await command.make(person(cluster), command.Wanted("default/s", "default/back"))
        assert again.text == "claim default/back of snapshot default/s is there already"
        larger = command.Wanted("default/s", "default/larger", "fast", "2Gi", ("ReadOnlyMany",))
        assert "is made: 2Gi, ReadOnlyMany, class fast" in (await command.make(person(cluster), larger)).text
        assert await command.bound(person(cluster), "default/larger", 60.0)


async def test_a_claim_of_a_snapshot_that_is_not_ready_is_made_and_waits() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        made.delay = 600.0
        await command.wish(person(cluster), "default/data", "default/s")
        done = await command.make(person(cluster), command.Wanted("default/s", "default/back"))
        assert done.notes == ("it waits: snapshot default/s is not ready",)
        assert not await command.bound(person(cluster), "default/back", 60.0)
        assert await command.bound(person(cluster), "default/back", 1800.0)


async def test_what_is_not_known_of_a_restored_claim_is_asked_for_with_the_option_to_give() -> None:
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.status(readyToUse=True)
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.settle()
        of_class, with_mode = ("default/s", "default/back", "fast"), ("", ("ReadWriteOnce",))
        with pytest.raises(VolplaneError, match=r"which class.*claim data of the snapshot is gone.*--class"):
            await command.make(person(cluster), command.Wanted("default/s", "default/back"))
        with pytest.raises(VolplaneError, match=r"which access mode.*--access-mode ReadWriteOnce"):
            await command.make(person(cluster), command.Wanted(*of_class))
        done = await command.make(person(cluster), command.Wanted(*of_class, *with_mode))
        assert "is made: 1Gi, ReadWriteOnce, class fast" in done.text, "by the restoreSize"
        assert await command.bound(person(cluster), "default/back", 60.0)


async def test_a_restore_that_makes_no_sense_is_refused_with_what_to_do_before_anything_is_written() -> None:
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.status(readyToUse=True)
        before = {each["metadata"]["name"] for each in cluster.api.all("persistentvolumeclaims")}
        for wanted, why in (
            (("default/none", "default/back"), "there is no snapshot default/none; `kubectl -n default get"),
            (("elsewhere/s", "elsewhere/back"), "there is no snapshot elsewhere/s"),
            (
                ("default/s", "default/data"),
                "its name is taken.*`kubectl -n default delete pvc data`, then `volplane re",
            ),
            (("default/s", "default/back", "slow"), 'there is no StorageClass "slow"'),
            (("default/s", "default/back", "../x"), 'there is no StorageClass "../x"'),
            (("default/s", "default/back", "", "512Mi"), "--size 512Mi is less than 1Gi, the size of snapshot"),
            (("default/s", "default/back", "", "much"), '--size: "much" is no size; such as 10Gi'),
            (("default/s", "default/back", "", "-1Gi"), '--size: "-1Gi" is no size'),
        ):
            with pytest.raises(VolplaneError, match=why):
                await command.make(person(cluster), command.Wanted(*wanted))
        assert {each["metadata"]["name"] for each in cluster.api.all("persistentvolumeclaims")} == before
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()
        cluster.server.handle("DELETE", f"{DEFINITIONS}/volumesnapshots.snapshot.storage.k8s.io", {}, {}, b"")
        with pytest.raises(VolplaneError, match="this cluster serves no VolumeSnapshots"):
            await command.make(person(cluster), command.Wanted("default/s", "default/back"))


@pytest.mark.parametrize("right", ["get volumesnapshots", "create persistentvolumeclaims"])
async def test_who_may_not_restore_is_told_the_right_that_is_lacking(right: str) -> None:
    verb, _, plural = right.partition(" ")
    text = f'{plural} is forbidden: User "tenant" cannot {verb} resource "{plural}"'

    script = FaultScript()
    script.add(requests(verb, plural), refuse(403, text), times=9)
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.status(readyToUse=True)
        tenant = Client(FaultTransport(InProcessTransport(cluster.server), script))
        with pytest.raises(VolplaneError, match=f"for the right to {right} in namespace default"):
            await command.make(tenant, command.Wanted("default/s", "default/back"))
        assert len(cluster.api.all("persistentvolumeclaims")) == 1


@pytest.mark.parametrize("origin", ["../../../../api/v1/nodes", "\x1b[2J", "data?x=1"])
async def test_a_source_of_a_snapshot_that_no_claim_can_have_is_not_asked_for(origin: str) -> None:
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        world = World(cluster)
        await world.begin()
        world.api.create(
            "volumesnapshots", {"metadata": {"name": "s"}, "spec": {"source": {"persistentVolumeClaimName": origin}}}
        )
        with pytest.raises(VolplaneError, match=r"which class"):
            await command.make(person(cluster), command.Wanted("default/s", "default/back"))


def test_names_of_a_snapshot_and_its_claim_lead_to_one_namespace_and_nowhere_else() -> None:
    assert command.keys_of("s", "back") == ("default/s", "default/back")
    assert command.keys_of("s", "back", "team") == command.keys_of("team/s", "team/back") == ("team/s", "team/back")
    for snapshot, claim, of in (
        ("team/s", "back", "other"),
        ("team/s", "other/back", ""),
        ("../s", "back", ""),
        ("a/b/s", "back", ""),
        ("s", "\x1b[2J", ""),
        ("", "back", ""),
        ("s", "", ""),
        ("s", "Back", ""),
    ):
        with pytest.raises(ConfigurationError):
            command.keys_of(snapshot, claim, of)


def test_a_snapshot_is_called_after_its_claim_and_the_time() -> None:
    assert command.name_at("team-a/data", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "data-20260102t030405"


async def test_a_snapshot_whose_volume_is_gone_before_the_cut_fails_for_good() -> None:
    refusal = [FailBefore(Unsupported("not now"))] * 200
    backend = FaultyBackend(MemoryBackend(storage=storage()), {"create_snapshot": refusal})
    async with Cluster([backend]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.wait(world.content)
        # A tenant takes away what holds the claim.
        cluster.api.patch("persistentvolumeclaims", "data", {"metadata": {"finalizers": None}})
        cluster.api.delete("persistentvolumeclaims", "data")
        shown = lambda: (world.snapshot().get("status") or {}).get("error")  # noqa: E731
        await world.wait(lambda: (shown() or {}).get("message", "").startswith(TERMINAL), seconds=3600.0)
        await cluster.settle()
        before = len(world.writes())
        await asyncio.sleep(1800.0)
        assert world.writes()[before:] == []
