"""What is decided about a volume on a node, and about the report of a node."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from unit.attach.objects import CSI, FINALIZER, OTHER, PAIR, UNIQUE, attachment, bound, node, pod
from unit.binding.objects import claim, volume
from unit.deciding import disk, read, state_with
from volplane.attach.attach_detach import (
    DELETION_LASTS,
    AttachDetach,
    AttachDetachState,
    Decision,
    decide_pair,
    waiting_nodes,
)
from volplane.attach.attacher import decide_attachment, intent_of
from volplane.attach.desired import Pair
from volplane.controller.actions import Create, Delete, LiveReads, Patch, Read, Run, Settled, Wait
from volplane.controller.metrics import Metrics
from volplane.kube import names
from volplane.kube.kinds import NODES, VOLUMES
from volplane.kube.objects import Claim, CsiDriver, CsiDriverSpec, KubeObject, Metadata, Pod, Volume, VolumeAttachment
from volplane.state.records import write_intent

NEEDS_NONE = CsiDriver(metadata=Metadata(name=CSI), spec=CsiDriverSpec(attach_required=False))


def world(
    *objects: KubeObject,
    unwanted_for: float | None = None,
    force: bool = True,
    attaches_here: bool = False,
    **more: Any,
) -> AttachDetachState:
    """unwanted_for: seconds since which nobody wants PAIR."""
    after = 360.0 if force else None
    state = AttachDetachState(state_with(*objects, **more), force_detach_after=after, attaches_here=attaches_here)
    if unwanted_for is not None:
        state.unwanted[PAIR.key] = state.cluster.monotonic() - unwanted_for
    return state


def decided(*objects: KubeObject, pair: Pair = PAIR, reads: LiveReads | None = None, **more: Any) -> Decision:
    return decide_pair(pair, world(*objects, **more), reads or LiveReads())


def followed(*objects: KubeObject) -> AttachDetachState:
    """A world whose changes the handlers see."""
    state = world(*objects)
    state.cluster.follow(AttachDetach(state, pairs=Keys(), nodes=Keys()))
    return state


class Keys:
    """A queue that keeps what is put into it."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.afters: list[float] = []

    def enqueue(self, key: str, after: float = 0.0) -> None:
        self.keys.append(key)
        self.afters.append(after)


def newer(item: KubeObject, version: int) -> Metadata:
    return replace(item.metadata, resource_version=str(version))


def recorded_for(name: str, handle: str) -> dict[str, str]:
    """Annotations of an attachment of this volume, which has this handle."""
    made = volume(name, csi={"driver": CSI, "volumeHandle": handle}, hostPath=None)
    attaching = disk(CSI, csi_driver_name=CSI, attach_required=True)
    return {names.INTENT: write_intent(intent_of(made, attaching, "uid-node-b", "test"))}


IN_TREE = Pair("node-a", "kubernetes.io/csi/ebs.csi.aws.com^vol-1")


def in_tree() -> tuple[Claim, Volume, VolumeAttachment]:
    """A claim, its volume with an in-tree source, and an attachment through a volume of that disk that is gone."""
    attacher = "ebs.csi.aws.com"
    disk_id = {"volumeID": "aws://us-east-1a/vol-1"}
    source: Any = {"awsElasticBlockStore": disk_id, "hostPath": None, "accessModes": ["ReadWriteOnce"]}
    ours = disk(attacher, csi_driver_name=attacher, attach_required=True)
    recorded = {names.INTENT: write_intent(intent_of(volume("gone", **source), ours, "uid-node-b", "test"))}
    used = claim("c", volumeName="v", status={"phase": "Bound"})
    through = attachment("node-b", attached=True, volume="gone", attacher=attacher, annotations=recorded)
    return used, volume("v", claim=used, **source), through


def told(decision: Decision) -> list[str]:
    assert isinstance(decision.action, Wait | Settled)
    return [event.message for event in decision.action.events]


# --- wanted -------------------------------------------------------------------------------------------------------


def test_a_pod_on_a_node_gets_an_attachment_with_the_stock_name() -> None:
    action = decided(*bound(), node(), pod()).action
    assert isinstance(action, Create)
    assert action.body["metadata"]["name"] == PAIR.attachment
    assert action.body["metadata"]["annotations"] == {names.NODE_UID: "uid-node-a"}
    assert action.body["spec"] == {"attacher": CSI, "nodeName": "node-a", "source": {"persistentVolumeName": "v"}}


