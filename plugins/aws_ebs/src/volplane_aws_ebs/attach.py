"""The hooks `attach` and `detach`: AttachVolume and DetachVolume, and the wait until they have taken effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from volplane import (
    AttachedElsewhere,
    Attachment,
    AttachRequest,
    DetachRequest,
    Done,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
    VolumeIdentity,
    VolumeInUse,
)
from volplane.cloud import BoundedCache, Fences, HookCall, RetryLater
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import Action, AwsError
from volplane_aws_ebs.devices import DeviceNames
from volplane_aws_ebs.ec2 import Ec2
from volplane_aws_ebs.errors import NOT_ATTACHED, NOT_FOUND
from volplane_aws_ebs.ownership import write_term
from volplane_aws_ebs.parameters import BLOCK_UNTIL_INITIALIZED
from volplane_aws_ebs.resources import (
    Ec2Attachment,
    Ec2Instance,
    Ec2Volume,
    existing,
    instance_id,
    volume_id,
    volume_id_from,
)
from volplane_aws_ebs.state_waits import STUCK_DETACHING_SECONDS, Pair, StateWaits

_FIRST_POLL = 1.25
_STUCK_ATTACHING_SECONDS = 90.0
_REFUSED_SECONDS = 30.0
"""So long EC2 may show an attachment that it says is not there; after that its refusal is reported."""
_INITIALIZING_PAUSE = 30.0
"""After this a volume is looked at again with all others, at the next full minute of the driver's clock."""
_SECOND_LOOK = 1.0
_DEVICE_IN_USE = "InvalidDevice.InUse"
_GONE = NOT_FOUND | NOT_ATTACHED | {"InvalidInstanceID.NotFound"}
_ATTACHABLE_STATES = ("pending", "running", "stopping", "stopped")


