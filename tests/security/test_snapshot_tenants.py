"""What those who write claims and VolumeSnapshots of a namespace, also their status and finalizers, cannot reach."""

from __future__ import annotations

import time
from typing import Any

import pytest

from integration.snapshot_world import World, storage, strip
from unit.binding.objects import claim, volume
from unit.deciding import DRIVER, put
from unit.snapshots.objects import state_of
from volplane import InProgress, ResourceExhausted, Unavailable
from volplane.controller.actions import LiveReads, Wait
from volplane.controller.workqueue import WorkQueue
from volplane.kube import names
from volplane.snapshots.schedule import RunRecord
from volplane.snapshots.turns import Turns
from volplane.state.records import write_intent
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
        await world.wait(lambda: cluster.api.get("persistentvolumes", volume, "")["status"]["phase"] == "Released")
        cluster.api.patch("persistentvolumes", volume, {"spec": {"claimRef": None}}, "")
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
        await world.wait(lambda: cluster.api.get("persistentvolumes", volume, "") is None)
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()
        assert not cluster.api.all("volumesnapshotcontents")


async def test_a_claim_that_became_another_tenants_volume_is_not_copied_for_the_former_one() -> None:
    """As with a cut: what holds the source of a copy is a finalizer that its tenant can remove."""
    faulty = FaultyBackend(MemoryBackend(storage=storage()))
    async with Cluster([faulty]) as cluster:
        await cluster.create_class("kept", reclaim_policy="Retain")
        await cluster.wait_bound(await cluster.create_claim("origin", storage_class="kept"))
        faulty.fail("provision", [FailBefore(Unavailable("no answer"))] * 10)
        begun = faulty.asked["provision"]
        source = {"kind": "PersistentVolumeClaim", "name": "origin"}
        await cluster.create_claim("copy", storage_class="kept", dataSource=source)
        world = World(cluster)
        await world.wait(lambda: faulty.asked["provision"] > begun)
        volume = cluster.api.get("persistentvolumeclaims", "origin")["spec"]["volumeName"]
        strip(cluster, "persistentvolumeclaims", "origin")
        await world.wait(lambda: cluster.api.get("persistentvolumes", volume, "")["status"]["phase"] == "Released")
        cluster.api.patch("persistentvolumes", volume, {"spec": {"claimRef": None}}, "")
        theirs = await cluster.create_claim("origin", namespace="theirs", storage_class="kept", volumeName=volume)
        await cluster.wait_bound(theirs)
        await cluster.advance(3600.0)
        assert cluster.api.get("persistentvolumeclaims", "copy")["status"]["phase"] == "Pending"
        told = [event["message"] for event in cluster.api.events(cluster.api.get("persistentvolumeclaims", "copy"))]
        assert any("is another claim's now" in message for message in told), told
        assert not any("theirs" in message for message in told), told
        cluster.api.delete("persistentvolumeclaims", "copy")
        await world.wait(lambda: cluster.api.get("persistentvolumeclaims", "copy") is None)


async def test_contents_that_were_copied_to_another_cluster_destroy_nothing_of_the_first_one() -> None:
    """As by a backup that is restored elsewhere, for a drill: both clusters have one storage."""
    made = storage()
    async with (
        Cluster([MemoryBackend(storage=made)]) as first,
        Cluster([MemoryBackend(storage=made)], seed=1) as second,
    ):
        world = World(first)
        await world.begin()
        world.cut()
        await world.status(readyToUse=True)
        content = world.content()
        name = content["metadata"]["name"]
        kept = {key: content["metadata"][key] for key in ("name", "annotations", "finalizers")}
        second.api.create("volumesnapshotcontents", {"metadata": kept, "spec": content["spec"]})
        other = World(second)
        await other.wait(
            lambda: (second.api.get("volumesnapshotcontents", name, "").get("status") or {}).get("readyToUse")
        )
        second.api.delete("volumesnapshotcontents", name)
        await second.advance(3600.0)
        assert len(made.snapshots) == 1
        error = second.api.get("volumesnapshotcontents", name, "")["status"]["error"]["message"]
        assert "was made in cluster" in error
        assert "deletionPolicy to Retain" in error
        second.api.patch("volumesnapshotcontents", name, {"spec": {"deletionPolicy": "Retain"}}, "")
        await other.wait(lambda: second.api.get("volumesnapshotcontents", name, "") is None)
        assert len(made.snapshots) == 1


