"""The option `--node-label` of `volplane dev`: labels of its nodes, such as zones or kinds of disks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import typer

from volplane._messages import nearest
from volplane.errors import ConfigurationError
from volplane_embedded.apiserver.names import label_value, qualified_name
from volplane_embedded.kubelet.node_status import FIXED_LABELS

NodeLabels = Annotated[
    list[str] | None,
    typer.Option(
        "--node-label",
        metavar="[NODE:]KEY=VALUE",
        help="A label of this node, or of all nodes; also another zone. Repeatable.",
    ),
]


def parse_node_labels(texts: Iterable[str], nodes: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
    """Node -> its labels. A label of one node wins over one of all. Raises ConfigurationError."""
    names = list(nodes)
    of_all: dict[str, str] = {}
    of_one: dict[str, dict[str, str]] = {name: {} for name in names}
    for text in texts:
        label, equals, value = text.partition("=")
        node, colon, key = label.rpartition(":")
        if not equals or (colon and not node):
            raise ConfigurationError(
                f"--node-label {text!r}: write KEY=VALUE or NODE:KEY=VALUE, as in node-1:example.com/disk=fast"
            )
        if colon and node not in of_one:
            raise ConfigurationError(f"--node-label {text!r}: there is no node {node!r}{nearest(node, names)}")
        for what, faults in (("key", qualified_name(key)), ("value", label_value(value))):
            if faults:
                raise ConfigurationError(f"--node-label {text!r}: the {what} {'; '.join(faults)}")
        if key in FIXED_LABELS:
            raise ConfigurationError(f"--node-label {text!r}: the node agent itself sets {key}")
        (of_one[node] if colon else of_all)[key] = value
    return {name: {**of_all, **of_one[name]} for name in names}
