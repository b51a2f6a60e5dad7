"""Instances, their kinds, and zones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volplane_aws_ebs.testing.attachments import attached_to
from volplane_aws_ebs.testing.behaviour import InstanceKind
from volplane_aws_ebs.testing.cloud import Cloud
from volplane_aws_ebs.testing.filters import Read, chosen, filters_of, page_of
from volplane_aws_ebs.testing.records import Attachment, Instance, Volume
from volplane_aws_ebs.testing.refusals import Refusal

__all__ = [
    "add_instance",
    "describe_availability_zones",
    "describe_instance_types",
    "describe_instances",
    "terminate_instance",
]

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
