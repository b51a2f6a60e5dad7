"""What the assigner knows of nodes."""

from __future__ import annotations

from typing import Any

import pytest

from unit.deciding import disk, put, state_with
from unit.placement.world import ZONE, node
from volplane.controller.actions import Settled
from volplane.controller.workqueue import LateQueue
from volplane.kube.objects import Node
from volplane.placement import nodes as nodes_module
from volplane.placement.assign import decide_node
from volplane.placement.nodes import NodeBook, is_ready, takes_volumes
from volplane.placement.state import PlacementState


class Nodes:
    """A book over a cache, and a clock."""

    def __init__(self, *nodes: Node, hashed: Any = None) -> None:
        self.now = 100.0
        self.cluster = state_with(distributed=[disk(topology_keys=(ZONE,))])
        more = {} if hashed is None else {"hashed": hashed}
        self.book = NodeBook(self.cluster.nodes, {ZONE}, lambda: self.now, **more)
        self.cluster.nodes.subscribe(lambda old, new: self.book.changed(old, new) and None)
        put(self.cluster, *nodes)


def test_a_node_is_ready_unless_somebody_doubts_it() -> None:
    assert is_ready(node("a"))
    assert is_ready(node("a", ready=None))
    assert not is_ready(node("a", ready="False"))
    assert not is_ready(node("a", ready="Unknown"))
    healthy = node("a")
    healthy.status.conditions = [*(healthy.status.conditions or ()), {"type": "MemoryPressure", "status": "False"}]
    assert is_ready(healthy), "it has no trouble"


def test_new_volumes_go_where_pods_could_come() -> None:
    assert takes_volumes(node("a"))
    assert takes_volumes(node("a", taints=[{"key": "k", "effect": "PreferNoSchedule"}]))
    assert not takes_volumes(node("a", unschedulable=True))
    going = node("a")
    going.metadata.deletion_timestamp = "2026-01-01T00:00:00Z"
    assert not takes_volumes(going)
    assert not takes_volumes(node("a", taints=[{"key": "k", "effect": "NoSchedule"}]))


def test_a_node_is_away_since_it_was_last_seen_ready() -> None:
    nodes = Nodes(node("a"))
    assert nodes.book.away("a") == 0
    put(nodes.cluster, node("a", ready="Unknown", version=2))
    nodes.now = 130.0
    assert nodes.book.away("a") == 30
    put(nodes.cluster, node("a", version=3))
    assert nodes.book.away("a") == 0
    nodes.cluster.nodes.observe_deleted("a", "uid-a")
    nodes.now = 150.0
    assert nodes.book.away("a") == 20


def test_a_name_that_was_never_seen_is_away_since_the_first_question() -> None:
    nodes = Nodes()
    assert nodes.book.away("gone") == 0
    nodes.now = 160.0
    assert nodes.book.away("gone") == 60


def test_names_of_nodes_that_are_gone_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_module, "_MOST_AWAY", 10)
    nodes = Nodes(node("here", ready="False"))
    nodes.now = 130.0
    for number in range(100):
        put(nodes.cluster, node(f"n{number}"))
        nodes.cluster.nodes.observe_deleted(f"n{number}", f"uid-n{number}")
        nodes.book.away(f"asked-{number}")
    nodes.now = 160.0
    assert nodes.book.away("here") == 60
    assert nodes.book.away("n99") == 30
    assert len(nodes.book._away) <= 11
    assert (len(nodes.book._by_hash), len(nodes.book._by_place)) == (1, 1)


def test_heartbeats_change_nothing_about_placement() -> None:
    nodes = Nodes(node("a"))
    before = nodes.book.version
    put(nodes.cluster, node("a", version=2))
    assert nodes.book.version == before
    put(nodes.cluster, node("a", version=3, unschedulable=True))
    assert nodes.book.version > before


def test_a_node_that_moves_is_found_where_it_is() -> None:
    nodes = Nodes(node("a"), node("b"))
    before = nodes.book.version
    put(nodes.cluster, node("a", version=2, labels={ZONE: "b"}))
    assert nodes.book.version > before
    assert [each.name for each in nodes.book.at({ZONE: "b"})] == ["a", "b"]
    assert nodes.book.at({ZONE: "a"}) == []
    assert nodes.book.at({}) == []
    assert nodes.book.at({"rack": "b"}) == []


def test_two_names_with_one_hash_are_found_and_said() -> None:
    nodes = Nodes(node("a"), node("b"), node("c"), hashed=lambda name: "same" if name in "ab" else name)
    queue = LateQueue()
    state = PlacementState(
        cluster=nodes.cluster, drivers=[], nodes=nodes.book, claims=queue, volumes=queue, node_names=queue
    )
    told = decide_node("a", state)
    (event,) = told.events
    assert event.reason == "NodeHashCollision"
    assert "the same hash same as b" in event.message
    assert decide_node("c", state) == Settled()
    assert decide_node("ab", state) == Settled(), "there is no such node"
    nodes.cluster.nodes.observe_deleted("b", "uid-b")
    assert decide_node("a", state) == Settled()