def test_an_attachment_for_the_attacher_beside_it_has_its_finalizer_and_record_from_the_start() -> None:
    attaching = disk(CSI, csi_driver_name=CSI, attach_required=True)
    state = world(*bound(), node(), pod(), drivers=[attaching], attaches_here=True)
    action = decide_pair(PAIR, state, LiveReads()).action
    assert isinstance(action, Create)
    made = msgspec.convert({**action.body, "metadata": {**action.body["metadata"], "uid": "u"}}, VolumeAttachment)
    assert made.metadata.finalizers == [FINALIZER]
    assert made.annotation(names.NODE_UID) == "uid-node-a"
    state.cluster.attachments.observe(made)
    assert isinstance(decide_attachment(made.key, state.cluster, LiveReads()), Run), "nothing else is to be declared"


@pytest.mark.parametrize(
    ("change", "here"),
    [({"attach_required": False}, True), ({"csi_driver_name": "other.example.com"}, True), ({}, False)],
)
def test_an_attachment_for_others_has_what_the_stock_controller_writes(change: dict[str, Any], *, here: bool) -> None:
    other = disk(CSI, **{"csi_driver_name": CSI, "attach_required": True, **change})
    action = decided(*bound(), node(), pod(), drivers=[other], attaches_here=here).action
    assert isinstance(action, Create)
    assert action.body["metadata"] == {"name": PAIR.attachment, "annotations": {names.NODE_UID: "uid-node-a"}}


def test_a_failure_to_detach_is_counted_once_and_its_next_one_again() -> None:
    metrics, going = Metrics(), {"attached": True, "deleted": True}
    state = world(*bound(), node())
    controller = AttachDetach(state, pairs=Keys(), nodes=Keys(), metrics=metrics)

    def failures(time: str) -> str:
        failed = attachment(**going, detach_error="busy")
        error = replace(failed.status.detach_error, time=time)  # type: ignore[type-var]
        shown = replace(failed, status=replace(failed.status, detach_error=error), metadata=newer(failed, len(time)))
        state.cluster.attachments.observe(shown)
        for _ in range(3):
            controller.reconcile_pair(PAIR.key, LiveReads())
        lines = [line for line in metrics.exposition().decode().splitlines() if "volume_detach" in line]
        seconds, number = (next(line for line in lines if f"seconds_{what}" in line) for what in ("sum", "count"))
        took = state.cluster.seconds_since(failed.metadata.deletion_timestamp)
        assert float(seconds.rpartition(" ")[2]) == took * float(number.rpartition(" ")[2])
        return number.rpartition(" ")[2]

    assert failures("first") == "1.0"
    assert failures("second") == "2.0"


def test_the_attachment_of_a_former_machine_is_deleted_though_the_volume_is_wanted() -> None:
    record = intent_of(bound()[1], disk(CSI, csi_driver_name=CSI, attach_required=True), "uid-node-a", "test")
    known = {names.NODE_UID: "uid-node-a", names.NODE_ID: "aws:///z/node-a", names.INTENT: write_intent(record)}
    left = attachment(attached=True, annotations=known)
    state = world(*bound(), node(uid="new", provider_id="aws:///z/i-2"), pod(), left)
    controller = AttachDetach(state, pairs=Keys(), nodes=Keys())
    action = controller.reconcile_pair(PAIR.key, LiveReads())
    assert isinstance(action, Delete), action
    assert state.deletion_pending(PAIR) > 0


def test_what_is_wanted_again_is_not_detached_by_force_for_the_time_before() -> None:
    used = (*bound(), node(ready="Unknown", in_use=[UNIQUE]), attachment(attached=True))
    state = world(*used, pod(), unwanted_for=300.0)
    AttachDetach(state, pairs=Keys(), nodes=Keys()).reconcile_pair(PAIR.key, LiveReads())
    assert state.unwanted == {}


def test_a_claim_without_a_volume_waits_for_no_node() -> None:
    state = state_with(claim("c"), node(), pod())
    assert list(waiting_nodes(claim("c"), state)) == []


