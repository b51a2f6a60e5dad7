"""Where an asset is made: the segment of topology that the intent records. Pure."""

from __future__ import annotations

from itertools import product
from zlib import crc32

from volplane.assets import Segment
from volplane.binding.matching import class_of_claim
from volplane.drivers.view import DriverView
from volplane.kube import names
from volplane.kube.objects import Claim, StorageClass
from volplane.state.cluster_state import ClusterState
from volplane.state.records import INTENT_VERSION, ClaimIntent

__all__ = ["allowed_segments", "choose_segment", "presumed_intent"]


def choose_segment(
    claim: Claim, storage_class: StorageClass, driver: DriverView, cluster: ClusterState
) -> tuple[dict[str, str] | None, str]:
    """Where the asset goes: the selected node's labels, else an allowed segment by the claim's uid; or why not.

    {} = wherever the driver likes; that is a choice too, which a node selected later does not change.
    """
    keys = driver.info.topology_keys
    if not keys:
        return None, ""
    allowed = allowed_segments(storage_class)
    selected = claim.annotation(names.SELECTED_NODE)
    if selected:
        node = cluster.nodes.get(selected)
        if node is None:
            return None, f'selected node "{selected}" does not exist'
        labels = node.metadata.labels or {}
        missing = [key for key in keys if key not in labels]
        if missing:
            return (
                None,
                (
                    f'selected node "{selected}" lacks the label {missing[0]}, by which driver "{driver.name}" '
                    "places volumes"
                ),
            )
        if allowed and not any(segment.items() <= labels.items() for segment in allowed):
            return None, f'selected node "{selected}" is outside the allowedTopologies of class "{storage_class.name}"'
        return {key: labels[key] for key in keys}, ""
    if not allowed:
        return {}, ""
    return dict(allowed[crc32(claim.uid.encode()) % len(allowed)]), ""


def allowed_segments(storage_class: StorageClass) -> tuple[Segment, ...]:
    """`allowedTopologies` as single segments; terms are alternatives, keys of a term hold together."""
    segments: list[Segment] = []
    for term in storage_class.allowed_topologies or ():
        expressions = term.match_label_expressions or []
        keys = [expression.key for expression in expressions]
        choices = product(*[expression.values or [] for expression in expressions])
        segments.extend(dict(zip(keys, values, strict=True)) for values in choices)
    return tuple(segments)


def presumed_intent(claim: Claim, driver: DriverView, cluster: ClusterState) -> ClaimIntent:
    """What was begun for a claim whose record is lost: the first generation, where it would be put now."""
    storage_class = cluster.classes.get(class_of_claim(claim) or "")
    segment = None if storage_class is None else choose_segment(claim, storage_class, driver, cluster)[0]
    return ClaimIntent(v=INTENT_VERSION, driver=driver.name, segment=segment)
