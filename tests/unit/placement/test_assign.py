"""Which node a claim is given to, when it leaves it, and what is said of volumes whose node is gone."""

from __future__ import annotations

from typing import Any

import pytest

from unit.binding.objects import claim
from unit.deciding import DRIVER, read
from unit.placement.world import GIB, NOWHERE, World, asking, belonging, for_node, local, node, placed, published
from volplane.controller.actions import Patch, Read, Settled, Wait
from volplane.kube import names
from volplane.kube.kinds import NODES
from volplane.kube.objects import Claim
from volplane.placement.assign import decide_membership
from volplane.state.naming import node_hash
from volplane.state.records import Sealer

GOING = "2026-01-01T00:00:00Z"
OURS = [names.PROVISIONING_FINALIZER]


def metadata(action: Any) -> dict[str, Any]:
    """What a patch of the claim changes."""
    assert isinstance(action, Patch), action
    assert action.target.name == "c"
    assert action.body.keys() == {"metadata"}
    found: dict[str, Any] = action.body["metadata"]
    return found


def said(action: Any) -> list[tuple[str, str, str]]:
    return [(event.type, event.reason, event.message) for event in action.events]


# --- claims without a node ------------------------------------------------------------------------------------------


def test_a_claim_is_given_to_a_node_and_counts_there_until_the_write_is_answered() -> None:
    world = World(local(), node("a"), asking(size="3Gi"))
    action = world.decided()
    assert metadata(action) == for_node("a", select=True)
    assert world.promised("a") == (1, 3 * GIB)
    assert world.state.last == {"fast": "a"}
    world.decided()
    assert world.promised("a") == (1, 3 * GIB)
    world.cluster.claims.observe_deleted("default/c", "uid-c")
    assert world.promised("a") == (0, 0)


HELLO = {"apiGroup": "example.com", "kind": "Hello", "name": "h"}
COPY = {"kind": "PersistentVolumeClaim", "name": "other"}


@pytest.mark.parametrize("selected", [None, "a"])
def test_a_claim_with_a_source_gets_no_node_and_keeps_the_one_it_has(selected: str | None) -> None:
    """No process of a node would begin with it, so that it would be given from node to node."""
    world = World(local(), node("a"), asking(selected=selected, dataSourceRef=HELLO))
    world.now += 10_000.0
    assert said(world.decided()) == [
        ("Normal", "Provisioning", "Assuming an external populator will provision the volume")
    ]
    assert world.state.waiting == set(), "a node that comes does not help it"
    refused = World(local(), node("a"), asking(selected=selected, dataSource=COPY)).decided()
    [(_, reason, message)] = said(refused)
    assert (reason, message.partition(", ")[2]) == (
        "ProvisioningFailed",
        "which make empty volumes only; remove spec.dataSource",
    )


def test_a_claim_that_is_gone_is_nothing_to_decide_about() -> None:
    world = World(local(), asking())
    assert isinstance(world.decided(), Wait)
    assert world.state.waiting == {"default/c"}
    world.cluster.claims.observe_deleted("default/c", "uid-c")
    assert world.decided() == Settled()
    assert world.state.waiting == set()


@pytest.mark.parametrize(
    ("item", "of_class", "reason"),
    [
        (
            claim("c", storageClassName="fast"),
            local(),
            f'the binder has not asked driver "{DRIVER}" for a volume',
        ),
        (asking(), local(volumeBindingMode="WaitForFirstConsumer"), "the scheduler has not selected a node"),
    ],
    ids=["nobody asked", "it waits for a pod"],
)
def test_no_node_is_chosen_while_somebody_else_is_to_speak_first(item: Claim, of_class: Any, reason: str) -> None:
    world = World(of_class, node("a"), published("a1", "1Gi", "a"), item)
    assert world.decided() == Wait(reason=reason)


