"""Attaching and detaching, by the ids that the node plugin gave the nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from volplane import (
    Absent,
    AttachedElsewhere,
    Attachment,
    AttachRequest,
    BackendError,
    Context,
    DetachRequest,
    Done,
    InspectRequest,
    ListedAsset,
    NotFound,
    Unavailable,
    VolumeIdentity,
)
from volplane.cloud import NodeNames
from volplane.csi.client import CallError
from volplane.csi.wire import build
from volplane_csi.calls import Calls
from volplane_csi.demands import capability_of
from volplane_csi.errors import Purpose, told
from volplane_csi.volumes import LARGEST_CONTEXT


class Attachments:
    """What is attached where."""

    def __init__(self, calls: Calls, inspect: Callable[[InspectRequest], ListedAsset | Absent]) -> None:
        """inspect: looks at a volume."""
        self._calls = calls
        self._inspect = inspect
        self._names = NodeNames(lambda node: node.csi_node_id or None)

    def attach(self, request: AttachRequest) -> Attachment:
        """Publish the volume to the node."""
        volume, node = request.volume, request.node
        self._names.remember(node)
        if not node.csi_node_id:
            raise NotFound(
                f"node {node.name} has no id of the CSI driver: its node plugin does not run "
                "there, or has not registered yet",
                nothing_done=True,
            )
        known = self._calls.require("PUBLISH_UNPUBLISH_VOLUME", request.context, "attaches no volumes")
        content = build(
            "ControllerPublishVolumeRequest",
            volume_id=volume.handle,
            node_id=node.csi_node_id,
            volume_capability=capability_of(volume, known),
            readonly=request.read_only and known.can("PUBLISH_READONLY"),
            volume_context=dict(volume.attributes),
        )
        content = self._calls.secrets.add_to(content)
        doing = f"attach {volume.handle[:60]} to {node.name}"
        try:
            answer = self._calls.send("ControllerPublishVolume", content, request.context)
        except CallError as error:
            if error.code == "FAILED_PRECONDITION":
                raise self._elsewhere(request, error) from None
            raise self._calls.failed(error, doing, Purpose.ATTACH, scope=f"node {node.name}") from None
        context = dict(answer.publish_context)
        if sum(len(key) + len(value) for key, value in context.items()) > LARGEST_CONTEXT:
            raise BackendError(f"the CSI driver answers {doing!r} with a context that is too large")
        if self._calls.secrets.is_in(context):
            raise BackendError(f"the CSI driver puts a secret into the context of {doing!r}, which many read")
        return Attachment(metadata=context)

    def _elsewhere(self, request: AttachRequest, error: CallError) -> BackendError:
        """Return what FAILED_PRECONDITION means; the node is told only by a text, or by a list."""
        why = f"cannot attach {request.volume.handle[:60]} to {request.node.name}: {told(error.message)}"
        others = [each for each in self._published(request.volume, request.context) if each != request.node.csi_node_id]
        if not others:
            return Unavailable(why, code=error.code)
        return AttachedElsewhere(why, node=self._names(others[0]), code=error.code)

    def _published(self, volume: VolumeIdentity, context: Context) -> Sequence[str]:
        """Return the ids of the nodes that have the volume, as far as the driver tells."""
        try:
            seen = self._inspect(InspectRequest(context=context, handle=volume.handle))
        except BackendError:
            return ()  # The first answer counts.
        return () if isinstance(seen, Absent) else seen.attached_to

    def detach(self, request: DetachRequest) -> Done:
        """Unpublish the volume from the node, and from no other one."""
        volume, node = request.volume, request.node
        if not node.csi_node_id:
            # Without an id the driver would take it from all nodes.
            raise Unavailable(
                f"cannot detach {volume.handle[:60]} from {node.name}, whose id of the CSI driver is "
                f"not known: {_BY_HAND}"
            )
        self._calls.require("PUBLISH_UNPUBLISH_VOLUME", request.context, "detaches no volumes")
        content = build("ControllerUnpublishVolumeRequest", volume_id=volume.handle, node_id=node.csi_node_id)
        content = self._calls.secrets.add_to(content)
        doing = f"detach {volume.handle[:60]} from {node.name}"
        self._calls.make("ControllerUnpublishVolume", content, request.context, Purpose.DETACH, doing)
        return Done()


_BY_HAND: Final = "let its node plugin register, or detach it by hand and remove the finalizer of the VolumeAttachment"
