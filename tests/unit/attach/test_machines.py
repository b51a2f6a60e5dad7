"""Whether a Node that was registered again is the machine that a volume was attached to, and what its kubelet uses."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from unit.attach.objects import CSI, PAIR, UNIQUE, attachment, bound, node, pod
from unit.attach.test_attach_detach import decided, world
from unit.deciding import disk, read, state_with
from volplane.attach.attach_detach import decide_node
from volplane.attach.attacher import decide_attachment, declaration
from volplane.attach.desired import has_reported, registered_again, same_machine
from volplane.controller.actions import Delete, LiveReads, Patch, Read, Run, Settled, Wait
from volplane.kube import names
from volplane.kube.kinds import NODES
from volplane.kube.objects import Node, NodeSystemInfo, VolumeAttachment
from volplane.state.progress import Attached

ID = "gce://project/zone/node-a"


def machine(uid: str = "uid-new", *, provider_id: str = ID, boot: str = "boot-1", late: int = 0, **more: Any) -> Node:
    """A Node. late: seconds after it was ready in which it last wrote its status."""
    made = node(uid=uid, provider_id=provider_id, **more)
    times = {"lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": f"2026-01-01T00:00:{late:02}Z"}
    ready = {"type": "Ready", "status": more.get("ready", "True"), **times}
    return replace(made, status=replace(made.status, conditions=[ready], node_info=NodeSystemInfo(boot_id=boot)))


def attached_to(former: Node, **more: Any) -> VolumeAttachment:
    """As our attacher left it."""
    attaching = disk(CSI, csi_driver_name=CSI, attach_required=True)
    annotations = {names.NODE_UID: former.uid, **declaration(bound()[1], attaching, former, "test")}
    finalizers = ["external-attacher/disk-example-com"]
    return attachment(**{"attached": True, "annotations": annotations, "finalizers": finalizers, **more})


@pytest.mark.parametrize(
    ("former", "present", "same"),
    [
        (machine("u"), machine("u", boot="boot-2"), True),
        (machine("u"), machine(), True),
        (machine("u"), machine(boot="boot-2"), None),
        (machine("u"), machine(boot=""), None),
        (machine("u", boot=""), machine(boot=""), None),
        (machine("u", provider_id=""), machine(provider_id=""), None),
        (machine("u", provider_id=""), machine(), None),
        (machine("u"), machine(provider_id=""), None),
        (machine("u"), machine(provider_id="gce://project/zone/other"), False),
    ],
)
def test_only_an_id_and_a_boot_together_prove_that_it_is_the_same_machine(
    former: Node, present: Node, same: bool | None
) -> None:
    assert same_machine(attached_to(former), present) is same


def test_the_ids_of_other_attachers_prove_nothing() -> None:
    foreign = attachment(annotations={names.NODE_UID: "u", names.NODE_ID: "i-1", names.BOOT_ID: "boot-1"})
    assert same_machine(foreign, machine()) is None
    assert same_machine(foreign, machine(provider_id="i-1")) is None


def test_an_attachment_of_another_controller_is_compared_by_its_age() -> None:
    present, old = machine(), attachment(annotations={}, created="2026-01-01T00:00:00Z")
    young = replace(present, metadata=replace(present.metadata, creation_timestamp="2026-01-01T00:00:01Z"))
    assert registered_again(old, young)
    assert not registered_again(attachment(annotations={}, created="2026-01-01T00:00:02Z"), young)
    assert not registered_again(old, present), "a Node without a time"


@pytest.mark.parametrize(
    ("there", "reported"),
    [
        (machine(late=9), False),
        (machine(late=10), True),
        (machine(in_use=[UNIQUE]), True),
        (machine(late=20, ready="Unknown"), False),
        (node(), False),
        (node(in_use=["kubernetes.io/csi/other^x"]), True),
    ],
)
def test_an_empty_list_counts_once_the_kubelet_has_written_its_status_again(there: Node, reported: bool) -> None:
    assert has_reported(there) is reported


def test_what_is_not_wanted_on_a_node_that_was_registered_again_waits_for_its_report() -> None:
    for former in (machine("u"), machine("u", boot="boot-0"), machine("u", provider_id="")):
        left = attached_to(former)
        assert isinstance(decided(*bound(), machine(), left).action, Wait)
        assert isinstance(decided(*bound(), machine(in_use=[UNIQUE]), left).action, Wait)
        assert isinstance(decided(*bound(), machine(late=10), left).action, Read), "then it is detached"


def test_what_another_machine_had_is_detached_at_once() -> None:
    left = attached_to(machine("u", provider_id="gce://project/zone/other"))
    assert isinstance(decided(*bound(), machine(), left).action, Read)
    assert isinstance(decided(*bound(), machine(), pod(), left).action, Delete)


def test_what_pods_want_on_the_same_machine_stays_attached() -> None:
    assert decided(*bound(), machine(attached=[UNIQUE]), pod(), attached_to(machine("u"))).action == Settled()


def test_what_pods_want_on_a_machine_that_may_be_another_waits_for_its_report() -> None:
    left = attached_to(machine("u", boot="boot-0"))
    assert isinstance(decided(*bound(), machine(), pod(), left).action, Wait)
    assert decided(*bound(), machine(in_use=[UNIQUE], attached=[UNIQUE]), pod(), left).action == Settled()
    unlisted, listed = machine(late=10), machine(late=10, attached=[UNIQUE])
    assert isinstance(decided(*bound(), listed, pod(), left).action, Wait), "until the report is withdrawn"
    assert isinstance(decided(*bound(), unlisted, pod(), left).action, Read), "its kubelet may be about to mount it"
    live = read(NODES, "node-a", unlisted)
    assert isinstance(decided(*bound(), unlisted, pod(), left, reads=live).action, Delete)


def test_the_new_node_lists_what_may_be_mounted_though_nobody_wants_it() -> None:
    state = world(*bound(), machine(), attached_to(machine("u")))
    state.reports["node-a"] = {UNIQUE}
    action = decide_node("node-a", state)
    assert isinstance(action, Patch)
    assert action.body["status"]["volumesAttached"] == [{"name": UNIQUE, "devicePath": ""}]


def test_the_new_node_does_not_list_what_may_be_at_another_machine() -> None:
    state = world(*bound(), machine(), pod(), attached_to(machine("u", boot="boot-0")))
    state.reports["node-a"] = {UNIQUE}
    assert decide_node("node-a", state) == Settled()


def attaching_state(there: Node, left: VolumeAttachment) -> Any:
    ours = disk(CSI, csi_driver_name=CSI, attach_required=True)
    return state_with(*bound(), there, left, drivers=[ours])


def test_attach_is_called_again_for_a_machine_that_may_be_another() -> None:
    left, there = attached_to(machine("u", boot="boot-0")), machine(in_use=[UNIQUE])
    state = attaching_state(there, left)
    action = decide_attachment(left.key, state, LiveReads())
    assert isinstance(action, Run)
    assert action.verb == "attach"
    state.progress.attachments.track(left.uid).succeeded(Attached({}, there.uid))
    assert decide_attachment(left.key, state, LiveReads()) == Settled(), "once"


def test_attach_is_not_called_again_for_the_same_machine_or_for_what_is_not_used() -> None:
    for former, present in (("boot-1", machine(in_use=[UNIQUE])), ("boot-0", machine(late=10))):
        left = attached_to(machine("u", boot=former))
        assert decide_attachment(left.key, attaching_state(present, left), LiveReads()) == Settled()


def test_an_attachment_is_made_with_the_boot_of_its_machine() -> None:
    ours = disk(CSI, csi_driver_name=CSI, attach_required=True)
    action: Any = decided(*bound(), machine(), pod(), pair=PAIR, drivers=[ours], attaches_here=True).action
    assert action.body["metadata"]["annotations"][names.BOOT_ID] == "boot-1"


def test_a_node_never_lists_what_is_known_by_the_name_of_its_attachment_alone() -> None:
    left = attached_to(machine("u"))
    state = world(machine(), left)
    state.reports["node-a"] = {left.name}
    assert decide_node("node-a", state) == Settled()
