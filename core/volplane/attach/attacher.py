"""The next step for an attachment of one of our drivers. Pure; the hook calls are in `operation`.

The finalizer and the record of what is attached where are written before `attach` is called for the first time; if
attach-detach runs in this process, it creates the attachment with them. They are removed when `detach` is done. So an
attachment that is being deleted still says what to detach, even if volume and node are gone.

The CSIDriver object says whether volumes need attaching. It is written only for a driver whose CSI driver name is its
own name; that of another name belongs to the node plugin. Without it kube-controller-manager makes attachments,
kubelets wait for them, and the scheduler ignores every CSIStorageCapacity.
Source: pkg/controller/csi_handler.go and pkg/controller/util.go of kubernetes-csi/external-attacher.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from msgspec.structs import replace

from volplane.assets import AccessMode, Ownership, VolumeMode, VolumeSource
from volplane.attach import desired
from volplane.controller.actions import Action, Create, Delete, LiveReads, Patch, Read, Run, Settled, Wait, warning
from volplane.drivers.driver import DriverView
from volplane.intents.ownership import DriverLookup, driver_named, driver_of
from volplane.intents.record import write_record
from volplane.intents.requests import node_id, volume_identity
from volplane.kube import names
from volplane.kube.kinds import ATTACHMENTS, CSI_DRIVERS, NODES
from volplane.kube.objects import Node, Volume, VolumeAttachment, timestamp
from volplane.requests import NodeIdentity, VolumeIdentity
from volplane.state.cluster_state import ClusterState, csi_parts, unique_name
from volplane.state.naming import asset_key, attacher_finalizer, handle_of, volume_source
from volplane.state.progress import Attached, Attaching, AttachmentFailure, Detached, Detaching
from volplane.state.records import INTENT_VERSION, AttachmentIntent, attachment_intent_of, write_intent

VALID: Final = 60.0
"""Seconds for which a listing of the backend counts: a process that was stopped meanwhile lists again."""
_MOST_BYTES = 1024
"""Of an error message in the status; the API server refuses a longer one."""


def decide_attachment(key: str, cluster: ClusterState, reads: LiveReads) -> Action:
    attachment = cluster.attachments.get(key)
    if attachment is None:
        return _recreate_for_detach(key, cluster, reads)
    candidates = cluster.drivers.attachers(attachment.spec.attacher)
    if not candidates:
        made = cluster.volumes.get(attachment.spec.source.persistent_volume_name or "")
        maker = _unusable_maker(made, candidates, cluster) if made is not None else DriverLookup()
        return maker.next or (Wait(reason=maker.reason) if maker.reason else Settled())
    if attachment.terminating:
        return _detach_step(attachment, candidates, cluster)
    if attachment.annotation(names.LEFTOVER) is not None:
        return Delete(kind=ATTACHMENTS, target=attachment, why="it was created again to be detached", exact=False)
    progress = cluster.progress.attachments.get(attachment.uid)
    step, shown = progress.step, attachment.status.attachment_metadata or {}
    # The status may be wrong: the backend shows otherwise, or the machine is another.
    doubtful = progress.lost or _moved(attachment, cluster) or (isinstance(step, Attached) and step.metadata != shown)
    if not attachment.status.attached or doubtful:
        return _attach_step(attachment, candidates, cluster)
    # A person may have edited finalizer and record of what is attached: without them nothing detaches it.
    volume = cluster.volumes.get(attachment.spec.source.persistent_volume_name or "")
    node = cluster.nodes.get(attachment.spec.node_name)
    if volume is None or node is None:
        return Settled()  # Nothing says any more what is attached, or to which machine.
    record = attachment_intent_of(attachment)
    if record is not None and record.node_uid not in ("", node.uid):
        # A new machine reports what it is about to use, too. But the backend knows it by the id of the former one: to
        # call `attach` again changes nothing if it is the same.
        proven = desired.same_machine(attachment, node) or (isinstance(step, Attached) and step.node_uid == node.uid)
        uses = unique_name(volume) in desired.volumes_in_use(node)
        return _go_on("attach", attachment, record, cluster, again=True) if uses and not proven else Settled()
    if record is None and desired.registered_again(attachment, node):
        return Settled()  # A new record could be about the wrong machine.
    lookup = _driver_for(volume, candidates, cluster)
    if lookup.driver is None or not lookup.driver.info.attach_required:
        return lookup.next or Settled()  # Without a driver it is unknown what the record would say.
    return _declare(attachment, volume, lookup.driver, node, cluster) or Settled()


def _moved(attachment: VolumeAttachment, cluster: ClusterState) -> str:
    """Return what is wrong if the node's name is that of another machine now; else "".

    The id of a Node object never changes once it has one: if it is the one of the record, the annotation was written
    before that, or is edited.
    """
    node, was = cluster.nodes.get(attachment.spec.node_name), attachment.annotation(names.NODE_ID)
    record = attachment_intent_of(attachment)
    if node is None or record is None or record.node_uid == node.uid:
        return ""  # It is the same machine, or nothing says which one it was.
    if was is None or (now := node_id(node, attachment.spec.attacher, csi=record.csi_node)) in ("", was):
        return ""
    remedy = "is about the former one, and must be deleted before the volume can be attached to the new one"
    change = f"was {was or 'a machine without an id'} and is {now} now"
    return f'node "{node.name}" {change}: this attachment {remedy}'


# --- attaching ----------------------------------------------------------------------------------------------------


def _attach_step(attachment: VolumeAttachment, candidates: tuple[str, ...], cluster: ClusterState) -> Action:
    name = attachment.spec.source.persistent_volume_name
    if not name:
        return _cannot(attachment, "attach", "it names no PersistentVolume; others are not served", cluster)
    volume = cluster.volumes.get(name)
    if volume is None:
        return _cannot(attachment, "attach", f'PersistentVolume "{name}" does not exist', cluster)
    if cluster.of_former_volume(attachment):
        return _cannot(attachment, "attach", f'PersistentVolume "{name}" was made again for another asset', cluster)
    lookup = _driver_for(volume, candidates, cluster)
    driver = lookup.driver
    if driver is None:
        # What was attached may well still be.
        kept = Wait(reason=lookup.reason) if attachment.status.attached else None
        return lookup.next or kept or _cannot(attachment, "attach", lookup.reason, cluster)
    if not driver.info.attach_required:
        body = {"status": {"attached": True}}
        why = f"volumes of {driver.name} need no attaching"
        return Patch(kind=ATTACHMENTS, target=attachment, body=body, subresource="status", why=why)
    node = cluster.nodes.get(attachment.spec.node_name)
    if node is None:
        return _cannot(attachment, "attach", f'node "{attachment.spec.node_name}" does not exist', cluster)
    # What is being deleted must not be attached any more: its asset may go at any moment.
    if volume.terminating and not attachment.status.attached:
        return _cannot(attachment, "attach", f'PersistentVolume "{name}" is being deleted', cluster)
    # What is attached must be on record before the backend attaches it: else nothing could detach it.
    if (declare := _declare(attachment, volume, driver, node, cluster)) is not None:
        return declare
    record = attachment_intent_of(attachment)
    assert record is not None  # noqa: S101 -- _declare wrote it
    return _go_on("attach", attachment, record, cluster)


def _driver_for(volume: Volume, candidates: tuple[str, ...], cluster: ClusterState) -> DriverLookup:
    """Return the driver that attaches the volume: the only one of its CSI driver name, else the one that owns it."""
    maker = _unusable_maker(volume, candidates, cluster)
    if maker.next is not None or maker.reason:
        return maker
    name = candidates[0]
    if len(candidates) > 1:
        owner = driver_of(volume, cluster)
        if owner.next is not None:
            return owner  # It is not known yet.
        if owner.driver is None or owner.driver.name not in candidates:
            reason = owner.reason or cluster.drivers.owner_of(volume_source(volume)).reason
            who = f'none of the drivers {", ".join(candidates)} owns volume "{volume.name}"'
            return DriverLookup(reason=f"{who}: {reason}" if reason else who)
        name = owner.driver.name
    found = driver_named(name, cluster)
    return DriverLookup(reason=f"driver {name} is not usable") if found == DriverLookup() else found


def _unusable_maker(volume: Volume, candidates: tuple[str, ...], cluster: ClusterState) -> DriverLookup:
    """Return why the driver that made the volume cannot work, if it is unknown which attachments that serves."""
    maker = volume.annotation(names.PROVISIONED_BY) or ""
    return DriverLookup() if maker in candidates else driver_named(maker, cluster)._replace(driver=None)


def _declare(
    attachment: VolumeAttachment, volume: Volume, driver: DriverView, node: Node, cluster: ClusterState
) -> Action | None:
    """Write finalizer, record and the node's identity before anything is attached; None if they are there."""
    # A record about the new machine would lose which one has the volume.
    if moved := _moved(attachment, cluster):
        return _cannot(attachment, "attach", moved, cluster)
    finalizer = attacher_finalizer(attachment.spec.attacher)
    held, known = attachment.has_finalizer(finalizer), attachment.annotation(names.NODE_ID)
    annotations = declaration(volume, driver, node, cluster.cluster_id)
    if (record := true_record(attachment, volume)) is not None:
        annotations[names.INTENT] = write_intent(record)  # It may hold the state of a long call.
    if record is not None and record == attachment_intent_of(attachment):
        del annotations[names.INTENT]
        if known is not None and annotations[names.NODE_ID] in ("", known):
            annotations = {}
    if held and not annotations:
        return None  # All is there.
    metadata: dict[str, Any] = {"annotations": annotations} if annotations else {}
    if not held:
        metadata["finalizers"] = attachment.finalizers_with(finalizer)
    return Patch(kind=ATTACHMENTS, target=attachment, body={"metadata": metadata}, why="declare what is attached where")


