"""Selectors, affinity, taints and topologies."""

import pytest

from volplane.kube.objects import (
    Metadata,
    Node,
    NodeSelector,
    NodeSelectorTerm,
    Requirement,
    Taint,
    TopologyTerm,
)
from volplane_embedded.node_affinity import in_topology, selector_matches, untolerated
from volplane_embedded.objects import Toleration

NODE = Node(metadata=Metadata(name="node-1", labels={"zone": "a", "cores": "8"}))


def need(key: str, operator: str, *values: str) -> Requirement:
    return Requirement(key=key, operator=operator, values=list(values) or None)


@pytest.mark.parametrize(
    ("requirement", "met"),
    [
        (need("zone", "In", "a", "b"), True),
        (need("zone", "In", "b"), False),
        (need("zone", "NotIn", "b"), True),
        (need("zone", "NotIn", "a"), False),
        (need("disk", "NotIn", "ssd"), True),
        (need("zone", "Exists"), True),
        (need("disk", "Exists"), False),
        (need("disk", "DoesNotExist"), True),
        (need("zone", "DoesNotExist"), False),
        (need("cores", "Gt", "7"), True),
        (need("cores", "Gt", "8"), False),
        (need("cores", "Lt", "9"), True),
        (need("zone", "Gt", "1"), False),
        (need("cores", "Lt"), False),
        (need("zone", "Like", "a"), False),
    ],
)
def test_each_operator_reads_the_labels(requirement: Requirement, met: bool) -> None:
    selector = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[requirement])])
    assert selector_matches(selector, NODE) is met


def test_terms_are_alternatives_and_an_empty_one_matches_nothing() -> None:
    wrong = NodeSelectorTerm(match_expressions=[need("zone", "In", "b")])
    right = NodeSelectorTerm(match_fields=[need("metadata.name", "In", "node-1")])
    assert selector_matches(NodeSelector(node_selector_terms=[wrong, right]), NODE)
    assert not selector_matches(NodeSelector(node_selector_terms=[wrong, NodeSelectorTerm()]), NODE)
    assert not selector_matches(NodeSelector(), NODE)


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (Toleration(key="dedicated", value="db", effect="NoSchedule"), True),
        (Toleration(key="dedicated", value="web"), False),
        (Toleration(key="dedicated", operator="Exists"), True),
        (Toleration(operator="Exists"), True),
        (Toleration(key="dedicated", operator="Exists", effect="NoExecute"), False),
        (Toleration(key="other", operator="Exists"), False),
        (Toleration(value="db"), False),
    ],
)
def test_a_taint_is_tolerated_by_key_value_and_effect(toleration: Toleration, tolerated: bool) -> None:
    taint = Taint(key="dedicated", value="db", effect="NoSchedule")
    assert (untolerated([toleration], [taint]) is None) is tolerated


def test_a_preference_to_stay_away_keeps_nobody_away() -> None:
    assert untolerated([], [Taint(key="slow", effect="PreferNoSchedule")]) is None


def test_a_topology_needs_every_key_of_one_term() -> None:
    zone = Requirement(key="zone", values=["a"])
    rack = Requirement(key="rack", values=["1"])
    assert in_topology([], NODE)
    assert in_topology([TopologyTerm(match_label_expressions=[zone])], NODE)
    assert not in_topology([TopologyTerm(match_label_expressions=[zone, rack])], NODE)
