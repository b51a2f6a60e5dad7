"""The next step for an attachment of one of our drivers. Pure; the hook calls are in `operation`.

The finalizer and the record of what is attached where are written before `attach` is called for the first time; where
attach-detach runs in this process, it creates the attachment with them. They are removed when `detach` is done. So an
attachment that is being deleted still says what to detach, even if volume and node are gone.
Source: pkg/controller/csi_handler.go of kubernetes-csi/external-attacher.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from volplane.attach.identity import attacher_finalizer
from volplane.attach.leftover import put_back
from volplane.attach.record import declaration, intent_of, record_of, recorded_state, true_record
from volplane.controller.actions import Action, Delete, LiveReads, Patch, Run, Settled, Wait
from volplane.drivers.status import DriverState
from volplane.drivers.view import DriverView
from volplane.intents.owner import driver_of, identify
from volplane.kube import names
from volplane.kube.kinds import ATTACHMENTS
from volplane.kube.objects import Node, Volume, VolumeAttachment
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import volume_source
from volplane.state.progress import Attached, Attaching, AttachmentFailure, Detached, Detaching
from volplane.state.records import AttachmentIntent, write_intent

__all__ = ["decide_attachment", "declared", "rfc3339"]

_MOST_BYTES = 1024
"""Of an error message in the status; the API server refuses a longer one."""
_STARTING = f"is {DriverState.STARTING}"
"""The end of the reason for which a driver that has not started cannot be used; that is not shown to anybody."""
FINALIZER_BY_HAND = "remove the finalizer {} to accept that the backend may still have it attached"


def decide_attachment(key: str, cluster: ClusterState, reads: LiveReads) -> Action:
    """The single next action for the VolumeAttachment of this name."""
    attachment = cluster.attachments.get(key)
    if attachment is None:
        return put_back(key, cluster, reads)
    candidates = cluster.drivers.attachers(attachment.spec.attacher)
    if not candidates:
        made = cluster.volumes.get(attachment.spec.source.persistent_volume_name or "")
        unusable = _unusable_maker(made, candidates, cluster) if made is not None else ""
        return Wait(reason=unusable) if unusable else Settled()
    if attachment.terminating:
        return _leave(attachment, candidates, cluster)
    if attachment.annotation(names.LEFTOVER) is not None:
        return Delete(kind=ATTACHMENTS, target=attachment, why="it was put back to be detached", exact=False)
    if attachment.status.attached and not _doubtful(attachment, cluster):
        return _hold(attachment, candidates, cluster)
    return _enter(attachment, candidates, cluster)


def _hold(attachment: VolumeAttachment, candidates: tuple[str, ...], cluster: ClusterState) -> Action:
    """It is attached. Finalizer and record are put right if a person edited them, or nobody could detach it later."""
    volume = cluster.volumes.get(attachment.spec.source.persistent_volume_name or "")
    node = cluster.nodes.get(attachment.spec.node_name)
    record = record_of(attachment)
    made_for = record.node_uid if record is not None else attachment.annotation(names.NODE_UID)
    if volume is None or node is None or (made_for and made_for != node.uid):
        return Settled()  # Nothing says any more what is attached, or to which machine.
    driver = _driver_for(volume, candidates, cluster)
    if isinstance(driver, Run | Wait):
        return driver
    if not isinstance(driver, DriverView) or not driver.info.attach_required:
        return Settled()
    return _declare(attachment, volume, driver, node, cluster) or Settled()


def _doubtful(attachment: VolumeAttachment, cluster: ClusterState) -> bool:
    """Whether what the status says may not hold any more: the backend shows otherwise, or the machine is another."""
    progress = cluster.progress.attachments.get(attachment.uid)
    if progress.lost or _moved(attachment, cluster):
        return True
    step = progress.step
    return isinstance(step, Attached) and dict(step.metadata) != (attachment.status.attachment_metadata or {})


def _moved(attachment: VolumeAttachment, cluster: ClusterState) -> str:
    """What is wrong if the node's name is that of another machine now; else "".

    The id of a Node object never changes once it has one: if it is the one of the record, the annotation was written
    before that, or is edited.
    """
    node, was = cluster.nodes.get(attachment.spec.node_name), attachment.annotation(names.NODE_ID)
    record = record_of(attachment)
    if node is None or was is None or node.spec.provider_id in ("", was) or record is None:
        return ""
    if record.node_uid == node.uid:
        return ""
    return (
        f'node "{node.name}" was {was or "a machine without an id"} and is {node.spec.provider_id} now: this '
        "attachment is about the former one, and must be deleted before the volume can be attached to the new one"
    )


# --- attaching ----------------------------------------------------------------------------------------------------


def _enter(attachment: VolumeAttachment, candidates: tuple[str, ...], cluster: ClusterState) -> Action:
    name = attachment.spec.source.persistent_volume_name
    if not name:
        return _cannot(attachment, "attach", "it names no PersistentVolume; others are not served", cluster)
    volume = cluster.volumes.get(name)
    if volume is None:
        return _cannot(attachment, "attach", f'PersistentVolume "{name}" does not exist', cluster)
    driver = _driver_for(volume, candidates, cluster)
    if isinstance(driver, Run | Wait):
        return driver
    if not isinstance(driver, DriverView):
        # What was attached may well still be, and a driver that starts will say.
        quiet = attachment.status.attached or driver.endswith(_STARTING)
        return Wait(reason=driver) if quiet else _cannot(attachment, "attach", driver, cluster)
    if not driver.info.attach_required:
        body = {"status": {"attached": True}}
        why = f"volumes of {driver.name} need no attaching"
        return Patch(kind=ATTACHMENTS, target=attachment, body=body, subresource="status", why=why)
    node = cluster.nodes.get(attachment.spec.node_name)
    if node is None:
        return _cannot(attachment, "attach", f'node "{attachment.spec.node_name}" does not exist', cluster)
    if volume.terminating and not attachment.status.attached:
        return _cannot(attachment, "attach", f'PersistentVolume "{name}" is being deleted', cluster)
    return _declare(attachment, volume, driver, node, cluster) or _attach(attachment, cluster)


def _driver_for(volume: Volume, candidates: tuple[str, ...], cluster: ClusterState) -> DriverView | str | Run | Wait:
    """Who attaches the volume: the only one that serves the name, else the one whose volume it is; or why nobody, or
    how to find that out.
    """
    if unusable := _unusable_maker(volume, candidates, cluster):
        return unusable
    name = candidates[0] if len(candidates) == 1 else ""
    if not name:
        owner = driver_of(volume, cluster)
        if not owner.known:
            return identify(volume, owner)
        if owner.driver is None or owner.driver.name not in candidates:
            reason = owner.reason or cluster.drivers.owner_of(volume_source(volume)).reason
            who = f'none of the drivers {", ".join(candidates)} owns volume "{volume.name}"'
            return f"{who}: {reason}" if reason else who
        name = owner.driver.name
    return cluster.drivers.get(name) or cluster.drivers.broken(name) or f"driver {name} is not usable"


def _unusable_maker(volume: Volume, candidates: tuple[str, ...], cluster: ClusterState) -> str:
    """Why the driver that made the volume cannot work, if nobody knows yet which attachments it serves; else ""."""
    maker = volume.annotation(names.PROVISIONED_BY) or ""
    return "" if maker in candidates else cluster.drivers.broken(maker)


def _declare(
    attachment: VolumeAttachment, volume: Volume, driver: DriverView, node: Node, cluster: ClusterState
) -> Action | None:
    """Write finalizer, record and the node's identity before anything is attached; None if they are there."""
    if moved := _moved(attachment, cluster):
        return _cannot(attachment, "attach", moved, cluster)
    finalizer = attacher_finalizer(attachment.spec.attacher)
    held, known = attachment.has_finalizer(finalizer), attachment.annotation(names.NODE_ID)
    annotations = declaration(volume, driver, node, cluster.cluster_id)
    if true_record(attachment, volume) is not None:
        del annotations[names.INTENT]  # It may hold the state of a long call.
        if known is not None and node.spec.provider_id in ("", known):
            annotations = {}
    if held and not annotations:
        return None
    metadata: dict[str, Any] = {"annotations": annotations} if annotations else {}
    if not held:
        metadata["finalizers"] = [*(attachment.metadata.finalizers or ()), finalizer]
    return Patch(kind=ATTACHMENTS, target=attachment, body={"metadata": metadata}, why="declare what is attached where")


