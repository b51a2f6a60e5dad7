"""Published room, by class and node."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from unit.deciding import put
from unit.placement.test_nodes import Nodes
from unit.placement.world import node
from volplane.controller.workqueue import LateQueue
from volplane.kube import names
from volplane.kube.objects import CsiStorageCapacity, OwnerReference
from volplane.placement.room import Promise, PublishedRoom, Room
from volplane.placement.state import PlacementState
from volplane.state.naming import node_hash

DRIVER = "disk.example.com"


def published(name: str, capacity: str | None, *, labels: dict[str, str], version: int = 1, **fields: Any) -> Any:
    body = {
        "metadata": {
            "name": name,
            "namespace": "ours",
            "uid": name,
            "resourceVersion": str(version),
            "labels": {names.CAPACITY_DRIVER: DRIVER},
        },
        "storageClassName": "fast",
        "nodeTopology": {"matchLabels": labels},
        "capacity": capacity,
        **fields,
    }
    return msgspec.convert(body, CsiStorageCapacity)


def most(room: PublishedRoom, node: str) -> Room:
    return max((room.of(DRIVER, "fast") or {})[node].values())


def test_room_is_that_of_every_node_at_the_place() -> None:
    nodes = Nodes(node("a"), node("b"))
    room = PublishedRoom(nodes.book)
    assert room.of(DRIVER, "fast") is None
    room.changed(None, published("one", "1Ki", labels={"zone": "a"}))
    assert room.of(DRIVER, "fast") == {"a": {"ours/one": Room(1024, 1024)}}
    assert room.of(DRIVER, "slow") is None
    put(nodes.cluster, node("c", version=2))
    room.changed(None, published("two", "2Ki", labels={"zone": "c"}, maximumVolumeSize="1Ki"))
    assert most(room, "c") == Room(2048, 1024)


def test_new_figures_replace_old_ones_and_of_two_objects_the_larger_counts() -> None:
    nodes = Nodes(node("a"))
    room = PublishedRoom(nodes.book)
    first = published("one", "4Ki", labels={"zone": "a"})
    room.changed(None, first)
    assert most(room, "a").free == 4096
    less = published("one", "1Ki", labels={"zone": "a"}, version=2)
    room.changed(first, less)
    assert most(room, "a").free == 1024
    other = published("two", "2Ki", labels={"zone": "a"})
    room.changed(None, other)
    assert most(room, "a").free == 2048
    room.changed(other, None)
    assert most(room, "a").free == 1024
    room.changed(less, None)
    assert room.of(DRIVER, "fast") is None


def test_what_a_person_wrote_and_is_no_size_is_no_room() -> None:
    nodes = Nodes(node("a"))
    room = PublishedRoom(nodes.book)
    room.changed(None, published("one", "lots", labels={"zone": "a"}))
    assert most(room, "a").free == 0
    everywhere = published("two", "1Ki", labels={}, nodeTopology=None)
    room.changed(None, everywhere)
    assert most(room, "a").free == 0


def test_a_selector_of_other_labels_is_matched_with_every_node() -> None:
    nodes = Nodes(node("a"), node("b"))
    room = PublishedRoom(nodes.book)
    need = {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}
    room.changed(None, published("one", "1Ki", labels={}, nodeTopology=need))
    assert list(room.of(DRIVER, "fast") or ()) == ["b"]
    room.changed(None, published("two", "1Ki", labels={}, nodeTopology={}))
    assert sorted(room.of(DRIVER, "fast") or ()) == ["a", "b"], "a selector without a condition means every node"


def test_what_is_made_on_a_node_counts_until_the_room_that_this_node_owns_is_published_anew() -> None:
    nodes = Nodes(node("a"), node("b"))
    queue = LateQueue()
    state = PlacementState(
        cluster=nodes.cluster, drivers=[DRIVER], nodes=nodes.book, claims=queue, volumes=queue, node_names=queue
    )
    label = node_hash("a")
    state.usage.made("made", Promise(DRIVER, label, 100), 5, 0.0)
    reserved = list[int]()
    for version, owners in enumerate(("b", "ab", "", "a"), start=6):
        item = published("room", "1Ki", labels={"zone": "b"}, version=version)
        item.metadata.labels[names.NODE] = label
        references = [OwnerReference(kind="Node", name=owner) for owner in owners]
        state.capacity_changed(None, replace(item, metadata=replace(item.metadata, owner_references=references)))
        reserved.append(state.usage.reserved[DRIVER, label])
    assert reserved == [100, 100, 100, 0]
