"""Behaviour that most kinds share, on top of `Strategy`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from volplane_embedded.apiserver.resources import Json, Strategy

__all__ = ["Clock", "StatusStrategy", "keep_metadata", "timestamp"]

Clock = Callable[[], datetime]
"""Wall time: aware, UTC."""

_CLIENT_METADATA: Final = ("labels", "annotations", "finalizers", "ownerReferences")


def timestamp(now: datetime) -> str:
    """RFC 3339 in whole seconds, as `metav1.Time` is written."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def keep_metadata(new: Json, old: Json) -> None:
    """Put back the metadata that a status endpoint may not change, for the kinds that refuse it there."""
    kept, target = old["metadata"], new["metadata"]
    for key in _CLIENT_METADATA:
        if key in kept:
            target[key] = kept[key]
        else:
            target.pop(key, None)


class StatusStrategy(Strategy):
    """A kind with a status subresource: the main endpoint writes everything else, the subresource only status."""

    def prepare_update(self, new: Json, old: Json, subresource: str) -> None:
        if subresource == "status":
            if "spec" in old:
                new["spec"] = old["spec"]
            else:
                new.pop("spec", None)
        elif "status" in old:
            new["status"] = old["status"]
        else:
            new.pop("status", None)
