"""The next step for a VolumeSnapshot, and for the claim it is of: the half of the snapshot-controller. Pure.

1. One patch puts the class and the finalizers on the VolumeSnapshot. 2. A finalizer keeps the claim until the cut.
3. The content is created with its finalizer and its intent; `contents` has the snapshot cut. 4. The status is copied
from the content. 5. The claim is released. Everything that can be refused is refused before the first of them, and
said in the status with both values. A VolumeSnapshot that shows a moment and has lost its content gets another one
only for the snapshot that the storage still has: nothing is cut a second time.
Source: pkg/common-controller of kubernetes-csi/external-snapshotter, whose reasons and texts are kept.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from volplane.assets import Snapshot
from volplane.controller.actions import (
    Action,
    Create,
    Delete,
    EventRecord,
    LiveReads,
    Patch,
    Read,
    Run,
    Settled,
    Wait,
    warning,
)
from volplane.intents.ownership import driver_named, driver_of
from volplane.kube import names
from volplane.kube.kinds import CLAIMS
from volplane.kube.objects import Claim, KubeObject, Volume, timestamp
from volplane.kube.quantity import format_bytes
from volplane.snapshots.contents import UNSERVED, UNSERVED_SECONDS, annotate, new_intent
from volplane.snapshots.demand import Wanted, demand_of
from volplane.snapshots.groups import uncut_groups_of
from volplane.snapshots.groups_objects import GROUPS, group_of
from volplane.snapshots.objects import (
    VOLUME_SNAPSHOT_CONTENTS,
    VOLUME_SNAPSHOTS,
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
)
from volplane.snapshots.source import restored_by, swept
from volplane.snapshots.state import (
    TERMINAL,
    Cut,
    Lost,
    SnapshotIntent,
    SnapshotState,
    content_name_of,
    handle_in_source,
    is_terminal,
    names_snapshot,
)
from volplane.state.matching import mode_of
from volplane.state.naming import handle_of
from volplane.state.records import NEVER, time_of, write_intent

SEEK: Final = "seek_snapshot"
"""Look for the snapshot of a VolumeSnapshot whose content is gone."""
_HOLDING: Final = (names.SNAPSHOT_AS_SOURCE, names.SNAPSHOT_BOUND, names.SNAPSHOT_IN_GROUP)
_REFERENCE: Final = {"apiVersion": VOLUME_SNAPSHOTS.api_version, "kind": VOLUME_SNAPSHOTS.kind}


def decide_snapshot(key: str, state: SnapshotState, reads: LiveReads) -> Action:
    snapshot = state.snapshots.get(key)
    if snapshot is None:
        return Settled()
    lease, seconds = state.stock_for()
    if lease:
        return Wait(reason=f"the stock snapshot-controller that holds Lease {lease} binds it", seconds=seconds)
    if snapshot.terminating:
        return _in_group(snapshot, state, reads) or _deletion(snapshot, state)
    source = snapshot.spec.source
    named = bool(source.persistent_volume_claim_name) or group_of(snapshot) is not None
    if named == bool(source.volume_snapshot_content_name):
        text = "Exactly one of PersistentVolumeClaimName and VolumeSnapshotContentName should be specified"
        return _refuse(snapshot, "SnapshotValidationError", text, state)
    return (_static if source.volume_snapshot_content_name else _dynamic)(snapshot, state, reads)


# --- a dynamic snapshot ---------------------------------------------------------------------------------------------


def _dynamic(snapshot: VolumeSnapshot, state: SnapshotState, reads: LiveReads) -> Action:
    content = _bound_to(snapshot, state) or state.content_of(snapshot)
    if content is not None:
        return _dynamic_content(snapshot, content, state)
    if (owner := group_of(snapshot)) is not None:
        return Wait(reason=f"it is a member of VolumeGroupSnapshot {owner.name}, which makes its content")
    if is_terminal(snapshot.status.error):
        return Settled()
    if snapshot.status.creation_time is not None:
        return _heal(snapshot, state, reads)
    demand = demand_of(snapshot, state)
    if demand.wanted is None:
        return demand.next or _refuse(snapshot, demand.reason, demand.message, state)
    return _begin(snapshot, demand.wanted, state)


def _dynamic_content(snapshot: VolumeSnapshot, content: VolumeSnapshotContent, state: SnapshotState) -> Action:
    source = content.spec.source
    if source.snapshot_handle and not source.volume_handle:
        text = f"VolumeSnapshotContent {content.name} is pre-provisioned while expecting a dynamically provisioned one"
        return _refuse(snapshot, "SnapshotContentMismatch", text, state)
    if not names_snapshot(content, snapshot):
        text = f"VolumeSnapshotContent [{content.name}] is bound to a different snapshot"
        return _refuse(snapshot, "SnapshotContentMisbound", text, state)
    if source.snapshot_handle:
        text = f"Snapshot handle should not be set in content {content.name} for dynamic provisioning"
        return _refuse(snapshot, "SnapshotHandleSet", text, state)
    if not state.serves(content.spec.driver):
        return Settled()
    return _hold(snapshot, content) or swept(snapshot, state.cluster) or _follow(snapshot, content)


def _begin(snapshot: VolumeSnapshot, wanted: Wanted, state: SnapshotState) -> Action:
    """Return the next step until the content exists."""
    claim = wanted.claim
    if (hold := _hold_with(snapshot, wanted.of_class)) is not None:
        return hold
    if not claim.has_finalizer(names.CLAIM_AS_SOURCE):
        body = {"metadata": {"finalizers": claim.finalizers_with(names.CLAIM_AS_SOURCE)}}
        return Patch(kind=CLAIMS, target=claim, body=body, why=f"keep it until snapshot {snapshot.key} is cut")
    return _create(snapshot, wanted, state)


def _create(snapshot: VolumeSnapshot, wanted: Wanted, state: SnapshotState) -> Create:
    volume, of_class = wanted.volume, wanted.of_class
    intent = new_intent(snapshot.uid, volume, dict(of_class.parameters or {}), state.cluster)
    text = f"Waiting for a snapshot {snapshot.key} to be created by the CSI driver."
    failed = f"Error creating volume snapshot content object for snapshot {snapshot.key}"
    spec = {
        "source": {"volumeHandle": handle_of(volume)},
        "volumeSnapshotClassName": of_class.name,
        "deletionPolicy": of_class.deletion_policy,
        "driver": wanted.driver.name,
        "sourceVolumeMode": mode_of(volume),
    }
    return Create(
        kind=VOLUME_SNAPSHOT_CONTENTS,
        body=_content_of(snapshot, intent, spec),
        why=f"have a snapshot cut for {snapshot.key}",
        events=(EventRecord(VOLUME_SNAPSHOTS, snapshot, "Normal", "CreatingSnapshot", text),),
        failure_event=warning(VOLUME_SNAPSHOTS, snapshot, "CreateSnapshotContentFailed", failed),
    )


def _content_of(snapshot: VolumeSnapshot, intent: SnapshotIntent, spec: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a VolumeSnapshot, held and with its record from the beginning. spec: but the reference."""
    version = snapshot.metadata.resource_version
    named = {"namespace": snapshot.namespace, "name": snapshot.name, "uid": snapshot.uid, "resourceVersion": version}
    metadata = {
        "name": content_name_of(snapshot),
        "finalizers": [names.CONTENT_BOUND],
        "annotations": {names.INTENT: write_intent(intent)},
    }
    return VOLUME_SNAPSHOT_CONTENTS.body(metadata=metadata, spec={"volumeSnapshotRef": {**_REFERENCE, **named}, **spec})