@pytest.mark.parametrize("name", ["x" * 100_000, "..", "x/snapcontent", "a\x1b[2J%2f", "."], ids=len)
async def test_the_name_of_a_content_that_a_tenant_makes_up_is_asked_for_only_if_it_can_be_one(name: str) -> None:
    """A proxy answers to a very long path with a page of its own, as if there were no server: all calls would slow."""
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        world = World(cluster)
        await world.begin()
        world.api.create(
            "volumesnapshots",
            {"metadata": {"name": "forged"}, "spec": {"source": {"volumeSnapshotContentName": "none"}}},
        )
        forged = {"status": {"boundVolumeSnapshotContentName": name, "readyToUse": True}}
        cluster.api.patch("volumesnapshots", "forged", forged, subresource="status")
        source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "forged"}
        claim = await cluster.create_claim("copy", storage_class="fast", dataSource=source)
        await world.wait(lambda: cluster.api.events(cluster.api.get("persistentvolumeclaims", "copy")))
        await cluster.advance(100.0)
        assert not [
            each for each in cluster.requests if each.verb == "get" and each.resource == "volumesnapshotcontents"
        ]
        [event] = [each for each in cluster.api.events(claim) if each["reason"] == "ProvisioningFailed"]
        assert event["message"].endswith("not bound: what its status names can be no content")


@pytest.mark.parametrize("named", ["snapcontent-theirs", "none"])
async def test_a_status_that_names_another_content_leaves_no_snapshot_behind_and_touches_no_other(named: str) -> None:
    """Else whoever writes it has snapshots for ever that no VolumeSnapshot, and so no quota, counts."""
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.status(readyToUse=True)
        spec = world.content()["spec"]
        theirs = {"namespace": "theirs", "name": "s", "uid": "1"}
        body = {"metadata": {"name": "snapcontent-theirs"}, "spec": {**spec, "volumeSnapshotRef": theirs}}
        cluster.api.create("volumesnapshotcontents", body)
        forged = {"status": {"boundVolumeSnapshotContentName": named}}
        cluster.api.patch("volumesnapshots", "s", forged, subresource="status")
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()
        await cluster.settle()
        assert not made.snapshots
        [left] = cluster.api.all("volumesnapshotcontents")
        assert left["metadata"]["name"] == "snapcontent-theirs"
        assert names.SNAPSHOT_BEING_DELETED not in (left["metadata"].get("annotations") or {})


@pytest.mark.parametrize("freed", ["by its policy", "with the other one"])
async def test_a_snapshot_to_which_two_contents_lead_stays_while_one_of_them_does(freed: str) -> None:
    """An administrator gives a snapshot to another namespace by a content of its own, which keeps the first one."""
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.status(readyToUse=True)
        content = world.content()
        handle = content["status"]["snapshotHandle"]
        reference = {"namespace": "theirs", "name": "given"}
        spec = {**content["spec"], "volumeSnapshotRef": reference, "source": {"snapshotHandle": handle}}
        cluster.api.create("volumesnapshotcontents", {"metadata": {"name": "given"}, "spec": spec})
        body = {"metadata": {"name": "given"}, "spec": {"source": {"volumeSnapshotContentName": "given"}}}
        cluster.api.create("volumesnapshots", body, "theirs")
        await world.wait(
            lambda: (cluster.api.get("volumesnapshots", "given", "theirs").get("status") or {}).get("readyToUse")
        )
        cluster.api.delete("volumesnapshots", "given", "theirs")
        await cluster.advance(3600.0)
        assert len(made.snapshots) == 1
        error = cluster.api.get("volumesnapshots", "given", "theirs")["status"]["error"]["message"]
        assert "delete that one, too, or set the deletionPolicy of given to Retain" in error
        if freed == "by its policy":
            cluster.api.patch("volumesnapshotcontents", "given", {"spec": {"deletionPolicy": "Retain"}}, "")
        else:
            cluster.api.delete("volumesnapshots", "s")
            await world.gone()
        await world.wait(lambda: cluster.api.get("volumesnapshots", "given", "theirs") is None)
        await cluster.settle()
        assert len(made.snapshots) == (freed == "by its policy")


