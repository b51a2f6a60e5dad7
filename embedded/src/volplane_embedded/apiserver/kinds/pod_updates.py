"""Validation of changes of pods and of their status (`pkg/apis/core/validation`)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any, Final

from volplane_embedded.apiserver import names, object_meta
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds import pod_validation
from volplane_embedded.apiserver.kinds.pod_defaults import CONTAINER_LISTS
from volplane_embedded.apiserver.kinds.pod_validation import REQUIRED_DURING
from volplane_embedded.apiserver.kinds.validation import immutable, named, refused
from volplane_embedded.apiserver.resources import Json

_IMMUTABLE: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_CHANGEABLE: Final = frozenset({"activeDeadlineSeconds", "tolerations", "schedulingGates"})
_SYSTEM_CONDITIONS: Final = frozenset({"Initialized", "PodScheduled", "Ready"})
_LARGEST_DEADLINE: Final = 2**31 - 1


def validate_change(new: Json, old: Json) -> list[Cause]:
    """Refuse what is wrong with a changed pod, and every change of its spec that is not one of the few allowed ones."""
    causes = list(object_meta.validate_update_of_kind(new["metadata"], old["metadata"]))
    pod_validation.validate(new, causes)
    after, before = new["spec"], old["spec"]
    for key in CONTAINER_LISTS[:2]:
        if not _same_number(after.get(key) or (), before.get(key) or (), f"spec.{key}", causes):
            return causes
    if not _validate_deadline(after.get("activeDeadlineSeconds"), before.get("activeDeadlineSeconds"), causes):
        return causes
    _validate_added_tolerations(after.get("tolerations") or (), before.get("tolerations") or (), causes)
    gates = {gate.get("name") for gate in before.get("schedulingGates") or ()}
    for index, gate in enumerate(after.get("schedulingGates") or ()):
        if gate.get("name") not in gates:
            why = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            causes.append(Cause.forbidden(f"spec.schedulingGates[{index}].name", why))
    if gates:
        _validate_narrowing(after, before, causes)
    refused_keys = [key for key in sorted(after.keys() | before.keys()) if not _may_change(key, after, before)]
    if refused_keys:
        details = "; ".join(f"{key}: {before.get(key)!r} to {after.get(key)!r}" for key in refused_keys)
        causes.append(Cause.forbidden("spec", f"{_IMMUTABLE} ({details})"))
    return causes


def _same_number(after: Sequence[Json], before: Sequence[Json], where: str, causes: list[Cause]) -> bool:
    if len(after) != len(before):
        causes.append(Cause.forbidden(where, "pod updates may not add or remove containers"))
        return False
    for index, container in enumerate(after):
        image = container.get("image") or ""
        if not image:
            causes.append(Cause.required(f"{where}[{index}].image"))
        if image.strip() != image:
            why = "must not have leading or trailing whitespace"
            causes.append(Cause.invalid(f"{where}[{index}].image", image, why))
    return True


def _validate_deadline(new: int | None, old: int | None, causes: list[Cause]) -> bool:
    """Tell whether the rest of the pod is to be checked."""
    where = "spec.activeDeadlineSeconds"
    if new is None:
        if old is not None:
            causes.append(Cause.invalid(where, None, "must not update from a positive integer to nil value"))
        return True
    if not 0 <= new <= _LARGEST_DEADLINE:
        causes.append(Cause.invalid(where, new, f"must be between 0 and {_LARGEST_DEADLINE}, inclusive"))
        return False
    if old is not None and new > old:
        causes.append(Cause.invalid(where, new, "must be less than or equal to previous value"))
        return False
    return True


def _validate_added_tolerations(after: Sequence[Json], before: Sequence[Json], causes: list[Cause]) -> None:
    for toleration in before:
        if not any(_same_toleration(toleration, other) for other in after):
            why = "existing toleration can not be modified except its tolerationSeconds"
            causes.append(Cause.forbidden("spec.tolerations", why))
            return
    pod_validation.validate_tolerations(after, causes)


def _same_toleration(one: Json, other: Json) -> bool:
    keys = (one.keys() | other.keys()) - {"tolerationSeconds"}
    return all(one.get(key) == other.get(key) for key in keys)


def _validate_narrowing(after: Json, before: Json, causes: list[Cause]) -> None:
    """Check that a gated pod only narrows its choice of nodes."""
    kept, wanted = before.get("nodeSelector") or {}, after.get("nodeSelector") or {}
    if any(wanted.get(label) != value for label, value in kept.items()):
        why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        causes.append(Cause.invalid("spec.nodeSelector", wanted, why))
    had, has = _terms(before), _terms(after)
    where = f"spec.affinity.nodeAffinity.{REQUIRED_DURING}.nodeSelectorTerms"
    if had and len(had) != len(has):
        why = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        causes.append(Cause.invalid(where, has, why))
        return
    for index, (left, right) in enumerate(zip(had, has, strict=False)):
        if not _only_gains(right, left):
            why = "only additions are allowed (no mutations or deletions)"
            causes.append(Cause.invalid(f"{where}[{index}]", right, why))


def _terms(spec: Json) -> list[Json]:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return (affinity.get(REQUIRED_DURING) or {}).get("nodeSelectorTerms") or []


def _only_gains(after: Json, before: Json) -> bool:
    """Tell whether a term only gained expressions, after those that it had.

    An empty one selects nothing and stays empty.
    """
    had = {key: before.get(key) or [] for key in ("matchExpressions", "matchFields")}
    has = {key: after.get(key) or [] for key in had}
    if not any(had.values()):
        return not any(has.values())
    return all(has[key][: len(had[key])] == had[key] for key in had)


def _may_change(key: str, after: Json, before: Json) -> bool:
    if after.get(key) == before.get(key) or key in _CHANGEABLE:
        return True
    if key in CONTAINER_LISTS[:2]:
        return _without_images(after.get(key)) == _without_images(before.get(key))
    if key == "terminationGracePeriodSeconds":
        return (before.get(key) or 0) < 0 and after.get(key) == 1
    if not before.get("schedulingGates"):
        return False
    return key == "nodeSelector" or (key == "affinity" and _rest(after) == _rest(before))


def _rest(spec: Json) -> Json:
    """Return the affinities of a pod besides those to nodes."""
    return {key: value for key, value in (spec.get("affinity") or {}).items() if key != "nodeAffinity"}


def _without_images(listed: Any) -> list[Json]:
    return [{key: value for key, value in container.items() if key != "image"} for container in listed or ()]


def validate_status(new: Json, old: Json) -> list[Cause]:
    """Refuse what is wrong with a changed status."""
    causes = list(object_meta.validate_update_of_kind(new["metadata"], old["metadata"]))
    after, before = new["status"], old.get("status") or {}
    for index, condition in enumerate(after.get("conditions") or ()):
        kind = condition.get("type") or ""
        if kind not in _SYSTEM_CONDITIONS:
            refused(names.qualified_name(kind), kind, f"status.conditions[{index}].Type", causes)
    nominated = after.get("nominatedNodeName")
    if nominated and nominated != before.get("nominatedNodeName"):
        named(nominated, "status.nominatedNodeName", causes)
        if old["spec"].get("nodeName"):
            why = "may not be set on pods that are already bound to a node"
            causes.append(Cause.forbidden("status.nominatedNodeName", why))
    immutable(after.get("qosClass"), before.get("qosClass"), "status.qosClass", causes)
    _validate_containers(after, before, old["spec"], causes)
    for key in ("podIPs", "hostIPs"):
        _validate_addresses([entry.get("ip", "") for entry in after.get(key) or ()], f"status.{key}", causes)
    return causes


def _validate_containers(after: Json, before: Json, spec: Json, causes: list[Cause]) -> None:
    """Check that a container that ended for good does not run again."""
    policy = spec.get("restartPolicy")
    if policy == "Always":
        return
    for key in ("containerStatuses", "initContainerStatuses"):
        runs = {entry.get("name") for entry in after.get(key) or () if not (entry.get("state") or {}).get("terminated")}
        for index, entry in enumerate(before.get(key) or ()):
            if entry.get("name") in runs and _ended_for_good(entry, policy):
                why = "may not be transitioned to non-terminated state"
                causes.append(Cause.forbidden(f"status.{key}[{index}].state", why))


def _ended_for_good(container: Json, policy: object) -> bool:
    terminated = (container.get("state") or {}).get("terminated")
    return terminated is not None and (policy == "Never" or not terminated.get("exitCode"))


def _validate_addresses(addresses: Sequence[str], where: str, causes: list[Cause]) -> None:
    families: list[int] = []
    for index, text in enumerate(addresses):
        try:
            families.append(ipaddress.ip_address(text).version)
        except ValueError:
            families.append(0)
            why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            causes.append(Cause.invalid(f"{where}[{index}]", text, why))
    if len(addresses) > 1 and 0 in families:
        why = "Internal error: failed to check for dual stack"
        causes.append(Cause("InternalError", where, why))
    if len(addresses) > 1 and sorted(families) != [4, 6]:
        causes.append(Cause.invalid(where, list(addresses), "may specify no more than one IP for each IP family"))
