"""The next step of a scrub, whatever intent and pod it finds."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from unit.binding.objects import volume
from unit.deciding import HOOKS, NOW, disk, read, state_with
from unit.reclaim.scrubbing import (
    DISK,
    GONE,
    INTENT,
    OURS,
    RECYCLE,
    SEALER,
    body_of,
    decided,
    dirty,
    noted,
    pod_of,
    whole,
    with_record,
)
from volplane.assets import PodScrub
from volplane.controller.actions import Create, Delete, Patch, Read, Wait
from volplane.controller.config import ScrubberSettings
from volplane.kube.kinds import LEASES, PODS, VOLUMES, WHOLE_PODS
from volplane.kube.objects import Lease, Pod, Volume
from volplane.reclaim.scrub_pod import SCRUB_GATE, Unmountable, pod_body, pod_name, scrub_deadline
from volplane.state.cluster_state import ClusterState
from volplane.state.progress import Erasing
from volplane.state.records import INTENT_VERSION, RecycleIntent, ScrubPlan, Sealer

BODY = body_of(dirty())["spec"]
DEMANDED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize("text", ["", "no json", "{}", '{"v":1}', '{"v":1,"claim":"uid-another"}'])
def test_a_damaged_or_foreign_intent_is_declared_anew(text: str) -> None:
    """To begin from the beginning is always safe."""
    assert noted(decided(with_record(text))) == RecycleIntent(v=INTENT_VERSION, claim=GONE.uid)


def test_first_the_driver_says_how() -> None:
    run = decided(dirty())
    assert run == RECYCLE


def test_a_long_scrub_is_written_down_and_waited_for() -> None:
    made = state_with(drivers=(DISK,))
    made.progress.volumes.track("uid-v").succeeded(Erasing({"part": 1}, due=1005.0))
    assert noted(decided(dirty(), made=made)).state == {"part": 1}
    again = state_with(drivers=(DISK,))
    again.progress.volumes.track("uid-v").succeeded(Erasing({"part": 1}, due=1005.0))
    assert decided(dirty(state={"part": 1}), made=again).seconds == 5.0
    assert decided(dirty(state={"part": 1})) == RECYCLE, "another process goes on with it"
    other = state_with(drivers=(DISK,))
    other.progress.volumes.track("uid-v").succeeded(Erasing({"part": 1}, 1005.0, None))
    assert decided(dirty(state={"part": 2}), made=other).seconds == 5.0, "another process wrote its state meanwhile"


def planned() -> ClusterState:
    made = state_with(drivers=(DISK,))
    made.progress.volumes.track("uid-v").step = ScrubPlan(PodScrub().volume)
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
    asks = decided(permitted, pod_of(permitted, gated=True))
    assert asks == Read(WHOLE_PODS, f"{OURS}/{pod_name(permitted)}", "is it the pod that was made?")
    lift = decided(permitted, pod_of(permitted, gated=True), reads=whole(permitted))
    assert lift.kind is PODS
    assert lift.body == {"spec": {"schedulingGates": []}}


def test_a_gate_that_is_lifted_already_is_not_lifted_again_while_the_cache_still_shows_it() -> None:
    """Found by the simulation: the write was answered with 500 after it had taken effect."""
    permitted = dirty(pod="uid-pod")
    step = decided(permitted, pod_of(permitted, gated=True), reads=whole(permitted, schedulingGates=[]))
    assert isinstance(step, Wait)


def test_a_pod_of_an_earlier_release_or_attempt_is_deleted_by_its_uid_and_proves_nothing() -> None:
    item = dirty(pod="uid-pod", attempt=2)
    gone = decided(item, pod_of(dirty(pod="uid-pod"), phase="Succeeded"))
    assert isinstance(gone, Delete)
    assert gone.target.uid == "uid-pod"


def test_a_scrubber_pod_is_removed_with_its_own_grace_period() -> None:
    """Without one its object is gone before its node has stopped it, and it may still erase."""
    gone = decided(dirty(erased=True), pod_of(dirty(), phase="Succeeded"))
    assert isinstance(gone, Delete)
    assert gone.grace_seconds is None


FORGED = [
    {"annotations": {"volplane.dev/scrub-volume-uid": "another"}},
    {"annotations": {"volplane.dev/scrub-claim-uid": "another"}},
    {"annotations": {"volplane.dev/scrub-source": "another"}},
    {"annotations": {"volplane.dev/scrub-attempt": "2"}},
    {"annotations": {"volplane.dev/scrub-spec": "{}"}},
    {"annotations": {"volplane.dev/scrub-seal": ""}},
    {"annotations": {"volplane.dev/scrub-seal": "ä"}},
    {"sealer": Sealer(b"another key of 32 bytes for this")},
]


@pytest.mark.parametrize("changes", FORGED)
@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded"])
def test_a_pod_that_we_did_not_make_is_noted_then_deleted_and_proves_nothing(changes: Any, phase: str) -> None:
    item = dirty(pod="uid-pod")
    note = noted(decided(item, pod_of(item, phase=phase, **changes)))
    assert note.strangers == ("uid-pod",)
    assert not note.failed
    known = dirty(pod="uid-pod", strangers=("uid-pod",))
    gone = decided(known, pod_of(item, phase=phase, **changes))
    assert isinstance(gone, Delete)
    assert gone.target.uid == "uid-pod"


def test_a_pod_that_runs_without_a_permit_is_deleted() -> None:
    for item in (dirty(strangers=("uid-pod",)), dirty(pod="uid-of-another-pod", strangers=("uid-pod",))):
        assert isinstance(decided(item, pod_of(item, phase="Succeeded")), Delete)


def test_a_place_that_is_taken_again_and_again_fails_the_attempt() -> None:
    """Whatever strips seals or gates would otherwise be answered with a new pod for ever."""
    item = dirty(strangers=("a", "b", "c"))
    failed = noted(decided(item, pod_of(item, phase="Succeeded"))).failed
    assert "is replaced again and again: it started without a permit" in failed


@pytest.mark.parametrize(
    ("difference", "spec"),
    [
        ("container 'istio-proxy' was added", {"containers": [*BODY["containers"], {"name": "istio-proxy"}]}),
        ("init container 'wait' was added", {"initContainers": [{"name": "wait", "image": "x"}]}),
        ("volume 'host' was added", {"volumes": [*BODY["volumes"], {"name": "host", "hostPath": {"path": "/"}}]}),
        ("image changed of container 'scrub'", {"containers": [BODY["containers"][0] | {"image": "evil"}]}),
        ("command changed of container 'scrub'", {"containers": [BODY["containers"][0] | {"command": ["true"]}]}),
        ("env added of container 'scrub'", {"containers": [BODY["containers"][0] | {"env": [{"name": "PATH"}]}]}),
        (
            "securityContext removed of container 'scrub'",
            {"containers": [BODY["containers"][0] | {"securityContext": {}}]},
        ),
        ("hostPath changed of volume 'volume'", {"volumes": [{"name": "volume", "hostPath": {"path": "/other"}}]}),
        ("hostPID was added", {"hostPID": True}),
        ("securityContext was added", {"securityContext": {"runAsUser": 7}}),
        ("automountServiceAccountToken was removed", {"automountServiceAccountToken": None}),
        ("nodeAffinity was added", {"affinity": {"nodeAffinity": {DEMANDED: {"nodeSelectorTerms": [{}]}}}}),
    ],
)
@pytest.mark.parametrize("gated", [True, False])
def test_a_pod_that_was_changed_fails_the_scrub_once_with_an_event(difference: str, spec: Any, gated: bool) -> None:
    """Before it starts; and its success is not believed, if it was changed later."""
    item = dirty(pod="uid-pod")
    action = decided(
        item, pod_of(item, gated=gated, phase="Pending" if gated else "Succeeded"), reads=whole(item, **spec)
    )
    note = noted(action)
    assert note.given_up
    assert not note.erased
    assert f"the recycler pod is not as volplane made it: {difference}; exempt namespace {OURS}" in note.failed
    given_up = dirty(pod="uid-pod", failed=note.failed, given_up=True)
    told = decided(given_up, pod_of(item, gated=gated))
    (event,) = told.events
    assert (event.type, event.reason) == ("Warning", "VolumeFailedRecycle")
    body = msgspec.to_builtins(given_up)
    status = {key: value for key, value in told.body["status"].items() if value is not None}
    shown = msgspec.convert({**body, "status": status}, Volume)
    assert isinstance(decided(shown, pod_of(item, gated=gated)), Delete), "what was injected does not stay"
    assert isinstance(decided(shown), Wait)


def test_what_the_api_server_fills_in_is_no_change() -> None:
    """As a real server stores the pod: defaults, the service account, priority, tolerations of the default plugins."""
    item = dirty(pod="uid-pod")
    container = BODY["containers"][0] | {
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePath": "/dev/termination-log",
        "resources": {"limits": {"cpu": "1"}},
    }
    stored = {
        "containers": [container],
        "volumes": [BODY["volumes"][0]],
        "dnsPolicy": "ClusterFirst",
        "nodeName": "n1",
        "preemptionPolicy": "PreemptLowerPriority",
        "priority": 0,
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "serviceAccount": "default",
        "serviceAccountName": "default",
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        "schedulingGates": None,
        "hostNetwork": None,
        "affinity": {"podAntiAffinity": {}, "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}},
    }
    assert noted(decided(item, pod_of(item, phase="Succeeded"), reads=whole(item, **stored))).erased


def test_a_pod_that_is_replaced_between_two_looks_is_looked_at_again() -> None:
    item = dirty(pod="uid-pod")
    gone = read(WHOLE_PODS, f"{OURS}/{pod_name(item)}")
    assert isinstance(decided(item, pod_of(item, phase="Succeeded"), reads=gone), Wait)


@pytest.mark.parametrize("phase", ["", "Pending", "Running"])
def test_a_permitted_pod_is_waited_for(phase: str) -> None:
    item = dirty(pod="uid-pod")
    assert isinstance(decided(item, pod_of(item, phase=phase)), Wait)


def test_success_is_noted_then_the_pod_goes_then_the_volume_is_offered() -> None:
    item = dirty(pod="uid-pod")
    assert noted(decided(item, pod_of(item, phase="Succeeded"), reads=whole(item))).erased
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
        pod_body(item, intent, ScrubPlan(None), ScrubberSettings(), namespace=OURS, sealer=SEALER)


def test_the_pod_is_what_the_operator_configured_within_the_sandbox() -> None:
    intent = RecycleIntent(v=INTENT_VERSION, claim="c")
    settings = ScrubberSettings(
        image="registry.example.com/scrub:1",
        command=("/bin/scrub",),
        resources={"limits": {"memory": "64Mi"}},
        tolerations=({"operator": "Exists"},),
        template={"spec": {"priorityClassName": "low", "containers": [{"securityContext": {"runAsUser": 1000}}]}},
    )
    pod = pod_body(volume(claim=GONE), intent, ScrubPlan(None), settings, namespace=OURS, sealer=SEALER)
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


# --- another leader -----------------------------------------------------------------------------------------------

OURS_NOW, FORMER = "3/us/lease-b", "7/them/lease-a"
LEASE = f"{OURS}/volplane"


def leading(fence: str = OURS_NOW, **more: Any) -> ClusterState:
    """The state of a process that holds a Lease, as far as it knows."""
    made = state_with(drivers=(DISK,), lease=LEASE, **more)
    made.fence = lambda: fence
    return made


def lease(transitions: int = 3, holder: str = "us", uid: str = "lease-b") -> Lease:
    spec = {"holderIdentity": holder, "leaseTransitions": transitions}
    meta = {"name": "volplane", "namespace": OURS, "uid": uid, "resourceVersion": "9"}
    return msgspec.convert({"metadata": meta, "spec": spec}, Lease)


HOW_FAR = pytest.mark.parametrize(
    "intent", [{}, {"failed": "disk error"}, {"erased": True}], ids=["at work", "failed", "erased"]
)


@HOW_FAR
def test_before_a_scrub_is_taken_over_our_lease_is_read_live(intent: dict[str, Any]) -> None:
    step = decided(dirty(fence=FORMER, **intent), made=leading())
    assert step == Read(LEASES, LEASE, why="is this process still the leader?")


@HOW_FAR
def test_a_leader_takes_a_scrub_over_whatever_term_began_it(intent: dict[str, Any]) -> None:
    """The Lease was made anew: its count of leaders is lower than the one that began the scrub."""
    step = decided(dirty(fence=FORMER, **intent), reads=read(LEASES, LEASE, lease()), made=leading())
    assert noted(step) == RecycleIntent(v=INTENT_VERSION, claim=GONE.uid, fence=OURS_NOW, **intent)


@pytest.mark.parametrize("found", [None, lease(holder="them"), lease(transitions=4), lease(uid="lease-c")])
def test_who_does_not_lead_any_more_takes_nothing_over(found: Lease | None) -> None:
    step = decided(dirty(fence=FORMER), reads=read(LEASES, LEASE, found), made=leading())
    assert step == Wait(reason="another process leads now", seconds=1.0)


def test_without_election_a_scrub_of_an_elected_leader_is_taken_over() -> None:
    assert noted(decided(dirty(fence=FORMER))).fence == ""


def test_an_own_scrub_goes_on_without_a_look_at_the_lease() -> None:
    assert decided(dirty(fence=OURS_NOW), made=leading()) == RECYCLE


@pytest.mark.parametrize(("found", "expected"), [(lease(), Patch), (lease(holder="them"), Wait)])
def test_a_scrub_is_abandoned_by_its_leader_only(found: Lease, expected: type[Any]) -> None:
    item = dirty(fence=FORMER)
    item = msgspec.structs.replace(
        item, spec=msgspec.structs.replace(item.spec, persistent_volume_reclaim_policy="Retain")
    )
    assert isinstance(decided(item, made=leading()), Read)
    assert isinstance(decided(item, reads=read(LEASES, LEASE, found), made=leading()), expected)
