"""What `volplane explain` says of a claim: it follows from the decision that would be taken, and takes none."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from unit.attach.objects import CSI, attachment, node, pod
from unit.binding.objects import claim, storage_class, volume
from unit.deciding import NOW, StateOfTest, decide_resize, disk, state_with
from volplane.assets import ListedAsset
from volplane.attach.attach_detach import waiting_nodes
from volplane.controller.actions import Run, Settled
from volplane.controller.controller import Controller
from volplane.expand.modify import decide_modify
from volplane.explain.explain import (
    Explainer,
    Explanation,
    explain_attachment,
    what_it_does,
)
from volplane.kube import names
from volplane.kube.objects import Claim, KubeObject, VolumeAttachment
from volplane.leaks.comparison import Finding, Verdict
from volplane.operations.operation import OperationState, Phase
from volplane.schemas import Parameter, ParameterSchema

DRIVER = "disk.example.com"
KEY = "default/c"
BOUND = {"phase": "Bound"}
MARKED = {"pv.kubernetes.io/bind-completed": "yes"}


def explained(*objects: KubeObject, operations: tuple[OperationState, ...] = (), **more: Any) -> Explanation:
    return explainer(state_with(*objects, **more), operations=operations).explain("claim", KEY)


def explainer(state: StateOfTest, **more: Any) -> Explainer:
    """With the controllers of the state's role, as far as they decide without more than the state."""
    decided, expands = state.decisions, state.role.runs("expander")
    found = [
        Controller(queue="claims", cache=state.claims, decide=decided.decide_claim),
        Controller(queue="volumes", cache=state.volumes, decide=decided.decide_volume),
    ]
    if expands:
        resize = lambda key, _: decide_resize(key, state)  # noqa: E731
        modify = lambda key, reads: decide_modify(key, state, reads)  # noqa: E731
        found.append(Controller(queue="resizer", cache=state.claims, decide=resize))
        found.append(Controller(queue="modifier", cache=state.claims, decide=modify))
    if state.role.runs("attach-detach"):
        found.append(
            Controller(
                queue="attach-detach",
                cache=state.attachments,
                decide=lambda _key, _reads: Settled(),
                awaited=partial(waiting_nodes, cluster=state),
            )
        )
    return Explainer(
        cluster=state,
        controllers={each.queue: each for each in found},
        binds=state.role.runs("binder"),
        expands=expands,
        **more,
    )


def fast(**fields: Any) -> Claim:
    return claim(storageClassName="fast", **fields)


def operation(uid: str, **fields: Any) -> OperationState:
    run = Run(verb="provision", key=KEY, uid=uid, driver=DRIVER, asset="a")
    return OperationState.of(run, **{"failures": 0, "error": "", "since": 997.5, **fields})


def test_a_claim_that_does_not_exist() -> None:
    told = explained()
    assert told.situation == (f"there is no claim {KEY}",)
    assert told.next[0] == "nothing, until somebody creates it"
    assert "for a quota for example, an event FailedBinding of the pod" in told.next[1]


def test_a_class_that_does_not_exist_is_named_with_what_would_help() -> None:
    told = explained(fast())
    assert "its class fast does not exist" in told.situation
    (then,) = told.next
    assert then == 'nothing until something changes: storageclass.storage.k8s.io "fast" not found'


def test_a_class_that_is_misspelt_is_named_with_the_nearest_one() -> None:
    told = explained(fast(), storage_class("faster"), storage_class("archive"))
    assert "its class fast does not exist; did you mean 'faster'?" in told.situation


def test_the_next_write_is_told_and_not_made() -> None:
    told = explained(claim(), volume())
    assert told.next[0].startswith("a write to PersistentVolume v: ")


def test_a_class_whose_driver_is_served_leads_to_the_intent() -> None:
    told = explained(fast(), storage_class(provisioner=DRIVER), drivers=(disk(DRIVER),))
    assert f"its class fast binds Immediate and is provisioned by {DRIVER}, which is served here" in told.situation
    assert told.next == (f"a write to PersistentVolumeClaim {KEY}: declare the intent to provision",)


def test_a_driver_of_nodes_is_served_there() -> None:
    told = explained(fast(), storage_class(provisioner=DRIVER), distributed=(disk(DRIVER),))
    assert any(sentence.endswith("which is served by the processes of the nodes") for sentence in told.situation)


def test_a_driver_that_is_broken_says_why() -> None:
    told = explained(fast(), storage_class(provisioner=DRIVER), broken={DRIVER: "the disk is gone"})
    assert any("which is not usable here: the disk is gone" in sentence for sentence in told.situation)


