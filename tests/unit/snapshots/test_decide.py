"""What is decided about VolumeSnapshots: the tables of the stock snapshot-controller as sentences."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from unit.binding.objects import claim, volume
from unit.deciding import DRIVER, disk
from unit.snapshots.objects import (
    BOTH,
    GONE,
    MARKED,
    content,
    cutter,
    snapshot,
    snapshot_class,
    source,
    state_of,
    stock_lease,
)
from volplane import Snapshot
from volplane.controller.actions import Create, Delete, LiveReads, Patch, Read, Run, Settled, Wait
from volplane.kube import names
from volplane.kube.kinds import CLAIMS
from volplane.kube.objects import KubeObject
from volplane.snapshots.decide import SEEK, decide_snapshot, decide_source
from volplane.snapshots.objects import VOLUME_SNAPSHOT_CONTENTS, VOLUME_SNAPSHOTS
from volplane.snapshots.state import Cut, Lost, SnapshotIntent, needs_source
from volplane.state.records import read_intent

DAILY = {"class_name": "daily"}
CUT = {"snapshotHandle": "snap-1", "creationTime": 1_767_225_600_000_000_000, "restoreSize": 2**30}
READY = CUT | {"readyToUse": True}
SHOWN = {
    "boundVolumeSnapshotContentName": "snapcontent-uid-s",
    "creationTime": GONE,
    "restoreSize": "1Gi",
    "readyToUse": True,
}


def decided(*objects: KubeObject, reads: LiveReads | None = None, **more: Any) -> Any:
    return decide_snapshot("default/s", state_of(*objects, **more), reads or LiveReads())


def refusal(action: Any) -> tuple[str, str]:
    """The reason of the event and the message in the status."""
    assert isinstance(action, Patch), action
    assert (action.kind, action.subresource, action.body["status"]["readyToUse"]) == (VOLUME_SNAPSHOTS, "status", False)
    [event] = action.events
    assert event.type == "Warning"
    assert event.message == action.body["status"]["error"]["message"]
    return event.reason, event.message


# --- a dynamic snapshot, in the order of its writes -------------------------------------------------------------------


def test_class_and_finalizers_are_written_first_and_together() -> None:
    action = decided(*source(), snapshot(), snapshot_class(default=True))
    assert action.kind is VOLUME_SNAPSHOTS
    assert not action.subresource
    assert action.body == {"metadata": {"finalizers": BOTH}, "spec": {"volumeSnapshotClassName": "daily"}}


def test_a_class_that_retains_holds_the_snapshot_as_a_source_only() -> None:
    action = decided(*source(), snapshot(**DAILY), snapshot_class(policy="Retain"))
    assert action.body == {"metadata": {"finalizers": [names.SNAPSHOT_AS_SOURCE]}}


def test_then_the_claim_is_held() -> None:
    action = decided(*source(), snapshot(**DAILY, finalizers=BOTH), snapshot_class())
    assert (action.kind, action.body) == (CLAIMS, {"metadata": {"finalizers": [names.CLAIM_AS_SOURCE]}})


def test_then_the_content_is_created_with_finalizer_and_intent() -> None:
    bound, made = source()
    bound.metadata.finalizers = [names.CLAIM_AS_SOURCE]
    action = decided(bound, made, snapshot(**DAILY, finalizers=BOTH), snapshot_class(parameters={"tier": "fast"}))
    assert isinstance(action, Create)
    body = action.body
    assert body["metadata"]["name"] == "snapcontent-uid-s"
    assert body["metadata"]["finalizers"] == [names.CONTENT_BOUND]
    assert read_intent(SnapshotIntent, body["metadata"]["annotations"][names.INTENT]) == SnapshotIntent(
        v=1, cluster="test", snapshot="uid-s", volume="v", claim="uid-c", parameters={"tier": "fast"}
    )
    reference = body["spec"].pop("volumeSnapshotRef")
    assert (reference["namespace"], reference["name"], reference["uid"]) == ("default", "s", "uid-s")
    assert body["spec"] == {
        "source": {"volumeHandle": "disk-1"},
        "volumeSnapshotClassName": "daily",
        "deletionPolicy": "Delete",
        "driver": DRIVER,
        "sourceVolumeMode": "Filesystem",
    }
    [event] = action.events
    assert (event.reason, event.type) == ("CreatingSnapshot", "Normal")
    assert event.message == "Waiting for a snapshot default/s to be created by the CSI driver."


def test_a_content_without_status_is_waited_for_without_a_write() -> None:
    assert isinstance(decided(*source(), snapshot(**DAILY, finalizers=BOTH), content()), Wait)


def test_the_status_is_copied_and_ready_is_told() -> None:
    action = decided(*source(), snapshot(**DAILY, finalizers=BOTH), content(status=READY))
    assert action.body == {"status": SHOWN}
    assert [event.reason for event in action.events] == ["SnapshotReady"]
    assert action.events[0].message == "Snapshot default/s is ready to use."


def test_a_snapshot_that_is_cut_shows_its_moment_before_it_is_ready() -> None:
    action = decided(*source(), snapshot(**DAILY, finalizers=BOTH), content(status=CUT))
    assert action.body == {"status": SHOWN | {"readyToUse": False}}
    assert not action.events


def test_a_snapshot_that_shows_everything_is_settled_whatever_became_of_class_and_claim() -> None:
    assert decided(snapshot(**DAILY, finalizers=BOTH, status=SHOWN), content(status=READY)) == Settled()


def test_time_and_size_are_never_corrected() -> None:
    later = READY | {"creationTime": 1_800_000_000_000_000_000, "restoreSize": 2**31}
    assert decided(snapshot(**DAILY, finalizers=BOTH, status=SHOWN), content(status=later)) == Settled()


def test_an_error_of_the_content_is_copied_and_goes_with_it() -> None:
    failed = {"error": {"time": GONE, "message": "Failed to create snapshot: no room"}}
    action = decided(snapshot(**DAILY, finalizers=BOTH), content(status=failed))
    bound = {"boundVolumeSnapshotContentName": "snapcontent-uid-s", "readyToUse": False}
    assert action.body == {"status": bound | failed}
    shown = snapshot(**DAILY, finalizers=BOTH, status=SHOWN | failed | {"readyToUse": False})
    assert decided(shown, content(status=READY)).body == {"status": {"readyToUse": True, "error": None}}


# --- what is refused before any hook ----------------------------------------------------------------------------------


def test_a_source_is_exactly_one() -> None:
    reason, message = refusal(decided(snapshot(of="")))
    assert reason == "SnapshotValidationError"
    assert message.startswith("Exactly one of PersistentVolumeClaimName and VolumeSnapshotContentName")


def test_a_class_that_does_not_exist_is_named() -> None:
    reason, message = refusal(decided(*source(), snapshot(class_name="hourly")))
    assert reason == "GetSnapshotClassFailed"
    assert 'volumesnapshotclass.snapshot.storage.k8s.io "hourly" not found' in message


@pytest.mark.parametrize(
    ("classes", "what"),
    [
        ((), f"cannot find default snapshot class of driver {DRIVER}"),
        ((snapshot_class("a", default=True, driver="other.example.com"),), "cannot find default snapshot class"),
        (
            (snapshot_class("a", default=True), snapshot_class("b", default=True)),
            "2 default snapshot classes were found: a, b",
        ),
    ],
)
def test_one_default_class_of_the_driver_is_needed(classes: tuple[Any, ...], what: str) -> None:
    reason, message = refusal(decided(*source(), snapshot(), *classes))
    assert reason == "SetDefaultSnapshotClassFailed"
    assert what in message


def test_a_claim_that_does_not_exist_is_named() -> None:
    reason, message = refusal(decided(snapshot(**DAILY), snapshot_class()))
    assert reason == "SnapshotContentCreationFailed"
    assert 'cannot get claim from snapshot: persistentvolumeclaim "c" not found' in message
    assert refusal(decided(snapshot()))[0] == "SetDefaultSnapshotClassFailed"


def test_a_claim_that_is_not_bound_is_waited_for() -> None:
    reason, message = refusal(decided(claim("c"), snapshot(**DAILY), snapshot_class()))
    assert reason == "SnapshotContentCreationFailed"
    assert "the PVC c is not yet bound to a PV, will not attempt to take a snapshot" in message


def test_a_volume_that_does_not_exist_is_named() -> None:
    bound, _ = source()
    _, message = refusal(decided(bound, snapshot(**DAILY), snapshot_class()))
    assert 'persistentvolume "v" not found' in message


def test_a_volume_that_refers_to_another_claim_is_not_cut() -> None:
    bound, _ = source()
    other = claim("other", uid="x")
    _, message = refusal(decided(bound, volume("v", claim=other), snapshot(**DAILY), snapshot_class()))
    assert "claim in dataSource not bound or invalid" in message


def test_a_claim_that_is_going_is_cut_only_if_it_is_held_already() -> None:
    bound, made = source()
    bound.metadata.deletion_timestamp = GONE
    _, message = refusal(decided(bound, made, snapshot(**DAILY), snapshot_class()))
    assert "cannot add finalizer on claim because it is being deleted" in message
    bound.metadata.finalizers = [names.CLAIM_AS_SOURCE]
    assert isinstance(decided(bound, made, snapshot(**DAILY, finalizers=BOTH), snapshot_class()), Create)


def test_the_driver_of_the_class_is_compared_with_that_of_the_volume() -> None:
    wrong = snapshot_class(driver="other.example.com")
    reason, message = refusal(decided(*source(), snapshot(**DAILY), wrong))
    assert reason == "SnapshotContentCreationFailed"
    assert f'"daily" is of driver "other.example.com", the volume is of driver "{DRIVER}"' in message


def test_a_class_of_ours_for_the_volume_of_another_driver_is_refused() -> None:
    bound = claim("c", volumeName="v", annotations={names.BIND_COMPLETED: "yes"}, status={"phase": "Bound"})
    foreign = volume("v", claim=bound, annotations={names.PROVISIONED_BY: "other.example.com"})
    _, message = refusal(decided(bound, foreign, snapshot(**DAILY), snapshot_class()))
    assert f'is of driver "{DRIVER}", the volume is of "other.example.com"' in message


def test_snapshots_of_other_drivers_are_left_alone() -> None:
    bound = claim("c", volumeName="v", annotations={names.BIND_COMPLETED: "yes"}, status={"phase": "Bound"})
    foreign = volume("v", claim=bound, annotations={names.PROVISIONED_BY: "other.example.com"})
    other = snapshot_class("theirs", driver="other.example.com")
    assert decided(bound, foreign, snapshot(class_name="theirs"), other) == Settled()
    assert decided(bound, foreign, snapshot()) == Settled()
    assert decided(snapshot(class_name="theirs"), other) == Settled()


@pytest.mark.parametrize(
    ("parameters", "what"),
    [
        ({"teir": "fast"}, "unknown parameter 'teir'"),
        ({"csi.storage.k8s.io/snapshotter-secret-name": "x"}, "csi.storage.k8s.io/snapshotter-secret-name"),
        ({"csi.storage.k8s.io/other": "x"}, "csi.storage.k8s.io/other"),
    ],
)
def test_parameters_of_the_class_that_the_driver_does_not_know_are_named(parameters: Any, what: str) -> None:
    _, message = refusal(decided(*source(), snapshot(**DAILY), snapshot_class(parameters=parameters)))
    assert what in message


def test_a_driver_without_snapshots_is_named() -> None:
    action = decided(*source(), snapshot(**DAILY), snapshot_class(), drivers=[disk()])
    assert f'driver "{DRIVER}" makes no snapshots' in refusal(action)[1]


def test_an_equal_error_is_not_written_again() -> None:
    first = decided(*source(), snapshot(), snapshot_class())
    shown = snapshot(status=first.body["status"])
    again = decided(*source(), shown, snapshot_class())
    assert isinstance(again, Wait)
    assert not again.events


def test_an_nfs_share_is_cut_by_the_handle_of_its_annotation() -> None:
    bound, _ = source()
    bound.metadata.finalizers = [names.CLAIM_AS_SOURCE]
    share = volume(
        "v",
        claim=bound,
        hostPath=None,
        nfs={"server": "filer", "path": "/pvc-1"},
        annotations={names.PROVISIONED_BY: DRIVER, names.HANDLE: "filer:/pvc-1"},
    )
    action = decided(bound, share, snapshot(**DAILY, finalizers=BOTH), snapshot_class())
    assert action.body["spec"]["source"] == {"volumeHandle": "filer:/pvc-1"}


# --- a content under the name -----------------------------------------------------------------------------------------


def test_a_content_of_another_snapshot_under_the_name_is_not_taken() -> None:
    reason, message = refusal(decided(*source(), snapshot(**DAILY), content(uid="other")))
    assert (reason, message) == (
        "SnapshotContentMisbound",
        "VolumeSnapshotContent [snapcontent-uid-s] is bound to a different snapshot",
    )


def test_a_ready_snapshot_whose_content_names_another_one_is_not_ready_any_more() -> None:
    shown = snapshot(**DAILY, finalizers=BOTH, status=SHOWN)
    assert refusal(decided(*source(), shown, content(uid="other", status=READY)))[0] == "SnapshotContentMisbound"


def test_a_content_that_a_person_wrote_under_the_name_is_not_taken() -> None:
    assert refusal(decided(*source(), snapshot(**DAILY), content(handle="snap-9")))[0] == "SnapshotContentMismatch"


# --- a content that is lost -------------------------------------------------------------------------------------------


def lost(**more: Any) -> Any:
    """A ready snapshot whose content is gone, by a live read."""
    reads = LiveReads()
    reads.put(VOLUME_SNAPSHOT_CONTENTS, "snapcontent-uid-s", None)
    return decided(*source(), snapshot(**DAILY, finalizers=BOTH, status=SHOWN), snapshot_class(), reads=reads, **more)


def test_the_content_of_a_cut_snapshot_is_looked_for_live_then_on_the_storage() -> None:
    shown = snapshot(**DAILY, finalizers=BOTH, status=SHOWN)
    assert isinstance(decided(*source(), shown, snapshot_class()), Read)
    action = lost()
    assert isinstance(action, Run)
    assert (action.verb, action.asset, action.driver) == (SEEK, "snapcontent-uid-s", DRIVER)


def test_a_content_under_another_name_that_names_the_snapshot_is_its_own() -> None:
    """As those that a stock controller makes for the members of a group."""
    shown = SHOWN | {"boundVolumeSnapshotContentName": "snapcontent-sha"}
    member = snapshot(**DAILY, finalizers=BOTH, status=shown)
    assert decided(*source(), member, content("snapcontent-sha", status=READY), snapshot_class()) == Settled()
    theirs = content("snapcontent-sha", uid="another", status=READY)
    assert isinstance(decided(*source(), member, theirs, snapshot_class()), Read)


def test_where_contents_are_not_served_for_a_while_none_counts_as_gone() -> None:
    reads = LiveReads()
    reads.put(VOLUME_SNAPSHOT_CONTENTS, "other", None)
    reads.unserved.add(VOLUME_SNAPSHOT_CONTENTS.plural)
    shown = snapshot(**DAILY, finalizers=BOTH, status=SHOWN)
    action = decided(*source(), shown, snapshot_class(), reads=reads)
    assert isinstance(action, Wait)
    assert action.seconds == 60.0


def sought(step: Any) -> Any:
    state = state_of(*source(), snapshot(**DAILY, finalizers=BOTH, status=SHOWN), snapshot_class())
    state.sought.track("uid-s").reached(step)
    reads = LiveReads()
    reads.put(VOLUME_SNAPSHOT_CONTENTS, "snapcontent-uid-s", None)
    return decide_snapshot("default/s", state, reads)


def test_the_content_is_made_again_for_the_snapshot_that_the_storage_has() -> None:
    action = sought(Cut(Snapshot(handle="snap-1", size_bytes=1, ready=True), 0, 0.0))
    assert isinstance(action, Create)
    assert action.body["metadata"]["finalizers"] == [names.CONTENT_BOUND]
    assert [event.reason for event in action.events] == ["SnapshotContentMissing"]


@pytest.mark.parametrize(
    ("cut_of", "made", "known"),
    [
        ("disk-1", "2026-06-01T00:00:00Z", True),
        ("disk-0", "2025-01-01T00:00:00Z", False),
        ("", "2025-01-01T00:00:00Z", True),
        ("", "2026-06-01T00:00:00Z", False),
    ],
)
def test_a_content_that_is_made_again_tells_nothing_of_the_volume_of_a_later_claim(
    cut_of: str, made: str, known: bool
) -> None:
    claim_of_now, volume_of_now = source()
    later = replace(claim_of_now, metadata=replace(claim_of_now.metadata, creation_timestamp=made))
    state = state_of(later, volume_of_now, snapshot(**DAILY, finalizers=BOTH, status=SHOWN), snapshot_class())
    found = Snapshot(handle="snap-1", size_bytes=1, ready=True, source=cut_of)
    state.sought.track("uid-s").reached(Cut(found, 0, 0.0))
    reads = LiveReads()
    reads.put(VOLUME_SNAPSHOT_CONTENTS, "snapcontent-uid-s", None)
    action = decide_snapshot("default/s", state, reads)
    assert isinstance(action, Create)
    assert ("sourceVolumeMode" in action.body["spec"]) is known
    assert action.body["spec"]["source"] == {"volumeHandle": cut_of or ("disk-1" if known else "unknown")}


def test_a_cut_snapshot_that_the_storage_has_no_more_has_failed_for_good() -> None:
    reason, message = refusal(sought(Lost()))
    assert reason == "SnapshotContentMissing"
    assert message.startswith("terminal: VolumeSnapshotContent is missing")
    failed = snapshot(**DAILY, finalizers=BOTH, status={"creationTime": GONE, "error": {"message": message}})
    assert decided(*source(), failed, snapshot_class()) == Settled()


# --- a content that a person wrote ------------------------------------------------------------------------------------


def static(*objects: KubeObject, **fields: Any) -> Any:
    return decided(snapshot(content="mine", **fields), *objects)


def test_a_content_that_is_missing_is_waited_for() -> None:
    assert refusal(static()) == ("SnapshotContentMissing", "VolumeSnapshotContent is missing")


def test_a_ready_snapshot_whose_content_is_gone_is_not_ready_any_more() -> None:
    assert refusal(static(status=SHOWN | {"boundVolumeSnapshotContentName": "mine"}))[0] == "SnapshotContentMissing"


def test_a_content_is_bound_by_one_write_with_its_finalizer_and_class() -> None:
    action = static(content("mine", handle="snap-9", uid="", finalizers=None), class_name="daily")
    assert action.kind is VOLUME_SNAPSHOT_CONTENTS
    assert action.body == {
        "metadata": {"finalizers": [names.CONTENT_BOUND]},
        "spec": {"volumeSnapshotRef": {"uid": "uid-s"}, "volumeSnapshotClassName": "daily"},
    }


def test_then_the_snapshot_is_held_and_shows_what_the_content_shows() -> None:
    mine = content("mine", handle="snap-9", status=READY)
    assert static(mine).body == {"metadata": {"finalizers": BOTH}}
    action = static(mine, finalizers=BOTH)
    assert action.body == {"status": SHOWN | {"boundVolumeSnapshotContentName": "mine"}}


def test_a_content_that_names_another_snapshot_is_not_bound() -> None:
    reason, _ = refusal(static(content("mine", handle="snap-9", of="other")))
    assert reason == "SnapshotContentMisbound"
    assert refusal(static(content("mine", handle="snap-9", uid="former")))[0] == "SnapshotContentMisbound"


def test_a_dynamic_content_is_bound_again_only_once_it_has_a_snapshot() -> None:
    assert refusal(static(content("mine", uid="")))[0] == "SnapshotContentMismatch"
    kept = content("mine", uid="", status=READY, annotations=MARKED, policy="Retain")
    action = static(kept)
    assert action.body["spec"] == {"volumeSnapshotRef": {"uid": "uid-s"}}
    assert action.body["metadata"] == {"annotations": {names.SNAPSHOT_BEING_DELETED: None}}


def test_contents_of_other_drivers_are_left_alone() -> None:
    assert static(content("mine", handle="snap-9", uid="", driver="other.example.com")) == Settled()


# --- deletion ---------------------------------------------------------------------------------------------------------


def going(*objects: KubeObject, **more: Any) -> Any:
    return decided(snapshot(**DAILY, finalizers=BOTH, status=SHOWN, deletionTimestamp=GONE), *objects, **more)


def test_the_content_is_marked_then_deleted_then_waited_for_then_the_snapshot_goes() -> None:
    action = going(content(status=READY))
    assert action.body == {"metadata": {"annotations": MARKED}}
    action = going(content(status=READY, annotations=MARKED))
    assert isinstance(action, Delete)
    assert action.kind is VOLUME_SNAPSHOT_CONTENTS
    assert isinstance(going(content(status=READY, annotations=MARKED, deletionTimestamp=GONE)), Wait)
    assert going().body == {"metadata": {"finalizers": None}}


def test_a_content_that_is_retained_is_marked_and_stays() -> None:
    assert going(content(status=READY, policy="Retain")).body == {"metadata": {"annotations": MARKED}}
    action = going(content(status=READY, policy="Retain", annotations=MARKED))
    assert (action.kind, action.body) == (VOLUME_SNAPSHOTS, {"metadata": {"finalizers": None}})


@pytest.mark.parametrize("other", [{"uid": "other"}, {"of": "other"}, {"uid": ""}])
def test_a_content_that_names_another_snapshot_is_untouched(other: Any) -> None:
    action = going(content(status=READY, **other))
    assert (action.kind, action.body) == (VOLUME_SNAPSHOTS, {"metadata": {"finalizers": None}})


def test_finalizers_of_others_stay() -> None:
    mine = snapshot(**DAILY, finalizers=[*BOTH, "example.com/x"], deletionTimestamp=GONE)
    assert decided(mine).body == {"metadata": {"finalizers": ["example.com/x"]}}
    assert decided(snapshot(finalizers=["example.com/x"], deletionTimestamp=GONE)) == Settled()


@pytest.mark.parametrize("field", ["dataSource", "dataSourceRef"])
def test_a_pending_claim_that_is_made_of_it_holds_it(field: str) -> None:
    restored = {field: {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}}
    action = going(content(status=READY), claim("r", **restored, status={"phase": "Pending"}))
    assert isinstance(action, Wait)
    assert "restore claim r" in action.reason
    assert [(event.reason, event.message) for event in action.events] == [
        ("SnapshotDeletePending", "Snapshot is being used to restore a PVC")
    ]
    done = going(content(status=READY), claim("r", **restored, status={"phase": "Bound"}))
    assert isinstance(done, Patch)
    elsewhere = claim("r", **restored, namespace="other", status={"phase": "Pending"})
    assert isinstance(going(content(status=READY), elsewhere), Patch)


def test_the_policy_of_the_content_counts_at_that_moment_and_no_class_is_needed() -> None:
    mine = snapshot(**DAILY, finalizers=BOTH, status=SHOWN, deletionTimestamp=GONE)
    kept = content(status=READY, annotations=MARKED, policy="Retain")
    assert decided(mine, kept, snapshot_class(policy="Delete")).kind is VOLUME_SNAPSHOTS


def test_why_the_content_stays_is_shown_on_the_snapshot() -> None:
    failed = READY | {"error": {"time": GONE, "message": "Failed to delete snapshot: busy"}}
    action = going(content(status=failed, annotations=MARKED, deletionTimestamp=GONE))
    assert action.body == {"status": {"error": {"time": GONE, "message": "Failed to delete snapshot: busy"}}}


# --- the claim, and who decides ---------------------------------------------------------------------------------------


def test_a_claim_is_released_once_all_its_snapshots_are_cut_although_none_is_ready() -> None:
    bound, made = source()
    bound.metadata.finalizers = ["kubernetes.io/pvc-protection", names.CLAIM_AS_SOURCE]
    begun, cut = snapshot("a", finalizers=BOTH), snapshot("b", finalizers=BOTH, status={"creationTime": GONE})
    refused = snapshot("refused")
    waiting = decide_source("default/c", state_of(bound, made, begun, cut, refused))
    assert isinstance(waiting, Wait)
    assert "VolumeSnapshot a is not cut yet" in waiting.reason
    action = decide_source("default/c", state_of(bound, made, cut, refused))
    assert isinstance(action, Patch)
    assert action.body == {"metadata": {"finalizers": ["kubernetes.io/pvc-protection"]}}


def test_a_snapshot_that_has_failed_for_good_holds_no_claim() -> None:
    assert not needs_source(snapshot(finalizers=BOTH, status={"error": {"message": "terminal: gone"}}))


def test_a_stock_controller_with_a_lease_decides_alone() -> None:
    bound, made = source()
    bound.metadata.finalizers = [names.CLAIM_AS_SOURCE]
    state = state_of(bound, made, snapshot(), snapshot_class(default=True), stock_lease())
    action = decide_snapshot("default/s", state, LiveReads())
    assert isinstance(action, Wait)
    assert "kube-system/snapshot-controller-leader" in action.reason
    assert action.seconds == 60.0
    assert decide_source("default/c", state) == Settled()
    state = state_of(bound, made, snapshot(), snapshot_class(default=True), stock_lease(holder=""))
    assert isinstance(decide_snapshot("default/s", state, LiveReads()), Patch)


def test_a_stock_controller_that_renews_no_more_is_succeeded() -> None:
    now = [1000.0]
    state = state_of(*source(), snapshot(), snapshot_class(default=True))
    state.cluster.monotonic = lambda: now[0]
    state.leases.observe(stock_lease())
    assert not state.binds()
    now[0] += 61.0
    assert state.binds()
    assert cutter().supports("create_snapshot")
