"""What the assigner counts on nodes, and which claims, volumes and nodes a change queues."""

from __future__ import annotations

import pytest

from unit.binding.objects import claim, volume
from unit.deciding import DRIVER, disk
from unit.placement.world import GIB, ZONE, World, asking, belonging, local, node, placed, published
from volplane.kube import names
from volplane.kube.cache import Cache
from volplane.kube.objects import StorageClass
from volplane.placement.state import unsuitable
from volplane.state.naming import node_hash

LABEL = {names.NODE: node_hash("a")}
LONG_AGO = "2026-01-01T00:00:00Z"


# --- what is promised -----------------------------------------------------------------------------------------------


def test_a_claim_counts_on_the_node_of_its_label_until_it_is_bound() -> None:
    world = World(local(), node("a"), belonging("a", size="2Gi"))
    assert world.promised("a") == (1, 2 * GIB)
    world.put(asking(version=2, size="2Gi"))
    assert world.promised("a") == (0, 0)
    world.put(belonging("a", version=3, size="2Gi", volumeName="v"))
    assert world.promised("a") == (1, 2 * GIB), "it is not bound yet"
    world.put(belonging("a", version=4, volumeName="v", annotations={names.BIND_COMPLETED: "yes"}))
    assert world.promised("a") == (0, 0)


def test_a_claim_counts_by_the_class_that_comes_after_it() -> None:
    world = World(node("a"), belonging("a"))
    assert world.promised("a") == (0, 0)
    world.put(local())
    assert world.promised("a") == (1, GIB)
    assert "default/c" in world.claims.taken()


def test_a_volume_counts_by_its_label_and_new_ones_with_their_size() -> None:
    world = World(local(), node("a"))
    world.put(placed("old", at="a", labels=LABEL, size="2Gi", creationTimestamp=LONG_AGO))
    assert world.promised("a") == (1, 2 * GIB), "it may be newer than the room"
    later = "2026-01-01T00:01:00Z"
    world.put(placed("new", at="a", labels=LABEL, size="3Gi", creationTimestamp=later))
    world.put(placed("older", at="a", labels=LABEL, size="3Gi", creationTimestamp=LONG_AGO))
    assert world.promised("a") == (3, 5 * GIB), "a minute later room was published"
    world.put(placed("odd", at="a", labels=LABEL, size="7Gi", creationTimestamp="lately"))
    world.put(placed("none", at="a", size="7Gi", creationTimestamp=later))
    foreign = {names.PROVISIONED_BY: "other.example.com"}
    world.put(placed("foreign", at="a", labels=LABEL, annotations=foreign, creationTimestamp=later))
    assert world.promised("a") == (4, 5 * GIB)
    world.cluster.volumes.observe_deleted("new", "uid-new")
    assert world.promised("a") == (3, 2 * GIB)
    world.put(placed("old", at="a", size="2Gi", resourceVersion="2"))
    assert world.promised("a") == (2, 0)


def test_what_a_volume_has_grown_counts_until_room_is_published_anew() -> None:
    world = World(local(), node("a"), node("b", labels={"zone": "a"}))
    made = {"labels": LABEL, "creationTimestamp": LONG_AGO}
    world.put(placed("v", at="a", size="1Gi", **made), published("r", "9Gi", at="a", version=2))
    assert world.promised("a") == (1, 0)
    world.put(placed("v", at="a", size="4Gi", resourceVersion="3", **made))
    assert world.promised("a") == (1, 3 * GIB)
    world.put(published("r", "6Gi", at="a", version=4))
    assert world.promised("a") == (1, 0)
    world.put(placed("v", at="a", size="4Gi", resourceVersion="5", **{**made, "labels": {**LABEL, "x": "y"}}))
    assert world.promised("a") == (1, 0)


