"""How a fake driver behaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = ["ALL_CAPABILITIES", "Behaviour"]

GIB: Final = 1 << 30
ALL_CAPABILITIES: Final = frozenset(
    {
        *("CREATE_DELETE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME", "LIST_VOLUMES", "GET_CAPACITY"),
        *("CREATE_DELETE_SNAPSHOT", "LIST_SNAPSHOTS", "CLONE_VOLUME", "EXPAND_VOLUME"),
        *("LIST_VOLUMES_PUBLISHED_NODES", "GET_VOLUME", "SINGLE_NODE_MULTI_WRITER", "MODIFY_VOLUME"),
    }
)
"""Of a controller that can do everything but what only some can: PUBLISH_READONLY, VOLUME_CONDITION, GET_SNAPSHOT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """Properties of a driver. The defaults are those of a good one."""

    name: str = "fake.csi.example.com"
    """Of the driver."""
    version: str = "1.0"
    """Its vendor_version."""
    capabilities: frozenset[str] = ALL_CAPABILITIES
    """Of its controller."""
    groups: bool = True
    """It has a group controller."""
    node_capabilities: frozenset[str] = frozenset({"EXPAND_VOLUME", "STAGE_UNSTAGE_VOLUME"})
    """Of its node plugin, which it has too."""
    zones: tuple[str, ...] = ()
    """Values of `topology_key`; empty = it has no topology."""
    topology_key: str = "topology.example.com/zone"
    """Of its places."""
    nodes: tuple[str, ...] = ("id-of-node-1", "id-of-node-2")
    """Ids of its nodes."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """What calls that may carry secrets must carry."""
    room: int = 1 << 44
    """Bytes of each place."""
    largest: int = 1 << 46
    """Bytes of a volume."""
    attach_limit: int = 0
    """Volumes of a node; 0 = any number."""
    page: int = 100
    """Entries of a list that comes with a token."""
    ready: bool = True
    """What Probe says."""

    create_seconds: float = 0.0
    """While it makes a volume it answers ABORTED."""
    cut_seconds: float = 0.0
    """Until a snapshot is ready to use."""
    unknown_size: bool = False
    """Volumes have 0 bytes, as of drivers that do not know their sizes."""
    one_id: str = ""
    """The id of every volume."""
    changes_ids: bool = False
    """An equal request is answered with another id each time."""
    forgets_source: bool = False
    """A volume that shall be a copy is empty, and its content_source is not answered."""
    refuses_replays: bool = False
    """An equal request for what exists is ALREADY_EXISTS, as of clones of csi-driver-host-path."""
    unpublish_not_found: bool = False
    """Nothing to be detached is NOT_FOUND, not OK."""
    echoes_secrets: bool = False
    """Secrets are put into the context of volumes."""
    condition: str = ""
    """What is wrong with its volumes; "" = nothing."""
    context: Mapping[str, str] = field(default_factory=lambda: {"of": "fake"})
    """Of volumes."""
