"""What is published of the room on nodes, when it is measured, and when it is removed."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from unit.binding.objects import claim, storage_class, volume
from unit.deciding import DRIVER, disk, read, state_with
from unit.placement.world import GIB, Keys, local, node, placed
from volplane.assets import Capacity
from volplane.controller.actions import Create, Delete, LiveReads, Patch, Read, Run, Settled, Wait
from volplane.kube import names
from volplane.kube.kinds import CAPACITIES, NODES
from volplane.kube.objects import CsiStorageCapacity, KubeObject
from volplane.placement.capacity import CapacityState, decide_capacity
from volplane.state.naming import node_hash

NAMESPACE = "volplane-system"
HERE = {names.CAPACITY_DRIVER: DRIVER, names.CAPACITY_PUBLISHER: "volplane"}


def key_of(at: str, of_class: str = "fast", driver: str = DRIVER) -> str:
    text = msgspec.json.encode([driver, of_class, [("zone", at)]])
    return f"{NAMESPACE}/csisc-{hashlib.sha256(text).hexdigest()[:16]}"


class Publisher:
    """A process that publishes: of node `a` alone, or of the cluster. The clock shows 1000."""

    def __init__(self, *objects: KubeObject, node_name: str = "a") -> None:
        self.now = 1000.0
        driver = disk(topology_keys=("zone",))
        self.cluster = state_with(drivers=[driver], node_name=node_name)
        self.cluster.monotonic = lambda: self.now
        self.cluster.drivers.publishes = lambda name: name == DRIVER  # type: ignore[method-assign]
        self.queue = Keys()
        self.state = CapacityState(self.cluster, lambda: [driver], self.queue)
        self.state.cluster.follow(self.state)
        for item in objects:
            self.put(item)

    def put(self, item: Any) -> None:
        for cache in (self.cluster.classes, self.cluster.nodes, self.cluster.volumes, self.cluster.claims):
            if isinstance(item, cache.kind.struct):
                cache.observe(item)
        if isinstance(item, CsiStorageCapacity):
            self.cluster.capacities.observe(item)

    def measured(self, available: int, largest: int | None = None, at: str = "a", of_class: str = "fast") -> None:
        answer = Capacity(available_bytes=available, maximum_volume_bytes=largest)
        self.state.measured[key_of(at, of_class)] = (answer, self.now)

    def decided(self, reads: LiveReads | None = None, at: str = "a") -> Any:
        return decide_capacity(key_of(at), self.state, reads or LiveReads())


def shown(
    capacity: str | None = "3Gi", *, at: str = "a", version: int = 1, owner: str = "a", key: str = "", **fields: Any
) -> CsiStorageCapacity:
    """The object that the process of node `owner` has written, "" for one of the cluster's."""
    reference = {"kind": "Node", "name": owner, "uid": f"uid-{owner}"}
    labels = HERE | ({names.NODE: node_hash(owner)} if owner else {})
    if not owner:
        reference = {"kind": "StorageClass", "name": "fast", "uid": "uid-fast"}
    namespace, _, name = (key or key_of(at)).partition("/")
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{name}",
        "resourceVersion": str(version),
        "labels": labels,
        "ownerReferences": [reference],
        **fields.pop("metadata", {}),
    }
    body = {"storageClassName": "fast", "nodeTopology": {"matchLabels": {"zone": at}}, "capacity": capacity}
    return msgspec.convert({"metadata": metadata, **body, **fields}, CsiStorageCapacity)


def its_own(*, first: str = "a") -> LiveReads:
    """The object is not there, and the Node is the one that is known."""
    reads = read(CAPACITIES, key_of("a"))
    reads.put(NODES, "a", node(first))
    return reads


# --- what is to be published ----------------------------------------------------------------------------------------


def test_room_is_published_for_every_class_of_the_driver_at_every_place() -> None:
    other = storage_class("other", "other.example.com")
    of_cluster = Publisher(local(), storage_class("slow"), other, node("a"), node("b"), node_name="")
    expected = {key_of(at, each) for at in "ab" for each in ("fast", "slow")}
    assert set(of_cluster.queue.keys) == expected == of_cluster.state.items.keys()
    assert set(of_cluster.state.of_driver(DRIVER)) == expected
    assert of_cluster.state.of_driver("other.example.com") == []
    of_cluster.queue.taken()
    of_cluster.put(node("a", version=2))
    of_cluster.put(local(resourceVersion="2"))
    assert of_cluster.queue.taken() == []
    of_cluster.measured(5)
    of_cluster.cluster.classes.observe_deleted("fast", "uid-fast")
    assert of_cluster.queue.taken() == sorted({key_of("a"), key_of("b")})
    assert of_cluster.state.measured == {}


