"""Validation shared by several kinds. Functions append to `causes`; paths are those of the stock server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from volplane.kube.quantity import canonical_milli, parse
from volplane_embedded.apiserver import names
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.resources import Json

__all__ = [
    "ACCESS_MODES",
    "access_modes",
    "canonical_resources",
    "fill_condition_times",
    "immutable",
    "label_selector",
    "named",
    "node_selector",
    "one_of",
    "positive_quantity",
]

ACCESS_MODES: Final = frozenset({"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"})
_NODE_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})


def canonical_resources(owner: Mapping[str, Any], *keys: str) -> None:
    """Put the amounts of the named resource lists of `owner` into canonical form."""
    for key in keys:
        amounts = owner.get(key)
        if amounts:
            for resource, amount in amounts.items():
                amounts[resource] = canonical_milli(amount)


def fill_condition_times(status: Json, *times: str) -> None:
    """Set absent times of conditions to null: they are never omitted."""
    for condition in status.get("conditions") or ():
        for time in times:
            condition.setdefault(time, None)


def one_of(value: str, legal: Iterable[str], path: str, causes: list[Cause]) -> None:
    legal = list(legal)
    if value not in legal:
        causes.append(Cause.unsupported(path, value, legal))


def named(value: str, path: str, causes: list[Cause]) -> None:
    """A reference to an object whose name is a subdomain."""
    if why := names.subdomain(value):
        causes.append(Cause.invalid(path, value, why))


def immutable(new: object, old: object, path: str, causes: list[Cause]) -> None:
    if new != old:
        causes.append(Cause.invalid(path, "" if new is None else new, "field is immutable"))


def positive_quantity(value: object, path: str, causes: list[Cause]) -> None:
    amount = parse(value) if isinstance(value, (str, int, float)) else parse(0)
    if amount.nanos <= 0:
        causes.append(Cause.invalid(path, str(amount), "must be greater than zero"))


def access_modes(modes: Iterable[str], path: str, causes: list[Cause]) -> None:
    seen = set(modes)
    if seen <= ACCESS_MODES and ("ReadWriteOncePod" not in seen or len(seen) == 1):
        return
    causes.extend(Cause.unsupported(path, mode, list(ACCESS_MODES)) for mode in modes if mode not in ACCESS_MODES)
    if "ReadWriteOncePod" in seen and seen & ACCESS_MODES != {"ReadWriteOncePod"}:
        causes.append(Cause.forbidden(path, "may not use ReadWriteOncePod with other access modes"))


def label_selector(selector: Json, path: str, causes: list[Cause]) -> None:
    """A `LabelSelector`."""
    for key, value in (selector.get("matchLabels") or {}).items():
        if why := names.qualified_name(key):
            causes.append(Cause.invalid(f"{path}.matchLabels", key, why))
        if why := names.label_value(value):
            causes.append(Cause.invalid(f"{path}.matchLabels", value, why))
    for index, term in enumerate(selector.get("matchExpressions") or ()):
        _label_expression(term, f"{path}.matchExpressions[{index}]", causes)


def _label_expression(term: Json, path: str, causes: list[Cause]) -> None:
    operator, values = term.get("operator", ""), term.get("values") or []
    if operator in {"In", "NotIn"}:
        if not values:
            why = "must be specified when `operator` is 'In' or 'NotIn'"
            causes.append(Cause.required(f"{path}.values", why))
    elif operator in {"Exists", "DoesNotExist"}:
        if values:
            why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            causes.append(Cause.forbidden(f"{path}.values", why))
    else:
        causes.append(Cause.invalid(f"{path}.operator", operator, "not a valid selector operator"))
    if why := names.qualified_name(term.get("key", "")):
        causes.append(Cause.invalid(f"{path}.key", term.get("key", ""), why))
    for index, value in enumerate(values):
        if why := names.label_value(value):
            causes.append(Cause.invalid(f"{path}.values[{index}]", value, why))


def node_selector(selector: Json, path: str, causes: list[Cause]) -> None:
    """A `NodeSelector`, as in a volume's node affinity."""
    terms = selector.get("nodeSelectorTerms") or []
    if not terms:
        why = "must have at least one node selector term"
        causes.append(Cause.required(f"{path}.nodeSelectorTerms", why))
    for index, term in enumerate(terms):
        _node_term(term, f"{path}.nodeSelectorTerms[{index}]", causes)


def _node_term(term: Json, path: str, causes: list[Cause]) -> None:
    for index, expression in enumerate(term.get("matchExpressions") or ()):
        where = f"{path}.matchExpressions[{index}]"
        _node_expression(expression, where, causes)
        if why := names.qualified_name(expression.get("key", "")):
            causes.append(Cause.invalid(f"{where}.key", expression.get("key", ""), why))
    for index, expression in enumerate(term.get("matchFields") or ()):
        where = f"{path}.matchFields[{index}]"
        if expression.get("operator") not in {"In", "NotIn"}:
            causes.append(
                Cause.invalid(f"{where}.operator", expression.get("operator", ""), "not a valid selector operator")
            )
        elif len(expression.get("values") or ()) != 1:
            why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            causes.append(Cause.required(f"{where}.values", why))
        if expression.get("key") != "metadata.name":
            causes.append(Cause.invalid(f"{where}.key", expression.get("key", ""), "not a valid field selector key"))


def _node_expression(expression: Json, path: str, causes: list[Cause]) -> None:
    operator, values = expression.get("operator", ""), expression.get("values") or []
    if operator not in _NODE_OPERATORS:
        causes.append(Cause.invalid(f"{path}.operator", operator, "not a valid selector operator"))
    elif operator in {"In", "NotIn"} and not values:
        causes.append(Cause.required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
    elif operator in {"Exists", "DoesNotExist"} and values:
        why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        causes.append(Cause.forbidden(f"{path}.values", why))
    elif operator in {"Gt", "Lt"} and len(values) != 1:
        why = "must be specified single value when `operator` is 'Lt' or 'Gt'"
        causes.append(Cause.required(f"{path}.values", why))
