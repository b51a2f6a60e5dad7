"""The next step for a VolumeGroupSnapshotContent of one of our drivers: the half of the csi-snapshotter. Pure.

It is that of a VolumeSnapshotContent (`contents`), for several volumes at once: the record comes before the first call,
a moment that is over is looked up and never cut again, and the snapshots go when the group does.
Source: pkg/sidecar-controller of kubernetes-csi/external-snapshotter.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from volplane.assets import Snapshot
from volplane.controller.actions import Action, LiveReads, Patch, Settled, Wait, warning
from volplane.drivers.driver import DriverView
from volplane.kube import names
from volplane.kube.objects import timestamp
from volplane.snapshots.contents import (
    NO_SNAPSHOT,
    annotate,
    awaits_owner,
    cannot,
    resume,
    run,
    serving,
    show_error,
    source_gone,
)
from volplane.snapshots.groups_objects import GROUP_CONTENTS, GROUPS, VolumeGroupSnapshotContent
from volplane.snapshots.groups_state import group_intent_of, group_of_content, new_group_intent, sources_of
from volplane.snapshots.parameters import class_flaw
from volplane.snapshots.state import TERMINAL, GroupCut, Lost, Removed, SnapshotState, is_terminal
from volplane.state.records import write_intent

CREATE_GROUP: Final = "create_group_snapshot"
FIND_GROUP: Final = "find_group_snapshot"
DELETE_GROUP: Final = "delete_group_snapshot"


def decide_group_content(name: str, state: SnapshotState, reads: LiveReads) -> Action:
    content = state.group_contents.get(name)
    if content is None:
        return Settled()
    driver = serving(content, state)
    if not isinstance(driver, DriverView):
        return driver
    if content.terminating and not content.has_finalizer(names.GROUP_CONTENT_BOUND):
        return Settled()  # Nothing here holds it.
    if content.terminating and (step := _deletion(content, driver, state, reads)) is not None:
        return step
    source = content.spec.source
    if bool(source.volume_handles) == (source.group_snapshot_handles is not None):
        text = "Exactly one of GroupSnapshotHandles and VolumeHandles should be specified"
        return Wait(reason=text, events=(warning(GROUP_CONTENTS, content, "GroupContentValidationError", text),))
    if source.group_snapshot_handles is not None and not content.spec.volume_group_snapshot_ref.uid:
        return Wait(reason=f"no VolumeGroupSnapshot {content.spec.volume_group_snapshot_ref.key} is bound to it")
    return _make(content, driver, state, reads)


def _make(content: VolumeGroupSnapshotContent, driver: DriverView, state: SnapshotState, reads: LiveReads) -> Action:
    """Return the next action towards snapshots that are ready."""
    step, status = state.grouped.get(content.uid).step, content.status
    if (shown := _show(content, state)) is not None:
        return shown
    if status.ready_to_use or is_terminal(status.error):
        return Settled()
    marked = content.annotation(names.GROUP_BEING_DELETED) is not None
    if state.binds() and marked and content.spec.deletion_policy == "Delete":
        return Wait(reason="its VolumeGroupSnapshot is being deleted")
    if not driver.supports(CREATE_GROUP):
        return cannot(content, no_groups(driver), state)
    if isinstance(step, GroupCut) and (left := max(step.due - state.cluster.monotonic(), 0.0)):
        return Wait(reason="the snapshots are cut and not ready yet", seconds=left)
    if content.handle or not may_cut_group(content, state):
        return run(FIND_GROUP, content, driver)
    intent = group_intent_of(content)
    gone = source_gone(
        ((each.volume, each.claim) for each in intent.members) if intent is not None else (), state, reads
    )
    if gone is not None:
        return run(FIND_GROUP, content, driver) if isinstance(gone, Settled) else gone
    first = _declare(content, driver, state)
    return first or resume(content, intent, step, state) or run(CREATE_GROUP, content, driver)


def no_groups(driver: DriverView) -> str:
    """Return why the driver makes no snapshots of groups, with what to do."""
    return f'driver "{driver.name}" cannot cut several volumes at one moment; make a VolumeSnapshot of each'


def _show(content: VolumeGroupSnapshotContent, state: SnapshotState) -> Action | None:
    """Return the write of what hooks have shown; None if the object shows it."""
    progress = state.grouped.get(content.uid)
    step = progress.step
    if progress.failure and (patch := show_error(content, progress.failure, state)) is not None:
        return patch
    if isinstance(step, GroupCut) and (shown := _status(content, step)):
        return _status_patch(content, shown, why="show the snapshots")
    lost = isinstance(step, Lost) and not content.handle
    if lost and not is_terminal(content.status.error):
        missing = sources_of(content, state)
        why = f"{missing}: " if isinstance(missing, str) else ""
        return show_error(content, f"{TERMINAL}{why}{NO_SNAPSHOT}", state)
    # Once the outcome is known, this mark would only keep the object from being deleted.
    ended = bool(content.status.volume_group_snapshot_handle) or isinstance(step, Lost)
    if (ended or is_terminal(content.status.error)) and content.annotation(names.GROUP_BEING_CREATED) is not None:
        return annotate(content, {names.GROUP_BEING_CREATED: None}, why="nothing is being cut for it")
    return None


def may_cut_group(content: VolumeGroupSnapshotContent, state: SnapshotState) -> bool:
    """Return whether the group may be cut, which is not: somebody waits for its moment. As `contents.may_cut`."""
    group, marked = group_of_content(content, state), content.annotation(names.GROUP_BEING_DELETED) is not None
    if group is not None and group.status.creation_time is not None:
        return False
    if not state.binds():
        return content.annotation(names.GROUP_BEING_CREATED) is not None or not marked
    return group is not None and not group.terminating and not marked and not content.terminating


def _declare(content: VolumeGroupSnapshotContent, driver: DriverView, state: SnapshotState) -> Action | None:
    """Return the write that comes before the first call; None if it is done, as on all contents of ours."""
    held, intent = content.has_finalizer(names.GROUP_CONTENT_BOUND), group_intent_of(content)
    beside = not state.binds() and content.annotation(names.GROUP_BEING_CREATED) is None
    if held and intent is not None and not beside:
        return None
    annotations: dict[str, str] = {names.GROUP_BEING_CREATED: "yes"} if beside else {}
    if intent is None:
        volumes = sources_of(content, state)
        if isinstance(volumes, str):
            return cannot(content, volumes, state)
        class_name = content.spec.volume_group_snapshot_class_name or ""
        of_class = state.group_classes.get(class_name)
        if of_class is None:
            missing = f'volumegroupsnapshotclass.groupsnapshot.storage.k8s.io "{class_name}" not found'
            return cannot(content, missing, state)
        if flaw := class_flaw(of_class, driver):
            return cannot(content, flaw, state)
        uid = content.spec.volume_group_snapshot_ref.uid
        fresh = new_group_intent(uid, volumes, dict(of_class.parameters or {}), state.cluster)
        annotations[names.INTENT] = write_intent(fresh)
    metadata: dict[str, Any] = {"annotations": annotations} if annotations else {}
    # The API server refuses new finalizers on an object that is being deleted.
    if not held and not content.terminating:
        metadata["finalizers"] = content.finalizers_with(names.GROUP_CONTENT_BOUND)
    if not metadata:
        return None
    why = "what may be cut is on record first"
    return Patch(kind=GROUP_CONTENTS, target=content, body={"metadata": metadata}, why=why)


def _status(content: VolumeGroupSnapshotContent, cut: GroupCut) -> dict[str, Any]:
    """Return what the status lacks of the group. Handle, time and members are never changed, nor is what is ready."""
    status, group = content.status, cut.group
    ready = all(each.ready for each in group.snapshots)
    shown: dict[str, Any] = {}
    if status.ready_to_use and not ready:
        return shown  # Another process has seen more.
    if not status.volume_group_snapshot_handle:
        shown["volumeGroupSnapshotHandle"] = group.handle
    if status.creation_time is None:
        shown["creationTime"] = timestamp(datetime.fromtimestamp(cut.created // 10**9, UTC))
    if not status.volume_snapshot_info_list and content.spec.source.volume_handles:
        shown["volumeSnapshotInfoList"] = _members(content, cut)
    if status.ready_to_use != ready or not status.volume_group_snapshot_handle:
        shown["readyToUse"] = ready
    failed = next((each.failed for each in group.snapshots if each.failed), "")
    if status.error is not None and not failed:
        shown["error"] = None
    elif failed and (status.error is None or status.error.message != TERMINAL + failed):
        shown["error"] = {"time": shown.get("creationTime", status.creation_time), "message": TERMINAL + failed}
    return shown


def _members(content: VolumeGroupSnapshotContent, cut: GroupCut) -> list[dict[str, Any]]:
    """Return the members in the order in which the content names the volumes."""
    intent = group_intent_of(content)
    by_asset = {each.asset: each.handle for each in intent.members} if intent is not None else {}
    found: dict[str, Snapshot] = {by_asset.get(each.source, each.source): each for each in cut.group.snapshots}
    return [
        {
            "volumeHandle": handle,
            "snapshotHandle": found[handle].handle,
            "creationTime": cut.created,
            "readyToUse": found[handle].ready,
            "restoreSize": found[handle].size_bytes,
        }
        for handle in content.spec.source.volume_handles or ()
        if handle in found
    ]


# --- deletion -----------------------------------------------------------------------------------------------------


def _deletion(
    content: VolumeGroupSnapshotContent, driver: DriverView, state: SnapshotState, reads: LiveReads
) -> Action | None:
    """Return the next step of the deletion; None if a call that may cut has to be answered first."""
    progress = state.grouped.get(content.uid)
    step = progress.step
    if not state.binds() and content.annotation(names.GROUP_BEING_CREATED) is not None:
        if not content.status.volume_group_snapshot_handle and not isinstance(step, Lost):
            return None
        return annotate(content, {names.GROUP_BEING_CREATED: None}, why="nothing is being cut for it")
    if (first := awaits_group(content, state, reads)) is not None:
        done = content.status.ready_to_use or is_terminal(content.status.error)
        return None if isinstance(first, Wait) and state.binds() and not done else first
    if content.spec.deletion_policy != "Delete":
        return _release(content, why=f"its snapshots are kept by policy {content.spec.deletion_policy}")
    if isinstance(step, Removed):
        if not state.binds() and content.status.volume_group_snapshot_handle:
            gone = dict.fromkeys(("volumeGroupSnapshotHandle", "readyToUse", "creationTime", "error"))
            return _status_patch(content, gone, why="its snapshots are gone")
        return _release(content, why="its snapshots are gone")
    if progress.failure and (patch := show_error(content, progress.failure, state)) is not None:
        return patch
    return resume(content, group_intent_of(content), step, state) or run(DELETE_GROUP, content, driver)


def awaits_group(content: VolumeGroupSnapshotContent, state: SnapshotState, reads: LiveReads) -> Action | None:
    """Return what comes before a content that is being deleted may go; None: nothing. As `contents.awaits_snapshot`."""
    reference = content.spec.volume_group_snapshot_ref
    unbound = content.spec.source.group_snapshot_handles is not None and not reference.uid
    if unbound or content.annotation(names.GROUP_BEING_DELETED) is not None:
        return None
    return awaits_owner(GROUPS, reference, state, reads)


def _release(content: VolumeGroupSnapshotContent, *, why: str) -> Patch:
    body = {"metadata": {"finalizers": content.finalizers_without(names.GROUP_CONTENT_BOUND)}}
    return Patch(kind=GROUP_CONTENTS, target=content, body=body, why=why)


# --- shared -------------------------------------------------------------------------------------------------------


def _status_patch(content: VolumeGroupSnapshotContent, status: dict[str, Any], *, why: str) -> Patch:
    return Patch(kind=GROUP_CONTENTS, target=content, body={"status": status}, subresource="status", why=why)
