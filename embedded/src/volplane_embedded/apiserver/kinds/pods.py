"""Pods, their binding and their graceful deletion (`pkg/registry/core/pod`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds import pod_defaults, pod_validation
from volplane_embedded.apiserver.kinds.printer_columns import POD_COLUMNS, field_text, pod_row_conditions
from volplane_embedded.apiserver.resources import Clock, Json, Resource, StatusStrategy
from volplane_embedded.apiserver.scalars import format_time

__all__ = ["PodStrategy", "resource"]

_FINAL_PHASES: Final = frozenset({"Failed", "Succeeded"})


class PodStrategy(StatusStrategy):
    def __init__(self, now: Clock) -> None:
        self._now = now

    def default(self, obj: Json) -> None:
        pod_defaults.default(obj)

    def prepare_create(self, obj: Json) -> None:
        status: Json = {"phase": "Pending", "qosClass": pod_defaults.qos_class(obj["spec"])}
        if obj["spec"].get("schedulingGates"):
            status["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "lastProbeTime": None,
                    "lastTransitionTime": None,
                    "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                }
            ]
        obj["status"] = status

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes: list[Cause] = []
        pod_validation.validate(obj, causes)
        return causes

    def prepare_update(self, new: Json, old: Json, subresource: str) -> None:
        super().prepare_update(new, old, subresource)
        if subresource == "status":
            new["status"].setdefault("qosClass", old.get("status", {}).get("qosClass", "BestEffort"))

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes: list[Cause] = []
        if subresource == "status":
            _validate_status(new, old, causes)
        elif new["spec"] != old["spec"]:
            pod_validation.validate(new, causes)
            pod_validation.validate_change(new, old, causes)
        return causes

    def validate_binding(self, binding: Json) -> Sequence[Cause]:
        target = binding.get("target") or {}
        causes: list[Cause] = []
        if target.get("kind") not in {None, "", "Node"}:
            causes.append(Cause.unsupported("target.kind", target["kind"], ["Node", "<empty>"]))
        if not target.get("name"):
            causes.append(Cause.required("target.name"))
        return causes

    def bind(self, obj: Json, binding: Json) -> str:
        name, spec, metadata = obj["metadata"]["name"], obj["spec"], obj["metadata"]
        wanted = (binding.get("metadata") or {}).get("uid")
        if wanted and wanted != metadata.get("uid"):
            return f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {metadata.get('uid')}"
        if metadata.get("deletionTimestamp"):
            return f"pod {name} is being deleted, cannot be assigned to a host"
        if spec.get("nodeName"):
            return f'pod {name} is already assigned to node "{spec["nodeName"]}"'
        if spec.get("schedulingGates"):
            return f"pod {name} has non-empty .spec.schedulingGates"
        spec["nodeName"] = binding["target"]["name"]
        added = (binding.get("metadata") or {}).get("annotations")
        if added:
            metadata["annotations"] = {**(metadata.get("annotations") or {}), **added}
        self._set_scheduled(obj.setdefault("status", {}))
        return ""

    def _set_scheduled(self, status: Json) -> None:
        condition = {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": format_time(self._now()),
        }
        others = [entry for entry in status.get("conditions") or () if entry.get("type") != "PodScheduled"]
        status["conditions"] = [*others, condition]

    def grace_seconds(self, obj: Json, asked: int | None) -> int:
        spec, phase = obj["spec"], obj.get("status", {}).get("phase")
        if not spec.get("nodeName") or phase in _FINAL_PHASES:
            return 0
        seconds = spec.get("terminationGracePeriodSeconds") or 0 if asked is None else asked
        return 1 if seconds < 0 else int(seconds)


def _validate_status(new: Json, old: Json, causes: list[Cause]) -> None:
    """A container that ended for good may not run again."""
    policy = old["spec"].get("restartPolicy")
    if policy == "Always":
        return
    for key in ("containerStatuses", "initContainerStatuses"):
        ended = {entry.get("name") for entry in old["status"].get(key) or () if _ended_for_good(entry, policy)}
        for index, entry in enumerate(new["status"].get(key) or ()):
            if entry.get("name") in ended and not (entry.get("state") or {}).get("terminated"):
                why = "may not be transitioned to non-terminated state"
                causes.append(Cause.forbidden(f"status.{key}[{index}].state", why))


def _ended_for_good(container: Json, policy: object) -> bool:
    terminated = (container.get("state") or {}).get("terminated")
    return terminated is not None and (policy == "Never" or not terminated.get("exitCode"))


def resource(now: Clock) -> Resource:
    return Resource(
        group="",
        version="v1",
        plural="pods",
        kind="Pod",
        singular="pod",
        namespaced=True,
        strategy=PodStrategy(now),
        columns=POD_COLUMNS,
        row_conditions=pod_row_conditions,
        short_names=("po",),
        categories=("all",),
        subresources=("binding", "log", "status"),
        fields={
            "spec.nodeName": field_text("spec", "nodeName"),
            "spec.restartPolicy": field_text("spec", "restartPolicy"),
            "spec.schedulerName": field_text("spec", "schedulerName"),
            "spec.serviceAccountName": field_text("spec", "serviceAccountName"),
            "spec.hostNetwork": lambda pod: "true" if pod["spec"].get("hostNetwork") else "false",
            "status.phase": field_text("status", "phase"),
            "status.podIP": field_text("status", "podIP"),
            "status.nominatedNodeName": field_text("status", "nominatedNodeName"),
        },
        generation=True,
        graceful=True,
    )
