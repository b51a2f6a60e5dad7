"""Scalar values of the API: numbers of a width, times, quantities, base64.

A reader returns the value in its stored form. It raises TypeError for a wrong JSON type, OverflowError for a number out
of range, and ValueError, with the wording of the stock server, for a text that cannot be parsed.
"""

from __future__ import annotations

import binascii
import functools
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from volplane.kube.quantity import parse

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_MICRO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)", re.ASCII)
_ANY_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d([.,]\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)
_LAYOUT: Final = "2006-01-02T15:04:05Z07:00"
_MICRO_LAYOUT: Final = "2006-01-02T15:04:05.000000Z07:00"


def _boolean(value: Any) -> Any:
    if type(value) is not bool:
        raise TypeError
    return value


def _integer(bits: int) -> Callable[[Any], Any]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def read(value: Any) -> Any:
        if type(value) is not int:
            raise TypeError
        if not low <= value <= high:
            raise OverflowError
        return value

    return read


def _int_or_str(value: Any) -> Any:
    if type(value) is not int and type(value) is not str:
        raise TypeError
    return value


def _quantity(value: Any) -> Any:
    if type(value) is str:
        parse(value)
        return value.strip()
    if type(value) is int or type(value) is float:
        return str(parse(value))
    raise TypeError


def _base64(value: Any) -> Any:
    if type(value) is not str:
        raise TypeError
    try:
        binascii.a2b_base64(value, strict_mode=True)
    except (binascii.Error, ValueError):
        legal = re.match(r"[A-Za-z0-9+/\r\n]*=*", value)
        raise ValueError(f"illegal base64 data at input byte {legal.end() if legal else 0}") from None
    return value


def _unreadable(value: str, layout: str, rest: str) -> ValueError:
    return ValueError(f'parsing time "{value}" as "{layout}": cannot parse "{value}" as "{rest}"')


def _moment(value: str, layout: str) -> datetime:
    try:
        return datetime.fromisoformat(value.replace(",", ".")).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f'parsing time "{value}" as "{layout}": out of range') from None


def read_time(value: Any) -> Any:
    """Read a `metav1.Time`: RFC 3339, stored in UTC and whole seconds."""
    if type(value) is not str:
        raise TypeError
    return _read_time(value)


@functools.lru_cache(maxsize=4096)
def _read_time(value: str) -> str:
    if _ANY_TIME.fullmatch(value) is None:
        raise _unreadable(value, _LAYOUT, "2006")
    moment = _moment(value, _LAYOUT)
    return value if _TIME.fullmatch(value) else f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def read_micro_time(value: Any) -> Any:
    """Read a `metav1.MicroTime`: RFC 3339 with six decimals, stored in UTC."""
    if type(value) is not str:
        raise TypeError
    if _MICRO_TIME.fullmatch(value) is None:
        raise _unreadable(value, _MICRO_LAYOUT, ".000000" if _ANY_TIME.fullmatch(value) else "2006")
    moment = _moment(value, _MICRO_LAYOUT)
    return value if value.endswith("Z") else f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06d}Z"


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as `metav1.Time` is written."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "any": lambda value: value,
    "bool": _boolean,
    "bytes": _base64,
    "i32": _integer(32),
    "i64": _integer(64),
    "int-or-str": _int_or_str,
    "micro-time": read_micro_time,
    "quantity": _quantity,
    "str": str,
    "time": read_time,
}
"""Name of a scalar in `definitions.Type` to its reader."""
ZERO: Final[Mapping[str, Any]] = {
    "bool": False,
    "bytes": "",
    "i32": 0,
    "i64": 0,
    "quantity": "0",
    "str": "",
    "time": "",
}
"""The value of null inside a list or map."""