def test_a_claim_that_waits_for_the_scheduler_says_that_no_process_of_a_node_told_of_room() -> None:
    """Such a pod is not scheduled, and the scheduler says no more than that there is not enough free storage."""
    world = World(local(volumeBindingMode="WaitForFirstConsumer"), node("a"), asking())
    asked = "are the processes of nodes ready (kubectl -n volplane-system-nodes get pods)?"
    reason = f"the scheduler has not selected a node; no node has told of room in its class: {asked}"
    assert world.decided() == Wait(reason=reason)
    world.put(published("a1", "1Gi", "a"))
    assert world.decided() == Wait(reason="the scheduler has not selected a node")


def test_where_others_choose_the_nodes_none_is_chosen() -> None:
    world = World(local(), node("a"), asking(), external_choice=True)
    assert world.decided() == Wait(reason=f"nobody has selected a node (annotation {names.SELECTED_NODE})")


def test_claims_of_other_drivers_are_left_alone() -> None:
    assert World(local(provisioner="other.example.com"), node("a"), asking()).decided() == Settled()
    assert World(node("a"), asking()).decided() == Settled()


def test_the_driver_of_an_intent_is_asked_whatever_the_class_says() -> None:
    world = World(node("a"))
    world.put(asking(annotations=world.sealed()))
    assert world.decided() == Wait(reason="its class does not exist")
    assert world.state.waiting == {"default/c"}


def test_a_claim_waits_for_a_driver_that_is_being_made() -> None:
    world = World(local(), node("a"), asking(), distributed=[])
    world.cluster.drivers.on_nodes = lambda name: name == DRIVER  # type: ignore[method-assign]
    assert world.decided() == Wait(reason=f'driver "{DRIVER}" is starting')
    world.put(asking(volumeName="v", version=2))
    assert world.decided() == Settled()


def test_wrong_parameters_of_a_class_are_said() -> None:
    action = World(local(parameters={names.PLACEMENT: "by mood"}), node("a"), asking()).decided()
    assert isinstance(action, Wait)
    assert action.reason.startswith('class "fast": parameter ')
    assert said(action) == [("Warning", "ProvisioningFailed", action.reason)]


def test_a_class_may_say_how_its_nodes_are_chosen() -> None:
    turns = local(parameters={names.PLACEMENT: "round-robin"})
    world = World(turns, node("a"), node("b"), asking())
    world.state.last["fast"] = "a"
    assert metadata(world.decided())["annotations"][names.SELECTED_NODE] == "b"
    assert world.state.last == {"fast": "b"}
    assert metadata(world.decided())["annotations"][names.SELECTED_NODE] == "a"


def test_nodes_take_turns_for_claims_that_name_their_class_in_the_old_way_too() -> None:
    """By an annotation, which the API server still takes."""
    turns = local(parameters={names.PLACEMENT: "round-robin"})
    item = asking(storageClassName=None, annotations={names.BETA_STORAGE_CLASS: "fast"})
    world = World(turns, node("a"), node("b"), item)
    nodes = [metadata(world.decided())["annotations"][names.SELECTED_NODE] for _ in range(3)]
    assert nodes == ["a", "b", "a"]


def test_a_claim_that_came_back_loses_the_label_of_the_node_that_it_was_on() -> None:
    action = World(local(), node("a"), asking(label="a")).decided()
    assert metadata(action) == {"labels": {names.NODE: None}, "annotations": {names.NODE_UID: None}}


def test_where_no_node_can_take_a_claim_it_is_said_why_of_each() -> None:
    topologies = [{"matchLabelExpressions": [{"key": "zone", "values": ["b", "c", "d", "e"]}]}]
    nodes = (
        node("a"),
        node("b", unschedulable=True),
        node("c", ready="False"),
        node("d", labels={}),
        node("e"),
    )
    world = World(local(allowedTopologies=topologies), *nodes, asking(size="2Gi"), published("r", "1Gi", at="e"))
    action = world.decided()
    text = (
        "no node can take it; of the nodes are 2 not ready, cordoned or tainted, 1 outside the allowedTopologies, "
        "1 without room for it, 1 without the label zone"
    )
    assert action.reason == text
    assert said(action) == [("Warning", "ProvisioningFailed", text)]
    assert action.seconds == 60.0
    assert world.state.waiting == {"default/c"}
    world.put(node("e", version=2, unschedulable=True))
    assert "default/c" in world.claims.taken()
    empty = World(local(), asking()).decided()
    assert empty.reason == "no node can take it; of the nodes are there are none"


