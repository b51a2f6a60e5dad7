"""The next step for a VolumeSnapshotContent of one of our drivers: the half of the csi-snapshotter. Pure.

A content of ours carries finalizer and intent from its creation, so nothing is cut that no object leads to. One that a
stock snapshot-controller has made gets both, and its mark `being-created`, in one write before the first call; then the
protocol of that controller is kept: nothing is deleted before its mark `being-deleted`, and the mark of the call goes
once its outcome is known. Whether a snapshot is ready is asked of `find_snapshot`: nothing is cut to learn that.
Source: pkg/sidecar-controller of kubernetes-csi/external-snapshotter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from msgspec.structs import replace

from volplane.controller.actions import Action, Delete, LiveReads, Patch, Read, Run, Settled, Wait, warning
from volplane.drivers.driver import DriverView
from volplane.intents.ownership import driver_named
from volplane.kube import names
from volplane.kube.kinds import VOLUMES, Kind
from volplane.kube.objects import ObjectReference, Volume, timestamp
from volplane.snapshots.groups_objects import GROUP_CONTENTS, VolumeGroupSnapshotContent
from volplane.snapshots.objects import VOLUME_SNAPSHOT_CONTENTS, VOLUME_SNAPSHOTS, VolumeSnapshotContent
from volplane.snapshots.parameters import class_flaw
from volplane.snapshots.state import (
    TERMINAL,
    Cut,
    Cutting,
    GroupIntent,
    Lost,
    Removed,
    Removing,
    SnapshotIntent,
    SnapshotState,
    claim_uid_of,
    intent_of,
    is_terminal,
)
from volplane.state.cluster_state import ClusterState
from volplane.state.records import INTENT_VERSION, write_intent

CREATE: Final = "create_snapshot"
FIND: Final = "find_snapshot"
DELETE: Final = "delete_snapshot"
UNSERVED: Final = "the API server does not serve the kinds of snapshots now, which proves nothing of any object"
UNSERVED_SECONDS: Final = 60.0
AnyContent = VolumeSnapshotContent | VolumeGroupSnapshotContent
NO_SNAPSHOT: Final = "the storage has no snapshot of it, and none is cut any more"


def decide_content(name: str, state: SnapshotState, reads: LiveReads) -> Action:
    content = state.contents.get(name)
    if content is None:
        return Settled()
    driver = serving(content, state)
    if not isinstance(driver, DriverView):
        return driver
    if content.terminating and not content.has_finalizer(names.CONTENT_BOUND):
        return Settled()  # Nothing here holds it.
    if content.terminating and (step := _deletion(content, driver, state, reads)) is not None:
        return step
    source = content.spec.source
    if bool(source.volume_handle) == bool(source.snapshot_handle):
        text = "Exactly one of VolumeHandle and SnapshotHandle should be specified"
        return Wait(reason=text, events=(warning(VOLUME_SNAPSHOT_CONTENTS, content, "ContentValidationError", text),))
    if content.annotation(names.GROUP_SNAPSHOT_HANDLE) is not None and not content.status.snapshot_handle:
        return Settled()  # It is cut with those of its group.
    if source.snapshot_handle and not content.spec.volume_snapshot_ref.uid:
        return Wait(reason=f"no VolumeSnapshot {content.spec.volume_snapshot_ref.key} is bound to it")
    return _make(content, driver, state, reads)


def _make(content: VolumeSnapshotContent, driver: DriverView, state: SnapshotState, reads: LiveReads) -> Action:
    """Return the next action towards a snapshot that is ready."""
    step, status = state.progress.get(content.uid).step, content.status
    if (shown := _show(content, state) or _held_again(content, state)) is not None:
        return shown
    if status.ready_to_use or is_terminal(status.error):
        return Settled()
    marked = content.annotation(names.SNAPSHOT_BEING_DELETED) is not None
    if state.binds() and marked and content.spec.deletion_policy == "Delete":
        return Wait(reason="its VolumeSnapshot is being deleted")
    if not driver.supports(FIND):
        return cannot(content, f'driver "{driver.name}" makes no snapshots', state)
    if isinstance(step, Cut) and (left := max(step.due - state.cluster.monotonic(), 0.0)):
        doing = f": {step.snapshot.state}" if step.snapshot.state else ""
        return Wait(reason=f"the snapshot is cut and not ready yet{doing}", seconds=left)
    if status.snapshot_handle or content.spec.source.snapshot_handle or not may_cut(content, state):
        return run(FIND, content, driver)
    intent = intent_of(content)
    gone = source_gone([(intent.volume, intent.claim)] if intent is not None else [], state, reads)
    if gone is not None:
        return run(FIND, content, driver) if isinstance(gone, Settled) else gone
    if (first := _declare(content, driver, state) or resume(content, intent_of(content), step, state)) is not None:
        return first
    return replace(run(CREATE, content, driver), progress=step.progress if isinstance(step, Cutting) else "")


def _show(content: VolumeSnapshotContent, state: SnapshotState) -> Action | None:
    """Return the write of what hooks have shown; None if the object shows it."""
    progress, reference = state.progress.get(content.uid), content.spec.volume_snapshot_ref
    step = progress.step
    if progress.failure and (patch := show_error(content, progress.failure, state)) is not None:
        return patch
    if isinstance(step, Cut) and (shown := _status(content, step, state)):
        why, body = "show the snapshot", {"status": shown}
        return Patch(kind=VOLUME_SNAPSHOT_CONTENTS, target=content, body=body, subresource="status", why=why)
    if isinstance(step, Lost) and not content.status.snapshot_handle:
        if state.binds() and intent_of(content) is not None and reference.key not in state.snapshots:
            why = f"neither VolumeSnapshot {reference.key} nor a snapshot of it exists"
            return Delete(kind=VOLUME_SNAPSHOT_CONTENTS, target=content, why=why)
        if (patch := show_error(content, TERMINAL + NO_SNAPSHOT, state)) is not None:
            return patch
    # Once the outcome is known, this mark would only keep the object from being deleted.
    ended = bool(content.status.snapshot_handle) or isinstance(step, Lost) or is_terminal(content.status.error)
    if ended and content.annotation(names.SNAPSHOT_BEING_CREATED) is not None:
        return annotate(content, {names.SNAPSHOT_BEING_CREATED: None}, why="nothing is being cut for it")
    return None


def _held_again(content: VolumeSnapshotContent, state: SnapshotState) -> Action | None:
    """Put the finalizer back where both halves are ours: without it the snapshot is lost when the object is deleted."""
    held = content.has_finalizer(names.CONTENT_BOUND) or content.terminating
    has_snapshot = content.status.snapshot_handle or content.spec.source.snapshot_handle
    if held or not has_snapshot or not state.binds() or state.snapshot_of(content) is None:
        return None
    body = {"metadata": {"finalizers": content.finalizers_with(names.CONTENT_BOUND)}}
    return Patch(kind=VOLUME_SNAPSHOT_CONTENTS, target=content, body=body, why="hold it until its snapshot is gone")


def may_cut(content: VolumeSnapshotContent, state: SnapshotState) -> bool:
    """Return whether a snapshot may be cut for the content, which has none: somebody waits for its moment.

    A VolumeSnapshot that shows a moment had a snapshot: what is cut now would be other data under its name. Beside a
    stock controller a call without an answer goes on until there is one, whatever is deleted meanwhile.
    """
    snapshot, marked = state.snapshot_of(content), content.annotation(names.SNAPSHOT_BEING_DELETED) is not None
    if snapshot is not None and snapshot.status.creation_time is not None:
        return False
    if not state.binds():
        return content.annotation(names.SNAPSHOT_BEING_CREATED) is not None or not marked
    return snapshot is not None and not snapshot.terminating and not marked and not content.terminating


def source_gone(sources: Iterable[tuple[str, str]], state: SnapshotState, reads: LiveReads) -> Action | None:
    """Return `Settled` if a volume is gone for good, or not its claim's any more; else the live read that tells.

    None: nothing speaks against a cut. sources: name of the volume, uid of the claim, as recorded. Nothing can be cut
    then, and what was is found by its marks.
    """
    for name, claim in sources:
        cached = state.cluster.volumes.get(name)
        if not name or not claim or (cached is not None and claim_uid_of(cached) == claim):
            continue
        if not reads.has(VOLUMES, name):
            return Read(VOLUMES, name, why="is the volume that was to be cut gone?")
        live = reads.get(VOLUMES, name)
        if not isinstance(live, Volume) or claim_uid_of(live) != claim:
            return Settled()
    return None


def _declare(content: VolumeSnapshotContent, driver: DriverView, state: SnapshotState) -> Action | None:
    """Return the write that comes before the first call; None if it is done, as on all contents of ours."""
    held, intent = content.has_finalizer(names.CONTENT_BOUND), intent_of(content)
    beside = not state.binds() and content.annotation(names.SNAPSHOT_BEING_CREATED) is None
    if held and intent is not None and not beside:
        return None
    annotations: dict[str, str] = {names.SNAPSHOT_BEING_CREATED: "yes"} if beside else {}
    if intent is None:
        volume = state.source_of(content)
        if volume is None:
            handle = content.spec.source.volume_handle
            return cannot(content, f"its claim is bound to no volume with the handle {handle}", state)
        if not driver.supports(CREATE):
            return cannot(content, f'driver "{driver.name}" makes no snapshots', state)
        class_name = content.spec.volume_snapshot_class_name or ""
        of_class = state.classes.get(class_name)
        if of_class is None:
            return cannot(content, f'volumesnapshotclass.snapshot.storage.k8s.io "{class_name}" not found', state)
        if flaw := class_flaw(of_class, driver):
            return cannot(content, flaw, state)
        uid = content.spec.volume_snapshot_ref.uid
        fresh = new_intent(uid, volume, dict(of_class.parameters or {}), state.cluster)
        annotations[names.INTENT] = write_intent(fresh)
    metadata: dict[str, Any] = {"annotations": annotations} if annotations else {}
    # The API server refuses new finalizers on an object that is being deleted.
    if not held and not content.terminating:
        metadata["finalizers"] = content.finalizers_with(names.CONTENT_BOUND)
    if not metadata:
        return None
    why = "what may be cut is on record first"
    return Patch(kind=VOLUME_SNAPSHOT_CONTENTS, target=content, body={"metadata": metadata}, why=why)


def new_intent(
    snapshot_uid: str, volume: Volume | None, parameters: dict[str, str], cluster: ClusterState
) -> SnapshotIntent:
    return SnapshotIntent(
        v=INTENT_VERSION,
        cluster=cluster.cluster_id,
        snapshot=snapshot_uid,
        volume=volume.name if volume is not None else "",
        claim=claim_uid_of(volume) if volume is not None else "",
        parameters=parameters,
        fence=cluster.fence(),
    )


def _status(content: VolumeSnapshotContent, cut: Cut, state: SnapshotState) -> dict[str, Any]:
    """Return what the status lacks of the snapshot. Handle, time and size are never changed, nor is what is ready."""
    status, snapshot = content.status, cut.snapshot
    shown: dict[str, Any] = {}
    if status.ready_to_use and not snapshot.ready:
        return shown  # Another process has seen more.
    if not status.snapshot_handle:
        shown["snapshotHandle"] = snapshot.handle
    if status.creation_time is None:
        shown["creationTime"] = cut.created
    if not status.restore_size and snapshot.size_bytes > 0:
        shown["restoreSize"] = snapshot.size_bytes
    if status.ready_to_use != snapshot.ready or not status.snapshot_handle:
        shown["readyToUse"] = snapshot.ready
    message = status.error.message if status.error is not None else ""
    wanted = TERMINAL + snapshot.failed if snapshot.failed else ""
    if message != wanted:
        shown["error"] = {"time": timestamp(state.cluster.now()), "message": wanted} if wanted else None
    return shown


def show_error(content: AnyContent, message: str, state: SnapshotState) -> Patch | None:
    """Return the write of an error; None if the status shows it already: the time of the first one is kept."""
    shown = content.status.error
    if shown is not None and shown.message == message:
        return None
    status = {"readyToUse": False, "error": {"time": timestamp(state.cluster.now()), "message": message}}
    return Patch(kind=kind_of(content), target=content, body={"status": status}, subresource="status", why=message)


def cannot(content: AnyContent, message: str, state: SnapshotState) -> Action:
    """Show why no call can be made, until something changes."""
    word = "" if isinstance(content, VolumeSnapshotContent) else "group "
    reason = f"{word.strip().title()}SnapshotContentCheckandUpdateFailed"
    text = f"Failed to check and update {word}snapshot content: {message}"
    shown = show_error(content, text, state)
    event = warning(kind_of(content), content, reason, text)
    return replace(shown, events=(event,)) if shown is not None else Wait(reason=message)


# --- deletion -----------------------------------------------------------------------------------------------------


def _deletion(
    content: VolumeSnapshotContent, driver: DriverView, state: SnapshotState, reads: LiveReads
) -> Action | None:
    """Return the next step of the deletion; None if a call that may cut has to be answered first."""
    if not state.binds() and content.annotation(names.SNAPSHOT_BEING_CREATED) is not None:
        if not content.status.snapshot_handle and not isinstance(state.progress.get(content.uid).step, Lost):
            return None
        return annotate(content, {names.SNAPSHOT_BEING_CREATED: None}, why="nothing is being cut for it")
    if (first := awaits_snapshot(content, state, reads)) is not None:
        done = content.status.ready_to_use or is_terminal(content.status.error)
        # Its VolumeSnapshot, and the claim of that, wait for the outcome of what was begun.
        return None if isinstance(first, Wait) and state.binds() and not done else first
    progress = state.progress.get(content.uid)
    step = progress.step
    member = content.annotation(names.GROUP_SNAPSHOT_HANDLE) is not None
    if content.spec.deletion_policy != "Delete" or member:
        return _release(content, why=f"its snapshot is kept by policy {content.spec.deletion_policy}")
    if isinstance(step, Removed):
        if not state.binds() and content.status.snapshot_handle:
            gone = dict.fromkeys(("snapshotHandle", "readyToUse", "creationTime", "restoreSize"))
            why = "its snapshot is gone"
            return Patch(
                kind=VOLUME_SNAPSHOT_CONTENTS, target=content, body={"status": gone}, subresource="status", why=why
            )
        return _release(content, why="its snapshot is gone")
    if progress.failure and (patch := show_error(content, progress.failure, state)) is not None:
        return patch
    return resume(content, intent_of(content), step, state) or run(DELETE, content, driver)


def awaits_snapshot(content: VolumeSnapshotContent, state: SnapshotState, reads: LiveReads) -> Action | None:
    """Return what comes before a content that is being deleted may go: its VolumeSnapshot is in use; else None.

    That it is being deleted, too, is a mark. Beside a stock controller nothing else counts. Otherwise the content of a
    VolumeSnapshot that is gone, by a live read, may go: somebody has removed its finalizers.
    """
    reference = content.spec.volume_snapshot_ref
    unbound = bool(content.spec.source.snapshot_handle) and not reference.uid
    if unbound or content.annotation(names.SNAPSHOT_BEING_DELETED) is not None:
        return None
    return awaits_owner(VOLUME_SNAPSHOTS, reference, state, reads)


def awaits_owner(kind: Kind[Any], reference: ObjectReference, state: SnapshotState, reads: LiveReads) -> Action | None:
    """Return what comes before a content whose owner has not marked it may go; None once that is gone."""
    if not state.binds():
        why = f"the snapshot-controller has not said that {kind.kind} {reference.key} is being deleted"
        # Once its Lease is not renewed any more, this is ours to find out.
        return Wait(reason=why, seconds=state.stock_for()[1] if state.common else None)
    if not reads.serves(kind):
        return Wait(reason=UNSERVED, seconds=UNSERVED_SECONDS)
    if not reads.has(kind, reference.key):
        return Read(kind, reference.key, why=f"is its {kind.kind} gone?")
    live = reads.get(kind, reference.key)
    if live is None or (reference.uid and live.uid != reference.uid):
        return None
    return Wait(reason=f"{kind.kind} {reference.key} needs it: delete that, and it goes with it")


def _release(content: VolumeSnapshotContent, *, why: str) -> Patch:
    body = {"metadata": {"finalizers": content.finalizers_without(names.CONTENT_BOUND)}}
    return Patch(kind=VOLUME_SNAPSHOT_CONTENTS, target=content, body=body, why=why)


# --- shared -------------------------------------------------------------------------------------------------------


def serving(content: AnyContent, state: SnapshotState) -> DriverView | Action:
    """Return the driver of the content, or what is done without one."""
    lookup = driver_named(content.spec.driver, state.cluster)
    return lookup.driver or lookup.next or (Wait(reason=lookup.reason) if lookup.reason else Settled())


def run(verb: str, content: AnyContent, driver: DriverView) -> Run:
    if isinstance(content, VolumeSnapshotContent):
        class_name = content.spec.volume_snapshot_class_name
    else:
        class_name = content.spec.volume_group_snapshot_class_name
    group = f"{verb} {class_name or ''}"
    return Run(verb=verb, key=content.key, uid=content.uid, driver=driver.name, asset=content.name, group=group)


def annotate(content: AnyContent, annotations: dict[str, str | None], *, why: str) -> Patch:
    return Patch(kind=kind_of(content), target=content, body={"metadata": {"annotations": annotations}}, why=why)


def kind_of(content: AnyContent) -> Kind[Any]:
    return VOLUME_SNAPSHOT_CONTENTS if isinstance(content, VolumeSnapshotContent) else GROUP_CONTENTS


def resume(
    content: AnyContent, intent: SnapshotIntent | GroupIntent | None, step: object, state: SnapshotState
) -> Action | None:
    """Go on with a long call: keep its state on the content, or wait until it is due; None: call the hook now."""
    if not isinstance(step, Cutting | Removing):
        return None
    field = "deleting" if isinstance(step, Removing) else "state"
    if intent is not None and step.unrecorded(getattr(intent, field)):
        kept = replace(intent, **{field: dict(step.state)})
        return annotate(content, {names.INTENT: write_intent(kept)}, why="keep the driver's state")
    left = step.left(state.cluster.monotonic())
    return Wait(reason=step.said("the driver is at work on it"), seconds=left) if left else None
