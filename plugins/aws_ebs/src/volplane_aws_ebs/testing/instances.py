"""Instances and attachments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from volplane_aws_ebs.testing.behaviour import InstanceKind
from volplane_aws_ebs.testing.faults import Refusal, invalid
from volplane_aws_ebs.testing.filters import Read, chosen, filters_of, page_of
from volplane_aws_ebs.testing.state import Attachment, Cloud, Instance, Volume
from volplane_aws_ebs.testing.volumes import shown_attachment

__all__ = [
    "add_instance",
    "attach_volume",
    "attached_to",
    "describe_availability_zones",
    "describe_instance_types",
    "describe_instances",
    "detach_volume",
    "terminate_instance",
]

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


_CODES = {"running": 16, "stopped": 80, "shutting-down": 32, "terminated": 48}


def add_instance(cloud: Cloud, *, zone: str, kind: str, interfaces: int) -> Instance:
    """A running instance with its root volume."""
    number = cloud.number()
    instance = Instance(
        id=cloud.id("i", number), number=number, zone=zone, kind=kind, launched=cloud.now, interfaces=interfaces
    )
    root = Volume(
        id=cloud.id("vol", number),
        number=number,
        zone=zone,
        size=20,
        kind="gp3",
        created=cloud.now,
        state="in-use",
        iops=3_000,
        throughput=125,
        root=True,
    )
    root.attachments[instance.id] = Attachment(
        instance=instance.id, device=instance.root_device, state="attached", since=cloud.now
    )
    instance.root_volume = root.id
    cloud.instances[instance.id] = instance
    cloud.volumes[root.id] = root
    return instance


def terminate_instance(cloud: Cloud, instance: Instance) -> None:
    """Its root volume goes, its other volumes are freed after `detach_seconds`; then it is `terminated`."""
    instance.state = "shutting-down"
    cloud.timeline.after(cloud.behaviour.detach_seconds, lambda: _terminated(cloud, instance))


def _terminated(cloud: Cloud, instance: Instance) -> None:
    instance.state = "terminated"
    for volume in attached_to(cloud, instance.id):
        del volume.attachments[instance.id]
        if volume.id == instance.root_volume:
            cloud.remove(volume)
        elif not volume.attachments:
            volume.state = "available"


_FIELDS: Mapping[str, Read[Instance]] = {
    "instance-id": lambda instance: (instance.id,),
    "instance-state-name": lambda instance: (instance.state,),
    "instance-type": lambda instance: (instance.kind,),
    "availability-zone": lambda instance: (instance.zone,),
}


def describe_instances(cloud: Cloud, given: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeInstances: each in a reservation of its own. One unknown id fails the whole call."""
    ids = given.get("InstanceIds")
    found = [cloud.instance(id_) for id_ in ids] if ids else list(cloud.instances.values())
    found = chosen(found, filters_of(given), _FIELDS, lambda _instance: {})
    page, following = page_of(found, given, most=cloud.behaviour.most_results, ids="InstanceIds")
    return {"Reservations": [{"Instances": [_shown(cloud, each)]} for each in page], "NextToken": following}


def _shown(cloud: Cloud, instance: Instance) -> dict[str, Any]:
    mappings = [_mapping(cloud, volume, volume.attachments[instance.id]) for volume in attached_to(cloud, instance.id)]
    return {
        "InstanceId": instance.id,
        "InstanceType": instance.kind,
        "State": {"Name": instance.state, "Code": _CODES[instance.state]},
        "Placement": {"AvailabilityZone": instance.zone},
        "LaunchTime": cloud.stamp(instance.launched),
        "PrivateDnsName": f"ip-10-0-0-{instance.number}.{cloud.behaviour.region}.compute.internal",
        "RootDeviceName": instance.root_device,
        "BlockDeviceMappings": mappings,
        "NetworkInterfaces": [{"NetworkInterfaceId": f"eni-{instance.number}{n}"} for n in range(instance.interfaces)],
    }


def _mapping(cloud: Cloud, volume: Volume, attachment: Attachment) -> dict[str, Any]:
    return {
        "DeviceName": attachment.device,
        "Ebs": {
            "VolumeId": volume.id,
            "Status": attachment.state,
            "AttachTime": cloud.stamp(attachment.since),
            "DeleteOnTermination": volume.root,
        },
    }


def describe_instance_types(cloud: Cloud, given: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeInstanceTypes: what matters to volumes."""
    kinds = cloud.behaviour.instance_kinds
    names = given.get("InstanceTypes") or sorted(kinds)
    unknown = [name for name in names if name not in kinds]
    if unknown:
        raise Refusal(
            "InvalidInstanceType", f"The following supplied instance types do not exist: [{', '.join(unknown)}]"
        )
    return {"InstanceTypes": [_shown_kind(name, kinds[name]) for name in names]}


def _shown_kind(name: str, kind: InstanceKind) -> dict[str, Any]:
    limit = "shared" if kind.shared else "dedicated"
    ebs = {"MaximumEbsAttachments": kind.attachments, "AttachmentLimitType": limit, "NvmeSupport": "required"}
    return {"InstanceType": name, "Hypervisor": "nitro", "EbsInfo": ebs}


def describe_availability_zones(cloud: Cloud, given: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeAvailabilityZones: of the region."""
    names = given.get("ZoneNames") or cloud.behaviour.zones
    unknown = [name for name in names if name not in cloud.behaviour.zones]
    if unknown:
        raise Refusal("InvalidParameterValue", f"Invalid availability zone: [{unknown[0]}]")
    zones = [
        {
            "ZoneName": name,
            "ZoneId": f"tst1-az{cloud.behaviour.zones.index(name) + 1}",
            "RegionName": cloud.behaviour.region,
            "State": "available",
            "ZoneType": "availability-zone",
        }
        for name in names
    ]
    return {"AvailabilityZones": zones}
