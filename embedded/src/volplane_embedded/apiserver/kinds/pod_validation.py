"""Validation of pods and of changes of pods (`pkg/apis/core/validation`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from volplane.kube.quantity import parse
from volplane_embedded.apiserver import names
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds import pod_volumes
from volplane_embedded.apiserver.kinds.pod_defaults import CONTAINER_LISTS, containers
from volplane_embedded.apiserver.kinds.validation import named, one_of, refused
from volplane_embedded.apiserver.resources import Json

__all__ = ["validate", "validate_change"]

_PORT_NAME: Final = re.compile(r"(?=.{1,15}$)(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*")
_VARIABLE: Final = re.compile(r"[ -<>-~]+")
_LARGEST_PORT: Final = 65535
_IMMUTABLE: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_CHANGEABLE: Final = frozenset({"activeDeadlineSeconds", "tolerations", "schedulingGates", *CONTAINER_LISTS})


def validate(pod: Json, causes: list[Cause]) -> None:
    spec = pod["spec"]
    volumes = pod_volumes.validate(spec.get("volumes") or (), causes)
    if not spec.get("containers"):
        causes.append(Cause.required("spec.containers"))
    _validate_containers(spec, volumes, causes)
    one_of(spec["restartPolicy"], ("Always", "Never", "OnFailure"), "spec.restartPolicy", causes)
    one_of(spec["dnsPolicy"], ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"), "spec.dnsPolicy", causes)
    _validate_scalars(spec, causes)
    _validate_node_selection(spec, causes)
    _validate_tolerations(spec.get("tolerations") or (), causes)
    _validate_gates(spec.get("schedulingGates") or (), causes)
    if spec.get("nodeName") and spec.get("schedulingGates"):
        why = "cannot be set until all schedulingGates have been cleared"
        causes.append(Cause.forbidden("spec.nodeName", why))


def _validate_scalars(spec: Json, causes: list[Cause]) -> None:
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= 2**31 - 1:
        why = "must be between 1 and 2147483647, inclusive"
        causes.append(Cause.invalid("spec.activeDeadlineSeconds", deadline, why))
    grace = spec.get("terminationGracePeriodSeconds")
    if grace is not None and grace < 0:
        why = "must be greater than or equal to 0"
        causes.append(Cause.invalid("spec.terminationGracePeriodSeconds", grace, why))
    for key in ("nodeName", "serviceAccountName", "priorityClassName", "runtimeClassName"):
        if spec.get(key):
            named(spec[key], f"spec.{key}", causes)
    for key in ("hostname", "subdomain"):
        if spec.get(key):
            refused(names.dns_label(spec[key]), spec[key], f"spec.{key}", causes)
    if spec.get("hostNetwork"):
        _validate_host_ports(spec, causes)


def _validate_host_ports(spec: Json, causes: list[Cause]) -> None:
    for where, container in containers(spec):
        for index, port in enumerate(container.get("ports") or ()):
            if port.get("hostPort") != port.get("containerPort"):
                path = f"spec.{where}.ports[{index}].containerPort"
                why = "must match `containerPort` when `hostNetwork` is true"
                causes.append(Cause.invalid(path, port.get("containerPort", 0), why))


def _validate_node_selection(spec: Json, causes: list[Cause]) -> None:
    for key, value in (spec.get("nodeSelector") or {}).items():
        refused(names.qualified_name(key), key, "spec.nodeSelector", causes)
        refused(names.label_value(value), value, "spec.nodeSelector", causes)
    pod_volumes.validate_affinity(spec.get("affinity") or {}, causes)


def _validate_containers(spec: Json, volumes: dict[str, Json], causes: list[Cause]) -> None:
    seen: set[str] = set()
    for where, container in containers(spec):
        path, name = f"spec.{where}", container.get("name", "")
        if not name:
            causes.append(Cause.required(f"{path}.name"))
        elif faults := names.dns_label(name):
            refused(faults, name, f"{path}.name", causes)
        elif name in seen:
            causes.append(Cause.duplicate(f"{path}.name", name))
        seen.add(name)
        _validate_container(container, path, causes)
        pod_volumes.validate_mounts(container, path, volumes, causes)


def _validate_container(container: Json, path: str, causes: list[Cause]) -> None:
    image = container.get("image") or ""
    if not image:
        causes.append(Cause.required(f"{path}.image"))
    elif image.strip() != image:
        causes.append(Cause.invalid(f"{path}.image", image, "must not have leading or trailing whitespace"))
    one_of(container["imagePullPolicy"], ("Always", "IfNotPresent", "Never"), f"{path}.imagePullPolicy", causes)
    policy = container["terminationMessagePolicy"]
    one_of(policy, ("FallbackToLogsOnError", "File"), f"{path}.terminationMessagePolicy", causes)
    for index, variable in enumerate(container.get("env") or ()):
        _validate_variable(variable, f"{path}.env[{index}]", causes)
    _validate_ports(container.get("ports") or (), f"{path}.ports", causes)
    _validate_resources(container.get("resources") or {}, f"{path}.resources", causes)


def _validate_variable(variable: Json, path: str, causes: list[Cause]) -> None:
    name = variable.get("name", "")
    if not name:
        causes.append(Cause.required(f"{path}.name"))
    elif not _VARIABLE.fullmatch(name):
        why = "a valid environment variable name must consist only of printable ASCII characters other than '='"
        causes.append(Cause.invalid(f"{path}.name", name, why))
    source = variable.get("valueFrom")
    if source is None:
        return
    if len(source) != 1:
        why = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
        causes.append(Cause.invalid(f"{path}.valueFrom", "", why))
    elif variable.get("value"):
        causes.append(Cause.invalid(f"{path}.valueFrom", "", "may not be specified when `value` is not empty"))


def _validate_ports(ports: Sequence[Json], path: str, causes: list[Cause]) -> None:
    seen: set[str] = set()
    for index, port in enumerate(ports):
        where, name, number = f"{path}[{index}]", port.get("name") or "", port.get("containerPort") or 0
        if name and (not _PORT_NAME.fullmatch(name) or "--" in name):
            causes.append(Cause.invalid(f"{where}.name", name, "must be a valid port name of at most 15 characters"))
        elif name and name in seen:
            causes.append(Cause.duplicate(f"{where}.name", name))
        seen.add(name)
        if not number:
            causes.append(Cause.required(f"{where}.containerPort"))
        for key in ("containerPort", "hostPort"):
            value = port.get(key) or 0
            if value and not 1 <= value <= _LARGEST_PORT:
                causes.append(Cause.invalid(f"{where}.{key}", value, "must be between 1 and 65535, inclusive"))
        one_of(port.get("protocol") or "", ("SCTP", "TCP", "UDP"), f"{where}.protocol", causes)


def _validate_resources(resources: Json, path: str, causes: list[Cause]) -> None:
    limits = resources.get("limits") or {}
    for key in ("limits", "requests"):
        for name, amount in (resources.get(key) or {}).items():
            refused(names.qualified_name(name), name, f"{path}.{key}", causes)
            if parse(amount).nanos < 0:
                causes.append(Cause.invalid(f"{path}.{key}[{name}]", amount, "must be greater than or equal to 0"))
    for name, amount in (resources.get("requests") or {}).items():
        if name in limits and parse(amount) > parse(limits[name]):
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            causes.append(Cause.invalid(f"{path}.requests", amount, why))


def _validate_tolerations(tolerations: Sequence[Json], causes: list[Cause]) -> None:
    for index, toleration in enumerate(tolerations):
        where, key = f"spec.tolerations[{index}]", toleration.get("key") or ""
        operator = toleration.get("operator") or "Equal"
        if key:
            refused(names.qualified_name(key), key, f"{where}.key", causes)
        if not key and operator != "Exists":
            why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            causes.append(Cause.invalid(f"{where}.operator", operator, why))
        if toleration.get("tolerationSeconds") is not None and toleration.get("effect") != "NoExecute":
            why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            causes.append(Cause.invalid(f"{where}.effect", toleration.get("effect", ""), why))
        one_of(operator, ("Equal", "Exists"), f"{where}.operator", causes)
        if operator == "Exists" and toleration.get("value"):
            why = "value must be empty when `operator` is 'Exists'"
            causes.append(Cause.invalid(f"{where}.operator", toleration["value"], why))
        if toleration.get("effect"):
            one_of(toleration["effect"], ("NoExecute", "NoSchedule", "PreferNoSchedule"), f"{where}.effect", causes)


def _validate_gates(gates: Sequence[Json], causes: list[Cause]) -> None:
    seen: set[str] = set()
    for index, gate in enumerate(gates):
        where, name = f"spec.schedulingGates[{index}]", gate.get("name") or ""
        refused(names.qualified_name(name), name, f"{where}.name", causes)
        if name in seen:
            causes.append(Cause.duplicate(f"{where}.name", name))
        seen.add(name)


def validate_change(new: Json, old: Json, causes: list[Cause]) -> None:
    """Refuse every change of a pod's spec that is not one of the few allowed ones."""
    after, before = new["spec"], old["spec"]
    if after == before:
        return
    _validate_deadline(after, before, causes)
    _validate_added_tolerations(after, before, causes)
    gates = {gate.get("name") for gate in before.get("schedulingGates") or ()}
    for index, gate in enumerate(after.get("schedulingGates") or ()):
        if gate.get("name") not in gates:
            why = "only deletion is allowed, but found new scheduling gate"
            causes.append(Cause.forbidden(f"spec.schedulingGates[{index}].name", f"{why} '{gate.get('name')}'"))
    refused = [key for key in sorted(after.keys() | before.keys()) if not _may_change(key, after, before)]
    if refused:
        details = "; ".join(f"{key}: {before.get(key)!r} to {after.get(key)!r}" for key in refused)
        causes.append(Cause.forbidden("spec", f"{_IMMUTABLE} ({details})"))