@pytest.mark.parametrize(
    ("made", "then"),
    [
        (
            fast(),
            f"nothing here: a volume for it is {DRIVER}'s to make, and the stock kube-controller-manager's to bind",
        ),
        (claim(), "nothing here: binding is the stock kube-controller-manager's work"),
    ],
    ids=["another's class", "static"],
)
def test_beside_a_stock_binder_it_says_whose_turn_it_is(made: Claim, then: str) -> None:
    told = explained(made, storage_class(provisioner=DRIVER), binder=False)
    assert told.next == (then,)


def test_a_bound_claim_is_as_it_should_be() -> None:
    status = {**BOUND, "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    bound = claim(volumeName="v", annotations=MARKED, status=status)
    reference = {"namespace": "default", "name": "c", "uid": bound.uid, "kind": "PersistentVolumeClaim"}
    told = explained(bound, volume(claimRef=reference, status=BOUND))
    assert "it and volume v (Bound) point at each other" in told.situation
    assert told.next == ("nothing: everything is as it should be",)


def test_since_when_no_pod_has_used_a_claim_is_told() -> None:
    unused = {"type": "Unused", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    told = explained(claim(status={"phase": "Pending", "conditions": [unused]}))
    assert "no pod has used it since 2026-01-01T00:00:00Z" in told.situation
    told = explained(claim(status={"phase": "Pending", "conditions": [{**unused, "status": "False"}]}))
    assert not any("no pod" in sentence for sentence in told.situation)


def test_a_running_operation_is_told_with_its_age_and_what_follows() -> None:
    made = fast()
    running = operation(made.uid, phase=Phase.RUNNING, next_try=None)
    told = explained(made, storage_class(provisioner=DRIVER), operations=(running,))
    assert told.tried == (f"provision is running for 2.5 s on driver {DRIVER}",)
    assert told.next == ("provision ends, then this is decided anew",)


def test_a_failed_operation_is_told_with_its_error_and_the_time_of_the_next_try() -> None:
    made = fast()
    failed = operation(made.uid, phase=Phase.WAITING, failures=3, error="disk full", next_try=1008.0)
    told = explained(made, storage_class(provisioner=DRIVER), operations=(failed,))
    assert told.tried == ("provision failed 3 times, the last with: disk full",)
    assert told.next == ("provision is tried again in 8.0 s",)


def test_what_does_not_exist_is_not_found() -> None:
    cluster = state_with()
    assert not explained().found
    assert not explainer(cluster).explain("volume", "v").found
    assert not explainer(cluster).explain("class", "fast").found


def test_a_volume_says_whose_it_is_and_what_it_waits_for() -> None:
    told = explainer(state_with(volume())).explain("volume", "v")
    assert told.found
    assert told.situation[0].startswith("volume v is ")
    assert "it was made by a person: it is static" in told.situation
    assert "no claim is named by it" in told.situation
    assert told.next


def test_a_class_says_whether_its_driver_is_served_and_who_waits_for_it() -> None:
    cluster = state_with(storage_class(provisioner=DRIVER), fast(), drivers=(disk(DRIVER),))
    told = explainer(cluster).explain("class", "fast")
    assert told.situation[0] == f"class fast binds Immediate and is provisioned by {DRIVER}, which is served here"
    assert told.next == (f"claims that are not bound yet: {KEY}",)


def test_a_class_names_a_parameter_that_its_driver_does_not_know_and_the_nearest_one() -> None:
    known = ParameterSchema(parameters=(Parameter(name="tier", doc="Of the media."),))
    cluster = state_with(storage_class(parameters={"teir": "fast"}), drivers=(disk(DRIVER, parameters=known),))
    told = explainer(cluster).explain("class", "fast")
    [refused] = [each for each in told.situation if each.startswith("nothing is made for it: ")]
    assert "unknown parameter 'teir'" in refused
    assert "did you mean 'tier'?" in refused


def test_a_volume_names_its_handle_and_its_place() -> None:
    def asset(**fields: Any) -> str:
        told = explainer(state_with(volume(**fields))).explain("volume", "v").situation
        return next(each for each in told if each.startswith("its asset is "))

    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    affinity = {"required": {"nodeSelectorTerms": [term]}}
    csi = {"driver": "x.io", "volumeHandle": "vol-1"}
    assert asset(hostPath=None, csi=csi, nodeAffinity=affinity) == "its asset is vol-1, in a"
    share = {"server": "filer", "path": "/export/v"}
    noted = {"volplane.dev/handle": "h"}
    assert asset(hostPath=None, nfs=share, annotations=noted) == "its asset is h, at filer:/export/v"


def test_a_claim_that_is_being_deleted_names_its_pods() -> None:
    going = claim(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["kubernetes.io/pvc-protection"], status=BOUND)
    told = explained(going, pod("web-1"), pod("web-0"), pod("other", claim="d"))
    assert "its deletion waits for: kubernetes.io/pvc-protection; pods use it: web-0, web-1" in told.situation


def test_what_the_leak_check_found_is_told_of_volume_claim_and_what_has_no_volume() -> None:
    used = claim(volumeName="v", annotations=MARKED, status=BOUND)
    cluster = state_with(used, volume(claim=used, status=BOUND))
    listed = ListedAsset(handle="h-2", name="pvc-2", capacity_bytes=1, owner=None)
    ghost = Finding(verdict=Verdict.GHOST, driver=DRIVER, handle="h", volume="v", detail="it is not there")
    orphan = Finding(verdict=Verdict.ORPHAN, driver=DRIVER, handle="h-2", volume="", detail="nobody", listed=listed)
    about = explainer(cluster, findings=lambda: (ghost, orphan))
    said = f"the leak check calls its asset on driver {DRIVER} ghost: it is not there"
    assert said in about.explain("volume", "v").situation
    assert said in about.explain("claim", KEY).situation
    gone = about.explain("volume", "pvc-2")
    assert (gone.found, gone.situation[1:]) == (
        False,
        (f"the leak check calls its asset on driver {DRIVER} orphan: nobody",),
    )


@pytest.mark.parametrize(
    ("left", "says"),
    [(60, "it is in the trash until "), (-60, "its time in the trash is over since ")],
)
def test_a_volume_whose_time_in_the_trash_is_over_says_so(left: int, says: str) -> None:
    until = (NOW + timedelta(seconds=left)).isoformat()
    record = json.dumps({"v": 1, "claim": "uid-gone", "released": "default/gone", "until": until, "since": until})
    made = volume(
        claim=claim("gone"),
        annotations={names.PROVISIONED_BY: DRIVER, names.TRASH: "1m", names.TRASHED: record},
        finalizers=["volplane.dev/reclaim"],
        persistentVolumeReclaimPolicy="Delete",
        status={"phase": "Released"},
    )
    told = explainer(state_with(made)).explain("volume", "v")
    assert any(each.startswith(says) for each in told.situation)


def test_beside_a_stock_binder_a_claim_waits_for_its_first_consumer() -> None:
    late = storage_class(volumeBindingMode="WaitForFirstConsumer")
    told = explained(fast(), late, drivers=(disk(DRIVER),), binder=False)
    why = "waiting for first consumer: the scheduler has selected no node"
    assert told.next == (f"nothing until something changes: {why}",)


def test_names_of_logs_are_apart() -> None:
    made = fast()
    told = explained(made, storage_class(provisioner=DRIVER), operations=(operation(made.uid, phase=Phase.RUNNING),))
    [trace, name] = told.logs
    assert trace.startswith("the trace ")
    assert name == f"the operation provision-{KEY}[{made.uid}]"


def test_an_attachment_says_who_attaches_it_and_how_it_failed() -> None:
    text = (
        b'{"metadata":{"name":"a"},"spec":{"attacher":"x.io","nodeName":"n","source":{"persistentVolumeName":"v"}},'
        b'"status":{"attachError":{"time":"noon","message":"busy"}}}'
    )
    told = explain_attachment(msgspec.json.decode(text, type=VolumeAttachment))
    assert told.situation == (
        "volume v is for node n",
        "attachment a to node n waits for attacher x.io; the last try failed at noon: busy",
    )
    assert told.next == ("attacher x.io attaches it to node n",)


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        (Phase.QUEUED, "waits for its turn on driver disk.example.com for 2.5 s"),
        (Phase.OVERRUN, "waits for 2.5 s for a hook of driver disk.example.com that does not return"),
    ],
)
def test_what_waits_is_not_said_to_run(phase: Phase, words: str) -> None:
    made = fast()
    waiting = operation(made.uid, phase=phase)
    told = explained(made, storage_class(provisioner=DRIVER), operations=(waiting,))
    assert told.tried == (f"provision {words}",)
    assert what_it_does(waiting, 1000.0) == told.tried[0]


