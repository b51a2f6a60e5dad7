"""Nodes (`pkg/registry/core/node`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from volplane_embedded.apiserver import names
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.printer_columns import AGE, NAME, path
from volplane_embedded.apiserver.kinds.validation import canonical_resources, fill_condition_times, one_of
from volplane_embedded.apiserver.resources import Column, Json, Resource, StatusStrategy

__all__ = ["RESOURCE", "NodeStrategy"]

_EFFECTS: Final = ("NoExecute", "NoSchedule", "PreferNoSchedule")
_SYSTEM_INFO: Final = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)
_ROLE_PREFIX: Final = "node-role.kubernetes.io/"


class NodeStrategy(StatusStrategy):
    def default(self, obj: Json) -> None:
        obj.setdefault("spec", {})
        status = obj.setdefault("status", {})
        status.setdefault("daemonEndpoints", {}).setdefault("kubeletEndpoint", {}).setdefault("Port", 0)
        information = status.setdefault("nodeInfo", {})
        for key in _SYSTEM_INFO:
            information.setdefault(key, "")
        fill_condition_times(status, "lastHeartbeatTime", "lastTransitionTime")
        for attached in status.get("volumesAttached") or ():
            attached.setdefault("devicePath", "")
        canonical_resources(status, "capacity", "allocatable")
        if "capacity" in status:
            status.setdefault("allocatable", dict(status["capacity"]))

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes: list[Cause] = []
        _validate_taints(obj["spec"].get("taints") or (), causes)
        return causes

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes: list[Cause] = []
        if subresource == "status":
            _validate_attached(new["status"].get("volumesAttached") or (), causes)
            return causes
        after, before = new["spec"], old.get("spec") or {}
        _validate_taints(after.get("taints") or (), causes)
        for key in ("podCIDR", "providerID"):
            if before.get(key) and after.get(key) != before[key]:
                why = 'node updates may not change it except from "" to valid'
                causes.append(Cause.forbidden(f"spec.{key}", why))
        return causes


def _validate_taints(taints: Sequence[Json], causes: list[Cause]) -> None:
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(taints):
        where, key, effect = f"metadata.taints[{index}]", taint.get("key", ""), taint.get("effect", "")
        if why := names.qualified_name(key):
            causes.append(Cause.invalid(f"{where}.key", key, why))
        if why := names.label_value(taint.get("value") or ""):
            causes.append(Cause.invalid(f"{where}.value", taint.get("value"), why))
        if effect:
            one_of(effect, _EFFECTS, f"{where}.effect", causes)
        else:
            causes.append(Cause.required(f"{where}.effect"))
        if (key, effect) in seen:
            causes.append(Cause.duplicate(where, f"{key}:{effect}"))
        seen.add((key, effect))


def _validate_attached(volumes: Sequence[Json], causes: list[Cause]) -> None:
    seen: set[str] = set()
    for index, volume in enumerate(volumes):
        name = volume.get("name", "")
        if name in seen:
            causes.append(Cause.duplicate(f"status.volumesAttached[{index}].name", name))
        seen.add(name)


def _status(node: Json) -> str:
    conditions = {entry.get("type"): entry.get("status") for entry in node["status"].get("conditions") or ()}
    ready = conditions.get("Ready")
    shown = "Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"
    return f"{shown},SchedulingDisabled" if node["spec"].get("unschedulable") else shown


def _roles(node: Json) -> str:
    roles = set()
    for key, value in (node["metadata"].get("labels") or {}).items():
        if key.startswith(_ROLE_PREFIX) and len(key) > len(_ROLE_PREFIX):
            roles.add(key.removeprefix(_ROLE_PREFIX))
        elif key == "kubernetes.io/role" and value:
            roles.add(value)
    return ",".join(sorted(roles)) or "<none>"


def _address(node: Json, kind: str) -> str:
    addresses = node["status"].get("addresses") or ()
    return next((str(entry.get("address")) for entry in addresses if entry.get("type") == kind), "<none>")


def _information(node: Json, key: str) -> str:
    return str(node["status"].get("nodeInfo", {}).get(key) or "<unknown>")


def _unschedulable(node: Json) -> str:
    return "true" if node["spec"].get("unschedulable") else "false"


_ADDRESSES: Final = "List of addresses reachable to the node. Queried from cloud provider, if available."

RESOURCE: Final = Resource(
    group="",
    version="v1",
    plural="nodes",
    kind="Node",
    singular="node",
    namespaced=False,
    strategy=NodeStrategy(),
    columns=(
        NAME,
        Column("Status", "The status of the node", _status),
        Column("Roles", "The roles of the node", _roles),
        AGE,
        Column("Version", "Kubelet Version reported by the node.", path("status", "nodeInfo", "kubeletVersion")),
        Column("Internal-IP", _ADDRESSES, lambda node: _address(node, "InternalIP"), priority=1),
        Column("External-IP", _ADDRESSES, lambda node: _address(node, "ExternalIP"), priority=1),
        Column(
            "OS-Image",
            "OS Image reported by the node from /etc/os-release (e.g. Debian GNU/Linux 7 (wheezy)).",
            lambda node: _information(node, "osImage"),
            priority=1,
        ),
        Column(
            "Kernel-Version",
            "Kernel Version reported by the node from 'uname -r' (e.g. 3.16.0-0.bpo.4-amd64).",
            lambda node: _information(node, "kernelVersion"),
            priority=1,
        ),
        Column(
            "Container-Runtime",
            "ContainerRuntime Version reported by the node through runtime remote API (e.g. containerd://1.4.2).",
            lambda node: _information(node, "containerRuntimeVersion"),
            priority=1,
        ),
    ),
    short_names=("no",),
    subresources=("status",),
    fields={"spec.unschedulable": _unschedulable},
)
