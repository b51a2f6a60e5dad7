"""Validation of the containers of a pod (`pkg/apis/core/validation`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from volplane.kube.quantity import parse
from volplane_embedded.apiserver import names
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.pod_fields import ENVIRONMENT_FIELDS, check_field, check_resource_field
from volplane_embedded.apiserver.kinds.pod_mounts import validate_mounts
from volplane_embedded.apiserver.kinds.validation import (
    is_native_resource,
    one_of,
    refused,
    resource_quantity,
)
from volplane_embedded.apiserver.resources import Json

_PORT_NAME: Final = re.compile(r"[-a-z0-9]+")
_VARIABLE: Final = re.compile(r"[ -<>-~]+")
_LARGEST_PORT: Final = 65535
_LARGEST_ID: Final = 2**31 - 1
_STANDARD: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_OTHER_STANDARD: Final = frozenset(
    {
        "configmaps",
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "persistentvolumeclaims",
        "pods",
        "replicationcontrollers",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
        "requests.storage",
        "resourcequotas",
        "secrets",
        "services",
        "services.loadbalancers",
        "services.nodeports",
        "storage",
    }
)
"""Resources that Kubernetes defines, but not for containers."""


def validate_containers(spec: Json, volumes: Mapping[str, Json], causes: list[Cause]) -> None:
    """Check containers, init containers and ephemeral containers. volumes: the valid ones by name."""
    listed = spec.get("containers") or ()
    if not listed:
        causes.append(Cause.required("spec.containers"))
    seen: set[str] = set()
    for index, container in enumerate(listed):
        path = f"spec.containers[{index}]"
        _validate_container(container, path, volumes, causes)
        _check_name(container, path, seen, causes)
        if container.get("restartPolicy") is not None:
            one_of(container["restartPolicy"], ("Always", "Never", "OnFailure"), f"{path}.restartPolicy", causes)
    _validate_host_ports(listed, "spec.containers", causes)
    for key in ("initContainers", "ephemeralContainers"):
        for index, container in enumerate(spec.get(key) or ()):
            path = f"spec.{key}[{index}]"
            _validate_container(container, path, volumes, causes)
            if container.get("restartPolicy") is not None:
                one_of(container["restartPolicy"], ("Always", "Never", "OnFailure"), f"{path}.restartPolicy", causes)
            _check_name(container, path, seen, causes)
            _validate_host_ports([container], f"spec.{key}", causes)


def validate_images(spec: Json, causes: list[Cause]) -> None:
    """Check what a stock server checks of pods, but not of templates of pods."""
    for key in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(key) or ()):
            image = container.get("image") or ""
            if image.strip() != image:
                why = "must not have leading or trailing whitespace"
                causes.append(Cause.invalid(f"spec.{key}[{index}].image", image, why))


def _check_name(container: Json, path: str, seen: set[str], causes: list[Cause]) -> None:
    name = container.get("name") or ""
    if name in seen:
        causes.append(Cause.duplicate(f"{path}.name", name))
    seen.add(name)


def _validate_container(container: Json, path: str, volumes: Mapping[str, Json], causes: list[Cause]) -> None:
    if name := container.get("name"):
        refused(names.dns_label(name), name, f"{path}.name", causes)
    else:
        causes.append(Cause.required(f"{path}.name"))
    if not container.get("image"):
        causes.append(Cause.required(f"{path}.image"))
    policy = container.get("terminationMessagePolicy", "")
    one_of(policy, ("FallbackToLogsOnError", "File"), f"{path}.terminationMessagePolicy", causes)
    _validate_ports(container.get("ports") or (), f"{path}.ports", causes)
    for index, variable in enumerate(container.get("env") or ()):
        _validate_variable(variable, f"{path}.env[{index}]", causes)
    for index, source in enumerate(container.get("envFrom") or ()):
        _validate_variables(source, f"{path}.envFrom", index, causes)
    validate_mounts(container, path, volumes, causes)
    pull = container.get("imagePullPolicy", "")
    one_of(pull, ("Always", "IfNotPresent", "Never"), f"{path}.imagePullPolicy", causes)
    _validate_resources(container.get("resources") or {}, f"{path}.resources", causes)
    _validate_security(container.get("securityContext") or {}, f"{path}.securityContext", causes)


def _validate_variable(variable: Json, path: str, causes: list[Cause]) -> None:
    _check_variable_name(variable.get("name") or "", f"{path}.name", causes)
    source, path = variable.get("valueFrom"), f"{path}.valueFrom"
    if source is None:
        return
    if (reference := source.get("fieldRef")) is not None:
        check_field(reference, ENVIRONMENT_FIELDS, f"{path}.fieldRef", causes)
    if (reference := source.get("resourceFieldRef")) is not None:
        check_resource_field(reference, f"{path}.resourceFieldRef", causes, of_file=False)
    for key in ("configMapKeyRef", "secretKeyRef"):
        if (reference := source.get(key)) is not None:
            _check_key(reference, f"{path}.{key}", causes)
    if not source:
        why = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        causes.append(Cause.invalid(path, "", why))
    elif variable.get("value"):
        causes.append(Cause.invalid(path, "", "may not be specified when `value` is not empty"))
    elif len(source) > 1:
        causes.append(Cause.invalid(path, "", "may not have more than one field specified at a time"))


def _check_variable_name(name: str, path: str, causes: list[Cause]) -> None:
    if not name:
        causes.append(Cause.required(path))
    elif not _VARIABLE.fullmatch(name):
        why = "a valid environment variable name must consist only of printable ASCII characters other than '='"
        causes.append(Cause.invalid(path, name, why))


def _check_key(reference: Json, path: str, causes: list[Cause]) -> None:
    """Check a key of a config map or secret."""
    name, key = reference.get("name") or "", reference.get("key") or ""
    refused(names.subdomain(name), name, f"{path}.name", causes)
    if key:
        refused(names.config_key(key), key, f"{path}.key", causes)
    else:
        causes.append(Cause.required(f"{path}.key"))


def _validate_variables(source: Json, path: str, index: int, causes: list[Cause]) -> None:
    """Check an `EnvFromSource`."""
    if source.get("prefix"):
        _check_variable_name(source["prefix"], f"{path}[{index}].prefix", causes)
    present = [key for key in ("configMapRef", "secretRef") if source.get(key) is not None]
    for key in present:
        if name := source[key].get("name"):
            refused(names.subdomain(name), name, f"{path}[{index}].{key}.name", causes)
        else:
            causes.append(Cause.required(f"{path}[{index}].{key}.name"))
    if not present:
        causes.append(Cause.invalid(path, "", "must specify one of: `configMapRef` or `secretRef`"))
    elif len(present) > 1:
        causes.append(Cause.invalid(path, "", "may not have more than one field specified at a time"))


def _port_name_faults(name: str) -> list[str]:
    faults = [] if len(name) <= 15 else ["must be no more than 15 characters"]
    if not _PORT_NAME.fullmatch(name):
        faults.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search("[a-z]", name):
        faults.append("must contain at least one letter (a-z)")
    if "--" in name:
        faults.append("must not contain consecutive hyphens")
    if name.startswith("-") or name.endswith("-"):
        faults.append("must not begin or end with a hyphen")
    return faults


def _validate_ports(ports: Sequence[Json], path: str, causes: list[Cause]) -> None:
    seen: set[str] = set()
    for index, port in enumerate(ports):
        where, name, number = f"{path}[{index}]", port.get("name") or "", port.get("containerPort") or 0
        faults = _port_name_faults(name) if name else []
        refused(faults, name, f"{where}.name", causes)
        if name and not faults:
            if name in seen:
                causes.append(Cause.duplicate(f"{where}.name", name))
            seen.add(name)
        if not number:
            causes.append(Cause.required(f"{where}.containerPort"))
        for key in ("containerPort", "hostPort"):
            value = port.get(key) or 0
            if value and not 1 <= value <= _LARGEST_PORT:
                causes.append(Cause.invalid(f"{where}.{key}", value, "must be between 1 and 65535, inclusive"))
        one_of(port.get("protocol") or "", ("SCTP", "TCP", "UDP"), f"{where}.protocol", causes)


def _validate_host_ports(containers: Sequence[Json], path: str, causes: list[Cause]) -> None:
    seen: set[str] = set()
    for index, container in enumerate(containers):
        for at, port in enumerate(container.get("ports") or ()):
            if not port.get("hostPort"):
                continue
            shown = f"{port.get('protocol')}/{port.get('hostIP', '')}/{port['hostPort']}"
            if shown in seen:
                causes.append(Cause.duplicate(f"{path}[{index}].ports[{at}].hostPort", shown))
            seen.add(shown)


def _validate_resources(resources: Json, path: str, causes: list[Cause]) -> None:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name, amount in limits.items():
        where = f"{path}.limits[{name}]"
        _check_resource_name(name, where, causes)
        resource_quantity(name, amount, where, causes)
    for name, amount in requests.items():
        where = f"{path}.requests[{name}]"
        _check_resource_name(name, where, causes)
        resource_quantity(name, amount, where, causes)
        if name in limits and parse(amount) > parse(limits[name]):
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            causes.append(Cause.invalid(f"{path}.requests", amount, why))
        elif name not in limits and "/" in name and not is_native_resource(name):
            causes.append(Cause.required(f"{path}.limits", "Limit must be set for non overcommitable resources"))


def _check_resource_name(name: str, where: str, causes: list[Cause]) -> None:
    faults = names.qualified_name(name)
    refused(faults, name, where, causes)
    standard = name in _STANDARD or name.startswith("hugepages-")
    if "/" in name or standard:
        return
    if not faults and name not in _OTHER_STANDARD:
        causes.append(Cause.invalid(where, name, "must be a standard resource type or fully qualified"))
    causes.append(Cause.invalid(where, name, "must be a standard resource for containers"))


def check_id(context: Json, key: str, path: str, causes: list[Cause]) -> None:
    """Check a user or group of a security context."""
    value = context.get(key)
    if value is not None and not 0 <= value <= _LARGEST_ID:
        causes.append(Cause.invalid(f"{path}.{key}", value, f"must be between 0 and {_LARGEST_ID}, inclusive"))


def _validate_security(context: Json, path: str, causes: list[Cause]) -> None:
    for key in ("runAsUser", "runAsGroup"):
        check_id(context, key, path, causes)
    if context.get("allowPrivilegeEscalation") is not False:
        return
    if context.get("privileged"):
        why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
        causes.append(Cause.invalid(path, context, why))
    if "CAP_SYS_ADMIN" in ((context.get("capabilities") or {}).get("add") or ()):
        why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
        causes.append(Cause.invalid(path, context, why))
