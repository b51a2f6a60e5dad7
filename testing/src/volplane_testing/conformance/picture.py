"""Pictures of a storage: what `Subject.inspect` returns, before and after something, and what is different."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from volplane_testing.conformance.subject import Subject

__all__ = ["LEAVES_NOTHING", "changes", "picture_at_rest"]

LEAVES_NOTHING: Final = "a-deleted-asset-leaves-nothing"
"""The rule about pictures before and after. What a backend that waives it leaves is no violation of others either."""
_AT_REST: Final = 120.0
"""Seconds in which a storage with a clock of its own ends what it does after the answer."""
_MOST: Final = 4
_LONGEST: Final = 120


def picture_at_rest(subject: Subject) -> object:
    """The storage once nothing moves on it any more; None if the subject cannot look at it."""
    if subject.inspect is None:
        return None
    if subject.advance is not time.sleep:
        subject.advance(_AT_REST)
    return subject.inspect()


def changes(before: object, after: object) -> str:
    """What is different, in one line: entries that came, went or changed, the first few of each. "" if nothing is."""
    if before == after:
        return ""
    old, new = _entries(before), _entries(after)
    if old is None or new is None:
        return f"{_cut(before)} became {_cut(after)}"
    found = (
        ("new", [key for key in new if key not in old]),
        ("gone", [key for key in old if key not in new]),
        ("changed", [key for key in new if key in old and old[key] != new[key]]),
    )
    parts = [f"{what}: {_some(keys)}" for what, keys in found if keys]
    return "; ".join(parts) or "the order of its entries changed"


def _entries(picture: object) -> Mapping[str, object] | None:
    """Parts of a mapping by their keys, of a sequence by themselves."""
    if isinstance(picture, Mapping):
        return {str(key): value for key, value in picture.items()}
    if isinstance(picture, Sequence | frozenset | set) and not isinstance(picture, str | bytes):
        return {repr(value): value for value in picture}
    return None


def _some(keys: Sequence[str]) -> str:
    shown = ", ".join(_cut(key) for key in keys[:_MOST])
    return shown if len(keys) <= _MOST else f"{shown} and {len(keys) - _MOST} more"


def _cut(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
