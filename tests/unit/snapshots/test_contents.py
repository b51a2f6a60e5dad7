"""What is decided about contents: the tables of the stock csi-snapshotter as sentences."""

from __future__ import annotations

from typing import Any

import pytest

from unit.deciding import DRIVER, disk
from unit.snapshots.objects import BOTH, GONE, MARKED, content, snapshot, snapshot_class, source, state_of, stock_lease
from unit.snapshots.test_decide import CUT, READY
from volplane import Snapshot
from volplane.controller.actions import Delete, LiveReads, Patch, Read, Run, Settled, Wait
from volplane.kube import names
from volplane.kube.objects import KubeObject
from volplane.snapshots.contents import CREATE, DELETE, FIND, decide_content
from volplane.snapshots.objects import VOLUME_SNAPSHOT_CONTENTS, VOLUME_SNAPSHOTS, VolumeSnapshot
from volplane.snapshots.state import (
    Cut,
    Cutting,
    Lost,
    Removed,
    Removing,
    SnapshotIntent,
    SnapshotState,
)
from volplane.state.records import read_intent, write_intent

NAME = "snapcontent-uid-s"
CREATING = {names.SNAPSHOT_BEING_CREATED: "yes"}


def intent(**more: Any) -> dict[str, str]:
    """The annotation of a content of ours."""
    return {names.INTENT: write_intent(SnapshotIntent(v=1, cluster="test", snapshot="uid-s", volume="v", **more))}


OURS = intent()


def waiting() -> VolumeSnapshot:
    return snapshot(class_name="daily", finalizers=BOTH)


def state_with_step(step: Any, *objects: KubeObject, **more: Any) -> SnapshotState:
    state = state_of(*objects, **more)
    progress = state.progress.track(f"uid-{NAME}")
    if isinstance(step, str):
        progress.failure = step
    elif step is not None:
        progress.reached(step)
    return state


def decided(
    *objects: KubeObject, step: Any = None, reads: LiveReads | None = None, name: str = NAME, **more: Any
) -> Any:
    return decide_content(name, state_with_step(step, *objects, **more), reads or LiveReads())


def beside(*objects: KubeObject, **more: Any) -> Any:
    return decided(*objects, stock_lease(), **more)


def cut(*, ready: bool, **more: Any) -> Cut:
    return Cut(Snapshot(handle="snap-1", size_bytes=2**30, ready=ready, **more), CUT["creationTime"], 1030.0)


# --- making -----------------------------------------------------------------------------------------------------------


def test_a_content_of_ours_needs_no_write_before_the_hook() -> None:
    action = decided(*source(), waiting(), content(annotations=OURS))
    assert isinstance(action, Run)
    assert (action.verb, action.key, action.uid, action.driver) == (CREATE, NAME, f"uid-{NAME}", DRIVER)


def test_a_content_of_a_former_controller_gets_finalizer_and_intent_first() -> None:
    action = decided(*source(), waiting(), snapshot_class(), content(finalizers=None))
    assert action.body["metadata"]["finalizers"] == [names.CONTENT_BOUND]
    assert read_intent(SnapshotIntent, action.body["metadata"]["annotations"][names.INTENT]) is not None


def test_a_finalizer_that_somebody_removed_is_put_back() -> None:
    action = decided(waiting(), content(annotations=OURS, status=READY, finalizers=["example.com/x"]))
    assert action.body == {"metadata": {"finalizers": ["example.com/x", names.CONTENT_BOUND]}}
    assert decided(content(annotations=OURS, status=READY, finalizers=None)) == Settled()


def test_without_its_class_a_content_of_another_controller_cannot_be_cut() -> None:
    action = decided(*source(), waiting(), content())
    assert action.subresource == "status"
    assert '"daily" not found' in action.body["status"]["error"]["message"]
    assert [event.reason for event in action.events] == ["SnapshotContentCheckandUpdateFailed"]


def test_what_is_cut_and_not_ready_is_shown_and_looked_for_again_without_another_cut() -> None:
    mine = content(annotations=OURS)
    action = decided(*source(), waiting(), mine, step=cut(ready=False, state="pending, 40 %"))
    assert (action.subresource, action.body) == ("status", {"status": CUT | {"readyToUse": False}})
    shown = content(annotations=OURS, status=CUT)
    action = decided(*source(), waiting(), shown, step=cut(ready=False, state="pending, 40 %"))
    assert isinstance(action, Wait)
    assert action.seconds == 30.0
    assert "pending, 40 %" in action.reason
    assert decided(*source(), waiting(), shown).verb == FIND


def test_a_snapshot_that_became_ready_is_shown_with_what_was_set_before() -> None:
    shown = content(annotations=OURS, status=CUT | {"error": {"message": "Failed to create snapshot: x"}})
    action = decided(*source(), waiting(), shown, step=cut(ready=True))
    assert action.body == {"status": {"readyToUse": True, "error": None}}
    assert decided(*source(), waiting(), content(annotations=OURS, status=READY)) == Settled()


