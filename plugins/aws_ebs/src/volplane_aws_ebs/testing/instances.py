"""Instances, and the actions AttachVolume, DetachVolume and DescribeInstances."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from volplane_aws_ebs.testing.faults import EC2Error, invalid
from volplane_aws_ebs.testing.filters import Read, filters_from, matching, page_from
from volplane_aws_ebs.testing.state import AccountState, Attachment, Instance, Volume
from volplane_aws_ebs.testing.volumes import attachment_output

_DEVICE = re.compile(r"/dev/(sd[b-z]|xvd[b-z]|xvd[a-d][a-z]|sda[1-9]?)")
_MAX_ATTACHMENTS = 16


def volumes_attached_to(account: AccountState, instance: str) -> list[Volume]:
    """Return every volume of the instance, attaching and detaching ones included."""
    return [volume for volume in account.volumes.values() if instance in volume.attachments]


def attach_volume(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """AttachVolume: a volume that is attached elsewhere stays there. Raises EC2Error as EC2 does."""
    volume = account.volume(params)
    instance = account.instance(params["InstanceId"])
    device = params["Device"]
    if not _DEVICE.fullmatch(device):
        raise invalid("device", device, f"{device} is not a valid EBS device name.")
    if instance.state not in ("running", "stopped"):
        raise EC2Error("IncorrectState", f"Instance '{instance.id}' is not 'running'.")
    _refuse_unattachable(volume, instance)
    if instance.zone != volume.zone:
        message = f"The volume '{volume.id}' is not in the same availability zone as instance '{instance.id}'"
        raise EC2Error("InvalidVolume.ZoneMismatch", message)
    card = params.get("EbsCardIndex", 0)
    _refuse_full(account, instance, device, card)
    attachment = Attachment(
        instance=instance.id, device=device, state="attaching", since=account.now, stuck=account.stalled, card=card
    )
    volume.attachments[instance.id] = attachment
    volume.state = "in-use"
    account.later(account.behaviour.attach_seconds, lambda: _attached(attachment))
    return attachment_output(account, volume, attachment)


def _attached(attachment: Attachment) -> None:
    if attachment.state == "attaching":
        attachment.state = "attached"


def _refuse_unattachable(volume: Volume, instance: Instance) -> None:
    if volume.state not in ("available", "in-use"):
        raise EC2Error("IncorrectState", f"Volume '{volume.id}' is in the '{volume.state}' state.")
    if instance.id in volume.attachments or (volume.attachments and not volume.multi_attach):
        raise EC2Error("VolumeInUse", f"{volume.id} is already attached to an instance")
    if len(volume.attachments) >= _MAX_ATTACHMENTS:
        raise EC2Error(
            "AttachmentLimitExceeded", f"Volume {volume.id} is already attached to {_MAX_ATTACHMENTS} instances"
        )


def _refuse_full(account: AccountState, instance: Instance, device: str, card: int) -> None:
    volumes = volumes_attached_to(account, instance.id)
    used = {volume.attachments[instance.id].device for volume in volumes}
    if device in used:
        message = f"Invalid value '{device}' for unixDevice. Attachment point {device} is already in use"
        raise EC2Error("InvalidParameterValue", message)
    instance_type = account.behaviour.instance_types[instance.instance_type]
    taken = len(volumes) + (instance.interfaces - 1 if instance_type.shared else 0)
    if taken >= instance_type.attachments:
        raise EC2Error(
            "AttachmentLimitExceeded",
            f"Attachment limit exceeded: {instance.instance_type} takes {instance_type.attachments}",
        )
    if not 0 <= card < instance_type.cards:
        raise invalid("ebsCardIndex", card, f"{instance.instance_type} has {instance_type.cards} EBS cards.")
    on_card = sum(volume.attachments[instance.id].card == card for volume in volumes)
    if on_card >= -(-instance_type.attachments // instance_type.cards):
        raise EC2Error("AttachmentLimitExceeded", f"Attachment limit exceeded: EBS card {card} takes {on_card}")


def detach_volume(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """DetachVolume: the instance may be omitted while there is only one; raises for a wrong instance or device."""
    volume = account.volume(params)
    if not volume.attachments:
        raise EC2Error("IncorrectState", f"Volume '{volume.id}' is in the '{volume.state}' state.")
    instance = params.get("InstanceId")
    if instance is None:
        if len(volume.attachments) > 1:
            raise EC2Error("InvalidParameterCombination", "InstanceId is required for a multi-attached volume")
        instance = next(iter(volume.attachments))
    account.instance(instance)
    if volume.root and account.instance(instance).state == "running":
        # As users of Terraform's provider report it.
        raise EC2Error("IncorrectState", f"Unable to detach root volume '{volume.id}' from instance '{instance}'")
    attachment = volume.attachments.get(instance)
    if attachment is None or params.get("Device") not in (None, attachment.device):
        message = f"The volume '{volume.id}' is not attached to instance '{instance}'."
        raise EC2Error("InvalidAttachment.NotFound", message)
    if attachment.state == "detaching" and not params.get("Force"):
        return attachment_output(account, volume, attachment)
    attachment.state = "busy" if account.stalled else "detaching"
    account.later(account.behaviour.detach_seconds, lambda: _detached(volume, attachment))
    return attachment_output(account, volume, attachment)


def _detached(volume: Volume, attachment: Attachment) -> None:
    if volume.attachments.get(attachment.instance) is attachment:
        del volume.attachments[attachment.instance]
        if not volume.attachments and volume.state == "in-use":
            volume.state = "available"


_CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}


def add_instance(account: AccountState, *, zone: str, instance_type: str, interfaces: int) -> Instance:
    """Add a running instance with its root volume."""
    number = account.number()
    instance = Instance(
        id=account.id("i", number),
        number=number,
        zone=zone,
        instance_type=instance_type,
        launched=account.now,
        interfaces=interfaces,
    )
    root = Volume(
        id=account.id("vol", number),
        number=number,
        zone=zone,
        size=20,
        volume_type="gp3",
        created=account.now,
        state="in-use",
        iops=3_000,
        throughput=125,
        root=True,
    )
    root.attachments[instance.id] = Attachment(
        instance=instance.id, device=instance.root_device, state="attached", since=account.now
    )
    instance.root_volume = root.id
    account.instances[instance.id] = instance
    account.volumes[root.id] = root
    return instance


def terminate_instance(account: AccountState, instance: Instance) -> None:
    """Terminate: after `detach_seconds` the root volume is deleted, other volumes are detached."""
    instance.state = "shutting-down"
    account.timeline.after(account.behaviour.detach_seconds, lambda: _terminated(account, instance))


def _terminated(account: AccountState, instance: Instance) -> None:
    instance.state = "terminated"
    for volume in volumes_attached_to(account, instance.id):
        del volume.attachments[instance.id]
        if volume.id == instance.root_volume:
            account.remove(volume)
        elif not volume.attachments:
            volume.state = "available"


def _fields(account: AccountState) -> Mapping[str, Read[Instance]]:
    """Return the filters of DescribeInstances that are about an instance's place, state and volumes."""

    def volumes(instance: Instance) -> list[Volume]:
        return volumes_attached_to(account, instance.id)

    return {
        "availability-zone": lambda instance: (instance.zone,),
        "availability-zone-id": lambda instance: (account.behaviour.zone_ids[instance.zone],),
        "block-device-mapping.device-name": lambda instance: [
            each.attachments[instance.id].device for each in volumes(instance)
        ],
        "block-device-mapping.status": lambda instance: [
            each.attachments[instance.id].state for each in volumes(instance)
        ],
        "block-device-mapping.volume-id": lambda instance: [each.id for each in volumes(instance)],
        "instance-id": lambda instance: (instance.id,),
        "instance-state-code": lambda instance: (str(_CODES[instance.state]),),
        "instance-state-name": lambda instance: (instance.state,),
        "instance-type": lambda instance: (instance.instance_type,),
        "launch-time": lambda instance: (account.time_text(instance.launched),),
        "root-device-name": lambda instance: (instance.root_device,),
        "root-device-type": lambda _instance: ("ebs",),
    }


