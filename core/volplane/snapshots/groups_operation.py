"""The operations on groups of snapshots: the live checks, one call of a hook, and its result for the next decision.

As `operation` for one snapshot. Before anything is destroyed the content is read live, with its policy and its marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from volplane import errors
from volplane._delays import LONG_CALL
from volplane.assets import GroupSnapshot, InProgress
from volplane.controller.actions import LiveReads, Run, warning
from volplane.controller.controller import Handler, Work
from volplane.drivers.driver import DriverView
from volplane.intents.operation import OperationDeps
from volplane.intents.requests import volume_identity
from volplane.kube import names
from volplane.kube.kinds import Kind
from volplane.kube.objects import KubeObject
from volplane.requests import (
    DeleteGroupSnapshotRequest,
    FindGroupSnapshotRequest,
    GroupSnapshotRequest,
    SnapshotIdentity,
)
from volplane.snapshots.groups_contents import CREATE_GROUP, DELETE_GROUP, FIND_GROUP, awaits_group, may_cut_group
from volplane.snapshots.groups_objects import GROUP_CONTENTS, GROUPS, VolumeGroupSnapshotContent, group_name
from volplane.snapshots.groups_state import group_intent_of, group_of_content, owner_of_group, sources_of
from volplane.snapshots.operation import Step, ask, end_started, on_content, require_absent, require_own
from volplane.snapshots.state import ContentProgress, GroupCut, Lost, Removed, Removing, SnapshotState

GROUP_QUEUE: Final = "group-snapshot-contents"


@dataclass(frozen=True, slots=True)
class GroupOperations:
    deps: OperationDeps
    state: SnapshotState

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers of the queue of contents of groups, by verb."""
        steps = {CREATE_GROUP: self._create, FIND_GROUP: self._find, DELETE_GROUP: self._delete}
        return {verb: partial(self._on_content, step) for verb, step in steps.items()}

    def _on_content(self, do: Step[VolumeGroupSnapshotContent], run: Run) -> Work:
        return on_content(run, self.deps, self.state.group_contents, self.state.grouped, do=do, failed=self._failed)

    async def _create(
        self, _run: Run, content: VolumeGroupSnapshotContent, driver: DriverView, progress: ContentProgress
    ) -> None:
        # The record precedes the call, and the group may be going since the decision.
        if not content.has_finalizer(names.GROUP_CONTENT_BOUND) or not may_cut_group(content, self.state):
            raise self.deps.not_justified()
        await self._cut(content, driver, progress)

    async def _cut(self, content: VolumeGroupSnapshotContent, driver: DriverView, progress: ContentProgress) -> None:
        intent, volumes = group_intent_of(content), sources_of(content, self.state)
        if intent is None:
            raise self.deps.not_justified()
        if isinstance(volumes, str):
            raise errors.NotFound(volumes)
        cluster, reference = self.state.cluster, content.spec.volume_group_snapshot_ref
        identities = tuple(volume_identity(volume, cluster.cluster_id) for volume in volumes.values())
        request = GroupSnapshotRequest(
            context=self.deps.context(driver, state=intent.state),
            name=group_name(intent.group),
            volumes=identities,
            owner=owner_of_group(content, cluster.cluster_id),
            group=SnapshotIdentity(namespace=reference.namespace, name=reference.name, content=content.name),
            parameters=driver.typed_parameters(intent.parameters, of_snapshot=True),
        )
        result = await ask(self.deps, driver, request, progress, intent.state, about=self._about(content))
        if result is None:
            return
        made, wanted = {each.source for each in result.snapshots}, {each.handle for each in identities}
        if made != wanted:
            of = f"group {result.handle} is of {', '.join(sorted(made))}"
            raise errors.AlreadyExists(f"{of}, and one of {', '.join(sorted(wanted))} was asked for")
        self._found(content, progress, result)

    async def _find(
        self, _run: Run, content: VolumeGroupSnapshotContent, driver: DriverView, progress: ContentProgress
    ) -> None:
        if (found := await self._look(content, driver)) is not None:
            self._found(content, progress, found)
            return
        if content.handle:
            raise errors.NotFound(f"the storage has no snapshots of group {content.handle}")
        require_absent(progress, driver, self.state)
        await self._end_started(content, driver, progress, Lost())

    async def _look(self, content: VolumeGroupSnapshotContent, driver: DriverView) -> GroupSnapshot | None:
        intent, handle, dynamic = group_intent_of(content), content.handle, bool(content.spec.source.volume_handles)
        uid = intent.group if intent is not None else content.spec.volume_group_snapshot_ref.uid
        request = FindGroupSnapshotRequest(
            context=self.deps.context(driver),
            handle=handle,
            snapshots=content.snapshot_handles,
            name=group_name(uid) if dynamic else "",
            owner=owner_of_group(content, self.state.cluster.cluster_id) if dynamic and not handle else None,
        )
        found = await self.deps.hooks.call(driver, request)
        return found if isinstance(found, GroupSnapshot) else None

    def _about(self, content: VolumeGroupSnapshotContent) -> tuple[Kind[Any], KubeObject]:
        """Return what events are about: the group, unless another controller binds it."""
        group = group_of_content(content, self.state) if self.state.binds() else None
        return (GROUP_CONTENTS, content) if group is None else (GROUPS, group)

    def _found(self, content: VolumeGroupSnapshotContent, progress: ContentProgress, found: GroupSnapshot) -> None:
        if not content.handle:
            require_own(content, found.snapshots, self.state)
        cluster = self.state.cluster
        times = [each.created_at for each in found.snapshots if each.created_at is not None]
        at = min(times, default=cluster.now().timestamp())
        asked = min((each.retry_after for each in found.snapshots if not each.ready), default=None)
        progress.reached(GroupCut(found, round(at * 1000) * 10**6, cluster.monotonic() + LONG_CALL.delay(asked=asked)))

    async def _end_started(
        self, content: VolumeGroupSnapshotContent, driver: DriverView, progress: ContentProgress, none: Lost | Removed
    ) -> None:
        intent, there = group_intent_of(content), not isinstance(sources_of(content, self.state), str)
        started = intent is not None and intent.state is not None and there
        await end_started(self._cut(content, driver, progress) if started else None, progress, none)

    # --- deleting -------------------------------------------------------------------------------------------------

    async def _delete(
        self, run: Run, _content: VolumeGroupSnapshotContent, driver: DriverView, progress: ContentProgress
    ) -> None:
        live = await self.deps.client.refresh(self.state.group_contents, run.key)
        if live is None or live.uid != run.uid:
            return
        await self._require_unused(live, driver)
        handle, snapshots = live.handle, live.snapshot_handles
        if not handle:
            found = progress.step.group if isinstance(progress.step, GroupCut) else await self._look(live, driver)
            if found is None:
                require_absent(progress, driver, self.state)
                await self._end_started(live, driver, progress, Removed())
                return
            handle, snapshots = found.handle, tuple(each.handle for each in found.snapshots)
        intent = group_intent_of(live)
        if intent is not None and intent.cluster != (ours := self.state.cluster.cluster_id):
            whose = f"group {handle} was made in cluster {intent.cluster!r}, not in {ours!r}"
            raise errors.AlreadyExists(f"{whose}: it is not touched; set the content's deletionPolicy to Retain")
        if other := self._shared_with(live, handle):
            advice = f"delete that one, too, or set the deletionPolicy of {live.name} to Retain"
            raise errors.VolumeInUse(f"group {handle} is also that of VolumeGroupSnapshotContent {other}: {advice}")
        given = intent.deleting if intent is not None else None
        dynamic = bool(live.spec.source.volume_handles) and intent is not None
        request = DeleteGroupSnapshotRequest(
            context=self.deps.context(driver, state=given),
            handle=handle,
            snapshots=snapshots,
            owner=owner_of_group(live, self.state.cluster.cluster_id) if dynamic else None,
        )
        result = await self.deps.hooks.call(driver, request)
        if isinstance(result, InProgress):
            progress.reached(Removing(dict(result.state), self.deps.next_due(result.retry_after), given))
        else:
            progress.reached(Removed())

    def _shared_with(self, content: VolumeGroupSnapshotContent, handle: str) -> str:
        """Return the name of another content that leads to the same group and stays; "" if there is none."""
        others = (each for each in self.state.group_contents.by_index("handle", handle) if each.uid != content.uid)
        same = (each for each in others if each.spec.driver == content.spec.driver and not each.terminating)
        return next((each.name for each in same), "")

    async def _require_unused(self, live: VolumeGroupSnapshotContent, driver: DriverView) -> None:
        """Raise Again unless the live content may lose its snapshots: policy, marks and group say so."""
        reads, key = LiveReads(), live.spec.volume_group_snapshot_ref.key
        deletes = live.terminating and live.spec.deletion_policy == "Delete" and live.spec.driver == driver.name
        if deletes and self.state.binds() and live.annotation(names.GROUP_BEING_DELETED) is None and key != "/":
            reads.put(GROUPS, key, await self.deps.client.find(GROUPS, key))
        if not deletes or awaits_group(live, self.state, reads) is not None:
            raise self.deps.not_justified()

    def _failed(
        self, run: Run, content: VolumeGroupSnapshotContent, progress: ContentProgress, error: errors.BackendError
    ) -> None:
        """Keep the failure for the status, and record it."""
        if run.verb == DELETE_GROUP:
            reason, what = "GroupSnapshotDeleteError", "Failed to delete group snapshot"
        elif run.verb == CREATE_GROUP:
            reason, what = "GroupSnapshotCreationFailed", "Failed to create group snapshot"
        else:
            reason = "GroupSnapshotContentCheckandUpdateFailed"
            what = "Failed to check and update group snapshot content"
        failure = f"{what}: {error}"
        message = f"{failure}; next attempt in {self.deps.registry.next_delay(run, error):.3g} s"
        kind, about = self._about(content)
        self.deps.recorder.record(warning(kind, about, reason, message, same_as=failure))
        progress.failed(failure)
        self.deps.queue(GROUP_QUEUE).enqueue(run.key)  # The failure is written before the next try.
