"""The next step of a scrub, whatever intent and pod it finds."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from unit.binding.objects import claim, volume
from unit.deciding import HOOKS, NOW, disk, put, read, state_with
from volplane.assets import PodScrub
from volplane.controller.actions import Create, Delete, LiveReads, Patch, Read, Run, Wait
from volplane.controller.config import ScrubberSettings
from volplane.kube.kinds import CLAIMS, PODS, VOLUMES
from volplane.kube.objects import Pod, Volume
from volplane.reclaim.scrub_pod import SCRUB_GATE, Unmountable, pod_body, pod_name, scrub_deadline
from volplane.reconcile.volumes import decide_volume
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import asset_key
from volplane.state.progress import Erasing, ScrubPlan
from volplane.state.records import INTENT_VERSION, RecycleIntent, read_recycle_intent, write_intent

INTENT = "volplane.dev/intent"
GONE = claim("gone")
DISK = disk()
OURS = "volplane-system"


def dirty(**intent: Any) -> Volume:
    """A released volume with this intent."""
    text = write_intent(RecycleIntent(v=INTENT_VERSION, **{"claim": GONE.uid, **intent}))
    return _with(text)


def _with(text: str) -> Volume:
    marks = {INTENT: text, "pv.kubernetes.io/bound-by-controller": "yes"}
    failed = {"phase": "Failed", "message": "Recycle failed: failed to recycle volume: disk error"}
    status = failed if '"failed"' in text else {"phase": "Released"}
    return volume(claim=GONE, annotations=marks, persistentVolumeReclaimPolicy="Recycle", status=status)


def pod_of(item: Volume, *, gated: bool = False, phase: str = "Pending", **changes: Any) -> Pod:
    """The pod that we would make for this volume and intent, as the server has it."""
    intent = read_recycle_intent(item.annotation(INTENT))
    assert intent is not None
    body = pod_body(item, intent, ScrubPlan(None), ScrubberSettings(), OURS)
    body["metadata"] |= {"uid": "uid-pod", "resourceVersion": "1"}
    body["metadata"]["annotations"] = {**body["metadata"]["annotations"], **changes.pop("annotations", {})}
    body["metadata"] |= changes
    body["spec"]["schedulingGates"] = [{"name": SCRUB_GATE}] if gated else []
    return msgspec.convert({**body, "status": {"phase": phase}}, Pod)


def decided(item: Volume, *pods: Pod, reads: LiveReads | None = None, made: ClusterState | None = None) -> Any:
    into = made or state_with(drivers=(DISK,))
    put(into, item, *pods)
    known = reads or LiveReads()
    known.put(CLAIMS, "default/gone", None)
    return decide_volume("v", into, known)


def noted(action: Any) -> RecycleIntent:
    assert isinstance(action, Patch), action
    assert action.kind is VOLUMES
    intent = read_recycle_intent(action.body["metadata"]["annotations"][INTENT])
    assert intent is not None
    return intent


@pytest.mark.parametrize("text", ["", "no json", "{}", '{"v":1}', '{"v":1,"claim":"uid-another"}'])
def test_a_damaged_or_foreign_intent_is_declared_anew(text: str) -> None:
    """To begin from the beginning is always safe."""
    assert noted(decided(_with(text))) == RecycleIntent(v=INTENT_VERSION, claim=GONE.uid)


def test_first_the_driver_says_how() -> None:
    run = decided(dirty())
    assert run == RECYCLE


RECYCLE = Run(verb="recycle", key="v", uid="uid-v", driver=DISK.name, asset=asset_key(volume()), group="recycle ")


def test_a_long_scrub_is_written_down_and_waited_for() -> None:
    made = state_with(drivers=(DISK,))
    made.progress.track_volume("uid-v").succeeded(Erasing({"part": 1}, due=1005.0))
    assert noted(decided(dirty(), made=made)).state == {"part": 1}
    again = state_with(drivers=(DISK,))
    again.progress.track_volume("uid-v").succeeded(Erasing({"part": 1}, due=1005.0))
    assert decided(dirty(state={"part": 1}), made=again).seconds == 5.0
    assert decided(dirty(state={"part": 1})) == RECYCLE, "another process goes on with it"


def planned() -> ClusterState:
    made = state_with(drivers=(DISK,))
    made.progress.track_volume("uid-v").step = ScrubPlan(PodScrub().volume)
    return made


def test_a_pod_is_made_after_a_live_look_and_behind_its_gate() -> None:
    key = f"{OURS}/{pod_name(dirty())}"
    assert decided(dirty(), made=planned()) == Read(PODS, key, "does a pod of this name exist?")
    create = decided(dirty(), made=planned(), reads=read(PODS, key))
    assert isinstance(create, Create)
    assert create.body["spec"]["schedulingGates"] == [{"name": SCRUB_GATE}]


def test_the_pod_is_permitted_after_a_live_look_at_the_volume_and_then_let_go() -> None:
    item = dirty()
    assert isinstance(decided(item, pod_of(item, gated=True)), Read)
    assert noted(decided(item, pod_of(item, gated=True), reads=read(VOLUMES, "v", item))).pod == "uid-pod"
    permitted = dirty(pod="uid-pod")
    lift = decided(permitted, pod_of(permitted, gated=True))
    assert lift.kind is PODS
    assert lift.body == {"spec": {"schedulingGates": []}}


@pytest.mark.parametrize(
    "changes",
    [
        {"annotations": {"volplane.dev/scrub-volume-uid": "another"}},
        {"annotations": {"volplane.dev/scrub-claim-uid": "another"}},
        {"annotations": {"volplane.dev/scrub-source": "another"}},
        {"annotations": {"volplane.dev/scrub-attempt": "2"}},
    ],
)
@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded"])
def test_a_pod_for_anything_else_is_deleted_by_its_uid_and_proves_nothing(changes: Any, phase: str) -> None:
    item = dirty(pod="uid-pod")
    gone = decided(item, pod_of(item, phase=phase, **changes))
    assert isinstance(gone, Delete)
    assert gone.target.uid == "uid-pod"


def test_a_pod_that_runs_without_a_permit_is_deleted() -> None:
    item = dirty()
    assert isinstance(decided(item, pod_of(item, phase="Succeeded")), Delete)
    other = dirty(pod="uid-of-another-pod")
    assert isinstance(decided(other, pod_of(other, phase="Succeeded")), Delete)


@pytest.mark.parametrize("phase", ["", "Pending", "Running"])
def test_a_permitted_pod_is_waited_for(phase: str) -> None:
    item = dirty(pod="uid-pod")
    assert isinstance(decided(item, pod_of(item, phase=phase)), Wait)


def test_success_is_noted_then_the_pod_goes_then_the_volume_is_offered() -> None:
    item = dirty(pod="uid-pod")
    assert noted(decided(item, pod_of(item, phase="Succeeded"))).erased
    clean = dirty(pod="uid-pod", erased=True)
    assert isinstance(decided(clean, pod_of(clean, phase="Succeeded")), Delete)
    offered = decided(clean)
    assert offered.body["spec"] == {"claimRef": None}
    assert offered.body["metadata"]["annotations"][INTENT] is None
    assert [event.reason for event in offered.events] == ["VolumeRecycled"]


def test_a_permitted_pod_that_vanished_is_a_failed_attempt() -> None:
    assert noted(decided(dirty(pod="uid-pod"))).failed == "recycler pod was deleted"


def test_after_a_failure_the_pod_goes_a_pause_is_noted_and_the_next_attempt_begins() -> None:
    failed = dirty(pod="uid-pod", failed="disk error")
    assert isinstance(decided(failed, pod_of(failed, phase="Failed")), Delete)
    pause = noted(decided(failed))
    assert pause.not_before == NOW.timestamp() + 2.0
    waiting = decided(dirty(failed="disk error", not_before=NOW.timestamp() + 2.0))
    assert isinstance(waiting, Wait)
    assert waiting.seconds == 2.0
    again = noted(decided(dirty(failed="disk error", not_before=NOW.timestamp() - 1.0)))
    assert again == RecycleIntent(v=INTENT_VERSION, claim=GONE.uid, attempt=2)


def test_a_clock_that_was_put_back_does_not_put_off_the_next_attempt() -> None:
    tomorrow = NOW.timestamp() + 86400.0
    assert noted(decided(dirty(failed="disk error", not_before=tomorrow))).attempt == 2


@pytest.mark.parametrize(
    "source",
    [
        {"hostPath": {}},
        {"hostPath": {"path": 7}},
        {"local": {"path": None}},
        {"nfs": {"server": "s"}},
        {"nfs": {"path": "/x", "server": ["s"]}},
        {"csi": {"driver": 7}},
        {"flexVolume": {}},
    ],
)
def test_a_source_that_lacks_what_a_pod_needs_is_said_to_be_unmountable(source: dict[str, Any]) -> None:
    item = msgspec.convert(
        {"metadata": {"name": "v", "uid": "u"}, "spec": {**source, "capacity": {"storage": "1Gi"}}}, Volume
    )
    intent = RecycleIntent(v=INTENT_VERSION, claim="c")
    with pytest.raises(Unmountable, match=next(iter(source))):
        pod_body(item, intent, ScrubPlan(None), ScrubberSettings(), OURS)


def test_the_pod_is_what_the_operator_configured_within_the_sandbox() -> None:
    intent = RecycleIntent(v=INTENT_VERSION, claim="c")
    settings = ScrubberSettings(
        image="registry.example.com/scrub:1",
        command=("/bin/scrub",),
        resources={"limits": {"memory": "64Mi"}},
        tolerations=({"operator": "Exists"},),
        template={"spec": {"priorityClassName": "low", "containers": [{"securityContext": {"runAsUser": 1000}}]}},
    )
    pod = pod_body(volume(claim=GONE), intent, ScrubPlan(None), settings, OURS)
    [container] = pod["spec"]["containers"]
    assert (container["image"], container["command"]) == ("registry.example.com/scrub:1", ["/bin/scrub"])
    assert container["resources"] == {"limits": {"memory": "64Mi"}}
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert pod["spec"]["priorityClassName"] == "low"
    assert pod["spec"]["schedulingGates"] == [{"name": SCRUB_GATE}]
    assert container["securityContext"] == {
        "runAsUser": 1000,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE", "FOWNER"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


@pytest.mark.parametrize("size", ["1Gi", "0", "0.5", "16Ei", "1e300"])
def test_a_scrub_of_any_size_has_a_deadline_that_the_server_takes(size: str) -> None:
    item = volume(claim=GONE, capacity={"storage": size})
    assert 60 <= scrub_deadline(item, ScrubberSettings()) < 2**31


def test_after_the_last_attempt_a_person_decides() -> None:
    last = noted(decided(dirty(failed="disk error", attempt=3)))
    assert last.given_up
    assert "attempt 3 of 3, the last" in last.failed
    after = decided(dirty(failed=last.failed, attempt=3, given_up=True))
    assert isinstance(after, Patch)
    assert f"remove the annotation {INTENT} to try again" in after.body["status"]["message"]


def test_an_intent_is_kept_small() -> None:
    """A volume's annotations have a limit, and a pod may say much."""
    long = {"exitCode": 1, "message": "x" * 10_000}
    item = dirty(pod="uid-pod")
    body = msgspec.to_builtins(pod_of(item, phase="Failed"))
    body["status"]["containerStatuses"] = [{"name": "scrub", "state": {"terminated": long}}]
    told = decided(item, msgspec.convert(body, Pod))
    assert len(json.dumps(told.body)) < 2000


