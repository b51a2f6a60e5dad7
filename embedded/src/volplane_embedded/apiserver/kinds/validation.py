"""Validation shared by several kinds. Functions append to `causes`; paths are those of the stock server."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from volplane.kube.quantity import Quantity, parse
from volplane_embedded.apiserver import names, object_meta
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.resources import Json

ACCESS_MODES: Final = frozenset({"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"})
_LABEL_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})
_NODE_OPERATORS: Final = _LABEL_OPERATORS | {"Gt", "Lt"}
INTEGER_RESOURCES: Final = frozenset(
    {
        "configmaps",
        "persistentvolumeclaims",
        "pods",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "services",
        "services.loadbalancers",
        "services.nodeports",
    }
)
"""Resources of a namespace that are counted: standard ones of a quota, in whole numbers."""


def canonical_resources(owner: Mapping[str, Any], *keys: str) -> None:
    """Put the amounts of the named resource lists of `owner` into canonical form, rounded up to thousandths."""
    for key in keys:
        amounts = owner.get(key)
        if amounts:
            for resource, amount in amounts.items():
                given = parse(amount)
                thousandths = Quantity(given.nanos * 1000, given.format).as_bytes()
                amounts[resource] = str(Quantity(thousandths * 10**6, given.format))


def canonical_amounts(owner: Json, *keys: str) -> None:
    """Put the named quantities of `owner` into canonical form."""
    for key in keys:
        if owner.get(key) is not None:
            owner[key] = str(parse(owner[key]))


def fill_condition_times(status: Json, *times: str) -> None:
    """Set absent times of conditions to null: they are never omitted."""
    for condition in status.get("conditions") or ():
        for time in times:
            condition.setdefault(time, None)


def one_of(value: str, legal: Iterable[str], path: str, causes: list[Cause]) -> None:
    legal = list(legal)
    if value not in legal:
        causes.append(Cause.unsupported(path, value, legal))


def refused(faults: Iterable[str], value: object, path: str, causes: list[Cause]) -> None:
    """Append a cause for every fault of a value."""
    causes.extend(Cause.invalid(path, value, why) for why in faults)


def named(value: str, path: str, causes: list[Cause]) -> None:
    """Check a reference to an object whose name is a subdomain."""
    refused(names.subdomain(value), value, path, causes)


def immutable(new: object, old: object, path: str, causes: list[Cause]) -> None:
    if new != old:
        causes.append(Cause.invalid(path, "" if new is None else new, "field is immutable"))


def positive_quantity(value: object, path: str, causes: list[Cause]) -> None:
    amount = parse(value) if isinstance(value, (str, int, float)) else parse(0)
    if amount.nanos <= 0:
        causes.append(Cause.invalid(path, str(amount), "must be greater than zero"))


def nonnegative_quantity(value: Any, path: str, causes: list[Cause]) -> None:
    if parse(value).nanos < 0:
        causes.append(Cause.invalid(path, str(parse(value)), "must be greater than or equal to 0"))


def basic_quantity(value: Any, path: str, causes: list[Cause]) -> bool:
    """Check a quantity that must not be negative. Returns whether it is none."""
    if parse(value).nanos >= 0:
        return False
    causes.append(Cause.invalid(path, math.ceil(parse(value).nanos / 10**9), "must be a valid resource quantity"))
    return True


def resource_quantity(name: str, value: Any, path: str, causes: list[Cause]) -> None:
    """Check the amount of a resource: not negative, and whole where the resource is counted in integers."""
    nonnegative_quantity(value, path, causes)
    if is_integer_resource(name) and parse(value).nanos % 10**9:
        causes.append(Cause.invalid(path, value, "must be an integer"))


def is_integer_resource(name: str) -> bool:
    """Tell whether amounts of a resource are whole: pods, storage objects, and extended resources."""
    return name in INTEGER_RESOURCES or not (is_native_resource(name) or name.startswith("requests."))


def is_native_resource(name: str) -> bool:
    """Tell whether Kubernetes defines the resource."""
    return "/" not in name or "kubernetes.io/" in name


def access_modes(modes: Iterable[str], path: str, causes: list[Cause]) -> None:
    seen = set(modes)
    if seen <= ACCESS_MODES and ("ReadWriteOncePod" not in seen or len(seen) == 1):
        return
    causes.extend(Cause.unsupported(path, mode, list(ACCESS_MODES)) for mode in modes if mode not in ACCESS_MODES)
    if "ReadWriteOncePod" in seen and seen & ACCESS_MODES != {"ReadWriteOncePod"}:
        causes.append(Cause.forbidden(path, "may not use ReadWriteOncePod with other access modes"))


def label_selector(selector: Json, path: str, causes: list[Cause]) -> None:
    """Check a `LabelSelector`."""
    causes.extend(object_meta.validate_labels(selector.get("matchLabels") or {}, f"{path}.matchLabels"))
    for index, term in enumerate(selector.get("matchExpressions") or ()):
        where = f"{path}.matchExpressions[{index}]"
        _expression(term, where, _LABEL_OPERATORS, causes)


def node_selector(selector: Json, path: str, causes: list[Cause]) -> None:
    """Check a `NodeSelector`, as in a volume's node affinity."""
    terms = selector.get("nodeSelectorTerms") or []
    if not terms:
        causes.append(Cause.required(f"{path}.nodeSelectorTerms", "must have at least one node selector term"))
    for index, term in enumerate(terms):
        node_selector_term(term, f"{path}.nodeSelectorTerms[{index}]", causes)


def node_selector_term(term: Json, path: str, causes: list[Cause], *, any_value: bool = False) -> None:
    """Check one term of a node selector. any_value: values of labels are not checked."""
    for index, expression in enumerate(term.get("matchExpressions") or ()):
        _expression(expression, f"{path}.matchExpressions[{index}]", _NODE_OPERATORS, causes, any_value=any_value)
    for index, expression in enumerate(term.get("matchFields") or ()):
        _field_expression(expression, f"{path}.matchFields[{index}]", causes)


def _field_expression(expression: Json, path: str, causes: list[Cause]) -> None:
    operator, values = expression.get("operator", ""), expression.get("values") or []
    if operator not in {"In", "NotIn"}:
        causes.append(Cause.invalid(f"{path}.operator", operator, "not a valid selector operator"))
    elif len(values) != 1:
        why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        causes.append(Cause.required(f"{path}.values", why))
    if expression.get("key") != "metadata.name":
        causes.append(Cause.invalid(f"{path}.key", expression.get("key", ""), "not a valid field selector key"))
        return
    for index, value in enumerate(values):
        refused(names.subdomain(value), value, f"{path}.values[{index}]", causes)


def _expression(
    expression: Json, path: str, operators: frozenset[str], causes: list[Cause], *, any_value: bool = False
) -> None:
    operator, values = expression.get("operator", ""), expression.get("values") or []
    if operator not in operators:
        causes.append(Cause.invalid(f"{path}.operator", operator, "not a valid selector operator"))
    elif operator in {"In", "NotIn"} and not values:
        causes.append(Cause.required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
    elif operator in {"Exists", "DoesNotExist"} and values:
        why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        causes.append(Cause.forbidden(f"{path}.values", why))
    elif operator in {"Gt", "Lt"} and len(values) != 1:
        why = "must be specified single value when `operator` is 'Lt' or 'Gt'"
        causes.append(Cause.required(f"{path}.values", why))
    refused(names.qualified_name(expression.get("key", "")), expression.get("key", ""), f"{path}.key", causes)
    for index, value in enumerate(values if not any_value else ()):
        refused(names.label_value(value), value, f"{path}.values[{index}]", causes)
