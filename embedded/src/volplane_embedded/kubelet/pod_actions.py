"""Decides what the kubelet does next about one pod. Pure.

Source: Kubernetes 1.36, pkg/kubelet/kubelet.go (SyncPod), kuberuntime_manager.go (computePodActions), kubelet_pods.go
(getPhase). Differences: a container is ready while it runs (there are no probes), and lifecycle hooks do not run.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from volplane_embedded.kubelet.pod_state import ContainerRecord, PodRecord
from volplane_embedded.objects import Pod

Phase = Literal["Pending", "Running", "Succeeded", "Failed"]


@dataclass(frozen=True, slots=True)
class MountVolumes:
    """Mount the volumes of the pod."""


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Start this container."""

    container: str


@dataclass(frozen=True, slots=True)
class FailPod:
    """Give the pod up: it gets phase Failed with this reason and message."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class TerminateContainers:
    """Send SIGTERM to all running containers."""


@dataclass(frozen=True, slots=True)
class KillContainers:
    """Send SIGKILL to all running containers."""


@dataclass(frozen=True, slots=True)
class UnmountVolumes:
    """No container runs any more, and none will: unmount the volumes."""


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete the object: its deletion waited for the kubelet only."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to do until something changes, or until `seconds` have passed."""

    seconds: float | None = None


PodAction = (
    MountVolumes | StartContainer | FailPod | TerminateContainers | KillContainers | UnmountVolumes | DeletePod | Idle
)


def compute_pod_action(pod: Pod, record: PodRecord, *, mono: float, wall: datetime, gone: bool) -> PodAction:
    """Decide on the next action. mono: loop time. wall: UTC. gone: the object is deleted, and `pod` is its last
    state.
    """
    left = _deadline(pod, record, wall)
    if gone or pod.terminating or record.failure is not None:
        return _terminate(pod, record, mono, gone=gone)
    if _is_over(pod, record):
        return Idle() if record.torn_down else UnmountVolumes()
    if left is not None and left <= 0:
        return FailPod("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
    action = _run(pod, record, mono)
    if isinstance(action, Idle) and left is not None:
        return Idle(left if action.seconds is None else min(left, action.seconds))
    return action


def _deadline(pod: Pod, record: PodRecord, wall: datetime) -> float | None:
    """Return the seconds left of activeDeadlineSeconds, None without it."""
    seconds = pod.spec.active_deadline_seconds
    return None if seconds is None else (record.begun + timedelta(seconds=seconds) - wall).total_seconds()


def _terminate(pod: Pod, record: PodRecord, mono: float, *, gone: bool) -> PodAction:
    if record.active:
        if record.stopping is None:
            return TerminateContainers()
        left = record.stopping + (0.0 if gone else _grace(pod)) - mono
        if record.killed:
            return Idle()
        return KillContainers() if left <= 0 else Idle(left)
    if not record.torn_down:
        return UnmountVolumes()
    return DeletePod() if pod.terminating and not gone else Idle()


def _grace(pod: Pod) -> float:
    asked = pod.metadata.deletion_grace_period_seconds if pod.terminating else None
    return float(pod.spec.termination_grace_period_seconds if asked is None else asked)


def _run(pod: Pod, record: PodRecord, mono: float) -> PodAction:
    if not record.prepared:
        return Idle(record.prepare_due - mono) if record.prepare_due > mono else MountVolumes()
    for container in record.init:
        if not container.succeeded:
            return _start(container, mono)
    due: list[float] = []
    for container in record.main:
        if container.active or (container.ended is not None and not should_restart(pod, container)):
            continue
        if container.due <= mono:
            return StartContainer(container.name)
        due.append(container.due - mono)
    return Idle(min(due, default=None))


def _start(container: ContainerRecord, mono: float) -> PodAction:
    if container.active:
        return Idle()
    return StartContainer(container.name) if container.due <= mono else Idle(container.due - mono)


def should_restart(pod: Pod, container: ContainerRecord) -> bool:
    """Tell whether a container that has ended is started again (restartPolicy)."""
    policy = pod.spec.restart_policy
    if policy == "Never":
        return False
    return not container.succeeded if policy == "OnFailure" or container.init else True


def _is_over(pod: Pod, record: PodRecord) -> bool:
    return not record.active and pod_phase(pod, record) in {"Succeeded", "Failed"}


def pod_phase(pod: Pod, record: PodRecord) -> Phase:
    """Return the phase of the pod, computed from the states of its containers."""
    if record.failure is not None:
        return "Failed" if not record.active else _phase_while_active(record)
    if pod.terminating and not record.active:
        return "Succeeded" if all(container.succeeded for container in record.main) else "Failed"
    if any(one.ended is not None and not one.succeeded and not should_restart(pod, one) for one in record.init):
        return "Failed"
    if any(not container.succeeded for container in record.init):
        return "Pending"
    return _phase_of_main(pod, record)


def _phase_while_active(record: PodRecord) -> Phase:
    return "Running" if any(container.running for container in record.main) else "Pending"


def _phase_of_main(pod: Pod, record: PodRecord) -> Phase:
    if any(not one.running and one.ended is None and one.last is None for one in record.main):
        return "Pending"
    if any(one.ended is None or should_restart(pod, one) for one in record.main):
        return "Running"
    return "Succeeded" if all(container.succeeded for container in record.main) else "Failed"
