"""Snapshots and images: their moment, their marks, what is found, listed, deleted and restored."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from volplane import (
    Absent,
    AlreadyExists,
    BackendError,
    Done,
    Fenced,
    InProgress,
    InvalidArgument,
    NotFound,
    Throttled,
    Unavailable,
)
from volplane.drivers.parameters import check
from volplane_gce_pd.snapshot_parameters import PARAMETERS
from volplane_gce_pd.testing import Behaviour
from volplane_testing.cloud import FaultKind

GIB = 1 << 30
A = "zones/europe-test1-a"
HANDLE = "projects/test-project/global/snapshots/snap-a"
IMAGE = {"snapshot-type": "images"}
REGIONAL = {"type": "pd-ssd", "replication-type": "regional-pd"}


def test_a_snapshot_is_answered_at_its_moment_while_its_upload_goes_on(new_site: Any) -> None:
    site = new_site(Behaviour(upload_seconds=7_000.0))
    asset = site.provision()
    begun = site.clock.now
    first = site.snapshot(asset)
    assert site.clock.now - begun < 6, "the application may go on"
    record = site.fake.snapshots["snap-a"]
    assert record.status == "UPLOADING"
    assert (first.ready, first.state, first.size_bytes) == (False, "UPLOADING", 10 * GIB)
    assert (first.handle, first.source, first.owner) == (HANDLE, asset.handle, site.snapshot_owner())
    assert first.created_at == datetime.fromisoformat(record.created).timestamp()
    site.clock.advance(7_000.0)
    ready = site.ready(first.handle)
    assert (ready.ready, ready.state, ready.created_at) == (True, "", first.created_at)
    assert site.snapshot(asset) == ready
    assert site.fake.calls["snapshots.insert"] == 1


def test_it_is_ready_when_compute_engine_says_so_whatever_its_operation_does(new_site: Any) -> None:
    site = new_site(Behaviour(ready_early_seconds=500.0, upload_seconds=1.0))
    asset = site.provision()
    site.snapshot(asset)
    site.clock.advance(10.0)
    assert site.again().snapshot(asset).ready


def test_it_carries_all_marks_and_the_names_for_people(site: Any) -> None:
    site.again(labels={"team": "storage"}).snapshot(site.provision(), context=site.context(fence="3/me/lease"))
    record = site.fake.snapshots["snap-a"]
    assert record.labels == {
        "team": "storage",
        "volplane-cluster": "cluster-1",
        "volplane-snapshot-uid": "uid-snap-a",
        "volplane-content": "snapcontent-snap-a",
        "volplane-fence": record.labels["volplane-fence"],
    }
    written = json.loads(record.description)
    assert written["kubernetes.io/created-for/volumesnapshot/name"] == "before"
    assert written["kubernetes.io/created-for/volumesnapshot/namespace"] == "team-a"


def test_many_snapshots_are_looked_at_by_one_call(new_site: Any) -> None:
    site = new_site(Behaviour(upload_seconds=300.0))
    handles = [site.snapshot(site.provision(f"u{n}"), f"snap-{n}", f"u{n}").handle for n in range(8)]
    before = site.fake.calls["snapshots.get"] + site.fake.calls["snapshots.list"]
    waiting = {handle: site.find_snapshot(handle).retry_after + site.clock.now for handle in handles}
    while waiting:
        site.clock.advance(max(min(waiting.values()) - site.clock.now, 0.0))
        for handle, due in list(waiting.items()):
            if due > site.clock.now:
                continue
            found = site.find_snapshot(handle)
            waiting[handle] = site.clock.now + found.retry_after
            if found.ready:
                del waiting[handle]
    calls = site.fake.calls["snapshots.get"] + site.fake.calls["snapshots.list"] - before
    assert calls < 60, "8 snapshots of 300 s"


def test_the_moments_of_many_are_waited_for_by_one_call(new_site: Any) -> None:
    site = new_site(Behaviour(cut_seconds=30.0))
    assets = [site.provision(f"u{n}") for n in range(8)]
    open_, before = {n: site.cut(asset, f"snap-{n}", f"u{n}") for n, asset in enumerate(assets)}, site.clock.now
    due = dict.fromkeys(open_, before)
    calls = sum(site.fake.calls[method] for method in ("snapshots.get", "snapshots.list"))
    while open_:
        site.clock.advance(max(min(due.values()) - site.clock.now, 0.0))
        for n, request in list(open_.items()):
            if due[n] > site.clock.now:
                continue
            answer = site.backend.create_snapshot(request)
            if not isinstance(answer, InProgress):
                del open_[n], due[n]
                continue
            due[n] = site.clock.now + answer.retry_after
            open_[n] = replace(request, context=replace(request.context, state=dict(answer.state)))
    assert site.clock.now - before < 50
    calls = sum(site.fake.calls[method] for method in ("snapshots.get", "snapshots.list")) - calls
    assert calls < 50, "8 snapshots of 30 s: one call a snapshot and poll would be 120"


@pytest.mark.parametrize("kind", [FaultKind.LOSE, FaultKind.DROP, FaultKind.LATE])
def test_a_snapshot_without_an_answer_is_made_once(site: Any, kind: FaultKind) -> None:
    asset = site.provision()
    site.fault("snapshots.insert", kind, seconds=8.0)
    with pytest.raises(Unavailable):
        site.snapshot(asset)
    made = site.again().snapshot(asset)
    site.clock.advance(60.0)
    assert list(site.fake.snapshots) == ["snap-a"]
    assert site.find_snapshot(name="snap-a", owner=site.snapshot_owner()).handle == made.handle


@pytest.mark.parametrize("parameters", [REGIONAL, {}])
def test_a_snapshot_of_a_regional_disk_too(site: Any, parameters: Any) -> None:
    asset = site.provision(parameters=parameters)
    assert site.snapshot(asset).size_bytes == asset.capacity_bytes
    assert site.delete_snapshot(HANDLE) == Done()
    assert site.fake.snapshots == {}


def test_a_name_is_only_of_one_disk_and_one_owner(site: Any) -> None:
    one, other = site.provision(), site.provision("u2")
    site.snapshot(one)
    with pytest.raises(AlreadyExists, match="instead of projects/test-project/zones/europe-test1-a/disks/pvc-u2"):
        site.snapshot(other, uid="u2")
    with pytest.raises(AlreadyExists, match="made for snapcontent-snap-a of cluster 'cluster-1'"):
        site.snapshot(one, owner=site.snapshot_owner("else"))
    assert site.find_snapshot(name="snap-a", owner=site.snapshot_owner("else")) == Absent()


def test_a_disk_that_was_made_anew_under_its_name_is_another_one(site: Any) -> None:
    asset = site.provision()
    site.snapshot(asset)
    site.fake.disks[A, "pvc-u1"].id += 1_000
    site.clock.advance(5.0)
    with pytest.raises(AlreadyExists, match="of an earlier disk that was called pvc-u1"):
        site.snapshot(asset)


def test_the_disk_of_another_cluster_or_one_that_is_gone_is_not_cut(site: Any) -> None:
    asset = site.provision()
    site.fake.disks[A, "pvc-u1"].labels["volplane-cluster"] = "cluster-2"
    site.clock.advance(5.0)
    with pytest.raises(AlreadyExists, match="in cluster 'cluster-2'"):
        site.snapshot(asset)
    site.fake.remove_disk(A, "pvc-u1")
    site.clock.advance(5.0)
    with pytest.raises(NotFound, match="does not exist"):
        site.snapshot(asset)
    assert site.fake.snapshots == {}


def test_a_former_leader_cuts_and_deletes_nothing(site: Any) -> None:
    asset = site.provision(context=site.context(fence="3/b/lease"))
    with pytest.raises(Fenced):
        site.snapshot(asset, context=site.context(fence="2/a/lease"))
    site.snapshot(asset, context=site.context(fence="4/c/lease"))
    site.again()
    with pytest.raises(Fenced):
        site.delete_snapshot(HANDLE, fence="3/b/lease")
    assert list(site.fake.snapshots) == ["snap-a"]


def test_a_snapshot_that_failed_says_so_and_is_not_made_again(site: Any) -> None:
    asset = site.provision()
    site.fail("snapshots.insert", "INTERNAL_ERROR", "it broke")
    failed = site.snapshot(asset)
    assert "could not make snap-a; delete it" in failed.failed
    assert site.find_snapshot(HANDLE).failed == failed.failed
    with pytest.raises(BackendError, match="cannot be restored"):
        site.provision("u2", source_snapshot=HANDLE)
    assert site.fake.calls["snapshots.insert"] == 1


def test_a_name_that_compute_engine_does_not_take_is_hashed_and_found(site: Any) -> None:
    made = site.snapshot(site.provision(), name="Snapshot_1")
    assert made.handle.startswith("projects/test-project/global/snapshots/v-snapshot-1-")
    found = site.find_snapshot(name="Snapshot_1", owner=site.snapshot_owner("Snapshot_1"))
    assert found.handle == made.handle


def test_a_young_snapshot_makes_only_its_disk_wait_and_not_the_driver(site: Any) -> None:
    one, other = site.provision("u1"), site.provision("u2")
    site.snapshot(one, "snap-1")
    with pytest.raises(Throttled, match="once in ten minutes; it is tried again, and no other disk waits"):
        site.snapshot(one, "snap-2")
    assert site.snapshot(other, "snap-3", "u2")
    site.clock.advance(600.0)
    assert site.snapshot(one, "snap-2")


# --- find and list ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "handle", [HANDLE, HANDLE.replace("snapshots", "images"), "snap-1", "projects/x/global/disks/d"]
)
def test_what_does_not_exist_is_absent(site: Any, handle: str) -> None:
    assert site.find_snapshot(handle) == Absent()


def test_all_marked_snapshots_and_images_of_every_cluster_are_listed_in_pages(new_site: Any) -> None:
    site = new_site(Behaviour(max_results=3, snapshot_interval=0.0))
    asset = site.provision()
    for n in range(7):
        owner = site.snapshot_owner(f"snap-{n}", f"cluster-{n % 2}")
        site.snapshot(asset, f"snap-{n}", owner=owner, parameters=IMAGE if n > 4 else {})
    site.fake.snapshots["snap-0"].labels.clear()
    listed = site.listed_snapshots()
    assert sorted(each.name for each in listed) == [f"snap-{n}" for n in range(1, 7)]
    assert {each.owner.cluster_id for each in listed} == {"cluster-0", "cluster-1"}
    assert all(each.created_at and each.source == asset.handle for each in listed)


# --- delete -----------------------------------------------------------------------------------------------------


def test_only_the_snapshot_with_the_marks_that_are_asked_for_is_deleted(site: Any) -> None:
    site.snapshot(site.provision())
    with pytest.raises(AlreadyExists, match="belongs to snapcontent-snap-a of cluster 'cluster-1', not to"):
        site.delete_snapshot(HANDLE, "snap-b")
    with pytest.raises(AlreadyExists, match="made in cluster 'cluster-1', not in 'cluster-2'"):
        site.delete_snapshot(HANDLE, None, cluster_id="cluster-2")
    assert site.delete_snapshot(HANDLE) == Done()
    assert site.delete_snapshot(HANDLE) == Done()
    assert site.delete_snapshot("snap-123") == Done()
    assert site.fake.snapshots == {}


def test_a_content_that_a_person_wrote_deletes_what_has_no_mark_but_nothing_of_another_project(site: Any) -> None:
    site.snapshot(site.provision())
    site.fake.snapshots["snap-a"].labels.clear()
    with pytest.raises(AlreadyExists, match="no owner that volplane knows"):
        site.delete_snapshot(HANDLE)
    with pytest.raises(AlreadyExists, match=r"belongs to project 'other'.* Retain"):
        site.delete_snapshot(HANDLE.replace("test-project", "other"), None)
    assert site.delete_snapshot(HANDLE, None) == Done()
    assert site.fake.snapshots == {}


# --- the classes of the official driver -------------------------------------------------------------------------


def test_every_parameter_of_its_classes_reaches_compute_engine(site: Any) -> None:
    parameters = {
        "storage-locations": " US-Central1 ",
        "Snapshot-Type": "snapshots",
        "image-family": "backups",
        "labels": "team=storage,tier=gold",
        "resource-tags": "test-project/env/prod",
    }
    site.snapshot(site.provision(), parameters=parameters)
    record = site.fake.snapshots["snap-a"]
    assert record.wanted["storageLocations"] == ["us-central1"]
    assert record.wanted["params"] == {"resourceManagerTags": {"test-project/env": "prod"}}
    assert (record.labels["team"], record.labels["tier"]) == ("storage", "gold")
    assert "family" not in record.wanted


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"snapshot-type": "disks"}, "'disks'"),
        ({"storage-locations": "us,eu"}, "'us,eu'"),
        ({"speed": "high"}, "'speed'"),
    ],
)
def test_a_wrong_parameter_is_named(parameters: Any, told: str) -> None:
    _, flaws = check(PARAMETERS, parameters, "parameter")
    assert told in flaws[0]


@pytest.mark.parametrize(
    "parameters", [{"labels": "Team=x"}, {"labels": "volplane-cluster=x"}, {"resource-tags": "env"}]
)
def test_labels_and_tags_that_cannot_be_are_refused_before_a_call(site: Any, parameters: Any) -> None:
    asset = site.provision()
    with pytest.raises(InvalidArgument, match=next(iter(parameters))):
        site.snapshot(asset, parameters=parameters)
    assert site.fake.snapshots == {}


def test_an_image_is_a_snapshot_whose_handle_says_so(site: Any) -> None:
    asset = site.provision()
    made = site.snapshot(asset, parameters={**IMAGE, "image-family": "backups"})
    assert made.handle == "projects/test-project/global/images/snap-a"
    assert made.ready, "the disk is needed until it is made"
    assert site.fake.images["snap-a"].wanted["family"] == "backups"
    assert site.fake.snapshots == {}
    assert site.find_snapshot(made.handle) == made
    assert site.find_snapshot(name="snap-a", owner=site.snapshot_owner()) == made
    copy = site.provision("u2", 20 * GIB, source_snapshot=made.handle)
    assert site.fake.disks[A, "pvc-u2"].wanted["sourceImage"] == made.handle
    assert site.provision("u2", 20 * GIB, source_snapshot=made.handle) == copy
    assert site.delete_snapshot(made.handle) == Done()
    assert site.fake.images == {}


def test_there_is_no_image_of_a_regional_disk(site: Any) -> None:
    asset = site.provision(parameters=REGIONAL)
    with pytest.raises(InvalidArgument, match="no image of a regional disk"):
        site.snapshot(asset, parameters=IMAGE)


# --- restore ----------------------------------------------------------------------------------------------------


def test_a_snapshot_is_restored_when_it_is_ready_and_no_smaller_than_it_is(site: Any) -> None:
    site.snapshot(site.provision())
    with pytest.raises(Unavailable, match=r"snapshot projects/.*/snap-a is not ready \(UPLOADING\)") as raised:
        site.provision("u2", source_snapshot=HANDLE)
    assert raised.value.retry_after is not None
    site.clock.advance(25.0)
    with pytest.raises(InvalidArgument, match=r"9 GiB: snapshot projects/.* has 10 GiB"):
        site.provision("u2", 9 * GIB, source_snapshot=HANDLE)
    assert site.fake.calls["disks.insert"] == 1
    assert site.provision("u2", 12 * GIB, source_snapshot=HANDLE, parameters={"type": "pd-ssd"})


def test_what_was_restored_is_found_whatever_became_of_its_snapshot(site: Any) -> None:
    site.snapshot(site.provision())
    site.ready(HANDLE)
    copy = site.provision("u2", source_snapshot=HANDLE)
    site.delete_snapshot(HANDLE)
    assert site.again().provision("u2", source_snapshot=HANDLE) == copy
    with pytest.raises(NotFound, match="does not exist"):
        site.provision("u3", source_snapshot=HANDLE)


def test_the_snapshots_of_other_projects_are_restored_where_an_option_names_them(new_site: Any) -> None:
    site = new_site(Behaviour(shared_projects=frozenset({"backups"})))
    site.snapshot(site.provision())
    site.ready(HANDLE)
    site.fake.snapshots["snap-a"].project = "backups"
    handle = HANDLE.replace("test-project", "backups")
    found = site.find_snapshot(handle)
    assert (found.ready, found.size_bytes) == (True, 10 * GIB)
    with pytest.raises(NotFound, match="option snapshot_projects"):
        site.provision("u2", source_snapshot=handle)
    assert site.again(snapshot_projects=["backups"]).provision("u2", source_snapshot=handle)


def test_many_restores_of_one_snapshot_wait_for_their_turn_and_slow_nobody_else_down(new_site: Any) -> None:
    site = new_site(Behaviour(restores_a_minute=2))
    site.snapshot(site.provision())
    site.ready(HANDLE)
    for uid in ("c1", "c2"):
        site.provision(uid, source_snapshot=HANDLE)
    with pytest.raises(Throttled, match="only what changes it waits"):
        site.provision("c3", source_snapshot=HANDLE)
    begun = site.clock.now
    site.provision("u9")
    assert site.clock.now - begun < 3
    site.clock.advance(60.0)
    assert site.provision("c3", source_snapshot=HANDLE)


# --- the official driver ----------------------------------------------------------------------------------------

OFFICIAL = "pd.csi.storage.gke.io"


@pytest.mark.parametrize("told", [True, False])
def test_a_driver_of_the_official_ones_name_has_its_snapshots(site: Any, *, told: bool) -> None:
    asset = site.provision()
    site.snapshot(asset, "snapshot-7c1a")
    record = site.fake.snapshots["snapshot-7c1a"]
    record.labels.clear()
    names = {"kubernetes.io/created-for/volumesnapshot/name": "before", "storage.gke.io/created-by": OFFICIAL}
    record.description = json.dumps(names) if told else "Snapshot created by GCE-PD CSI Driver"
    site.clock.advance(5.0)
    context = site.context(driver=OFFICIAL)
    (listed,) = site.listed_snapshots(driver=OFFICIAL)
    assert (listed.owner.cluster_id, listed.owner.snapshot_uid) == (OFFICIAL, "7c1a")
    assert site.listed_snapshots() == []
    owner = replace(site.snapshot_owner(), snapshot_uid="7c1a", content_name="snapcontent-7c1a")
    assert site.find_snapshot(name="snapshot-7c1a", owner=owner, context=context).handle == listed.handle
    assert site.find_snapshot(name="snapshot-7c1a", owner=owner) == Absent()
    assert site.snapshot(asset, "snapshot-7c1a", owner=owner, context=context).handle == listed.handle
    with pytest.raises(AlreadyExists):
        site.delete_snapshot(listed.handle, "other", driver=OFFICIAL)
    site.snapshot_owner = lambda _name: owner
    assert site.delete_snapshot(listed.handle, "7c1a", driver=OFFICIAL) == Done()
    assert site.fake.snapshots == {}
