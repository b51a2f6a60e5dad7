"""Rules for names, labels and annotations: `k8s.io/apimachinery/pkg/util/validation`, with its wording.

Each rule returns all reasons why a value is refused; empty: it is not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Final

ANNOTATION_BYTES: Final = 256 * 1024
"""Keys and values of all annotations of an object together."""

Rule = Callable[[str], tuple[str, ...]]

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE: Final = f"({_QUALIFIED})?"
_KEY: Final = "[-._a-zA-Z0-9]+"

_label = re.compile(_LABEL)
_subdomain = re.compile(_SUBDOMAIN)
_qualified = re.compile(_QUALIFIED)
_value = re.compile(_VALUE)
_key = re.compile(_KEY)


def _regex_message(text: str, pattern: str, *examples: str) -> str:
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{text} (e.g. {shown}regex used for validation is '{pattern}')"


_NOT_LABEL: Final = _regex_message(
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with"
    " an alphanumeric character",
    _LABEL,
    "my-name",
    "123-abc",
)
_NOT_SUBDOMAIN: Final = _regex_message(
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and"
    " end with an alphanumeric character",
    _SUBDOMAIN,
    "example.com",
)
_NOT_QUALIFIED: Final = _regex_message(
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
    _QUALIFIED,
    "MyName",
    "my.name",
    "123-abc",
)
_NOT_VALUE: Final = _regex_message(
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and"
    " end with an alphanumeric character",
    _VALUE,
    "MyValue",
    "my_value",
    "12345",
)
_NOT_KEY: Final = _regex_message(
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
    _KEY,
    "key.name",
    "KEY_NAME",
    "key-name",
)


def _faults(value: str, limit: int, pattern: re.Pattern[str], mismatch: str) -> tuple[str, ...]:
    too_long = (f"must be no more than {limit} characters",) if len(value) > limit else ()
    return too_long if pattern.fullmatch(value) else (*too_long, mismatch)


@functools.lru_cache(maxsize=8192)
def subdomain(name: str) -> tuple[str, ...]:
    """Check an RFC 1123 subdomain of at most 253 characters: the name of most objects."""
    return _faults(name, 253, _subdomain, _NOT_SUBDOMAIN)


@functools.lru_cache(maxsize=1024)
def dns_label(name: str) -> tuple[str, ...]:
    """Check an RFC 1123 label of at most 63 characters: namespaces, containers, volumes of a pod."""
    return _faults(name, 63, _label, "must not contain dots" if _subdomain.fullmatch(name) else _NOT_LABEL)


@functools.lru_cache(maxsize=4096)
def qualified_name(key: str) -> tuple[str, ...]:
    """Check the key of a label or annotation: an optional subdomain, a slash, a name of at most 63 characters."""
    return tuple(_qualified_name_faults(key))


def _qualified_name_faults(key: str) -> Iterator[str]:
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        yield (
            f"a qualified name {_NOT_QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g. "
            "'example.com/MyName')"
        )
        return
    if slash and not prefix:
        yield "prefix part must be non-empty"
    elif slash:
        yield from (f"prefix part {why}" for why in subdomain(prefix))
    if not name:
        yield "name part must be non-empty"
    yield from (f"name part {why}" for why in _faults(name, 63, _qualified, _NOT_QUALIFIED))


@functools.lru_cache(maxsize=4096)
def label_value(value: str) -> tuple[str, ...]:
    """Check the value of a label: at most 63 characters, may be empty."""
    return _faults(value, 63, _value, _NOT_VALUE)


def config_key(key: str) -> tuple[str, ...]:
    """Check a key of a config map or secret: a file name of at most 253 characters."""
    faults = _faults(key, 253, _key, _NOT_KEY)
    if key in {".", ".."}:
        return (*faults, f"must not be '{key}'")
    return (*faults, "must not start with '..'") if key.startswith("..") else faults


def path_segment(name: str) -> tuple[str, ...]:
    """Check that a name is one segment of a path, as every name must be."""
    if name in {".", ".."}:
        return (f"may not be '{name}'",)
    return tuple(f"may not contain '{sign}'" for sign in "/%" if sign in name)
