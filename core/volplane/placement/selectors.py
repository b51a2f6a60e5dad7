"""What a process that serves one node lists and watches: what has the label of the node. Pure."""

from __future__ import annotations

from typing import Final

from volplane.controller.controller import Role
from volplane.kube.kinds import CAPACITIES, CLAIMS, NODES, PODS, VOLUMES
from volplane.kube.names import NODE
from volplane.state.naming import node_hash

__all__ = ["field_selector", "label_selector"]

_LABELLED: Final = (CLAIMS.plural, VOLUMES.plural, PODS.plural, CAPACITIES.plural)
_RACED_FOR: Final = (CLAIMS.plural, VOLUMES.plural)
"""One that races for claims has to see them all, and has nobody who labels volumes."""


def label_selector(plural: str, role: Role) -> str:
    """For the kind with this plural; "" for all objects."""
    all_of_them = role.race is not None and plural in _RACED_FOR
    if not role.node_name or plural not in _LABELLED or all_of_them:
        return ""
    return f"{NODE}={node_hash(role.node_name)}"


def field_selector(plural: str, role: Role) -> str:
    """The same: of nodes only its own."""
    return f"metadata.name={role.node_name}" if role.node_name and plural == NODES.plural else ""
