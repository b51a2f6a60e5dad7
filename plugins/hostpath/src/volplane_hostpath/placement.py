"""On which node a volume is: the affinity it gets, and demands for places that this root cannot serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from volplane import InvalidArgument, NodeIdentity, ProvisionRequest, ResourceExhausted, Segment

__all__ = ["Node"]


@dataclass(frozen=True, slots=True)
class Node:
    """The node that has the root. name: empty unless the instance runs for one node; value: of its affinity label."""

    name: str
    label: str
    value: str

    def is_here(self, segment: Segment | None) -> bool:
        """Can the root serve this place? A place that does not name our label cannot be told from ours."""
        return segment is None or segment.get(self.label, self.value) == self.value

    def segment(self, request: ProvisionRequest) -> Mapping[str, str]:
        """The affinity of a new volume, asked before anything is made.

        Raises `ResourceExhausted` with `reschedule` for another node's demand, `InvalidArgument` if no legal place is
        ours.
        """
        node = self._as_selected(request.selected_node)
        wanted = request.segment
        if wanted is None and request.selected_node is not None and node.name != request.selected_node.name:
            wanted = {self.label: request.selected_node.labels.get(self.label, request.selected_node.name)}
        if not node.is_here(wanted):
            place = (wanted or {}).get(self.label, "")
            raise ResourceExhausted(
                f"this root is on the node with {self.label}={node.value}, asked for was {self.label}={place}: let the "
                "pod run there, or give that node a root of its own (option node_name, or --node-name)",
                scope=place,
                reschedule=True,
                nothing_done=True,
            )
        if wanted is None and request.allowed_segments and not any(map(node.is_here, request.allowed_segments)):
            raise InvalidArgument(
                f"no place that the class allows has {self.label}={node.value}, where this root is: "
                "change allowedTopologies"
            )
        return {node.label: node.value}

    def _as_selected(self, selected: NodeIdentity | None) -> Node:
        # The label counts, not the name: on some clouds they differ, and only the node object tells.
        if selected is None or not self.name or selected.name != self.name:
            return self
        return Node(self.name, self.label, selected.labels.get(self.label, self.value))