# --- a content that is lost, or that a person wrote -----------------------------------------------------------------


def _heal(snapshot: VolumeSnapshot, state: SnapshotState, reads: LiveReads) -> Action:
    """Make the content again for the snapshot that the storage has; without one the VolumeSnapshot has failed."""
    name, of_class = content_name_of(snapshot), state.classes.get(snapshot.spec.volume_snapshot_class_name or "")
    claim = state.claim_of(snapshot)
    volume = state.cluster.volume_of(claim) if claim is not None else None
    found = driver_named(of_class.driver, state.cluster) if of_class is not None else None
    if found is None and volume is not None:
        found = driver_of(volume, state.cluster)
    driver = found.driver if found is not None else None
    if driver is None and found is not None and (found.next is not None or found.reason):
        return found.next or Wait(reason=found.reason)
    if not reads.serves(VOLUME_SNAPSHOT_CONTENTS):
        return Wait(reason=UNSERVED, seconds=UNSERVED_SECONDS)
    if not reads.has(VOLUME_SNAPSHOT_CONTENTS, name):
        return Read(VOLUME_SNAPSHOT_CONTENTS, name, why="is its content gone?")
    if driver is None:
        return (
            Settled() if found is not None else _missing(snapshot, "nothing says any more which driver made it", state)
        )
    step = state.sought.get(snapshot.uid).step
    if isinstance(step, Lost):
        return _missing(snapshot, f"driver {driver.name} has no snapshot of it any more", state)
    if not isinstance(step, Cut):
        return Run(verb=SEEK, key=snapshot.key, uid=snapshot.uid, driver=driver.name, asset=name)
    volume = _volume_of(step.snapshot, snapshot, claim, volume)
    intent = new_intent(snapshot.uid, volume, {}, state.cluster)
    handle = step.snapshot.source or (handle_of(volume) if volume is not None else "unknown")
    text = f"VolumeSnapshotContent is missing; it is made again for the snapshot {step.snapshot.handle}"
    spec: dict[str, Any] = {"source": {"volumeHandle": handle}, "driver": driver.name, "deletionPolicy": "Retain"}
    if of_class is not None:
        spec |= {"deletionPolicy": of_class.deletion_policy, "volumeSnapshotClassName": of_class.name}
    if volume is not None:
        spec["sourceVolumeMode"] = mode_of(volume)
    return Create(
        kind=VOLUME_SNAPSHOT_CONTENTS,
        body=_content_of(snapshot, intent, spec),
        why=f"the storage has the snapshot of {snapshot.key}",
        events=(warning(VOLUME_SNAPSHOTS, snapshot, "SnapshotContentMissing", text),),
    )


