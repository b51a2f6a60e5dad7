"""Processes of nodes that compete for claims, where no assigner places them."""

from __future__ import annotations

from typing import Any

import pytest

from unit.binding.objects import storage_class
from unit.deciding import DRIVER, HOOKS, disk, read, state_with
from unit.placement.world import asking, belonging, for_node, local, node
from volplane.controller.actions import LiveReads, Patch, Read, Run, Wait
from volplane.kube.kinds import NODES
from volplane.kube.objects import Claim, KubeObject
from volplane.placement.one_node import RaceTimes, decide_race, take_again
from volplane.state.naming import volume_name_of


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def raced(
    *objects: KubeObject,
    item: Claim | None = None,
    hooks: frozenset[str] = HOOKS,
    race: RaceTimes | None = None,
    of_class: Any = None,
) -> Any:
    """What the process of node `a` decides about a claim that has waited for long."""
    driver = disk(topology_keys=("zone",), hooks=hooks)
    cluster = state_with(*objects, drivers=[driver], node_name="a")
    times = race or RaceTimes(node="a", base=0.0, longest=60.0, monotonic=Clock())
    return decide_race(item or asking(), of_class or local(), driver, cluster, times)


def test_a_node_takes_a_claim_by_a_write_that_names_it() -> None:
    action = raced(node("a"))
    assert isinstance(action, Patch)
    assert action.body == {"metadata": for_node("a", select=True)}


def test_there_is_no_race_for_a_claim_that_has_a_node_or_goes_or_waits_for_a_pod() -> None:
    assert raced(node("a"), item=asking(selected="b")) is None
    assert raced(node("a"), item=asking(deletionTimestamp="2026-01-01T00:00:00Z")) is None
    assert raced(node("a"), of_class=local(volumeBindingMode="WaitForFirstConsumer")) is None
    assert raced() is None, "its own node is not known"


def test_where_others_choose_the_nodes_there_is_no_race() -> None:
    race = RaceTimes(node="a", base=0.0, longest=60.0, monotonic=Clock(), external_choice=True)
    assert "nobody has selected a node" in raced(node("a"), race=race).reason


def test_a_node_that_can_take_no_volume_leaves_the_claim_to_others() -> None:
    action = raced(node("a", unschedulable=True))
    assert action == Wait(reason="node a cannot take it: it is not ready, cordoned or tainted")
    topologies = [{"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]}]
    elsewhere = raced(node("a"), of_class=storage_class("fast", DRIVER, allowedTopologies=topologies))
    assert elsewhere == Wait(reason="node a cannot take it: it is outside the allowedTopologies")


def test_a_driver_that_knows_its_room_is_asked_before_a_claim_is_taken() -> None:
    clock = Clock()
    race = RaceTimes(node="a", base=0.0, longest=60.0, monotonic=clock)
    hooks = HOOKS | {"get_capacity"}
    asked = Run(verb="check-room", key="default/c", uid="uid-c", driver=DRIVER, asset="room for pvc-uid-c")
    assert volume_name_of(asking()) == "pvc-uid-c"
    assert raced(node("a"), hooks=hooks, race=race) == asked
    race.room_seen("uid-c", enough=False)
    full = Wait(reason="there is no room for it on node a", seconds=60.0)
    assert raced(node("a"), hooks=hooks, race=race) == full
    clock.now += 59
    assert raced(node("a"), hooks=hooks, race=race) == full
    clock.now += 1
    assert raced(node("a"), hooks=hooks, race=race) == asked
    race.room_seen("uid-c", enough=True)
    assert isinstance(raced(node("a"), hooks=hooks, race=race), Patch)


def test_a_node_waits_for_its_turn() -> None:
    clock = Clock()
    race = RaceTimes(node="a", base=10.0, longest=60.0, monotonic=clock)
    race.claim_changed(None, asking())
    first = race.left(asking())
    assert 0 < first < 10
    action = raced(node("a"), race=race)
    assert action == Wait(reason="the processes of other nodes may take it first", seconds=first)
    clock.now += 4
    assert race.left(asking()) == pytest.approx(first - 4)
    race.claim_changed(asking(), asking(version=2))
    assert race.left(asking()) == pytest.approx(first - 4), "a change of something else begins nothing anew"
    clock.now += first - 4
    assert isinstance(raced(node("a"), race=race), Patch)


def test_every_node_and_every_claim_has_a_turn_of_its_own() -> None:
    def turns(of_node: str) -> list[float]:
        race = RaceTimes(node=of_node, base=10.0, longest=60.0, monotonic=Clock())
        items = [asking(uid=f"uid-{number}") for number in range(50)]
        for item in items:
            race.claim_changed(None, item)
        return [race.left(item) for item in items]

    one, other = turns("a"), turns("b")
    assert one == turns("a")
    assert len({*one, *other}) == 100
    assert all(0 <= each <= 10 for each in one)
    assert max(one) - min(one) > 7


def test_a_claim_that_was_given_back_is_waited_for_longer_each_time() -> None:
    clock = Clock()
    race = RaceTimes(node="a", base=10.0, longest=60.0, monotonic=clock)
    least = []
    race.claim_changed(None, asking())
    for version in range(2, 12, 2):
        least.append(race.left(asking()))
        clock.now += 100
        race.claim_changed(asking(), asking(selected="b", version=version))
        race.claim_changed(asking(selected="b"), asking(version=version + 1))
    bounds = [(0, 10), (10, 20), (30, 40), (50, 60), (50, 60)]
    assert all(low <= each <= high for each, (low, high) in zip(least, bounds, strict=True)), least


@pytest.mark.parametrize("end", [None, asking(volumeName="v")], ids=["gone", "bound"])
def test_of_a_claim_that_has_ended_nothing_is_remembered(end: Claim | None) -> None:
    race = RaceTimes(node="a", base=10.0, longest=60.0, monotonic=Clock())
    race.claim_changed(None, asking())
    race.claim_changed(asking(selected="b"), asking())
    race.room_seen("uid-c", enough=False)
    race.claim_changed(asking(), end)
    assert race.room("uid-c") is None
    race.claim_changed(None, asking())
    assert race.left(asking()) <= 10, "it begins with the first attempt"


def test_a_claim_that_was_taken_for_a_former_node_of_the_name_is_taken_again() -> None:
    item = belonging("a")

    def taken(subject: Claim, *objects: KubeObject, reads: LiveReads | None = None) -> Any:
        cluster = state_with(*objects, drivers=[disk()], node_name="a")
        return take_again(subject, cluster, reads or LiveReads())

    assert taken(item) is None
    assert taken(item, node("a")) is None
    assert taken(asking(selected="a"), node("a")) is None
    assert taken(belonging("b"), node("a", uid="uid-anew")) is None
    renewed = node("a", uid="uid-anew")
    assert taken(item, renewed) == Read(NODES, "a", why="is this still our Node?")
    action = taken(item, renewed, reads=read(NODES, "a", renewed))
    assert isinstance(action, Patch)
    expected = for_node("a")
    expected["annotations"] = {"volplane.dev/node-uid": "uid-anew"}
    assert action.body == {"metadata": expected}
    other = taken(item, renewed, reads=read(NODES, "a", node("a", uid="uid-newest")))
    assert other == Wait(reason="node a is gone, or was made again", seconds=1.0)
