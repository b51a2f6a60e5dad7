"""The operations on snapshots: the live checks, one call of a hook, and its result kept for the next decision.

What cuts needs no live read: the content, with its finalizer and intent, leads to whatever comes of the call. What
destroys reads the content live, with its policy, and the VolumeSnapshot that it names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from volplane import errors
from volplane._delays import LONG_CALL
from volplane.assets import InProgress, Snapshot
from volplane.controller.actions import EventRecord, LiveReads, Run, warning
from volplane.controller.controller import Handler, Work
from volplane.drivers.driver import DriverView
from volplane.intents.operation import OperationDeps
from volplane.intents.requests import volume_identity
from volplane.kube import names
from volplane.kube.cache import Cache
from volplane.kube.kinds import Kind
from volplane.kube.objects import KubeObject
from volplane.operations.operation import Again
from volplane.requests import DeleteSnapshotRequest, FindSnapshotRequest, HookRequest, SnapshotIdentity, SnapshotRequest
from volplane.snapshots.contents import CREATE, DELETE, FIND, AnyContent, awaits_snapshot, may_cut
from volplane.snapshots.objects import VOLUME_SNAPSHOT_CONTENTS, VOLUME_SNAPSHOTS, VolumeSnapshotContent
from volplane.snapshots.state import (
    ContentProgress,
    Cut,
    Cutting,
    Lost,
    Removed,
    Removing,
    SnapshotState,
    intent_of,
    marked_uid,
    marks_of,
    owner_of_snapshot,
    snapshot_name,
)
from volplane.state.progress import ProgressTable

QUEUE: Final = "snapshot-contents"
_SAME_MOMENT: Final = 1.0
"""Seconds by which two tellings of one moment may differ: a VolumeSnapshot shows whole seconds."""

C = TypeVar("C", bound=KubeObject)
R = TypeVar("R")
Step = Callable[[Run, C, DriverView, ContentProgress], Awaitable[None]]
"""An operation on a content."""


def on_content(
    run: Run,
    deps: OperationDeps,
    contents: Cache[C],
    progress: ProgressTable[str, ContentProgress],
    *,
    do: Step[C],
    failed: Callable[[Run, C, ContentProgress, errors.BackendError], None],
) -> Work:
    """Return an operation on a content as work: with its driver and its record, and what keeps its failure."""
    driver = deps.driver(run)

    async def work() -> None:
        content = contents.get(run.key)
        if content is None or content.uid != run.uid:
            return
        known = progress.track(run.uid)
        try:
            await do(run, content, driver, known)
        except errors.BackendError as error:
            failed(run, content, known, error)
            raise

    return work


async def ask(
    deps: OperationDeps,
    driver: DriverView,
    request: HookRequest[R | InProgress],
    progress: ContentProgress,
    given: Mapping[str, Any] | None,
    *,
    about: tuple[Kind[Any], KubeObject],
) -> R | None:
    """Call the hook that cuts, and return what it made; None: it goes on. given: the recorded state of the call.

    about: what an event is about that tells how far it is.
    """
    progress.attempted = None
    try:
        result = await deps.hooks.call(driver, request)
    finally:
        progress.attempted = deps.cluster.monotonic()
    if isinstance(result, InProgress):
        kind, item = about
        text = f"{kind.kind} {item.key} is being made by {driver.name}"
        event = EventRecord(kind, item, "Normal", "SnapshotPending", text)
        told = deps.tell(result.progress, progress.step, event)
        due = deps.next_due(result.retry_after)
        progress.reached(Cutting(dict(result.state), due, given, result.progress, told))
        return None
    return result


def require_absent(progress: ContentProgress, driver: DriverView, state: SnapshotState) -> None:
    """Raise Again until it is proven that no snapshot exists."""
    left = progress.absence_seen(state.cluster.monotonic(), driver.info.settle_seconds)
    if left > 0:
        raise Again(after=left)


def require_own(content: AnyContent, found: Sequence[Snapshot], state: SnapshotState) -> None:
    """Raise AlreadyExists for what the driver has given to another content: it may have another tenant's data."""
    seen = set[str]()
    for handle in (each.handle for each in found):
        name = content.name if handle in seen else state.shared_with(content, handle)
        seen.add(handle)
        if name:
            taken = f"snapshot {handle} is already that of {VOLUME_SNAPSHOT_CONTENTS.kind} {name}"
            raise errors.AlreadyExists(f"{taken}: the driver gives out one snapshot twice")