def test_objects_are_looked_at_when_a_node_goes_or_is_made_again() -> None:
    publisher = Publisher(local(), node("a"), node_name="")
    publisher.queue.taken()
    publisher.put(shown(key=f"{NAMESPACE}/of-before"))
    assert publisher.queue.taken() == [f"{NAMESPACE}/of-before"]
    publisher.put(node("a", version=2, uid="uid-anew"))
    assert publisher.queue.taken() == [key_of("a"), f"{NAMESPACE}/of-before", key_of("a")]
    publisher.put(node("a", version=3, uid="uid-anew", labels={"zone": "a", "more": "1"}))
    assert publisher.queue.taken() == []
    publisher.cluster.nodes.observe_deleted("a", "uid-anew")
    assert publisher.queue.taken() == [key_of("a"), f"{NAMESPACE}/of-before"]


def test_room_is_measured_anew_after_something_was_made_grown_or_deleted() -> None:
    publisher = Publisher(local(), node("a"))

    def measures(change: Any) -> bool:
        publisher.measured(5)
        publisher.queue.taken()
        change()
        again = key_of("a") not in publisher.state.measured
        assert (publisher.queue.keys, publisher.queue.afters) == (([key_of("a")], [1.0]) if again else ([], []))
        return again

    assert measures(lambda: publisher.put(placed("v", at="a")))
    assert not measures(lambda: publisher.put(placed("v", at="a", resourceVersion="2", labels={"x": "y"})))
    assert measures(lambda: publisher.put(placed("v", at="a", resourceVersion="3", size="2Gi")))
    assert measures(lambda: publisher.cluster.volumes.observe_deleted("v", "uid-v"))
    foreign = placed("w", at="a", annotations={names.PROVISIONED_BY: "other.example.com"})
    assert not measures(lambda: publisher.put(foreign))
    assert not measures(lambda: publisher.put(volume("s")))


def test_room_is_measured_anew_after_a_claim_was_given_back() -> None:
    selected = {names.SELECTED_NODE: "a"}

    def measures(before: Any, after: Any, *, of_class: Any = None) -> bool:
        publisher = Publisher(of_class or local(), node("a"), before)
        publisher.measured(5)
        publisher.queue.taken()
        if after is None:
            publisher.cluster.claims.observe_deleted("default/c", "uid-c")
        else:
            publisher.put(after)
        return key_of("a") not in publisher.state.measured and publisher.queue.keys == [key_of("a")]

    waiting = claim("c", storageClassName="fast", annotations=selected)
    back = claim("c", storageClassName="fast", resourceVersion="2")
    assert measures(waiting, back)
    assert measures(waiting, None)
    assert not measures(waiting, claim("c", storageClassName="fast", annotations=selected, resourceVersion="2"))
    assert not measures(claim("c", storageClassName="fast"), back), "no node had it"
    bound = claim("c", storageClassName="fast", annotations=selected, volumeName="v")
    assert not measures(bound, None), "its volume tells more"
    assert not measures(claim("c", storageClassName="slow", annotations=selected), None)


# --- measuring ------------------------------------------------------------------------------------------------------


def test_room_is_measured_first_and_again_every_minute() -> None:
    publisher = Publisher(local(), node("a"))
    run = Run(verb="measure", key=key_of("a"), uid="uid-fast", driver=DRIVER, asset=f"room {key_of('a')}")
    assert publisher.decided() == run
    publisher.measured(3 * GIB)
    publisher.put(shown())
    assert publisher.decided() == Wait(reason="it is measured again from time to time", seconds=60.0)
    publisher.now += 59.0
    assert publisher.decided() == Wait(reason="it is measured again from time to time", seconds=1.0)
    publisher.now += 1.0
    assert publisher.decided() == run


def test_a_driver_that_cannot_be_asked_is_waited_for() -> None:
    publisher = Publisher(local(), node("a"))
    publisher.cluster.drivers.get = lambda _name: None  # type: ignore[method-assign]
    assert publisher.decided() == Wait(reason=f'driver "{DRIVER}" cannot be asked')


def test_nothing_is_measured_for_a_class_that_the_driver_refuses() -> None:
    publisher = Publisher(local(parameters={"colour": "red", names.PLACEMENT: "spread"}), node("a"))
    assert publisher.decided() == Wait(reason='class "fast" has parameters that the driver refuses')


