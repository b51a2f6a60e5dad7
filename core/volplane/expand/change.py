"""What `resize` and `modify` share: the operation, the state of a long call, the conditions of the claim. Pure.

Source: `PersistentVolumeClaimConditionType` of the Kubernetes API, and `MergeResizeConditionOnPVC` and
`MergeModifyVolumeConditionsOnPVC` of its volume utilities.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final

from volplane.controller.actions import Action, Patch, Wait
from volplane.kube.kinds import VOLUMES
from volplane.kube.objects import Claim, Volume
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import refers_to
from volplane.state.progress import Changing
from volplane.state.records import INTENT_VERSION, ChangeIntent, read_intent, write_intent

__all__ = [
    "CONTROLLER_RESIZE_ERROR",
    "FILE_SYSTEM_RESIZE_PENDING",
    "MODIFYING_VOLUME",
    "MODIFY_CONDITIONS",
    "MODIFY_VOLUME_ERROR",
    "NODE_RESIZE_ERROR",
    "RESIZE_CONDITIONS",
    "RESIZING",
    "bound_volume",
    "conditions_since",
    "conditions_with",
    "conditions_without",
    "record_change",
    "recorded_state",
    "resume_change",
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


def bound_volume(claim: Claim, cluster: ClusterState) -> Volume | None:
    """Return the volume that the claim is bound to, if it refers to the claim and is not being deleted."""
    volume = cluster.volumes.get(claim.spec.volume_name)
    return None if volume is None or volume.terminating or not refers_to(volume, claim) else volume


def record_change(volume: Volume, annotation: str, intent: ChangeIntent | None, *, why: str) -> Patch:
    """Write on the volume how far a change is; None: no change goes on any more."""
    text = write_intent(intent) if intent is not None else None
    return Patch(kind=VOLUMES, target=volume, body={"metadata": {"annotations": {annotation: text}}}, why=why)


def resume_change(
    step: Changing,
    volume: Volume,
    annotation: str,
    cluster: ClusterState,
    *,
    doing: str,
    former: tuple[str, ...] = (),
) -> Action | None:
    """Go on with a long call: keep its state on the volume, or wait until it is due; None: call the hook now.

    annotation: the one that keeps the state. doing: the reason of the wait. former: of `ChangeIntent`.
    """
    recorded = recorded_state(volume.annotation(annotation), step.target)
    resume = step.resume(recorded, cluster.monotonic())
    if resume.write:
        kept = ChangeIntent(v=INTENT_VERSION, target=step.target, state=dict(step.state), former=former)
        return record_change(volume, annotation, kept, why="keep the driver's state")
    return Wait(reason=doing, seconds=resume.seconds) if resume.seconds else None


def recorded_state(saved: str | None, target: str) -> dict[str, Any] | None:
    """Return the state that an earlier call for this target returned; None without one. saved: the annotation."""
    known = read_intent(ChangeIntent, saved)
    return known.state if known is not None and known.target == target else None


def conditions_with(
    claim: Claim, family: Collection[str], condition: str, now: datetime, *, message: str = ""
) -> list[dict[str, Any]]:
    """Return the claim's conditions, in which `condition` replaces all of its family.

    A condition that exists keeps its time of transition.
    """
    before = next((each for each in claim.status.conditions or () if each.get("type") == condition), {})
    when = before.get("lastTransitionTime") or now.astimezone(UTC).strftime(TIME_FORMAT)
    made = {"type": condition, "status": "True", "lastTransitionTime": when}
    return [*(conditions_without(claim, family) or ()), made | ({"message": message} if message else {})]


def since_when(claim: Claim, condition: str) -> datetime | None:
    """Return the time of the condition's transition; None without the condition or its time."""
    found = next((each for each in claim.status.conditions or () if each.get("type") == condition), {})
    when = found.get("lastTransitionTime")
    return datetime.fromisoformat(when) if when else None


def conditions_since(claim: Claim, condition: str, now: datetime) -> list[dict[str, Any]]:
    """Return the claim's conditions, with this transition dated now."""
    when = now.astimezone(UTC).strftime(TIME_FORMAT)
    return [
        each | ({"lastTransitionTime": when} if each.get("type") == condition else {})
        for each in claim.status.conditions or ()
    ]


def conditions_without(claim: Claim, family: Collection[str]) -> list[dict[str, Any]] | None:
    """Return the claim's conditions without a family. None instead of an empty list, for a merge patch."""
    return [each for each in claim.status.conditions or () if each.get("type") not in family] or None