def test_a_node_that_gave_a_claim_back_is_not_tried_for_it_again_at_once() -> None:
    world = World(local(), node("a"), belonging("a"))
    world.now += 5
    world.put(asking(version=2))
    world.now += 20
    action = world.decided()
    assert action.reason == "no node can take it; of the nodes are 1 full, by their answer"
    assert action.seconds == 40.0
    world.put(node("b"))
    assert metadata(world.decided()) == for_node("b", select=True)
    world.cluster.nodes.observe_deleted("b", "uid-b")
    world.now += 40
    assert metadata(world.decided()) == for_node("a", select=True)


# --- claims whose node is selected ----------------------------------------------------------------------------------


def test_a_claim_becomes_that_of_the_node_that_was_selected_for_it() -> None:
    action = World(local(), node("a"), asking(selected="a")).decided()
    assert metadata(action) == for_node("a")
    former = {names.NODE_UID: "uid-before"}
    renewed = World(local(), node("a"), asking(label="a", selected="a", annotations=former)).decided()
    assert metadata(renewed) == for_node("a")
    unasked = World(local(), node("a"), claim("c", storageClassName="fast", annotations={names.SELECTED_NODE: "a"}))
    assert unasked.decided() == Wait(reason=f'the binder has not asked driver "{DRIVER}" for a volume')
    assert unasked.state.waiting == set(), "a node that comes changes nothing about it"


def test_a_claim_whose_selected_node_does_not_exist_is_given_back() -> None:
    world = World(local(), asking(selected="gone"))
    assert world.decided() == Read(NODES, "gone", why="does the selected node exist?")
    there = world.decided(read(NODES, "gone", node("gone")))
    assert there == Wait(reason="node gone has just been made", seconds=1.0)
    action = world.decided(read(NODES, "gone"))
    assert metadata(action) == NOWHERE
    assert said(action) == [
        ("Warning", "ProvisioningFailed", 'selected node "gone" does not exist; another one is asked for')
    ]


def test_a_node_has_a_minute_for_its_answer_though_its_class_waits_for_no_node() -> None:
    world = World(local(parameters={names.NODE_GONE_AFTER: "0s"}), node("a"), belonging("a"))
    waits = "the process of node a has not begun to make its volume"
    world.now += 59
    assert world.decided() == Wait(reason=waits, seconds=1.0)
    world.now += 1
    action = world.decided()
    assert metadata(action) == NOWHERE
    text = "node a does not answer: no process of volplane serves it; another one is asked for"
    assert said(action) == [("Warning", "ProvisioningFailed", text)]


def test_a_node_that_is_away_is_waited_for_as_long_as_the_class_says() -> None:
    world = World(local(parameters={names.NODE_GONE_AFTER: "90s"}), node("a"), belonging("a"))
    world.now += 10
    world.put(node("a", version=2, ready="Unknown"))
    world.now += 30
    waits = "the process of node a has not begun to make its volume"
    assert world.decided() == Wait(reason=waits, seconds=50.0), "its silence is longer than its absence"
    world.now += 50
    assert metadata(world.decided()) == NOWHERE


