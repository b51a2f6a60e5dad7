"""Attaching a volume to an instance and detaching it."""

from __future__ import annotations

from collections.abc import Callable

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
    VolumeInUse,
)
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import AwsRefusal, Call
from volplane_aws_ebs.devices import Devices
from volplane_aws_ebs.ec2 import Ec2
from volplane_aws_ebs.errors import GONE, NOT_ATTACHED
from volplane_aws_ebs.hook_calls import Later, Memory, Turn
from volplane_aws_ebs.ownership import Fencing
from volplane_aws_ebs.resources import AttachmentSeen, InstanceSeen, VolumeSeen, instance_of, volume_in, volume_of

__all__ = ["Attaching"]

_FIRST_LOOK = 1.25
_STUCK_SECONDS = 90.0
_BUSY_SECONDS = 120.0
_LIVE = ("pending", "running", "stopping", "stopped")

Pair = tuple[str, str]


class Attaching:
    """The hooks `attach` and `detach` of one driver. Safe for threads: its memory only saves calls and measures times."""

    def __init__(self, ec2: Ec2, fencing: Fencing, node_name: Callable[[str], str]) -> None:
        self._ec2 = ec2
        self._fencing = fencing
        self._node_name = node_name
        self._devices = Devices(ec2.clock)
        self._since: Memory[tuple[Pair, str], float] = Memory()
        """Since when a pair of volume and instance has been seen in a state that should not last."""

    # --- attach -------------------------------------------------------------------------------------------------

    def attach(self, request: AttachRequest, turn: Turn) -> Attachment:
        """Raises Later, AwsRefusal and the errors of the contract."""
        id_, instance = volume_of(request.volume), instance_of(request.node)
        if instance is None:
            raise NotFound(
                f"node {request.node.name} has spec.providerID {request.node.instance_id!r}: no instance of EC2, so no volume "
                "can be attached to it; it must look like aws:///eu-central-1a/i-0a1b2c3d4e5f67890"
            )
        recent = self._ec2.recent(id_)
        seen = recent if recent is not None and recent.free else self._ec2.volume(id_)
        if seen is None or seen.going:
            raise NotFound(
                f"volume {id_} of {request.volume.name} does not exist (any more)", code="InvalidVolume.NotFound"
            )
        if request.volume.owner is not None:
            ownership_tags.refuse_foreign(id_, seen.tags, request.volume.owner)
        self._fencing.refuse_former(seen, turn)
        there = seen.attachment(instance)
        if there is not None:
            return self._on_its_way(seen, there, turn)
        self._refuse_elsewhere(seen, instance)
        if seen.state == "error":
            raise Unavailable(f"volume {id_} has failed: EC2 says its data cannot be used")
        if seen.state == "creating":
            raise Later(self._ec2.lookups.volumes.come_back(seen.id, after=0.5))
        return self._start(request, seen, instance, turn)

    def _on_its_way(self, seen: VolumeSeen, there: AttachmentSeen, turn: Turn) -> Attachment:
        pair = (seen.id, there.instance)
        if there.state == "attached":
            self._calm(pair)
            return Attachment(metadata={"devicePath": there.device})
        if there.state == "attaching" and self._lasting(pair, "attaching") > _STUCK_SECONDS:
            self._devices.avoid(there.instance, there.device)
            self._ec2.change(
                Call.DETACH_VOLUME, seen.id, turn, VolumeId=seen.id, InstanceId=there.instance, Device=there.device
            )
            self._calm(pair)
            self._changed(seen.id, there.instance)
            raise Unavailable(
                f"{seen.id} hung for {_STUCK_SECONDS:g} s while it was attached to {self._node_name(there.instance)} as "
                f"{there.device}; it is detached and tried with another device name"
            )
        if there.state == "busy":
            raise VolumeInUse(
                f"{seen.id} is being detached from {self._node_name(there.instance)}, which still uses it"
            )
        raise Later(self._ec2.lookups.volumes.come_back(seen.id, after=0.25))

    def _refuse_elsewhere(self, seen: VolumeSeen, instance: str) -> None:
        elsewhere = seen.elsewhere(instance)
        if not elsewhere or seen.multi_attach:
            return
        if all(each.state == "detaching" for each in elsewhere):
            raise Later(self._ec2.lookups.volumes.come_back(seen.id, after=0.5))
        holder = elsewhere[0]
        node = self._node_name(holder.instance)
        raise AttachedElsewhere(
            f"{seen.id} is attached to {node} as {holder.device} ({holder.state}); it must be detached there first",
            node=node,
            code="VolumeInUse",
        )

    def _start(self, request: AttachRequest, seen: VolumeSeen, instance: str, turn: Turn) -> Attachment:
        target = self._ec2.instance(instance)
        if target is None or target.state not in _LIVE:
            state = "does not exist" if target is None else f"is {target.state}"
            raise NotFound(
                f"instance {instance} of node {request.node.name} {state}", code="InvalidInstanceID.NotFound"
            )
        if target.zone != seen.zone:
            raise InvalidArgument(
                f"{seen.id} is in zone {seen.zone}, node {request.node.name} in {target.zone}: volumes of EBS cannot be "
                "reached from other zones",
                code="InvalidVolume.ZoneMismatch",
            )
        self._refuse_full(request, target, seen.id)
        self._fencing.write(seen, turn)
        device = self._devices.reserve(target, seen.id)
        try:
            self._ec2.change(Call.ATTACH_VOLUME, seen.id, turn, VolumeId=seen.id, InstanceId=instance, Device=device)
        except AwsRefusal as refusal:
            self._changed(seen.id, instance)
            self._attach_refused(refusal, (seen.id, instance), device)
            raise
        self._calm((seen.id, instance))
        self._ec2.lookups.volumes.touched(seen.id)
        raise Later(self._ec2.lookups.volumes.come_back(seen.id, after=_FIRST_LOOK))

    def _refuse_full(self, request: AttachRequest, target: InstanceSeen, volume: str) -> None:
        limit = self._ec2.attach_limit(target.kind)
        if limit is None:
            return
        most, shared = limit
        room = most - (target.interfaces - 1 if shared else 0)
        if volume in target.devices.values() or self._devices.holding(target) < room:
            return
        if self._lasting((volume, target.id), "full") == 0.0:
            self._ec2.lookups.instances.touched(target.id)  # What we remember may be too much: look before refusing.
            raise Later(self._ec2.lookups.instances.come_back(target.id))
        self._calm((volume, target.id))
        also = f" beside {target.interfaces} network interfaces" if shared and target.interfaces > 1 else ""
        raise ResourceExhausted(
            f"node {request.node.name} ({target.kind}) holds {self._devices.holding(target)} volumes and can hold {room}{also}; "
            "move a pod to another node",
            scope="node",
            code="AttachmentLimitExceeded",
        )

    def _attach_refused(self, refusal: AwsRefusal, pair: Pair, device: str) -> None:
        """Go on where another look or another name helps; else return, for the refusal to be raised."""
        volume, instance = pair
        if refusal.code.startswith("InvalidParameter") and "in use" in refusal.message:
            self._devices.avoid(instance, device)
            if self._lasting(pair, "device") < _STUCK_SECONDS:
                raise Later(self._ec2.lookups.instances.come_back(instance))
        if refusal.code == "VolumeInUse" and self._lasting(pair, "contested") == 0.0:
            raise Later(self._ec2.lookups.volumes.come_back(volume))  # The next look says where it is.
        self._devices.release(instance, volume)

    # --- detach -------------------------------------------------------------------------------------------------

    def detach(self, request: DetachRequest, turn: Turn) -> Done:
        """Raises Later, AwsRefusal and the errors of the contract."""
        id_, instance = volume_in(request.volume.handle), instance_of(request.node)
        if id_ is None or instance is None:
            return Done()
        recent = self._ec2.recent(id_)
        seen = recent if recent is not None and _attached(recent, instance) else self._ec2.volume(id_)
        there = seen.attachment(instance) if seen is not None else None
        if seen is None or there is None:
            return self._detached((id_, instance))
        if request.volume.owner is not None:
            ownership_tags.refuse_foreign(id_, seen.tags, request.volume.owner)
        pair = (id_, instance)
        if there.state in ("detaching", "busy"):
            if self._lasting(pair, "detaching") > _BUSY_SECONDS:
                raise VolumeInUse(
                    f"{id_} has been detaching from {self._node_name(instance)} for {self._lasting(pair, 'detaching'):.0f} s: "
                    "the instance still uses it (mounted, or hung); unmount it there, or stop the instance"
                )
            raise Later(self._ec2.lookups.volumes.come_back(id_, after=min(self._lasting(pair, "detaching") / 4, 10.0)))
        self._fencing.refuse_former(seen, turn)
        try:
            self._ec2.change(Call.DETACH_VOLUME, id_, turn, VolumeId=id_, InstanceId=instance, Device=there.device)
        except AwsRefusal as refusal:
            self._changed(id_, instance)
            if refusal.code in GONE or refusal.code in NOT_ATTACHED or refusal.code == "InvalidInstanceID.NotFound":
                raise Later(self._ec2.lookups.volumes.come_back(id_)) from None  # Success, if the next look agrees.
            raise
        self._calm(pair)
        self._lasting(pair, "detaching")
        self._ec2.lookups.volumes.touched(id_)
        raise Later(self._ec2.lookups.volumes.come_back(id_, after=_FIRST_LOOK))

    def _detached(self, pair: Pair) -> Done:
        self._calm(pair)
        self._devices.release(pair[1], pair[0])
        return Done()

    # --- times --------------------------------------------------------------------------------------------------

    def _lasting(self, pair: Pair, state: str) -> float:
        """Seconds since this was first asked for the pair without `_calm` in between."""
        now = self._ec2.clock()
        return now - self._since.setdefault((pair, state), now)

    def _calm(self, pair: Pair) -> None:
        for state in ("attaching", "detaching", "device", "contested", "full"):
            self._since.drop((pair, state))

    def _changed(self, volume: str, instance: str) -> None:
        self._ec2.lookups.volumes.touched(volume)
        self._ec2.lookups.instances.touched(instance)


def _attached(seen: VolumeSeen, instance: str) -> bool:
    there = seen.attachment(instance)
    return there is not None and there.state == "attached"
