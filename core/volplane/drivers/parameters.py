"""Checks class parameters and driver options by their schema, and turns them into Python values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from volplane.errors import ConfigurationError, InvalidArgument
from volplane.kube import quantity
from volplane.messages import nearest
from volplane.schemas import Parameter, ParameterKind, ParameterSchema
from volplane.secret import HIDDEN, Secret

__all__ = ["check", "class_parameters", "driver_options", "schema_flaws", "type_text"]

_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+", re.ASCII)
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_INTEGER: Final = re.compile(r"[+-]?\d+", re.ASCII)
_OCTAL: Final = re.compile(r"(?:0o)?[0-7]+", re.ASCII)
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_BOUNDED: Final = frozenset({ParameterKind.INTEGER, ParameterKind.SIZE, ParameterKind.OCTAL, ParameterKind.DURATION})
_QUOTED: Final = frozenset({ParameterKind.STRING, ParameterKind.OCTAL})
_LONGEST_SHOWN: Final = 80
_CONFIDENTIAL: Final = re.compile(
    r"secret|passw|passphrase|token|credential|private|(?:access|api|auth)[-_.]?key", re.IGNORECASE
)
"""Words in the names of unknown keys whose values are not repeated: somebody may have misspelt an option."""


class _Wrong(ValueError):
    """A value that cannot be read."""


def class_parameters(
    schema: ParameterSchema, given: Mapping[str, str], where: str, options: ParameterSchema | None = None
) -> dict[str, Any]:
    """The typed parameters of a StorageClass, one entry for every parameter of the schema (None: absent, no default).

    where: for messages, as in "class fast". options: of the driver; its secrets are refused here by name. Raises
    InvalidArgument that names every wrong key, what would be right, and its value unless that may be a secret.
    """
    misplaced = {p.name.lower(): p.name for p in _secrets(options)}
    values, flaws = check(schema, {key: raw for key, raw in given.items() if key.lower() not in misplaced}, "parameter")
    flaws += tuple(
        f"parameter {key!r} must not stand in a class, which many may read: secrets are options of the driver, by reference"
        for key in given
        if key.lower() in misplaced
    )
    if flaws:
        raise InvalidArgument(f"{where}: {'; '.join(flaws)}")
    return values


def driver_options(schema: ParameterSchema, given: Mapping[str, object], where: str) -> dict[str, Any]:
    """The typed options of a driver, as `class_parameters`; values may be YAML's numbers, booleans, lists and mappings.

    Raises ConfigurationError.
    """
    values, flaws = check(schema, given, "option")
    if flaws:
        raise ConfigurationError(f"{where}: {'; '.join(flaws)}")
    return values


def check(schema: ParameterSchema, given: Mapping[str, object], word: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(values by documented name, everything that is wrong). word: what a key is called in messages."""
    known = {p.name.lower(): p for p in schema.parameters}
    values: dict[str, Any] = {p.name: p.default for p in schema.parameters}
    seen: dict[str, str] = {}
    flaws: list[str] = []
    for key, raw in given.items():
        parameter = known.get(str(key).lower())
        if parameter is None:
            flaws.append(_unknown(schema, str(key), raw, word))
        elif parameter.name in seen:
            flaws.append(f"{word} {key!r} is given twice, also as {seen[parameter.name]!r}; case does not matter")
        else:
            seen[parameter.name] = str(key)
            try:
                values[parameter.name] = _value(parameter, raw)
            except ValueError as error:
                secret = parameter.kind is ParameterKind.SECRET
                flaws.append(f"{word} {key!r} {'cannot be used' if secret else f'is {_shown(raw)}'}, {error}")
    flaws += _presence_flaws(schema, seen, word)
    return values, tuple(flaws)


def _unknown(schema: ParameterSchema, key: str, raw: object, word: str) -> str:
    hint = nearest(key, _names(schema))
    hidden = _CONFIDENTIAL.search(key) or any(repr(p.name) in hint for p in _secrets(schema))
    return f"unknown {word} {key!r} (value {HIDDEN if hidden else _shown(raw)}){hint}"


def _secrets(schema: ParameterSchema | None) -> tuple[Parameter, ...]:
    return tuple(p for p in schema.parameters if p.kind is ParameterKind.SECRET) if schema is not None else ()


def _names(schema: ParameterSchema) -> tuple[str, ...]:
    return tuple(p.name for p in schema.parameters)