async def end_started(cut: Awaitable[None] | None, progress: ContentProgress, none: Lost | Removed) -> None:
    """Call again what answered `InProgress`, before whose end `Absent` proves nothing; then there is none.

    cut: that call; None: nothing was started, or nothing comes of it any more. A deletion takes a refusal that left
    nothing for the end.
    """
    if cut is None:
        progress.reached(none)
        return
    try:
        await cut
    except errors.BackendError as error:
        if not isinstance(error, errors.NotFound) and not (error.nothing_left and isinstance(none, Removed)):
            raise
        progress.reached(none)


@dataclass(frozen=True, slots=True)
class SnapshotOperations:
    deps: OperationDeps
    state: SnapshotState

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers of the contents' queue, by verb."""
        return {
            CREATE: partial(self._on_content, self._create),
            FIND: partial(self._on_content, self._find),
            DELETE: partial(self._on_content, self._delete),
        }

    def _on_content(self, do: Step[VolumeSnapshotContent], run: Run) -> Work:
        return on_content(run, self.deps, self.state.contents, self.state.progress, do=do, failed=self._failed)

    # --- making ---------------------------------------------------------------------------------------------------

    async def _create(
        self, run: Run, content: VolumeSnapshotContent, driver: DriverView, progress: ContentProgress
    ) -> None:
        # The record precedes the call, and the VolumeSnapshot may be going since the decision.
        if not content.has_finalizer(names.CONTENT_BOUND) or not may_cut(content, self.state):
            raise self.deps.not_justified()
        await self._cut(content, driver, progress)

    async def _cut(self, content: VolumeSnapshotContent, driver: DriverView, progress: ContentProgress) -> None:
        """Call `create_snapshot`, or call it again, which shows what an earlier call has made."""
        intent, volume = intent_of(content), self.state.source_of(content)
        if intent is None:
            raise self.deps.not_justified()
        if volume is None:
            handle = content.spec.source.volume_handle
            raise errors.NotFound(f"no PersistentVolume with the handle {handle} is the source any more")
        reference = content.spec.volume_snapshot_ref
        identity = volume_identity(volume, self.state.cluster.cluster_id)
        request = SnapshotRequest(
            context=self.deps.context(driver, state=intent.state),
            name=snapshot_name(marked_uid(content)),
            volume=identity,
            owner=owner_of_snapshot(content, self.state.cluster.cluster_id),
            snapshot=SnapshotIdentity(namespace=reference.namespace, name=reference.name, content=content.name),
            parameters=driver.typed_parameters(intent.parameters, of_snapshot=True),
        )
        result = await ask(self.deps, driver, request, progress, intent.state, about=self._about(content))
        if result is None:
            return
        if result.source and result.source != identity.handle:
            made = f"snapshot {result.handle} is of {result.source}"
            raise errors.AlreadyExists(f"{made}, and one of {identity.handle} was asked for")
        self._require_own(content, result)
        self._found(progress, result)

    async def _find(
        self, run: Run, content: VolumeSnapshotContent, driver: DriverView, progress: ContentProgress
    ) -> None:
        found = await self._look(content, driver)
        if found is not None:
            self._require_own(content, found)
            self._found(progress, found)
            self._tell(content, found)
            return
        handle = content.status.snapshot_handle or content.spec.source.snapshot_handle
        if handle:
            raise errors.NotFound(f"the storage has no snapshot {handle}")
        require_absent(progress, driver, self.state)
        await self._end_started(content, driver, progress, Lost())

    async def _end_started(
        self, content: VolumeSnapshotContent, driver: DriverView, progress: ContentProgress, none: Lost | Removed
    ) -> None:
        """Follow what was started to its end (`end_started`), but for a volume that is gone, or another claim's."""
        intent = intent_of(content)
        started = intent is not None and intent.state is not None and self.state.source_of(content) is not None
        await end_started(self._cut(content, driver, progress) if started else None, progress, none)

    async def _look(self, content: VolumeSnapshotContent, driver: DriverView) -> Snapshot | None:
        intent, source = intent_of(content), content.spec.source
        handle = content.status.snapshot_handle or source.snapshot_handle
        dynamic = bool(source.volume_handle)
        request = FindSnapshotRequest(
            context=self.deps.context(driver),
            handle=handle,
            name=snapshot_name(marked_uid(content)) if dynamic else "",
            owner=owner_of_snapshot(content, self.state.cluster.cluster_id) if dynamic and not handle else None,
            parameters=self._known_parameters(intent.parameters if intent is not None else {}, driver),
        )
        found = await self.deps.hooks.call(driver, request)
        return found if isinstance(found, Snapshot) else None

    def _known_parameters(self, parameters: dict[str, str], driver: DriverView) -> dict[str, object]:
        """Return the typed parameters, or none: a driver that refuses them now still has the snapshot."""
        try:
            return driver.typed_parameters(parameters, of_snapshot=True)
        except errors.InvalidArgument:
            return {}

    def _require_own(self, content: VolumeSnapshotContent, found: Snapshot) -> None:
        if not (content.status.snapshot_handle or content.spec.source.snapshot_handle):
            require_own(content, (found,), self.state)

    def _found(self, progress: ContentProgress, found: Snapshot) -> None:
        cluster = self.state.cluster
        at = found.created_at if found.created_at is not None else cluster.now().timestamp()
        due = cluster.monotonic() + LONG_CALL.delay(asked=found.retry_after)
        progress.reached(Cut(found, round(at * 1000) * 10**6, due))

    def _tell(self, content: VolumeSnapshotContent, found: Snapshot) -> None:
        """Record how far a snapshot is that is not ready at the second look: one event, which is counted."""
        if found.ready or found.failed:
            return
        text = f"Snapshot {content.spec.volume_snapshot_ref.key} is cut and not ready to use yet"
        doing = f": {found.state}" if found.state else ""
        message = f"{text}{doing}; next look in {LONG_CALL.delay(asked=found.retry_after):.3g} s"
        kind, about = self._about(content)
        self.deps.recorder.record(EventRecord(kind, about, "Normal", "SnapshotPending", message, text))

    def _about(self, content: VolumeSnapshotContent) -> tuple[Kind[Any], KubeObject]:
        """Return what events are about: the VolumeSnapshot, where its owner looks, unless another controller binds it.

        Beside a stock snapshot-controller a csi-snapshotter writes on contents alone, and so do we.
        """
        snapshot = self.state.snapshot_of(content) if self.state.binds() else None
        return (VOLUME_SNAPSHOT_CONTENTS, content) if snapshot is None else (VOLUME_SNAPSHOTS, snapshot)

    # --- deleting -------------------------------------------------------------------------------------------------

    async def _delete(
        self, run: Run, content: VolumeSnapshotContent, driver: DriverView, progress: ContentProgress
    ) -> None:
        live = await self.deps.client.refresh(self.state.contents, run.key)
        if live is None or live.uid != run.uid:
            return
        await self._require_unused(live, driver)
        intent, handle = intent_of(live), await self._handle_to_delete(live, driver, progress)
        if not handle:
            return
        if intent is not None and intent.cluster != (ours := self.state.cluster.cluster_id):
            # The object was copied here. Its snapshot is for its own cluster to judge, as the volumes of that are.
            whose = f"snapshot {handle} was made in cluster {intent.cluster!r}, not in {ours!r}"
            raise errors.AlreadyExists(f"{whose}: it is not touched; set the content's deletionPolicy to Retain")
        if other := self.state.shared_with(live, handle):
            advice = f"delete that one, too, or set the deletionPolicy of {live.name} to Retain"
            raise errors.VolumeInUse(f"snapshot {handle} is also that of VolumeSnapshotContent {other}: {advice}")
        given = intent.deleting if intent is not None else None
        dynamic = bool(live.spec.source.volume_handle)
        owner = owner_of_snapshot(live, self.state.cluster.cluster_id) if dynamic and intent is not None else None
        request = DeleteSnapshotRequest(context=self.deps.context(driver, state=given), handle=handle, owner=owner)
        result = await self.deps.hooks.call(driver, request)
        if isinstance(result, InProgress):
            progress.reached(Removing(dict(result.state), self.deps.next_due(result.retry_after), given))
        else:
            progress.reached(Removed())

    async def _handle_to_delete(
        self, live: VolumeSnapshotContent, driver: DriverView, progress: ContentProgress
    ) -> str:
        """Return the handle of the snapshot; "" if it is proven that there is none, or what was started goes on."""
        if handle := live.status.snapshot_handle or live.spec.source.snapshot_handle:
            return handle
        if isinstance(progress.step, Cut):
            return progress.step.snapshot.handle
        if (found := await self._look(live, driver)) is not None:
            return found.handle
        require_absent(progress, driver, self.state)
        await self._end_started(live, driver, progress, Removed())
        return progress.step.snapshot.handle if isinstance(progress.step, Cut) else ""

    async def _require_unused(self, live: VolumeSnapshotContent, driver: DriverView) -> None:
        """Raise Again unless the live content may lose its snapshot: policy, marks and VolumeSnapshot say so."""
        reads, key = LiveReads(), live.spec.volume_snapshot_ref.key
        deletes = live.terminating and live.spec.deletion_policy == "Delete" and live.spec.driver == driver.name
        if deletes and self.state.binds() and live.annotation(names.SNAPSHOT_BEING_DELETED) is None and key != "/":
            reads.put(VOLUME_SNAPSHOTS, key, await self.deps.client.find(VOLUME_SNAPSHOTS, key))
        if not deletes or awaits_snapshot(live, self.state, reads) is not None:
            raise self.deps.not_justified()

    # --- failures -------------------------------------------------------------------------------------------------

    def _failed(
        self, run: Run, content: VolumeSnapshotContent, progress: ContentProgress, error: errors.BackendError
    ) -> None:
        """Keep the failure for the status, and record it."""
        if run.verb == DELETE:
            reason, what = "SnapshotDeleteError", "Failed to delete snapshot"
        elif run.verb == CREATE:
            reason, what = "SnapshotCreationFailed", "Failed to create snapshot"
        else:
            reason, what = "SnapshotContentCheckandUpdateFailed", "Failed to check and update snapshot content"
        failure = f"{what}: {error}"
        message = f"{failure}; next attempt in {self.deps.registry.next_delay(run, error):.3g} s"
        kind, about = self._about(content)
        self.deps.recorder.record(warning(kind, about, reason, message, same_as=failure))
        progress.failed(failure)
        self.deps.queue(QUEUE).enqueue(run.key)  # The failure is written before the next try.

    # --- a VolumeSnapshot whose content is gone ---------------------------------------------------------------------

    def seek(self, run: Run) -> Work:
        """Handle the verb `seek_snapshot`."""
        driver = self.deps.driver(run)

        async def work() -> None:
            snapshot = self.state.snapshots.get(run.key)
            if snapshot is None or snapshot.uid != run.uid:
                return
            progress = self.state.sought.track(run.uid)
            owner = marks_of(snapshot.uid, self.state.cluster.cluster_id)
            name = snapshot_name(snapshot.uid)
            request = FindSnapshotRequest(context=self.deps.context(driver), name=name, owner=owner)
            found = await self.deps.hooks.call(driver, request)
            if not isinstance(found, Snapshot) or not _same_moment(found, snapshot.status.creation_time):
                require_absent(progress, driver, self.state)
                progress.reached(Lost())
            else:
                self._found(progress, found)

        return work


def _same_moment(found: Snapshot, shown: str | None) -> bool:
    """Return whether the snapshot is of the moment that the VolumeSnapshot shows, as far as that is known.

    Its tenant may have written what it shows: the API server takes times that are none.
    """
    if found.created_at is None or shown is None:
        return True
    try:
        return abs(datetime.fromisoformat(shown).timestamp() - found.created_at) <= _SAME_MOMENT
    except ValueError:
        return False
