"""Checks class parameters and driver options by their schema, turns them into Python values, and describes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from volplane._messages import nearest
from volplane.errors import ConfigurationError, InvalidArgument
from volplane.kube import quantity
from volplane.schemas import Parameter, ParameterKind, ParameterSchema
from volplane.secret import HIDDEN, SECRET_NAME, Secret

_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+", re.ASCII)
_SECONDS_ALONE: Final = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_INTEGER: Final = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_OCTAL: Final = re.compile(r"(?:0o)?[0-7]{1,18}", re.ASCII)
_BOOLEANS: Final = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
_BOUNDED: Final = frozenset({ParameterKind.INTEGER, ParameterKind.SIZE, ParameterKind.OCTAL, ParameterKind.DURATION})
_SECRETS: Final = frozenset({ParameterKind.SECRET, ParameterKind.SECRETS})
_LONGEST_DURATION: Final = 1e9
"""Seconds: 31 years. Clocks refuse much more."""
_QUOTED: Final = frozenset({ParameterKind.STRING, ParameterKind.OCTAL})
_LONGEST_SHOWN: Final = 80


def class_parameters(
    schema: ParameterSchema, given: Mapping[str, str], where: str, options: ParameterSchema | None = None
) -> dict[str, Any]:
    """Return the typed parameters of a StorageClass: one for every parameter of the schema, None without a default.

    where: for messages, as in "class fast". options: of the driver; its secrets are refused here by name. Raises
    InvalidArgument that names every wrong key, what would be right, and its value unless that may be a secret.
    """
    misplaced = {p.name.lower(): p.name for p in secrets_of(options)}
    values, flaws = check(schema, {key: raw for key, raw in given.items() if key.lower() not in misplaced}, "parameter")
    why = "must not stand in a class, which many may read: secrets are options of the driver, by reference"
    flaws += tuple(f"parameter {key!r} {why}" for key in given if key.lower() in misplaced)
    if flaws:
        raise InvalidArgument(f"{where}: {'; '.join(flaws)}")
    return values


def driver_options(schema: ParameterSchema, given: Mapping[str, object], where: str) -> dict[str, Any]:
    """Return the typed options of a driver. Values may be YAML's, of any type. Raises ConfigurationError."""
    values, flaws = check(schema, given, "option")
    if flaws:
        raise ConfigurationError(f"{where}: {'; '.join(flaws)}")
    return values