def test_a_snapshot_that_can_never_be_used_is_said_to_have_failed_for_good() -> None:
    action = decided(*source(), waiting(), content(annotations=OURS), step=cut(ready=False, failed="key lost"))
    assert action.body["status"]["error"]["message"] == "terminal: key lost"
    failed = content(annotations=OURS, status=CUT | {"error": {"message": "terminal: key lost"}})
    assert decided(*source(), waiting(), failed) == Settled()


def test_the_state_of_a_long_call_is_kept_on_the_content_before_it_goes_on() -> None:
    step = Cutting({"job": "1"}, 1030.0)
    action = decided(*source(), waiting(), content(annotations=OURS), step=step)
    kept = read_intent(SnapshotIntent, action.body["metadata"]["annotations"][names.INTENT])
    assert kept is not None
    assert kept.state == {"job": "1"}
    action = decided(*source(), waiting(), content(annotations=intent(state={"job": "1"})), step=step)
    assert isinstance(action, Wait)
    assert action.seconds == 30.0


def test_a_failure_is_shown_once_and_then_tried_again() -> None:
    step = "Failed to create snapshot: no room"
    action = decided(*source(), waiting(), content(annotations=OURS), step=step)
    assert action.body["status"]["error"]["message"] == "Failed to create snapshot: no room"
    shown = content(annotations=OURS, status={"error": {"time": GONE, "message": step}})
    assert decided(*source(), waiting(), shown, step=step).verb == CREATE


@pytest.mark.parametrize(
    "snapshots",
    [
        (),
        (snapshot(uid="another", finalizers=BOTH),),
        (snapshot(finalizers=BOTH, deletionTimestamp=GONE),),
        (snapshot(finalizers=BOTH, status={"creationTime": GONE}),),
    ],
    ids=["gone", "made again", "going", "cut before"],
)
def test_nothing_is_cut_for_nobody_or_a_second_time(snapshots: tuple[KubeObject, ...]) -> None:
    assert decided(*source(), *snapshots, content(annotations=OURS)).verb == FIND


def test_a_content_for_which_there_is_no_snapshot_has_failed_or_goes_with_its_snapshot() -> None:
    action = decided(snapshot(deletionTimestamp=GONE), content(annotations=OURS), step=Lost())
    assert action.body["status"]["error"]["message"].startswith("terminal: ")
    assert isinstance(decided(content(annotations=OURS), step=Lost()), Delete)


def test_a_content_that_a_person_wrote_is_looked_up_once_it_is_bound() -> None:
    assert isinstance(decided(content(handle="snap-9", uid="")), Wait)
    assert decided(content(handle="snap-9")).verb == FIND
    assert decided(content(handle="snap-9"), step=cut(ready=True)).body == {
        "status": READY | {"snapshotHandle": "snap-1"}
    }


def test_a_content_whose_source_is_none_is_said_to_be_invalid() -> None:
    wrong = content()
    wrong.spec.source.volume_handle = ""
    action = decided(wrong)
    assert [event.reason for event in action.events] == ["ContentValidationError"]


def test_contents_of_other_drivers_and_members_of_groups_are_left_alone() -> None:
    assert decided(content(driver="other.example.com")) == Settled()
    assert decided(content(annotations={names.GROUP_SNAPSHOT_HANDLE: "g"})) == Settled()


def test_a_driver_without_snapshots_is_named() -> None:
    action = decided(*source(), waiting(), content(annotations=OURS), drivers=[disk()])
    assert f'driver "{DRIVER}" makes no snapshots' in action.body["status"]["error"]["message"]


# --- deletion ---------------------------------------------------------------------------------------------------------


def gone_snapshot(answer: Any = None) -> LiveReads:
    reads = LiveReads()
    reads.put(VOLUME_SNAPSHOTS, "default/s", answer)
    return reads


def going(**more: Any) -> Any:
    fields = {"annotations": OURS | MARKED, "status": READY, "deletionTimestamp": GONE}
    return content(**fields | more)


def test_a_content_whose_snapshot_is_going_is_deleted_on_the_storage_then_let_go() -> None:
    assert decided(going()).verb == DELETE
    assert decided(going(), step=Removed()).body == {"metadata": {"finalizers": None}}


def test_a_content_that_is_retained_is_let_go_without_a_call() -> None:
    assert decided(going(policy="Retain")).body == {"metadata": {"finalizers": None}}


def test_a_member_of_a_group_is_let_go_without_a_call() -> None:
    marks = {**MARKED, names.GROUP_SNAPSHOT_HANDLE: "g"}
    assert decided(going(annotations=marks)).body == {"metadata": {"finalizers": None}}


def test_a_content_that_is_deleted_by_hand_waits_for_its_snapshot() -> None:
    by_hand = going(annotations=OURS)
    assert isinstance(decided(waiting(), by_hand), Read)
    action = decided(waiting(), by_hand, reads=gone_snapshot(waiting()))
    assert isinstance(action, Wait)
    assert "VolumeSnapshot default/s needs it" in action.reason