def test_what_waits_after_a_failure_says_until_when() -> None:
    failed = operation("u", phase=Phase.WAITING, failures=3, error="disk full", next_try=1008.0)
    assert what_it_does(failed, 1000.0).endswith("the last with: disk full; it is tried again in 8.0 s")


def test_a_provisioner_that_is_nearly_a_driver_is_asked_about() -> None:
    objects = (fast(), storage_class(provisioner="disk.exmple.com"))
    told = explainer(state_with(*objects), drivers=[DRIVER]).explain("claim", KEY)
    assert any(f"not a driver of this process; did you mean '{DRIVER}'?" in sentence for sentence in told.situation)
    told = explainer(state_with(*objects), drivers=["other.volplane.dev"]).explain("class", "fast")
    assert "did you mean" not in told.situation[0]


# --- growth and attributes ----------------------------------------------------------------------------------------


def growing(state: str = "", condition: dict[str, str] | None = None, **fields: Any) -> Claim:
    status: dict[str, Any] = {"phase": "Bound", "capacity": {"storage": "1Gi"}}
    if state:
        status |= {"allocatedResources": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": state}}
    if condition:
        status["conditions"] = [condition]
    return claim(size="2Gi", volumeName="v", status=status, annotations=MARKED, **fields)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("", "nothing has been done towards it yet"),
        ("ControllerResizeInProgress", "the asset is being grown to 2Gi (slowly)"),
        (
            "ControllerResizeInfeasible",
            "the backend refuses 2Gi (slowly); ask for less, yet more than it has",
        ),
        ("NodeResizePending", "the asset has 2Gi; the node grows the file system when a pod uses the volume there"),
        ("NodeResizeInProgress", "the asset has 2Gi; the node is growing the file system"),
        ("NodeResizeInfeasible", "the asset has 2Gi, but the node cannot grow the file system"),
    ],
)
def test_each_stage_of_growth_is_told(state: str, words: str) -> None:
    made = growing(state, {"type": "ControllerResizeError", "message": "slowly"})
    told = explained(made, volume(claim=made, size="1Gi", status={"phase": "Bound"}))
    assert f"it asks for 2Gi and has 1Gi: {words}" in told.situation
    assert "nothing: everything is as it should be" not in told.next