@pytest.mark.parametrize(
    ("objects", "why"),
    [
        ((*bound(), node()), "no pod"),
        ((*bound(), node(), pod(phase="Succeeded")), "the pod has ended"),
        ((*bound(), node(), pod(node="")), "the pod is on no node"),
        ((bound()[0], node(), pod()), "there is no volume"),
        ((bound()[1], node(), pod()), "there is no claim"),
        ((*bound(), node(managed=False), pod()), "the kubelet attaches for itself"),
        (
            (
                *bound(),
                node(),
                pod(),
                CsiDriver(metadata=Metadata(name=CSI), spec=CsiDriverSpec(attach_required=False)),
            ),
            "the driver needs no attaching",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nothing_is_attached_where(objects: tuple[KubeObject, ...], why: str) -> None:
    assert decided(*objects).action == Settled(), why


def test_a_claim_that_a_pod_names_is_wanted_though_it_is_called_like_its_ephemeral_volume() -> None:
    used = claim("p-w", volumeName="v", status={"phase": "Bound"})
    made = volume("v", claim=used, csi={"driver": CSI, "volumeHandle": "h-1"}, hostPath=None)
    body = msgspec.to_builtins(pod("p", claim="p-w"))
    body["spec"]["volumes"].insert(0, {"name": "w", "ephemeral": {"volumeClaimTemplate": {}}})
    assert isinstance(decided(used, made, node(), msgspec.convert(body, Pod)).action, Create)


def test_a_volume_for_one_node_waits_while_another_has_it() -> None:
    here, there = pod("here"), pod("there", "node-b")
    decision = decided(*bound(), node(), node("node-b"), here, there, attachment("node-b", attached=True))
    assert told(decision) == ['Multi-Attach error for volume "v" Volume is already used by pod(s) there']
    assert decision.about == "multi-attach"


def test_names_of_pods_in_other_namespaces_are_not_disclosed() -> None:
    used, made = bound()
    others = [pod("p"), pod("q", "node-b"), attachment("node-b", attached=True)]
    state = world(used, made, node(), node("node-b"), *others)
    decision = decide_pair(PAIR, state, LiveReads())
    assert told(decision) == ['Multi-Attach error for volume "v" Volume is already used by pod(s) q']


def test_nobody_is_told_of_an_attachment_that_is_about_to_go() -> None:
    decision = decided(*bound(), node(), node("node-b"), pod(), attachment("node-b", attached=True))
    assert told(decision) == []


def test_a_pod_is_told_why_the_volume_cannot_be_detached_where_it_was() -> None:
    failing = attachment("node-b", attached=True, deleted=True, detach_error="never")
    decision = decided(*bound(), node(), node("node-b"), pod(), failing)
    text = "Volume is already exclusively attached to one node and can't be attached to another"
    assert told(decision) == [f'Multi-Attach error for volume "v" {text}; it cannot be detached from node-b: never']
    assert isinstance(decision.action, Wait)
    assert "never" in decision.action.reason


def test_a_node_that_still_uses_it_is_told_though_no_pod_does() -> None:
    there = node("node-b", in_use=[UNIQUE])
    decision = decided(*bound(), node(), there, pod(), attachment("node-b", attached=True))
    text = "Volume is already exclusively attached to one node and can't be attached to another"
    assert told(decision) == [f'Multi-Attach error for volume "v" {text}']


def test_an_attachment_elsewhere_that_is_not_attached_yet_keeps_it_too() -> None:
    decision = decided(*bound(), node(), node("node-b"), pod(), attachment("node-b"))
    assert isinstance(decision.action, Wait)
    assert told(decision) == []


def test_what_was_attached_through_a_volume_that_is_gone_keeps_its_disk_from_other_nodes() -> None:
    through = attachment("node-b", attached=True, volume="gone", annotations=recorded_for("gone", "h-1"))
    assert isinstance(decided(*bound(), node(), node("node-b"), pod(), through).action, Wait)
    other = attachment("node-b", attached=True, volume="gone", annotations=recorded_for("gone", "h-2"))
    assert isinstance(decided(*bound(), node(), node("node-b"), pod(), other).action, Create)


def test_that_is_so_for_a_disk_of_an_in_tree_volume_too() -> None:
    """Its attachments name the CSI driver that took over from the in-tree plugin, their records its own handle."""
    used, made, through = in_tree()
    state = world(used, made, node(), node("node-b"), pod(), through)
    assert isinstance(decide_pair(IN_TREE, state, LiveReads()).action, Wait)
    assert state.cluster.attached_to(made) == ["node-b"]


def test_while_one_attachment_is_created_no_second_one_is() -> None:
    state = world(*bound(), node(), node("node-b"), pod(), pod("q", "node-b"))
    state.creating[UNIQUE] = OTHER.key
    assert isinstance(decide_pair(PAIR, state, LiveReads()).action, Wait)
    assert isinstance(decide_pair(OTHER, state, LiveReads()).action, Create)


@pytest.mark.parametrize("mode", ["ReadWriteMany", "ReadOnlyMany"])
def test_a_volume_for_many_nodes_is_attached_to_each(mode: str) -> None:
    decision = decided(*bound(mode), node(), pod(), attachment("node-b", attached=True))
    assert isinstance(decision.action, Create)


def test_a_disk_is_for_one_node_though_another_volume_of_it_allows_many() -> None:
    held = attachment("node-b", attached=True)
    there = (node(), node("node-b", in_use=[UNIQUE]), pod(), pod("q", "node-b"), held)
    claim, many = bound("ReadWriteMany")
    once = volume("twin", csi={"driver": CSI, "volumeHandle": "h-1"}, hostPath=None)
    assert isinstance(decided(claim, many, *there).action, Create)
    assert isinstance(decided(claim, many, once, *there).action, Wait)


def test_pods_are_told_once_it_is_attached_and_not_reported_yet() -> None:
    decision = decided(*bound(), node(), pod(), attachment(attached=True))
    assert told(decision) == ['AttachVolume.Attach succeeded for volume "v" ']
    assert decided(*bound(), node(attached=[UNIQUE]), pod(), attachment(attached=True)).action == Settled()


def test_pods_are_told_why_the_attacher_failed() -> None:
    decision = decided(*bound(), node(), pod(), attachment(error="no room"))
    assert told(decision) == ['AttachVolume.Attach failed for volume "v" : no room']


def test_pods_are_told_when_no_attacher_answers_for_two_minutes() -> None:
    assert told(decided(*bound(), node(), pod(), attachment())) == []
    late = decided(*bound(), node(), pod(), attachment(created="2025-12-31T23:57:30Z"))
    expected = f"timed out waiting for external-attacher of {CSI} CSI driver to attach volume h-1"
    assert told(late) == [f'AttachVolume.Attach failed for volume "v" : {expected}']
    assert late.action.seconds == 90.0, "then it is told again"


def test_pods_wait_for_the_end_of_a_detach_that_has_begun() -> None:
    decision = decided(*bound(), node(), pod(), attachment(attached=True, deleted=True))
    assert told(decision) == ['AttachVolume.Attach failed for volume "v" : volume attachment is being deleted']


def test_an_attachment_of_a_former_node_of_the_name_is_made_anew() -> None:
    renewed = node(uid="uid-new", in_use=["kubernetes.io/csi/other^x"])
    reads = read(NODES, "node-a", renewed)
    action = decided(*bound(), renewed, pod(), attachment(attached=True), reads=reads).action
    assert isinstance(action, Delete)
    used = node(uid="uid-new", in_use=[UNIQUE], attached=[UNIQUE])
    assert decided(*bound(), used, pod(), attachment(attached=True)).action == Settled()


# --- unwanted -----------------------------------------------------------------------------------------------------

IN_USE = node(in_use=[UNIQUE])
SICK = node(in_use=[UNIQUE], ready="Unknown")
TAINTED = node(in_use=[UNIQUE], taints=[names.OUT_OF_SERVICE])
LONG = 361.0


@pytest.mark.parametrize(
    ("there", "unwanted_for", "force", "outcome"),
    [
        (IN_USE, 0.0, True, "waits"),
        (IN_USE, LONG, True, "waits"),
        (SICK, 0.0, True, "waits"),
        (SICK, LONG, True, "timeout"),
        (SICK, LONG, False, "waits"),
        (TAINTED, 0.0, True, "out-of-service"),
        (TAINTED, LONG, True, "timeout"),
        (TAINTED, LONG, False, "out-of-service"),
        (node(), LONG, True, "reads"),
        (node(ready="Unknown"), LONG, True, "reads"),
    ],
)
def test_when_a_volume_that_nobody_wants_is_detached(
    there: KubeObject, unwanted_for: float, force: bool, outcome: str
) -> None:
    decision = decided(*bound(), there, attachment(attached=True), unwanted_for=unwanted_for, force=force)
    kind = {"waits": Wait, "reads": Read}.get(outcome, Delete)
    assert isinstance(decision.action, kind), decision
    assert decision.forced == (outcome if kind is Delete else "")


def test_the_report_is_withdrawn_first() -> None:
    decision = decided(*bound(), node(attached=[UNIQUE]), attachment(attached=True))
    assert decision.action == Wait(reason="the report of node node-a still lists it")


def test_the_node_is_read_live_before_the_attachment_is_deleted() -> None:
    assert isinstance(decided(*bound(), node(), attachment(attached=True)).action, Read)
    reads = read(NODES, "node-a", node())
    action = decided(*bound(), node(), attachment(attached=True), reads=reads).action
    assert isinstance(action, Delete)


def test_the_answer_to_the_write_that_withdrew_it_is_as_good_as_a_live_read() -> None:
    state = followed(*bound(), node(attached=[UNIQUE]), attachment(attached=True))
    state.cluster.nodes.observe(replace(node(), metadata=newer(node(), 2)))
    assert isinstance(decide_pair(PAIR, state, LiveReads()).action, Delete)


def test_what_is_in_use_when_it_is_withdrawn_is_looked_for_live_later() -> None:
    state = followed(*bound(), node(attached=[UNIQUE]), attachment(attached=True))
    state.cluster.nodes.observe(replace(node(in_use=[UNIQUE]), metadata=newer(node(), 2)))
    assert isinstance(decide_pair(PAIR, state, LiveReads()).action, Wait)
    state.cluster.nodes.observe(replace(node(), metadata=newer(node(), 3)))
    assert isinstance(decide_pair(PAIR, state, LiveReads()).action, Read)


def test_what_was_listed_again_meanwhile_is_looked_for_live() -> None:
    state = followed(*bound(), node(attached=[UNIQUE]), attachment(attached=True))
    for version, there in enumerate((node(), node(attached=[UNIQUE]), node(in_use=[UNIQUE]), node()), 2):
        state.cluster.nodes.observe(replace(there, metadata=newer(there, version)))
    assert isinstance(decide_pair(PAIR, state, LiveReads()).action, Read)


def test_of_a_node_that_is_gone_what_it_used_last_counts() -> None:
    objects = (*bound(), attachment(attached=True))
    state = world(*objects, unwanted_for=0.0)
    assert isinstance(decide_pair(PAIR, state, LiveReads()).action, Wait), "nobody knows what it used"
    state.last_in_use["node-a"] = frozenset()
    assert isinstance(decide_pair(PAIR, state, LiveReads()).action, Read)
    state.last_in_use["node-a"] = frozenset({UNIQUE})
    assert isinstance(decide_pair(PAIR, state, LiveReads()).action, Wait)
    assert decide_pair(PAIR, world(*objects, unwanted_for=LONG), LiveReads()).forced == "timeout"


def test_an_attachment_with_a_name_of_its_own_is_left_alone() -> None:
    mine = attachment(attached=True, name="made-by-hand")
    assert decided(*bound(), node(), mine).action == Settled()


def test_an_attachment_whose_volume_is_gone_goes_after_a_live_look() -> None:
    lost, pair = attachment(attached=True), Pair("node-a", PAIR.attachment)
    state = world(lost, node())
    assert decide_pair(pair, state, LiveReads()).action == Read(VOLUMES, "v", why="is its volume really gone?")
    reads = read(VOLUMES, "v")
    reads.put(NODES, "node-a", node())
    assert isinstance(decide_pair(pair, state, reads).action, Delete)
    in_use = world(lost, node(in_use=[UNIQUE]))
    assert decide_pair(pair, in_use, reads).action == Settled(), "it is decided under the name of the volume"
    assert isinstance(decide_pair(PAIR, in_use, reads).action, Wait)


# --- the report ---------------------------------------------------------------------------------------------------


def reported(there: KubeObject, *objects: KubeObject, **more: Any) -> list[str] | None:
    """What is written into volumesAttached once the pair was decided; None: nothing is written, nor the node woken."""
    both = AttachDetach(world(there, *objects, **more), woken := Keys(), woken)
    both.reconcile_pair(PAIR.key, LiveReads())
    action = both.reconcile_node("node-a", LiveReads())
    assert woken.keys == ([] if action == Settled() else ["node-a"])
    return None if action == Settled() else _written(action)


def _written(action: Any) -> list[str]:
    assert isinstance(action, Patch)
    return [each["name"] for each in action.body["status"]["volumesAttached"] or ()]


def test_what_is_attached_and_wanted_is_reported() -> None:
    assert reported(node(), *bound(), pod(), attachment(attached=True)) == [UNIQUE]


def test_what_nobody_wants_is_withdrawn_unless_the_node_uses_it() -> None:
    assert reported(node(attached=[UNIQUE]), *bound(), attachment(attached=True)) == []
    assert reported(node(attached=[UNIQUE], in_use=[UNIQUE]), *bound(), attachment(attached=True)) is None


def test_what_is_not_attached_any_more_is_withdrawn() -> None:
    for each in (attachment(), attachment(attached=True, deleted=True)):
        assert reported(node(attached=[UNIQUE]), *bound(), pod(), each) == []


def test_what_a_request_on_its_way_may_still_detach_is_not_reported_again() -> None:
    """Its pod went, the deletion of its attachment was sent, and another pod came to the same node."""
    state = world(*bound(), node(), attachment(attached=True))
    state.withdrawn.add(PAIR.key)
    both = AttachDetach(state, woken := Keys(), woken)
    decide = both.reconcile_pair
    assert isinstance(decide(PAIR.key, LiveReads()), Delete)
    state.cluster.pods.observe(pod())
    waits = decide(PAIR.key, LiveReads())
    assert isinstance(waits, Wait)
    assert waits.seconds == DELETION_LASTS
    state.reports["node-a"] = {UNIQUE}
    assert both.reconcile_node("node-a", LiveReads()) == Settled(), "no kubelet is told that it may mount it"
    assert woken.keys == []
    state.deleting[PAIR.key] -= DELETION_LASTS
    decide(PAIR.key, LiveReads())
    assert woken.keys == ["node-a"], "the request was lost, and the volume is attached"


def test_what_is_attached_to_the_machine_that_had_the_name_before_is_not_reported() -> None:
    assert reported(node(uid="uid-new"), *bound(), pod(), attachment(attached=True)) is None


def test_entries_of_other_plugins_stay() -> None:
    foreign = "kubernetes.io/vendor/disk"
    there = node(attached=[foreign])
    assert reported(there, *bound(), pod(), attachment(attached=True)) == [UNIQUE, foreign]


def test_nothing_is_written_to_a_node_whose_kubelet_attaches_for_itself() -> None:
    assert reported(node(managed=False), *bound(), pod(), attachment(attached=True)) is None


def test_a_report_waits_a_moment_for_what_is_about_to_be_attached_to_the_node() -> None:
    other = Pair("node-a", f"kubernetes.io/csi/{CSI}^h-2")
    used, made = claim("d", volumeName="w", status={"phase": "Bound"}), {"driver": CSI, "volumeHandle": "h-2"}
    state = world(
        *(*bound(), node(), pod(), attachment(attached=True)),
        *(used, volume("w", claim=used, csi=made, hostPath=None), pod("q", claim="d")),
    )
    woken = Keys()
    reconcile = AttachDetach(state, Keys(), woken).reconcile_pair
    assert isinstance(reconcile(other.key, LiveReads()), Create)
    reconcile(PAIR.key, LiveReads())
    assert (woken.keys, woken.afters) == (["node-a"], [0.5])
    state.cluster.attachments.observe(attachment(name=other.attachment, volume="w", uid="u", attached=True))
    reconcile(other.key, LiveReads())
    assert (woken.keys, woken.afters) == (["node-a"] * 2, [0.5, 0.0])


def test_a_report_judges_the_volumes_that_changed_however_many_there_are() -> None:
    others = [f"kubernetes.io/csi/{CSI}^other-{number}" for number in range(3)]
    state = world(node(attached=others), *bound(), pod(), attachment(attached=True))
    state.reports["node-a"] = {UNIQUE, others[1]}
    reconcile = AttachDetach(state, Keys(), Keys()).reconcile_node
    assert _written(reconcile("node-a", LiveReads())) == [UNIQUE, others[0], others[2]]
    state.cluster.nodes.observe(replace(node(attached=[UNIQUE]), metadata=newer(node(), 2)))
    assert reconcile("node-a", LiveReads()) == Settled()
    assert state.reports == {}
