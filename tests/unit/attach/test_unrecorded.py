"""What is decided about a volume that its backend shows at a node without a VolumeAttachment."""

from __future__ import annotations

from typing import Any

import pytest

from unit.attach.objects import CSI, FINALIZER, UNIQUE, attachment, bound, node
from unit.attach.test_attacher import attaching
from unit.deciding import read, state_with
from volplane.attach.attacher import VALID, decide_attachment, unrecorded_attachment
from volplane.attach.desired import attachment_name
from volplane.controller.actions import Action, Create, Delete, LiveReads, Read, Settled, Wait
from volplane.kube import names
from volplane.kube.kinds import NODES
from volplane.kube.objects import KubeObject, Node
from volplane.state.cluster_state import ClusterState
from volplane.state.progress import UnrecordedAttachment
from volplane.state.records import attachment_intent_of

NAME = attachment_name(CSI, "h-1", "node-a")


def world(*objects: KubeObject, **more: Any) -> ClusterState:
    """Return a cluster whose backend has just shown volume `v` at node-a for the second time.

    more: fields of the `UnrecordedAttachment`.
    """
    state = state_with(*bound(), node(), *objects, drivers=(attaching(),))
    volume = state.volumes.get("v")
    assert volume is not None
    fields = {"volume": "v", "uid": volume.uid, "driver": CSI, "node": "node-a", "node_uid": "uid-node-a"}
    state.progress.unrecorded[NAME] = UnrecordedAttachment(**{**fields, "seen": state.monotonic(), **more})
    return state


def decided(*objects: KubeObject, live: Node | None = None, **more: Any) -> Action:
    """live: the Node as the server has it."""
    return decide_attachment(NAME, world(*objects, **more), read(NODES, "node-a", live or node()))


def test_the_attachment_is_put_back_as_one_that_goes_at_once() -> None:
    action = decided()
    assert isinstance(action, Create)
    made = attachment(**{key: action.body["metadata"][key] for key in ("name", "annotations", "finalizers")})
    assert action.body["metadata"]["finalizers"] == [FINALIZER], "it cannot go before it is detached"
    assert action.body["spec"] == {
        "attacher": CSI,
        "nodeName": "node-a",
        "source": {"persistentVolumeName": "v"},
    }
    record = attachment_intent_of(made)
    assert record is not None
    assert (record.handle, record.node_uid, made.annotation(names.NODE_ID)) == ("h-1", "uid-node-a", "aws:///z/node-a")
    step = decide_attachment(NAME, state_with(*bound(), node(), made, drivers=(attaching(),)), LiveReads())
    assert isinstance(step, Delete), "a process that starts now deletes it too, and nothing attaches it"
    assert not step.exact, "whatever else was written to it meanwhile"


def test_the_node_is_read_live_first() -> None:
    action = decide_attachment(NAME, world(), LiveReads())
    assert isinstance(action, Read)
    assert (action.kind, action.key) == (NODES, "node-a")


@pytest.mark.parametrize(
    "live", [node(in_use=[UNIQUE]), node(attached=[UNIQUE])], ids=["uses it", "may begin to use it"]
)
def test_what_its_kubelet_uses_stays(live: Node) -> None:
    action = decided(live=live)
    assert isinstance(action, Wait)
    assert action.reason == "node node-a uses volume v, for which there is no VolumeAttachment"


@pytest.mark.parametrize(
    ("objects", "more"),
    [
        ((), {"seen": 1000.0 - VALID - 0.1}),
        ((), {"uid": "of a former volume of that name"}),
        ((), {"volume": "gone"}),
        ((attachment(name="by-hand"),), {}),
    ],
    ids=[
        "seen before the process was stopped",
        "another volume",
        "no volume",
        "attached by an attachment of another name",
    ],
)
def test_nothing_is_put_back_for(objects: tuple[KubeObject, ...], more: dict[str, Any]) -> None:
    assert decided(*objects, **more) == Settled()


def test_nothing_is_put_back_for_another_machine_of_that_name() -> None:
    assert decided(live=node(uid="made anew")) == Settled()
    assert decide_attachment(NAME, world(), read(NODES, "node-a")) == Settled()


def test_nothing_is_put_back_unless_the_backend_showed_it() -> None:
    state = world()
    state.progress.unrecorded.clear()
    assert decide_attachment(NAME, state, read(NODES, "node-a", node())) == Settled()


def test_only_who_serves_the_attachments_of_a_volume_puts_one_back() -> None:
    volume = bound()[1]
    assert unrecorded_attachment(volume, "node-a", CSI, world()) == NAME
    assert unrecorded_attachment(volume, "node-a", "another.example.com", world()) == ""


def test_a_driver_that_cannot_be_used_now_is_waited_for() -> None:
    assert decided(driver="other.example.com") == Wait(reason="driver other.example.com is not usable")
