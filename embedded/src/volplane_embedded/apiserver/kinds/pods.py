"""Pods, their binding and their graceful deletion (`pkg/registry/core/pod`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds import pod_defaults, pod_updates, pod_validation
from volplane_embedded.apiserver.kinds.printer_columns import POD_COLUMNS, field_text, pod_row_conditions
from volplane_embedded.apiserver.resources import Clock, Json, Resource, StatusStrategy
from volplane_embedded.apiserver.scalars import format_time

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
                    "lastTransitionTime": format_time(self._now()),
                    "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                }
            ]
        obj["status"] = status

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes: list[Cause] = []
        pod_validation.validate(obj, causes)
        spec = obj["spec"]
        if spec.get("ephemeralContainers"):
            causes.append(Cause.forbidden("spec.ephemeralContainers", "cannot be set on create"))
        if spec.get("nodeName") and spec.get("schedulingGates"):
            why = "cannot be set until all schedulingGates have been cleared"
            causes.append(Cause.forbidden("spec.nodeName", why))
        return causes

    def prepare_update(self, new: Json, old: Json, subresource: str) -> None:
        super().prepare_update(new, old, subresource)
        if subresource != "status":
            return
        new["status"].setdefault("qosClass", old.get("status", {}).get("qosClass", "BestEffort"))
        if "ownerReferences" in old["metadata"]:
            new["metadata"]["ownerReferences"] = old["metadata"]["ownerReferences"]
        else:
            new["metadata"].pop("ownerReferences", None)

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        check = pod_updates.validate_status if subresource == "status" else pod_updates.validate_change
        return check(new, old)

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
        self._set_condition(obj.setdefault("status", {}), "PodScheduled", {})
        return ""

    def evict(self, obj: Json) -> None:
        reason = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
        self._set_condition(obj.setdefault("status", {}), "DisruptionTarget", reason)

    def _set_condition(self, status: Json, kind: str, reason: Json) -> None:
        """Set a condition to True. Its time stays if it was True before."""
        conditions = status.get("conditions") or []
        before: Json = next(
            (entry for entry in conditions if entry.get("type") == kind and entry.get("status") == "True"), {}
        )
        condition = {
            "type": kind,
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": before.get("lastTransitionTime") or format_time(self._now()),
            **reason,
        }
        status["conditions"] = [*(entry for entry in conditions if entry.get("type") != kind), condition]

    def grace_seconds(self, obj: Json, asked: int | None) -> int:
        spec, phase = obj["spec"], obj.get("status", {}).get("phase")
        if not spec.get("nodeName") or phase in _FINAL_PHASES:
            return 0
        seconds = spec.get("terminationGracePeriodSeconds") or 0 if asked is None else asked
        return 1 if seconds < 0 else int(seconds)


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
        subresources=("attach", "binding", "eviction", "exec", "log", "portforward", "status"),
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
