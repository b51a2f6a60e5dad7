"""Whether a process that serves one node may work on a claim or a volume. Pure.

A label selects what such a process watches. What it may do follows from the sealed intent of a claim and from the node
affinity of a volume, which nobody can change.
"""

from __future__ import annotations

from typing import Any

from volplane.intents.requests import segments_of
from volplane.kube import names
from volplane.kube.objects import Claim, Node, Volume
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import node_hash

__all__ = ["claim_elsewhere", "given_back", "node_metadata", "on_node", "volume_elsewhere"]


def claim_elsewhere(claim: Claim, cluster: ClusterState) -> str:
    """Why this process may not work on the claim's asset; "" if it may."""
    node = _served_node(cluster)
    if isinstance(node, str):
        return node
    if why := _made_again(claim, node):
        return why
    intent = cluster.intent_of(claim)
    if intent is not None and intent.segment:
        labels = node.metadata.labels or {}
        place = ", ".join(f"{key}={value}" for key, value in sorted(intent.segment.items()))
        return (
            ""
            if intent.segment.items() <= labels.items()
            else f"its volume is made at {place}, not on node {node.name}"
        )
    selected = claim.annotation(names.SELECTED_NODE)
    if selected == node.name:
        return ""
    return f"node {selected} is selected, not {node.name}" if selected else "no node is selected"


def volume_elsewhere(volume: Volume, cluster: ClusterState) -> str:
    """Why this process may not touch the volume's asset; "" if it may."""
    node = _served_node(cluster)
    if isinstance(node, str):
        return node
    if not on_node(volume, node):
        return f"its node affinity does not put it on node {node.name}, whatever its label {names.NODE} says"
    return _made_again(volume, node)


def _served_node(cluster: ClusterState) -> Node | str:
    """The node whose storage this process serves; "" if it serves the cluster, else why it can serve none."""
    name = cluster.node_name
    if not name:
        return ""
    return cluster.nodes.get(name) or f"node {name}, which this process serves, does not exist"


def on_node(volume: Volume, node: Node) -> bool:
    """Whether the volume's node affinity names places that are all this node."""
    affinity = volume.spec.node_affinity
    terms = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else None
    places, labels = segments_of(volume), node.metadata.labels or {}
    return bool(places) and len(places) == len(terms or ()) and all(each.items() <= labels.items() for each in places)


def _made_again(item: Claim | Volume, node: Node) -> str:
    uid = item.annotation(names.NODE_UID)
    if uid in (None, node.uid):
        return ""
    return f"it is of an earlier node {node.name} (uid {uid}); the present one was made again (uid {node.uid})"


def node_metadata(node: Node | None) -> dict[str, Any]:
    """Labels and annotations of what belongs to the node; with None, those that take it from every node."""
    return {
        "labels": {names.NODE: node_hash(node.name) if node is not None else None},
        "annotations": {names.NODE_UID: node.uid if node is not None else None},
    }


def given_back() -> dict[str, Any]:
    """The same for a claim, with the selected node: somebody else may choose one."""
    metadata = node_metadata(None)
    return {**metadata, "annotations": {**metadata["annotations"], names.SELECTED_NODE: None}}
