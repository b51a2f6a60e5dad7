"""What is decided about an attachment of one of our drivers."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from unit.attach.objects import CSI, FINALIZER, attachment, bound, node
from unit.binding.objects import claim, volume
from unit.deciding import HOOKS, disk, state_with
from volplane.attach.attacher import (
    decide_attachment,
    decide_csi_driver,
    declaration,
    identity_of_record,
    intent_of,
    node_of_record,
    volume_to_attach,
)
from volplane.attach.desired import same_machine
from volplane.controller.actions import Create, LiveReads, Patch, Run, Settled, Wait, warning
from volplane.drivers.driver import DriverView
from volplane.kube import names
from volplane.kube.kinds import ATTACHMENTS, CSI_DRIVERS
from volplane.kube.objects import (
    AttachmentSource,
    CsiDriver,
    CsiDriverSpec,
    KubeObject,
    Metadata,
    Node,
    VolumeAttachment,
)
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import asset_key
from volplane.state.progress import Attached, Attaching, AttachmentFailure, Detached
from volplane.state.records import attachment_intent_of, write_intent

ATTACHES = HOOKS | {"attach", "detach"}
BOTH: Any = {"attacher": True, "capacity": True}


def attaching(name: str = CSI, **info: Any) -> DriverView:
    return disk(name, hooks=ATTACHES, **{"csi_driver_name": CSI, "attach_required": True, **info})


def recorded(**more: Any) -> VolumeAttachment:
    """One whose record is written."""
    record = intent_of(bound()[1], attaching(), "uid-node-a", "test")
    known = {names.INTENT: write_intent(record), names.NODE_ID: more.pop("known", "aws:///z/node-a")}
    return attachment(annotations=known, finalizers=[FINALIZER, *more.pop("others", ())], **more)


def world(*objects: KubeObject, drivers: tuple[DriverView, ...] | None = None) -> ClusterState:
    return state_with(*objects, drivers=(attaching(),) if drivers is None else drivers)


def decided(subject: VolumeAttachment, *objects: KubeObject, **more: Any) -> Any:
    return decide_attachment(subject.key, world(subject, *objects, **more), LiveReads())


def status(action: Any) -> dict[str, Any]:
    assert isinstance(action, Patch)
    assert (action.kind, action.subresource) == (ATTACHMENTS, "status")
    found: dict[str, Any] = dict(action.body["status"])
    return found


# --- attaching ----------------------------------------------------------------------------------------------------


def registered(csi_id: str, **fields: Any) -> Node:
    """A node of which the node plugin of a CSI driver has told the id; "" = not yet."""
    made, ids = node(**fields), {names.CSI_NODE_IDS: json.dumps({CSI: csi_id, "other.example.com": "x"})}
    annotations = {**(made.metadata.annotations or {}), **(ids if csi_id else {})}
    return replace(made, metadata=replace(made.metadata, annotations=annotations))


def test_a_driver_that_attaches_by_the_ids_of_node_plugins_has_those_on_record() -> None:
    driver = attaching(attaches_by="csi node")
    for known in ("", "i-1"):
        action = decided(attachment(), *bound(), registered(known), drivers=(driver,))
        assert action.body["metadata"]["annotations"][names.NODE_ID] == known
    record = intent_of(bound()[1], driver, "uid-node-a", "test")
    kept = attachment(annotations={names.NODE_ID: "i-1"})
    assert node_of_record(kept, record, None).csi_node_id == "i-1"
    assert node_of_record(kept, record, registered("i-2")).csi_node_id == "i-2"
    # Of another machine with the name of the former one nothing is known.
    assert node_of_record(kept, record, registered("i-3", uid="another")).csi_node_id == "i-1"


@pytest.mark.parametrize(("now", "same"), [("i-1", None), ("i-2", False), ("", None)])
def test_the_ids_of_node_plugins_are_compared_with_each_other(now: str, same: bool | None) -> None:
    annotations = {**declaration(bound()[1], attaching(attaches_by="csi node"), registered("i-1"), "test")}
    stands = attachment(annotations={names.NODE_UID: "uid-node-a", **annotations})
    assert same_machine(stands, registered(now, uid="another", provider_id="")) is same


def test_finalizer_record_and_node_are_written_before_anything_is_attached() -> None:
    action = decided(attachment(), *bound(), node())
    assert isinstance(action, Patch)
    metadata = action.body["metadata"]
    assert metadata["finalizers"] == [FINALIZER]
    assert metadata["annotations"][names.NODE_ID] == "aws:///z/node-a"
    record = msgspec.json.decode(metadata["annotations"][names.INTENT])
    assert (record["driver"], record["handle"], record["volume"]) == (CSI, "h-1", "v")


def test_then_the_hook_is_called_for_the_asset() -> None:
    action = decided(recorded(), *bound(), node())
    assert isinstance(action, Run)
    assert (action.verb, action.driver, action.node) == ("attach", CSI, "")


def test_hooks_for_different_nodes_exclude_each_other_only_where_one_node_is_allowed() -> None:
    shared = intent_of(bound("ReadWriteMany")[1], attaching(), "uid-node-a", "test")
    known = {names.INTENT: write_intent(shared), names.NODE_ID: "aws:///z/node-a"}
    action = decided(attachment(annotations=known, finalizers=[FINALIZER]), *bound("ReadWriteMany"), node())
    assert action.node == "node-a"


def test_what_the_hook_returned_becomes_the_status() -> None:
    subject = recorded(error="earlier")
    state = world(subject, *bound(), node())
    state.progress.attachments.track(subject.uid).succeeded(Attached({"devicePath": "/dev/xvdba"}))
    expected = {"attached": True, "attachError": None, "attachmentMetadata": {"devicePath": "/dev/xvdba"}}
    assert status(decide_attachment(subject.key, state, LiveReads())) == expected


def test_without_the_id_of_the_former_machine_nothing_proves_that_it_is_another_one() -> None:
    record = write_intent(intent_of(bound()[1], attaching(), "uid-former", "test"))
    action = decided(attachment(annotations={names.INTENT: record}, finalizers=[FINALIZER]), *bound(), node())
    assert action.body["metadata"]["annotations"][names.NODE_ID] == "aws:///z/node-a"


def test_a_disk_that_was_lost_is_attached_again_though_its_volume_is_being_deleted() -> None:
    used, made = bound()
    going = replace(made, metadata=replace(made.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    subject = recorded(attached=True)
    state = world(subject, used, going, node())
    state.progress.attachments.track(subject.uid).lost = True
    action = decide_attachment(subject.key, state, LiveReads())
    assert isinstance(action, Run)
    assert action.verb == "attach"
    assert "is being deleted" in str(status(decided(recorded(), used, going, node()))["attachError"])


def test_a_long_attach_keeps_the_state_and_waits() -> None:
    subject = recorded()
    state = world(subject, *bound(), node())
    state.progress.attachments.track(subject.uid).succeeded(Attaching({"job": "7"}, state.monotonic() + 5.0))
    kept = decide_attachment(subject.key, state, LiveReads())
    assert isinstance(kept, Patch)
    record = msgspec.json.decode(kept.body["metadata"]["annotations"][names.INTENT])
    assert (record["hook"], record["state"]) == ("attach", {"job": "7"})


def test_a_state_that_another_process_wrote_meanwhile_stays() -> None:
    record = replace(intent_of(bound()[1], attaching(), "uid-node-a", "test"), hook="attach", state={"job": "8"})
    known = {names.INTENT: write_intent(record), names.NODE_ID: "aws:///z/node-a"}
    subject = attachment(annotations=known, finalizers=[FINALIZER])
    state = world(subject, *bound(), node())
    state.progress.attachments.track(subject.uid).succeeded(Attaching({"job": "7"}, state.monotonic() + 5.0))
    step = decide_attachment(subject.key, state, LiveReads())
    assert isinstance(step, Wait)
    assert step.seconds == 5.0


def test_a_failure_is_shown_with_its_time_and_then_tried_again() -> None:
    subject = recorded()
    state = world(subject, *bound(), node())
    state.progress.attachments.track(subject.uid).unreported = AttachmentFailure("attach", "é" * 800, 8)
    error = status(decide_attachment(subject.key, state, LiveReads()))["attachError"]
    assert (error["time"], error["errorCode"]) == ("2026-01-01T00:00:00Z", 8)
    assert len(error["message"].encode()) <= 1024


def test_what_is_missing_is_said_once() -> None:
    error = status(decided(attachment(), node()))["attachError"]
    assert error["message"] == 'PersistentVolume "v" does not exist'
    assert isinstance(decided(attachment(error=error["message"]), node()), Wait)
    assert "node-a" in status(decided(attachment(), *bound()))["attachError"]["message"]


def test_a_volume_that_is_being_deleted_is_not_attached() -> None:
    used, made = bound()
    gone = msgspec.structs.replace(
        made, metadata=msgspec.structs.replace(made.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    )
    assert "is being deleted" in status(decided(attachment(), used, gone, node()))["attachError"]["message"]


def test_an_attachment_of_no_volume_is_not_served() -> None:
    subject = recorded()
    subject = replace(subject, spec=replace(subject.spec, source=AttachmentSource()))
    error = status(decided(subject, *bound(), node()))["attachError"]
    assert error["message"] == "it names no PersistentVolume; others are not served"
    shown = replace(subject, status=replace(subject.status, attached=True))
    assert decided(shown, *bound(), node()) == Settled(), "nothing says what is attached"


def test_what_is_attached_to_a_node_that_is_gone_is_left_alone() -> None:
    assert decided(recorded(attached=True), *bound()) == Settled()
    assert decided(recorded(attached=True), node()) == Settled()


def test_metadata_that_somebody_edits_is_put_right() -> None:
    subject = recorded(attached=True, metadata={"devicePath": "/dev/null", "added": "x"})
    state = world(subject, *bound(), node())
    state.progress.attachments.track(subject.uid).succeeded(Attached({"devicePath": "/dev/xvdba"}))
    expected = {"devicePath": "/dev/xvdba", "added": None}
    assert status(decide_attachment(subject.key, state, LiveReads()))["attachmentMetadata"] == expected


def test_another_machine_under_the_name_of_the_node_is_said() -> None:
    action = decided(recorded(attached=True), *bound(), node(provider_id="aws:///z/i-new", uid="uid-new"))
    shown = status(action)
    assert shown["attached"] is False
    assert "aws:///z/node-a" in shown["attachError"]["message"]


@pytest.mark.parametrize("known", ["", "aws:///z/another"], ids=["before the cloud named it", "edited by hand"])
@pytest.mark.parametrize("attached", [True, False])
def test_what_the_same_node_is_called_is_put_right(known: str, attached: bool) -> None:
    subject = recorded(known=known, attached=attached)
    action = decided(subject, *bound(), node())
    assert isinstance(action, Patch)
    assert action.body == {"metadata": {"annotations": {names.NODE_ID: "aws:///z/node-a"}}}
    record = attachment_intent_of(subject)
    assert record is not None
    assert node_of_record(subject, record, node()).instance_id == "aws:///z/node-a"
    assert node_of_record(subject, record, None).instance_id == known


def test_a_finalizer_that_is_put_back_leaves_the_state_of_a_long_call() -> None:
    subject = recorded()
    bare = replace(subject, metadata=replace(subject.metadata, finalizers=None))
    action = decided(bare, *bound(), node())
    assert isinstance(action, Patch)
    assert action.body == {"metadata": {"finalizers": [FINALIZER]}}


def test_an_attachment_that_the_backend_lost_is_attached_again() -> None:
    subject = recorded(attached=True)
    state = world(subject, *bound(), node())
    assert decide_attachment(subject.key, state, LiveReads()) == Settled()
    state.progress.attachments.track(subject.uid).lost = True
    action = decide_attachment(subject.key, state, LiveReads())
    assert isinstance(action, Run)
    assert action.verb == "attach"


def test_attachments_of_others_are_not_touched() -> None:
    assert decided(attachment(), *bound(), node(), drivers=()) == Settled()


def test_the_driver_that_made_the_volume_attaches_it_where_several_share_a_name() -> None:
    used, made = bound()
    made = msgspec.structs.replace(
        made, metadata=msgspec.structs.replace(made.metadata, annotations={names.PROVISIONED_BY: "b.example.com"})
    )
    drivers = (attaching("a.example.com"), attaching("b.example.com"))
    action = decided(attachment(), used, made, node(), drivers=drivers)
    assert msgspec.json.decode(action.body["metadata"]["annotations"][names.INTENT])["driver"] == "b.example.com"


def test_volumes_that_need_no_attaching_are_attached_at_once_and_without_a_finalizer() -> None:
    idle = attaching(attach_required=False)
    assert status(decided(attachment(), *bound(), node(), drivers=(idle,))) == {"attached": True}


# --- detaching ----------------------------------------------------------------------------------------------------


def test_a_deleted_attachment_is_detached_though_volume_and_node_are_gone() -> None:
    action = decided(recorded(attached=True, deleted=True))
    assert isinstance(action, Run)
    assert (action.verb, action.driver) == ("detach", CSI)


def test_the_record_says_all_that_detach_needs() -> None:
    record = intent_of(bound()[1], attaching(), "uid-node-a", "test")
    identity = identity_of_record(record, "test")
    assert (identity.name, identity.handle, identity.source.kind) == ("v", "h-1", "csi")
    assert identity.owner is None, "a static volume carries nobody's marks"


@pytest.mark.parametrize(
    "source",
    [
        {"csi": {"driver": CSI, "volumeHandle": "h-1", "volumeAttributes": {"tier": "fast"}}, "hostPath": None},
        {"annotations": {names.PROVISIONED_BY: CSI, names.HANDLE: "h-1", names.ATTRIBUTES: '{"tier": "fast"}'}},
    ],
    ids=["csi", "another source"],
)
def test_a_volume_is_detached_as_what_it_was_attached_as(source: dict[str, Any]) -> None:
    made = volume("pvc-1", claim=claim("c"), accessModes=["ReadWriteMany"], volumeMode="Block", **source)
    shown = volume_to_attach(made, attaching(), "test")
    assert shown.attributes == {"tier": "fast"}
    assert identity_of_record(intent_of(made, attaching(), "uid-node-a", "test"), "test") == shown


@pytest.mark.parametrize(
    ("uid", "machine", "labels"),
    [
        ("uid-node-a", "aws:///z/now", {"zone": "z"}),
        ("uid-new", "aws:///z/node-a", {}),
        (None, "aws:///z/node-a", {}),
    ],
    ids=["the same node", "another one of its name", "it is gone"],
)
def test_it_is_detached_from_the_machine_that_it_was_attached_to(
    uid: str | None, machine: str, labels: dict[str, str]
) -> None:
    subject = recorded(attached=True, deleted=True)
    record = attachment_intent_of(subject)
    assert record is not None
    there = node(uid=uid, provider_id="aws:///z/now") if uid is not None else None
    if there is not None:
        there.metadata.labels = {"zone": "z"}
    found = node_of_record(subject, record, there)
    assert (found.name, found.uid) == ("node-a", "uid-node-a")
    assert (found.instance_id, dict(found.labels)) == (machine, labels)


def test_without_our_finalizer_nothing_was_attached() -> None:
    assert decided(attachment(deleted=True, finalizers=["other"]), *bound(), node()) == Settled()


def test_what_another_attacher_began_is_recorded_and_detached() -> None:
    action = decided(attachment(attached=True, deleted=True, finalizers=[FINALIZER]), *bound(), node())
    assert isinstance(action, Patch)
    assert names.INTENT in action.body["metadata"]["annotations"]


def test_what_nobody_knows_any_more_says_what_a_person_must_do() -> None:
    error = status(decided(attachment(attached=True, deleted=True, finalizers=[FINALIZER])))["detachError"]
    assert FINALIZER in error["message"]
    assert error["message"].startswith('PersistentVolume "v" is gone, and nothing else says what was attached;')


def test_the_finalizer_goes_once_nothing_is_attached() -> None:
    subject = recorded(attached=True, deleted=True)
    state = world(subject)
    state.progress.attachments.track(subject.uid).succeeded(Detached())
    action = decide_attachment(subject.key, state, LiveReads())
    assert isinstance(action, Patch)
    assert action.body == {"metadata": {"finalizers": None}}


def test_where_others_hold_the_object_the_status_goes_first() -> None:
    subject = recorded(attached=True, deleted=True, others=["other"])
    state = world(subject)
    state.progress.attachments.track(subject.uid).succeeded(Detached())
    assert status(decide_attachment(subject.key, state, LiveReads()))["attached"] is False


def test_a_result_of_attach_does_not_end_a_detach() -> None:
    subject = recorded(attached=True, deleted=True)
    state = world(subject)
    state.progress.attachments.track(subject.uid).succeeded(Attached({}))
    assert isinstance(decide_attachment(subject.key, state, LiveReads()), Run)


# --- CSIDriver ----------------------------------------------------------------------------------------------------


def test_a_driver_with_a_csi_name_of_its_own_gets_a_csidriver() -> None:
    action = decide_csi_driver(CSI, world(), **BOTH)
    assert isinstance(action, Create)
    assert action.body["spec"]["attachRequired"] is True
    foreign = attaching("ebs.example.com")
    assert decide_csi_driver("ebs.example.com", world(drivers=(foreign,)), **BOTH) == Settled()


def test_one_that_says_otherwise_is_named() -> None:
    wrong = CsiDriver(metadata=Metadata(name=CSI, uid="u"), spec=CsiDriverSpec(attach_required=False))
    action = decide_csi_driver(CSI, world(wrong), **BOTH)
    assert isinstance(action, Wait)
    assert "delete the object" in action.reason
    assert f"spec.attachRequired is false, but driver {CSI} attaches its volumes" in action.reason
    assert action.events == (warning(CSI_DRIVERS, wrong, "AttachRequiredDiffers", action.reason),)


def test_the_scheduler_is_told_to_heed_published_room() -> None:
    local = attaching("local.example.com", csi_driver_name="local.example.com", attach_required=False)
    there = CsiDriver(metadata=Metadata(name=local.name), spec=CsiDriverSpec(attach_required=False))
    action = decide_csi_driver(local.name, state_with(there, distributed=(local,)), attacher=False, capacity=True)
    assert isinstance(action, Patch)
    assert action.body == {"spec": {"storageCapacity": True}}
    new = decide_csi_driver(local.name, state_with(distributed=(local,)), attacher=False, capacity=True)
    assert isinstance(new, Create)
    assert (new.body["spec"]["storageCapacity"], new.body["spec"]["attachRequired"]) == (True, False)


def test_who_only_publishes_room_does_not_say_whether_volumes_need_attaching() -> None:
    local = attaching("local.example.com", csi_driver_name="local.example.com", attach_required=False)
    there = CsiDriver(
        metadata=Metadata(name=local.name), spec=CsiDriverSpec(attach_required=True, storage_capacity=True)
    )
    state = state_with(there, distributed=(local,))
    assert decide_csi_driver(local.name, state, attacher=False, capacity=True) == Settled()


# --- records of a former version ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("attached", "deleted"), [(False, False), (True, False), (True, True)])
def test_the_record_of_a_disk_with_an_in_tree_source_gets_its_present_name(attached: bool, deleted: bool) -> None:
    """Operations on the volume exclude each other by that name."""
    used = claim("c", volumeName="v", status={"phase": "Bound"})
    disk = {"volumeID": "aws://z/vol-1"}
    made = volume("v", claim=used, awsElasticBlockStore=disk, hostPath=None, accessModes=["ReadWriteOnce"])
    former = f"awsElasticBlockStore:{sorted(disk.items())}"
    record = replace(intent_of(made, attaching(), "uid-node-a", "test"), asset=former, hook="detach", state={"job": 7})
    known = {names.INTENT: write_intent(record), names.NODE_ID: "aws:///z/node-a"}
    subject = attachment(annotations=known, finalizers=[FINALIZER], attached=attached, deleted=deleted)
    action = decided(subject, used, made, node())
    assert isinstance(action, Patch)
    written = msgspec.json.decode(action.body["metadata"]["annotations"][names.INTENT])
    assert (written["asset"], written["state"]) == (asset_key(made), {"job": 7})
