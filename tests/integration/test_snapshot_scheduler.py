"""Snapshots at regular times, on the embedded API server in virtual time."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from integration.snapshot_world import World, crash_at, storage
from volplane import Unavailable
from volplane.controller.metrics import Metrics
from volplane.kube import names
from volplane.operations.operation import DriverLimits
from volplane_testing import Cluster
from volplane_testing.faults import FailBefore, FaultyBackend
from volplane_testing.memory import MemoryBackend

OFTEN = "*/10 * * * *; keep=2"
SECONDS = 600.0


def annotate(cluster: Cluster, name: str, **more: str | None) -> None:
    marks = {"schedule": names.SNAPSHOT_SCHEDULE, "suspend": names.SNAPSHOT_SUSPEND}
    body = {"metadata": {"annotations": {marks[key]: value for key, value in more.items()}}}
    cluster.api.patch("persistentvolumeclaims", name, body)


def taken(cluster: Cluster) -> list[Any]:
    made = cluster.api.all("volumesnapshots")
    return sorted(made, key=lambda each: int(each["metadata"]["annotations"][names.SNAPSHOT_RUN]))


def numbers(cluster: Cluster) -> list[int]:
    return [int(each["metadata"]["annotations"][names.SNAPSHOT_RUN]) for each in taken(cluster)]


def reasons(cluster: Cluster, name: str = "data") -> list[str]:
    return [each["reason"] for each in cluster.api.events(cluster.api.get("persistentvolumeclaims", name) or {})]


def explained(cluster: Cluster) -> str:
    return " / ".join(cluster.controllers.plane.explain("claim", "default/data").situation)


def measured(cluster: Cluster) -> dict[str, float | None]:
    metrics = Metrics()
    cluster.controllers.plane.controllers["snapshot-schedules"].measure(metrics)
    value, driver = metrics.registry.get_sample_value, cluster.driver
    found = {
        state: value("volplane_snapshot_schedules", {"driver": driver, "state": state})
        for state in ("followed", "late", "suspended", "refused")
    }
    return {state: count for state, count in found.items() if count}


async def test_snapshots_are_taken_at_their_times_and_as_many_stay_as_the_schedule_says() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        annotate(cluster, "data", schedule=OFTEN)
        await cluster.advance(SECONDS - 30)
        assert not taken(cluster)
        await cluster.advance(SECONDS)
        before = len(world.writes())
        await cluster.advance(SECONDS)
        mine = [each for each in world.writes()[before:] if "snapshotcontents" not in each and "/status" not in each]
        assert mine[:3] == ["patch persistentvolumeclaims", "create volumesnapshots", "patch persistentvolumeclaims"]
        await cluster.advance(2 * SECONDS)
        assert numbers(cluster) == [3, 4]
        assert len(made.snapshots) == 2
        assert {"SnapshotScheduled", "SnapshotExpired"} <= set(reasons(cluster))
        assert "its schedule of snapshots: the next is taken at 2026-01-01T00:50:00Z" in explained(cluster)
        assert measured(cluster) == {"followed": 1.0}
        await cluster.delete_claim(world.claim)
        await cluster.advance(SECONDS)
        assert numbers(cluster) == [3, 4]  # They are nobody's but their own.
        assert not measured(cluster)


async def test_a_bad_schedule_is_said_on_the_claim_and_in_explain_and_a_better_one_is_taken_up_at_once() -> None:
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        world = World(cluster)
        await world.begin()
        annotate(cluster, "data", schedule="0 25 * * *; keep=2")
        await cluster.settle()
        [event] = [
            e for e in cluster.api.events(world.api.get("persistentvolumeclaims", "data")) if "Refused" in e["reason"]
        ]
        assert "volplane.dev/snapshot-schedule is '0 25 * * *; keep=2': hour \"25\": give numbers" in event["message"]
        assert event["message"] in explained(cluster)
        assert measured(cluster) == {"refused": 1.0}
        annotate(cluster, "data", schedule=OFTEN)
        await cluster.settle()
        assert measured(cluster) == {"followed": 1.0}
        annotate(cluster, "data", schedule=None)
        await cluster.settle()
        assert not measured(cluster)
        assert "its schedule of snapshots" not in explained(cluster)


async def test_the_schedule_of_a_class_and_its_suspension_reach_all_its_claims() -> None:
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        world = World(cluster)
        await world.begin()
        cluster.api.patch("storageclasses", "fast", {"metadata": {"annotations": {names.SNAPSHOT_SCHEDULE: OFTEN}}})
        await cluster.advance(SECONDS)
        assert numbers(cluster) == [1]
        cluster.api.patch("storageclasses", "fast", {"metadata": {"annotations": {names.SNAPSHOT_SUSPEND: "true"}}})
        await cluster.advance(3 * SECONDS)
        assert numbers(cluster) == [1]
        assert measured(cluster) == {"suspended": 1.0}
        annotate(cluster, "data", suspend="false")
        await cluster.advance(5.0)
        assert numbers(cluster) == [1, 2]  # Of the missed ones the latest, once.


async def test_a_schedule_whose_snapshots_fail_is_late_and_keeps_the_last_good_one() -> None:
    backend = FaultyBackend(MemoryBackend(storage=storage()))
    async with Cluster([backend]) as cluster:
        world = World(cluster)
        await world.begin()
        annotate(cluster, "data", schedule="*/10 * * * *; keep=1; max-age=5m")
        await cluster.advance(SECONDS)
        backend.fail("create_snapshot", [FailBefore(Unavailable("no answer"))] * 22)
        await cluster.advance(2.4 * SECONDS)
        assert measured(cluster) == {"late": 1.0}
        assert numbers(cluster) == [1, 2]
        assert "waits for" in explained(cluster)
        metrics = Metrics()
        cluster.controllers.plane.controllers["snapshot-schedules"].measure(metrics)
        labels = {"namespace": "default", "persistentvolumeclaim": "data"}
        assert metrics.registry.get_sample_value("volplane_snapshot_schedule_late_seconds", labels)
        await cluster.advance(3 * SECONDS)
        assert measured(cluster) == {"followed": 1.0}
        assert 1 not in numbers(cluster)


async def test_of_many_runs_at_one_time_as_many_are_under_way_as_the_driver_may_have() -> None:
    made = storage()
    backends = {"disk.example.com": MemoryBackend(storage=made)}
    async with Cluster(backends, limits={"disk.example.com": DriverLimits(concurrency=2)}) as cluster:
        world = World(cluster)
        await world.begin()
        for number in range(6):
            claim = await cluster.create_claim(f"c{number}", storage_class="fast")
            await cluster.wait_bound(claim)
            annotate(cluster, f"c{number}", schedule=OFTEN)
        await cluster.settle()
        made.delay, most = 30.0, 0
        for _ in range(80):
            await cluster.advance(15.0)
            ready = [bool((each.get("status") or {}).get("readyToUse")) for each in cluster.api.all("volumesnapshots")]
            most = max(most, ready.count(False))
            if ready.count(True) == 6:
                break
        assert ready == [True] * 6
        assert most == 2


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("number", range(4))
async def test_a_process_that_is_killed_at_any_write_of_a_run_takes_one_snapshot(number: int, lost: bool) -> None:
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        world = World(cluster)
        await world.begin()
        annotate(cluster, "data", schedule=OFTEN)
        await cluster.advance(SECONDS - 30)
        assert await crash_at(world, number, lambda: None, lost=lost)
        await cluster.advance(60.0)
        assert numbers(cluster) == [1]
        assert taken(cluster)[0]["status"]["readyToUse"]


def annotations_of_the_page() -> list[tuple[str, str]]:
    """What the how-to has people write on claims, in order."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "schedule-snapshots.md"
    lines = [shlex.split(line) for line in page.read_text().splitlines() if line.strip().startswith("kubectl annotate")]
    return [(key, value) for *_, last in lines for key, _, value in [last.partition("=")]]


async def test_what_the_how_to_has_people_write_does_what_it_says() -> None:
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        await World(cluster).begin()
        states = []
        for key, value in annotations_of_the_page():
            cluster.api.patch("persistentvolumeclaims", "data", {"metadata": {"annotations": {key: value}}})
            await cluster.settle()
            states.append(measured(cluster))
        assert states == [{"followed": 1.0}, {"suspended": 1.0}, {}]
