"""What a stock server does to the objects of custom kinds by their structural schemas: prune, default, validate.

Unlike the typed kinds, a wrong type is a cause of a refusal (422), and empty values are kept. Sources:
`pkg/apiserver/schema`, `pkg/apiserver/validation` and `pkg/registry/customresource` of k8s.io/apiextensions-apiserver,
and `pkg/validation/validate` of k8s.io/kube-openapi, whose order of checks this is.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterator
from datetime import date
from typing import Any, Final

from volplane_embedded.apiserver import cel
from volplane_embedded.apiserver.errors import Cause, bad_request
from volplane_embedded.apiserver.resources import Json

_META: Final = frozenset({"apiVersion", "kind", "metadata"})
_KEEP: Final = "x-kubernetes-preserve-unknown-fields"
_RULES: Final = "x-kubernetes-validations"
_ROOT: Final = "<nil>"
"""How a stock server shows the path of the whole object."""
_INT64: Final = range(-(2**63), 2**63)
_EXACT: Final = 2**53 - 1
"""The largest integer that a float is taken for."""
_BLOCKING: Final = frozenset(
    f"FieldValue{kind}" for kind in ("NotSupported", "Required", "TooLong", "TooMany", "TypeInvalid")
)
_UNCHECKED: Final = (
    "some validation rules were not checked because the object was invalid; correct the existing errors to complete"
    " validation"
)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(.\d+)?(z|[+-]\d\d:\d\d)", re.ASCII)
_KEYWORDS: Final = frozenset(
    (
        *("type", "properties", "additionalProperties", "items", "required", "enum", "format", "pattern", "default"),
        *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "nullable", "description", "title"),
        *("x-kubernetes-int-or-string", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
        *("x-kubernetes-map-type", "example", "externalDocs", _KEEP, _RULES),
    )
)


def faults(schema: Json, where: str) -> Iterator[Cause]:
    """Tell what of a schema this server would not do."""
    for key in schema.keys() - _KEYWORDS:
        yield Cause.invalid(f"{where}.{key}", key, "this embedded API server does not serve it")
    for number, rule in enumerate(schema.get(_RULES, ())):
        try:
            cel.compiled(rule["rule"])
        except (KeyError, ValueError) as why:
            yield Cause.invalid(f"{where}.{_RULES}[{number}].rule", rule.get("rule"), f"of this rule, {why}")
    for name, inner in schema.get("properties", {}).items():
        yield from faults(inner, f"{where}.properties[{name}]")
    for key in ("additionalProperties", "items"):
        if isinstance(schema.get(key), dict):
            yield from faults(schema[key], f"{where}.{key}")


# --- pruning and defaults -----------------------------------------------------------------------------------------


def prune(obj: Json, schema: Json) -> list[str]:
    """Remove fields that the schema does not have, and null where it is no value. Returns the paths of the former."""
    unknown: list[str] = []
    kept = {key: obj.pop(key) for key in _META if key in obj}
    _pruned(obj, schema, "", unknown)
    obj.update(kept)
    return sorted(unknown)


def _pruned(value: Any, schema: Json, where: str, unknown: list[str]) -> Any:
    if type(value) is list:
        items = schema.get("items", {_KEEP: schema.get(_KEEP, False)})
        return [_pruned(item, items, f"{where}[{index}]", unknown) for index, item in enumerate(value)]
    if type(value) is not dict:
        return _number(value) if type(value) in (int, float) else value
    properties, more = schema.get("properties", {}), schema.get("additionalProperties")
    for key in list(value):
        place = f"{where}.{key}" if where else key
        inner = properties.get(key, more)
        if not isinstance(inner, dict):
            if not inner and not schema.get(_KEEP):
                unknown.append(place)
                del value[key]
                continue
            inner = {_KEEP: True, "nullable": True}
        if value[key] is None and not inner.get("nullable") and "default" not in inner:
            del value[key]
        else:
            value[key] = _pruned(value[key], inner, place, unknown)
    return value


def _number(value: float) -> float:
    """Return the number as Go reads and writes it: an integer of 64 bits, or a float."""
    if type(value) is int:
        try:
            return value if value in _INT64 else float(value)
        except OverflowError:
            raise bad_request("a number is too large") from None
    return int(value) if value.is_integer() and abs(value) <= _EXACT else value


def default(value: Any, schema: Json) -> None:
    """Fill in the defaults of the schema, in place."""
    if type(value) is dict:
        for key, inner in schema.get("properties", {}).items():
            if "default" in inner and (key not in value or (value[key] is None and not inner.get("nullable"))):
                value[key] = copy.deepcopy(inner["default"])
            if key in value:
                default(value[key], inner)
    elif type(value) is list:
        for item in value:
            default(item, schema.get("items", {}))


# --- validation ---------------------------------------------------------------------------------------------------


def validate(schema: Json, new: Json, old: Json | None, subresource: str, causes: list[Cause]) -> None:
    """Append to `causes`, which has those of the metadata, what is wrong with an object. old: None at creation."""
    if subresource != "status":
        causes += _value(new, schema, "", _ROOT)
    elif "status" in new:
        causes += _value(new["status"], schema.get("properties", {}).get("status", {}), "status", "status")
    if not _has_rules(json.dumps(schema)):
        return
    if any(cause.reason in _BLOCKING for cause in causes):
        causes.append(Cause.invalid(_ROOT, None, _UNCHECKED))
    else:
        causes += _by_rules(new, old, schema, "")


@functools.lru_cache(maxsize=64)
def _has_rules(schema: str) -> bool:
    return f'"{_RULES}"' in schema


def _types(schema: Json) -> tuple[str, ...]:
    if schema.get("x-kubernetes-int-or-string"):
        return ("integer", "string")
    return (schema["type"],) if schema.get("type") else ()


_KINDS: Final = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}


def _name(where: str) -> str:
    return where.rpartition(".")[2]


def _wrong(where: str, wanted: str, found: object) -> Cause:
    why = f'Invalid value: "{found}": {_name(where)} in body must be of type {wanted}: "{found}"'
    return Cause("FieldValueTypeInvalid", where, why)


def _value(value: Any, schema: Json, where: str, root: str) -> Iterator[Cause]:
    """Check a value. root: the path of what is checked as a whole."""
    types, kind = _types(schema), _KINDS.get(type(value), "null")
    yield from _type(schema, types, kind, where)
    if kind == "string":
        yield from _text(value, schema, where)
    elif kind in ("integer", "number"):
        if types == ("integer",) and kind == "number":
            yield Cause("FieldValueInvalid", root, f'Invalid value: "": {value} of {where} is no integer of 64 bits')
        yield from _bounds(value, schema, where)
    elif kind == "array":
        for index, item in enumerate(value):
            yield from _value(item, schema.get("items", {}), f"{where}[{index}]", root)
        yield from _length(len(value), schema, where)
    if schema.get("enum") and (kind == "boolean" or value not in schema["enum"]):
        yield Cause.unsupported(where, value, schema["enum"])
    if kind == "object":
        yield from _object(value, schema, where, root)


def _bounds(value: float, schema: Json, where: str) -> Iterator[Cause]:
    for key, told, sign in (("maximum", "less", 1), ("minimum", "greater", -1)):
        if key in schema and (value - schema[key]) * sign > 0:
            yield Cause.invalid(where, value, f"{_name(where)} in body should be {told} than or equal to {schema[key]}")


def _length(size: int, schema: Json, where: str) -> Iterator[Cause]:
    if size < schema.get("minItems", 0):
        yield Cause.invalid(where, size, f"{_name(where)} in body should have at least {schema['minItems']} items")
    if size > schema.get("maxItems", size):
        yield Cause("FieldValueTooMany", where, f"Too many: {size}: must have at most {schema['maxItems']} items")


def _type(schema: Json, types: tuple[str, ...], kind: str, where: str) -> Iterator[Cause]:
    if kind == "null":
        if types and not schema.get("nullable"):
            yield _wrong(where, ",".join(types), kind)
        return
    wanted = schema.get("format", "")
    # A stock server leaves texts with a format to the check of the format, and lists to nothing.
    if not types or (wanted and kind in ("string", "array") and not {"integer", "number"} & set(types)):
        return
    if kind not in types and not (kind == "integer" and "number" in types):
        yield _wrong(where, wanted if wanted and kind not in ("string", "array") else ",".join(types), kind)


def _text(value: str, schema: Json, where: str) -> Iterator[Cause]:
    name = _name(where)
    if len(value) > schema.get("maxLength", len(value)):
        yield Cause.too_long(where, f"{schema['maxLength']} bytes")
    elif len(value) < schema.get("minLength", 0):
        yield Cause.invalid(where, value, f"{name} in body should be at least {schema['minLength']} chars long")
    elif "pattern" in schema and _pattern(schema["pattern"]).search(value) is None:
        yield Cause.invalid(where, value, f"{name} in body should match '{schema['pattern']}'")
    if schema.get("format") == "date-time" and not _is_time(value):
        yield _wrong(where, "date-time", value)


@functools.lru_cache(maxsize=256)
def _pattern(text: str) -> re.Pattern[str]:
    """Return an expression of Go's. `$` is the end of the text there, never the place before its last newline."""
    return re.compile(f"{text[:-1]}\\Z" if re.search(r"(?<!\\)\$$", text) else text, re.ASCII)


