"""The operations `attach` and `detach`: the live checks, one call of the hook, and its result kept.

A detach starts only when the API server shows this very attachment, by its uid, as being deleted. A later attachment of
the same volume and node has another uid, and the registry lets no other operation touch the asset meanwhile: a late
detach cannot undo a newer attach of this process. The event handlers beside them queue attachments for the attacher,
and drop the progress of those that are gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from volplane.assets import Done, InProgress
from volplane.attach.attacher import identity_of_record, node_of_record, volume_to_attach
from volplane.attach.desired import registered_again, shares_nodes
from volplane.controller.actions import Queue, Run
from volplane.controller.controller import Work
from volplane.errors import AttachedElsewhere, BackendError, InvalidArgument, OperationError, Unsupported
from volplane.intents.operation import OperationDeps
from volplane.intents.requests import node_identity
from volplane.kube import names
from volplane.kube.kinds import ATTACHMENTS
from volplane.kube.objects import Node, Volume, VolumeAttachment
from volplane.requests import AttachRequest, DetachRequest
from volplane.state.cluster_state import ClusterState, asset_name
from volplane.state.naming import attacher_finalizer
from volplane.state.progress import Attached, Attaching, AttachmentFailure, AttachmentProgress, Detached, Detaching
from volplane.state.records import AttachmentIntent, attachment_intent_of

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
_NOTHING_ATTACHED: Final = {_GRPC_CODES[error.grpc_code] for error in (InvalidArgument, AttachedElsewhere, Unsupported)}
"""Codes in a status that prove that no `attach` has had an effect: none is written while one may have had."""


@dataclass(frozen=True, slots=True)
class _AttachmentOperation:
    deps: OperationDeps
    hook: ClassVar[str]

    def _found(self, run: Run) -> tuple[VolumeAttachment, AttachmentIntent]:
        attachment = self.deps.cluster.attachments.get(run.key)
        record = attachment_intent_of(attachment) if attachment is not None else None
        # An attachment that was made again under its name may be about another volume.
        if attachment is None or record is None or attachment.uid != run.uid:
            raise OperationError(f"{run.name} was not started: what it was decided for is gone")
        return attachment, record

    def _failed(self, run: Run, progress: AttachmentProgress, error: BackendError) -> None:
        if (attachment := self.deps.cluster.attachments.get(run.key)) is not None:
            code = _GRPC_CODES.get(error.grpc_code)
            if self.hook == "attach":  # What a failed `detach` did or did not do says nothing of `attach`.
                proven = error.nothing_done or isinstance(error, AttachedElsewhere)
                # It proves nothing about an earlier call, whose failure the status may still show.
                progress.uncertain = not error.nothing_left and (not proven or _is_uncertain(attachment, progress))
                if progress.uncertain and code in _NOTHING_ATTACHED:
                    code = _GRPC_CODES["UNKNOWN"]  # The status is what the next process knows.
            progress.unreported = AttachmentFailure(self.hook, str(error), code)
            self.deps.queue("attacher").enqueue(run.key)  # The failure is written before the next try.


class AttachOperation(_AttachmentOperation):
    hook = "attach"

    def __call__(self, run: Run) -> Work:
        deps, cluster = self.deps, self.deps.cluster
        attachment, record = self._found(run)
        driver = deps.driver(run)
        volume, at = cluster.volumes.get(record.volume), cluster.nodes.get(attachment.spec.node_name)
        node = node_identity(at, attachment.spec.attacher)
        if volume is None or node is None:
            raise OperationError(f"{run.name} was not started: its volume or node is gone")
        progress = cluster.progress.attachments.track(run.uid)
        identity = volume_to_attach(volume, driver, cluster.cluster_id)
        read_only = bool((volume.spec.csi or {}).get("readOnly"))
        given = record.state if record.hook == self.hook else None

        async def attach() -> None:
            now = cluster.attachments.get(run.key)
            # Nothing is attached for an attachment that is being deleted: its detach may be done already.
            if now is None or now.uid != run.uid or now.terminating:
                raise deps.not_justified()
            context = deps.context(driver, max(record.generation, 1), given)
            asked = AttachRequest(context=context, volume=identity, node=node, read_only=read_only, attachment=run.uid)
            try:
                await self._refuse_second_node(now, volume)
                await self._withdraw_proof(now, progress)
                result = await deps.hooks.call(driver, asked)
            except BackendError as error:
                self._failed(run, progress, error)
                raise
            if isinstance(result, InProgress):
                progress.succeeded(Attaching(dict(result.state), deps.next_due(result.retry_after), given))
            else:
                progress.succeeded(Attached(dict(result.metadata), node.uid))

        return attach

    async def _withdraw_proof(self, attachment: VolumeAttachment, progress: AttachmentProgress) -> None:
        """Show no longer that no `attach` has had an effect: this process may end after the one that follows."""
        error = attachment.status.attach_error
        if error is None or error.error_code not in _NOTHING_ATTACHED:
            return
        progress.uncertain = _is_uncertain(attachment, progress)
        version = {"resourceVersion": attachment.metadata.resource_version}
        body = {"metadata": version, "status": {"attachError": {"errorCode": _GRPC_CODES["UNKNOWN"]}}}
        written = await self.deps.client.patch(ATTACHMENTS, attachment.key, body, subresource="status")
        self.deps.cluster.attachments.observe(written)

    async def _refuse_second_node(self, attachment: VolumeAttachment, volume: Volume) -> None:
        """Raise AttachedElsewhere if any volume of the asset allows a single node only, and it is at another one."""
        cluster = self.deps.cluster
        same = map(cluster.volumes.get, cluster.overlaps.same_asset(volume))
        if all(shares_nodes(each) for each in same if each is not None):
            return  # Several nodes may have it.
        await self.deps.know_attachments()
        for other in cluster.attachments_of(volume):
            node, through = other.spec.node_name, other.spec.source.persistent_volume_name
            if node != attachment.spec.node_name and may_be_attached(other, attachment, cluster):
                verb = "is" if other.status.attached else "may be"
                raise AttachedElsewhere(f"{through} {verb} attached to {node} by {other.name}", node=node)


class DetachOperation(_AttachmentOperation):
    hook = "detach"

    def __call__(self, run: Run) -> Work:
        deps, cluster = self.deps, self.deps.cluster
        attachment, record = self._found(run)
        driver, progress = deps.driver(run), cluster.progress.attachments.track(run.uid)
        given = record.state if record.hook == self.hook else None

        async def detach() -> None:
            live = await deps.client.refresh(cluster.attachments, run.key)
            if live is None:
                return  # It was removed by hand: nothing shows any more whether this may be detached.
            # A later attachment of this name may be in use: only the one that is being deleted is detached.
            if live.uid != run.uid or not live.terminating:
                raise deps.not_justified()
            context = deps.context(driver, max(record.generation, 1), given)
            volume = identity_of_record(record, cluster.cluster_id)
            node = node_of_record(attachment, record, cluster.nodes.get(attachment.spec.node_name))
            request = DetachRequest(context=context, volume=volume, node=node, attachment=run.uid)
            try:
                # It stays attached for the other one, which detaches it in the end.
                kept = await self._stands_for(live, record)
                result = Done() if kept else await deps.hooks.call(driver, request)
            except BackendError as error:
                self._failed(run, progress, error)
                raise
            if isinstance(result, InProgress):
                progress.succeeded(Detaching(dict(result.state), deps.next_due(result.retry_after), given))
            else:
                progress.succeeded(Detached())

        return detach

    async def _stands_for(self, attachment: VolumeAttachment, record: AttachmentIntent) -> bool:
        """Return whether another attachment that nobody deletes stands for the asset on what is, to its backend, the
        same node.
        """
        where = attachment.spec.node_name, attachment.annotation(names.NODE_ID)
        asset = asset_name(attachment.spec.attacher, record.handle)
        for other in list(self.deps.cluster.attachments.by_index("asset", asset)):
            if other.uid != attachment.uid and where == (other.spec.node_name, other.annotation(names.NODE_ID)):
                live = await self.deps.client.refresh(self.deps.cluster.attachments, other.name)
                if live is None or live.uid != other.uid or live.terminating:
                    continue
                if live.has_finalizer(attacher_finalizer(live.spec.attacher)):
                    return True  # It is detached before it goes.
        return False


def may_be_attached(other: VolumeAttachment, attachment: VolumeAttachment, cluster: ClusterState) -> bool:
    """Return whether a call for the other one had an effect, or may have had one.

    Of two without a failure the older one is attached first: so a former process began the other one only after a
    failure of the older one had proven that it had no effect. That failure still shows on this one, then.
    """
    progress = cluster.progress.attachments.get(other.uid)
    if other.status.attached or isinstance(progress.step, Attached | Attaching | Detaching | Detached):
        return not isinstance(progress.step, Detached)
    if not other.has_finalizer(attacher_finalizer(other.spec.attacher)):
        return False  # It is written before the first call.
    record = attachment_intent_of(other)
    if record is not None and record.hook == "attach" and record.state is not None:
        return True  # A former process has started a job of the backend.
    if progress.uncertain is None and other.status.attach_error is None:
        age, own_age = ((each.metadata.creation_timestamp or "", each.name) for each in (other, attachment))
        return attachment.status.attach_error is not None or age < own_age
    return _is_uncertain(other, progress)


def _is_uncertain(attachment: VolumeAttachment, progress: AttachmentProgress) -> bool:
    """Return whether a failed `attach`, of this process or a former one, may have had an effect."""
    if progress.uncertain is not None:
        return progress.uncertain
    shown = attachment.status.attach_error
    return shown is not None and shown.error_code not in _NOTHING_ATTACHED


@dataclass(frozen=True, slots=True)
class AttacherHandlers:
    cluster: ClusterState
    attachments: Queue

    def attachment_changed(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        progress = self.cluster.progress
        progress.unrecorded.pop((new or old or VolumeAttachment()).name, None)
        if new is None and old is not None:
            progress.attachments.forget(old.uid)
        if new is None:
            return
        if old is not None and old.status != new.status:
            error = new.status.detach_error if new.terminating else new.status.attach_error
            if error is not None and error.message:
                progress.attachments.get(new.uid).unreported = None
        self.attachments.enqueue(new.key)

    def volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        if old is not None and new is not None and old.terminating == new.terminating and old.uid == new.uid:
            return  # Attaching depends on nothing else of a volume.
        for attachment in self.cluster.attachments.by_index("volume", (new or old or Volume()).name):
            self.attachments.enqueue(attachment.key)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        ids = [(each.spec.provider_id, each.annotation(names.CSI_NODE_IDS)) for each in (old, new) if each is not None]
        same = len(ids) == 2 and ids[0] == ids[1]
        for attachment in self.cluster.attachments.by_index("node", (new or old or Node()).name):
            # If its Node was made again, what the kubelet reports decides about it.
            if not same or (new is not None and registered_again(attachment, new)):
                self.attachments.enqueue(attachment.key)
