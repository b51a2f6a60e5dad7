"""Typed decoding of objects: what Go's JSON decoder does between a request's body and an object.

Types are checked; unknown fields are reported and removed; absent values (null, and "" or [] where Go omits them) are
removed; times get their canonical form. Schemas are compiled into closures at first use.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from volplane_embedded.apiserver import scalars
from volplane_embedded.apiserver.custom_schema import prune
from volplane_embedded.apiserver.definitions import Definition, Field, Type, definition, definition_of
from volplane_embedded.apiserver.resources import Json, Resource


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """The errors of an object, with the wording of the stock server.

    error: the first wrong type or value; the request is refused with 400 under every fieldValidation. problems: errors
    that are subject to fieldValidation: `unknown field "spec.bogus"`, `duplicate field "spec.nodeName"`.
    """

    error: str = ""
    problems: tuple[str, ...] = ()

    def refusal(self, resource: Resource) -> str:
        """Return the message of the 400 for `error`, else that of fieldValidation=Strict; "" where all is well."""
        why = self.error or (f"strict decoding error: {', '.join(self.problems)}" if self.problems else "")
        if not why:
            return ""
        return f'{resource.kind} in version "{resource.api_version}" cannot be handled as a {resource.kind}: {why}'


_CLEAN: Final = SchemaReport()


def check(resource: Resource, obj: Json, body: bytes | None = None) -> SchemaReport:
    """Check and clean an object of the resource in place, with or without kind and apiVersion.

    Duplicate fields are found only in `body`, the JSON text of the object.
    """
    if resource.schema is not None:
        return _check_custom(resource.schema, obj, body)
    found = _decoder(definition_of(resource.group, resource.kind).name)(obj)
    duplicates = duplicate_fields(body) if body is not None else ()
    if type(found) is not _Problems and not duplicates:
        return _CLEAN
    problems = found.items if isinstance(found, _Problems) else []
    error = next((problem.wording() for problem in problems if problem.kind), "")
    unknown = [f'unknown field "{problem.path()}"' for problem in problems if not problem.kind]
    return SchemaReport(error, (*unknown, *(f'duplicate field "{path}"' for path in duplicates)))


def _check_custom(schema: Json, obj: Json, body: bytes | None) -> SchemaReport:
    """Check and clean an object of a custom kind, of which only the metadata is typed."""
    meta: Any = _decoder(_META)({"metadata": obj["metadata"]}) if obj.get("metadata") is not None else None
    problems = meta.items if isinstance(meta, _Problems) else []
    error = next((problem.wording() for problem in problems if problem.kind), "")
    unknown = (*(problem.path() for problem in problems if not problem.kind), *prune(obj, schema))
    duplicates = duplicate_fields(body) if body is not None else ()
    return SchemaReport(
        error, (*(f'unknown field "{path}"' for path in unknown), *(f'duplicate field "{path}"' for path in duplicates))
    )


_META: Final = "io.k8s.api.core.v1.Namespace"
"""A definition with the field `metadata`, whose type is the same in all kinds."""

_DROP: Final = object()
"""The result of a decoder for a value that is absent."""

_Decoder = Callable[[Any], Any]
"""Takes a JSON value. Returns the value to store (the same object if nothing changed), _DROP, or _Problems."""


@dataclass(slots=True)
class _Problem:
    """An error and its path. The path is collected while the recursion returns, innermost step first."""

    kind: str
    """The JSON type that was found; "" for an unknown field; "value" if `wanted` is the whole message."""
    wanted: str
    steps: list[str | int]
    struct: str = ""

    def path(self) -> str:
        text = ""
        for step in reversed(self.steps):
            text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
        return text

    def wording(self) -> str:
        if self.kind == "value":
            return self.wanted
        fields = ".".join(step for step in reversed(self.steps) if isinstance(step, str))
        target = f"struct field {self.struct}.{fields}" if fields else "value"
        return f"json: cannot unmarshal {self.kind} into Go {target} of type {self.wanted}"


class _Problems:
    """Problems as the result of a decoder; never part of an object."""

    __slots__ = ("items",)

    def __init__(self, items: list[_Problem]) -> None:
        self.items = items


def _wrong(value: Any, wanted: str) -> _Problems:
    kinds = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
    return _Problems([_Problem(kinds.get(type(value), "null"), wanted, [])])


_UNKNOWN: Final = object()
"""The result of a decoder for a field that the definition does not have."""


class _Object:
    """Decodes objects of one definition. A field is compiled when the first object has it."""

    __slots__ = ("_absent", "_compiled", "_sent", "_shape")

    def __init__(self, shape: Definition) -> None:
        self._shape = shape
        self._compiled: dict[str, _Decoder] = {}
        self._absent = {key: field.absent[0] for key, field in shape.fields.items() if field.absent}
        """What the fields that are always sent have where they are absent."""
        self._sent = frozenset(self._absent)

    def __call__(self, value: Any) -> Any:
        if type(value) is not dict:
            return _wrong(value, f"v1.{self._shape.short_name}")
        odd: list[tuple[str, Any]] | None = None
        compiled = self._compiled
        for key, item in value.items():
            field = compiled.get(key) or self._compile(key)
            kept = field(item) if item is not None else _UNKNOWN if field is _unknown else _DROP
            if kept is not item:
                odd = odd or []
                odd.append((key, kept))
        if odd is not None:
            return self._settle(value, odd)
        return value if value.keys() >= self._sent else self._fill(value)

    def _fill(self, value: Json) -> Json:
        for key, absent in self._absent.items():
            value.setdefault(key, absent)
        return value

    def _compile(self, key: str) -> _Decoder:
        field = self._shape.fields.get(key)
        if field is None:
            return _unknown
        self._compiled[key] = decode = _compile_field(field)
        return decode

    def _settle(self, value: Json, odd: list[tuple[str, Any]]) -> Any:
        """Apply the decoded fields to `value`. Returns it, or its problems."""
        problems: list[_Problem] = []
        for key, kept in odd:
            if kept is _DROP:
                del value[key]
            elif kept is _UNKNOWN:
                del value[key]
                problems.append(_Problem("", "", [key]))
            elif type(kept) is _Problems:
                problems.extend(_located(kept, key, self._shape.short_name))
            else:
                value[key] = kept
        self._fill(value)
        return _Problems(problems) if problems else value


def _unknown(_: Any) -> Any:
    return _UNKNOWN


@functools.cache
def _decoder(name: str) -> _Decoder:
    return _Object(definition(name))


def _located(found: _Problems, step: str | int, struct: str = "") -> list[_Problem]:
    for problem in found.items:
        problem.steps.append(step)
        problem.struct = problem.struct or struct
    return found.items


def _compile_field(field: Field) -> _Decoder:
    decode = _compile(field.type)
    if field.type.shape in {"list", "map"} and field.absent:
        return _null_if_empty(decode)
    if field.type.shape in {"list", "map"} or field.type.scalar == "str":
        return decode if field.keeps_empty else _without_empty(decode)
    return _without_zero(decode) if field.drops_zero else decode


def _without_empty(decode: _Decoder) -> _Decoder:
    def decode_nonempty(value: Any) -> Any:
        return decode(value) or _DROP

    return decode_nonempty


def _null_if_empty(decode: _Decoder) -> _Decoder:
    def decode_or_null(value: Any) -> Any:
        return decode(value) or None

    return decode_or_null


def _without_zero(decode: _Decoder) -> _Decoder:
    def decode_nonzero(value: Any) -> Any:
        return decode(value) or _DROP

    return decode_nonzero


def _compile(kind: Type) -> _Decoder:
    if kind.shape == "object":
        return _decoder(kind.refers)
    if kind.element is None:
        return _scalar(kind)
    element = _compile(kind.element)
    return _list(kind, element) if kind.shape == "list" else _map(kind, element)


def _scalar(kind: Type) -> _Decoder:
    wanted, read = kind.go(), scalars.READERS[kind.scalar]
    if kind.scalar == "str":
        return lambda value: value if type(value) is str else _wrong(value, "string")

    def decode(value: Any) -> Any:
        try:
            return read(value)
        except TypeError:
            return _wrong(value, wanted)
        except OverflowError:
            return _Problems([_Problem(f"number {value}", wanted, [])])
        except ValueError as why:
            return _Problems([_Problem("value", str(why), [])])

    return decode


def _list(kind: Type, element: _Decoder) -> _Decoder:
    wanted = kind.go()
    default = scalars.ZERO.get(kind.element.scalar, None) if kind.element is not None else None

    def decode(value: Any) -> Any:
        if type(value) is not list:
            return _wrong(value, wanted)
        problems: list[_Problem] = []
        for index, item in enumerate(value):
            kept = element({} if default is None else default) if item is None else element(item)
            if type(kept) is _Problems:
                problems.extend(_located(kept, index))
            elif kept is not item:
                value[index] = kept
        return _Problems(problems) if problems else value

    return decode


def _map(kind: Type, element: _Decoder) -> _Decoder:
    wanted = kind.go()
    default = scalars.ZERO.get(kind.element.scalar, None) if kind.element is not None else None

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            return _wrong(value, wanted)
        problems: list[_Problem] = []
        for key, item in value.items():
            kept = element({} if default is None else default) if item is None else element(item)
            if type(kept) is _Problems:
                for problem in kept.items:
                    # Go's messages about wrong types do not contain keys of maps.
                    if not problem.kind:
                        problem.steps.append(key)
                problems.extend(kept.items)
            elif kept is not item:
                value[key] = kept
        return _Problems(problems) if problems else value

    return decode


class _Twice(dict[str, Any]):
    """An object with duplicate keys."""

    repeated: tuple[str, ...] = ()


class _Found(Exception):
    """An object has a duplicate key."""


def _look(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise _Found


def _build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) == len(pairs):
        return built
    marked = _Twice(built)
    counts = Counter(key for key, _ in pairs)
    marked.repeated = tuple(key for key, count in counts.items() if count > 1)
    return marked


_look_over = json.JSONDecoder(object_pairs_hook=_look).decode


def duplicate_fields(body: bytes) -> tuple[str, ...]:
    """Paths of duplicate fields, in the notation of the stock server (`spec.containers[0].name`).

    Empty if the body is not JSON. Decoders keep only the last of duplicate fields.
    """
    try:
        _look_over(body.decode())
    except _Found:
        found: list[str] = []
        _collect(json.loads(body, object_pairs_hook=_build), "", found)
        return tuple(found)
    except (ValueError, RecursionError):
        return ()
    return ()


def _collect(value: Any, path: str, found: list[str]) -> None:
    if isinstance(value, dict):
        prefix = f"{path}." if path else ""
        if isinstance(value, _Twice):
            found.extend(f"{prefix}{key}" for key in value.repeated)
        for key, item in value.items():
            _collect(item, f"{prefix}{key}", found)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _collect(item, f"{path}[{index}]", found)
