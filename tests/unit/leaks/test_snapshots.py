"""Snapshots that no object leads to: found, confirmed and, when asked, deleted."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from backends import Shelf
from unit.leaks.conftest import Cluster
from volplane import SnapshotOwnership, SnapshotPage
from volplane.kube.transport import Response
from volplane.leaks.check import INTERVAL
from volplane.snapshots.groups_objects import GROUP_CONTENTS
from volplane.snapshots.objects import VOLUME_SNAPSHOT_CLASSES, VOLUME_SNAPSHOT_CONTENTS, VOLUME_SNAPSHOTS
from volplane_testing import Answer, FaultyBackend
from volplane_testing.memory_storage import MemorySnapshot
from volplane_testing.transport import ApiCall, Ask, refuse, requests

DRIVER = "shelf.example.com"
ROUND = INTERVAL * 1.1 + 1


def cut(shelf: Any, uid: str, *, cluster: str | None = "here", content: str = "") -> str:
    """Put a snapshot on the storage, with marks or without; return its handle."""
    owner = SnapshotOwnership(cluster_id=cluster or "", snapshot_uid=uid, content_name=content or f"snapcontent-{uid}")
    shelf.storage.snapshots[f"snap-{uid}"] = MemorySnapshot(
        name=f"snapshot-{uid}",
        source="shelf/pvc-1",
        owner=owner if cluster is not None else None,
        size_bytes=2**20,
        created_at=1_767_225_600.0,
    )
    return f"snap-{uid}"


async def write_content(cluster: Any, name: str, handle: str = "", *, status: str = "") -> None:
    """Create a content of a driver that this process does not have, so that no controller touches it."""
    source = {"snapshotHandle": handle} if handle else {"volumeHandle": "disk-1"}
    reference = {"name": "s", "namespace": "default", "uid": "u"}
    spec = {"driver": "d.example.com", "deletionPolicy": "Retain", "source": source, "volumeSnapshotRef": reference}
    body = VOLUME_SNAPSHOT_CONTENTS.body(metadata={"name": name}, spec=spec)
    await cluster.client.create(VOLUME_SNAPSHOT_CONTENTS, body)
    if status:
        shown = {"status": {"snapshotHandle": status}}
        await cluster.client.patch(VOLUME_SNAPSHOT_CONTENTS, name, shown, subresource="status")


async def confirmed(cluster: Any) -> None:
    await asyncio.sleep(2 * ROUND)
    assert all(cluster.check.observations.confirmed(finding) for finding in cluster.check.observations.findings())


def outcome(cluster: Any) -> tuple[str, str]:
    ((_, told),) = cluster.repair.one_shots.listed()
    return str(told.state), told.detail


async def test_a_snapshot_without_a_content_is_an_orphan_that_two_checks_confirm_and_a_person_deletes(
    cluster: Any, shelf: Any, hooks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    handle = cut(shelf, "u1")
    await asyncio.sleep(1)
    assert cluster.found() == [("orphan", handle)]
    assert cluster.repair.start() == []
    await confirmed(cluster)
    assert handle in shelf.storage.snapshots
    (finding,) = cluster.repair.start()
    await asyncio.sleep(1)
    assert (finding.kind, outcome(cluster)) == ("snapshot", ("done", "deleted"))
    assert shelf.storage.snapshots == {}
    assert cluster.found() == []
    assert "orphan snapshot snap-u1: no VolumeSnapshotContent leads to it" in caplog.text
    assert hooks.asked["delete_snapshot"] == 1


async def test_whatever_may_lead_to_a_snapshot_keeps_it(cluster: Any, shelf: Any) -> None:
    await write_content(cluster, "snapcontent-named")
    await write_content(cluster, "by-hand", cut(shelf, "given"))
    await write_content(cluster, "shown", status=cut(shelf, "status"))
    wanted = {"metadata": {"name": "s", "namespace": "default"}, "spec": {"source": {"persistentVolumeClaimName": "c"}}}
    cut(shelf, "named")
    cut(shelf, (await cluster.client.create(VOLUME_SNAPSHOTS, VOLUME_SNAPSHOTS.body(**wanted))).uid)
    await asyncio.sleep(2 * ROUND)
    assert cluster.check.status[DRIVER].error == ""
    assert cluster.found() == []


async def test_snapshots_of_others_are_foreign_and_never_touched(cluster: Any, shelf: Any, hooks: Any) -> None:
    cut(shelf, "theirs", cluster="elsewhere")
    cut(shelf, "nobodys", cluster=None)
    await confirmed(cluster)
    assert sorted(cluster.found()) == [("foreign", "snap-nobodys"), ("foreign", "snap-theirs")]
    assert cluster.repair.start() == []
    assert not hooks.asked["delete_snapshot"]
    assert "volumesnapshotcontents" not in cluster.listed()[-4:]


@pytest.mark.parametrize("status", [403, 404])
async def test_where_contents_cannot_be_seen_no_snapshot_is_an_orphan_and_assets_are_checked(
    cluster: Any, shelf: Any, status: int
) -> None:
    cut(shelf, "u1")
    cut(shelf, "theirs", cluster="elsewhere")
    shelf.put("u2", cluster="here")
    for kind in ("volumesnapshots", "volumesnapshotcontents"):
        cluster.faults.add(requests("list", kind), refuse(status, "no"), times=math.inf)
    await confirmed(cluster)
    assert sorted(cluster.found()) == [("foreign", "snap-theirs"), ("orphan", "shelf/pvc-u2")]


async def write_group(cluster: Any, name: str, *handles: str) -> None:
    """Create the content of a group of a driver that this process does not have."""
    source = {"groupSnapshotHandles": {"volumeGroupSnapshotHandle": "g", "volumeSnapshotHandles": list(handles)}}
    reference = {"name": "g", "namespace": "default", "uid": "u"}
    spec = {"driver": "d.example.com", "deletionPolicy": "Retain", "source": source}
    body = GROUP_CONTENTS.body(metadata={"name": name}, spec={**spec, "volumeGroupSnapshotRef": reference})
    await cluster.client.create(GROUP_CONTENTS, body)


async def test_the_content_of_a_group_leads_to_its_snapshots_and_others_are_orphans(cluster: Any, shelf: Any) -> None:
    await write_group(cluster, "groupsnapcontent-u1")
    await write_group(cluster, "by-hand", cut(shelf, "given", content="groupsnapcontent-u2"))
    cut(shelf, "u1", content="groupsnapcontent-u1")
    await write_content(cluster, "member", status=cut(shelf, "kept", content="groupsnapcontent-u3"))
    lost = cut(shelf, "lost", content="groupsnapcontent-u4")
    await confirmed(cluster)
    assert cluster.found() == [("orphan", lost)]
    cluster.repair.start()
    await asyncio.sleep(1)
    assert outcome(cluster) == ("done", "deleted")
    assert lost not in shelf.storage.snapshots


@pytest.mark.parametrize("status", [403, 404])
async def test_where_groups_cannot_be_seen_only_what_was_cut_alone_is_judged(
    cluster: Any, shelf: Any, status: int
) -> None:
    cut(shelf, "u1", content="groupsnapcontent-u1")
    alone = cut(shelf, "u2")
    cluster.faults.add(requests("list", "volumegroupsnapshotcontents"), refuse(status, "no"), times=math.inf)
    await confirmed(cluster)
    assert cluster.found() == [("orphan", alone)]


async def test_a_content_that_is_restored_meanwhile_keeps_the_snapshot(cluster: Any, shelf: Any, hooks: Any) -> None:
    cut(shelf, "u1")
    await confirmed(cluster)
    await write_content(cluster, "restored", "snap-u1")
    cluster.repair.start()
    await asyncio.sleep(1)
    assert outcome(cluster) == ("failed", "it is no orphan any more: an object of the cluster leads to it")
    assert not hooks.asked["delete_snapshot"]


async def test_a_content_that_comes_after_the_look_keeps_the_snapshot(cluster: Any, shelf: Any, hooks: Any) -> None:
    cut(shelf, "u1")
    await confirmed(cluster)

    async def late(_call: ApiCall, ask: Ask) -> Response:
        await write_content(cluster, "snapcontent-u1")
        return await ask()

    cluster.faults.add(requests("get", "volumesnapshotcontents"), late)
    cluster.repair.start()
    await asyncio.sleep(1)
    why = "it is no orphan any more: VolumeSnapshotContent snapcontent-u1 leads to it"
    assert outcome(cluster) == ("failed", why)
    assert not hooks.asked["delete_snapshot"]


async def test_a_snapshot_that_changed_hands_is_refused_by_its_backend(cluster: Any, shelf: Any) -> None:
    handle = cut(shelf, "u1")
    await confirmed(cluster)
    shelf.storage.snapshots[handle].owner = SnapshotOwnership(
        cluster_id="elsewhere", snapshot_uid="u1", content_name="snapcontent-u1"
    )
    cluster.repair.start()
    await asyncio.sleep(1)
    state, why = outcome(cluster)
    assert (state, handle in shelf.storage.snapshots) == ("failed", True)
    assert "it is not touched" in why


async def test_a_listing_of_snapshots_that_never_ends_is_a_failure(cluster: Any, hooks: Any) -> None:
    await asyncio.sleep(1)
    hooks.fail("list_snapshots", [Answer(SnapshotPage(snapshots=(), next_page="again"), effect=False)] * 3)
    assert not await cluster.check.check(cluster.plane.drivers.get(DRIVER))
    assert "list_snapshots of driver shelf.example.com names page 'again' twice" in cluster.check.status[DRIVER].error


async def test_an_orphaned_asset_and_an_orphaned_snapshot_of_one_handle_are_two(cluster: Any, shelf: Any) -> None:
    shelf.put("u1", cluster="here")
    shelf.storage.snapshots["shelf/pvc-u1"] = shelf.storage.snapshots.pop(cut(shelf, "u1"))
    await confirmed(cluster)
    assert {finding.kind for finding in cluster.check.observations.findings()} == {"asset", "snapshot"}
    cluster.repair.start()
    await asyncio.sleep(1)
    assert (shelf.assets, shelf.storage.snapshots) == ({}, {})


async def test_a_snapshot_whose_objects_were_taken_away_by_force_is_found_and_can_be_deleted(
    cluster: Any, shelf: Any, hooks: Any
) -> None:
    await cluster.make_class()
    await cluster.claim("data")
    body = {"driver": DRIVER, "deletionPolicy": "Delete"}
    await cluster.client.create(
        VOLUME_SNAPSHOT_CLASSES, VOLUME_SNAPSHOT_CLASSES.body(metadata={"name": "daily"}, **body)
    )
    spec = {"source": {"persistentVolumeClaimName": "data"}, "volumeSnapshotClassName": "daily"}
    wish = VOLUME_SNAPSHOTS.body(metadata={"name": "s", "namespace": "default"}, spec=spec)
    await asyncio.sleep(10)
    uid = (await cluster.client.create(VOLUME_SNAPSHOTS, wish)).uid
    await asyncio.sleep(30)
    (handle,) = shelf.storage.snapshots
    await asyncio.sleep(2 * ROUND)
    assert cluster.found() == []
    await cluster.process.kill()  # Nobody mends what the person does now.
    again = Cluster(hooks, cluster.server)
    for kind, key in ((VOLUME_SNAPSHOTS, "default/s"), (VOLUME_SNAPSHOT_CONTENTS, f"snapcontent-{uid}")):
        await again.client.patch(kind, key, {"metadata": {"finalizers": None}})
        await again.client.delete(kind, key)
    async with again.running():
        await confirmed(again)
        assert again.found() == [("orphan", handle)]
        again.repair.start()
        await asyncio.sleep(1)
        assert outcome(again) == ("done", "deleted")
    assert shelf.storage.snapshots == {}


async def test_a_driver_that_lists_snapshots_alone_is_checked_for_them(hooks: Any) -> None:
    class Shop(Shelf):
        list_assets = None  # type: ignore[assignment]

    shop = Shop()
    cluster = Cluster(FaultyBackend(shop))
    async with cluster.running():
        await cluster.make_class()
        await cluster.claim("data")
        handle = cut(shop, "u1")
        await confirmed(cluster)
        assert shop.assets
        assert cluster.found() == [("orphan", handle)]
