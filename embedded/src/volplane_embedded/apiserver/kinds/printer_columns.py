"""Columns that `kubectl get` prints: those of several kinds, and those of pods (`pkg/printers/internalversion`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from volplane_embedded.apiserver.resources import Column, Json, Since

NAME_DESCRIPTION: Final = (
    "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a"
    " client to request the generation of an appropriate name automatically. Name is primarily intended for creation"
    " idempotence and configuration definition. Cannot be updated. More info:"
    " https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names"
)
_AGE_DESCRIPTION: Final = (
    "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed"
    " to be set in happens-before order across separate operations. Clients may not set this value. It is represented"
    " in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info:"
    " https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"
)
_SHORT_MODES: Final[Mapping[str, str]] = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def path(*keys: str, absent: Any = "") -> Callable[[Json], Any]:
    """Return a cell with the value at a path, `absent` if there is none."""

    def cell(obj: Json) -> Any:
        found: Any = obj
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return absent if found is None else found

    return cell


def field_text(*keys: str) -> Callable[[Json], str]:
    """Return the text that a field selector compares: booleans in lower case, "" if absent."""
    read = path(*keys)

    def value(obj: Json) -> str:
        found = read(obj)
        return str(found).lower() if isinstance(found, bool) else str(found)

    return value


def modes(listed: Iterable[str] | None) -> str:
    """Access modes in short form, each once, in the stock order."""
    present = set(listed or ())
    return ",".join(short for mode, short in _SHORT_MODES.items() if mode in present)


NAME: Final = Column("Name", NAME_DESCRIPTION, path("metadata", "name"), format="name")
AGE: Final = Column("Age", _AGE_DESCRIPTION, lambda obj: Since(obj["metadata"].get("creationTimestamp")))


@dataclass(slots=True)
class _Summary:
    ready: int = 0
    total: int = 0
    restarts: int = 0
    last_restart: str = ""
    reason: str = ""


def _ended(state: Json) -> str:
    """Explain why a terminated container ended."""
    if state.get("reason"):
        return str(state["reason"])
    if state.get("signal"):
        return f"Signal:{state['signal']}"
    return f"ExitCode:{state.get('exitCode', 0)}"


def _restarted(container: Json) -> str:
    return str(((container.get("lastState") or {}).get("terminated") or {}).get("finishedAt") or "")


def _restartable(pod: Json) -> set[str]:
    listed = pod["spec"].get("initContainers") or ()
    return {entry.get("name", "") for entry in listed if entry.get("restartPolicy") == "Always"}


def _summarize(pod: Json) -> _Summary:
    status = pod.get("status") or {}
    sidecars = _restartable(pod)
    summary = _Summary(total=len(pod["spec"].get("containers") or ()) + len(sidecars))
    summary.reason = status.get("reason") or status.get("phase") or ""
    if _is_gated(status):
        summary.reason = "SchedulingGated"
    if not _initializing(pod, status, sidecars, summary):
        _running(status.get("containerStatuses") or (), summary)
        if summary.reason == "Completed" and any(_is_running(entry) for entry in status.get("containerStatuses") or ()):
            summary.reason = "Running" if _is_ready(status) else "NotReady"
    _deleted(pod, status, summary)
    return summary


def _is_gated(status: Json) -> bool:
    return any(
        entry.get("type") == "PodScheduled" and entry.get("reason") == "SchedulingGated"
        for entry in status.get("conditions") or ()
    )


def _initializing(pod: Json, status: Json, sidecars: set[str], summary: _Summary) -> bool:
    listed = pod["spec"].get("initContainers") or ()
    for index, container in enumerate(status.get("initContainerStatuses") or ()):
        state = container.get("state") or {}
        summary.restarts += container.get("restartCount") or 0
        summary.last_restart = max(summary.last_restart, _restarted(container))
        terminated, waiting = state.get("terminated"), state.get("waiting") or {}
        if terminated is not None and not terminated.get("exitCode"):
            continue
        if container.get("name") in sidecars and container.get("started"):
            summary.ready += bool(container.get("ready"))
            continue
        if terminated is not None:
            summary.reason = f"Init:{_ended(terminated)}"
        elif waiting.get("reason") and waiting["reason"] != "PodInitializing":
            summary.reason = f"Init:{waiting['reason']}"
        else:
            summary.reason = f"Init:{index}/{len(listed)}"
        return True
    return False


def _running(containers: Iterable[Json], summary: _Summary) -> None:
    restarts, last = 0, ""
    for container in reversed(list(containers)):
        state = container.get("state") or {}
        restarts += container.get("restartCount") or 0
        last = max(last, _restarted(container))
        waiting, terminated = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason"):
            summary.reason = waiting["reason"]
        elif terminated is not None:
            summary.reason = _ended(terminated)
        elif container.get("ready") and state.get("running") is not None:
            summary.ready += 1
    summary.restarts, summary.last_restart = restarts, last


def _is_running(container: Json) -> bool:
    return bool(container.get("ready")) and (container.get("state") or {}).get("running") is not None


def _is_ready(status: Json) -> bool:
    conditions = status.get("conditions") or ()
    return any(entry.get("type") == "Ready" and entry.get("status") == "True" for entry in conditions)


def _deleted(pod: Json, status: Json, summary: _Summary) -> None:
    if not pod["metadata"].get("deletionTimestamp"):
        return
    if status.get("reason") == "NodeLost":
        summary.reason = "Unknown"
    elif status.get("phase") not in {"Failed", "Succeeded"}:
        summary.reason = "Terminating"


def _ready(pod: Json) -> str:
    summary = _summarize(pod)
    return f"{summary.ready}/{summary.total}"


def _restarts(pod: Json) -> Any:
    summary = _summarize(pod)
    if summary.restarts and summary.last_restart:
        return Since(summary.last_restart, layout=f"{summary.restarts} ({{}} ago)")
    return str(summary.restarts)


def _gates(pod: Json) -> str:
    gates = pod["spec"].get("readinessGates") or ()
    if not gates:
        return "<none>"
    true = {e.get("type") for e in (pod.get("status") or {}).get("conditions") or () if e.get("status") == "True"}
    return f"{sum(gate.get('conditionType') in true for gate in gates)}/{len(gates)}"


def pod_row_conditions(pod: Json) -> list[Json]:
    """Return the conditions of the row of a finished pod, by which clients can hide it."""
    phase = (pod.get("status") or {}).get("phase")
    if phase == "Succeeded":
        message = "The pod has completed successfully."
    elif phase == "Failed":
        message = "The pod failed."
    else:
        return []
    return [{"type": "Completed", "status": "True", "reason": phase, "message": message}]


POD_COLUMNS: Final = (
    NAME,
    Column("Ready", "The aggregate readiness state of this pod for accepting traffic.", _ready),
    Column("Status", "The aggregate status of the containers in this pod.", lambda pod: _summarize(pod).reason),
    Column(
        "Restarts",
        (
            "The number of times the containers in this pod have been restarted and when the last container in this "
            "pod has restarted."
        ),
        _restarts,
    ),
    AGE,
    Column(
        "IP",
        "podIP address allocated to the pod. Routable at least within the cluster. Empty if not yet allocated.",
        path("status", "podIP", absent="<none>"),
        priority=1,
    ),
    Column(
        "Node",
        "NodeName indicates in which node this pod is scheduled. If empty, this pod is a candidate for scheduling.",
        path("spec", "nodeName", absent="<none>"),
        priority=1,
    ),
    Column(
        "Nominated Node",
        "nominatedNodeName is set only when this pod preempts other pods on the node.",
        path("status", "nominatedNodeName", absent="<none>"),
        priority=1,
    ),
    Column(
        "Readiness Gates",
        "If specified, all readiness gates will be evaluated for pod readiness.",
        _gates,
        priority=1,
    ),
)
