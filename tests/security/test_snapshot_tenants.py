"""What those who write claims and VolumeSnapshots of a namespace, also their status and finalizers, cannot reach."""

from __future__ import annotations

from typing import Any

import pytest

from integration.test_snapshots import World, storage, strip
from volplane import InProgress, Unavailable
from volplane_testing import Cluster
from volplane_testing.faults import Answer, FailBefore, FaultyBackend
from volplane_testing.memory import MemoryBackend


@pytest.mark.parametrize("begun", [False, True])
async def test_a_volume_that_became_another_tenants_is_not_cut_for_the_former_one(begun: bool) -> None:
    """The tenant takes away what holds the claim until the cut, and deletes the claim; the volume is used again."""
    made = storage()
    first: list[Any] = [Answer(InProgress(retry_after=1.0, state={"job": 7}), effect=False)] if begun else []
    faulty = FaultyBackend(
        MemoryBackend(storage=made), {"create_snapshot": [*first, *[FailBefore(Unavailable("no answer"))] * 10]}
    )
    async with Cluster([faulty]) as cluster:
        world = World(cluster)
        await cluster.create_class("kept", reclaim_policy="Retain")
        claim = await cluster.create_claim("data", storage_class="kept")
        await cluster.wait_bound(claim)
        world.create_class()
        world.cut()
        await world.wait(lambda: faulty.asked["create_snapshot"] > len(first))
        volume = cluster.api.get("persistentvolumeclaims", "data")["spec"]["volumeName"]
        strip(cluster, "persistentvolumeclaims", "data")
        await world.wait(
            lambda: cluster.api.get("persistentvolumes", volume, namespace="")["status"]["phase"] == "Released"
        )
        cluster.api.patch("persistentvolumes", volume, {"spec": {"claimRef": None}}, namespace="")
        other = await cluster.create_claim("theirs", storage_class="kept", volumeName=volume)
        await cluster.wait_bound(other)
        await cluster.advance(3600.0)
        assert not made.snapshots
        assert not (world.snapshot().get("status") or {}).get("creationTime")
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()
        assert not made.snapshots
        assert not cluster.api.all("volumesnapshotcontents")


async def test_a_snapshot_whose_volume_is_gone_can_be_deleted_although_its_cut_had_begun() -> None:
    made = storage()
    started = Answer(InProgress(retry_after=3600.0, state={"job": 7}), effect=False)
    async with Cluster([FaultyBackend(MemoryBackend(storage=made), {"create_snapshot": [started]})]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.wait(lambda: '"job":7' in str((world.content() or {}).get("metadata", {}).get("annotations")))
        volume = cluster.api.get("persistentvolumeclaims", "data")["spec"]["volumeName"]
        strip(cluster, "persistentvolumeclaims", "data")
        await world.wait(lambda: cluster.api.get("persistentvolumes", volume, namespace="") is None)
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()
        assert not cluster.api.all("volumesnapshotcontents")