def declared(volume: Volume, node: Node, attacher: str, cluster: ClusterState) -> dict[str, Any]:
    """Finalizers and annotations that the attacher of this process would write on a new attachment; {} if it would
    not attach the volume now. Who makes the attachment with them saves a write.
    """
    candidates = cluster.drivers.attachers(attacher)
    driver = _driver_for(volume, candidates, cluster) if candidates else ""
    if not isinstance(driver, DriverView) or not driver.info.attach_required or volume.terminating:
        return {}
    return {
        "finalizers": [attacher_finalizer(attacher)],
        "annotations": declaration(volume, driver, node, cluster.cluster_id),
    }


def _attach(attachment: VolumeAttachment, cluster: ClusterState) -> Action:
    progress = cluster.progress.attachments.get(attachment.uid)
    record = record_of(attachment)
    assert record is not None  # noqa: S101 -- _declare wrote it
    if (shown := _unreported(attachment, "attach", cluster)) is not None:
        return shown
    match progress.step:
        case Attached(metadata=metadata):
            return _attached(attachment, dict(metadata))
        case Attaching() as pending:
            if (step := _go_on(attachment, record, pending, cluster)) is not None:
                return step
    return _run("attach", attachment, record)


def _attached(attachment: VolumeAttachment, metadata: dict[str, str]) -> Patch:
    status: dict[str, Any] = {"attached": True, "attachError": None}
    former = attachment.status.attachment_metadata or {}
    status["attachmentMetadata"] = {**{key: None for key in former if key not in metadata}, **metadata} or None
    why = f"{attachment.spec.attacher} attached it"
    return Patch(kind=ATTACHMENTS, target=attachment, body={"status": status}, subresource="status", why=why)


