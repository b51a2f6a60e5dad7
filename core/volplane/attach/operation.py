"""The operations `attach` and `detach`: the live checks, one call of the hook, and its result kept.

A detach starts only when the API server shows this very attachment, by its uid, as being deleted. A later attachment of
the same volume and node has another uid, and the registry lets no other operation touch the asset meanwhile: a late
detach cannot undo a newer attach of this process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from volplane.assets import InProgress
from volplane.attach.desired import shares_nodes
from volplane.attach.record import identity_of_record, node_of_record, recorded_state, volume_to_attach
from volplane.controller.actions import Run
from volplane.drivers.view import DriverView
from volplane.errors import ApiNotFound, AttachedElsewhere, BackendError, OperationError
from volplane.intents.operation import OperationDeps
from volplane.intents.requests import node_identity
from volplane.kube.kinds import ATTACHMENTS
from volplane.kube.objects import Volume, VolumeAttachment
from volplane.operations import Work
from volplane.requests import AttachRequest, DetachRequest
from volplane.state.progress import Attached, Attaching, AttachmentFailure, AttachmentProgress, Detached, Detaching
from volplane.state.records import AttachmentIntent, attachment_intent_of

__all__ = ["AttachOperation", "DetachOperation"]

WakeAttachment = Callable[[str], None]
"""Queues an attachment, so that its failure is written before the next try."""

_GRPC_CODES: Final = {
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "UNIMPLEMENTED": 12,
    "UNAVAILABLE": 14,
}
"""google.rpc.Code. A kubelet refuses a pod by code 8 of `attachError`: its node is full."""


class _AttachmentOperation:
    hook: ClassVar[str]

    def __init__(self, deps: OperationDeps, wake: WakeAttachment) -> None:
        self._deps = deps
        self._wake = wake

    def _found(self, run: Run) -> tuple[VolumeAttachment, AttachmentIntent]:
        attachment = self._deps.cluster.attachments.get(run.key)
        record = attachment_intent_of(attachment) if attachment is not None else None
        if attachment is None or record is None or attachment.uid != run.uid:
            raise OperationError(f"{run.name} was not started: what it was decided for is gone")
        return attachment, record

    def _failed(self, run: Run, progress: AttachmentProgress, error: BackendError) -> None:
        if run.key in self._deps.cluster.attachments:
            progress.failed(AttachmentFailure(self.hook, str(error), _GRPC_CODES.get(error.grpc_code)))
            self._wake(run.key)


class AttachOperation(_AttachmentOperation):
    """Handles the verb `attach`."""

    hook = "attach"

    def __call__(self, run: Run) -> Work:
        attachment, record = self._found(run)
        driver, cluster = self._deps.driver(run), self._deps.cluster
        volume, node = cluster.volumes.get(record.volume), node_identity(cluster.nodes.get(attachment.spec.node_name))
        if volume is None or node is None:
            raise OperationError(f"{run.name} was not started: its volume or node is gone")
        progress = cluster.progress.attachments.track(run.uid)
        identity = volume_to_attach(volume, driver, cluster.cluster_id)
        read_only = bool((volume.spec.csi or {}).get("readOnly"))
        given = recorded_state(record, self.hook)

        async def attach() -> None:
            now = cluster.attachments.get(run.key)
            if now is None or now.uid != run.uid or now.terminating:
                raise self._deps.not_justified()
            request = AttachRequest(
                context=self._deps.context(driver, max(record.generation, 1), given),
                volume=identity,
                node=node,
                read_only=read_only,
                attachment=run.uid,
            )
            try:
                self._refuse_second_node(run, now, volume)
                result = await self._deps.hooks.call(driver, request)
            except BackendError as error:
                self._failed(run, progress, error)
                raise
            if isinstance(result, InProgress):
                due = self._deps.next_due(result.retry_after)
                progress.succeeded(Attaching(dict(result.state), due, given))
            else:
                progress.succeeded(Attached(dict(result.metadata)))

        return attach

    def _refuse_second_node(self, run: Run, attachment: VolumeAttachment, volume: Volume) -> None:
        """Raise AttachedElsewhere if a volume for one node at a time is at another node, whatever its backend allows.

        Another PersistentVolume of the asset counts, too: one that allows a single node is enough.
        """
        cluster = self._deps.cluster
        same = map(cluster.volumes.get, cluster.overlaps.same_asset(volume))
        if run.node and all(shares_nodes(each) for each in same if each is not None):
            return
        for other in cluster.attachments_of(volume):
            step = cluster.progress.attachments.get(other.uid).step
            attached = other.status.attached or isinstance(step, Attached | Attaching)
            if other.spec.node_name != attachment.spec.node_name and attached and not isinstance(step, Detached):
                node = other.spec.node_name
                through = other.spec.source.persistent_volume_name
                raise AttachedElsewhere(f"{through} is attached to {node} by {other.name}", node=node)


class DetachOperation(_AttachmentOperation):
    """Handles the verb `detach`."""

    hook = "detach"

    def __call__(self, run: Run) -> Work:
        attachment, record = self._found(run)
        driver, progress = self._deps.driver(run), self._deps.cluster.progress.attachments.track(run.uid)
        return lambda: self._detach(run, attachment, record, driver, progress)

    async def _detach(
        self,
        run: Run,
        attachment: VolumeAttachment,
        record: AttachmentIntent,
        driver: DriverView,
        progress: AttachmentProgress,
    ) -> None:
        deps = self._deps
        try:
            live = await deps.client.get(ATTACHMENTS, run.key)
        except ApiNotFound:
            deps.cluster.attachments.observe_deleted(run.key, run.uid)
            return
        deps.cluster.attachments.observe(live)
        if live.uid != run.uid or not live.terminating:
            raise deps.not_justified()
        given = recorded_state(record, self.hook)
        request = DetachRequest(
            context=deps.context(driver, max(record.generation, 1), given),
            volume=identity_of_record(record, deps.cluster.cluster_id),
            node=node_of_record(attachment, record, deps.cluster.nodes.get(attachment.spec.node_name)),
            attachment=run.uid,
        )
        try:
            result = await deps.hooks.call(driver, request)
        except BackendError as error:
            self._failed(run, progress, error)
            raise
        if isinstance(result, InProgress):
            progress.succeeded(Detaching(dict(result.state), deps.next_due(result.retry_after), given))
        else:
            progress.succeeded(Detached())