def test_a_node_that_went_while_its_process_may_still_answer_is_read_live_first() -> None:
    world = World(local(parameters={names.NODE_GONE_AFTER: "30s"}), node("a"), belonging("a"))
    world.put(node("a", version=2, ready="Unknown"))
    waits = "the process of node a has not begun to make its volume"
    world.now += 20
    assert world.decided() == Wait(reason=waits, seconds=10.0)
    world.now += 10
    assert world.decided() == Read(NODES, "a", why="is the node really gone?")
    back = world.decided(read(NODES, "a", node("a", version=3)))
    assert back == Wait(reason="node a is there again", seconds=1.0)
    action = world.decided(read(NODES, "a", node("a", version=3, ready="Unknown")))
    assert metadata(action) == NOWHERE
    text = "node a is gone or not ready; another one is asked for"
    assert said(action) == [("Warning", "ProvisioningFailed", text)]


# --- claims that were begun -----------------------------------------------------------------------------------------


def begun(world: World, name: str = "a", **fields: Any) -> Claim:
    """Claim `c` whose asset may be at this node."""
    annotations = world.sealed(segment={"zone": name}) | fields.pop("annotations", {})
    whole = {"label": name, "selected": name, "finalizers": OURS, **fields}
    return asking(annotations={names.NODE_UID: f"uid-{name}", **annotations}, **whole)


def test_a_claim_that_was_begun_stays_with_its_node() -> None:
    world = World(local(), node("a"), node("b"))
    world.put(begun(world))
    assert world.decided() == Wait(reason="the process of node a makes its volume")
    world.put(begun(world, version=2, label="b"))
    assert metadata(world.decided()) == for_node("a")


def test_of_two_nodes_at_one_place_the_selected_one_keeps_the_claim() -> None:
    world = World(local(), node("a"), node("b", labels={"zone": "a"}))
    world.put(begun(world, selected="b", label="b", annotations={names.NODE_UID: "uid-b"}))
    assert world.decided() == Wait(reason="the process of node b makes its volume")
    world.put(begun(world, version=2, selected="c", label="b"))
    assert metadata(world.decided()) == for_node("a")


def test_what_a_node_began_is_given_up_only_after_the_time_of_the_class() -> None:
    world = World(local(parameters={names.NODE_GONE_AFTER: "2m"}), node("a"))
    world.put(begun(world))
    world.put(node("a", version=2, ready="Unknown"))
    world.now += 50
    reason = "node a is gone or not ready; the claim goes to another one if it stays so"
    assert world.decided() == Wait(reason=reason, seconds=70.0)
    world.now += 70
    assert world.decided() == Read(NODES, "a", why="is the node really gone?")
    assert world.decided(read(NODES, "a", node("a", version=3))) == Wait(reason="node a is there again", seconds=1.0)
    elsewhere = read(NODES, "a", node("a", version=3, labels={"zone": "other"}))
    for reads in (elsewhere, read(NODES, "a"), read(NODES, "a", node("a", version=3, ready="False"))):
        action = world.decided(reads)
        changed = metadata(action)
        later = world.intent(changed["annotations"].pop(names.INTENT))
        assert changed == NOWHERE
        assert later is not None
        assert (later.driver, later.generation, later.segment) == (DRIVER, 2, None)
        [(kind, why, message)] = said(action)
        assert (kind, why) == ("Warning", "ProvisioningFailed")
        assert message.startswith("node a is gone; what it may have made for the claim is left there")


def test_of_a_place_without_a_node_the_selected_name_counts() -> None:
    world = World(local(parameters={names.NODE_GONE_AFTER: "2m"}))
    world.put(begun(world))
    assert isinstance(world.decided(), Wait)
    world.now += 20
    reason = "node a is gone or not ready; the claim goes to another one if it stays so"
    assert world.decided() == Wait(reason=reason, seconds=100.0)
    world.now += 100
    assert world.decided() == Read(NODES, "a", why="is the node really gone?")