def test_a_content_that_is_deleted_by_hand_before_it_shows_a_snapshot_is_looked_up_for_its_snapshot() -> None:
    by_hand = going(annotations=OURS, status={})
    assert decided(waiting(), by_hand, reads=gone_snapshot(waiting())).verb == FIND
    lost = decided(waiting(), by_hand, step=Lost(), reads=gone_snapshot(waiting()))
    assert "none is cut any more" in lost.body["status"]["error"]["message"]


@pytest.mark.parametrize("answer", [None, snapshot(uid="another")])
def test_a_content_whose_snapshot_is_gone_by_a_live_read_may_go(answer: Any) -> None:
    assert decided(going(annotations=OURS), reads=gone_snapshot(answer)).verb == DELETE


def test_a_content_that_was_never_bound_may_go() -> None:
    assert decided(going(handle="snap-9", uid="", annotations={})).verb == DELETE


def test_a_content_that_nothing_here_holds_is_left_alone() -> None:
    assert decided(going(finalizers=["example.com/x"])) == Settled()


def test_why_a_deletion_failed_is_shown() -> None:
    step = "Failed to delete snapshot: busy"
    action = decided(going(), step=step)
    assert action.body["status"]["error"]["message"] == "Failed to delete snapshot: busy"


def test_the_state_of_a_long_deletion_is_kept() -> None:
    action = decided(going(), step=Removing({"job": "2"}, 1030.0))
    kept = read_intent(SnapshotIntent, action.body["metadata"]["annotations"][names.INTENT])
    assert kept is not None
    assert kept.deleting == {"job": "2"}


def test_while_its_snapshot_is_going_no_further_call_is_made_for_a_content_that_goes_with_it() -> None:
    assert isinstance(decided(snapshot(deletionTimestamp=GONE), content(annotations=OURS | MARKED)), Wait)


# --- beside a stock controller ----------------------------------------------------------------------------------------


def test_beside_a_stock_controller_the_mark_of_the_call_is_written_with_the_record() -> None:
    action = beside(*source(), waiting(), snapshot_class(), content(finalizers=None))
    assert isinstance(action, Patch)
    assert action.kind is VOLUME_SNAPSHOT_CONTENTS
    annotations = action.body["metadata"]["annotations"]
    assert annotations[names.SNAPSHOT_BEING_CREATED] == "yes"
    assert names.INTENT in annotations
    assert action.body["metadata"]["finalizers"] == [names.CONTENT_BOUND]
    assert beside(*source(), waiting(), snapshot_class(), content(annotations=OURS | CREATING)).verb == CREATE


def test_beside_a_stock_controller_nothing_is_cut_a_second_time_either() -> None:
    cut_before = snapshot(finalizers=BOTH, status={"creationTime": GONE})
    assert beside(*source(), cut_before, snapshot_class(), content(finalizers=None)).verb == FIND


def test_beside_a_stock_controller_the_mark_goes_once_the_snapshot_is_shown() -> None:
    shown = content(annotations=OURS | CREATING, status=CUT | {"readyToUse": False})
    action = beside(*source(), waiting(), shown, step=cut(ready=False))
    assert action.body == {"metadata": {"annotations": {names.SNAPSHOT_BEING_CREATED: None}}}


def test_beside_a_stock_controller_a_call_is_answered_before_the_content_goes() -> None:
    begun = going(annotations=OURS | MARKED | CREATING, status={})
    assert beside(*source(), waiting(), begun).verb == CREATE
    answered = going(annotations=OURS | MARKED | CREATING)
    action = beside(*source(), waiting(), answered)
    assert action.body == {"metadata": {"annotations": {names.SNAPSHOT_BEING_CREATED: None}}}


def test_beside_a_stock_controller_only_its_mark_lets_a_content_go() -> None:
    assert isinstance(beside(going(annotations=OURS)), Wait)
    assert beside(going()).verb == DELETE
    assert beside(going(handle="snap-9", uid="", annotations={})).verb == DELETE


def test_beside_a_stock_controller_the_handle_is_cleared_before_the_content_goes() -> None:
    action = beside(going(), step=Removed())
    assert (action.subresource, action.body["status"]["snapshotHandle"]) == ("status", None)
    assert beside(going(status={}), step=Removed()).body == {"metadata": {"finalizers": None}}


def test_where_the_kind_is_not_served_for_a_while_nothing_is_deleted_and_nothing_is_asked_without_end() -> None:
    reads = LiveReads()
    reads.put(VOLUME_SNAPSHOTS, "default/other", None)
    reads.unserved.add(VOLUME_SNAPSHOTS.plural)
    action = decided(content(status=READY, deletionTimestamp=GONE, annotations=OURS), reads=reads)
    assert isinstance(action, Wait)
    assert action.seconds == 60.0


def test_a_storage_that_says_terminal_of_something_else_ends_nothing() -> None:
    said = {"error": {"message": "Failed to create snapshot: lost the line to the terminal: try again"}}
    action = decided(*source(), waiting(), content(annotations=OURS, status=said))
    assert isinstance(action, Run)
    assert action.verb == CREATE