# --- detaching ----------------------------------------------------------------------------------------------------


def _leave(attachment: VolumeAttachment, candidates: tuple[str, ...], cluster: ClusterState) -> Action:
    finalizer = attacher_finalizer(attachment.spec.attacher)
    if not attachment.has_finalizer(finalizer):
        return Settled()
    found = _recorded(attachment, candidates, cluster)
    if not isinstance(found, tuple):
        return _detach_later(attachment, found, cluster)
    record, driver = found
    if record_of(attachment) != record:
        annotations = {names.INTENT: write_intent(record)}
        why = "record what is detached"
        return Patch(kind=ATTACHMENTS, target=attachment, body={"metadata": {"annotations": annotations}}, why=why)
    if (shown := _unreported(attachment, "detach", cluster)) is not None:
        return shown
    if not driver.info.attach_required:
        return _detached(attachment, finalizer)
    match cluster.progress.attachments.get(attachment.uid).step:
        case Detached():
            return _detached(attachment, finalizer)
        case Detaching() as pending:
            if (step := _go_on(attachment, record, pending, cluster)) is not None:
                return step
    return _run("detach", attachment, record)


def _detach_later(attachment: VolumeAttachment, why: str | Run | Wait, cluster: ClusterState) -> Action:
    """What is to be detached, or by whom, is not known now. why: that in words, or how to find it out."""
    if not isinstance(why, str):
        return why
    if why.endswith(_STARTING):
        return Wait(reason=why)
    by_hand = FINALIZER_BY_HAND.format(attacher_finalizer(attachment.spec.attacher))
    return _cannot(attachment, "detach", f"{why}; {by_hand}", cluster)


def _recorded(
    attachment: VolumeAttachment, candidates: tuple[str, ...], cluster: ClusterState
) -> tuple[AttachmentIntent, DriverView] | str | Run | Wait:
    """What to detach and by whom; or why that is not known. One without a record was begun by another attacher."""
    name = attachment.spec.source.persistent_volume_name or ""
    volume = cluster.volumes.get(name)
    record = true_record(attachment, volume)
    if record is not None:
        driver = cluster.drivers.get(record.driver)
        if driver is None:
            broken = cluster.drivers.broken(record.driver)
            return broken or f'driver "{record.driver}" is not configured here'
        return record, driver
    if volume is None:
        return f'PersistentVolume "{name}" is gone, and nothing else says what was attached'
    found = _driver_for(volume, candidates, cluster)
    if not isinstance(found, DriverView):
        return found
    node = cluster.nodes.get(attachment.spec.node_name)
    return intent_of(volume, found, node.uid if node is not None else "", cluster.cluster_id), found


