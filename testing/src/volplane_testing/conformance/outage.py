"""A storage that cannot be reached, and the answers that a backend must not give then."""

from __future__ import annotations

from typing import Final

from volplane.assets import Absent, AssetPage, Done, Erased, SnapshotPage

__all__ = ["NEEDS_NO_STORAGE", "answers_nothing"]

NEEDS_NO_STORAGE: Final = frozenset({"describe", "owns", "start", "stop", "validate"})
"""Hooks that may answer though the storage cannot be reached."""


def answers_nothing(result: object) -> bool:
    """Tell whether a result says that there is nothing, or nothing left to do: what volplane acts on for good."""
    match result:
        case AssetPage():
            return not (result.assets or result.archives or result.next_page)
        case SnapshotPage():
            return not (result.snapshots or result.next_page)
        case _:
            return isinstance(result, Absent | Done | Erased)
