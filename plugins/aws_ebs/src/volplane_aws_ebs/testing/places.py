"""The actions DescribeAvailabilityZones, DescribeInstanceTypes and DescribeVolumeStatus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from volplane_aws_ebs.testing.behaviour import InstanceType
from volplane_aws_ebs.testing.faults import EC2Error
from volplane_aws_ebs.testing.filters import Read, filters_from, matching, page_from
from volplane_aws_ebs.testing.state import AccountState, Volume
from volplane_aws_ebs.testing.volumes import volumes_by_id


@dataclass(frozen=True, slots=True)
class _Zone:
    name: str
    id: str
    kind: str
    state: str
    region: str
    parent: str


_ZONE_FIELDS: Mapping[str, Read[_Zone]] = {
    "group-long-name": lambda zone: (zone.region,),
    "group-name": lambda zone: (zone.region,),
    "message": lambda _zone: (),
    "opt-in-status": lambda zone: (_opt_in(zone),),
    "parent-zone-id": lambda _zone: (),
    "parent-zone-name": lambda zone: (zone.parent,),
    "region-name": lambda zone: (zone.region,),
    "state": lambda zone: (zone.state,),
    "zone-id": lambda zone: (zone.id,),
    "zone-name": lambda zone: (zone.name,),
    "zone-type": lambda zone: (zone.kind,),
}


def _opt_in(zone: _Zone) -> str:
    return "opted-in" if zone.parent else "opt-in-not-required"


def describe_availability_zones(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeAvailabilityZones: local zones too, which the account has opted in to."""
    behaviour = account.behaviour
    known = [
        _Zone(
            name=name,
            id=id_,
            kind="local-zone" if name in behaviour.local_zones else "availability-zone",
            state=behaviour.zone_states.get(name, "available"),
            region=behaviour.region,
            parent=behaviour.zones[0] if name in behaviour.local_zones else "",
        )
        for name, id_ in behaviour.zone_ids.items()
    ]
    for parameter, read in (("ZoneNames", "name"), ("ZoneIds", "id")):
        wanted = params.get(parameter) or ()
        unknown = sorted(set(wanted) - {getattr(zone, read) for zone in known})
        if unknown:
            raise EC2Error("InvalidParameterValue", f"Invalid availability zone: [{unknown[0]}]")
        known = [zone for zone in known if not wanted or getattr(zone, read) in wanted]
    found = matching(known, filters_from(params), _ZONE_FIELDS, lambda _zone: {})
    return {"AvailabilityZones": [_zone_output(zone) for zone in found]}


def _zone_output(zone: _Zone) -> dict[str, Any]:
    return {
        "ZoneName": zone.name,
        "ZoneId": zone.id,
        "RegionName": zone.region,
        "State": zone.state,
        "ZoneType": zone.kind,
        "OptInStatus": _opt_in(zone),
        **({"ParentZoneName": zone.parent} if zone.parent else {}),
    }


def describe_instance_types(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeInstanceTypes: the fields and filters about volumes."""
    kinds = account.behaviour.instance_types
    names = params.get("InstanceTypes") or sorted(kinds)
    unknown = [name for name in names if name not in kinds]
    if unknown:
        raise EC2Error(
            "InvalidInstanceType", f"The following supplied instance types do not exist: [{', '.join(unknown)}]"
        )
    fields: Mapping[str, Read[str]] = {
        "ebs-info.attachment-limit-type": lambda name: (kinds[name].limit_type,),
        "ebs-info.maximum-ebs-attachments": lambda name: (str(kinds[name].attachments),),
        "ebs-info.nvme-support": lambda _name: ("required",),
        "hypervisor": lambda name: (kinds[name].hypervisor,),
        "instance-type": lambda name: (name,),
    }
    found = matching(names, filters_from(params), fields, lambda _name: {})
    return {"InstanceTypes": [_type_output(name, kinds[name]) for name in found]}


def _type_output(name: str, kind: InstanceType) -> dict[str, Any]:
    ebs = {
        "MaximumEbsAttachments": kind.attachments,
        "AttachmentLimitType": kind.limit_type,
        "NvmeSupport": "required" if kind.hypervisor != "xen" else "unsupported",
        "MaximumEbsCards": kind.cards,
        "EbsCards": [{"EbsCardIndex": index} for index in range(kind.cards)],
    }
    hypervisor = {"Hypervisor": kind.hypervisor} if kind.hypervisor else {}
    return {"InstanceType": name, "BareMetal": not kind.hypervisor, **hypervisor, "EbsInfo": ebs}


def describe_volume_status(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeVolumeStatus: whether the contents of a volume from a snapshot are there. Nothing else happens to it."""
    zone_ids = account.behaviour.zone_ids
    fields: Mapping[str, Read[Volume]] = {
        **{f"action.{name}": lambda _volume: () for name in ("code", "description", "event-id")},
        **{
            f"event.{name}": lambda _volume: ()
            for name in ("description", "event-id", "event-type", "not-after", "not-before")
        },
        "attachment-status.instance-id": lambda volume: list(volume.attachments),
        "attachment-status.io-performance": lambda _volume: (),
        "availability-zone": lambda volume: (volume.zone,),
        "availability-zone-id": lambda volume: (zone_ids[volume.zone],),
        "operator.managed": lambda _volume: ("false",),
        "operator.principal": lambda _volume: (),
        "volume-status.details-name": lambda volume: [each["Name"] for each in _details(account, volume)],
        "volume-status.details-status": lambda volume: [each["Status"] for each in _details(account, volume)],
        "volume-status.status": lambda _volume: ("ok",),
    }
    ids = params.get("VolumeIds")
    found = volumes_by_id(account, ids) if ids else [v for v in account.volumes.values() if account.visible(v.created)]
    found = matching(found, filters_from(params), fields, lambda _volume: {})
    page, following = page_from(found, params, behaviour=account.behaviour, ids="VolumeIds")
    return {"VolumeStatuses": [_status_output(account, volume) for volume in page], "NextToken": following}


def _details(account: AccountState, volume: Volume) -> list[dict[str, str]]:
    """Amazon EBS User Guide, "Monitor the status of volume initialization"."""
    filling = (volume.snapshot or volume.source) and account.now < volume.created + account.behaviour.initialize_seconds
    return [
        {"Name": "io-enabled", "Status": "passed"},
        {"Name": "initialization-state", "Status": "initializing" if filling else "completed"},
    ]


def _status_output(account: AccountState, volume: Volume) -> dict[str, Any]:
    return {
        "VolumeId": volume.id,
        "AvailabilityZone": volume.zone,
        "AvailabilityZoneId": account.behaviour.zone_ids[volume.zone],
        "VolumeStatus": {"Status": "ok", "Details": _details(account, volume)},
    }