@pytest.mark.parametrize(("free", "counted"), [(None, 3), ("3Gi", 3), ("2Gi", 0)])
def test_what_a_claim_asks_to_grow_counts_if_its_node_has_room_for_it(free: str | None, counted: int) -> None:
    world = World(local(), node("a"))
    world.put(node("b"), published("other", "1Gi", at="b"))
    if free is not None:
        world.put(published("r", free, at="a"), published("less", "1Ki", at="a"))
    bound = {"volumeName": "v", "status": {"phase": "Bound"}, "annotations": {names.BIND_COMPLETED: "yes"}}
    item = asking(size="4Gi", **bound)
    made = placed("v", at="a", size="1Gi", labels=LABEL, claim=item, creationTimestamp="lately")
    world.put(made, item)
    assert world.promised("a") == (1, counted * GIB)
    world.put(claim("d", volumeName="v", size="9Gi", storageClassName="fast"))
    assert world.promised("a") == (1, counted * GIB), "another claim names it, too"
    world.put(asking(size="1Gi", version=2, **bound))
    assert world.promised("a") == (1, 0)
    world.put(asking(size="4Gi", version=3, **bound))
    world.cluster.claims.observe_deleted("default/c", "uid-c")
    assert world.promised("a") == (1, 0)


@pytest.mark.parametrize(("free", "counted"), [(None, 1), ("0", 0)])
def test_growth_by_a_single_byte_counts_like_any_other(free: str | None, counted: int) -> None:
    bound = {"volumeName": "v", "status": {"phase": "Bound"}, "annotations": {names.BIND_COMPLETED: "yes"}}
    item = asking(size=str(GIB + 1), **bound)
    world = World(local(), node("a"), *([published("r", free, at="a")] if free is not None else []))
    world.put(placed("v", at="a", size="1Gi", labels=LABEL, claim=item, creationTimestamp="lately"), item)
    assert world.promised("a") == (1, counted)


def test_growth_counts_by_the_volume_that_comes_after_its_claim() -> None:
    item = asking(size="4Gi", volumeName="v", status={"phase": "Bound"}, annotations={names.BIND_COMPLETED: "yes"})
    world = World(local(), node("a"), item)
    world.put(placed("v", at="a", size="1Gi", labels=LABEL, claim=item, creationTimestamp="lately"))
    assert world.promised("a") == (1, 3 * GIB)
    world.put(placed("v", at="a", size="1Gi", labels=LABEL, resourceVersion="2", creationTimestamp="lately"))
    assert world.promised("a") == (1, 0), "it is not the claim's any more"


def test_what_was_in_the_caches_before_the_driver_counts_once_it_is_made() -> None:
    world = World(local(), distributed=[])
    world.put(node("a"), belonging("a"), placed("v", at="a", labels=LABEL, creationTimestamp="lately"))
    assert world.promised("a") == (0, 0)
    driver = disk(topology_keys=("zone", "rack"))
    world.cluster.drivers.distributed = {DRIVER: driver}.get  # type: ignore[method-assign]
    assert list(world.state.nodes.at({"rack": "1"})) == []
    assert [*filter(None, world.state.claims_of_driver(DRIVER))] == ["default/c"]
    assert world.promised("a") == (2, GIB)
    assert "rack" in world.state.nodes.keys
    assert [*world.state.claims_of_driver("other.example.com")] == []
    assert list(world.state.volumes_of_driver(DRIVER)) == ["v"]
    assert list(world.state.volumes_of_driver("other.example.com")) == []


# --- offers ---------------------------------------------------------------------------------------------------------


def offered(world: World, size: str = "1Gi", of_class: StorageClass | None = None) -> dict[str, int | None]:
    driver = world.cluster.drivers.distributed(DRIVER)
    assert driver is not None
    found = world.state.offers(asking(size=size), driver, of_class or local(creationTimestamp=LONG_AGO))
    return {offer.node: offer.free for offer in found}