def describe_instances(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeInstances: each instance in a reservation of its own. One unknown id fails the call."""
    ids = params.get("InstanceIds")
    found = [account.instance(id_) for id_ in ids] if ids else list(account.instances.values())
    found = matching(found, filters_from(params), _fields(account), lambda _instance: {})
    page, following = page_from(found, params, behaviour=account.behaviour, ids="InstanceIds")
    return {"Reservations": [{"Instances": [_output(account, each)]} for each in page], "NextToken": following}


def _output(account: AccountState, instance: Instance) -> dict[str, Any]:
    mappings = [
        _mapping(account, volume, volume.attachments[instance.id])
        for volume in volumes_attached_to(account, instance.id)
    ]
    return {
        "InstanceId": instance.id,
        "InstanceType": instance.instance_type,
        "State": {"Name": instance.state, "Code": _CODES[instance.state]},
        "Placement": {
            "AvailabilityZone": instance.zone,
            "AvailabilityZoneId": account.behaviour.zone_ids[instance.zone],
        },
        "LaunchTime": account.unix_time(instance.launched),
        "PrivateDnsName": f"ip-10-0-0-{instance.number}.{account.behaviour.region}.compute.internal",
        "RootDeviceName": instance.root_device,
        "BlockDeviceMappings": mappings,
        "NetworkInterfaces": [{"NetworkInterfaceId": f"eni-{instance.number}{n}"} for n in range(instance.interfaces)],
    }


def _mapping(account: AccountState, volume: Volume, attachment: Attachment) -> dict[str, Any]:
    return {
        "DeviceName": attachment.device,
        "Ebs": {
            "VolumeId": volume.id,
            "Status": attachment.state,
            "AttachTime": account.unix_time(attachment.since),
            "DeleteOnTermination": volume.root,
            "EbsCardIndex": attachment.card,
        },
    }
