"""The attempts of a scrub, one after the other: who erases, how it ends, and what is tried next."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from unit.binding.objects import claim
from unit.deciding import NOW, decide_recycle, read, state_with
from unit.reclaim.scrubbing import (
    BY_CLAIM,
    DISK,
    GONE,
    HELD,
    INTENT,
    OURS,
    RECYCLE,
    SCRUB_CLAIM,
    body_of,
    decided,
    dirty,
    erased,
    failed,
    noted,
    pod_of,
    state,
    told,
    whole,
    with_status,
)
from volplane.controller.actions import Create, Delete, LiveReads, Patch, Read, Wait, warning
from volplane.kube.kinds import CLAIMS, PODS, VOLUMES, WHOLE_PODS
from volplane.kube.objects import Pod, Volume, WholePod
from volplane.reclaim.scrub_pod import LONGEST_FAILURE, SCRUB_GATE
from volplane.state.cluster_state import ClusterState
from volplane.state.progress import BackendErased, Erasing
from volplane.state.records import INTENT_VERSION, RecycleIntent, ScrubPlan

CSI = {"hostPath": None, "csi": {"driver": "d", "volumeHandle": "h"}}
PROVES_ABSENCE = read(PODS, SCRUB_CLAIM)
"""A pod has the name of its claim."""


def scrub_claim(**fields: Any) -> Any:
    """The claim of the scrub, bound."""
    given = {"namespace": OURS, "uid": "uid-scrub", "volumeName": "v", "status": {"phase": "Bound"}}
    return claim(SCRUB_CLAIM.partition("/")[2], **{**given, **fields})


def answered(item: Volume, step: Any, *, reads: LiveReads | None = None) -> Any:
    """What follows an answer of the backend."""
    made = state(item)
    made.progress.volumes.track("uid-v").succeeded(step)
    return decide_recycle(item, made, reads or LiveReads())


# --- what the backend answers -------------------------------------------------------------------------------------


def test_what_the_backend_erased_itself_is_written_down() -> None:
    assert noted(answered(dirty(), BackendErased())) == RecycleIntent(v=INTENT_VERSION, claim=GONE.uid, erased=True)


def test_a_job_without_a_state_is_written_down_too() -> None:
    """The record is all that keeps the next process from giving up a scrub while the backend erases."""
    assert noted(answered(dirty(), Erasing({}, due=1005.0))).state == {}
    waits = Wait(reason=f'driver "{DISK.name}" is erasing the contents', seconds=5.0)
    assert answered(dirty(state={}), Erasing({}, due=1005.0)) == waits


def test_a_state_that_the_backend_needs_no_more_goes() -> None:
    assert noted(answered(dirty(state={"part": 1}), Erasing({}, due=1005.0, given={"part": 1}))).state == {}


@pytest.mark.parametrize("due", [999.0, 1000.0])
def test_the_backend_is_called_again_when_it_is_due(due: float) -> None:
    assert answered(dirty(state={"part": 1}), Erasing({"part": 1}, due, {"part": 1})) == RECYCLE


def test_a_failure_is_shown_once_before_the_next_call() -> None:
    item = dirty()
    made = state(item)
    made.progress.volumes.track("uid-v").unreported_failure = "Recycle failed: busy"
    assert decide_recycle(item, made, LiveReads()) == failed(item, "Recycle failed: busy")
    assert decide_recycle(with_status(item, "Recycle failed: busy"), made, LiveReads()) == RECYCLE


def test_what_no_pod_can_mount_fails_and_says_why() -> None:
    item = dirty({"hostPath": {}})
    message = "a volume whose source is hostPath cannot be mounted in a scrubber pod"
    assert answered(item, ScrubPlan(None), reads=PROVES_ABSENCE) == failed(item, message)


def test_a_pod_is_created_in_our_namespace() -> None:
    create = answered(dirty(), ScrubPlan({"emptyDir": {}}), reads=PROVES_ABSENCE)
    assert isinstance(create, Create)
    assert create.kind is PODS
    meta = create.body["metadata"]
    assert f"{meta['namespace']}/{meta['name']}" == SCRUB_CLAIM
    [mounted] = create.body["spec"]["volumes"]
    assert mounted == {"name": "volume", "emptyDir": {}}
    assert create.failure_event == told(dirty(), "The pod that scrubs it cannot be created")


# --- by a claim ---------------------------------------------------------------------------------------------------


def test_a_csi_volume_is_held_by_a_claim_before_its_pod_is_made() -> None:
    assert answered(dirty(CSI), ScrubPlan(None)) == Read(CLAIMS, SCRUB_CLAIM, "does a claim of this name exist?")
    plan = answered(dirty(CSI), ScrubPlan({"emptyDir": {}}), reads=PROVES_ABSENCE)
    assert isinstance(plan, Create), "the backend said how to mount it"
    item = dirty({**CSI, **HELD}, **BY_CLAIM)
    assert erased(item, scrub_claim(status={"phase": "Pending"})).reason.endswith("is being bound")
    create = erased(item, scrub_claim(), reads=PROVES_ABSENCE)
    assert create.body["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": create.body["metadata"]["name"]}
    assert erased(item, scrub_claim()) == Read(PODS, SCRUB_CLAIM, "does a pod of this name exist?")


def test_a_pod_whose_claim_is_not_the_one_it_was_made_with_fails_the_attempt() -> None:
    item = dirty({**CSI, **HELD}, pod="uid-pod", **BY_CLAIM)
    pod = pod_of(item, phase="Running")
    assert erased(item, pod, scrub_claim()).reason.endswith("is Running")
    lost = f"claim {SCRUB_CLAIM} is not the one it was made with"
    assert noted(erased(item, pod)).failed == lost
    not_yet = dirty({**CSI, **HELD}, **BY_CLAIM)
    asks = erased(not_yet, pod_of(not_yet, gated=True))
    assert asks == Read(VOLUMES, "v", "is it still ours to scrub?"), "it has not started"


# --- the pod ------------------------------------------------------------------------------------------------------


def test_a_foreign_pod_that_is_going_away_is_waited_for() -> None:
    item = dirty()
    pod = pod_of(item, annotations={"volplane.dev/scrub-seal": ""}, deletionTimestamp="2026-01-01T00:00:00Z")
    assert erased(item, pod) == Wait(reason=f"scrubber pod {SCRUB_CLAIM} is going away")


def test_every_pod_of_others_is_remembered() -> None:
    item = dirty(strangers=("a",))
    note = noted(erased(item, pod_of(item, annotations={"volplane.dev/scrub-seal": ""})))
    assert note.strangers == ("a", "uid-pod")


def test_a_pod_of_others_that_comes_again_and_again_is_said_to_be_theirs() -> None:
    item = dirty(strangers=("a", "b", "c"))
    note = noted(erased(item, pod_of(item, annotations={"volplane.dev/scrub-seal": ""})))
    assert "is replaced again and again: volplane did not make it so; look for" in note.failed


def test_a_pod_that_never_had_a_gate_runs_without_a_permit() -> None:
    item = dirty()
    pod = pod_of(item)
    pod = replace(pod, spec=replace(pod.spec, scheduling_gates=None))
    assert noted(erased(item, pod)).strangers == ("uid-pod",)


@pytest.mark.parametrize(("phase", "shown"), [("", "Pending"), ("Running", "Running")])
def test_the_phase_of_the_pod_is_told(phase: str, shown: str) -> None:
    item = dirty(pod="uid-pod")
    assert erased(item, pod_of(item, phase=phase)) == Wait(reason=f"scrubber pod {SCRUB_CLAIM} is {shown}")


def test_a_pod_that_has_another_uid_when_it_is_looked_at_is_another_one() -> None:
    item = dirty(pod="uid-pod")
    body = body_of(item)
    body["metadata"]["uid"] = "uid-next"
    looked = read(WHOLE_PODS, SCRUB_CLAIM, msgspec.convert(body, WholePod))
    waits = Wait(reason=f"scrubber pod {SCRUB_CLAIM} is being replaced", seconds=2.0)
    assert erased(item, pod_of(item, phase="Succeeded"), reads=looked) == waits


def test_of_the_gates_ours_alone_is_lifted_and_from_the_pod_that_was_compared() -> None:
    item = dirty(pod="uid-pod")
    looked = whole(item, schedulingGates=[{"name": "example.com/quota"}, {"name": SCRUB_GATE}])
    lift = erased(item, pod_of(item, gated=True), reads=looked)
    body = {"spec": {"schedulingGates": [{"name": "example.com/quota"}]}}
    assert lift == Patch(kind=PODS, target=looked.get(WHOLE_PODS, SCRUB_CLAIM), body=body, why="lift the gate")


@pytest.mark.parametrize("gates", [{}, {"schedulingGates": None}])
def test_a_gate_that_is_lifted_already_is_not_lifted_again(gates: dict[str, Any]) -> None:
    item = dirty(pod="uid-pod")
    step = erased(item, pod_of(item, gated=True), reads=whole(item, **{"schedulingGates": [], **gates}))
    assert step == Wait(reason=f"the scheduling gate of scrubber pod {SCRUB_CLAIM} is removed")


# --- why it failed ------------------------------------------------------------------------------------------------


def why_failed(**status: Any) -> str:
    """What is written down about a pod that failed with this status."""
    item = dirty(pod="uid-pod")
    body = msgspec.to_builtins(pod_of(item))
    body["status"] = {"phase": "Failed", **status}
    return noted(erased(item, msgspec.convert(body, Pod))).failed


def ended(**state_of_container: Any) -> dict[str, Any]:
    return {"name": "scrub", "state": {"terminated": state_of_container}}


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"reason": "Evicted", "message": "out of memory"}, "Evicted: out of memory"),
        ({"message": "out of memory"}, "out of memory"),
        ({"containerStatuses": [ended(message="disk error", reason="Error")]}, "disk error"),
        ({"containerStatuses": [ended(reason="OOMKilled")]}, "OOMKilled"),
        ({"reason": "Failed", "containerStatuses": [ended(message="a"), ended(message="b")]}, "Failed: a: b"),
        ({"containerStatuses": [ended(exitCode=1)]}, "pod failed, pod.Status.Message unknown"),
        ({"containerStatuses": [{"name": "scrub"}]}, "pod failed, pod.Status.Message unknown"),
        ({"containerStatuses": [{"name": "scrub", "state": {}}]}, "pod failed, pod.Status.Message unknown"),
        ({}, "pod failed, pod.Status.Message unknown"),
    ],
)
def test_why_a_pod_failed_is_what_it_and_its_containers_say(status: dict[str, Any], why: str) -> None:
    assert why_failed(**status) == why


def test_of_a_long_failure_the_end_is_kept() -> None:
    why = why_failed(message="a" * 600, containerStatuses=[ended(message="b" * 600)])
    assert why == ("a" * 600 + ": " + "b" * 600)[-LONGEST_FAILURE:]


# --- the next attempt ---------------------------------------------------------------------------------------------

FAILED = "Recycle failed: failed to recycle volume: disk error"


def test_a_failed_attempt_is_shown_first() -> None:
    item = dirty({"status": {"phase": "Released"}}, failed="disk error")
    assert erased(item) == failed(item, FAILED)


@pytest.mark.parametrize("binder", [True, False])
def test_the_pause_after_a_failed_attempt_is_told_where_no_phase_is_written(binder: bool) -> None:
    item = dirty(failed="disk error")
    pause = erased(item, binder=binder)
    assert noted(pause).not_before == NOW.timestamp() + 2.0
    assert pause.events == (() if binder else (told(item, FAILED),))


def test_each_pause_is_longer() -> None:
    assert noted(erased(dirty(failed="disk error", attempt=2))).not_before == NOW.timestamp() + 4.0


def test_the_pod_of_a_failed_attempt_goes() -> None:
    item = dirty(failed="disk error", pod="uid-pod")
    pod = pod_of(item, phase="Failed")
    assert erased(item, pod) == Delete(kind=PODS, target=pod, why="its attempt failed", exact=False)


@pytest.mark.parametrize(("left", "waits"), [(0.0, False), (0.5, True), (64.0, True), (64.5, False)])
def test_the_next_attempt_waits_for_the_end_of_the_pause_but_not_for_ever(left: float, waits: bool) -> None:
    """More than that is a clock that was put back."""
    action = erased(dirty(failed="disk error", not_before=NOW.timestamp() + left))
    if waits:
        assert action == Wait(reason=f"{FAILED}; attempt 2 of 3 follows", seconds=left)
    else:
        assert noted(action).attempt == 2


def test_the_next_attempt_keeps_the_claim_and_the_term_of_the_scrub() -> None:
    kept = {"fence": "3/us/lease-b", **BY_CLAIM}
    item = dirty(HELD, failed="disk error", not_before=1.0, strangers=("a",), pod="uid-pod", state={"p": 1}, **kept)
    made: ClusterState = state(item, binder=False)
    made.fence = lambda: "3/us/lease-b"
    fresh = noted(decide_recycle(item, made, LiveReads()))
    assert fresh == RecycleIntent(v=INTENT_VERSION, claim=GONE.uid, attempt=2, **kept)


def test_after_the_last_attempt_a_person_is_told_what_to_do() -> None:
    item = dirty(failed="disk error", attempt=3)
    last = erased(item)
    text = f"{FAILED} (attempt 3 of 3, the last)"
    assert noted(last) == RecycleIntent(v=INTENT_VERSION, claim=GONE.uid, attempt=3, failed=text, given_up=True)
    advice = f"{text}; remove the annotation {INTENT} to try again"
    assert last.events == (warning(VOLUMES, item, "VolumeFailedRecycle", advice),)


def test_an_erased_volume_is_offered_again_with_an_event() -> None:
    item = dirty(erased=True)
    offered = erased(item)
    assert (offered.kind, offered.target) == (VOLUMES, item)
    [event] = offered.events
    assert (event.kind, event.about, event.type, event.reason) == (VOLUMES, item, "Normal", "VolumeRecycled")
    assert event.message == "Volume recycled"


def kept(**intent: Any) -> Volume:
    """A volume whose policy became Retain while it was scrubbed."""
    return dirty(spec={"persistentVolumeReclaimPolicy": "Retain"}, **intent)


def unasked(item: Volume, step: Any = None, *, recycling: bool = False) -> Any:
    """What follows for it after an answer of the backend, or while a call is under way."""
    made = state_with(drivers=(DISK,))
    progress = made.progress.volumes.track("uid-v")
    progress.step, progress.recycling = step, recycling
    return decided(item, made=made)


def test_what_a_call_may_be_erasing_is_not_given_away_though_the_policy_forbids_it_now() -> None:
    assert unasked(kept(), recycling=True) == RECYCLE, "which waits for that call, and calls nothing itself"


@pytest.mark.parametrize("job", [{"part": 1}, {}])
@pytest.mark.parametrize("free", [{}, {"claim": None}])
def test_a_job_that_erases_is_followed_to_its_end_whatever_the_policy(
    free: dict[str, Any], job: dict[str, int]
) -> None:
    item = dirty(spec={"persistentVolumeReclaimPolicy": "Retain", **free}, state=job)
    assert unasked(item, Erasing(job, 1005.0, job)).seconds == 5.0
    assert unasked(item) == RECYCLE, "another process goes on with it too"


def test_a_scrub_that_has_not_begun_or_is_over_is_dropped_with_the_policy() -> None:
    for item in (kept(), kept(erased=True), kept(failed="disk error")):
        assert unasked(item).why == "the scrub is abandoned"
    assert unasked(kept(), BackendErased()).why == "the scrub is abandoned"
    assert unasked(kept(), ScrubPlan(None)).why == "the scrub is abandoned", "no pod erases it either"