def _volume_of(found: Snapshot, snapshot: VolumeSnapshot, claim: Claim | None, volume: Volume | None) -> Volume | None:
    """Return the volume of the claim, if it is the one that was cut: the claim may have been made again since, with
    another volume in another mode.
    """
    if claim is None or volume is None:
        return None
    if found.source:
        return volume if found.source in (handle_of(volume), handle_in_source(volume)) else None
    made, cut = time_of(claim.metadata.creation_timestamp, NEVER), time_of(snapshot.status.creation_time, NEVER)
    return volume if made <= cut else None


def _missing(snapshot: VolumeSnapshot, why: str, state: SnapshotState) -> Action:
    text = f"{TERMINAL}VolumeSnapshotContent is missing, and {why}; nothing is cut again"
    return _refuse(snapshot, "SnapshotContentMissing", text, state)


def _static(snapshot: VolumeSnapshot, state: SnapshotState, _reads: LiveReads) -> Action:
    content = state.content_of(snapshot)
    if content is None:
        return _refuse(snapshot, "SnapshotContentMissing", "VolumeSnapshotContent is missing", state)
    if not state.serves(content.spec.driver):
        return Settled()
    if not names_snapshot(content, snapshot):
        text = f"VolumeSnapshotContent [{content.name}] is bound to a different snapshot"
        return _refuse(snapshot, "SnapshotContentMisbound", text, state)
    # A content that was retained can be bound again, as its snapshot exists.
    if content.spec.source.volume_handle and not content.status.snapshot_handle:
        text = "VolumeSnapshotContent is dynamically provisioned while expecting a pre-provisioned one"
        return _refuse(snapshot, "SnapshotContentMismatch", f"{text}, and has no snapshot yet", state)
    if not content.spec.volume_snapshot_ref.uid:
        if content.terminating:
            return _refuse(
                snapshot, "SnapshotBindFailed", f"VolumeSnapshotContent {content.name} is being deleted", state
            )
        return _bind(snapshot, content)
    return _hold(snapshot, content) or swept(snapshot, state.cluster) or _follow(snapshot, content)


def _bind(snapshot: VolumeSnapshot, content: VolumeSnapshotContent) -> Patch:
    spec: dict[str, Any] = {"volumeSnapshotRef": {"uid": snapshot.uid}}
    if snapshot.spec.volume_snapshot_class_name is not None:
        spec["volumeSnapshotClassName"] = snapshot.spec.volume_snapshot_class_name
    metadata: dict[str, Any] = {}
    if not content.has_finalizer(names.CONTENT_BOUND):
        metadata["finalizers"] = content.finalizers_with(names.CONTENT_BOUND)
    if content.annotation(names.SNAPSHOT_BEING_DELETED) is not None:
        metadata["annotations"] = {names.SNAPSHOT_BEING_DELETED: None}  # Of the VolumeSnapshot that it had before.
    body = {"metadata": metadata, "spec": spec}
    return Patch(kind=VOLUME_SNAPSHOT_CONTENTS, target=content, body=body, why=f"bind it to {snapshot.key}")


# --- finalizers and status ------------------------------------------------------------------------------------------


