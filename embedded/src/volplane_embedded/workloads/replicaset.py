"""ReplicaSets: as many pods as they say, each with a random name.

Source: pkg/controller/replicaset and pkg/controller/controller_utils.go (ActivePodsWithRanks) of Kubernetes 1.36.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from volplane.controller.actions import Action, Create, Delete, LiveReads, Settled
from volplane_embedded.informers import Informers
from volplane_embedded.objects import (
    PODS,
    REPLICA_SETS,
    Pod,
    Workload,
    available_in,
    condition_of,
    controller_of,
    is_active,
    is_finished,
    is_ready,
)
from volplane_embedded.workloads.objects import claimed, failed, pod_from, said, written

_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_CREATED: Final = ("SuccessfulCreate", "Created a pod")
_PHASES: Final = ("Pending", "Unknown", "Running")


class ReplicaSets:
    """The controller's decisions. now: wall time."""

    def __init__(self, informers: Informers, now: Callable[[], datetime]) -> None:
        self._informers = informers
        self._now = now

    def decide(self, key: str, _reads: LiveReads) -> Action:
        found = self._informers.replica_sets.get(key)
        if found is None:
            return Settled()
        pods = self._informers.pods.by_index("controller", found.uid)
        active = [pod for pod in pods if is_active(pod)]
        if not found.terminating:
            orphans = self._informers.pods.by_index("controller", f"{found.namespace}/")
            for action in claimed(REPLICA_SETS, found, PODS, [pod for pod in orphans if is_active(pod)], pods):
                return action
            if len(active) < found.replicas:
                return self._create(found)
            if len(active) > found.replicas:
                return self._delete(found, active)
        return written(REPLICA_SETS, found, *self._status(found, pods, active))

    def _create(self, found: Workload) -> Create:
        body, events = pod_from(found.spec["template"], REPLICA_SETS, found), (said(REPLICA_SETS, found, *_CREATED),)
        failure = failed(REPLICA_SETS, found, "create pod")
        return Create(kind=PODS, body=body, why="create pod", events=events, failure_event=failure)

    def _delete(self, found: Workload, active: list[Pod]) -> Delete:
        """Delete the pod that is worth the least, of equal ones the newest."""
        owner = controller_of(found)
        siblings = [found] if owner is None else self._informers.replica_sets.by_index("controller", owner.uid)
        related = (pod for each in siblings for pod in self._informers.pods.by_index("controller", each.uid))
        on_node = Counter(pod.spec.node_name for pod in related if is_active(pod))
        active.sort(key=lambda pod: (_ready_since(pod), pod.metadata.creation_timestamp or ""), reverse=True)
        pod = min(active, key=lambda pod: _worth(pod, on_node))
        events = (said(REPLICA_SETS, found, "SuccessfulDelete", f"Deleted pod: {pod.name}"),)
        return Delete(kind=PODS, target=pod, why=f"too many of ReplicaSet {found.key}", exact=False, events=events)

    def _status(self, found: Workload, pods: list[Pod], active: list[Pod]) -> tuple[dict[str, Any], float | None]:
        labels = (found.spec["template"].get("metadata", {}).get("labels") or {}).items()
        least = int(found.spec.get("minReadySeconds") or 0)
        lefts = [available_in(pod, least, self._now()) for pod in active]
        counts = {
            "fullyLabeledReplicas": sum(labels <= (pod.metadata.labels or {}).items() for pod in active),
            "readyReplicas": sum(map(is_ready, active)),
            "availableReplicas": lefts.count(0.0),
        }
        status = {
            **({"conditions": found.status["conditions"]} if found.status.get("conditions") else {}),
            "replicas": len(active),
            **{name: count for name, count in counts.items() if count},
            "terminatingReplicas": sum(pod.terminating and not is_finished(pod) for pod in pods),
            "observedGeneration": found.metadata.generation,
        }
        return status, min((left for left in lefts if left), default=None)


def _worth(pod: Pod, on_node: Counter[str]) -> tuple[Any, ...]:
    """Return what tells which pod of two is deleted: that with the lower worth."""
    cost = (pod.metadata.annotations or {}).get(_DELETION_COST, "0")
    phase = pod.status.phase
    return (
        bool(pod.spec.node_name),
        _PHASES.index(phase) if phase in _PHASES else 0,
        is_ready(pod),
        int(cost) if cost.lstrip("-").isdigit() else 0,
        -on_node[pod.spec.node_name],
        -max((each.restart_count for each in pod.status.container_statuses or ()), default=0),
    )


def _ready_since(pod: Pod) -> str:
    return str(condition_of(pod.status.conditions, "Ready").get("lastTransitionTime") or "") if is_ready(pod) else ""
