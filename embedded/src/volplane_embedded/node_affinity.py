"""Whether a pod or volume may use a node: selectors, affinity, taints, topology. Pure. Scheduler and kubelet use it.

Source: k8s.io/component-helpers/scheduling/corev1 (nodeaffinity; helpers.go, FindMatchingUntoleratedTaint),
k8s.io/component-helpers/storage/volume (CheckNodeAffinity).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from volplane.kube.objects import Node, NodeSelector, NodeSelectorTerm, Requirement, Taint, TopologyTerm, Volume
from volplane_embedded.objects import Pod, Toleration


def selector_matches(selector: NodeSelector, node: Node) -> bool:
    """Tell whether one of the terms matches. A selector without terms matches no node."""
    return any(_term_matches(term, node) for term in selector.node_selector_terms or ())


def _term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    """Tell whether all expressions and fields match. An empty term matches no node."""
    if not term.match_expressions and not term.match_fields:
        return False
    labels = node.metadata.labels or {}
    return all(_meets(need, labels) for need in term.match_expressions or ()) and all(
        _meets(need, {"metadata.name": node.name}) for need in term.match_fields or ()
    )


def _meets(need: Requirement, labels: Mapping[str, str]) -> bool:
    values = need.values or []
    match need.operator:
        case "In":
            return labels.get(need.key) in values
        case "NotIn":
            return labels.get(need.key) not in values
        case "Exists":
            return need.key in labels
        case "DoesNotExist":
            return need.key not in labels
        case "Gt" | "Lt":
            return _compares(labels.get(need.key), values, greater=need.operator == "Gt")
    return False


def _compares(label: str | None, values: list[str], *, greater: bool) -> bool:
    try:
        have, bound = int(label or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return have > bound if greater else have < bound


def volume_allows(volume: Volume, node: Node) -> bool:
    """Tell whether the node meets the volume's node affinity. A volume without affinity can be used on every node."""
    affinity = volume.spec.node_affinity
    return affinity is None or affinity.required is None or selector_matches(affinity.required, node)


def pod_allows(pod: Pod, node: Node) -> bool:
    """Tell whether the node meets the pod's nodeSelector and required node affinity."""
    labels = node.metadata.labels or {}
    if any(labels.get(key) != value for key, value in (pod.spec.node_selector or {}).items()):
        return False
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return required is None or selector_matches(required, node)


def preference(pod: Pod, node: Node) -> int:
    """Sum of the weights of the preferred terms that the node meets."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    terms = affinity.preferred_during_scheduling_ignored_during_execution if affinity else None
    return sum(term.weight for term in terms or () if _term_matches(term.preference, node))


def untolerated(tolerations: Iterable[Toleration], taints: Iterable[Taint]) -> Taint | None:
    """Return the first NoSchedule or NoExecute taint that is not tolerated, None if there is none."""
    held = list(tolerations)
    for taint in taints:
        if taint.effect in {"NoSchedule", "NoExecute"} and not any(_tolerates(one, taint) for one in held):
            return taint
    return None


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value


def in_topology(terms: Iterable[TopologyTerm], node: Node) -> bool:
    """Tell whether the node meets a class's allowedTopologies: one term with all its keys.

    No terms allow every node.
    """
    listed = list(terms)
    if not listed:
        return True
    labels = node.metadata.labels or {}
    return any(
        bool(term.match_label_expressions)
        and all(labels.get(need.key) in (need.values or ()) for need in term.match_label_expressions or ())
        for term in listed
    )