# --- publishing -----------------------------------------------------------------------------------------------------


def test_the_process_of_a_node_publishes_what_goes_with_its_node() -> None:
    publisher = Publisher(local(), node("a"))
    publisher.measured(3 * GIB, 2 * GIB)
    assert publisher.decided() == Read(CAPACITIES, key_of("a"), why="is it there?")
    assert publisher.decided(read(CAPACITIES, key_of("a"))) == Read(NODES, "a", why="is this still our Node?")
    action = publisher.decided(its_own())
    assert isinstance(action, Create)
    assert action.kind is CAPACITIES
    assert {name: action.body[name] for name in action.body if name not in ("kind", "apiVersion")} == {
        "metadata": {
            "name": key_of("a").partition("/")[2],
            "namespace": NAMESPACE,
            "labels": HERE | {names.NODE: node_hash("a")},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "uid-a"}],
        },
        "storageClassName": "fast",
        "nodeTopology": {"matchLabels": {"zone": "a"}},
        "capacity": "3Gi",
        "maximumVolumeSize": "2Gi",
    }
    gone = read(CAPACITIES, key_of("a"))
    gone.put(NODES, "a", None)
    assert publisher.decided(gone) == Wait(reason="node a is gone, or was made again", seconds=1.0)


def test_the_process_of_the_cluster_publishes_what_goes_with_the_class() -> None:
    publisher = Publisher(local(), node("a"), node_name="")
    publisher.measured(-5)
    action = publisher.decided(read(CAPACITIES, key_of("a")))
    assert isinstance(action, Create)
    assert action.body["metadata"]["labels"] == HERE
    owner = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "name": "fast", "uid": "uid-fast"}
    assert action.body["metadata"]["ownerReferences"] == [owner]
    assert action.body["capacity"] == "0"
    assert "maximumVolumeSize" not in action.body
    publisher.measured(1, -1)
    assert publisher.decided(read(CAPACITIES, key_of("a"))).body["maximumVolumeSize"] == "0"


def test_an_object_whose_label_was_taken_away_is_put_right_and_not_made_twice() -> None:
    publisher = Publisher(local(), node("a"))
    publisher.measured(3 * GIB)
    bare = shown(metadata={"labels": {}})
    action = publisher.decided(read(CAPACITIES, key_of("a"), bare))
    assert isinstance(action, Patch)
    assert action.target is bare
    assert action.body["metadata"]["labels"] == HERE | {names.NODE: node_hash("a")}


def test_figures_follow_what_was_measured() -> None:
    publisher = Publisher(local(), node("a"))
    publisher.put(shown(maximumVolumeSize="1Gi"))
    publisher.measured(3 * GIB)
    action = publisher.decided()
    assert isinstance(action, Patch)
    assert action.body == {"capacity": "3Gi", "maximumVolumeSize": None}
    publisher.put(shown(version=2, maximumVolumeSize="1Gi"))
    publisher.measured(3 * GIB, GIB)
    assert isinstance(publisher.decided(), Wait)
    publisher.measured(2 * GIB, GIB)
    assert publisher.decided().body["capacity"] == "2Gi"