def test_a_place_without_a_node_and_a_selection_is_given_up_without_a_question() -> None:
    world = World(local(parameters={names.NODE_GONE_AFTER: "2m"}))
    world.put(asking(label="a", finalizers=OURS, annotations=world.sealed(segment={"zone": "a"})))
    assert world.decided() == Wait(reason="the process of node a makes its volume")
    world.now += 20
    assert "node a is gone or not ready" in world.decided().reason
    world.now += 100
    assert metadata(world.decided())["labels"] == {names.NODE: None}


@pytest.mark.parametrize(
    ("fields", "selected"),
    [({"deletionTimestamp": GOING}, {names.SELECTED_NODE: None}), ({"volumeName": "v"}, {})],
    ids=["it is deleted", "it has a volume"],
)
def test_a_claim_for_which_nothing_is_wanted_any_more_is_let_go(
    fields: dict[str, Any], selected: dict[str, None]
) -> None:
    world = World(local(parameters={names.NODE_GONE_AFTER: "2m"}))
    world.put(begun(world, finalizers=["other", *OURS], **fields))
    world.decided()
    world.now += 120
    assert metadata(world.decided(read(NODES, "a"))) == {
        "labels": {names.NODE: None},
        "annotations": {names.NODE_UID: None, names.INTENT: None, **selected},
        "finalizers": ["other"],
    }


def test_an_intent_that_has_ended_or_names_no_place_keeps_no_node() -> None:
    world = World(local(), node("b"))
    world.put(asking(finalizers=OURS, annotations=world.sealed(segment={})))
    assert metadata(world.decided()) == for_node("b", select=True)


def test_a_claim_that_is_deleted_before_it_had_a_node_is_let_go() -> None:
    world = World(local(), node("a"))
    world.put(asking(deletionTimestamp=GOING))
    assert world.decided() == Settled()
    world.put(asking(version=2, deletionTimestamp=GOING, selected="a"))
    assert world.decided() == Settled()
    world.put(asking(version=3, deletionTimestamp=GOING, finalizers=OURS, annotations=world.sealed()))
    assert metadata(world.decided()) == {"annotations": {names.INTENT: None}, "finalizers": None}


def test_the_process_of_the_selected_node_finds_out_what_a_damaged_record_was_about() -> None:
    damaged = {names.INTENT: "{}"}
    world = World(local(), node("a"))
    world.put(asking(selected="a", deletionTimestamp=GOING, finalizers=OURS, annotations=damaged))
    assert metadata(world.decided()) == for_node("a")
    world.put(belonging("a", version=2, deletionTimestamp=GOING, finalizers=OURS, annotations=damaged))
    assert world.decided() == Settled()
    world.put(asking(version=3, deletionTimestamp=GOING, finalizers=OURS, annotations=damaged))
    assert world.decided() == Settled()


# --- claims with a volume -------------------------------------------------------------------------------------------


def test_a_claim_is_labelled_like_its_volume() -> None:
    label = {names.NODE: node_hash("a")}
    lies = placed("v", at="a", labels=label, annotations={names.NODE_UID: "uid-a"})
    world = World(local(), node("a"), lies, asking(volumeName="v"))
    assert metadata(world.decided()) == {"labels": label, "annotations": {names.NODE_UID: "uid-a"}}
    world.put(asking(version=2, volumeName="v", label="a"))
    assert world.decided() == Settled()
    world.put(asking(version=3, volumeName="w"))
    assert world.decided() == Settled()
    world.put(asking(version=4, volumeName="u"), placed("u", at="a"))
    assert world.decided() == Settled(), "its volume has no label yet"
    foreign = placed("f", at="a", labels=label, annotations={names.PROVISIONED_BY: "other.example.com"})
    world.put(asking(version=5, volumeName="f"), foreign)
    assert world.decided() == Settled()


# --- volumes --------------------------------------------------------------------------------------------------------