async def test_a_moment_that_is_no_time_is_not_that_of_a_snapshot_and_nothing_breaks() -> None:
    """The API server takes any two digits as the offset of a time zone."""
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        name = (await world.status(readyToUse=True))["boundVolumeSnapshotContentName"]
        forged = {"status": {"creationTime": "2026-01-01T00:00:00+99:99"}}
        cluster.api.patch("volumesnapshots", "s", forged, subresource="status")
        strip(cluster, "volumesnapshotcontents", name)
        status = await world.status(readyToUse=False)
        assert status["error"]["message"].startswith("terminal: VolumeSnapshotContent is missing")
        assert len(made.snapshots) == 1


async def test_a_snapshot_that_the_storage_refuses_for_good_can_be_deleted() -> None:
    """Else a used up quota of snapshots would keep the VolumeSnapshot, and with it the namespace."""
    made = storage()
    started = Answer(InProgress(retry_after=1.0, state={"job": 7}), effect=False)
    refused = FailBefore(ResourceExhausted("the quota of snapshots is used up"))
    refused.error.nothing_done = True  # type: ignore[attr-defined]
    async with Cluster(
        [FaultyBackend(MemoryBackend(storage=made), {"create_snapshot": [started, *[refused] * 1000]})]
    ) as cluster:
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.wait(lambda: "quota of snapshots" in str((world.snapshot() or {}).get("status")))
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()
        assert not made.snapshots
        assert not cluster.api.all("volumesnapshotcontents")
        await world.wait(lambda: names.CLAIM_AS_SOURCE not in world.finalizers())


async def test_a_lease_that_a_tenant_writes_does_not_stop_the_snapshots_of_all_others() -> None:
    """The role `edit` allows Leases. This one is that of a stock snapshot-controller, as far as its name goes."""
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        world = World(cluster)
        await world.begin()
        lease = {"metadata": {"name": "snapshot-controller-leader"}, "spec": {"holderIdentity": "nobody"}}
        cluster.api.create("leases", lease, "tenant")
        await cluster.settle()
        world.cut()
        for number in range(20):
            cluster.api.patch("leases", "snapshot-controller-leader", {"spec": {"leaseTransitions": number}}, "tenant")
            await cluster.advance(30.0)
        assert ((world.snapshot() or {}).get("status") or {}).get("readyToUse")


def test_the_first_decision_of_a_leader_is_quick_although_hundreds_of_claims_have_a_rare_schedule() -> None:
    """Its Lease is over meanwhile, and the next leader's too: each looked for the next 29th of February of all."""
    text, state = "0 0 29 2 *; keep=3; time-zone=Europe/Berlin", state_of()
    since = "2026-11-01T00:00:00Z"
    record = write_intent(RunRecord(v=1, schedule=text, since=since, run=since, made=True))
    notes = {names.BIND_COMPLETED: "yes", names.SNAPSHOT_SCHEDULE: text, names.SNAPSHOT_RUN: record}
    for number in range(300):
        bound = claim(f"c{number}", volumeName=f"v{number}", annotations=notes, status={"phase": "Bound"})
        marks = {names.PROVISIONED_BY: DRIVER, names.HANDLE: f"disk-{number}"}
        put(state.cluster, bound)
        put(state.cluster, volume(f"v{number}", claim=bound, annotations=marks, status={"phase": "Bound"}))
    turns = Turns(state, WorkQueue("snapshot-schedules"), lambda _driver: 10)
    begun = time.process_time()
    assert isinstance(turns.decide("default/c0", LiveReads()), Wait)
    assert time.process_time() - begun < 1.0
