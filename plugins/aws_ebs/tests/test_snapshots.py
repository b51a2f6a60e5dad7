"""Snapshots: their moment, their marks, what is found, listed and deleted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from volplane import (
    Absent,
    AlreadyExists,
    Done,
    Fenced,
    InProgress,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
    VolumeInUse,
)
from volplane_aws_ebs.testing import Behaviour, FaultKind

GIB = 1 << 30
NO_SNAPSHOT = "snap-0123456789abcdef0"


def test_a_snapshot_is_answered_at_its_moment_and_becomes_ready(region: Any) -> None:
    asset = region.provision(size=2 * GIB)
    begun = region.clock.now
    first = region.snapshot(asset)
    assert region.clock.now - begun < 3, "the application may go on"
    assert (first.ready, first.size_bytes, first.source, first.failed) == (False, 2 * GIB, asset.handle, "")
    with region.fake.locked_state() as account:
        assert first.created_at == pytest.approx(account.unix_time(account.snapshots[first.handle].started), abs=0.01)
    assert (first.owner, first.name) == (region.snapshot_owner(), "snap-a")
    assert first.state.startswith("pending, ")
    ready = region.ready(first.handle)
    assert (ready.ready, ready.state, ready.created_at) == (True, "", first.created_at)
    assert region.snapshot(asset) == ready


def test_it_carries_all_marks_and_the_names_for_people(region: Any) -> None:
    first = region.snapshot(region.provision(), context=region.context(fence="3/me/lease"))
    tags = region.fake.snapshots[first.handle].tags
    assert tags == {
        "Name": "snap-a",
        "volplane.dev/cluster": "cluster-1",
        "volplane.dev/snapshot": "snap-a",
        "volplane.dev/snapshot-uid": "uid-snap-a",
        "volplane.dev/content": "snapcontent-snap-a",
        "volplane.dev/fence": "3//lease",
        "ebs.csi.aws.com/cluster": "true",
        "kubernetes.io/created-for/volumesnapshot/name": "before",
        "kubernetes.io/created-for/volumesnapshot/namespace": "team-a",
    }


def test_many_snapshots_are_looked_at_by_one_call(new_region: Any) -> None:
    region = new_region(Behaviour(snapshot_seconds=300.0))
    assets = [region.provision(f"u{n}") for n in range(8)]
    handles = [region.snapshot(asset, f"snap-{n}", f"u{n}").handle for n, asset in enumerate(assets)]
    before = region.fake.calls["DescribeSnapshots"]
    waiting = {handle: region.find_snapshot(handle).retry_after + region.clock.now for handle in handles}
    while waiting:
        region.clock.advance(max(min(waiting.values()) - region.clock.now, 0.0))
        for handle, due in list(waiting.items()):
            if due > region.clock.now:
                continue
            found = region.find_snapshot(handle)
            waiting[handle] = region.clock.now + found.retry_after
            if found.ready:
                del waiting[handle]
    assert region.fake.calls["DescribeSnapshots"] - before < 60, "8 snapshots of 300 s"


def test_progress_is_told_and_never_polled_faster_than_it_matters(new_region: Any) -> None:
    region = new_region(Behaviour(snapshot_seconds=1_000.0))
    handle = region.snapshot(region.provision()).handle
    region.clock.advance(405.0)
    assert region.find_snapshot(handle).state == "pending, 40%"
    region.clock.advance(400.0)
    assert region.find_snapshot(handle).retry_after >= 60.0


@pytest.mark.parametrize("kind", [FaultKind.LOSE, FaultKind.DROP, FaultKind.LATE])
@pytest.mark.parametrize("crash", [False, True])
def test_a_snapshot_whose_answer_never_came_is_not_made_twice(new_region: Any, kind: FaultKind, *, crash: bool) -> None:
    region = new_region(Behaviour(visible_after=10.0))
    asset = region.provision()
    region.fault("CreateSnapshot", kind, seconds=8.0)
    request = region.cut(asset, context=region.context(state={"begun": True}))
    region.backend.create_snapshot(replace(request, context=region.context()))
    region.clock.advance(1.0)
    with pytest.raises(Unavailable):
        region.finish(region.backend.create_snapshot, request)
    if crash:
        region.again()
    snapshot = region.finish(region.backend.create_snapshot, request)
    region.clock.advance(120.0)
    assert list(region.fake.snapshots) == [snapshot.handle]
    by_name = region.find_snapshot(name="snap-a", owner=region.snapshot_owner())
    assert by_name.handle == snapshot.handle


def test_a_snapshot_is_begun_before_it_is_made(region: Any) -> None:
    answer = region.backend.create_snapshot(region.cut(region.provision()))
    assert isinstance(answer, InProgress)
    assert answer.state == {"begun": True}
    assert region.fake.snapshots == {}


def test_a_name_is_only_of_one_volume_and_one_owner(region: Any) -> None:
    one, other = region.provision("u1"), region.provision("u2")
    region.snapshot(one)
    with pytest.raises(AlreadyExists, match=f"instead of {other.handle}"):
        region.snapshot(other, uid="u2")
    with pytest.raises(AlreadyExists, match="made for snapcontent-snap-a of cluster 'cluster-1'"):
        region.snapshot(one, owner=region.snapshot_owner("else"))
    assert region.find_snapshot(name="snap-a", owner=region.snapshot_owner("else")) == Absent()
    assert len(region.fake.snapshots) == 1


def test_the_volume_of_another_cluster_or_one_that_is_gone_is_not_cut(region: Any) -> None:
    asset = region.provision()
    region.fake.volumes[asset.handle].tags["volplane.dev/cluster"] = "cluster-2"
    region.clock.advance(11.0)
    with pytest.raises(AlreadyExists, match="in cluster 'cluster-2'"):
        region.snapshot(asset)
    region.fake.remove_volume(asset.handle)
    region.clock.advance(11.0)
    with pytest.raises(NotFound, match="does not exist"):
        region.snapshot(asset)
    assert region.fake.snapshots == {}


def test_a_former_leader_cuts_and_deletes_nothing(region: Any) -> None:
    asset = region.provision(context=region.context(fence="3/b/lease"))
    with pytest.raises(Fenced):
        region.snapshot(asset, context=region.context(fence="2/a/lease"))
    handle = region.snapshot(asset, context=region.context(fence="4/c/lease")).handle
    region.again()
    with pytest.raises(Fenced):
        region.delete_snapshot(handle, fence="3/b/lease")
    assert list(region.fake.snapshots) == [handle]


def test_a_snapshot_that_failed_says_so_and_is_not_made_again(region: Any) -> None:
    asset = region.provision()
    region.fault("CreateSnapshot", FaultKind.FAIL, message="the volume had an error")
    handle = region.snapshot(asset).handle
    region.clock.advance(10.0)
    found = region.find_snapshot(handle)
    assert "the volume had an error; delete it" in found.failed
    assert region.snapshot(asset).failed == found.failed
    assert region.fake.calls["CreateSnapshot"] == 1


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"state": "recoverable"}, "Recycle Bin"),
        ({"state": "recovering"}, "coming back"),
        ({"archived": True}, "archive tier"),
    ],
)
def test_what_cannot_be_used_now_says_why(region: Any, changes: Any, told: str) -> None:
    handle = region.snapshot(region.provision()).handle
    region.ready(handle)
    for name, value in changes.items():
        setattr(region.fake.snapshots[handle], name, value)
    region.clock.advance(10.0)
    found = region.find_snapshot(handle)
    assert (found.ready, found.failed) == (False, "")
    assert told in found.state


@pytest.mark.parametrize("code", ["SnapshotLimitExceeded", "UnauthorizedOperation"])
def test_a_cut_that_ec2_refuses_leaves_nothing_for_which_a_deletion_would_wait(region: Any, code: str) -> None:
    asset = region.provision()
    region.refuse("CreateSnapshot", code)
    with pytest.raises((ResourceExhausted, PermissionDenied)) as raised:
        region.snapshot(asset)
    assert raised.value.nothing_left
    assert region.fake.snapshots == {}


def test_too_many_pending_snapshots_of_a_volume_make_only_that_one_wait(new_region: Any) -> None:
    region = new_region(Behaviour(snapshot_interval=0.0, snapshot_seconds=100.0, pending_snapshots=2))
    one, other = region.provision("u1"), region.provision("u2")
    for name in ("snap-a", "snap-b"):
        region.snapshot(one, name)
    with pytest.raises(ResourceExhausted, match="when one is complete") as raised:
        region.snapshot(one, "snap-c")
    assert (raised.value.scope, raised.value.retry_after) == ("volume", 15.0)
    begun = region.clock.now
    region.snapshot(other, "snap-d", "u2")
    assert region.clock.now - begun < 3
    region.clock.advance(100.0)
    assert region.snapshot(one, "snap-c")


# --- find -------------------------------------------------------------------------------------------------------


def test_a_snapshot_that_ec2_does_not_show_yet_is_found(new_region: Any) -> None:
    """Amazon EC2 Developer Guide, "Eventual consistency in the Amazon EC2 API"."""
    region = new_region(Behaviour(visible_after=8.0))
    snapshot = region.snapshot(region.provision())
    assert region.find_snapshot(snapshot.handle).handle == snapshot.handle


@pytest.mark.parametrize("handle", [NO_SNAPSHOT, "projects/p/global/snapshots/s", "snap-x"])
def test_what_does_not_exist_is_absent(region: Any, handle: str) -> None:
    known = region.snapshot(region.provision()).handle
    assert region.find_snapshot(handle) == Absent()
    assert region.find_snapshot(known).handle == known


def test_a_snapshot_that_another_account_shares_is_found_and_never_deleted(region: Any) -> None:
    handle = region.snapshot(region.provision(size=3 * GIB)).handle
    shared = region.fake.snapshots[handle]
    shared.owner, shared.tags, shared.volume = "210987654321", {}, "vol-ffffffff"
    region.clock.advance(10.0)
    found = region.again().find_snapshot(handle)
    assert (found.ready, found.size_bytes, found.owner, found.source) == (True, 3 * GIB, None, "")
    with pytest.raises(AlreadyExists, match=r"account 210987654321, which shares it.* Retain"):
        region.delete_snapshot(handle, None)
    assert region.listed_snapshots() == []


# --- list -------------------------------------------------------------------------------------------------------


def test_all_marked_snapshots_of_every_cluster_are_listed_in_pages(new_region: Any) -> None:
    region = new_region(Behaviour(max_results=5, snapshot_interval=0.0, pending_snapshots=100))
    asset = region.provision()
    for n in range(12):
        region.snapshot(asset, f"snap-{n}", owner=region.snapshot_owner(f"snap-{n}", f"cluster-{n % 2}"))
    region.connect.client().create_snapshot(VolumeId=asset.handle, Description="by a person")
    copied = [{"ResourceType": "snapshot", "Tags": [{"Key": "volplane.dev/cluster", "Value": "cluster-1"}]}]
    region.connect.client().create_snapshot(VolumeId=asset.handle, TagSpecifications=copied)
    listed = region.listed_snapshots()
    assert sorted(each.name for each in listed) == sorted(f"snap-{n}" for n in range(12))
    assert {each.owner.cluster_id for each in listed} == {"cluster-0", "cluster-1"}
    assert all(each.created_at and each.source == asset.handle for each in listed)


# --- delete -----------------------------------------------------------------------------------------------------


def test_only_the_snapshot_with_the_marks_that_are_asked_for_is_deleted(region: Any) -> None:
    handle = region.snapshot(region.provision()).handle
    with pytest.raises(AlreadyExists, match="belongs to snapcontent-snap-a of cluster 'cluster-1', not to"):
        region.delete_snapshot(handle, "snap-b")
    with pytest.raises(AlreadyExists, match="made in cluster 'cluster-1', not in 'cluster-2'"):
        region.delete_snapshot(handle, None, cluster_id="cluster-2")
    assert list(region.fake.snapshots) == [handle]
    assert region.delete_snapshot(handle) == Done()
    assert region.delete_snapshot(handle) == Done()
    assert region.fake.snapshots == {}


@pytest.mark.parametrize("marked", [True, False])
def test_a_content_that_a_person_wrote_deletes_what_has_no_mark_or_that_of_this_cluster(
    region: Any, *, marked: bool
) -> None:
    handle = region.snapshot(region.provision()).handle
    if not marked:
        region.fake.snapshots[handle].tags = {}
        with pytest.raises(AlreadyExists, match="no owner that volplane knows"):
            region.delete_snapshot(handle)
    assert region.delete_snapshot(handle, None) == Done()
    assert region.fake.snapshots == {}


def test_a_snapshot_that_ec2_does_not_show_yet_is_deleted_all_the_same(new_region: Any) -> None:
    region = new_region(Behaviour(visible_after=8.0))
    snapshot = region.snapshot(region.provision())
    assert region.delete_snapshot(snapshot.handle) == Done()
    assert region.fake.snapshots == {}
    assert region.delete_snapshot(snapshot.handle) == Done(), "this process knows that it is gone"


def test_a_snapshot_that_is_gone_is_deleted_once_it_would_have_to_be_visible(region: Any) -> None:
    begun = region.clock.now
    assert region.delete_snapshot(NO_SNAPSHOT) == Done()
    assert 60 <= region.clock.now - begun < 70
    assert region.fake.calls["DescribeSnapshots"] < 24


def test_a_snapshot_of_which_an_image_is_made_names_the_image(region: Any) -> None:
    handle = region.snapshot(region.provision()).handle
    image = region.fake.add_image(handle)
    with pytest.raises(VolumeInUse, match=f"part of the image {image}: deregister"):
        region.delete_snapshot(handle)
    region.fake.snapshots[handle].images = ()
    assert region.delete_snapshot(handle) == Done()


@pytest.mark.parametrize("code", ["OperationNotPermitted", "SnapshotLocked"])
def test_a_locked_snapshot_says_until_when_and_is_not_asked_for_every_second(new_region: Any, code: str) -> None:
    region = new_region(Behaviour(locked_code=code))
    handle = region.snapshot(region.provision()).handle
    region.connect.client().lock_snapshot(SnapshotId=handle, LockMode="governance", LockDuration=2)
    with pytest.raises(VolumeInUse, match=r"locked in mode governance until 2026-01-03 .*unlocks it") as raised:
        region.delete_snapshot(handle)
    assert raised.value.retry_after == 3_600.0
    region.clock.advance(2 * 86_400.0)
    assert region.delete_snapshot(handle) == Done()


def test_a_refusal_that_is_no_lock_stays_what_it_is(region: Any) -> None:
    handle = region.snapshot(region.provision()).handle
    region.refuse("DeleteSnapshot", "UnauthorizedOperation")
    region.refuse("DescribeLockedSnapshots", "UnauthorizedOperation")
    with pytest.raises(PermissionDenied, match="ec2:DeleteSnapshot"):
        region.delete_snapshot(handle)


# --- the official driver ----------------------------------------------------------------------------------------

OFFICIAL = "ebs.csi.aws.com"


def official_snapshot(region: Any, uid: str = "7c1a") -> tuple[Any, str]:
    """A snapshot as its controller has made it."""
    asset = region.provision()
    tags = {"CSIVolumeSnapshotName": f"snapshot-{uid}", f"{OFFICIAL}/cluster": "true"}
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    specification = [{"ResourceType": "snapshot", "Tags": listed}]
    made = region.connect.client().create_snapshot(VolumeId=asset.handle, TagSpecifications=specification)
    return asset, made["SnapshotId"]


def test_a_driver_of_the_official_ones_name_lists_finds_and_takes_its_snapshots(region: Any) -> None:
    asset, handle = official_snapshot(region)
    context = region.context(driver=OFFICIAL)
    (listed,) = region.listed_snapshots(driver=OFFICIAL)
    assert (listed.owner.cluster_id, listed.owner.snapshot_uid, listed.name) == (OFFICIAL, "7c1a", "snapshot-7c1a")
    assert region.listed_snapshots() == []
    owner = replace(region.snapshot_owner(), snapshot_uid="7c1a", content_name="snapcontent-7c1a")
    assert region.find_snapshot(name="snapshot-7c1a", owner=owner, context=context).handle == handle
    assert region.find_snapshot(name="snapshot-7c1a", owner=owner) == Absent()
    taken = region.snapshot(asset, "snapshot-7c1a", owner=owner, context=context)
    assert taken.handle == handle, "what it had begun is not made again"
    assert region.fake.calls["CreateSnapshot"] == 1


def test_its_snapshot_is_deleted_by_the_uid_in_its_name(region: Any) -> None:
    _, handle = official_snapshot(region)
    request = region.snapshot_owner()
    with pytest.raises(AlreadyExists, match="belongs to snapcontent-7c1a"):
        region.delete_snapshot(handle, driver=OFFICIAL)
    mine = replace(request, snapshot_uid="7c1a", content_name="snapcontent-7c1a")
    region.snapshot_owner = lambda _name: mine
    with pytest.raises(AlreadyExists):
        region.delete_snapshot(handle, "7c1a")
    assert region.delete_snapshot(handle, "7c1a", driver=OFFICIAL) == Done()
    assert region.fake.snapshots == {}
