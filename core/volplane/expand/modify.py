"""Changing the attributes of a bound claim's asset to those of its VolumeAttributesClass.

The decisions are pure. `ExpandHandlers` queue what a change concerns, for sizes too.

The claim's status names the class that is tried before the hook is called. After the hook, first the volume names the
new class, then the claim's status shows it as current. A class that the backend refuses may be taken back. A class that
may have been applied when the claim named another one is noted on the volume, until the asset has the attributes of one
class.
Source: external-resizer, `pkg/modifycontroller`; KEP-3751.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from volplane.controller.actions import Action, EventRecord, LiveReads, Patch, Queue, Read, Settled, Wait, warning
from volplane.drivers.driver import DriverView
from volplane.expand import resize
from volplane.intents.ownership import driver_of, run_on_asset
from volplane.intents.record import write_record
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUME_ATTRIBUTES_CLASSES, VOLUMES
from volplane.kube.objects import Claim, KubeObject, ModifyVolumeStatus, Volume, VolumeAttributesClass
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import request_of
from volplane.state.progress import Changed, Changing, Refused
from volplane.state.records import INTENT_VERSION, ChangeIntent, read_intent

MODIFY: Final = "modify"
PENDING: Final = "Pending"
IN_PROGRESS: Final = "InProgress"
INFEASIBLE: Final = "Infeasible"
MODIFYING_VOLUME: Final = "ModifyingVolume"
MODIFY_VOLUME_ERROR: Final = "ModifyVolumeError"
MODIFY_CONDITIONS: Final = frozenset({MODIFYING_VOLUME, MODIFY_VOLUME_ERROR})
CLASS_MISSING_SECONDS: Final = 30.0
"""After that a missing class is looked up again. Classes are not watched, as few claims name one."""


def wants_other_attributes(claim: Claim) -> bool:
    """Return whether the claim is bound and its status does not show the class that it names, or shows another one."""
    if claim.status.phase != "Bound" or not claim.spec.volume_name or claim.terminating:
        return False
    current = claim.status.current_volume_attributes_class_name or ""
    wanted = claim.spec.volume_attributes_class_name or ""
    return claim.status.modify_volume_status is not None or wanted not in ("", current)


def decide_modify(key: str, cluster: ClusterState, reads: LiveReads) -> Action:
    claim = cluster.claims.get(key)
    if claim is None or not wants_other_attributes(claim):
        return Settled()  # It has the attributes that it asks for.
    # Only a volume that refers to the claim is the claim's: another one's asset is not to change.
    volume = cluster.volume_of(claim)
    if volume is None or volume.terminating:
        return Settled()
    lookup = driver_of(volume, cluster)
    driver = lookup.driver
    if lookup.next is not None:
        return lookup.next
    if driver is None:
        reason = f"its attributes cannot be changed: {lookup.reason}"
        return Wait(reason=reason) if lookup.reason else Settled()
    wanted, tried = modification_target(claim, volume), _tried(claim)
    if not wanted:
        return _cancel(claim, volume, cluster)  # The claim names no class, and nothing is to be undone.
    if not reads.has(VOLUME_ATTRIBUTES_CLASSES, wanted):
        return Read(VOLUME_ATTRIBUTES_CLASSES, wanted, why="what does the class ask for?")
    attributes = reads.get(VOLUME_ATTRIBUTES_CLASSES, wanted)
    shown = (tried.target_volume_attributes_class_name, tried.status)
    # A change that is in progress stays shown: the class may have been applied.
    if attributes is None and tried.status != IN_PROGRESS and shown != (wanted, PENDING):
        status = {"modifyVolumeStatus": {"targetVolumeAttributesClassName": wanted, "status": PENDING}}
        return _status_patch(claim, status, "", cluster, why=f"class {wanted} does not exist")
    if why_not := _obstacle(wanted, attributes, driver):
        # It may be created, or created again under its name.
        event = warning(CLAIMS, claim, "VolumeModifyFailed", why_not)
        return Wait(reason=why_not, seconds=CLASS_MISSING_SECONDS, events=(event,))
    return _towards(wanted, claim, volume, driver, cluster)


def modification_target(claim: Claim, volume: Volume) -> str:
    """Return the class whose parameters the asset shall have, "" for none.

    A claim that named no class before, and names none any more, has nothing to return to: a change that was started is
    finished, unless the backend refuses it.
    """
    wanted, tried = claim.spec.volume_attributes_class_name or "", _tried(claim)
    # A change that goes on may have been applied in part: it is finished unless another class is named.
    if wanted or tried.status == IN_PROGRESS:
        return wanted or tried.target_volume_attributes_class_name
    known = read_intent(ChangeIntent, volume.annotation(names.MODIFICATION))
    shown = (tried.target_volume_attributes_class_name, tried.status)
    return known.target if known is not None and shown != (known.target, INFEASIBLE) else ""


def stages(claim: Claim, *, expands: bool) -> Iterator[str]:
    """Yield sentences about what is asked for and not there yet. expands: this process works on it."""
    grows, changes = resize.growth(claim), wants_other_attributes(claim)
    if grows:
        yield grows
    if changes:
        failure = resize.message_of(claim, MODIFY_VOLUME_ERROR)
        stage = {
            PENDING: "that class does not exist yet",
            IN_PROGRESS: f"they are being changed{failure}",
            INFEASIBLE: f"the backend refuses them{failure}; name another class",
        }.get(_tried(claim).status, "nothing has been done towards it yet")
        wanted = claim.spec.volume_attributes_class_name or "none"
        yield f"it asks for the attributes of VolumeAttributesClass {wanted}: {stage}"
    if not expands and (grows or changes):
        yield "changing its volume is another controller's work: this process does not run the expander"


def _obstacle(wanted: str, found: KubeObject | None, driver: DriverView) -> str:
    """Return why this driver cannot apply the class of this name at all, or ""."""
    if not isinstance(found, VolumeAttributesClass):
        return f'volumeattributesclass.storage.k8s.io "{wanted}" not found'
    if found.driver_name not in (driver.name, driver.info.csi_driver_name):
        return (
            f'VolumeAttributesClass "{found.name}" is of driver "{found.driver_name}", '
            f'the volume is of "{driver.info.csi_driver_name or driver.name}"'
        )
    return "" if driver.supports(MODIFY) else f'driver "{driver.name}" cannot change volumes'


def _cancel(claim: Claim, volume: Volume, cluster: ClusterState) -> Action:
    """End a change to a class that is not wanted any more, and towards which nothing was changed."""
    if volume.annotation(names.MODIFICATION) is not None:
        # The recorded class is refused and not wanted: only the one before it may have been applied.
        known = read_intent(ChangeIntent, volume.annotation(names.MODIFICATION))
        if known is not None and known.former:
            return _record_applied(volume, known.former[-1], known.former[:-1])
        return write_record(VOLUMES, volume, None, annotation=names.MODIFICATION, why="no change goes on")
    target = _tried(claim).target_volume_attributes_class_name
    event = EventRecord(CLAIMS, claim, "Normal", "VolumeModifyCancelled", f"no change to {target} any more")
    return _status_patch(claim, {"modifyVolumeStatus": None}, "", cluster, event, why="another class is not wanted")


def _towards(wanted: str, claim: Claim, volume: Volume, driver: DriverView, cluster: ClusterState) -> Action:
    step = cluster.progress.changes.get((volume.uid, MODIFY)).for_target(wanted)
    tried = _tried(claim)
    target = tried.target_volume_attributes_class_name
    if isinstance(step, Changed):  # Only what the hook has done is shown as done.
        return _finish(wanted, claim, volume, cluster)
    if isinstance(step, Refused) and tried.status != INFEASIBLE:
        shown = {"modifyVolumeStatus": {"targetVolumeAttributesClassName": wanted, "status": INFEASIBLE}}
        why = "the backend refuses this class"
        return _status_patch(claim, shown, MODIFY_VOLUME_ERROR, cluster, why=why, message=step.message)
    if target != wanted or tried.status not in (IN_PROGRESS, INFEASIBLE):
        known = read_intent(ChangeIntent, volume.annotation(names.MODIFICATION))
        if tried.status == IN_PROGRESS and target != wanted and (known is None or known.target != target):
            # The volume records which class may have been applied before the claim's status shows the wanted one.
            return _record_applied(volume, target, _former(volume, target))
        shown = {"modifyVolumeStatus": {"targetVolumeAttributesClassName": wanted, "status": IN_PROGRESS}}
        event = EventRecord(CLAIMS, claim, "Normal", "VolumeModify", f"modifying volume {volume.name} to {wanted}")
        return _status_patch(claim, shown, MODIFYING_VOLUME, cluster, event, why=f"declare the change to {wanted}")
    if isinstance(step, Changing):
        doing, former = f'driver "{driver.name}" is changing the asset to class {wanted}', _former(volume, wanted)
        pause = resize.resume_change(step, volume, names.MODIFICATION, cluster, doing=doing, former=former)
        if pause is not None:
            return pause
    return run_on_asset(MODIFY, volume, driver, about=claim, group=wanted)


def _record_applied(volume: Volume, target: str, former: tuple[str, ...]) -> Patch:
    intent = ChangeIntent(v=INTENT_VERSION, target=target, state={}, former=former)
    why = f"class {target} may have been applied"
    return write_record(VOLUMES, volume, intent, annotation=names.MODIFICATION, why=why)


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


def _tried(claim: Claim) -> ModifyVolumeStatus:
    """Return the class that the claim's status says is being tried; "" without one."""
    return claim.status.modify_volume_status or ModifyVolumeStatus()


