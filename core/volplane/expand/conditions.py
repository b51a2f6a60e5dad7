"""The conditions of a claim about growth and about changed attributes. Pure.

Source: `PersistentVolumeClaimConditionType` of the Kubernetes API, and `MergeResizeConditionOnPVC` and
`MergeModifyVolumeConditionsOnPVC` of its volume utilities.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final

from volplane.kube.objects import Claim

__all__ = [
    "CONTROLLER_RESIZE_ERROR",
    "FILE_SYSTEM_RESIZE_PENDING",
    "MODIFYING_VOLUME",
    "MODIFY_CONDITIONS",
    "MODIFY_VOLUME_ERROR",
    "NODE_RESIZE_ERROR",
    "RESIZE_CONDITIONS",
    "RESIZING",
    "conditions_since",
    "conditions_with",
    "conditions_without",
    "since_when",
]

RESIZING: Final = "Resizing"
FILE_SYSTEM_RESIZE_PENDING: Final = "FileSystemResizePending"
CONTROLLER_RESIZE_ERROR: Final = "ControllerResizeError"
NODE_RESIZE_ERROR: Final = "NodeResizeError"
RESIZE_CONDITIONS: Final = frozenset({RESIZING, FILE_SYSTEM_RESIZE_PENDING, CONTROLLER_RESIZE_ERROR, NODE_RESIZE_ERROR})
MODIFYING_VOLUME: Final = "ModifyingVolume"
MODIFY_VOLUME_ERROR: Final = "ModifyVolumeError"
MODIFY_CONDITIONS: Final = frozenset({MODIFYING_VOLUME, MODIFY_VOLUME_ERROR})
TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"


def conditions_with(
    claim: Claim, family: Collection[str], condition: str, now: datetime, *, message: str = ""
) -> list[dict[str, Any]]:
    """The claim's conditions, in which `condition` replaces all of its family.

    A condition that was there keeps its time of transition.
    """
    before = next((each for each in claim.status.conditions or () if each.get("type") == condition), {})
    when = before.get("lastTransitionTime") or now.astimezone(UTC).strftime(TIME_FORMAT)
    made = {"type": condition, "status": "True", "lastTransitionTime": when}
    return [*(conditions_without(claim, family) or ()), made | ({"message": message} if message else {})]


def since_when(claim: Claim, condition: str) -> datetime | None:
    """When the condition came; None if it is not there, or does not say."""
    found = next((each for each in claim.status.conditions or () if each.get("type") == condition), {})
    when = found.get("lastTransitionTime")
    return datetime.fromisoformat(when) if when else None


def conditions_since(claim: Claim, condition: str, now: datetime) -> list[dict[str, Any]]:
    """The claim's conditions, of which this one came just now."""
    when = now.astimezone(UTC).strftime(TIME_FORMAT)
    return [
        each | ({"lastTransitionTime": when} if each.get("type") == condition else {})
        for each in claim.status.conditions or ()
    ]


def conditions_without(claim: Claim, family: Collection[str]) -> list[dict[str, Any]] | None:
    """The claim's conditions without a family. None instead of an empty list, for a merge patch."""
    return [each for each in claim.status.conditions or () if each.get("type") not in family] or None