def _is_time(text: str) -> bool:
    day, _, clock = text.lower().partition("t")
    if _DATE.fullmatch(day) is None or _TIME.fullmatch(clock.partition("t")[0]) is None:
        return False
    try:
        date.fromisoformat(day)
    except ValueError:
        return False
    return True


def _object(value: Json, schema: Json, where: str, root: str) -> Iterator[Cause]:
    properties, more = schema.get("properties", {}), schema.get("additionalProperties")
    at = f"{where}." if where else ""
    if isinstance(more, dict):
        for key, inner in value.items():
            if key not in properties:
                yield from _value(inner, more, f"{at}{key}", root)
    for key, inner in properties.items():
        if key in value and (where or key not in _META):
            yield from _value(value[key], inner, f"{at}{key}", root)
    for key in schema.get("required", ()):
        if key not in value:
            yield Cause.required(f"{at}{key}")


def _by_rules(value: Any, old: Any, schema: Json, where: str) -> Iterator[Cause]:
    if value is None:
        return
    for why in filter(None, (_broken(rule, value, old) for rule in schema.get(_RULES, ()))):
        whole = type(value) in (dict, list)  # Such a value is not repeated.
        yield Cause("FieldValueInvalid", where, f"Invalid value: {why}") if whole else Cause.invalid(where, value, why)
    if type(value) is dict:
        properties, more = schema.get("properties", {}), schema.get("additionalProperties")
        former = old if type(old) is dict else {}
        for key, inner in value.items():
            if key in properties:
                place = f"{where}.{key}" if where else key
                yield from _by_rules(inner, former.get(key), properties[key], place)
            elif isinstance(more, dict):
                yield from _by_rules(inner, former.get(key), more, f"{where}[{key}]")
    elif type(value) is list:
        for index, item in enumerate(value):
            yield from _by_rules(item, None, schema.get("items", {}), f"{where}[{index}]")


def _broken(rule: Json, value: Any, old: Any) -> str:
    """Return the message of a rule that does not hold; "" = it does, or says nothing of a value that is new."""
    ready = cel.compiled(rule["rule"])
    if ready.compares and old is None:
        return ""
    message = str(rule.get("message") or f"failed rule: {rule['rule']}")
    try:
        return "" if ready.holds({"self": value, "oldSelf": old}) else message
    except KeyError as missing:
        return f"no such key: {missing.args[0]} evaluating rule: {message}"
    except TypeError:
        return f"no such overload: call arguments did not match a supported operator for rule: {message}"
