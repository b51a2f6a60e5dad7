"""Events in the shape of core/v1 (the stored one) and of events.k8s.io/v1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from volplane_embedded.apiserver.resources import Json

__all__ = ["fill", "from_core", "to_core"]

_NEW_TO_CORE: Final[Mapping[str, str]] = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_CORE_TO_NEW: Final = {core: new for new, core in _NEW_TO_CORE.items()}
_EMPTY_DROPPED: Final = frozenset({"reportingController", "reportingInstance", "regarding", "note", "deprecatedCount"})


def fill(event: Json) -> None:
    """What a core/v1 event always shows."""
    event.setdefault("involvedObject", {})
    event.setdefault("source", {})
    for key in ("firstTimestamp", "lastTimestamp", "eventTime"):
        event.setdefault(key, None)
    for key in ("reportingComponent", "reportingInstance"):
        event.setdefault(key, "")


def to_core(event: Json) -> Json:
    """An events.k8s.io/v1 event as core/v1 event."""
    return {_NEW_TO_CORE.get(key, key): value for key, value in event.items()}


def from_core(event: Json) -> Json:
    """A core/v1 event as events.k8s.io/v1 event."""
    shown: Json = {}
    for key, value in event.items():
        name = _CORE_TO_NEW.get(key, key)
        if value or name not in _EMPTY_DROPPED:
            shown[name] = value
    return shown