def test_a_figure_that_changes_by_less_than_a_twentieth_is_written_once_a_minute() -> None:
    publisher, writes = Publisher(local(), node("a"), shown("100Gi")), []
    for second in range(180):
        publisher.now += 1.0
        publisher.measured(100 * GIB - second * GIB // 100)
        action = publisher.decided()
        if isinstance(action, Patch):
            writes.append(second)
            publisher.put(shown(action.body["capacity"], version=second + 2))
    assert writes == [59, 119, 179]
    assert publisher.decided().seconds == 60.0


@pytest.mark.parametrize(("available", "largest"), [(95, 10), (105, 10), (0, 10), (100, 9), (100, None)])
def test_a_figure_that_changes_by_a_twentieth_is_written_at_once(available: int, largest: int | None) -> None:
    publisher = Publisher(local(), node("a"), shown("100Gi", maximumVolumeSize="10Gi"))
    publisher.measured(available * GIB, largest and largest * GIB)
    assert isinstance(publisher.decided(), Patch)


def test_a_figure_that_nobody_can_read_is_replaced_at_once() -> None:
    publisher = Publisher(local(), node("a"), shown("much"))
    publisher.measured(100 * GIB)
    assert isinstance(publisher.decided(), Patch)


@pytest.mark.parametrize(
    "edit", [{"storageClassName": "slow"}, {"nodeTopology": {"matchLabels": {"zone": "b"}}}, {"nodeTopology": None}]
)
def test_what_cannot_be_changed_is_made_anew(edit: dict[str, Any]) -> None:
    publisher = Publisher(local(), node("a"), shown(**edit))
    publisher.measured(3 * GIB)
    action = publisher.decided()
    assert isinstance(action, Delete)
    assert action.kind is CAPACITIES
    assert action.exact


def test_two_nodes_at_one_place_do_not_write_its_room_in_turns() -> None:
    publisher = Publisher(local(), node("a"), shown(owner="b", capacity="9Gi"))
    publisher.measured(3 * GIB)
    assert publisher.decided() == Wait(reason="node b publishes the room of this place", seconds=60.0)
    ours = shown(version=2, capacity="9Gi", metadata={"ownerReferences": []})
    publisher.put(ours)
    publisher.measured(3 * GIB)
    assert isinstance(publisher.decided(), Patch)
    of_cluster = Publisher(local(), node("a"), shown(owner="b", capacity="9Gi"), node_name="")
    of_cluster.measured(3 * GIB)
    assert isinstance(of_cluster.decided(), Patch)


def test_a_figure_that_another_process_wrote_is_not_overwritten_without_a_new_look() -> None:
    publisher = Publisher(local(), node("a"), shown())
    publisher.measured(3 * GIB)
    publisher.queue.taken()
    publisher.put(shown(version=2, metadata={"labels": {}}))
    assert (publisher.queue.keys, publisher.queue.afters) == ([key_of("a")], [0.0])
    assert key_of("a") in publisher.state.measured
    publisher.queue.taken()
    publisher.put(shown("2Gi", version=3))
    assert (publisher.queue.keys, publisher.queue.afters) == ([key_of("a")], [1.0])
    assert key_of("a") not in publisher.state.measured
    publisher.measured(3 * GIB)
    publisher.queue.taken()
    publisher.cluster.capacities.observe_deleted(key_of("a"), shown().uid)
    assert (publisher.queue.keys, publisher.queue.afters) == ([key_of("a")], [0.0])


# --- removing -------------------------------------------------------------------------------------------------------

OLD = f"{NAMESPACE}/old"


def outdated(*objects: KubeObject, reads: LiveReads | None = None, node_name: str = "", **fields: Any) -> Any:
    """What is decided about an object that is not one of ours any more."""
    publisher = Publisher(*objects, shown(key=OLD, **fields), node_name=node_name)
    return decide_capacity(OLD, publisher.state, reads or LiveReads())


def test_what_nobody_needs_any_more_is_removed() -> None:
    removed = outdated(local(), node("a"), owner="")
    assert isinstance(removed, Delete)
    assert outdated(local(), node("a"), owner="", metadata={"labels": {names.CAPACITY_DRIVER: DRIVER}}) == Settled()
    foreign = {"labels": HERE | {names.CAPACITY_DRIVER: "other.example.com"}}
    assert outdated(local(), node("a"), owner="", metadata=foreign) == Settled(), "another process publishes it"
    publisher = Publisher(local(), node("a"))
    assert decide_capacity(OLD, publisher.state, LiveReads()) == Settled()


def test_the_process_of_a_node_removes_its_own_alone() -> None:
    assert isinstance(outdated(local(), node("a"), node_name="a", at="z"), Delete)
    assert isinstance(outdated(node("a"), node_name="a", owner="b"), Delete), "its class is gone"
    asked = outdated(local(), node("a"), node_name="a", owner="b")
    assert asked == Read(NODES, "b", why="is the node of this room gone?")


def test_room_of_a_node_that_is_gone_is_removed_by_the_process_of_the_cluster() -> None:
    there = outdated(local(), node("b"), owner="b", at="z")
    assert there == Settled(), "its own process decides"
    asked = outdated(local(), owner="b")
    assert asked == Read(NODES, "b", why="is the node of this room gone?")
    again = outdated(local(), node("b", uid="uid-anew"), owner="b")
    assert again == asked
    made = outdated(local(), owner="b", reads=read(NODES, "b", node("b")))
    assert made == Wait(reason="node b has just been made", seconds=1.0)
    for live in (None, node("b", uid="uid-anew")):
        action = outdated(local(), owner="b", reads=read(NODES, "b", live))
        assert isinstance(action, Delete)
        assert action.kind is CAPACITIES
