"""AttachVolume and DetachVolume."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from volplane_aws_ebs.testing.cloud import Cloud
from volplane_aws_ebs.testing.records import Attachment, Instance, Volume
from volplane_aws_ebs.testing.refusals import Refusal, invalid
from volplane_aws_ebs.testing.volumes import shown_attachment

__all__ = ["attach_volume", "attached_to", "detach_volume"]

_DEVICE = re.compile(r"/dev/(sd[b-z]|xvd[b-z]|xvd[a-d][a-z]|sda[1-9]?)")
_MOST_HOLDERS = 16


def attached_to(cloud: Cloud, instance: str) -> list[Volume]:
    """Every volume that the instance holds, those on their way in or out included."""
    return [volume for volume in cloud.volumes.values() if instance in volume.attachments]


def attach_volume(cloud: Cloud, given: Mapping[str, Any]) -> dict[str, Any]:
    """AttachVolume: never steals; refuses what EC2 refuses."""
    volume = cloud.volume(given)
    instance = cloud.instance(given["InstanceId"])
    device = given["Device"]
    if not _DEVICE.fullmatch(device):
        raise invalid("device", device, f"{device} is not a valid EBS device name.")
    if instance.state not in ("running", "stopped"):
        raise Refusal("IncorrectState", f"Instance '{instance.id}' is not 'running'.")
    _refuse_unattachable(volume, instance)
    if instance.zone != volume.zone:
        message = f"The volume '{volume.id}' is not in the same availability zone as instance '{instance.id}'"
        raise Refusal("InvalidVolume.ZoneMismatch", message)
    _refuse_full(cloud, instance, device)
    attachment = Attachment(
        instance=instance.id, device=device, state="attaching", since=cloud.now, stuck=cloud.stalled
    )
    volume.attachments[instance.id] = attachment
    volume.state = "in-use"
    cloud.later(cloud.behaviour.attach_seconds, lambda: _attached(attachment))
    return shown_attachment(cloud, volume, attachment)


def _attached(attachment: Attachment) -> None:
    if attachment.state == "attaching":
        attachment.state = "attached"


def _refuse_unattachable(volume: Volume, instance: Instance) -> None:
    if volume.state not in ("available", "in-use"):
        raise Refusal("IncorrectState", f"Volume '{volume.id}' is in the '{volume.state}' state.")
    if instance.id in volume.attachments or (volume.attachments and not volume.multi_attach):
        raise Refusal("VolumeInUse", f"{volume.id} is already attached to an instance")
    if len(volume.attachments) >= _MOST_HOLDERS:
        raise Refusal("AttachmentLimitExceeded", f"Volume {volume.id} is already attached to {_MOST_HOLDERS} instances")


def _refuse_full(cloud: Cloud, instance: Instance, device: str) -> None:
    held = attached_to(cloud, instance.id)
    used = {volume.attachments[instance.id].device for volume in held}
    if device in used:
        message = f"Invalid value '{device}' for unixDevice. Attachment point {device} is already in use"
        raise Refusal("InvalidParameterValue", message)
    kind = cloud.behaviour.instance_kinds[instance.kind]
    taken = len(held) + (instance.interfaces - 1 if kind.shared else 0)
    if taken >= kind.attachments:
        raise Refusal("AttachmentLimitExceeded", f"Attachment limit exceeded: {instance.kind} takes {kind.attachments}")


def detach_volume(cloud: Cloud, given: Mapping[str, Any]) -> dict[str, Any]:
    """DetachVolume: the instance may be left out while there is only one; a wrong instance or device is refused."""
    volume = cloud.volume(given)
    if not volume.attachments:
        raise Refusal("IncorrectState", f"Volume '{volume.id}' is in the '{volume.state}' state.")
    instance = given.get("InstanceId")
    if instance is None:
        if len(volume.attachments) > 1:
            raise Refusal("InvalidParameterCombination", "InstanceId is required for a multi-attached volume")
        instance = next(iter(volume.attachments))
    cloud.instance(instance)
    attachment = volume.attachments.get(instance)
    if attachment is None or given.get("Device") not in (None, attachment.device):
        message = f"The volume '{volume.id}' is not attached to instance '{instance}'."
        raise Refusal("InvalidAttachment.NotFound", message)
    if attachment.state == "detaching" and not given.get("Force"):
        return shown_attachment(cloud, volume, attachment)
    attachment.state = "busy" if cloud.stalled else "detaching"
    cloud.later(cloud.behaviour.detach_seconds, lambda: _detached(volume, attachment))
    return shown_attachment(cloud, volume, attachment)


def _detached(volume: Volume, attachment: Attachment) -> None:
    if volume.attachments.get(attachment.instance) is attachment:
        del volume.attachments[attachment.instance]
        if not volume.attachments and volume.state == "in-use":
            volume.state = "available"
