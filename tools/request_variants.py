"""Variants of requests: every field of an object in turn absent, null, empty, of another type, out of range.

Sent to two servers with `dryRun=All` they show where the servers decode, default or validate differently.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Final

__all__ = ["fields_of", "variants"]

Path = tuple[str | int, ...]

_LONG: Final = "x" * 300
_OF_TEXT: Final[tuple[Any, ...]] = (
    "",
    "Not_Valid!",
    "-dash",
    "a/b",
    "a/b/c",
    "../up",
    "/abs",
    _LONG,
    7,
    ["x"],
    {"a": "b"},
)
_OF_NUMBER: Final[tuple[Any, ...]] = (0, -1, 2**31, 2**63, 1.5, "7", [1])
_OF_LIST: Final[tuple[Any, ...]] = ([], [None], "x", {"a": "b"})
_OF_MAP: Final[tuple[Any, ...]] = ({}, "x", [], {"bogus": 1})
_OF_MARK: Final[tuple[Any, ...]] = (True, False, "true", 0)


def fields_of(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of all values within a JSON value, outer ones first."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from fields_of(item, (*path, key))


def _others(value: Any) -> Sequence[Any]:
    """Values to put in the place of one."""
    if isinstance(value, bool):
        return _OF_MARK
    if isinstance(value, int):
        return _OF_NUMBER
    if isinstance(value, str):
        return _OF_TEXT
    if isinstance(value, list):
        return (*_OF_LIST, value + value[-1:])
    if not isinstance(value, dict):
        return ()
    texts = all(isinstance(item, str) for item in value.values())
    return (*_OF_MAP, {**value, "Bad key!": "v"}, {**value, "a/b/c": "Bad value!"}) if texts else _OF_MAP


def variants(base: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every variant of an object, with what was changed: `spec.capacity.storage="0"`."""
    for path in fields_of(base):
        found = base
        for step in path:
            found = found[step]  # type: ignore[index]
        for fresh in (_ABSENT, None, *_others(found)):
            yield _shown(path, fresh), _with(base, path, fresh)


_ABSENT: Final = object()


def _with(base: dict[str, Any], path: Path, fresh: Any) -> dict[str, Any]:
    changed = copy.deepcopy(base)
    parent: Any = changed
    for step in path[:-1]:
        parent = parent[step]
    if fresh is _ABSENT:
        del parent[path[-1]]
    else:
        parent[path[-1]] = copy.deepcopy(fresh)
    return changed


def _shown(path: Path, fresh: Any) -> str:
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    if fresh is _ABSENT:
        return f"{place} absent"
    shown = repr(fresh)
    return f"{place}={shown if len(shown) < 80 else shown[:60] + '...'}"