def check(schema: ParameterSchema, given: Mapping[str, object], word: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return (values by documented name, all flaws). word: "option" or "parameter", for the messages."""
    known = {p.name.lower(): p for p in schema.parameters}
    values: dict[str, Any] = {p.name: p.default for p in schema.parameters}
    seen: dict[str, str] = {}
    flaws: list[str] = []
    for key, raw in given.items():
        # A parameter of kind KEYS stands for every key that begins with its name.
        prefixes = (p for p in schema.parameters if p.kind is ParameterKind.KEYS)
        matching = (p for p in prefixes if str(key).lower().startswith(p.name.lower()))
        parameter = known.get(str(key).lower()) or next(matching, None)
        if parameter is None:
            hint = nearest(str(key), (p.name for p in schema.parameters))
            hidden = SECRET_NAME.search(str(key)) or any(repr(p.name) in hint for p in secrets_of(schema))
            flaws.append(f"unknown {word} {str(key)!r} (value {HIDDEN if hidden else _shown(raw)}){hint}")
        elif parameter.name in seen and parameter.kind is not ParameterKind.KEYS:
            flaws.append(f"{word} {key!r} is given twice, also as {seen[parameter.name]!r}; case does not matter")
        else:
            seen[parameter.name] = str(key)
            try:
                value = read_value(parameter, raw)
                one_of_many = parameter.kind is ParameterKind.KEYS
                values[parameter.name] = {**(values[parameter.name] or {}), str(key): value} if one_of_many else value
            except ValueError as error:
                secret = parameter.kind in _SECRETS
                flaws.append(f"{word} {key!r} {'cannot be used' if secret else f'is {_shown(raw)}'}, {error}")
    missing = (p for p in schema.parameters if p.required and p.name not in seen)
    flaws += [f"{word} {p.name!r} is required: {type_text(p)}" for p in missing]
    reported: set[frozenset[str]] = set()
    for one, other in ((p.name, other) for p in schema.parameters for other in p.excludes):
        if one in seen and other in seen and frozenset({one, other}) not in reported:
            reported.add(frozenset({one, other}))
            flaws.append(f"{word}s {seen[one]!r} and {seen[other]!r} exclude each other; give one")
    return values, tuple(flaws)


def secrets_of(schema: ParameterSchema | None) -> tuple[Parameter, ...]:
    return tuple(p for p in schema.parameters if p.kind in _SECRETS) if schema is not None else ()


def _shown(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


# --- one value --------------------------------------------------------------------------------------------------


def read_value(parameter: Parameter, raw: object) -> Any:
    """Return the Python value; of kind KEYS that of one key. Raises ValueError that says what is expected."""
    expected = f"expected {type_text(parameter)}"
    try:
        value = _KINDS[parameter.kind][1](raw)
    except (TypeError, ValueError):
        quote = "; quote it" if isinstance(raw, int | float) and parameter.kind in _QUOTED else ""
        raise ValueError(f"{expected}{quote}") from None
    for item in value if isinstance(value, tuple) else (value,):
        if parameter.choices and str(item) not in parameter.choices:
            hint = nearest(str(item), parameter.choices)
            raise ValueError(f"{expected}{hint if 'did you mean' in hint else ''}")
        if parameter.pattern and isinstance(item, str) and not re.fullmatch(parameter.pattern, item):
            raise ValueError(expected)
    low, high = parameter.minimum, parameter.maximum
    if parameter.kind in _BOUNDED and not ((low is None or value >= low) and (high is None or value <= high)):
        raise ValueError(expected)
    return value


def _text(raw: object) -> str:
    """Accept text only: YAML reads a bare 0770 as octal and 770 as decimal, so a number as a mode is ambiguous."""
    if not isinstance(raw, str):
        raise TypeError(raw)
    return raw.strip()


def _string(raw: object) -> str:
    """Accept text and whole numbers. YAML has rounded other numbers (1.10 is 1.1), so they must be quoted."""
    if isinstance(raw, bool) or not isinstance(raw, str | int):
        raise TypeError(raw)
    return str(raw)


def _number(text: str, written: re.Pattern[str], base: int) -> int:
    if not written.fullmatch(text):
        raise ValueError(text)
    return int(text, base)


def _boolean(raw: object) -> bool:
    value = raw if isinstance(raw, bool) else _BOOLEANS.get(_text(raw).lower())
    if value is None:
        raise ValueError(raw)
    return value


def _size(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise TypeError(raw)
    return quantity.parse(raw).as_bytes()


def _duration(raw: object) -> float:
    if isinstance(raw, int | float) and not isinstance(raw, bool) and 0 <= raw <= _LONGEST_DURATION:
        return float(raw)
    text = _text(raw)
    if _SECONDS_ALONE.fullmatch(text):
        text += "s"
    seconds = sum(float(amount) * _SECONDS[unit] for amount, unit in _DURATION_PART.findall(text))
    if not _DURATION.fullmatch(text) or seconds > _LONGEST_DURATION:
        raise ValueError(raw)
    return seconds


def _strings(raw: object) -> tuple[str, ...]:
    if isinstance(raw, str):
        return tuple(part.strip() for part in raw.split(",") if part.strip())
    if isinstance(raw, Sequence):
        return tuple(_string(item) for item in raw)
    raise ValueError(raw)


def _mapping(raw: object) -> dict[str, str]:
    if isinstance(raw, Mapping):
        return {_string(key): _string(value) for key, value in raw.items()}
    result: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in _text(raw).split(","))):
        key, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not key or key in result:
            raise ValueError(raw)
        result[key] = value
    return result


_KINDS: Final[Mapping[ParameterKind, tuple[str, Callable[[object], Any]]]] = {
    ParameterKind.STRING: ("text", _string),
    ParameterKind.INTEGER: ("a whole number", lambda raw: _number(_string(raw).strip(), _INTEGER, 10)),
    ParameterKind.BOOLEAN: ("true or false", _boolean),
    ParameterKind.SIZE: ("a size such as 10Gi", _size),
    ParameterKind.OCTAL: ('a quoted octal mode such as "0770"', lambda raw: _number(_text(raw), _OCTAL, 8)),
    ParameterKind.DURATION: ("a duration such as 30s, 5m or 1h", _duration),
    ParameterKind.STRINGS: ("a comma-separated list", _strings),
    ParameterKind.MAPPING: ("a list such as key=value,key2=value2", _mapping),
    ParameterKind.KEYS: ("text, for each key that begins so", _string),
    ParameterKind.SECRET: (
        "where the secret is, as env:NAME, file:/PATH or secret:NAMESPACE/NAME/KEY",
        lambda raw: Secret(_text(raw)),
    ),
    ParameterKind.SECRETS: (
        "a comma-separated list of places of secrets, each as secret:NAMESPACE/NAME/KEY",
        lambda raw: tuple(Secret(each, needed=False) for each in _strings(raw)),
    ),
}
"""Kind -> what its values are, for people, and what reads one. Readers raise TypeError or ValueError."""


# --- descriptions for messages, `volplane plugins show` and the reference ---------------------------------------------


def type_text(parameter: Parameter) -> str:
    """Describe what a value must be: kind, choices, pattern and bounds."""
    if parameter.choices:
        one_of = f"one of {', '.join(parameter.choices)}"
        return f"a comma-separated list, each {one_of}" if parameter.kind is ParameterKind.STRINGS else one_of
    text = _KINDS[parameter.kind][0]
    if parameter.pattern:
        text += f" that matches {parameter.pattern}"
    bounds = (parameter.minimum, parameter.maximum)
    low, high = (None if bound is None else _number_text(parameter.kind, bound) for bound in bounds)
    if low is not None and high is not None:
        return f"{text}, from {low} to {high}"
    if low is not None:
        return f"{text}, at least {low}"
    return f"{text}, at most {high}" if high is not None else text


def default_text(parameter: Parameter) -> str:
    """Return the default as it is written in a class; "" if there is none."""
    default = parameter.default
    if default is None:
        return ""
    if isinstance(default, bool):
        return json.dumps(default)
    kind = parameter.kind
    scaled = (ParameterKind.SIZE, ParameterKind.OCTAL, ParameterKind.DURATION)
    if kind in scaled and isinstance(default, int | float if kind is ParameterKind.DURATION else int):
        return _number_text(kind, default)
    if isinstance(default, Mapping):
        return ",".join(f"{key}={value}" for key, value in default.items())
    if isinstance(default, tuple | list | frozenset | set):
        return ",".join(str(item) for item in default)
    return str(default)


def _number_text(kind: ParameterKind, number: float) -> str:
    if kind is ParameterKind.SIZE:
        return quantity.format_bytes(int(number))
    if kind is ParameterKind.OCTAL:
        return f"0{int(number):o}"
    return f"{number:g}s" if kind is ParameterKind.DURATION else f"{number:.15g}"


def entries(schema: ParameterSchema) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, accepted values, default and documentation of each parameter. "required" stands for no default."""
    for parameter in schema.parameters:
        notes = [parameter.doc]
        if parameter.excludes:
            notes.append(f"Not together with {', '.join(parameter.excludes)}.")
        if parameter.since > 1:
            notes.append(f"Since schema version {parameter.since}.")
        default = "required" if parameter.required else default_text(parameter)
        yield parameter.name, type_text(parameter), default, " ".join(notes)
