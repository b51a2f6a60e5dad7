"""Rules for names, labels and annotations: `k8s.io/apimachinery/pkg/util/validation`, with its wording.

Each rule returns the reason why the value is refused, or "".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Final

__all__ = [
    "ANNOTATION_BYTES",
    "config_key",
    "dns_label",
    "label_value",
    "qualified_name",
    "qualified_name_faults",
    "subdomain",
]

ANNOTATION_BYTES: Final = 256 * 1024
"""Keys and values of all annotations of an object together."""

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


def _too_long(limit: int) -> str:
    return f"must be no more than {limit} characters"


@functools.lru_cache(maxsize=8192)
def subdomain(name: str) -> str:
    """An RFC 1123 subdomain of at most 253 characters: the name of most objects."""
    if len(name) > 253:
        return "must be no more than 253 characters"
    return "" if _subdomain.fullmatch(name) else _NOT_SUBDOMAIN


@functools.lru_cache(maxsize=1024)
def dns_label(name: str) -> str:
    """An RFC 1123 label of at most 63 characters: namespaces, containers, volumes of a pod."""
    if len(name) > 63:
        return "must be no more than 63 characters"
    return "" if _label.fullmatch(name) else _NOT_LABEL


def qualified_name(key: str) -> str:
    """The key of a label or annotation: an optional subdomain, a slash, a name of at most 63 characters."""
    return next(iter(qualified_name_faults(key)), "")


@functools.lru_cache(maxsize=4096)
def qualified_name_faults(key: str) -> tuple[str, ...]:
    """All reasons why such a key is refused."""
    return tuple(_faults(key))


def _faults(key: str) -> Iterator[str]:
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        yield (
            f"a qualified name {_NOT_QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g. "
            "'example.com/MyName')"
        )
        return
    if slash and not prefix:
        yield "prefix part must be non-empty"
    elif slash and (why := subdomain(prefix)):
        yield f"prefix part {why}"
    if not name:
        yield "name part must be non-empty"
    elif len(name) > 63:
        yield f"name part {_too_long(63)}"
    if not _qualified.fullmatch(name):
        yield f"name part {_NOT_QUALIFIED}"


@functools.lru_cache(maxsize=4096)
def label_value(value: str) -> str:
    """The value of a label: at most 63 characters, may be empty."""
    if len(value) > 63:
        return _too_long(63)
    return "" if _value.fullmatch(value) else _NOT_VALUE


def config_key(key: str) -> str:
    """A key of a config map or secret: a file name of at most 253 characters."""
    if len(key) > 253:
        return _too_long(253)
    if not _key.fullmatch(key):
        return _NOT_KEY
    if key in {".", ".."}:
        return f"must not be '{key}'"
    return "must not start with '..'" if key.startswith("..") else ""
