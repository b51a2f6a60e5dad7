"""Nodes (`pkg/registry/core/node`)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

from volplane_embedded.apiserver import names, object_meta
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.printer_columns import AGE, NAME, path
from volplane_embedded.apiserver.kinds.validation import (
    canonical_resources,
    fill_condition_times,
    one_of,
    refused,
    resource_quantity,
)
from volplane_embedded.apiserver.resources import Column, Json, Resource, StatusStrategy

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
        _pair(obj.setdefault("spec", {}), "podCIDR", "podCIDRs")
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
        return _validate(obj)

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        changed = _validate_change(new, old)
        return changed if subresource == "status" else [*_validate(new), *changed]


def _pair(spec: Json, single: str, several: str) -> None:
    """Make an old field with one value and a new one with several agree; the old one wins."""
    first = spec.get(single)
    if first and (spec.get(several) or [""])[0] != first:
        spec[several] = [first]
    elif spec.get(several) and not first:
        spec[single] = spec[several][0]


def _validate(node: Json) -> list[Cause]:
    causes = list(object_meta.validate_of_kind(node["metadata"]))
    _validate_taints(node["spec"].get("taints") or (), causes)
    _validate_amounts(node["status"], causes)
    _validate_ranges(node["spec"].get("podCIDRs") or [], causes)
    return causes


def _validate_change(new: Json, old: Json) -> list[Cause]:
    causes = list(object_meta.validate_update_of_kind(new["metadata"], old["metadata"]))
    _validate_amounts(new["status"], causes)
    addresses: list[Json] = []
    for index, address in enumerate(new["status"].get("addresses") or ()):
        if address in addresses:
            causes.append(Cause.duplicate(f"status.addresses[{index}]", address))
        addresses.append(address)
    after, before = new["spec"], old.get("spec") or {}
    had, has = before.get("podCIDRs") or [], after.get("podCIDRs") or []
    fixed = 'node updates may not change podCIDR except from "" to valid'
    if had and len(had) != len(has):
        causes.append(Cause.forbidden("spec.podCIDRs", fixed))
    else:
        causes.extend(
            Cause.forbidden("spec.podCIDRs", fixed) for left, right in zip(had, has, strict=False) if left != right
        )
    if before.get("providerID") and after.get("providerID") != before["providerID"]:
        why = 'node updates may not change providerID except from "" to valid'
        causes.append(Cause.forbidden("spec.providerID", why))
    _validate_taints(after.get("taints") or (), causes)
    return causes


def _validate_amounts(status: Json, causes: list[Cause]) -> None:
    for key in ("capacity", "allocatable"):
        for name, amount in (status.get(key) or {}).items():
            resource_quantity(name, amount, f"status.{key}.{name}", causes)


def _validate_ranges(ranges: Sequence[str], causes: list[Cause]) -> None:
    families: list[int] = []
    for index, text in enumerate(ranges):
        try:
            families.append(ipaddress.ip_network(text, strict=False).version if "/" in text else 0)
        except ValueError:
            families.append(0)
        if not families[-1]:
            why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            causes.append(Cause.invalid(f"spec.podCIDRs[{index}]", text, why))
    if len(ranges) > 1 and 0 in families:
        why = "Internal error: invalid PodCIDRs. failed to check with dual stack"
        causes.append(Cause("InternalError", "spec.podCIDRs", why))
    if len(ranges) > 1 and sorted(families) != [4, 6]:
        causes.append(
            Cause.invalid("spec.podCIDRs", list(ranges), "may specify no more than one CIDR for each IP family")
        )


def _validate_taints(taints: Sequence[Json], causes: list[Cause]) -> None:
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(taints):
        where, key, effect = f"metadata.taints[{index}]", taint.get("key", ""), taint.get("effect", "")
        refused(names.qualified_name(key), key, f"{where}.key", causes)
        if faults := names.label_value(taint.get("value") or ""):
            causes.append(Cause.invalid(f"{where}.value", taint["value"], ";".join(faults)))
        if effect:
            one_of(effect, _EFFECTS, f"{where}.effect", causes)
        else:
            causes.append(Cause.required(f"{where}.effect"))
        if (key, effect) in seen:
            causes.append(Cause.duplicate(where, f"{key}:{effect}"))
        seen.add((key, effect))


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
