"""Where nodes are, as their labels say now."""

from __future__ import annotations

import msgspec

from volplane.kube.cache import Cache
from volplane.kube.kinds import NODES
from volplane.kube.objects import Node
from volplane.state.cluster_state import NodePlaces

ZONE = "topology.kubernetes.io/zone"


def node(name: str, version: int, zone: str = "") -> Node:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return msgspec.convert({"metadata": {**metadata, "labels": {ZONE: zone} if zone else {}}}, Node)


def test_each_place_is_told_once_in_order_and_nodes_without_the_label_are_nowhere() -> None:
    nodes = Cache(NODES)
    places = NodePlaces(nodes)
    for made in (node("1", 1, zone="b"), node("2", 2, zone="a"), node("3", 3, zone="b"), node("4", 4)):
        nodes.observe(made)
    assert places.segments((ZONE,)) == ({ZONE: "a"}, {ZONE: "b"})
    assert places.segments(()) == places.segments(("rack",)) == ()


def test_a_label_that_changes_and_a_node_that_comes_or_goes_are_noticed() -> None:
    nodes = Cache(NODES)
    places = NodePlaces(nodes)
    nodes.observe(node("1", 1, zone="a"))
    assert places.segments((ZONE,)) == ({ZONE: "a"},)
    nodes.observe(node("1", 2, zone="b"))
    assert places.segments((ZONE,)) == ({ZONE: "b"},)
    nodes.observe(node("2", 3, zone="c"))
    assert places.segments((ZONE,)) == ({ZONE: "b"}, {ZONE: "c"})
    nodes.clear()
    assert places.segments((ZONE,)) == ()
