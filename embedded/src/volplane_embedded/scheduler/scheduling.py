"""Decides on which node a pod runs. Pure.

`decide` reads the caches and returns the next step for one pod: write a condition, reserve a volume, write the selected
node to a claim, bind the pod, or wait with a reason. Messages are those of kube-scheduler.
Source: Kubernetes 1.36, pkg/scheduler/framework/plugins: NodeName, NodeUnschedulable, TaintToleration, NodeAffinity,
VolumeRestrictions, NodeVolumeLimits, VolumeBinding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from volplane.controller.actions import EventRecord, Patch, Settled, Wait
from volplane.kube.objects import Claim, Node, Taint
from volplane_embedded.node_affinity import pod_allows, preference, untolerated
from volplane_embedded.objects import PODS, Pod, condition_of, is_finished, needs_node, with_condition
from volplane_embedded.scheduler.volume_binding import (
    ClaimBinding,
    PodVolumeClaims,
    StorageState,
    Unschedulable,
    bind_patch,
    conflict,
    match_claims,
    pod_volume_claims,
)
from volplane_embedded.scheduler.volume_limits import TOO_MANY, LimitState, full_nodes

_GATED = "Scheduling is blocked due to non-empty scheduling gates"
_ONE_POD = "ReadWriteOncePod"
_IN_USE = f"node(s) unavailable due to PersistentVolumeClaim with {_ONE_POD} access mode already in-use by another pod"
_CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_ROOM = 110


@dataclass(frozen=True, slots=True)
class Bind:
    """Assign the pod to the node."""

    pod: Pod
    node: str
    events: tuple[EventRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """The next step, and the chosen node, which the pod keeps until its claims are bound; "" if none is chosen."""

    step: Bind | Patch | Wait | Settled
    node: str = ""


@dataclass(frozen=True, slots=True)
class SchedulerState:
    """What a decision reads.

    pods: all pods. users: pods that use a claim, by its key. assumed: the nodes of pods that are not bound yet, by key.
    now: transition time of conditions, RFC 3339.
    """

    pods: Callable[[], Iterable[Pod]]
    users: Callable[[str], Iterable[Pod]]
    nodes: Mapping[str, Node]
    storage: StorageState
    limits: LimitState
    now: str
    assumed: Mapping[str, str] = field(default_factory=dict)


def decide(pod: Pod, state: SchedulerState) -> Placement:
    """Return the next step towards a node for the pod."""
    if not needs_node(pod):
        return Placement(Settled())
    if pod.spec.scheduling_gates:
        return _waits(pod, state, "SchedulingGated", _GATED)
    wanted = pod_volume_claims(pod, state.storage)
    if isinstance(wanted, Unschedulable):
        return _unschedulable(pod, state, wanted.reason)
    if wanted.waiting:
        return _until_bound(pod, wanted.waiting, state)
    if not state.nodes:
        return _waits(pod, state, "Unschedulable", "no nodes available to schedule pods")
    if _in_use(pod, [*wanted.bound, *wanted.unbound], state):
        return _unschedulable(pod, state, f"{len(state.nodes)} {_IN_USE}")
    chosen = _choose(pod, wanted, state)
    if isinstance(chosen, Unschedulable):
        return _unschedulable(pod, state, chosen.reason)
    return _next_step(pod, chosen)


def _until_bound(pod: Pod, waiting: list[Claim], state: SchedulerState) -> Placement:
    """Wait without a condition if a node is chosen and the claims are being bound; else the pod is unschedulable."""
    node = state.assumed.get(pod.key, "")
    if node and all(claim.spec.volume_name for claim in waiting):
        return Placement(Wait(reason=f"node {node} is chosen; claims are being bound"), node)
    return _unschedulable(pod, state, "pod has unbound immediate PersistentVolumeClaims")


@dataclass(frozen=True, slots=True)
class _Choice:
    node: Node
    matches: list[ClaimBinding]


def _next_step(pod: Pod, choice: _Choice) -> Placement:
    name = choice.node.name
    for match in choice.matches:
        if (patch := bind_patch(match, choice.node)) is not None:
            return Placement(patch, name)
    if choice.matches:
        unbound = ", ".join(match.claim.name for match in choice.matches)
        return Placement(Wait(reason=f"node {name} is chosen; waiting until claims are bound: {unbound}"), name)
    done = EventRecord(PODS, pod, "Normal", "Scheduled", f"Successfully assigned {pod.key} to {name}")
    return Placement(Bind(pod, name, (done,)), name)


def _choose(pod: Pod, wanted: PodVolumeClaims, state: SchedulerState) -> _Choice | Unschedulable:
    """Return the best node, and the volumes for its unbound claims there.

    Order: the node chosen before, the pod's preference, fewest volumes to provision, fewest pods, name.
    """
    load = _load(pod, state)
    full = full_nodes(pod, state.pods(), state.assumed, state.storage, state.limits)
    reasons: Counter[str] = Counter()
    choices: list[tuple[tuple[bool, int, int, int, str], _Choice]] = []
    for name, node in state.nodes.items():
        reason = _unfit(pod, node, load[name]) or (TOO_MANY if name in full else "")
        reason = reason or conflict(wanted.bound, node, state.storage)
        matches = Unschedulable(reason) if reason else match_claims(wanted.unbound, node, state.storage)
        if isinstance(matches, Unschedulable):
            reasons[matches.reason] += 1
            continue
        fresh = sum(match.volume is None for match in matches)
        elsewhere = state.assumed.get(pod.key) != name
        rank = (elsewhere, -preference(pod, node), fresh, load[name], name)
        choices.append((rank, _Choice(node, matches)))
    if choices:
        return min(choices, key=lambda pair: pair[0])[1]
    return Unschedulable(", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items())))


def _load(pod: Pod, state: SchedulerState) -> Counter[str]:
    """Number of unfinished pods of each node, with the assumed ones."""
    load: Counter[str] = Counter()
    for other in state.pods():
        if is_finished(other) or other.key == pod.key:
            continue
        if node := other.spec.node_name or state.assumed.get(other.key, ""):
            load[node] += 1
    return load


def _unfit(pod: Pod, node: Node, load: int) -> str:
    """Explain why the pod cannot run on the node, claims aside, or ""."""
    tolerations = pod.spec.tolerations or ()
    if node.spec.unschedulable and untolerated(tolerations, [_CORDON]):
        return "node(s) were unschedulable"
    if (taint := untolerated(tolerations, node.spec.taints or ())) is not None:
        return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
    if not pod_allows(pod, node):
        return "node(s) didn't match Pod's node affinity/selector"
    if load >= int((node.status.allocatable or {}).get("pods", _ROOM)):
        return "Too many pods"
    return ""


def _in_use(pod: Pod, claims: Iterable[Claim], state: SchedulerState) -> bool:
    """Tell whether another pod with a node uses a ReadWriteOncePod claim of this pod."""
    return any(
        other.key != pod.key and not is_finished(other) and bool(other.spec.node_name or other.key in state.assumed)
        for claim in claims
        if _ONE_POD in (claim.spec.access_modes or ())
        for other in state.users(claim.key)
    )


def _unschedulable(pod: Pod, state: SchedulerState, reason: str) -> Placement:
    return _waits(pod, state, "Unschedulable", f"0/{len(state.nodes)} nodes are available: {reason}.")


def _waits(pod: Pod, state: SchedulerState, reason: str, message: str) -> Placement:
    """Write the reason to the pod's condition once. An event is recorded for all reasons but scheduling gates."""
    old = condition_of(pod.status.conditions, "PodScheduled")
    new = with_condition(
        pod.status.conditions, "PodScheduled", status=False, now=state.now, reason=reason, message=message
    )
    if new == (pod.status.conditions or []):
        return Placement(Wait(reason=message))
    events: tuple[EventRecord, ...] = ()
    if reason != "SchedulingGated" and old.get("message") != message:
        events = (EventRecord(PODS, pod, "Warning", "FailedScheduling", message),)
    patch = Patch(
        kind=PODS,
        target=pod,
        body={"status": {"conditions": new}},
        subresource="status",
        why=f"pod {pod.key} waits: {message}",
        events=events,
    )
    return Placement(patch)
