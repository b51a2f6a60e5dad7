"""Changing the attributes of a bound claim's asset to those of its VolumeAttributesClass. Pure decisions.

The claim's status names the class that is tried before the hook is called. After the hook, first the volume names the
new class, then the claim's status shows it as current. A class that the backend refuses may be taken back. A class that
may have been applied when the claim named another one is noted on the volume, until the asset has the attributes of one
class.
Source: external-resizer, `pkg/modifycontroller`; KEP-3751.
"""

from __future__ import annotations

from typing import Any, Final

from volplane.controller.actions import Action, EventRecord, LiveReads, Patch, Read, Settled, Wait, warning
from volplane.drivers.view import DriverView
from volplane.expand.change import (
    MODIFY_CONDITIONS,
    MODIFY_VOLUME_ERROR,
    MODIFYING_VOLUME,
    bound_volume,
    conditions_with,
    conditions_without,
    record_change,
    resume_change,
)
from volplane.intents.ownership import driver_of, run_on_asset
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUME_ATTRIBUTES_CLASSES, VOLUMES
from volplane.kube.objects import Claim, Volume, VolumeAttributesClass
from volplane.state.cluster_state import ClusterState
from volplane.state.progress import Changed, Changing, Refused
from volplane.state.records import INTENT_VERSION, ChangeIntent, read_intent

__all__ = ["MODIFY", "decide_modify", "modification_target", "wants_other_attributes"]

MODIFY: Final = "modify"
PENDING: Final = "Pending"
IN_PROGRESS: Final = "InProgress"
INFEASIBLE: Final = "Infeasible"
CLASS_MISSING_SECONDS: Final = 30.0
"""After that a missing class is looked up again. Classes are not watched, as few claims name one."""


def wants_other_attributes(claim: Claim) -> bool:
    """Return whether the claim is bound and its status does not show the class that it names, or shows another one."""
    if claim.status.phase != "Bound" or not claim.spec.volume_name or claim.terminating:
        return False
    return claim.status.modify_volume_status is not None or _wanted(claim) not in (
        "",
        claim.status.current_volume_attributes_class_name or "",
    )


def decide_modify(key: str, cluster: ClusterState, reads: LiveReads) -> Action:
    """Return the next action for the attributes of the claim `namespace/name`."""
    claim = cluster.claims.get(key)
    if claim is None or not wants_other_attributes(claim):
        return Settled()
    volume = bound_volume(claim, cluster)
    if volume is None:
        return Settled()
    lookup = driver_of(volume, cluster)
    if lookup.next is not None:
        return lookup.next
    driver = lookup.driver
    if driver is None:
        reason = f"its attributes cannot be changed: {lookup.reason}"
        return Wait(reason=reason) if lookup.reason else Settled()
    wanted = modification_target(claim, volume)
    if not wanted:
        return _cancel(claim, volume, cluster)
    if not reads.has(VOLUME_ATTRIBUTES_CLASSES, wanted):
        return Read(VOLUME_ATTRIBUTES_CLASSES, wanted, why="what does the class ask for?")
    attributes = reads.get(VOLUME_ATTRIBUTES_CLASSES, wanted)
    if not isinstance(attributes, VolumeAttributesClass):
        return _class_missing(wanted, claim, cluster)
    if why_not := _obstacle(attributes, driver):
        # It may be created again under its name.
        event = warning(CLAIMS, claim, "VolumeModifyFailed", why_not)
        return Wait(reason=why_not, seconds=CLASS_MISSING_SECONDS, events=(event,))
    return _towards(wanted, claim, volume, driver, cluster)


def _cancel(claim: Claim, volume: Volume, cluster: ClusterState) -> Action:
    """End a change to a class that is not wanted any more, and towards which nothing was changed.

    If there is a former class, `modification_target` is that one, and it is applied again.
    """
    if volume.annotation(names.MODIFICATION) is not None:
        # The recorded class is refused and not wanted: only the one before it may have been applied.
        known = read_intent(ChangeIntent, volume.annotation(names.MODIFICATION))
        if known is not None and known.former:
            return _record_applied(volume, known.former[-1], known.former[:-1])
        return record_change(volume, names.MODIFICATION, None, why="no change goes on")
    event = EventRecord(CLAIMS, claim, "Normal", "VolumeModifyCancelled", f"no change to {_target(claim)} any more")
    return _status_patch(claim, {"modifyVolumeStatus": None}, "", cluster, event, why="another class is not wanted")


def modification_target(claim: Claim, volume: Volume) -> str:
    """Return the class whose parameters the asset shall have, "" for none.

    A claim that named no class before, and names none any more, has nothing to return to: a change that was started is
    finished, unless the backend refuses it.
    """
    if _wanted(claim) or _status(claim) == IN_PROGRESS:
        return _wanted(claim) or _target(claim)
    known = read_intent(ChangeIntent, volume.annotation(names.MODIFICATION))
    return known.target if known is not None and (_target(claim), _status(claim)) != (known.target, INFEASIBLE) else ""


def _wanted(claim: Claim) -> str:
    return claim.spec.volume_attributes_class_name or ""


def _status(claim: Claim) -> str:
    shown = claim.status.modify_volume_status
    return shown.status if shown is not None else ""


def _target(claim: Claim) -> str:
    shown = claim.status.modify_volume_status
    return shown.target_volume_attributes_class_name if shown is not None else ""


