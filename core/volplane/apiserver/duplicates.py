"""Fields that stand twice in a JSON text, of which decoders keep only the last."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["duplicate_fields"]


class _Twice(dict[str, Any]):
    """An object some of whose keys stood more than once."""

    repeated: tuple[str, ...] = ()


def duplicate_fields(body: bytes) -> tuple[str, ...]:
    """Paths of the fields that stand more than once, as the stock server words them (`spec.containers[0].name`).

    What is no JSON has none.
    """
    repeats = 0

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeats
        built = dict(pairs)
        if len(built) == len(pairs):
            return built
        repeats += 1
        marked = _Twice(built)
        keys = [key for key, _ in pairs]
        marked.repeated = tuple(dict.fromkeys(key for key in keys if keys.count(key) > 1))
        return marked

    try:
        value = json.loads(body, object_pairs_hook=build)
    except (ValueError, RecursionError):
        return ()
    found: list[str] = []
    if repeats:
        _collect(value, "", found)
    return tuple(found)


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
