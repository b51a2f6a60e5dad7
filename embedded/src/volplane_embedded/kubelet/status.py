"""The status of a pod as the kubelet reports it. Pure.

Source: pkg/kubelet/kubelet_pods.go (generateAPIPodStatus, convertToAPIContainerStatuses),
pkg/kubelet/status/generate.go.
"""

from __future__ import annotations

from typing import Any

from volplane_embedded.kubelet.pod_actions import pod_phase, should_restart
from volplane_embedded.kubelet.pod_state import ContainerRecord, PodRecord, Terminated
from volplane_embedded.objects import Condition, Container, Pod, timestamp, with_condition

HOST = "127.0.0.1"
"""Address of every pod: pods share the network of the machine."""


def generate_pod_status(pod: Pod, record: PodRecord, *, mono: float, now: str) -> dict[str, Any]:
    """Return the merge patch of `status`. mono: loop time, which decides on CrashLoopBackOff. now: RFC 3339."""
    phase = pod_phase(pod, record)
    reason, message = record.failure or ("", "")
    status: dict[str, Any] = {
        "phase": phase,
        "reason": reason or None,
        "message": message or None,
        "hostIP": HOST,
        "hostIPs": [{"ip": HOST}],
        "podIP": HOST,
        "podIPs": [{"ip": HOST}],
        "startTime": timestamp(record.begun),
        "conditions": _conditions(pod, record, phase, now),
        "containerStatuses": _containers(pod, pod.spec.containers, record.main, mono),
    }
    if pod.spec.init_containers:
        status["initContainerStatuses"] = _containers(pod, pod.spec.init_containers, record.init, mono)
    return status


def _conditions(pod: Pod, record: PodRecord, phase: str, now: str) -> list[Condition]:
    unready = [container.name for container in record.main if not container.running]
    initialized = all(container.succeeded for container in record.init)
    reason, message = "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    if phase == "Succeeded":
        reason, message = "PodCompleted", ""
    elif phase == "Failed":
        reason, message = "PodFailed", ""
    ready = not unready and phase == "Running"
    unready_reason = {} if ready else {"reason": reason, "message": message}
    conditions = with_condition(pod.status.conditions, "PodScheduled", status=True, now=now)
    conditions = with_condition(conditions, "PodReadyToStartContainers", status=record.prepared, now=now)
    incomplete = [container.name for container in record.init if not container.succeeded]
    why = {} if initialized else _incomplete(incomplete)
    conditions = with_condition(conditions, "Initialized", status=initialized, now=now, **why)
    conditions = with_condition(conditions, "ContainersReady", status=ready, now=now, **unready_reason)
    return with_condition(conditions, "Ready", status=ready, now=now, **unready_reason)


def _incomplete(names: list[str]) -> dict[str, str]:
    return {
        "reason": "ContainersNotInitialized",
        "message": f"containers with incomplete status: [{' '.join(names)}]",
    }


def _containers(pod: Pod, specs: list[Container], records: list[ContainerRecord], mono: float) -> list[dict[str, Any]]:
    return [_container(pod, spec, record, mono) for spec, record in zip(specs, records, strict=True)]


def _container(pod: Pod, spec: Container, record: ContainerRecord, mono: float) -> dict[str, Any]:
    state, last = _states(pod, record, mono)
    running = bool(record.running)
    return {
        "name": spec.name,
        "image": spec.image,
        "imageID": "",
        "containerID": f"process://{pod.uid}/{spec.name}/{record.attempt}" if record.attempt >= 0 else None,
        "restartCount": max(record.attempt - record.launching, 0),
        "ready": record.succeeded if record.init else running,
        "started": running,
        "state": state,
        "lastState": last,
    }


def _states(pod: Pod, record: ContainerRecord, mono: float) -> tuple[dict[str, Any], dict[str, Any]]:
    last = {"terminated": _terminated(record.last)} if record.last is not None else {}
    if record.running:
        return {"running": {"startedAt": record.running}}, last
    if record.ended is None:
        return _waiting(*record.waiting), last
    ended = {"terminated": _terminated(record.ended)}
    if record.due > mono and should_restart(pod, record) and not pod.terminating:
        whose = f"container={record.name} pod={pod.name}_{pod.namespace}({pod.uid})"
        message = f"back-off {record.pause:.0f}s restarting failed {whose}"
        return _waiting("CrashLoopBackOff", message), ended
    return ended, last


def _waiting(reason: str, message: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def _terminated(ended: Terminated) -> dict[str, Any]:
    optional = {"reason": ended.reason, "message": ended.message, "startedAt": ended.started, "signal": ended.signal}
    return {
        "exitCode": ended.code,
        "finishedAt": ended.finished,
        **{key: value for key, value in optional.items() if value},
    }