def _obstacle(attributes: VolumeAttributesClass, driver: DriverView) -> str:
    """Return why this driver cannot apply the class at all, or ""."""
    if attributes.driver_name not in (driver.name, driver.info.csi_driver_name):
        return (
            f'VolumeAttributesClass "{attributes.name}" is of driver "{attributes.driver_name}", '
            f'the volume is of "{driver.info.csi_driver_name or driver.name}"'
        )
    if not driver.supports(MODIFY):
        return f'driver "{driver.name}" cannot change volumes'
    return ""


def _class_missing(wanted: str, claim: Claim, cluster: ClusterState) -> Action:
    if (_target(claim), _status(claim)) != (wanted, PENDING) and _status(claim) != IN_PROGRESS:
        shown = {"modifyVolumeStatus": {"targetVolumeAttributesClassName": wanted, "status": PENDING}}
        return _status_patch(claim, shown, "", cluster, why=f"class {wanted} does not exist")
    message = f'volumeattributesclass.storage.k8s.io "{wanted}" not found'
    event = warning(CLAIMS, claim, "VolumeModifyFailed", message)
    return Wait(reason=message, seconds=CLASS_MISSING_SECONDS, events=(event,))


def _towards(wanted: str, claim: Claim, volume: Volume, driver: DriverView, cluster: ClusterState) -> Action:
    """Return the next step towards a class whose parameters the driver shall apply."""
    step = cluster.progress.changes.get((volume.uid, MODIFY)).for_target(wanted)
    if isinstance(step, Changed):
        return _finish(wanted, claim, volume, cluster)
    if isinstance(step, Refused) and _status(claim) != INFEASIBLE:
        shown = {"modifyVolumeStatus": {"targetVolumeAttributesClassName": wanted, "status": INFEASIBLE}}
        why = "the backend refuses this class"
        return _status_patch(claim, shown, MODIFY_VOLUME_ERROR, cluster, why=why, message=step.message)
    if _target(claim) != wanted or _status(claim) not in (IN_PROGRESS, INFEASIBLE):
        if (note := _note(wanted, claim, volume)) is not None:
            return note
        shown = {"modifyVolumeStatus": {"targetVolumeAttributesClassName": wanted, "status": IN_PROGRESS}}
        event = EventRecord(CLAIMS, claim, "Normal", "VolumeModify", f"modifying volume {volume.name} to {wanted}")
        return _status_patch(claim, shown, MODIFYING_VOLUME, cluster, event, why=f"declare the change to {wanted}")
    if isinstance(step, Changing):
        doing = f'driver "{driver.name}" is changing the asset to class {wanted}'
        if (
            pause := resume_change(
                step, volume, names.MODIFICATION, cluster, doing=doing, former=_former(volume, wanted)
            )
        ) is not None:
            return pause
    return run_on_asset(MODIFY, volume, driver, about=claim, group=wanted)


def _note(wanted: str, claim: Claim, volume: Volume) -> Patch | None:
    """Record on the volume which class may have been applied, before the claim's status shows the wanted one."""
    former = _target(claim)
    if _status(claim) != IN_PROGRESS or former == wanted:
        return None
    known = read_intent(ChangeIntent, volume.annotation(names.MODIFICATION))
    if known is not None and known.target == former:
        return None
    return _record_applied(volume, former, _former(volume, former))


def _record_applied(volume: Volume, target: str, former: tuple[str, ...]) -> Patch:
    intent = ChangeIntent(v=INTENT_VERSION, target=target, state={}, former=former)
    return record_change(volume, names.MODIFICATION, intent, why=f"class {target} may have been applied")


def _former(volume: Volume, target: str) -> tuple[str, ...]:
    """Return the classes besides `target` that may have been applied, as recorded on the volume."""
    known = read_intent(ChangeIntent, volume.annotation(names.MODIFICATION))
    return () if known is None else tuple(each for each in (*known.former, known.target) if each != target)


def _finish(wanted: str, claim: Claim, volume: Volume, cluster: ClusterState) -> Patch:
    """Write that the asset has the new attributes: on the volume first, then in the claim's status."""
    body: dict[str, Any] = {}
    if volume.spec.csi is not None and (volume.spec.volume_attributes_class_name or "") != wanted:
        body["spec"] = {"volumeAttributesClassName": wanted}
    if volume.annotation(names.MODIFICATION) is not None:
        body["metadata"] = {"annotations": {names.MODIFICATION: None}}
    if body:
        return Patch(kind=VOLUMES, target=volume, body=body, why="the asset has other attributes")
    shown = {"currentVolumeAttributesClassName": wanted, "modifyVolumeStatus": None}
    message = f"modified volume {volume.name} to {wanted}"
    event = EventRecord(CLAIMS, claim, "Normal", "VolumeModifySuccessful", message)
    return _status_patch(claim, shown, "", cluster, event, why=f"the claim has the class {wanted}")


def _status_patch(
    claim: Claim,
    status: dict[str, Any],
    condition: str,
    cluster: ClusterState,
    *events: EventRecord,
    why: str,
    message: str = "",
) -> Patch:
    conditions = (
        conditions_with(claim, MODIFY_CONDITIONS, condition, cluster.now(), message=message)
        if condition
        else conditions_without(claim, MODIFY_CONDITIONS)
    )
    body = {"status": {**status, "conditions": conditions}}
    return Patch(kind=CLAIMS, target=claim, body=body, subresource="status", why=why, events=events)