def test_nodes_offer_what_is_published_without_what_is_promised() -> None:
    world = World(local(), node("a"), node("b"))
    assert offered(world) == {"a": None, "b": None}
    world.put(published("r", "5Gi", at="a"))
    there = {names.NODE: node_hash("b")}
    world.put(placed("x", at="b", labels=there, creationTimestamp="2026-01-01T00:00:59Z"))
    assert offered(world) == {"a": 5 * GIB, "b": None}, "the class is new: other nodes have yet to publish"
    world.put(placed("y", at="b", labels=there, creationTimestamp="2026-01-01T00:01:00Z"))
    assert offered(world) == {"a": 5 * GIB}
    world.put(belonging("a", size="3Gi"))
    assert offered(world) == {"a": 2 * GIB}
    assert offered(world, "2Gi") == {"a": 2 * GIB}
    driver = world.cluster.drivers.distributed(DRIVER)
    assert driver is not None
    [offer] = world.state.offers(asking(), driver, local(creationTimestamp=LONG_AGO))
    assert (offer.volumes, offer.largest) == (1, 5 * GIB)
    assert offered(world, "3Gi") == {}
    world.put(published("r", "5Gi", at="a", version=2, maximumVolumeSize="1Gi"))
    assert offered(world, "1Gi") == {"a": 2 * GIB}
    assert offered(world, "2Gi") == {}


def test_what_the_server_says_of_a_claim_tells_its_time_too() -> None:
    world = World(local(), node("a"), node("b"), published("r", "5Gi", at="a"))
    assert "b" in offered(world)
    world.put(asking(creationTimestamp="2026-01-01T00:01:00Z"))
    assert "b" not in offered(world)


def test_time_goes_on_for_a_new_class_though_nothing_is_made() -> None:
    world = World(local(), node("a"), node("b"), published("r", "5Gi", at="a"))
    world.put(placed("x", at="b", creationTimestamp=LONG_AGO))
    assert "b" in offered(world)
    world.now += 59
    assert "b" in offered(world)
    world.now += 1
    assert "b" not in offered(world)


def test_nodes_that_come_go_or_change_are_offered_as_they_are() -> None:
    world = World(local(), node("a"))
    assert offered(world) == {"a": None}
    world.put(node("b"))
    assert offered(world) == {"a": None, "b": None}
    world.put(node("a", version=2, unschedulable=True))
    assert offered(world) == {"b": None}
    of_b = [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]
    changed = local(resourceVersion="2", allowedTopologies=of_b)
    assert offered(world, of_class=changed) == {}


def test_what_keeps_a_node_from_taking_volumes_is_named() -> None:
    driver = disk(topology_keys=("zone", "rack"))
    assert unsuitable(node("a"), driver, ()) == "without the label rack"
    whole = node("a", labels={"zone": "a", "rack": "1"})
    assert unsuitable(whole, driver, ()) == ""
    assert unsuitable(whole, driver, ({"zone": "b"}, {"zone": "a", "rack": "1"})) == ""
    assert unsuitable(whole, driver, ({"zone": "a", "rack": "2"},)) == "outside the allowedTopologies"


# --- what a change queues -------------------------------------------------------------------------------------------


def test_a_claim_is_queued_by_its_own_changes_and_by_those_of_its_volume() -> None:
    world = World(local(), asking())
    assert world.claims.taken() == ["default/c"]
    item = asking()
    world.put(volume("v", claim=item))
    assert (world.volumes.taken(), world.claims.taken()) == (["v"], ["default/c"])
    world.put(volume("v", claim=item, resourceVersion="2", status={"phase": "Bound"}))
    assert (world.volumes.taken(), world.claims.taken()) == ([], [])
    world.put(volume("v", claim=item, resourceVersion="3", labels={"x": "y"}))
    assert (world.volumes.taken(), world.claims.taken()) == (["v"], ["default/c"])
    world.cluster.volumes.observe_deleted("v", "uid-v")
    assert (world.volumes.taken(), world.claims.taken()) == (["v"], ["default/c"])
    world.cluster.claims.observe_deleted("default/c", "uid-c")
    assert world.claims.taken() == []