def _may_change(key: str, after: Json, before: Json) -> bool:
    if after.get(key) == before.get(key):
        return True
    if key in CONTAINER_LISTS:
        return key != "ephemeralContainers" and _without_images(after.get(key)) == _without_images(before.get(key))
    if key in _CHANGEABLE:
        return True
    if key == "terminationGracePeriodSeconds":
        return (before.get(key) or 0) < 0 and after.get(key) == 1
    if before.get("schedulingGates"):
        return _narrows(key, after, before)
    return False


def _narrows(key: str, after: Json, before: Json) -> bool:
    """Whether the change of a gated pod only narrows its choice of nodes."""
    if key == "nodeSelector":
        kept, wanted = before.get(key) or {}, after.get(key) or {}
        return all(wanted.get(label) == value for label, value in kept.items())
    if key == "affinity":
        return pod_volumes.narrows_affinity(after.get(key) or {}, before.get(key) or {})
    return False


def _without_images(listed: Any) -> list[Json]:
    return [{key: value for key, value in container.items() if key != "image"} for container in listed or ()]


def _validate_deadline(after: Json, before: Json, causes: list[Cause]) -> None:
    key = "activeDeadlineSeconds"
    old, new = before.get(key), after.get(key)
    if old is None or new == old:
        return
    if new is None:
        causes.append(Cause.invalid(f"spec.{key}", "null", "must not update from a positive integer to nil value"))
    elif new > old:
        why = "must be less than or equal to previous value"
        causes.append(Cause.invalid(f"spec.{key}", new, why))


def _validate_added_tolerations(after: Json, before: Json, causes: list[Cause]) -> None:
    kept = after.get("tolerations") or []
    for toleration in before.get("tolerations") or ():
        if not any(_same_toleration(toleration, other) for other in kept):
            why = "existing toleration can not be modified except its tolerationSeconds"
            causes.append(Cause.forbidden("spec.tolerations", why))


def _same_toleration(one: Json, other: Json) -> bool:
    keys = (one.keys() | other.keys()) - {"tolerationSeconds"}
    return all(one.get(key) == other.get(key) for key in keys)
