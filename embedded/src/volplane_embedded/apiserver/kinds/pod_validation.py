"""Validation of new pods (`pkg/apis/core/validation`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from volplane_embedded.apiserver import names, object_meta
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds import pod_volumes
from volplane_embedded.apiserver.kinds.pod_containers import check_id, validate_containers, validate_images
from volplane_embedded.apiserver.kinds.validation import (
    label_selector,
    named,
    node_selector,
    node_selector_term,
    one_of,
    refused,
)
from volplane_embedded.apiserver.resources import Json

REQUIRED_DURING: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED_DURING: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_EFFECTS: Final = ("NoExecute", "NoSchedule", "PreferNoSchedule")
_UNSATISFIABLE: Final = ("DoNotSchedule", "ScheduleAnyway")


def validate(pod: Json, causes: list[Cause]) -> None:
    """Check the metadata and the spec of a pod."""
    causes.extend(object_meta.validate_of_kind(pod["metadata"]))
    validate_spec(pod["spec"], pod["metadata"].get("name", ""), causes)


def validate_spec(spec: Json, name: str, causes: list[Cause]) -> None:
    """Check the spec of a pod, or of a template of pods, which have no name yet."""
    volumes = pod_volumes.validate(spec.get("volumes") or (), name, causes)
    validate_containers(spec, volumes, causes)
    if spec.get("hostNetwork"):
        _validate_host_ports(spec, causes)
    one_of(spec["restartPolicy"], ("Always", "Never", "OnFailure"), "spec.restartPolicy", causes)
    one_of(spec["dnsPolicy"], ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"), "spec.dnsPolicy", causes)
    causes.extend(object_meta.validate_labels(spec.get("nodeSelector") or {}, "spec.nodeSelector"))
    for key in ("fsGroup", "runAsUser", "runAsGroup"):
        check_id(spec.get("securityContext") or {}, key, "spec.securityContext", causes)
    _validate_affinity(spec.get("affinity") or {}, causes)
    _validate_gates(spec.get("schedulingGates") or (), causes)
    _validate_spread(spec.get("topologySpreadConstraints") or (), causes)
    _validate_scalars(spec, causes)
    validate_tolerations(spec.get("tolerations") or (), causes)
    for key in ("priorityClassName", "runtimeClassName"):
        if spec.get(key):
            named(spec[key], f"spec.{key}", causes)
    _validate_tokens(spec, causes)
    validate_images(spec, causes)


def _validate_scalars(spec: Json, causes: list[Cause]) -> None:
    for key in ("serviceAccountName", "nodeName"):
        if spec.get(key):
            named(spec[key], f"spec.{key}", causes)
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= 2**31 - 1:
        why = "must be between 1 and 2147483647, inclusive"
        causes.append(Cause.invalid("spec.activeDeadlineSeconds", deadline, why))
    for key in ("hostname", "subdomain"):
        if spec.get(key):
            refused(names.dns_label(spec[key]), spec[key], f"spec.{key}", causes)


def _validate_tokens(spec: Json, causes: list[Cause]) -> None:
    """Tokens of a service account need one."""
    if spec.get("serviceAccountName"):
        return
    for index, volume in enumerate(spec.get("volumes") or ()):
        for at, source in enumerate((volume.get("projected") or {}).get("sources") or ()):
            if source.get("serviceAccountToken") is not None:
                where = f"spec.volumes[{index}].projected.sources[{at}].serviceAccountToken"
                causes.append(Cause.forbidden(where, "must not be specified when serviceAccountName is not set"))


def _validate_host_ports(spec: Json, causes: list[Cause]) -> None:
    for at, container in enumerate(spec.get("containers") or ()):
        for index, port in enumerate(container.get("ports") or ()):
            if port.get("hostPort") != port.get("containerPort"):
                path = f"spec.containers[{at}].ports[{index}].hostPort"
                why = "must match `containerPort` when `hostNetwork` is true"
                causes.append(Cause.invalid(path, port.get("hostPort", 0), why))


def _validate_affinity(affinity: Json, causes: list[Cause]) -> None:
    node = affinity.get("nodeAffinity") or {}
    where = "spec.affinity.nodeAffinity"
    if node.get(REQUIRED_DURING) is not None:
        node_selector(node[REQUIRED_DURING], f"{where}.{REQUIRED_DURING}", causes)
    for index, term in enumerate(node.get(_PREFERRED_DURING) or ()):
        weight, path = term.get("weight") or 0, f"{where}.{_PREFERRED_DURING}[{index}]"
        if not 1 <= weight <= 100:
            causes.append(Cause.invalid(f"{path}.weight", weight, "must be in the range 1-100"))
        node_selector_term(term.get("preference") or {}, f"{path}.preference", causes, any_value=True)


def validate_tolerations(tolerations: Sequence[Json], causes: list[Cause]) -> None:
    for index, toleration in enumerate(tolerations):
        where, key = f"spec.tolerations[{index}]", toleration.get("key") or ""
        operator, value = toleration.get("operator") or "", toleration.get("value") or ""
        if key:
            refused(names.qualified_name(key), key, f"{where}.key", causes)
        elif operator != "Exists":
            why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            causes.append(Cause.invalid(f"{where}.operator", operator, why))
        if toleration.get("tolerationSeconds") is not None and toleration.get("effect") != "NoExecute":
            why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            causes.append(Cause.invalid(f"{where}.effect", toleration.get("effect", ""), why))
        if operator in {"", "Equal"}:
            if faults := names.label_value(value):
                causes.append(Cause.invalid(f"{where}.operator", value, ";".join(faults)))
        elif operator != "Exists":
            causes.append(Cause.unsupported(f"{where}.operator", operator, ["Equal", "Exists"]))
        elif value:
            causes.append(Cause.invalid(f"{where}.operator", value, "value must be empty when `operator` is 'Exists'"))
        if toleration.get("effect"):
            one_of(toleration["effect"], _EFFECTS, f"{where}.effect", causes)


def _validate_gates(gates: Sequence[Json], causes: list[Cause]) -> None:
    seen: set[str] = set()
    for index, gate in enumerate(gates):
        where, name = f"spec.schedulingGates[{index}]", gate.get("name") or ""
        refused(names.qualified_name(name), name, where, causes)
        if name in seen:
            causes.append(Cause.duplicate(where, name))
        seen.add(name)


def _validate_spread(constraints: Sequence[Json], causes: list[Cause]) -> None:
    for index, constraint in enumerate(constraints):
        where, skew = f"spec.topologySpreadConstraints[{index}]", constraint.get("maxSkew") or 0
        key, unsatisfiable = constraint.get("topologyKey") or "", constraint.get("whenUnsatisfiable") or ""
        if skew <= 0:
            causes.append(Cause.invalid(f"{where}.maxSkew", skew, "must be greater than zero"))
        if not key:
            causes.append(Cause.required(f"{where}.topologyKey", "can not be empty"))
        one_of(unsatisfiable, _UNSATISFIABLE, f"{where}.whenUnsatisfiable", causes)
        if any(
            (key, unsatisfiable) == (other.get("topologyKey"), other.get("whenUnsatisfiable"))
            for other in constraints[index + 1 :]
        ):
            pair = f"{{{key}, {unsatisfiable}}}"
            causes.append(Cause.duplicate(f"{where}.{{topologyKey, whenUnsatisfiable}}", pair))
        if constraint.get("labelSelector") is not None:
            label_selector(constraint["labelSelector"], f"{where}.labelSelector", causes)
