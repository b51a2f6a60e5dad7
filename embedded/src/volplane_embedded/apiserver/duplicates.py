"""Fields that stand twice in a JSON text, of which decoders keep only the last."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["duplicate_fields"]


class _Twice(dict[str, Any]):
    """An object some of whose keys stood more than once."""

    repeated: tuple[str, ...] = ()


class _Found(Exception):
    """Some object has a key twice."""


def _look(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise _Found


def _build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) == len(pairs):
        return built
    marked = _Twice(built)
    keys = [key for key, _ in pairs]
    marked.repeated = tuple(dict.fromkeys(key for key in keys if keys.count(key) > 1))
    return marked


_look_over = json.JSONDecoder(object_pairs_hook=_look).decode


def duplicate_fields(body: bytes) -> tuple[str, ...]:
    """Paths of the fields that stand more than once, as the stock server words them (`spec.containers[0].name`).

    What is no JSON has none.
    """
    try:
        _look_over(body.decode())
    except _Found:
        found: list[str] = []
        _collect(json.loads(body, object_pairs_hook=_build), "", found)
        return tuple(found)
    except (ValueError, RecursionError):
        return ()
    return ()


def _collect(value: Any, path: str, found: list[str]) -> None:
    if isinstance(value, dict):
        prefix = f"{path}." if path else ""
        if isinstance(value, _Twice):
            found.extend(f"{prefix}{key}" for key in value.repeated)
        for key, item in value.items():
            _collect(item, f"{prefix}{key}", found)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _collect(item, f"{path}[{index}]", found)
