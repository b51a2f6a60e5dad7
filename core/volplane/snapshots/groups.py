"""The next step for a VolumeGroupSnapshot: the half of the snapshot-controller. Pure.

1. One patch puts the class and the finalizer on the group, and one on each claim keeps it until the cut. 2. The group's
content is created with finalizer and intent, and names the volumes: they are chosen once, by the whole selector.
3. `groups_contents` has them cut at one moment. 4. Each member gets its VolumeSnapshotContent, its VolumeSnapshot, the
uid that binds them, and the content's status. 5. The status is copied from the content, and `decide_source` lets the
claims go. What can be refused is refused before the first of them.
Source: pkg/common-controller of kubernetes-csi/external-snapshotter, whose reasons and texts are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from volplane.controller.actions import Action, Create, Delete, EventRecord, LiveReads, Patch, Settled, Wait, warning
from volplane.drivers.driver import DriverView
from volplane.intents.ownership import driver_of
from volplane.kube import names
from volplane.kube.kinds import CLAIMS
from volplane.kube.objects import Claim, LabelSelector, Volume, timestamp
from volplane.snapshots.contents import annotate
from volplane.snapshots.demand import ClassWords, Unchosen, chosen_class
from volplane.snapshots.groups_contents import CREATE_GROUP, no_groups
from volplane.snapshots.groups_objects import (
    GROUP_CONTENTS,
    GROUPS,
    MemberInfo,
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    group_content_name_of,
    group_of,
    member_digest,
    names_group,
)
from volplane.snapshots.groups_state import group_intent_of, member_of, new_group_intent
from volplane.snapshots.objects import VOLUME_SNAPSHOT_CONTENTS, VOLUME_SNAPSHOTS, VolumeSnapshot
from volplane.snapshots.parameters import class_flaw
from volplane.snapshots.source import restored_by
from volplane.snapshots.state import CONTENT_PREFIX, SNAPSHOT_PREFIX, TERMINAL, SnapshotState, is_terminal
from volplane.state.matching import label_filter, refers_to, selects
from volplane.state.naming import handle_of
from volplane.state.records import write_intent

_MOST_PARTS: Final = 1_000
_NOT_CREATED: Final = "failed to create group snapshot content with error "
_WORDS: Final = ClassWords(
    names.DEFAULT_GROUP_CLASS,
    "SetDefaultGroupSnapshotClassFailed",
    "Failed to set default group snapshot class with error ",
    "GetGroupSnapshotClassFailed",
    "failed to get group snapshot class with error volumegroupsnapshotclass.groupsnapshot.storage.k8s.io ",
)


def decide_group(key: str, state: SnapshotState, _reads: LiveReads) -> Action:
    group = state.groups.get(key)
    if group is None:
        return Settled()
    lease, seconds = state.stock_for()
    if lease:
        return Wait(reason=f"the stock snapshot-controller that holds Lease {lease} binds it", seconds=seconds)
    if group.terminating:
        return _deletion(group, state)
    source = group.spec.source
    if (source.selector is not None) == bool(source.volume_group_snapshot_content_name):
        text = "Exactly one of Selector and VolumeGroupSnapshotContentName should be specified"
        return _refuse(group, "GroupSnapshotValidationError", text, state)
    return (_static if source.volume_group_snapshot_content_name else _dynamic)(group, state)


# --- a dynamic group ------------------------------------------------------------------------------------------------


def _dynamic(group: VolumeGroupSnapshot, state: SnapshotState) -> Action:
    content = state.group_contents.get(group_content_name_of(group))
    if content is not None:
        if content.spec.source.group_snapshot_handles is not None:
            text = f"VolumeGroupSnapshotContent {content.name} is pre-provisioned while expecting a dynamically"
            return _refuse(group, "GroupSnapshotContentMismatch", f"{text} provisioned one", state)
        if content.spec.volume_group_snapshot_ref.uid != group.uid or not names_group(content, group):
            text = f"VolumeGroupSnapshotContent [{content.name}] is bound to a different group snapshot"
            return _refuse(group, "GroupSnapshotContentMisbound", text, state)
        if not state.serves(content.spec.driver):
            return Settled()
        return _hold(group) or _member_step(group, content, state) or _follow(group, content)
    if is_terminal(group.status.error):
        return Settled()
    if group.status.creation_time is not None:
        text = f"{TERMINAL}VolumeGroupSnapshotContent is missing; nothing is cut again"
        return _refuse(group, "GroupSnapshotContentMissing", text, state)
    if (parts := _parts_of(group)) > _MOST_PARTS:
        text = f"{_NOT_CREATED}its selector has {parts} labels, expressions and values; {_MOST_PARTS} are allowed"
        return _refuse(group, "GroupSnapshotContentCreationFailed", text, state)
    demand = _demand_of(group, state)
    if demand.wanted is None:
        return demand.next or _refuse(group, demand.reason, demand.message, state)
    if group.status.error is not None:
        # What shows one is refused: its claims would be let go while they are held (`uncut_groups_of`).
        return _status_patch(group, {"error": None}, why="it can be cut now")
    wanted = demand.wanted
    return _hold(group, wanted.of_class) or _hold_claims(group, wanted) or _create(group, wanted, state)


class _Wanted(NamedTuple):
    claims: list[Claim]
    volumes: list[Volume]
    driver: DriverView
    of_class: VolumeGroupSnapshotClass


class _Demand(NamedTuple):
    """What is wanted, or why it cannot be had; as `demand.Demand`."""

    wanted: _Wanted | None = None
    reason: str = ""
    message: str = ""
    next: Action | None = None


def _demand_of(group: VolumeGroupSnapshot, state: SnapshotState) -> _Demand:
    """Return what the group asks for."""
    name = group.spec.volume_group_snapshot_class_name
    of_class = state.group_classes.get(name) if name is not None else None
    reason, prefix = "GroupSnapshotContentCreationFailed", _NOT_CREATED
    if name is None:
        reason, prefix = _WORDS.no_default, _WORDS.no_default_text
    claims, volumes = list[Claim](), list[Volume]()
    drivers: dict[str, DriverView] = {}
    flaws, foreign = list[str](), list[str]()
    for claim in claims_of(group, state):
        volume = state.cluster.volumes.get(claim.spec.volume_name)
        if volume is None or _unbound(claim, volume):
            flaws.append(_unbound(claim, volume))
            continue
        lookup = driver_of(volume, state.cluster)
        if lookup.next is not None:
            return _Demand(next=lookup.next)
        if lookup.driver is None:
            foreign.append(lookup.reason or f"volume {volume.name} of claim {claim.name} is of no driver here")
        else:
            claims.append(claim)
            volumes.append(volume)
            drivers.setdefault(lookup.driver.name, lookup.driver)
    served = of_class is not None and state.serves(of_class.driver)
    if not drivers and not served and (of_class is not None or foreign):
        return _Demand(next=Settled())  # Neither the class nor a volume is of a driver of ours.
    if not flaws and not foreign and not drivers:
        flaws.append("label selector for group snapshot not applied to any PVC")
    if len(drivers) > 1:
        flaws.append(f"the volumes are of several drivers, {', '.join(sorted(drivers))}: nothing cuts them together")
    if flaws or foreign:
        return _Demand(None, reason, prefix + (*flaws, *foreign)[0])
    driver = next(iter(drivers.values()))
    return _of_class(group, claims, volumes, driver, state)


def _parts_of(group: VolumeGroupSnapshot) -> int:
    """Return how long the selector is: it is read for many claims."""
    selector = group.spec.source.selector or LabelSelector()
    needs = selector.match_expressions or ()
    return len(selector.match_labels or ()) + len(needs) + sum(len(each.values or ()) for each in needs)


def _unbound(claim: Claim, volume: Volume | None) -> str:
    """Return why the claim cannot be cut; "" if it is bound to the volume."""
    if claim.terminating and not claim.has_finalizer(names.CLAIM_AS_SOURCE):
        return f"cannot add finalizer on claim {claim.name} because it is being deleted"
    if claim.status.phase != "Bound":
        return f"the PVC {claim.name} is not yet bound to a PV, will not attempt to take a group snapshot"
    if volume is None:
        return f'failed to retrieve PV {claim.spec.volume_name}: persistentvolume "{claim.spec.volume_name}" not found'
    if not refers_to(volume, claim):
        return f"claim in dataSource not bound or invalid: volume {volume.name} does not refer to {claim.name}"
    return ""


def _of_class(
    group: VolumeGroupSnapshot, claims: list[Claim], volumes: list[Volume], driver: DriverView, state: SnapshotState
) -> _Demand:
    """Return the demand for the class that is named, else for the default class of the driver."""
    chosen = chosen_class(group.spec.volume_group_snapshot_class_name, state.group_classes, driver, _WORDS)
    if isinstance(chosen, Unchosen):
        return _Demand(None, chosen.reason, chosen.message)
    flaw = class_flaw(chosen, driver) or ("" if driver.supports(CREATE_GROUP) else no_groups(driver))
    handles = [handle_of(volume) for volume in volumes]
    if not flaw and (not all(handles) or len(set(handles)) < len(handles)):
        flaw = f"driver {driver.name} would not know the volumes apart, whose handles are {handles}"
    if flaw:
        return _Demand(None, "GroupSnapshotContentCreationFailed", _NOT_CREATED + flaw)
    return _Demand(_Wanted(claims, volumes, driver, chosen))


def claims_of(group: VolumeGroupSnapshot, state: SnapshotState) -> Iterator[Claim]:
    """Yield the claims of the namespace that the selector names, by name."""
    selector = group.spec.source.selector
    if selector is None:
        return
    matches = label_filter(selector)
    yield from (each for each in state.claims_in(group.namespace) if matches(each.metadata.labels or {}))


def uncut_groups_of(claim: Claim, state: SnapshotState) -> Iterator[VolumeGroupSnapshot]:
    """Yield the groups that still need the volume of this claim, as `SnapshotState.unfinished_of` does snapshots.

    Those of a content are on record. One without has to be accepted: what is chosen is not asked here again, since
    tenants write both groups and claims, as many as they like. A group that shows an error is refused and needs none.
    """
    for group in state.groups.by_index("claims", claim.namespace):
        if group.status.creation_time is not None or is_terminal(group.status.error):
            continue
        content = state.group_contents.get(group_content_name_of(group))
        if content is None:
            accepted = group.has_finalizer(names.GROUP_BOUND) and group.status.error is None and not group.terminating
            selector = group.spec.source.selector
            needed = accepted and selector is not None and selects(selector, claim.metadata.labels or {})
        else:
            intent, over = group_intent_of(content), content.handle or is_terminal(content.status.error)
            needed = intent is not None and not over and any(each.claim == claim.uid for each in intent.members)
        if needed:
            yield group


def _hold_claims(group: VolumeGroupSnapshot, wanted: _Wanted) -> Patch | None:
    """Return the write that keeps the next claim until the cut; None if all are kept."""
    claim = next((each for each in wanted.claims if not each.has_finalizer(names.CLAIM_AS_SOURCE)), None)
    if claim is None:
        return None
    body = {"metadata": {"finalizers": claim.finalizers_with(names.CLAIM_AS_SOURCE)}}
    return Patch(kind=CLAIMS, target=claim, body=body, why=f"keep it until group {group.key} is cut")


def _create(group: VolumeGroupSnapshot, wanted: _Wanted, state: SnapshotState) -> Create:
    of_class, volumes = wanted.of_class, {handle_of(volume): volume for volume in wanted.volumes}
    intent = new_group_intent(group.uid, volumes, dict(of_class.parameters or {}), state.cluster)
    reference = {
        "apiVersion": GROUPS.api_version,
        "kind": GROUPS.kind,
        "namespace": group.namespace,
        "name": group.name,
        "uid": group.uid,
        "resourceVersion": group.metadata.resource_version,
    }
    spec = {
        "volumeGroupSnapshotRef": reference,
        "source": {"volumeHandles": list(volumes)},
        "volumeGroupSnapshotClassName": of_class.name,
        "deletionPolicy": of_class.deletion_policy,
        "driver": wanted.driver.name,
    }
    metadata = {
        "name": group_content_name_of(group),
        "finalizers": [names.GROUP_CONTENT_BOUND],
        "annotations": {names.INTENT: write_intent(intent)},
    }
    text = f"Waiting for a group snapshot {group.key} to be created by the CSI driver."
    failed = f"Error creating volume group snapshot content object for group snapshot {group.key}"
    return Create(
        kind=GROUP_CONTENTS,
        body=GROUP_CONTENTS.body(metadata=metadata, spec=spec),
        why=f"have the volumes of group {group.key} cut",
        events=(EventRecord(GROUPS, group, "Normal", "CreatingGroupSnapshot", text),),
        failure_event=warning(GROUPS, group, "CreateGroupSnapshotContentFailed", failed),
    )


# --- members --------------------------------------------------------------------------------------------------------


def _member_step(
    group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent, state: SnapshotState
) -> Action | None:
    """Return the next write that gives a member its objects; None if all have them."""
    if not content.status.volume_group_snapshot_handle or group.status.ready_to_use:
        return None
    steps = (_of_member(group, content, info, state) for info in content.members)
    return next((step for step in steps if step is not None), None)


def _of_member(
    group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent, info: MemberInfo, state: SnapshotState
) -> Action | None:
    digest, handle = member_digest(group.uid, info.volume_handle), content.status.volume_group_snapshot_handle
    name, content_name = SNAPSHOT_PREFIX + digest, CONTENT_PREFIX + digest
    snapshot, member = state.snapshots.get(f"{group.namespace}/{name}"), state.contents.get(content_name)
    known = member_of(content, info.volume_handle, state)
    why = f"a member of group {group.key}"
    if member is None:
        reference = {
            "apiVersion": VOLUME_SNAPSHOTS.api_version,
            "kind": VOLUME_SNAPSHOTS.kind,
            "namespace": group.namespace,
            "name": name,
        }
        spec: dict[str, Any] = {
            "volumeSnapshotRef": reference,
            "source": {"volumeHandle": info.volume_handle},
            "deletionPolicy": content.spec.deletion_policy,
            "driver": content.spec.driver,
        }
        if known.mode:
            spec["sourceVolumeMode"] = known.mode
        metadata: dict[str, Any] = {
            "name": content_name,
            "finalizers": [names.CONTENT_BOUND],
            "annotations": {names.GROUP_SNAPSHOT_HANDLE: handle},
        }
        body = VOLUME_SNAPSHOT_CONTENTS.body(metadata=metadata, spec=spec)
        return Create(kind=VOLUME_SNAPSHOT_CONTENTS, body=body, why=why)
    if snapshot is None:
        owner = {"apiVersion": GROUPS.api_version, "kind": GROUPS.kind, "name": group.name, "uid": group.uid}
        metadata = {
            "name": name,
            "namespace": group.namespace,
            "ownerReferences": [owner],
            "finalizers": [names.SNAPSHOT_IN_GROUP],
        }
        source = {"persistentVolumeClaimName": known.claim_name}
        body = VOLUME_SNAPSHOTS.body(metadata=metadata, spec={"source": source})
        return Create(kind=VOLUME_SNAPSHOTS, body=body, why=why)
    owned = group_of(snapshot)
    if owned is None or owned.uid != group.uid:
        return Wait(reason=f"VolumeSnapshot {snapshot.key}, which is no member of the group, has the name of one")
    if member.spec.volume_snapshot_ref.uid != snapshot.uid:
        body = {"spec": {"volumeSnapshotRef": {"uid": snapshot.uid}}}
        return Patch(kind=VOLUME_SNAPSHOT_CONTENTS, target=member, body=body, why=f"bind it to {snapshot.key}")
    if not member.status.snapshot_handle:
        status = {
            "snapshotHandle": info.snapshot_handle,
            "volumeGroupSnapshotHandle": handle,
            "creationTime": info.creation_time,
            "restoreSize": info.restore_size,
            "readyToUse": info.ready_to_use,
        }
        body = {"status": {key: value for key, value in status.items() if value is not None}}
        return Patch(kind=VOLUME_SNAPSHOT_CONTENTS, target=member, body=body, subresource="status", why=why)
    return None


# --- a content that a person wrote ----------------------------------------------------------------------------------


def _static(group: VolumeGroupSnapshot, state: SnapshotState) -> Action:
    content = state.group_contents.get(group_content_name_of(group))
    if content is None:
        return _refuse(group, "GroupSnapshotContentMissing", "VolumeGroupSnapshotContent is missing", state)
    if not state.serves(content.spec.driver):
        return Settled()
    if content.spec.source.group_snapshot_handles is None:
        text = "VolumeGroupSnapshotContent is dynamically provisioned while expecting a pre-provisioned one"
        return _refuse(group, "GroupSnapshotContentMismatch", text, state)
    if not names_group(content, group):
        text = f"VolumeGroupSnapshotContent [{content.name}] is bound to a different group snapshot"
        return _refuse(group, "GroupSnapshotContentMisbound", text, state)
    if not content.spec.volume_group_snapshot_ref.uid:
        if content.terminating:
            text = f"VolumeGroupSnapshotContent {content.name} is being deleted"
            return _refuse(group, "GroupSnapshotBindFailed", text, state)
        spec: dict[str, Any] = {"volumeGroupSnapshotRef": {"uid": group.uid}}
        if group.spec.volume_group_snapshot_class_name is not None:
            spec["volumeGroupSnapshotClassName"] = group.spec.volume_group_snapshot_class_name
        body = {"metadata": {"finalizers": content.finalizers_with(names.GROUP_CONTENT_BOUND)}, "spec": spec}
        return Patch(kind=GROUP_CONTENTS, target=content, body=body, why=f"bind it to {group.key}")
    return _hold(group) or _follow(group, content)


# --- finalizer and status -------------------------------------------------------------------------------------------


def _hold(group: VolumeGroupSnapshot, of_class: VolumeGroupSnapshotClass | None = None) -> Patch | None:
    """Return the write of class and finalizer; None if the group has them."""
    body: dict[str, Any] = {}
    if not group.has_finalizer(names.GROUP_BOUND):
        body["metadata"] = {"finalizers": group.finalizers_with(names.GROUP_BOUND)}
    if of_class is not None and group.spec.volume_group_snapshot_class_name is None:
        body["spec"] = {"volumeGroupSnapshotClassName": of_class.name}
    return Patch(kind=GROUPS, target=group, body=body, why="hold it for its content") if body else None


def _follow(group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent) -> Action:
    """Copy the content's status."""
    theirs, ours = content.status, group.status
    if theirs == type(theirs)():
        return Wait(reason=f"content {content.name} has no snapshots yet")  # The first write shows everything.
    status: dict[str, Any] = {}
    events: list[EventRecord] = []
    if ours.bound_volume_group_snapshot_content_name != content.name:
        status["boundVolumeGroupSnapshotContentName"] = content.name
    if ours.creation_time is None and theirs.creation_time is not None:
        status["creationTime"] = theirs.creation_time
        text = f"GroupSnapshot {group.key} was successfully created by the CSI driver."
        events.append(EventRecord(GROUPS, group, "Normal", "GroupSnapshotCreated", text))
    if ours.ready_to_use != theirs.ready_to_use or not ours.bound_volume_group_snapshot_content_name:
        status["readyToUse"] = theirs.ready_to_use
    if theirs.ready_to_use and not ours.ready_to_use:
        text = f"GroupSnapshot {group.key} is ready to use."
        events.append(EventRecord(GROUPS, group, "Normal", "GroupSnapshotReady", text))
    error = theirs.error if theirs.error is not None and not theirs.ready_to_use else None
    if (error.message if error is not None else None) != (ours.error.message if ours.error is not None else None):
        status["error"] = {"time": error.time, "message": error.message} if error is not None else None
    if not status:
        done = theirs.ready_to_use or is_terminal(error)
        return Settled() if done else Wait(reason=f"content {content.name} is not ready")
    return _status_patch(group, status, *events, why=f"show what content {content.name} shows")