class Attacher:
    """The hooks `attach` and `detach` of one driver. Safe for threads.

    What it keeps in memory only saves calls and measures how long a state lasts.
    """

    def __init__(self, ec2: Ec2, fences: Fences, waits: StateWaits, node_name: Callable[[str], str]) -> None:
        self._ec2 = ec2
        self._fences = fences
        self._node_name = node_name
        self._devices = DeviceNames(ec2.clock)
        self._waits = waits
        self._initialized: BoundedCache[str, bool] = BoundedCache()

    # --- attach -------------------------------------------------------------------------------------------------

    def attach(self, request: AttachRequest, call: HookCall) -> Attachment:
        """Raises RetryLater, AwsError and the errors of the contract."""
        id_, instance = volume_id(request.volume), instance_id(request.node)
        if instance is None:
            raise NotFound(
                f"node {request.node.name} has spec.providerID {request.node.instance_id!r}: no instance of EC2, so no "
                "volume can be attached to it; it must look like aws:///eu-central-1a/i-0a1b2c3d4e5f67890"
            )
        recent = self._ec2.recent_volume(id_)
        volume = existing(recent if recent is not None and recent.available else self._ec2.volume(id_), request.volume)
        if request.volume.owner is not None:
            ownership_tags.refuse_foreign(id_, volume.tags, request.volume.owner)
        self._fences.refuse_former_leader(id_, volume.tags, call.context)
        attachment = volume.attachment(instance)
        if attachment is not None:
            return self._existing_attachment(volume, attachment, call)
        self._refuse_elsewhere(volume, instance)
        if volume.state == "error":
            raise Unavailable(f"volume {id_} has failed: EC2 says its data cannot be used")
        if volume.state == "creating":
            self._waits.creating(volume, after=0.5)
        return self._attach(request, volume, instance, call)

    def _existing_attachment(self, volume: Ec2Volume, attachment: Ec2Attachment, call: HookCall) -> Attachment:
        pair = (volume.id, attachment.instance)
        if attachment.state == "attached":
            self._reset(pair)
            return Attachment(metadata={"devicePath": attachment.device})
        if attachment.state == "attaching" and self._elapsed(pair, "attaching") > _STUCK_ATTACHING_SECONDS:
            self._devices.avoid(attachment.instance, attachment.device)
            self._ec2.change(
                Action.DETACH_VOLUME,
                volume.id,
                call,
                VolumeId=volume.id,
                InstanceId=attachment.instance,
                Device=attachment.device,
            )
            self._reset(pair)
            self._invalidate(volume.id, attachment.instance)
            node = self._node_name(attachment.instance)
            raise Unavailable(
                f"{volume.id} hung for {_STUCK_ATTACHING_SECONDS:g} s while it was attached to {node} as "
                f"{attachment.device}; it is detached and tried with another device name"
            )
        if attachment.state == "busy":
            raise VolumeInUse(
                f"{volume.id} is being detached from {self._node_name(attachment.instance)}, which still uses it"
            )
        if attachment.state == "detaching":
            self._waits.detaching(volume, attachment, after=0.25)
        raise RetryLater(self._ec2.batches.volumes.next_poll(volume.id, after=0.25))

    def _refuse_elsewhere(self, volume: Ec2Volume, instance: str) -> None:
        elsewhere = volume.elsewhere(instance)
        if not elsewhere or volume.multi_attach:
            return
        attachment = next((each for each in elsewhere if each.state != "detaching"), elsewhere[0])
        node, state = self._node_name(attachment.instance), attachment.state
        if state == "detaching":
            seconds = self._elapsed((volume.id, attachment.instance), state)
            if seconds <= STUCK_DETACHING_SECONDS:
                raise RetryLater(self._ec2.batches.volumes.next_poll(volume.id, after=0.5))
            state = f"detaching for {seconds:.0f} s: the instance still uses it, or hangs"
        raise AttachedElsewhere(
            f"{volume.id} is attached to {node} as {attachment.device} ({state}); it must be detached there first",
            node=node,
            code="VolumeInUse",
        )

    def _attach(self, request: AttachRequest, volume: Ec2Volume, instance: str, call: HookCall) -> Attachment:
        target = self._ec2.instance(instance)
        if target is None or target.state not in _ATTACHABLE_STATES:
            state = "does not exist" if target is None else f"is {target.state}"
            raise NotFound(
                f"instance {instance} of node {request.node.name} {state}", code="InvalidInstanceID.NotFound"
            )
        if _waits_for_contents(request.volume) and volume.filled_later:
            self._require_initialized(volume.id)
        if target.zone != volume.zone:
            raise InvalidArgument(
                f"{volume.id} is in zone {volume.zone}, node {request.node.name} in {target.zone}: volumes of EBS "
                "cannot be reached from other zones",
                code="InvalidVolume.ZoneMismatch",
            )
        self._refuse_full(request, target, volume.id)
        write_term(self._ec2, self._fences, volume, call)
        device = self._devices.reserve(target, volume.id)
        wanted: dict[str, Any] = {"VolumeId": volume.id, "InstanceId": instance, "Device": device}
        if (cards := self._ec2.limits(target.instance_type).cards) > 1:
            wanted["EbsCardIndex"] = self._devices.card(target, volume.id, cards)
        try:
            self._ec2.change(Action.ATTACH_VOLUME, volume.id, call, **wanted)
        except AwsError as error:
            self._invalidate(volume.id, instance)
            self._attach_failed(error, (volume.id, instance), device)
            raise
        self._reset((volume.id, instance))
        self._ec2.batches.volumes.invalidate(volume.id)
        raise RetryLater(self._ec2.batches.volumes.next_poll(volume.id, after=_FIRST_POLL))

    def _require_initialized(self, volume: str) -> None:
        """Raise RetryLater while EC2 still reads the volume's contents from its snapshot, or the volume it copies."""
        if self._initialized.get(volume):
            return
        if not self._ec2.batches.initialized.current(volume):
            raise RetryLater(self._ec2.batches.initialized.next_poll(volume, after=_INITIALIZING_PAUSE))
        self._initialized.put(volume, True)

    def _refuse_full(self, request: AttachRequest, target: Ec2Instance, volume: str) -> None:
        limits = self._ec2.limits(target.instance_type)
        if not limits.attachments:
            return
        reserved = 0 if self._ec2.settings.attach_limit else self._ec2.settings.reserved_attachments
        room = max(limits.attachments - (target.interfaces - 1 if limits.shared else 0) - reserved, 1)
        if volume in target.devices.values() or self._devices.count(target) < room:
            return
        if self._elapsed((volume, target.id), "full") == 0.0:
            # The cached instance may be too old: read it before refusing.
            self._ec2.batches.instances.invalidate(target.id)
            raise RetryLater(self._ec2.batches.instances.next_poll(target.id))
        self._reset((volume, target.id))
        also = f" beside {target.interfaces} network interfaces" if limits.shared and target.interfaces > 1 else ""
        also += f" and {reserved} attachments that are reserved" if reserved else ""
        raise ResourceExhausted(
            f"node {request.node.name} ({target.instance_type}) holds {self._devices.count(target)} volumes and can "
            f"hold {room}{also}; move a pod to another node",
            scope="node",
            code="AttachmentLimitExceeded",
        )

    def _attach_failed(self, error: AwsError, pair: Pair, device: str) -> None:
        """Raise RetryLater where another look or another device name helps; else the caller raises the error."""
        volume, instance = pair
        if error.code == _DEVICE_IN_USE or (error.code.startswith("InvalidParameter") and "in use" in error.message):
            self._devices.avoid(instance, device)
            if self._elapsed(pair, "device") < _STUCK_ATTACHING_SECONDS:
                raise RetryLater(self._ec2.batches.instances.next_poll(instance))
        if error.code == "VolumeInUse" and self._elapsed(pair, "contested") == 0.0:
            # The next look shows where it is attached.
            raise RetryLater(self._ec2.batches.volumes.next_poll(volume))
        self._devices.release(instance, volume)

    # --- detach -------------------------------------------------------------------------------------------------

    def detach(self, request: DetachRequest, call: HookCall) -> Done:
        """Raises RetryLater, AwsError and the errors of the contract."""
        id_ = volume_id_from(request.volume.handle)
        if id_ is None:
            return Done()
        instance = instance_id(request.node) if request.node.instance_id else self._known_instance(request, id_)
        if instance is None:
            return self._not_shown((id_, request.node.name), "missing")
        recent = self._ec2.recent_volume(id_)
        volume = recent if recent is not None and _is_attached(recent, instance) else self._ec2.volume(id_)
        attachment = volume.attachment(instance) if volume is not None else None
        pair = (id_, instance)
        if volume is None or attachment is None:
            return self._not_shown(pair, "missing" if volume is None else "detaching")
        for each in (instance, request.node.name):
            self._waits.reset((id_, each), "missing")
        if request.volume.owner is not None:
            ownership_tags.refuse_foreign(id_, volume.tags, request.volume.owner)
        if attachment.state in ("detaching", "busy"):
            self._waits.detaching(volume, attachment, after=min(self._elapsed(pair, "detaching") / 4, 10.0))
        self._fences.refuse_former_leader(id_, volume.tags, call.context)
        try:
            self._ec2.change(
                Action.DETACH_VOLUME, id_, call, VolumeId=id_, InstanceId=instance, Device=attachment.device
            )
        except AwsError as error:
            self._invalidate(id_, instance)
            if error.code in _GONE and self._elapsed(pair, "refused") < _REFUSED_SECONDS:
                # Detached, if the next look agrees.
                raise RetryLater(self._ec2.batches.volumes.next_poll(id_)) from None
            raise
        self._reset(pair)
        self._elapsed(pair, "detaching")
        self._ec2.batches.volumes.invalidate(id_)
        raise RetryLater(self._ec2.batches.volumes.next_poll(id_, after=_FIRST_POLL))

    def _known_instance(self, request: DetachRequest, id_: str) -> str | None:
        """Return the instance of a node without a providerID, as when the Node object is gone.

        None if the volume is attached to no instance, or only to those of other nodes. Raises NotFound if it is
        attached to an instance whose node this process does not know: it may be this node or another one.
        """
        volume = self._ec2.volume(id_)
        attached = [each.instance for each in volume.attachments if each.state != "detached"] if volume else []
        names = {instance: self._node_name(instance) for instance in attached}
        unknown = [instance for instance, name in names.items() if name == instance]
        for instance, name in names.items():
            if name == request.node.name:
                return instance
        if unknown:
            raise NotFound(
                f"node {request.node.name} is gone or has no spec.providerID, and {id_} is still attached to "
                f"{', '.join(unknown)}: if that is the node, detach the volume or terminate the instance"
            )
        return None

    def _not_shown(self, pair: Pair, state: str) -> Done:
        """Return Done if it was not shown a second ago either, or was being detached. Else raise RetryLater.

        One answer may come from a server of EC2 that does not know the attachment yet. state: whose age counts.
        """
        if self._elapsed(pair, state) < _SECOND_LOOK:
            raise RetryLater(self._ec2.batches.volumes.next_poll(pair[0], after=_SECOND_LOOK))
        self._reset(pair)
        self._devices.release(pair[1], pair[0])
        return Done()

    # --- durations --------------------------------------------------------------------------------------------------

    def _elapsed(self, pair: Pair, state: str) -> float:
        """Return the seconds since the first call for this pair and state after the last `_reset`."""
        return self._waits.seconds(pair, state)

    def _reset(self, pair: Pair) -> None:
        self._waits.reset(pair, "attaching", "detaching", "device", "contested", "full", "refused", "missing")

    def _invalidate(self, volume: str, instance: str) -> None:
        self._ec2.batches.volumes.invalidate(volume)
        self._ec2.batches.instances.invalidate(instance)


def _waits_for_contents(volume: VolumeIdentity) -> bool:
    """Return whether the volume's class says blockAttachUntilInitialized."""
    attributes = volume.source.fields.get("volumeAttributes")
    return isinstance(attributes, Mapping) and attributes.get(BLOCK_UNTIL_INITIALIZED.lower()) == "true"


def _is_attached(volume: Ec2Volume, instance: str) -> bool:
    attachment = volume.attachment(instance)
    return attachment is not None and attachment.state == "attached"