def _detached(attachment: VolumeAttachment, finalizer: str) -> Patch:
    """The finalizer goes; the status first where others still hold the object."""
    rest = [held for held in attachment.metadata.finalizers or () if held != finalizer]
    if rest and (attachment.status.attached or attachment.status.detach_error is not None):
        status = {"attached": False, "attachmentMetadata": None, "detachError": None}
        why = f"{attachment.spec.attacher} detached it"
        return Patch(kind=ATTACHMENTS, target=attachment, body={"status": status}, subresource="status", why=why)
    body = {"metadata": {"finalizers": rest or None}}
    return Patch(kind=ATTACHMENTS, target=attachment, body=body, why="nothing of it is attached any more")


# --- both ---------------------------------------------------------------------------------------------------------


def _run(verb: str, attachment: VolumeAttachment, record: AttachmentIntent) -> Run:
    """Operations on one asset exclude each other; on different nodes only where it cannot be on several."""
    return Run(
        verb=verb,
        key=attachment.name,
        uid=attachment.uid,
        driver=record.driver,
        asset=record.asset,
        node=attachment.spec.node_name if record.shared else "",
        group=f"{verb} {attachment.spec.node_name}",
    )


def _go_on(
    attachment: VolumeAttachment, record: AttachmentIntent, pending: Attaching | Detaching, cluster: ClusterState
) -> Action | None:
    """A long call: keep the state that the driver returned, then wait until the hook is to be called again."""
    hook = "attach" if isinstance(pending, Attaching) else "detach"
    recorded = recorded_state(record, hook)
    resume = pending.resume(recorded, cluster.monotonic())
    if resume.write:
        kept = replace(record, hook=hook, state=dict(pending.state))
        annotations = {names.INTENT: write_intent(kept)}
        why = "keep the driver's state"
        return Patch(kind=ATTACHMENTS, target=attachment, body={"metadata": {"annotations": annotations}}, why=why)
    if not resume.seconds:
        return None
    return Wait(reason=f'driver "{record.driver}" is {hook}ing it', seconds=resume.seconds)


def _unreported(attachment: VolumeAttachment, hook: str, cluster: ClusterState) -> Patch | None:
    """Show the failure of the last call; None if there is none, or the status shows it already."""
    failure = cluster.progress.attachments.get(attachment.uid).unreported
    if failure is None or failure.hook != hook:
        return None
    shown = attachment.status.attach_error if hook == "attach" else attachment.status.detach_error
    if shown is not None and (shown.message, shown.time) == (_text(failure), rfc3339(cluster)):
        return None
    return _report(attachment, failure, cluster)


def _cannot(attachment: VolumeAttachment, hook: str, why: str, cluster: ClusterState) -> Action:
    """Show why nothing can be done now, once; what it waits for queues the attachment when it changes."""
    error = attachment.status.attach_error if hook == "attach" else attachment.status.detach_error
    failure = AttachmentFailure(hook, why)
    if error is not None and error.message == _text(failure) and not (hook == "attach" and attachment.status.attached):
        return Wait(reason=why)
    return _report(attachment, failure, cluster)


def _report(attachment: VolumeAttachment, failure: AttachmentFailure, cluster: ClusterState) -> Patch:
    error = {"time": rfc3339(cluster), "message": _text(failure), "errorCode": failure.code}
    status: dict[str, Any] = {"attachError" if failure.hook == "attach" else "detachError": error}
    if failure.hook == "attach" and attachment.status.attached:
        status["attached"] = False
    why = f"{failure.hook} failed: {failure.message}"
    return Patch(kind=ATTACHMENTS, target=attachment, body={"status": status}, subresource="status", why=why)


def _text(failure: AttachmentFailure) -> str:
    return failure.message.encode()[:_MOST_BYTES].decode("utf-8", "ignore")


def rfc3339(cluster: ClusterState) -> str:
    """The time now, as the API writes times."""
    return cluster.now().strftime("%Y-%m-%dT%H:%M:%SZ")