def _hold_with(snapshot: VolumeSnapshot, of_class: VolumeSnapshotClass) -> Patch | None:
    """Return the write of class and finalizers; None if the VolumeSnapshot has them."""
    hold = _holding(snapshot, deletes=of_class.deletion_policy == "Delete")
    body: dict[str, Any] = {"metadata": {"finalizers": hold}} if hold else {}
    if snapshot.spec.volume_snapshot_class_name is None:
        body["spec"] = {"volumeSnapshotClassName": of_class.name}
    if not body:
        return None
    return Patch(kind=VOLUME_SNAPSHOTS, target=snapshot, body=body, why=f"class {of_class.name} serves it")


def _hold(snapshot: VolumeSnapshot, content: VolumeSnapshotContent) -> Patch | None:
    """Return the write of the finalizers that it lacks; None if it has them."""
    hold = _holding(snapshot, deletes=content.spec.deletion_policy == "Delete")
    if not hold:
        return None
    body = {"metadata": {"finalizers": hold}}
    return Patch(kind=VOLUME_SNAPSHOTS, target=snapshot, body=body, why=f"hold it for content {content.name}")


def _holding(snapshot: VolumeSnapshot, *, deletes: bool) -> list[str]:
    """Return all finalizers that it is to have; empty if it has them. deletes: the content goes with it."""
    needed = [names.SNAPSHOT_AS_SOURCE, *([names.SNAPSHOT_BOUND] if deletes else ())]
    wanted = snapshot.finalizers_with(*needed)
    return wanted if wanted != (snapshot.metadata.finalizers or []) else []


