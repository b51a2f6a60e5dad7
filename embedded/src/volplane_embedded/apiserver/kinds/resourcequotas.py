"""ResourceQuotas: rules and columns (`pkg/registry/core/resourcequota`, `pkg/apis/core/validation`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from volplane_embedded.apiserver import names, object_meta
from volplane_embedded.apiserver.claim_quota import ATTRIBUTES_CLASS, COUNTED, evaluated, storage_resources
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.printer_columns import AGE, NAME
from volplane_embedded.apiserver.kinds.validation import (
    INTEGER_RESOURCES,
    canonical_resources,
    refused,
    resource_quantity,
)
from volplane_embedded.apiserver.resources import Column, Json, Resource, StatusStrategy

_COMPUTE: Final = frozenset({"cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"})
_STORAGE: Final = frozenset(
    {"ephemeral-storage", "requests.ephemeral-storage", "limits.ephemeral-storage", "requests.storage"}
)
_QUOTA_RESOURCES: Final = _COMPUTE | _STORAGE | INTEGER_RESOURCES
_POD_RESOURCES: Final = _COMPUTE | {"pods"}
_CLAIM_RESOURCES: Final = frozenset(storage_resources())
_SCOPES: Final[Mapping[str, frozenset[str]]] = {
    "BestEffort": frozenset({"pods"}),
    "CrossNamespacePodAffinity": _POD_RESOURCES,
    "NotBestEffort": _POD_RESOURCES,
    "NotTerminating": _POD_RESOURCES,
    "PriorityClass": _POD_RESOURCES,
    "Terminating": _POD_RESOURCES,
    ATTRIBUTES_CLASS: _CLAIM_RESOURCES,
}
"""The scopes, each with the standard resources that a quota with it may limit."""
_CONFLICTS: Final = (frozenset({"BestEffort", "NotBestEffort"}), frozenset({"Terminating", "NotTerminating"}))
_ONLY_EXISTS: Final = frozenset(_SCOPES) - {"PriorityClass", ATTRIBUTES_CLASS}
_MUST_EXIST: Final = (
    "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating,"
    " ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"
)
_NOT_ENFORCED: Final = (
    "this server enforces quotas of persistentvolumeclaims and counts of volumesnapshots only; status.hard has what it"
    " enforces"
)


class QuotaStrategy(StatusStrategy):
    def default(self, obj: Json) -> None:
        canonical_resources(obj.setdefault("spec", {}), "hard")
        canonical_resources(obj.setdefault("status", {}), "hard", "used")

    def prepare_create(self, obj: Json) -> None:
        obj["status"] = {}

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        return [*object_meta.validate_of_kind(obj["metadata"]), *_validate_spec(obj["spec"])]

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes = list(object_meta.validate_update_of_kind(new["metadata"], old["metadata"]))
        if subresource == "status":
            for key in ("hard", "used"):
                causes.extend(_validate_amounts(new["status"].get(key) or {}, f"status.{key}"))
            return causes
        causes.extend(_validate_spec(new["spec"]))
        after, before = new["spec"].get("scopes"), old["spec"].get("scopes")
        if set(after or ()) != set(before or ()):
            causes.append(Cause.invalid("spec.scopes", after, "field is immutable"))
        return causes

    def warnings(self, obj: Json) -> Sequence[str]:
        """Warn of a quota of other kinds' objects: it is stored, but not measured here."""
        hard = obj["spec"].get("hard") or {}
        ignored = sorted(hard.keys() - set(evaluated(hard)) - COUNTED)
        return [f"spec.hard: {', '.join(ignored)} not enforced: {_NOT_ENFORCED}"] if ignored else []


def _validate_spec(spec: Json) -> Iterator[Cause]:
    hard = spec.get("hard") or {}
    yield from _validate_amounts(hard, "spec.hard")
    scopes = spec.get("scopes") or []
    for scope in scopes:
        if scope not in _SCOPES:
            yield Cause.invalid("spec.scopes", scopes, "unsupported scope")
        yield from _unsuitable(scope, hard, "spec.scopes", scopes)
    if any(pair <= set(scopes) for pair in _CONFLICTS):
        yield Cause.invalid("spec.scopes", scopes, "conflicting scopes")
    if (selector := spec.get("scopeSelector")) is not None:
        yield from _validate_selector(selector.get("matchExpressions") or [], spec)