def _status_patch(
    claim: Claim,
    status: dict[str, Any],
    condition: str,
    cluster: ClusterState,
    *events: EventRecord,
    why: str,
    message: str = "",
) -> Patch:
    conditions = resize.conditions_with(claim, MODIFY_CONDITIONS, condition, cluster.now(), message=message)
    body = {"status": {**status, "conditions": conditions}}
    return Patch(kind=CLAIMS, target=claim, body=body, subresource="status", why=why, events=events)


@dataclass(frozen=True, slots=True)
class ExpandHandlers:
    cluster: ClusterState
    resizer: Queue
    modifier: Queue
    forget: Callable[[str, str, str], None]
    """Drops the back-off of an operation, named by verb, key and uid."""

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        if new is None:
            return
        volume = self.cluster.volumes.get(new.spec.volume_name)
        if resize.wants_more(new):
            if old is not None and request_of(old) != request_of(new):
                self.forget(resize.EXPAND, new.key, new.uid)
            self.resizer.enqueue(new.key)
        elif volume is not None:
            if old is not None and resize.wants_more(old):
                self.cluster.progress.changes.forget((volume.uid, resize.EXPAND))
            if resize.notes_size_before(volume):
                self.resizer.enqueue(new.key)
        if wants_other_attributes(new):
            if old is not None and old.spec.volume_attributes_class_name != new.spec.volume_attributes_class_name:
                self.forget(MODIFY, new.key, new.uid)
            self.modifier.enqueue(new.key)
        elif volume is not None and old is not None and wants_other_attributes(old):
            self.cluster.progress.changes.forget((volume.uid, MODIFY))

    def volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        if new is None and old is not None:
            self.cluster.progress.changes.forget((old.uid, resize.EXPAND))
            self.cluster.progress.changes.forget((old.uid, MODIFY))
        if new is None or (claim := self.cluster.claim_of(new)) is None:
            return  # No claim is bound to it.
        if resize.wants_more(claim) or resize.notes_size_before(new):
            self.resizer.enqueue(claim.key)
        if wants_other_attributes(claim):
            self.modifier.enqueue(claim.key)
