"""JSON that is nested deeper than the decoder can follow.

Whoever writes an object can nest its `metadata.managedFields[].fieldsV1` as deep as the API server accepts (10,000).
The decoder gives up at a thousand, also in fields that it skips, and one such object would make a whole list
unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

__all__ = ["decoded", "flattened"]

T = TypeVar("T")

_MOST: Final = 100
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def decoded(decode: Callable[[bytes | msgspec.Raw], T], body: bytes | msgspec.Raw) -> T:
    """What `decode` makes of the JSON; of its upper levels, if it is nested too deep. Raises what `decode` raises."""
    try:
        return decode(body)
    except RecursionError:
        return decode(flattened(bytes(body)))


def flattened(body: bytes, most: int = _MOST) -> bytes:
    """The JSON with null for every list and object that lies within more than `most` others."""
    depth, kept, parts = 0, 0, []
    for token in _TOKEN.finditer(body):
        first = body[token.start() : token.start() + 1]
        if first in b"[{":
            depth += 1
            if depth == most + 1:
                parts.append(body[kept : token.start()])
        elif first in b"]}":
            if depth == most + 1:
                parts.append(b"null")
                kept = token.end()
            depth -= 1
    if depth <= most:
        parts.append(body[kept:])  # else it breaks off, and the decoder says so
    return b"".join(parts)