def declared(volume: Volume, node: Node, attacher: str, cluster: ClusterState) -> dict[str, Any]:
    """Return what the attacher of this process would write on a new attachment, which saves a write; {} for nothing."""
    candidates = cluster.drivers.attachers(attacher)
    driver = _driver_for(volume, candidates, cluster).driver if candidates else None
    if driver is None or not driver.info.attach_required or volume.terminating:
        return {}
    annotations = declaration(volume, driver, node, cluster.cluster_id)
    return {"finalizers": [attacher_finalizer(attacher)], "annotations": annotations}


# --- detaching ----------------------------------------------------------------------------------------------------


def _detach_step(attachment: VolumeAttachment, candidates: tuple[str, ...], cluster: ClusterState) -> Action:
    finalizer = attacher_finalizer(attachment.spec.attacher)
    if not attachment.has_finalizer(finalizer):
        return Settled()  # It was detached, or nothing was attached: the finalizer comes before the first call.
    name = attachment.spec.source.persistent_volume_name or ""
    volume, node = cluster.volumes.get(name), cluster.nodes.get(attachment.spec.node_name)
    record = true_record(attachment, volume)
    if record is not None:
        lookup = driver_named(record.driver, cluster)
        if lookup == DriverLookup():
            lookup = DriverLookup(reason=f'driver "{record.driver}" is not configured here')
    elif volume is None:
        lookup = DriverLookup(reason=f'PersistentVolume "{name}" is gone, and nothing else says what was attached')
    else:
        # Another attacher attached it, or the record was edited: the volume says what is to be detached.
        lookup = _driver_for(volume, candidates, cluster)
        if lookup.driver is not None:
            record = intent_of(volume, lookup.driver, node.uid if node is not None else "", cluster.cluster_id)
    if lookup.driver is None or record is None:
        by_hand = f"remove the finalizer {finalizer} to accept that the backend may still have it attached"
        return lookup.next or _cannot(attachment, "detach", f"{lookup.reason}; {by_hand}", cluster)
    # What is detached must be on record before the volume, which says it now, may go.
    if attachment_intent_of(attachment) != record:
        return write_record(ATTACHMENTS, attachment, record, why="record what is detached")
    if not lookup.driver.info.attach_required:
        return _detached(attachment)  # Its driver does not attach any more: nothing is left at the node.
    return _go_on("detach", attachment, record, cluster)


