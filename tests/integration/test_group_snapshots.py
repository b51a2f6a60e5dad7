"""Groups of snapshots from the wish to the deletion, on the embedded API server in virtual time."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from integration.snapshot_world import World, beside, crash_at, storage
from volplane import GroupSnapshot, GroupSnapshotRequest, InProgress, Unsupported, hookimpl
from volplane.controller.metrics import Metrics
from volplane.kube import names
from volplane.snapshots.groups_objects import GROUP_API
from volplane.snapshots.state import TERMINAL
from volplane_embedded.apiserver.custom_kinds import definitions
from volplane_testing import Cluster
from volplane_testing.faults import Answer, FailAfter, FailBefore, FaultyBackend
from volplane_testing.memory import MemoryBackend

LABELS = {"app": "db"}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Groups(World):
    """A cluster with a class of groups, and two bound claims that carry labels."""

    async def begin(self, *, policy: str = "Delete", default: bool = True, **fields: Any) -> None:
        await self.cluster.create_class("fast")
        for name in ("data", "log"):
            claim = await self.cluster.create_claim(name, storage_class="fast")
            self.api.patch("persistentvolumeclaims", name, {"metadata": {"labels": LABELS}})
            await self.cluster.wait_bound(claim)
        marks = {names.DEFAULT_GROUP_CLASS: "true"} if default else {}
        body = {"metadata": {"name": "together", "annotations": marks}, "driver": self.cluster.driver}
        self.api.create("volumegroupsnapshotclasses", {**body, "deletionPolicy": policy, **fields})

    def cut(self, name: str = "g", **spec: Any) -> Any:
        body = {"source": {"selector": {"matchLabels": LABELS}}, **spec}
        return self.api.create("volumegroupsnapshots", {"metadata": {"name": name}, "spec": body})

    def snapshot(self, name: str = "g") -> Any:
        return self.api.get("volumegroupsnapshots", name)

    def members(self) -> list[Any]:
        return list(self.api.all("volumesnapshots"))

    async def ready(self, seconds: float = 600.0) -> Any:
        status = await self.status("g", seconds, readyToUse=True)
        shown = lambda: all((each.get("status") or {}).get("readyToUse") for each in self.members())  # noqa: E731
        await self.wait(shown, what="the members are ready")
        await self.cluster.settle()
        return status


async def test_a_group_is_cut_at_one_moment_and_each_member_gets_its_objects() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = Groups(cluster)
        await world.begin()
        await cluster.settle()
        before = len(world.writes())
        group = world.cut()
        await world.ready()
        member = [
            "create volumesnapshotcontents",
            "create volumesnapshots",
            "patch volumesnapshotcontents",
            "patch volumesnapshotcontents/status",
        ]
        of_group = [
            each
            for each in world.writes()[before:]
            if each not in ("patch volumesnapshots", "patch volumesnapshots/status")
        ]
        released = [at for at, each in enumerate(of_group) if each == "patch persistentvolumeclaims"][2:]
        assert len(released) == 2
        assert min(released) > of_group.index("patch volumegroupsnapshotcontents/status")
        of_group = [each for at, each in enumerate(of_group) if at not in released]
        assert of_group == [
            "patch volumegroupsnapshots",
            *["patch persistentvolumeclaims"] * 2,
            "create volumegroupsnapshotcontents",
            "patch volumegroupsnapshotcontents/status",
            *member,
            *member,
            "patch volumegroupsnapshots/status",
        ]
        reasons = [event["reason"] for event in cluster.api.events(world.snapshot())]
        assert reasons == ["CreatingGroupSnapshot", "GroupSnapshotCreated", "GroupSnapshotReady"]
        assert len({each.created_at for each in made.snapshots.values()}) == 1
        uid = group["metadata"]["uid"]
        [content] = cluster.api.all("volumegroupsnapshotcontents")
        assert content["metadata"]["name"] == f"groupsnapcontent-{uid}"
        for info in content["status"]["volumeSnapshotInfoList"]:
            digest = hashlib.sha256(f"{uid}{info['volumeHandle']}".encode()).hexdigest()
            snapshot = cluster.api.get("volumesnapshots", f"snapshot-{digest}") or {}
            assert snapshot["status"]["boundVolumeSnapshotContentName"] == f"snapcontent-{digest}"
            assert snapshot["status"]["volumeGroupSnapshotName"] == "g"
            assert names.SNAPSHOT_IN_GROUP in snapshot["metadata"]["finalizers"]
            [owner] = snapshot["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["name"], owner["uid"]) == ("VolumeGroupSnapshot", "g", uid)
            shown = cluster.api.get("volumesnapshotcontents", f"snapcontent-{digest}") or {}
            assert shown["status"]["snapshotHandle"] == info["snapshotHandle"]
            assert shown["spec"]["volumeSnapshotRef"]["uid"] == snapshot["metadata"]["uid"]
        claims = {each["spec"]["source"]["persistentVolumeClaimName"] for each in world.members()}
        assert claims == {"data", "log"}


async def test_a_group_takes_its_members_and_their_snapshots_with_it() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = Groups(cluster)
        await world.begin()
        world.cut()
        await world.ready()
        cluster.api.delete("volumegroupsnapshots", "g")
        await world.gone("g")
        await world.wait(lambda: not world.members(), what="the members are gone")
        await world.wait(lambda: not cluster.api.all("volumesnapshotcontents"))
        assert not cluster.api.all("volumegroupsnapshotcontents")
        assert not made.snapshots


async def test_what_a_group_retains_stays_with_its_contents() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = Groups(cluster)
        await world.begin(policy="Retain")
        world.cut()
        await world.ready()
        cluster.api.delete("volumegroupsnapshots", "g")
        await world.gone("g")
        await world.wait(lambda: not world.members(), what="the members are gone")
        assert len(cluster.api.all("volumegroupsnapshotcontents")) == 1
        assert len(cluster.api.all("volumesnapshotcontents")) == 2
        assert len(made.snapshots) == 2


async def test_a_member_cannot_be_deleted_while_its_group_exists() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = Groups(cluster)
        await world.begin()
        world.cut()
        await world.ready()
        member = world.members()[0]
        cluster.api.delete("volumesnapshots", member["metadata"]["name"])
        pending = lambda: [e for e in cluster.api.events(member) if e["reason"] == "SnapshotDeletePending"]  # noqa: E731
        [event] = await world.wait(pending)
        assert "belongs to group snapshot default/g" in event["message"]
        assert len(world.members()) == 2
        assert len(made.snapshots) == 2


async def test_a_group_waits_for_what_is_being_made_of_a_member() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = Groups(cluster)
        await world.begin()
        world.cut()
        await world.ready()
        member = world.members()[0]["metadata"]["name"]
        source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": member}
        await cluster.create_claim("restored", storage_class="none", dataSource=source)
        group = world.snapshot()
        cluster.api.delete("volumegroupsnapshots", "g")

        def told() -> list[str]:
            events = cluster.api.events(group)
            return [each["message"] for each in events if each["reason"] == "SnapshotDeletePending"]

        [message] = await world.wait(told)
        assert f"Snapshot default/{member} belonging to VolumeGroupSnapshot default/g" in message
        assert len(made.snapshots) == 2
        cluster.api.delete("persistentvolumeclaims", "restored")
        await world.gone("g")
        await world.wait(lambda: not made.snapshots)


async def test_a_group_whose_claims_are_not_bound_yet_is_cut_as_soon_as_they_are() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = Groups(cluster)
        await world.begin()
        late = await cluster.create_claim("late", storage_class="later")
        cluster.api.patch("persistentvolumeclaims", "late", {"metadata": {"labels": LABELS}})
        world.cut()
        shown = lambda: ((world.snapshot().get("status") or {}).get("error") or {}).get("message")  # noqa: E731
        assert "the PVC late is not yet bound to a PV" in await world.wait(shown)
        await asyncio.sleep(1000.0)
        await cluster.create_class("later")
        await cluster.wait_bound(late)
        await world.status("g", 5.0, readyToUse=True)
        assert len(made.snapshots) == 3


def held(world: Groups, name: str) -> bool:
    claim = world.api.get("persistentvolumeclaims", name) or {"metadata": {}}
    return names.CLAIM_AS_SOURCE in (claim["metadata"].get("finalizers") or ())


async def test_claims_are_kept_until_their_group_is_cut() -> None:
    going = [Answer(InProgress(state={"at": 1}, retry_after=20.0))] * 3
    backend = FaultyBackend(MemoryBackend(storage=storage()), {"create_group_snapshot": going})
    async with Cluster([backend]) as cluster:
        world = Groups(cluster)
        await world.begin()
        world.cut()
        await world.wait(lambda: cluster.api.all("volumegroupsnapshotcontents"))
        cluster.api.delete("persistentvolumeclaims", "data")
        await asyncio.sleep(30.0)
        assert held(world, "data")
        assert held(world, "log")
        await world.ready()
        assert len(world.members()) == 2
        await world.wait(lambda: cluster.api.get("persistentvolumeclaims", "data") is None)
        await world.wait(lambda: not held(world, "log"))


async def test_a_group_that_is_deleted_or_refused_keeps_no_claim() -> None:
    refusal = [FailBefore(Unsupported("not now"))] * 200
    backend = FaultyBackend(MemoryBackend(storage=storage()), {"create_group_snapshot": refusal})
    async with Cluster([backend]) as cluster:
        world = Groups(cluster)
        await world.begin()
        world.cut()
        await world.wait(lambda: held(world, "data") and held(world, "log"))
        cluster.api.delete("volumegroupsnapshots", "g")
        await world.gone("g")
        await world.wait(lambda: not held(world, "data") and not held(world, "log"))
        await cluster.create_claim("late", storage_class="none")
        cluster.api.patch("persistentvolumeclaims", "late", {"metadata": {"labels": LABELS}})
        world.cut("h")
        await world.wait(lambda: (world.snapshot("h").get("status") or {}).get("error"))
        cluster.api.delete("persistentvolumeclaims", "data")
        await world.wait(lambda: cluster.api.get("persistentvolumeclaims", "data") is None)


async def test_a_group_that_was_refused_is_cut_once_all_that_it_selects_is_bound() -> None:
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        world = Groups(cluster)
        await world.begin()
        late = await cluster.create_claim("late", storage_class="soon")
        cluster.api.patch("persistentvolumeclaims", "late", {"metadata": {"labels": LABELS}})
        world.cut()
        await world.wait(lambda: (world.snapshot().get("status") or {}).get("error"))
        await cluster.create_class("soon")
        await cluster.wait_bound(late)
        status = await world.ready()
        assert "error" not in status
        assert len(world.members()) == 3


async def test_members_keep_mode_and_claim_of_what_was_cut_although_the_claims_go_at_once() -> None:
    """Without the mode a tenant could have a file system made of the bytes of a block device."""
    begun = Answer(InProgress(retry_after=60.0, state={"job": 7}), effect=False)
    backend = FaultyBackend(MemoryBackend(storage=storage()), {"create_group_snapshot": [begun]})
    async with Cluster([backend]) as cluster:
        world = Groups(cluster)
        await world.begin()
        claims = {f"disk-{number}" for number in range(5)}
        for name in claims:
            claim = await cluster.create_claim(name, storage_class="fast", volumeMode="Block")
            cluster.api.patch("persistentvolumeclaims", name, {"metadata": {"labels": {"app": "disks"}}})
            await cluster.wait_bound(claim)
        world.cut(source={"selector": {"matchLabels": {"app": "disks"}}})
        await world.wait(lambda: backend.asked["create_group_snapshot"])
        for name in claims:
            cluster.api.delete("persistentvolumeclaims", name)
        await world.ready()
        assert {each["spec"]["sourceVolumeMode"] for each in cluster.api.all("volumesnapshotcontents")} == {"Block"}
        assert {each["spec"]["source"]["persistentVolumeClaimName"] for each in world.members()} == claims


class Mixing(MemoryBackend):
    """Gives all members of a group one snapshot: that of somebody else if there is one."""

    @hookimpl
    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        handle = next(iter(self.storage.snapshots), "one")
        made = super().create_group_snapshot(request)
        return replace(made, snapshots=tuple(replace(each, handle=handle) for each in made.snapshots))


@pytest.mark.parametrize("there", [False, True])
async def test_a_driver_that_gives_a_member_the_snapshot_of_another_shows_it_to_nobody_else(there: bool) -> None:
    made = storage()
    async with Cluster([Mixing(storage=made)]) as cluster:
        world = Groups(cluster)
        await world.begin()
        World.create_class(world)
        if there:
            World.cut(world)
            await world.wait(
                lambda: ((cluster.api.get("volumesnapshots", "s") or {}).get("status") or {}).get("readyToUse")
            )
        world.cut()
        shown = lambda: ((world.snapshot() or {}).get("status") or {}).get("error")  # noqa: E731
        error = await world.wait(shown)
        assert "the driver gives out one snapshot twice" in error["message"]
        assert len(world.members()) == there


async def test_what_another_namespace_calls_a_member_of_a_group_is_none() -> None:
    """Who knows its uid would keep it from being deleted."""
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        world = Groups(cluster)
        await world.begin()
        group = world.cut()
        await world.ready()
        owner = {"apiVersion": f"{GROUP_API}/v1", "kind": "VolumeGroupSnapshot", "name": "g"}
        metadata = {"name": "forged", "ownerReferences": [{**owner, "uid": group["metadata"]["uid"]}]}
        held = {**metadata, "finalizers": ["example.com/held"]}
        spec = {"source": {"persistentVolumeClaimName": "data"}}
        cluster.api.create("volumesnapshots", {"metadata": held, "spec": spec}, "theirs")
        source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "forged"}
        await cluster.create_claim("copy", namespace="theirs", storage_class="fast", dataSource=source)
        cluster.api.delete("volumegroupsnapshots", "g")
        await world.gone("g")


@pytest.mark.parametrize("remade", [False, True])
async def test_a_group_whose_volume_is_gone_fails_for_good(remade: bool) -> None:
    refusal = [FailBefore(Unsupported("not now"))] * 200
    backend = FaultyBackend(MemoryBackend(storage=storage()), {"create_group_snapshot": refusal})
    async with Cluster([backend]) as cluster:
        world = Groups(cluster)
        await world.begin()
        world.cut()
        await world.wait(lambda: cluster.api.all("volumegroupsnapshotcontents") and held(world, "data"))
        # A tenant takes away what holds the claim.
        cluster.api.patch("persistentvolumeclaims", "data", {"metadata": {"finalizers": None}})
        cluster.api.delete("persistentvolumeclaims", "data")
        if remade:
            again = await cluster.create_claim("data", storage_class="fast")
            await cluster.wait_bound(again)
        shown = lambda: (world.snapshot().get("status") or {}).get("error")  # noqa: E731
        await world.wait(lambda: (shown() or {}).get("message", "").startswith(TERMINAL), seconds=3600.0)
        assert "is there" in shown()["message"] or "is not bound to the claim" in shown()["message"]
        await world.wait(lambda: not held(world, "log"))
        await cluster.settle()
        before = len(world.writes())
        await asyncio.sleep(1800.0)
        assert world.writes()[before:] == []


async def test_the_whole_selector_counts() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = Groups(cluster)
        await world.begin()
        other = await cluster.create_claim("other", storage_class="fast")
        labels = {**LABELS, "part": "cache"}
        cluster.api.patch("persistentvolumeclaims", "other", {"metadata": {"labels": labels}})
        await cluster.wait_bound(other)
        need = {"key": "part", "operator": "DoesNotExist"}
        world.cut(source={"selector": {"matchLabels": LABELS, "matchExpressions": [need]}})
        await world.ready()
        assert len(world.members()) == 2


@pytest.mark.parametrize(
    ("change", "reason", "message"),
    [
        (
            {"source": {"selector": {"matchLabels": {"app": "no"}}}},
            "SetDefaultGroupSnapshotClassFailed",
            "not applied to any PVC",
        ),
        ({"volumeGroupSnapshotClassName": "none"}, "GetGroupSnapshotClassFailed", '"none" not found'),
    ],
)
async def test_a_group_that_cannot_be_had_says_why(change: dict[str, Any], reason: str, message: str) -> None:
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        world = Groups(cluster)
        await world.begin()
        world.cut(**change)
        status = await world.wait(
            lambda: (world.snapshot().get("status") or {}).get("error") and world.snapshot()["status"]
        )
        assert message in status["error"]["message"]
        assert reason in [event["reason"] for event in cluster.api.events(world.snapshot())]
        assert not world.snapshot()["metadata"].get("finalizers")


async def test_a_driver_that_cuts_no_groups_refuses_before_anything_is_made() -> None:
    class Single(MemoryBackend):
        create_group_snapshot = find_group_snapshot = delete_group_snapshot = None  # type: ignore[assignment]

    async with Cluster([Single(storage=storage())]) as cluster:
        world = Groups(cluster)
        await world.begin()
        world.cut()
        status = await world.wait(
            lambda: (world.snapshot().get("status") or {}).get("error") and world.snapshot()["status"]
        )
        assert "cannot cut several volumes at one moment; make a VolumeSnapshot of each" in status["error"]["message"]
        assert not cluster.api.all("volumegroupsnapshotcontents")


async def test_a_refusal_of_the_backend_is_shown_on_the_group() -> None:
    refusal = Unsupported("disks a and b are attached to different nodes")
    backend = FaultyBackend(MemoryBackend(storage=storage()), {"create_group_snapshot": [FailBefore(refusal)]})
    async with Cluster([backend]) as cluster:
        world = Groups(cluster)
        await world.begin()
        world.cut()
        shown = lambda: ((world.snapshot().get("status") or {}).get("error") or {}).get("message")  # noqa: E731
        assert "attached to different nodes" in await world.wait(shown)
        await world.ready(7200.0)
        assert "error" not in world.snapshot()["status"]


async def test_an_unknown_outcome_ends_with_one_cut() -> None:
    made = storage()
    backend = FaultyBackend(MemoryBackend(storage=made), {"create_group_snapshot": [FailAfter(OSError("lost"))]})
    async with Cluster([backend]) as cluster:
        world = Groups(cluster)
        await world.begin()
        world.cut()
        await world.ready()
        assert len(made.snapshots) == 2


async def test_the_state_of_a_long_cut_survives_the_process() -> None:
    made = storage()
    states = [Answer(InProgress(retry_after=5.0, state={"job": "7"}))]
    backend = FaultyBackend(MemoryBackend(storage=made), {"create_group_snapshot": states})
    async with Cluster([backend]) as cluster:
        world = Groups(cluster)
        await world.begin()
        world.cut()
        await world.wait(
            lambda: [
                each
                for each in cluster.api.all("volumegroupsnapshotcontents")
                if '"7"' in each["metadata"]["annotations"][names.INTENT]
            ]
        )
        await cluster.restart()
        await world.ready()
        assert len(made.snapshots) == 2


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("number", range(2, 17, 3))
async def test_a_crash_at_any_write_cuts_once_and_all_members_are_made(number: int, lost: bool) -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = Groups(cluster)
        await world.begin()
        await cluster.settle()
        await crash_at(world, number, world.cut, lost=lost)
        await world.ready()
        assert len(made.snapshots) == len(world.members()) == 2
        assert len(cluster.api.all("volumesnapshotcontents")) == 2


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("number", range(0, 17, 4))
async def test_a_crash_at_any_write_of_a_deletion_leaves_nothing(number: int, lost: bool) -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = Groups(cluster)
        await world.begin()
        world.cut()
        await world.ready()
        await crash_at(world, number, lambda: cluster.api.delete("volumegroupsnapshots", "g"), lost=lost)
        await world.gone("g")
        await world.wait(lambda: not cluster.api.all("volumesnapshotcontents") and not world.members())
        assert not made.snapshots


async def test_where_the_kinds_of_groups_appear_later_snapshots_never_waited() -> None:
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        kinds = definitions(GROUP_API)
        for kind in kinds:
            cluster.server.handle("DELETE", f"{DEFINITIONS}/{kind['metadata']['name']}", {}, {}, b"")
        await cluster.restart()
        world = World(cluster)
        await world.begin()
        world.cut()
        await world.status(readyToUse=True)
        for kind in kinds:
            cluster.server.handle("POST", DEFINITIONS, {}, {}, json.dumps(kind).encode())
        cluster.api.patch("persistentvolumeclaims", "data", {"metadata": {"labels": LABELS}})
        body = {"metadata": {"name": "together"}, "driver": cluster.driver, "deletionPolicy": "Delete"}
        cluster.api.create("volumegroupsnapshotclasses", body)
        groups = Groups(cluster)
        groups.cut(volumeGroupSnapshotClassName="together")
        await groups.status("g", readyToUse=True, seconds=90.0)


async def test_a_group_is_explained() -> None:
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        world = Groups(cluster)
        await world.begin()
        world.cut()
        await world.ready()
        told = cluster.controllers.plane.explain("group", "default/g")
        assert told.found
        assert "group default/g can be used" in told.situation
        assert "it is of 2 volumes; 2 of them have a snapshot" in told.situation
        assert not cluster.controllers.plane.explain("group", "default/none").found


async def test_groups_are_counted_by_driver_and_state() -> None:
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        world = Groups(cluster)
        await world.begin()
        world.cut()
        world.cut("wrong", source={"selector": {"matchLabels": {"a": "b"}}}, volumeGroupSnapshotClassName="together")
        await world.ready()
        await world.wait(lambda: (world.snapshot("wrong").get("status") or {}).get("error"))
        metrics = Metrics()
        cluster.controllers.plane.controllers["group-snapshot-contents"].measure(metrics)
        for state in ("ready", "error"):
            labels = {"driver": cluster.driver, "state": state}
            assert metrics.registry.get_sample_value("volplane_group_snapshots", labels) == 1


# --- contents of others -----------------------------------------------------------------------------------------------


def content_of(cluster: Cluster, source: Any, **reference: Any) -> Any:
    spec = {
        "volumeGroupSnapshotRef": {"namespace": "default", "name": "g", **reference},
        "source": source,
        "driver": cluster.driver,
        "deletionPolicy": "Delete",
        "volumeGroupSnapshotClassName": "together",
    }
    return cluster.api.create("volumegroupsnapshotcontents", {"metadata": {"name": "gc"}, "spec": spec})


async def test_a_content_that_a_person_wrote_is_bound_and_its_group_is_looked_up_and_deleted() -> None:
    made = storage()
    async with Cluster([MemoryBackend(storage=made)]) as cluster:
        world = Groups(cluster)
        await world.begin(policy="Retain")
        world.cut()
        await world.ready()
        [retained] = cluster.api.all("volumegroupsnapshotcontents")
        handles = [each["snapshotHandle"] for each in retained["status"]["volumeSnapshotInfoList"]]
        cluster.api.delete("volumegroupsnapshots", "g")
        await world.gone("g")
        handle = retained["status"]["volumeGroupSnapshotHandle"]
        cluster.api.delete("volumegroupsnapshotcontents", retained["metadata"]["name"])
        source = {"volumeGroupSnapshotHandle": handle, "volumeSnapshotHandles": handles}
        content_of(cluster, {"groupSnapshotHandles": source})
        body = {"source": {"volumeGroupSnapshotContentName": "gc"}}
        group = cluster.api.create("volumegroupsnapshots", {"metadata": {"name": "g"}, "spec": body})
        status = await world.status("g", readyToUse=True)
        assert status["boundVolumeGroupSnapshotContentName"] == "gc"
        bound = cluster.api.get("volumegroupsnapshotcontents", "gc") or {}
        assert bound["spec"]["volumeGroupSnapshotRef"]["uid"] == group["metadata"]["uid"]
        assert bound["status"]["volumeGroupSnapshotHandle"] == handle
        assert len(made.snapshots) == 2
        cluster.api.delete("volumegroupsnapshots", "g")
        await world.gone("g")
        assert not made.snapshots


async def test_a_group_whose_handle_the_storage_does_not_know_says_so() -> None:
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        world = Groups(cluster)
        await world.begin()
        source = {"volumeGroupSnapshotHandle": "no-such-group", "volumeSnapshotHandles": ["a"]}
        content_of(cluster, {"groupSnapshotHandles": source})
        body = {"source": {"volumeGroupSnapshotContentName": "gc"}}
        cluster.api.create("volumegroupsnapshots", {"metadata": {"name": "g"}, "spec": body})
        shown = lambda: ((world.snapshot().get("status") or {}).get("error") or {}).get("message")  # noqa: E731
        assert "the storage has no snapshots of group no-such-group" in await world.wait(shown)


async def test_beside_a_stock_snapshot_controller_only_the_half_of_the_sidecar_is_played() -> None:
    made = storage()
    async with beside(made) as single:
        cluster, world = single.cluster, Groups(single.cluster)
        cluster.api.patch("persistentvolumeclaims", "data", {"metadata": {"labels": LABELS}})
        body = {"metadata": {"name": "together"}, "driver": cluster.driver, "deletionPolicy": "Delete"}
        cluster.api.create("volumegroupsnapshotclasses", body)
        group = world.cut(volumeGroupSnapshotClassName="together")
        claim = cluster.api.get("persistentvolumeclaims", "data") or {}
        volume = cluster.api.get("persistentvolumes", claim["spec"]["volumeName"]) or {}
        handle = volume["metadata"]["annotations"][names.HANDLE]
        content_of(cluster, {"volumeHandles": [handle]}, uid=group["metadata"]["uid"])

        def content() -> Any:
            return cluster.api.get("volumegroupsnapshotcontents", "gc")

        await world.wait(lambda: (content().get("status") or {}).get("readyToUse"))
        await cluster.settle()
        assert names.GROUP_BEING_CREATED not in content()["metadata"]["annotations"]
        [info] = content()["status"]["volumeSnapshotInfoList"]
        assert info["volumeHandle"] == handle
        assert not world.members()
        assert "status" not in world.snapshot()
        cluster.api.delete("volumegroupsnapshotcontents", "gc")
        await asyncio.sleep(30.0)
        assert made.snapshots, "the snapshot-controller has not said that the group is being deleted"
        marks = {"annotations": {names.GROUP_BEING_DELETED: "yes"}}
        cluster.api.patch("volumegroupsnapshotcontents", "gc", {"metadata": marks})
        await world.wait(lambda: content() is None)
        assert not made.snapshots