def _follow(snapshot: VolumeSnapshot, content: VolumeSnapshotContent) -> Action:
    """Copy the content's status."""
    theirs, ours = content.status, snapshot.status
    if theirs == type(theirs)():
        return Wait(reason=f"content {content.name} has no snapshot yet")  # The first write shows everything.
    status: dict[str, Any] = {}
    if ours.bound_volume_snapshot_content_name != content.name:
        status["boundVolumeSnapshotContentName"] = content.name
    if ours.creation_time is None and theirs.creation_time is not None:
        cut = datetime.fromtimestamp(theirs.creation_time // 10**9, UTC)
        status["creationTime"] = timestamp(cut)
    if ours.restore_size in (None, 0, "0") and theirs.restore_size:
        status["restoreSize"] = format_bytes(theirs.restore_size)
    if (owner := group_of(snapshot)) is not None and ours.volume_group_snapshot_name != owner.name:
        status["volumeGroupSnapshotName"] = owner.name
    if ours.ready_to_use != theirs.ready_to_use or not ours.bound_volume_snapshot_content_name:
        status["readyToUse"] = theirs.ready_to_use
    error = theirs.error if theirs.error is not None and not theirs.ready_to_use else None
    if (error.message if error is not None else None) != (ours.error.message if ours.error is not None else None):
        status["error"] = {"time": error.time, "message": error.message} if error is not None else None
    if not status:
        return (
            Settled()
            if theirs.ready_to_use or is_terminal(error)
            else Wait(reason=f"content {content.name} is not ready")
        )
    events: tuple[EventRecord, ...] = ()
    if theirs.ready_to_use and not ours.ready_to_use:
        text = f"Snapshot {snapshot.key} is ready to use."
        events = (EventRecord(VOLUME_SNAPSHOTS, snapshot, "Normal", "SnapshotReady", text),)
    return _status_patch(snapshot, status, *events, why=f"show what content {content.name} shows")


def _refuse(snapshot: VolumeSnapshot, reason: str, message: str, state: SnapshotState) -> Action:
    """Show why it does not go on. An error that is shown already is not written again: its time tells since when."""
    shown = snapshot.status.error
    if shown is not None and shown.message == message and not snapshot.status.ready_to_use:
        return Wait(reason=message)
    now = timestamp(state.cluster.now())
    status = {"readyToUse": False, "error": {"time": now, "message": message}}
    return _status_patch(snapshot, status, warning(VOLUME_SNAPSHOTS, snapshot, reason, message), why=message)


def _status_patch(snapshot: VolumeSnapshot, status: dict[str, Any], *events: EventRecord, why: str) -> Patch:
    body = {"status": status}
    return Patch(kind=VOLUME_SNAPSHOTS, target=snapshot, body=body, subresource="status", why=why, events=events)


# --- deletion -----------------------------------------------------------------------------------------------------


def _deletion(snapshot: VolumeSnapshot, state: SnapshotState) -> Action:
    if not any(snapshot.has_finalizer(name) for name in _HOLDING):
        return Settled()  # Nothing here holds it.
    content = _bound_to(snapshot, state)
    if content is None:
        return _release(snapshot, why="it has no content")
    if not state.serves(content.spec.driver):
        return Settled()
    if (step := swept(snapshot, state.cluster)) is not None:
        return step
    if content.annotation(names.SNAPSHOT_BEING_DELETED) is None:
        if (reader := restored_by(snapshot, state.cluster)) is not None:
            event = warning(
                VOLUME_SNAPSHOTS, snapshot, "SnapshotDeletePending", "Snapshot is being used to restore a PVC"
            )
            return Wait(reason=f"it is being used to restore {reader}", events=(event,))
        why = f"VolumeSnapshot {snapshot.key} is being deleted"
        return annotate(content, {names.SNAPSHOT_BEING_DELETED: "yes"}, why=why)
    if content.spec.deletion_policy != "Delete":
        return _release(snapshot, why=f"content {content.name} is kept by policy {content.spec.deletion_policy}")
    if not content.terminating:
        why = f"VolumeSnapshot {snapshot.key} is being deleted"
        return Delete(kind=VOLUME_SNAPSHOT_CONTENTS, target=content, why=why, exact=False)
    shown, error = snapshot.status.error, content.status.error
    if error is not None and (shown is None or shown.message != error.message):
        status = {"error": {"time": error.time, "message": error.message}}
        return _status_patch(snapshot, status, why="show why its content stays")
    return Wait(reason=f"content {content.name} is being deleted")


def _in_group(snapshot: VolumeSnapshot, state: SnapshotState, reads: LiveReads) -> Action | None:
    """Return what keeps a member from being deleted: its group exists; else None."""
    owner = group_of(snapshot)
    if owner is None:
        return None
    key = f"{snapshot.namespace}/{owner.name}"
    group: KubeObject | None = state.groups.get(key)
    if group is None or group.uid != owner.uid:
        if not reads.serves(GROUPS):
            return Wait(reason=UNSERVED, seconds=UNSERVED_SECONDS)
        if not reads.has(GROUPS, key):
            return Read(GROUPS, key, why="is its group gone?")
        group = reads.get(GROUPS, key)
        if group is None or group.uid != owner.uid:
            return None
    text = (
        f"deletion of the individual volume snapshot {snapshot.key} is not allowed as it belongs to group snapshot "
        f"{key}. Deleting the group snapshot will trigger the deletion of all the individual volume snapshots that are "
        "part of the group."
    )
    # A group that is being deleted takes its members with it: nobody has to be told.
    events = () if group.terminating else (warning(VOLUME_SNAPSHOTS, snapshot, "SnapshotDeletePending", text),)
    return Wait(reason=text, events=events)


def _bound_to(snapshot: VolumeSnapshot, state: SnapshotState) -> VolumeSnapshotContent | None:
    """Return the content that is bound to the VolumeSnapshot.

    Its status may be a tenant's, and name another one; but of members of a group it alone tells the name.
    """
    for name in (snapshot.status.bound_volume_snapshot_content_name, content_name_of(snapshot)):
        content = state.contents.get(name)
        if content is not None and content.spec.volume_snapshot_ref.uid and names_snapshot(content, snapshot):
            return content
    return None


def _release(snapshot: VolumeSnapshot, *, why: str) -> Patch:
    kept = snapshot.finalizers_without(*_HOLDING)
    return Patch(kind=VOLUME_SNAPSHOTS, target=snapshot, body={"metadata": {"finalizers": kept}}, why=why)


# --- the source ---------------------------------------------------------------------------------------------------


def decide_source(key: str, state: SnapshotState) -> Action:
    """Return the next action for the finalizer that keeps a claim until its snapshots are cut."""
    claim = state.cluster.claims.get(key)
    if claim is None or not claim.has_finalizer(names.CLAIM_AS_SOURCE) or not state.binds():
        return Settled()
    waiting = [f"VolumeSnapshot {each.name}" for each in state.unfinished_of(key)]
    waiting += [f"VolumeGroupSnapshot {each.name}" for each in uncut_groups_of(claim, state)]
    if waiting:
        return Wait(reason=f"its {waiting[0]} is not cut yet")
    why = "no snapshot of it is about to be cut"
    body = {"metadata": {"finalizers": claim.finalizers_without(names.CLAIM_AS_SOURCE)}}
    return Patch(kind=CLAIMS, target=claim, body=body, why=why)