def _detached(attachment: VolumeAttachment) -> Patch:
    """Remove the finalizer; write the status first if others still hold the object."""
    rest = attachment.finalizers_without(attacher_finalizer(attachment.spec.attacher))
    if rest and (attachment.status.attached or attachment.status.detach_error is not None):
        status = {"attached": False, "attachmentMetadata": None, "detachError": None}
        why = f"{attachment.spec.attacher} detached it"
        return Patch(kind=ATTACHMENTS, target=attachment, body={"status": status}, subresource="status", why=why)
    body = {"metadata": {"finalizers": rest}}
    return Patch(kind=ATTACHMENTS, target=attachment, body=body, why="nothing of it is attached any more")


def _go_on(
    verb: str, attachment: VolumeAttachment, record: AttachmentIntent, cluster: ClusterState, *, again: bool = False
) -> Action:
    """Return what follows the last call: show its failure or result, keep the state of a long one, or call again.

    Operations on one asset exclude each other, unless it may be on several nodes at once. again: it is attached, and
    the status stays so whatever the call returns.
    """
    progress, node = cluster.progress.attachments.get(attachment.uid), attachment.spec.node_name
    step, failure = progress.step, progress.unreported
    report = _report(attachment, failure, cluster) if failure is not None and failure.hook == verb else None
    if report is not None and not again:
        return report
    if isinstance(step, Attached) and verb == "attach" and not again:
        gone = {key: None for key in attachment.status.attachment_metadata or {} if key not in step.metadata}
        status = {"attached": True, "attachError": None, "attachmentMetadata": {**gone, **step.metadata} or None}
        why = f"{attachment.spec.attacher} attached it"
        return Patch(kind=ATTACHMENTS, target=attachment, body={"status": status}, subresource="status", why=why)
    if isinstance(step, Detached) and verb == "detach":
        return _detached(attachment)
    if isinstance(step, Attaching if verb == "attach" else Detaching):
        if step.unrecorded(record.state if record.hook == verb else None):
            kept = replace(record, hook=verb, state=dict(step.state))
            return write_record(ATTACHMENTS, attachment, kept, why="keep the driver's state")
        if left := step.left(cluster.monotonic()):
            return Wait(reason=f'driver "{record.driver}" is {verb}ing it', seconds=left)
    name, uid, group, held = attachment.name, attachment.uid, f"{verb} {node}", node if record.shared else ""
    return Run(verb=verb, key=name, uid=uid, driver=record.driver, asset=record.asset, node=held, group=group)