def _shown(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _presence_flaws(schema: ParameterSchema, seen: Mapping[str, str], word: str) -> list[str]:
    flaws = [
        f"{word} {p.name!r} is required: {type_text(p)}" for p in schema.parameters if p.required and p.name not in seen
    ]
    told: set[frozenset[str]] = set()
    for parameter in schema.parameters:
        for other in parameter.excludes:
            pair = frozenset({parameter.name, other})
            if parameter.name in seen and other in seen and pair not in told:
                told.add(pair)
                flaws.append(f"{word}s {seen[parameter.name]!r} and {seen[other]!r} exclude each other; give one")
    return flaws


# --- one value --------------------------------------------------------------------------------------------------


def _value(parameter: Parameter, raw: object) -> Any:
    """The Python value; ValueError says what would be right, as the end of a sentence."""
    try:
        value = _READERS[parameter.kind](raw)
    except ValueError:
        quote = "; quote it" if isinstance(raw, int | float) and parameter.kind in _QUOTED else ""
        raise _Wrong(f"expected {type_text(parameter)}{quote}") from None
    items = value if isinstance(value, tuple) else (value,)
    for item in items:
        _restrict(parameter, item)
    if parameter.kind in _BOUNDED and not _within(parameter, value):
        raise _Wrong(f"expected {type_text(parameter)}")
    return value


def _restrict(parameter: Parameter, item: object) -> None:
    text = item if isinstance(item, str) else str(item)
    if parameter.choices and text not in parameter.choices:
        hint = nearest(text, parameter.choices)
        raise _Wrong(f"expected {type_text(parameter)}{hint if 'did you mean' in hint else ''}")
    if parameter.pattern and isinstance(item, str) and not re.fullmatch(parameter.pattern, item):
        raise _Wrong(f"expected {type_text(parameter)}")


def _within(parameter: Parameter, value: float) -> bool:
    low, high = parameter.minimum, parameter.maximum
    return (low is None or value >= low) and (high is None or value <= high)


def _string(raw: object) -> str:
    """Text, or a whole number; YAML has already rounded other numbers (1.10 is 1.1), so they must be quoted."""
    if isinstance(raw, bool) or not isinstance(raw, str | int):
        raise _Wrong(raw)
    return str(raw)


def _integer(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, str | int):
        raise _Wrong(raw)
    text = str(raw).strip()
    if not _INTEGER.fullmatch(text):
        raise _Wrong(raw)
    return int(text)


def _boolean(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    text = raw.strip().lower() if isinstance(raw, str) else ""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise _Wrong(raw)


def _size(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise _Wrong(raw)
    return quantity.parse(raw).as_bytes()


def _octal(raw: object) -> int:
    """Text only: YAML reads a bare 0770 as octal already and 770 as decimal, so a number cannot be told apart."""
    if not isinstance(raw, str) or not _OCTAL.fullmatch(raw.strip()):
        raise _Wrong(raw)
    return int(raw.strip().removeprefix("0o"), 8)


def _duration(raw: object) -> float:
    if isinstance(raw, int | float) and not isinstance(raw, bool) and math.isfinite(raw) and raw >= 0:
        return float(raw)
    text = raw.strip() if isinstance(raw, str) else ""
    if text == "0":
        return 0.0
    if not _DURATION.fullmatch(text):
        raise _Wrong(raw)
    return sum(float(amount) * _SECONDS[unit] for amount, unit in _DURATION_PART.findall(text))


def _strings(raw: object) -> tuple[str, ...]:
    if isinstance(raw, str):
        return tuple(part.strip() for part in raw.split(",") if part.strip())
    if isinstance(raw, Sequence):
        return tuple(_string(item) for item in raw)
    raise _Wrong(raw)


def _mapping(raw: object) -> dict[str, str]:
    if isinstance(raw, Mapping):
        return {_string(key): _string(value) for key, value in raw.items()}
    if not isinstance(raw, str):
        raise _Wrong(raw)
    result: dict[str, str] = {}
    for part in (p.strip() for p in raw.split(",")):
        key, equals, value = part.partition("=")
        if part and (not equals or not key.strip() or key.strip() in result):
            raise _Wrong(raw)
        if part:
            result[key.strip()] = value.strip()
    return result


def _secret(raw: object) -> Secret:
    if not isinstance(raw, str):
        raise _Wrong
    return Secret(raw.strip())


_READERS: Final[Mapping[ParameterKind, Callable[[object], Any]]] = {
    ParameterKind.STRING: _string,
    ParameterKind.INTEGER: _integer,
    ParameterKind.BOOLEAN: _boolean,
    ParameterKind.SIZE: _size,
    ParameterKind.OCTAL: _octal,
    ParameterKind.DURATION: _duration,
    ParameterKind.STRINGS: _strings,
    ParameterKind.MAPPING: _mapping,
    ParameterKind.SECRET: _secret,
}

_KIND_TEXT: Final = {
    ParameterKind.STRING: "text",
    ParameterKind.INTEGER: "a whole number",
    ParameterKind.BOOLEAN: "true or false",
    ParameterKind.SIZE: "a size such as 10Gi",
    ParameterKind.OCTAL: 'a quoted octal mode such as "0770"',
    ParameterKind.DURATION: "a duration such as 30s, 5m or 1h",
    ParameterKind.STRINGS: "a comma-separated list",
    ParameterKind.MAPPING: "a list such as key=value,key2=value2",
    ParameterKind.SECRET: "where the secret is, as env:NAME, file:/PATH or secret:NAMESPACE/NAME/KEY",
}


def type_text(parameter: Parameter) -> str:
    """What a value must be, in words: kind, choices, pattern and bounds."""
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


# --- the schema itself ------------------------------------------------------------------------------------------


def schema_flaws(schema: object, *, of_class: bool = False) -> tuple[str, ...]:
    """What is wrong with a schema: such a backend is refused at load, before any class meets the mistake.

    of_class: it is for the parameters of classes, where no secret may stand.
    """
    if not isinstance(schema, ParameterSchema):
        return (f"a schema of type {type(schema).__name__}, expected ParameterSchema",)
    flaws = []
    lowered: dict[str, str] = {}
    for parameter in schema.parameters:
        twin = lowered.setdefault(parameter.name.lower(), parameter.name)
        if twin is not parameter.name:
            flaws.append(f"parameter {parameter.name!r} is declared twice, also as {twin!r}; case does not matter")
        flaws += [f"parameter {parameter.name!r} {flaw}" for flaw in _parameter_flaws(schema, parameter)]
    if of_class:
        flaws += [f"parameter {p.name!r} is a secret; make it an option of the driver" for p in _secrets(schema)]
    return tuple(flaws)


def _parameter_flaws(schema: ParameterSchema, parameter: Parameter) -> Iterator[str]:
    names = _names(schema)
    if not 1 <= parameter.since <= schema.version:
        yield f"is since version {parameter.since}, but the schema's version is {schema.version}"
    if parameter.required and parameter.default is not None:
        yield f"is required and has the default {parameter.default!r}; it can only be one of them"
    if parameter.required and parameter.since > 1:
        yield f"is required since version {parameter.since}; older classes lack it, so it needs a default instead"
    for other in parameter.excludes:
        if other not in names:
            yield f"excludes {other!r}, which is unknown{nearest(other, names)}"
    low, high = parameter.minimum, parameter.maximum
    if parameter.kind is ParameterKind.SECRET and (
        parameter.default is not None or parameter.choices or parameter.pattern or low is not None or high is not None
    ):
        yield "is a secret and can have no default, choices, pattern or bounds"
        return
    if low is not None and high is not None and low > high:
        yield f"has a minimum {low:g} above its maximum {high:g}"
    try:
        re.compile(parameter.pattern)
    except re.error as error:
        yield f"has a pattern that is no regular expression: {error}"
        return
    if parameter.default is not None and (flaw := _default_flaw(parameter)):
        yield flaw


def _default_flaw(parameter: Parameter) -> str | None:
    """A default is a Python value; writing it as text and reading that must give it back."""
    try:
        value = _value(parameter, default_text(parameter))
    except ValueError as error:
        return f"has the default {parameter.default!r}, {error}"
    default = tuple(parameter.default) if isinstance(parameter.default, list) else parameter.default
    if value != default or isinstance(value, bool) != isinstance(default, bool):
        return f"has the default {parameter.default!r}, expected the Python value {value!r}"
    return None


def default_text(parameter: Parameter) -> str:
    """The default as one would write it in a class; empty for none."""
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