def test_a_volume_gets_the_label_of_the_node_that_it_lies_on() -> None:
    world = World(node("a"), placed("v", at="a"))
    action = decide_membership("v", world.state)
    assert isinstance(action, Patch)
    assert action.body == {"metadata": for_node("a")}
    assert action.target.name == "v"
    world.put(placed("v", at="a", resourceVersion="2", annotations={names.NODE_UID: "uid-a"}))
    again = decide_membership("v", world.state)
    assert isinstance(again, Patch)
    assert again.body == {"metadata": {"labels": {names.NODE: node_hash("a")}}}, "the uid that it has stays"
    whole = {"labels": {names.NODE: node_hash("a")}, "annotations": {names.NODE_UID: "uid-a"}}
    world.put(placed("v", at="a", resourceVersion="3", **whole))
    assert decide_membership("v", world.state) == Settled()
    assert decide_membership("gone", world.state) == Settled()
    foreign = placed("w", at="a", annotations={names.PROVISIONED_BY: "other.example.com"})
    world.put(foreign)
    assert decide_membership("w", world.state) == Settled()


def test_a_volume_whose_node_is_gone_is_said_to_be_lost_until_it_is_back() -> None:
    used = asking(volumeName="v", status={"phase": "Bound"})
    world = World(used, placed("v", at="a", claim=used, annotations={names.NODE_UID: "uid-a"}))
    why = "its node (zone=a) is gone: it is lost, unless the node comes back"
    action = decide_membership("v", world.state)
    assert isinstance(action, Wait)
    assert action.reason == why
    assert said(action) == [("Warning", "VolumeLost", why), ("Warning", "VolumeLost", f"volume v: {why}")]
    assert [event.about.name for event in action.events] == ["v", "c"]
    assert world.state.lost == {"v": why}
    assert world.state.count_lost() == {DRIVER: 1}
    world.put(placed("v", at="a", claim=used, annotations={names.NODE_UID: "uid-a"}, resourceVersion="2"))
    assert world.state.lost == {"v": why}, "until it is decided anew"
    world.put(node("a", uid="uid-anew"))
    assert isinstance(decide_membership("v", world.state), Patch)
    assert "was made again (uid uid-anew, before uid-a)" in world.state.lost["v"]
    world.put(node("a", version=2))
    decide_membership("v", world.state)
    assert world.state.lost == {}
    assert world.state.count_lost() == {DRIVER: 0}


def test_a_volume_of_which_nobody_noted_the_node_is_there_when_a_node_of_its_place_is() -> None:
    world = World(node("a", uid="uid-anew"), placed("v", at="a"))
    decide_membership("v", world.state)
    assert world.state.lost == {}


def test_a_volume_without_a_claim_that_is_lost_is_said_once() -> None:
    world = World(placed("v", at="a", annotations={names.NODE_UID: "uid-a"}))
    action = decide_membership("v", world.state)
    assert isinstance(action, Wait)
    assert len(action.events) == 1
    world.cluster.volumes.observe_deleted("v", "uid-v")
    assert world.state.lost == {}
    assert decide_membership("v", world.state) == Settled()


def test_of_two_nodes_at_one_place_a_volume_stays_with_that_of_its_label() -> None:
    both = (node("a"), node("b", labels={"zone": "a"}))
    label = {names.NODE: node_hash("b")}
    world = World(*both, placed("v", at="a", labels=label, annotations={names.NODE_UID: "uid-b"}))
    assert decide_membership("v", world.state) == Settled()
    assert world.state.lost == {}


def test_records_that_the_processes_of_nodes_cannot_read_are_sealed_anew() -> None:
    world = World(local(), node("a"))
    former = world.sealed(segment={"zone": "a"})
    nodes = Sealer(b"n" * 32)
    world.cluster.sealer = Sealer(b"k" * 32, nodes=nodes, on_nodes=(DRIVER,))
    world.put(belonging("a", finalizers=OURS, annotations=former))
    changed = metadata(world.decided())
    assert changed.keys() == {"annotations"}
    opened = nodes.open("uid-c", changed["annotations"][names.INTENT])
    assert opened is not None
    assert opened.segment == {"zone": "a"}
