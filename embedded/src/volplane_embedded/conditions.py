"""Conditions of a status, as lists that a merge patch replaces whole. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["Condition", "condition_of", "with_condition"]

Condition = dict[str, Any]


def condition_of(conditions: Iterable[Condition] | None, kind: str) -> Condition:
    """The condition of this type; empty if there is none."""
    return next((entry for entry in conditions or () if entry.get("type") == kind), {})


def with_condition(
    conditions: Iterable[Condition] | None, kind: str, *, status: bool, now: str, reason: str = "", message: str = ""
) -> list[Condition]:
    """The list with this condition. The transition time moves only with the status; an equal list means no change.

    now: RFC 3339.
    """
    listed = list(conditions or ())
    old = condition_of(listed, kind)
    text = "True" if status else "False"
    new: Condition = {"type": kind, "status": text, "lastProbeTime": None}
    new["lastTransitionTime"] = old.get("lastTransitionTime") or now if old.get("status") == text else now
    new |= {key: value for key, value in (("reason", reason), ("message", message)) if value}
    if _meaning(old) == _meaning(new):
        return listed
    return [entry for entry in listed if entry.get("type") != kind] + [new]


def _meaning(condition: Condition) -> list[str]:
    return [str(condition.get(key) or "") for key in ("type", "status", "reason", "message")]