def _validate_amounts(amounts: Mapping[str, Any], where: str) -> list[Cause]:
    causes: list[Cause] = []
    for name, amount in sorted(amounts.items()):
        path = f"{where}[{name}]"
        faults = names.qualified_name(name)
        refused(faults, name, path, causes)
        if "/" not in name and not _is_quota_resource(name):
            if not faults and name != "storage":
                causes.append(Cause.invalid(path, name, "must be a standard resource type or fully qualified"))
            causes.append(Cause.invalid(path, name, "must be a standard resource for quota"))
        resource_quantity(name, amount, path, causes)
    return causes


def _is_quota_resource(name: str) -> bool:
    return name in _QUOTA_RESOURCES or name.startswith(("hugepages-", "requests.hugepages-"))


def _unsuitable(scope: str, hard: Mapping[str, Any], where: str, value: object) -> Iterator[Cause]:
    """Return a cause for each standard resource that a quota with this scope may not limit."""
    suitable = _SCOPES.get(scope)
    if suitable is not None:
        unsuitable = sum(_is_quota_resource(name) and name not in suitable for name in hard)
        yield from [Cause.invalid(where, value, "unsupported scope applied to resource")] * unsuitable


def _validate_selector(requirements: Sequence[Json], spec: Json) -> Iterator[Cause]:
    where, hard = "spec.scopeSelector.matchExpressions", spec.get("hard") or {}
    for requirement in requirements:
        scope, operator = requirement.get("scopeName", ""), requirement.get("operator", "")
        values = requirement.get("values") or []
        if scope not in _SCOPES:
            yield Cause.invalid(f"{where}.scopeName", scope, "unsupported scope")
        yield from _unsuitable(scope, hard, where, _go_selector(requirements))
        if scope in _ONLY_EXISTS and operator != "Exists":
            yield Cause.invalid(f"{where}.operator", operator, _MUST_EXIST)
        if operator in {"In", "NotIn"} and not values:
            why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
            yield Cause.required(f"{where}.values", why)
        elif operator in {"Exists", "DoesNotExist"} and values:
            why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
            yield Cause.invalid(f"{where}.values", values, why)
        elif operator not in {"In", "NotIn", "Exists", "DoesNotExist"}:
            yield Cause.invalid(f"{where}.operator", operator, "not a valid selector operator")
        if scope == ATTRIBUTES_CLASS:
            # A stock server takes them, and then fails every write of a claim in the namespace with 500.
            for value in values:
                yield from (Cause.invalid(f"{where}.values", value, why) for why in names.label_value(value))
    if any(pair <= {each.get("scopeName") for each in requirements} for pair in _CONFLICTS):
        yield Cause.invalid(where, spec.get("scopes"), "conflicting scopes")


def _go_selector(requirements: Sequence[Json]) -> Json:
    """Return the selector as stock messages show it: with the names of Go's fields."""
    keys = {"ScopeName": "scopeName", "Operator": "operator", "Values": "values"}
    return {"MatchExpressions": [{shown: each.get(key) for shown, key in keys.items()} for each in requirements]}


def _amounts(*, limits: bool) -> Callable[[Json], str]:
    """Return the cell with used and hard amounts of the resources that are limits, or of the others."""

    def cell(quota: Json) -> str:
        status = quota.get("status") or {}
        used, hard = status.get("used") or {}, status.get("hard") or {}
        shown = (name for name in sorted(hard) if name.startswith("limits.") == limits)
        return ", ".join(f"{name}: {used.get(name, '0')}/{hard[name]}" for name in shown)

    return cell


RESOURCE: Final = Resource(
    group="",
    version="v1",
    plural="resourcequotas",
    kind="ResourceQuota",
    singular="resourcequota",
    namespaced=True,
    strategy=QuotaStrategy(),
    columns=(
        NAME,
        Column(
            "Request",
            "Request represents a minimum amount of cpu/memory that a container may consume.",
            _amounts(limits=False),
        ),
        Column(
            "Limit",
            "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the"
            " node.",
            _amounts(limits=True),
        ),
        AGE,
    ),
    short_names=("quota",),
    subresources=("status",),
)