def _cannot(attachment: VolumeAttachment, hook: str, why: str, cluster: ClusterState) -> Action:
    """Write why nothing can be done now, once. A change of what it waits for queues the attachment."""
    return _report(attachment, AttachmentFailure(hook, why), cluster, once=True) or Wait(reason=why)


def _report(
    attachment: VolumeAttachment, failure: AttachmentFailure, cluster: ClusterState, *, once: bool = False
) -> Patch | None:
    """Write a failure; None if the status shows it, at whatever time if it is to be written once."""
    message, now = failure.message.encode()[:_MOST_BYTES].decode("utf-8", "ignore"), timestamp(cluster.now())
    attaches = failure.hook == "attach"
    shown = attachment.status.attach_error if attaches else attachment.status.detach_error
    wrong = attaches and attachment.status.attached
    # A failure that comes again gets a new time; a reason that stays is not written again and again.
    same = shown is not None and (shown.message, shown.error_code) == (message, failure.code)
    if shown is not None and same and (not wrong if once else shown.time == now):
        return None
    error = {"time": now, "message": message, "errorCode": failure.code}
    status = {"attachError" if attaches else "detachError": error, **({"attached": False} if wrong else {})}
    why = f"{failure.hook} failed: {failure.message}"
    return Patch(kind=ATTACHMENTS, target=attachment, body={"status": status}, subresource="status", why=why)


# --- attached without an attachment -------------------------------------------------------------------------------
#
# That happens when a process that was stopped in the middle of `attach` goes on after its attachment was removed, when
# a person removes the finalizer, and when the API server is restored from a backup. The attachment is created again, to
# be deleted, and is then detached like any other: one operation at a time, on a live read, fenced, with the error in
# its status. There are no two attachments of one name, so this one and one that a pod needs exclude each other.