def test_a_node_that_changes_queues_what_is_on_it_and_what_waits_for_one() -> None:
    world = World(local(), node("a"), node("b"))
    world.put(asking(selected="a"))
    world.put(claim("d", storageClassName="fast", labels=LABEL))
    world.put(claim("e", storageClassName="fast", labels={names.NODE: node_hash("b")}))
    world.put(claim("f", storageClassName="fast"))
    world.put(placed("v", at="b"), placed("w", at="a", annotations={names.PROVISIONED_BY: "other.example.com"}))
    world.state.waiting.update({"default/z", "default/y"})
    for queue in (world.claims, world.volumes, world.nodes):
        queue.taken()
    world.put(node("a", version=2))
    assert (world.claims.taken(), world.volumes.taken(), world.nodes.taken()) == ([], [], [])
    world.put(node("a", version=3, ready="False"))
    assert (world.claims.taken(), world.volumes.taken()) == (["default/c", "default/d"], [])
    assert world.nodes.taken() == ["a"]
    world.put(node("b", version=2, ready="False"))
    assert (world.claims.taken(), world.volumes.taken()) == (["default/e"], [])
    world.put(node("b", version=3))
    assert (world.claims.taken(), world.volumes.taken()) == (["default/y", "default/z", "default/e"], [])
    world.cluster.nodes.observe_deleted("b", "uid-b")
    assert (world.claims.taken(), world.volumes.taken()) == (["default/e"], ["v"])


def test_a_node_that_changes_costs_nothing_for_what_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(local(), node("a"), node("b"))
    world.put(*(placed(f"v{number}", at="b") for number in range(500)), placed("mine", at="a"))
    world.put(*(claim(f"c{number}", labels={names.NODE: node_hash("b")}) for number in range(500)))
    world.volumes.taken()
    world.claims.taken()
    monkeypatch.delattr(Cache, "values")  # Nothing is walked through.
    world.put(node("a", version=2, unschedulable=True))
    assert (world.volumes.taken(), world.claims.taken()) == ([], [])
    world.cluster.nodes.observe_deleted("a", "uid-a")
    assert (world.volumes.taken(), world.claims.taken()) == (["mine"], [])


def test_a_node_that_moves_queues_what_was_and_what_is_at_its_place() -> None:
    world = World(local(), node("a"))
    world.put(placed("there", at="a"), placed("elsewhere", at="c"))
    world.volumes.taken()
    world.put(node("a", version=2, labels={ZONE: "c"}))
    assert world.volumes.taken() == ["there", "elsewhere"]


def test_nodes_whose_names_have_one_hash_are_queued_together() -> None:
    world = World(local())
    world.state.nodes.hashed = lambda _name: "same"
    world.put(node("a"), node("b"))
    assert world.nodes.taken() == ["a", "b", "a"]


def test_published_room_queues_what_waits_for_it_a_moment_later() -> None:
    world = World(local(), node("a"))
    world.state.waiting.update({"default/z", "default/y"})
    world.put(published("r", "1Gi", at="a"))
    assert (world.claims.keys, world.claims.afters) == (["default/y", "default/z"], [1.0, 1.0])
    world.claims.taken()
    world.put(published("r", "1Gi", at="a", version=2))
    assert world.claims.taken() == []
    world.put(published("r", "2Gi", at="a", version=3))
    assert world.claims.taken() == ["default/y", "default/z"]
    world.cluster.capacities.observe_deleted("volplane-system/r", "uid-r")
    assert world.claims.taken() == []


def test_a_claim_that_has_ended_waits_for_no_node() -> None:
    world = World(local(), node("a"), belonging("a"))
    world.put(asking(version=2))
    assert world.state.refused == {"uid-c": {"a": 1060.0}}
    world.state.waiting.add("default/c")
    world.put(asking(version=3, volumeName="v"))
    assert (world.state.refused, world.state.since, world.state.waiting) == ({}, {}, set())


def test_only_a_node_that_had_the_claim_has_given_it_back() -> None:
    world = World(local(), node("a"), asking(selected="a"))
    world.put(asking(version=2))
    assert world.state.refused == {}


def test_the_time_for_an_answer_begins_with_the_label() -> None:
    world = World(local(), node("a"), asking())
    assert world.state.since == {}
    world.now += 5
    world.put(belonging("a", version=2))
    assert world.state.since == {"uid-c": (node_hash("a"), 1005.0)}
    world.now += 5
    world.put(belonging("a", version=3))
    assert world.state.since == {"uid-c": (node_hash("a"), 1005.0)}
