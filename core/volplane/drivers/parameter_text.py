"""Parameters as texts for people: in messages, `volplane plugins show` and the reference pages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from volplane.kube import quantity
from volplane.schemas import Parameter, ParameterKind, ParameterSchema

__all__ = ["Entry", "default_text", "entries", "type_text"]


_KIND_TEXT: Final = {
    ParameterKind.STRING: "text",
    ParameterKind.INTEGER: "a whole number",
    ParameterKind.BOOLEAN: "true or false",
    ParameterKind.SIZE: "a size such as 10Gi",
    ParameterKind.OCTAL: 'a quoted octal mode such as "0770"',
    ParameterKind.DURATION: "a duration such as 30s, 5m or 1h",
    ParameterKind.STRINGS: "a comma-separated list",
    ParameterKind.MAPPING: "a list such as key=value,key2=value2",
    ParameterKind.KEYS: "text, for each key that begins so",
    ParameterKind.SECRET: "where the secret is, as env:NAME, file:/PATH or secret:NAMESPACE/NAME/KEY",
}


def type_text(parameter: Parameter) -> str:
    """What a value must be: kind, choices, pattern and bounds."""
    if parameter.choices:
        one_of = f"one of {', '.join(parameter.choices)}"
        return f"a comma-separated list, each {one_of}" if parameter.kind is ParameterKind.STRINGS else one_of
    text = _KIND_TEXT[parameter.kind]
    if parameter.pattern:
        text += f" that matches {parameter.pattern}"
    low, high = (None if b is None else _bound_text(parameter, b) for b in (parameter.minimum, parameter.maximum))
    if low is not None and high is not None:
        return f"{text}, from {low} to {high}"
    if low is not None:
        return f"{text}, at least {low}"
    return f"{text}, at most {high}" if high is not None else text


def _bound_text(parameter: Parameter, bound: float) -> str:
    if parameter.kind is ParameterKind.SIZE:
        return quantity.format_bytes(int(bound))
    if parameter.kind is ParameterKind.OCTAL:
        return f"0{int(bound):o}"
    return f"{bound:g}s" if parameter.kind is ParameterKind.DURATION else f"{bound:.15g}"


def default_text(parameter: Parameter) -> str:
    """The default as it is written in a class; "" if there is none."""
    default = parameter.default
    if default is None:
        return ""
    if isinstance(default, bool):
        return json.dumps(default)
    if isinstance(default, int) and parameter.kind is ParameterKind.OCTAL:
        return f"0{default:o}"
    if isinstance(default, int) and parameter.kind is ParameterKind.SIZE:
        return quantity.format_bytes(default)
    if isinstance(default, int | float) and parameter.kind is ParameterKind.DURATION:
        return f"{default:g}s"
    if isinstance(default, Mapping):
        return ",".join(f"{key}={value}" for key, value in default.items())
    if isinstance(default, tuple | list | frozenset | set):
        return ",".join(str(item) for item in default)
    return str(default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The texts about one parameter."""

    name: str
    value: str
    """What may be given."""
    default: str
    """Text of the default, "required", or empty."""
    doc: str


def entries(schema: ParameterSchema) -> tuple[Entry, ...]:
    """The parameters in the order of the schema."""
    result = []
    for parameter in schema.parameters:
        notes = [parameter.doc]
        if parameter.excludes:
            notes.append(f"Not together with {', '.join(parameter.excludes)}.")
        if parameter.since > 1:
            notes.append(f"Since schema version {parameter.since}.")
        default = "required" if parameter.required else default_text(parameter)
        entry = Entry(name=parameter.name, value=type_text(parameter), default=default, doc=" ".join(notes))
        result.append(entry)
    return tuple(result)