def unrecorded_attachment(volume: Volume, node: str, driver: str, cluster: ClusterState) -> str:
    """Return the name of the attachment that should exist; "" if the driver does not attach such volumes."""
    attacher, handle = csi_parts(unique_name(volume))
    return desired.attachment_name(attacher, handle, node) if driver in cluster.drivers.attachers(attacher) else ""


def _recreate_for_detach(name: str, cluster: ClusterState, reads: LiveReads) -> Action:
    """Return the next step for an attachment that does not exist: none, unless the backend showed its volume there.

    The Node is read live: what its kubelet uses, or may start to use, is left alone.
    """
    seen = cluster.progress.unrecorded.get(name)
    volume = cluster.volumes.get(seen.volume) if seen is not None else None
    # Nothing is detached on an old listing, or for a volume that was created again under its name.
    if seen is None or volume is None or volume.uid != seen.uid or cluster.monotonic() - seen.seen > VALID:
        return Settled()
    if seen.node in cluster.attached_to(volume):
        return Settled()  # There is an attachment of another name by now.
    if not reads.has(NODES, seen.node):
        return Read(NODES, seen.node, why="does its kubelet use the volume?")
    node = reads.get(NODES, seen.node)
    if not isinstance(node, Node) or node.uid != seen.node_uid:
        return Settled()  # The listing was about another machine.
    unique = unique_name(volume)
    if unique in (*desired.listed_volumes(node), *desired.volumes_in_use(node)):
        return Wait(reason=f"node {node.name} uses volume {volume.name}, for which there is no VolumeAttachment")
    driver = cluster.drivers.get(seen.driver)
    if driver is None:
        return Wait(reason=cluster.drivers.broken(seen.driver) or f"driver {seen.driver} is not usable")
    attacher = csi_parts(unique)[0]
    known = {names.NODE_UID: node.uid, names.LEFTOVER: "true", **declaration(volume, driver, node, cluster.cluster_id)}
    metadata = {"name": name, "finalizers": [attacher_finalizer(attacher)], "annotations": known}
    spec = {"attacher": attacher, "nodeName": node.name, "source": {"persistentVolumeName": volume.name}}
    body = ATTACHMENTS.body(metadata=metadata, spec=spec)
    return Create(kind=ATTACHMENTS, body=body, why=f"{volume.name} is attached to {node.name}, and nothing says so")


# --- the record ---------------------------------------------------------------------------------------------------


def true_record(attachment: VolumeAttachment, volume: Volume | None) -> AttachmentIntent | None:
    """Return the record; None if it is damaged, or was edited to name another asset than the volume's.

    volume: the one that the attachment names, if it exists. If it was created again it has another uid: then the record
    is about the former one.
    """
    record = attachment_intent_of(attachment)
    if record is None or volume is None or record.uid != volume.uid:
        return record
    # A former version had another name for disks with an in-tree source, which would exclude nothing else.
    return replace(record, asset=asset_key(volume)) if record.handle == handle_of(volume) else None


def volume_to_attach(volume: Volume, driver: DriverView, cluster_id: str) -> VolumeIdentity:
    """Return the volume as hooks see it. Marks are expected only on what this driver made."""
    identity = volume_identity(volume, cluster_id)
    ours = volume.annotation(names.PROVISIONED_BY) == driver.name
    return identity if ours else dataclasses.replace(identity, owner=None)


def intent_of(volume: Volume, driver: DriverView, node_uid: str, cluster_id: str) -> AttachmentIntent:
    """Return what is recorded before `attach` is called for the first time."""
    identity = volume_to_attach(volume, driver, cluster_id)
    return AttachmentIntent(
        v=INTENT_VERSION,
        driver=driver.name,
        asset=asset_key(volume),
        volume=volume.name,
        uid=volume.uid,
        handle=identity.handle,
        source=identity.source.kind,
        fields=dict(identity.source.fields),
        capacity=identity.capacity_bytes,
        generation=identity.owner.generation if identity.owner is not None else 0,
        access_modes=[str(mode) for mode in identity.access_modes],
        volume_mode=str(identity.volume_mode),
        attributes={} if identity.source.kind == "csi" else dict(identity.attributes),
        node_uid=node_uid,
        csi_node=driver.info.attaches_by == "csi node",
        shared=desired.shares_nodes(volume),
    )