def test_growth_that_no_driver_can_give_is_no_peace() -> None:
    made = growing()
    its = volume(
        claim=made,
        size="1Gi",
        annotations={"pv.kubernetes.io/provisioned-by": DRIVER},
        status={"phase": "Bound"},
    )
    told = explained(made, its, drivers=(disk(DRIVER),))
    assert any(f'driver "{DRIVER}" cannot grow volumes' in sentence for sentence in told.next)


def test_attributes_that_are_asked_for_are_told() -> None:
    made = claim(volumeName="v", volumeAttributesClassName="fast", status=BOUND, annotations=MARKED)
    told = explained(made, volume(claim=made, status=BOUND))
    assert any("it asks for the attributes of VolumeAttributesClass fast" in sentence for sentence in told.situation)


def test_what_a_claim_waits_for_may_be_its_attachment() -> None:
    status = {**BOUND, "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    used = claim(volumeName="v", annotations=MARKED, status=status)
    csi = {"driver": "x.io", "volumeHandle": "h"}
    source = {"persistentVolumeName": "v"}
    waiting = msgspec.convert(
        {"metadata": {"name": "a", "uid": "u-a"}, "spec": {"attacher": "x.io", "nodeName": "n", "source": source}},
        VolumeAttachment,
    )
    objects = (used, volume(claim=used, csi=csi, hostPath=None, status=BOUND), waiting)
    assert explained(*objects).next == ("attacher x.io attaches it to node n",)
    run = Run(verb="attach", key="a", uid="u-a", driver="x.io", asset="v")
    failed = OperationState.of(run, phase=Phase.WAITING, failures=3, error="busy", since=997.5, next_try=1004.0)
    told = explained(*objects, operations=(failed,))
    assert told.tried == ("attach failed 3 times, the last with: busy",)
    assert told.next == ("attach is tried again in 4.0 s",)


def test_a_claim_whose_pod_waits_for_another_node_is_not_as_it_should_be() -> None:
    status = {**BOUND, "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    used = claim(volumeName="v", annotations=MARKED, status=status)
    made = volume(claim=used, csi={"driver": CSI, "volumeHandle": "h-1"}, hostPath=None, status=BOUND)
    held = attachment("node-a", attached=True)
    told = explained(used, made, node(), node("node-b"), pod(), pod("q", "node-b"), held, attach_detach=True)
    waits = "it is attached to node-a, and may be on one node at a time"
    assert f"node node-b, where a pod needs it, waits for it: {waits}" in told.situation
    assert told.next == ("nothing until something changes",)
    assert not any("waits for it" in each for each in explained(used, made, node(), pod(), held).situation)


def test_an_operation_that_goes_on_says_how_far_it_is() -> None:
    run = Run(verb="provision", key=KEY, uid="u", driver=DRIVER, asset="a", progress="3 of 10 GiB are copied")
    state = OperationState.of(run, None, phase=Phase.RUNNING, since=1.0)
    assert what_it_does(state, 3.0) == f"provision is running for 2.0 s on driver {DRIVER}; 3 of 10 GiB are copied"