def _refuse(group: VolumeGroupSnapshot, reason: str, message: str, state: SnapshotState) -> Action:
    """Show why it does not go on. An error that is shown already is not written again: its time tells since when."""
    shown = group.status.error
    if shown is not None and shown.message == message and not group.status.ready_to_use:
        return Wait(reason=message)
    now = timestamp(state.cluster.now())
    status = {"readyToUse": False, "error": {"time": now, "message": message}}
    return _status_patch(group, status, warning(GROUPS, group, reason, message), why=message)


def _status_patch(group: VolumeGroupSnapshot, status: dict[str, Any], *events: EventRecord, why: str) -> Patch:
    return Patch(kind=GROUPS, target=group, body={"status": status}, subresource="status", why=why, events=events)


# --- deletion -------------------------------------------------------------------------------------------------------


def _deletion(group: VolumeGroupSnapshot, state: SnapshotState) -> Action:
    if not group.has_finalizer(names.GROUP_BOUND):
        return Settled()  # Nothing here holds it.
    content, members = _bound_to(group, state), state.members_of(group)
    if content is not None and not state.serves(content.spec.driver):
        return Settled()
    if content is not None and content.annotation(names.GROUP_BEING_DELETED) is None:
        marked = annotate(content, {names.GROUP_BEING_DELETED: "yes"}, why=f"group {group.key} is being deleted")
        return _in_use(group, members, state) or marked
    deletes = content is not None and content.spec.deletion_policy == "Delete"
    why = f"VolumeGroupSnapshot {group.key} is being deleted"
    if content is not None and deletes and not content.terminating:
        return Delete(kind=GROUP_CONTENTS, target=content, why=why, exact=False)
    if staying := [each for each in members if not each.terminating]:
        return Delete(kind=VOLUME_SNAPSHOTS, target=staying[0], why=why, exact=False)
    if content is None or not deletes:
        kept = "it has no content" if content is None else f"content {content.name} is kept by its policy"
        body = {"metadata": {"finalizers": group.finalizers_without(names.GROUP_BOUND)}}
        return Patch(kind=GROUPS, target=group, body=body, why=kept)
    shown, error = group.status.error, content.status.error
    if error is not None and (shown is None or shown.message != error.message):
        status = {"error": {"time": error.time, "message": error.message}}
        return _status_patch(group, status, why="show why its content stays")
    return Wait(reason=f"content {content.name} is being deleted")


def _in_use(group: VolumeGroupSnapshot, members: list[VolumeSnapshot], state: SnapshotState) -> Wait | None:
    for member in members:
        if (reader := restored_by(member, state.cluster)) is not None:
            text = f"Snapshot {member.key} belonging to VolumeGroupSnapshot {group.key} is being used to restore a PVC"
            event = warning(GROUPS, group, "SnapshotDeletePending", text)
            return Wait(reason=f"its member {member.name} is being used to restore {reader}", events=(event,))
    return None


def _bound_to(group: VolumeGroupSnapshot, state: SnapshotState) -> VolumeGroupSnapshotContent | None:
    """Return the content that is bound to the group. What its status says may be a tenant's word."""
    content = state.group_contents.get(group_content_name_of(group))
    bound = content is not None and content.spec.volume_group_snapshot_ref.uid and names_group(content, group)
    return content if bound else None