def declaration(volume: Volume, driver: DriverView, node: Node, cluster_id: str) -> dict[str, str]:
    """Return the annotations that are written before anything is attached: the record, and the backend's node id."""
    record, boot = intent_of(volume, driver, node.uid, cluster_id), node.status.node_info.boot_id
    id_ = node_id(node, driver.info.csi_driver_name or "", csi=record.csi_node)
    known = {names.NODE_ID: id_, names.INTENT: write_intent(record)}
    return known | {names.BOOT_ID: boot} if boot else known


def identity_of_record(record: AttachmentIntent, cluster_id: str) -> VolumeIdentity:
    """Return the volume as hooks see it, from the record alone."""
    owner, claim = None, record.volume.removeprefix("pvc-")
    if generation := record.generation:
        owner = Ownership(cluster_id=cluster_id, claim_uid=claim, volume_name=record.volume, generation=generation)
    in_source = record.fields.get("volumeAttributes") if record.source == "csi" else None
    return VolumeIdentity(
        name=record.volume,
        uid=record.uid,
        handle=record.handle,
        source=VolumeSource(kind=record.source, fields=record.fields),
        capacity_bytes=record.capacity,
        owner=owner,
        attributes=dict(in_source or record.attributes),
        volume_mode=VolumeMode(record.volume_mode),
        access_modes=tuple(AccessMode(mode) for mode in record.access_modes),
    )


def node_of_record(attachment: VolumeAttachment, record: AttachmentIntent, node: Node | None) -> NodeIdentity:
    """Return the node to which it was attached. node: the one that has the name now; it may be another machine."""
    same = node is not None and (not record.node_uid or node.uid == record.node_uid)
    labels = dict(node.metadata.labels or {}) if node is not None and same else {}
    known, spec = node is not None and node.uid == record.node_uid, attachment.spec
    shown = node_id(node, spec.attacher, csi=record.csi_node) if node is not None and known else ""
    id_ = shown or attachment.annotation(names.NODE_ID) or ""
    return NodeIdentity(name=spec.node_name, uid=record.node_uid, instance_id=id_, labels=labels, csi_node_id=id_)


# --- CSIDriver objects --------------------------------------------------------------------------------------------


def decide_csi_driver(name: str, cluster: ClusterState, *, attacher: bool, capacity: bool) -> Action:
    """Decide the CSIDriver of a driver. attacher, capacity: this process serves attachments, publishes room."""
    driver = cluster.drivers.get(name) or cluster.drivers.distributed(name)
    if driver is None:
        return Settled()  # No driver of this process has the name: the object is of others.
    attaches = attacher and driver.info.csi_driver_name == name
    publishes = capacity and cluster.drivers.publishes(name)
    if not attaches and not publishes:
        return Settled()  # The object belongs to the node plugin.
    found = cluster.csi_drivers.get(name)
    needed = driver.info.attach_required
    if found is None:
        spec = {"attachRequired": needed, "podInfoOnMount": False, "volumeLifecycleModes": ["Persistent"]}
        spec |= {"storageCapacity": True} if publishes else {}
        body = CSI_DRIVERS.body(metadata={"name": name}, spec=spec)
        return Create(kind=CSI_DRIVERS, body=body, why="say what its volumes need")
    if publishes and not found.spec.storage_capacity:
        body = {"spec": {"storageCapacity": True}}
        return Patch(kind=CSI_DRIVERS, target=found, body=body, why="let the scheduler heed its published room")
    if not attaches or found.spec.attach_required == needed:
        return Settled()  # It says what it should.
    need = "attaches its volumes" if needed else "needs no attaching"
    differs = f"spec.attachRequired is {str(found.spec.attach_required).lower()}, but driver {name} {need}"
    message = f"{differs}; the field cannot be changed: delete the object, and it is made anew"
    return Wait(reason=message, events=(warning(CSI_DRIVERS, found, "AttachRequiredDiffers", message),))
