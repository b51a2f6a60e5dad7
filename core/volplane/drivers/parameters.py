"""Checks class parameters and driver options by their schema, and turns them into Python values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from volplane._messages import nearest
from volplane.drivers.parameter_text import type_text
from volplane.errors import ConfigurationError, InvalidArgument
from volplane.kube import quantity
from volplane.schemas import Parameter, ParameterKind, ParameterSchema
from volplane.secret import HIDDEN, Secret

__all__ = ["check", "class_parameters", "driver_options", "read_value", "secrets_of"]

_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+", re.ASCII)
_SECONDS_ALONE: Final = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
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
"""If the name of an unknown key has one of these words, its value is not shown: it may be a misspelt secret."""


class _Wrong(ValueError):
    """A value that cannot be read."""


def class_parameters(
    schema: ParameterSchema, given: Mapping[str, str], where: str, options: ParameterSchema | None = None
) -> dict[str, Any]:
    """The typed parameters of a StorageClass, one entry for every parameter of the schema (None: absent, no default).

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
        parameter = known.get(str(key).lower()) or _beginning(schema, str(key))
        if parameter is None:
            flaws.append(_unknown(schema, str(key), raw, word))
        elif parameter.name in seen and parameter.kind is not ParameterKind.KEYS:
            flaws.append(f"{word} {key!r} is given twice, also as {seen[parameter.name]!r}; case does not matter")
        else:
            seen[parameter.name] = str(key)
            try:
                value = read_value(parameter, raw)
                one_of_many = parameter.kind is ParameterKind.KEYS
                values[parameter.name] = {**(values[parameter.name] or {}), str(key): value} if one_of_many else value
            except ValueError as error:
                secret = parameter.kind is ParameterKind.SECRET
                flaws.append(f"{word} {key!r} {'cannot be used' if secret else f'is {_shown(raw)}'}, {error}")
    flaws += _presence_flaws(schema, seen, word)
    return values, tuple(flaws)


def _beginning(schema: ParameterSchema, key: str) -> Parameter | None:
    """The parameter of kind KEYS whose name the key begins with."""
    many = (p for p in schema.parameters if p.kind is ParameterKind.KEYS)
    return next((p for p in many if key.lower().startswith(p.name.lower())), None)


def _unknown(schema: ParameterSchema, key: str, raw: object, word: str) -> str:
    hint = nearest(key, (p.name for p in schema.parameters))
    hidden = _CONFIDENTIAL.search(key) or any(repr(p.name) in hint for p in secrets_of(schema))
    return f"unknown {word} {key!r} (value {HIDDEN if hidden else _shown(raw)}){hint}"


def secrets_of(schema: ParameterSchema | None) -> tuple[Parameter, ...]:
    return tuple(p for p in schema.parameters if p.kind is ParameterKind.SECRET) if schema is not None else ()


def _shown(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _presence_flaws(schema: ParameterSchema, seen: Mapping[str, str], word: str) -> list[str]:
    flaws = [
        f"{word} {p.name!r} is required: {type_text(p)}" for p in schema.parameters if p.required and p.name not in seen
    ]
    reported: set[frozenset[str]] = set()
    for parameter in schema.parameters:
        for other in parameter.excludes:
            pair = frozenset({parameter.name, other})
            if parameter.name in seen and other in seen and pair not in reported:
                reported.add(pair)
                flaws.append(f"{word}s {seen[parameter.name]!r} and {seen[other]!r} exclude each other; give one")
    return flaws


# --- one value --------------------------------------------------------------------------------------------------


def read_value(parameter: Parameter, raw: object) -> Any:
    """The Python value; of kind KEYS that of one key. Raises ValueError with what is expected, to end a sentence."""
    try:
        value = _READERS[parameter.kind](raw)
    except ValueError:
        quote = "; quote it" if isinstance(raw, int | float) and parameter.kind in _QUOTED else ""
        raise _Wrong(f"expected {type_text(parameter)}{quote}") from None
    for item in value if isinstance(value, tuple) else (value,):
        _restrict(parameter, item)
    low, high = parameter.minimum, parameter.maximum
    if parameter.kind in _BOUNDED and not ((low is None or value >= low) and (high is None or value <= high)):
        raise _Wrong(f"expected {type_text(parameter)}")
    return value


def _restrict(parameter: Parameter, item: object) -> None:
    text = item if isinstance(item, str) else str(item)
    if parameter.choices and text not in parameter.choices:
        hint = nearest(text, parameter.choices)
        raise _Wrong(f"expected {type_text(parameter)}{hint if 'did you mean' in hint else ''}")
    if parameter.pattern and isinstance(item, str) and not re.fullmatch(parameter.pattern, item):
        raise _Wrong(f"expected {type_text(parameter)}")


def _string(raw: object) -> str:
    """Text, or a whole number; YAML has already rounded other numbers (1.10 is 1.1), so they must be quoted."""
    if isinstance(raw, bool) or not isinstance(raw, str | int):
        raise _Wrong(raw)
    return str(raw)


def _integer(raw: object) -> int:
    text = _string(raw).strip()
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
    """Text only: YAML reads a bare 0770 as octal already and 770 as decimal, so a number is ambiguous."""
    if not isinstance(raw, str) or not _OCTAL.fullmatch(raw.strip()):
        raise _Wrong(raw)
    return int(raw.strip().removeprefix("0o"), 8)


def _duration(raw: object) -> float:
    if isinstance(raw, int | float) and not isinstance(raw, bool) and math.isfinite(raw) and raw >= 0:
        return float(raw)
    text = raw.strip() if isinstance(raw, str) else ""
    if _SECONDS_ALONE.fullmatch(text):
        text += "s"
    seconds = sum(float(amount) * _SECONDS[unit] for amount, unit in _DURATION_PART.findall(text))
    if not _DURATION.fullmatch(text) or not math.isfinite(seconds):
        raise _Wrong(raw)
    return seconds


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
    ParameterKind.KEYS: _string,
    ParameterKind.SECRET: _secret,
}