def test_a_pod_that_nobody_seems_to_wait_for_is_removed_only_after_a_live_look_at_its_volume() -> None:
    """Found by the simulation: a leader whose cache was behind removed the pods of another one, attempt after
    attempt.
    """
    pod = pod_of(dirty())
    clean = volume(claim=GONE, persistentVolumeReclaimPolicy="Recycle", status={"phase": "Released"})
    asks = decided(clean, pod)
    assert isinstance(asks, Read)
    assert (asks.kind, asks.key) == (VOLUMES, "v")
    removed = decided(clean, pod, reads=read(VOLUMES, "v"))
    assert isinstance(removed, Delete)
    assert removed.target.metadata.uid == "uid-pod"


def test_a_driver_that_cannot_erase_is_not_asked_again_and_again() -> None:
    """Found by the simulation: the call failed every five minutes, for ever."""
    rigid = disk(hooks=HOOKS - {"recycle"})
    action = decided(dirty(), made=state_with(drivers=(rigid,)))
    assert action.body["status"]["phase"] == "Failed"
    assert "cannot erase volumes; set the reclaim policy to Retain or Delete" in action.body["status"]["message"]
    body = msgspec.to_builtins(dirty())
    status = {key: value for key, value in action.body["status"].items() if value is not None}
    told = msgspec.convert({**body, "status": status}, Volume)
    assert isinstance(decided(told, made=state_with(drivers=(rigid,))), Wait)
