"""CreateVolume, DeleteVolume, DescribeVolumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from volplane_aws_ebs.testing.behaviour import VolumeKind
from volplane_aws_ebs.testing.faults import Refusal, invalid
from volplane_aws_ebs.testing.filters import Read, chosen, filters_of, page_of
from volplane_aws_ebs.testing.state import Attachment, Cloud, Token, Volume, demand_of
from volplane_aws_ebs.testing.tags import shown_tags, specified_tags

__all__ = ["create_volume", "delete_volume", "describe_volumes", "performance", "shown_attachment", "shown_volume"]

_LONGEST_TOKEN = 64
_DEFAULT_KEY = "arn:aws:kms:{region}:{account}:key/aws-ebs-default"


def create_volume(cloud: Cloud, given: Mapping[str, Any]) -> dict[str, Any]:
    """CreateVolume: idempotent by its client token; the volume is `creating` at first."""
    token = given.get("ClientToken")
    demand = demand_of(given)
    if token is not None and (known := _remembered(cloud, token, demand)) is not None:
        return shown_volume(cloud, known)
    volume = _new_volume(cloud, given)
    if given.get("DryRun"):
        raise Refusal("DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
    _charge(cloud, volume)
    cloud.volumes[volume.id] = volume
    cloud.tagged.add(volume.id, volume.tags)
    if token is not None:
        cloud.tokens[token] = Token(demand, volume.id, cloud.now + cloud.behaviour.token_seconds)
    usable = (
        volume.kms_key is None or volume.kms_key == _default_key(cloud) or cloud.behaviour.kms_keys.get(volume.kms_key)
    )
    if usable:
        cloud.later(cloud.behaviour.create_seconds, lambda: _become(volume, "creating", "available"))
    else:
        cloud.later(cloud.behaviour.vanish_seconds, lambda: cloud.remove(volume))
    return shown_volume(cloud, volume)


def _become(volume: Volume, before: str, after: str) -> None:
    if volume.state == before:
        volume.state = after


def _remembered(cloud: Cloud, token: str, demand: str) -> Volume | None:
    """The volume that the token stands for. A token whose volume is gone, or whose demand was another, is burnt."""
    if len(token) > _LONGEST_TOKEN or not token.isascii():
        raise invalid("clientToken", token, f"At most {_LONGEST_TOKEN} ASCII characters.")
    known = cloud.tokens.get(token)
    if known is None or known.expires <= cloud.now:
        return None
    volume = cloud.volumes.get(known.volume)
    if known.demand != demand or volume is None:
        message = "Client token already used before and it is not possible to use it for the same operation with other parameters."
        raise Refusal("IdempotentParameterMismatch", message)
    return volume


def _new_volume(cloud: Cloud, given: Mapping[str, Any]) -> Volume:
    zone = _zone(cloud, given)
    snapshot = given.get("SnapshotId")
    source = cloud.snapshots.get(snapshot) if snapshot else None
    if snapshot and source is None:
        raise Refusal("InvalidSnapshot.NotFound", f"The snapshot '{snapshot}' does not exist.")
    if source is not None and source.state != "completed":
        raise Refusal("IncorrectState", f"Snapshot is in invalid state - {source.state}")
    size = given.get("Size", source.size if source else None)
    if size is None:
        raise Refusal("MissingParameter", "The request must contain the parameter size or snapshotId")
    if source is not None and size < source.size:
        raise invalid("size", size, f"The size must be at least the {source.size} GiB of snapshot {source.id}.")
    kind = given.get("VolumeType", "gp2")
    iops, throughput = performance(cloud, kind, size, given.get("Iops"), given.get("Throughput"))
    key, encrypted = _encryption(cloud, given, inherited=source is not None and source.encrypted)
    number = cloud.number()
    tags = specified_tags(given, "volume")
    if given.get("MultiAttachEnabled") and not cloud.behaviour.volume_kinds[kind].multi_attach:
        raise Refusal("InvalidParameterCombination", f"Multi-Attach is not supported for volume type {kind}.")
    return Volume(
        id=cloud.id("vol", number),
        number=number,
        zone=zone,
        size=size,
        kind=kind,
        created=cloud.now,
        iops=iops,
        throughput=throughput,
        encrypted=encrypted,
        kms_key=key,
        snapshot=snapshot,
        multi_attach=bool(given.get("MultiAttachEnabled")),
        tags=tags,
        tagged=cloud.now - cloud.behaviour.visible_after,
    )


def _zone(cloud: Cloud, given: Mapping[str, Any]) -> str:
    zone = given.get("AvailabilityZone")
    if zone is None:
        raise Refusal("MissingParameter", "The request must contain the parameter zone")
    if zone not in cloud.behaviour.zones:
        raise Refusal("InvalidZone.NotFound", f"The zone '{zone}' does not exist.")
    return str(zone)


def performance(
    cloud: Cloud, name: str, size: int, iops: int | None, throughput: int | None
) -> tuple[int | None, int | None]:
    """IOPS and throughput of such a volume. Raises what EC2 raises for what the type does not allow."""
    kind = cloud.behaviour.volume_kinds.get(name)
    if kind is None:
        raise Refusal("UnknownVolumeType", f"Unsupported volume type '{name}' for volume creation.")
    low, high = kind.sizes
    if not low <= size <= high:
        raise invalid("size", size, f"Volume of type {name} must be between {low} and {high} GiB.")
    return _iops(name, kind, size, iops), _throughput(name, kind, throughput)


def _iops(name: str, kind: VolumeKind, size: int, iops: int | None) -> int | None:
    if iops is None:
        if kind.iops_required:
            raise Refusal("MissingParameter", f"The parameter iops must be specified for {name} volumes.")
        return kind.default_iops
    if kind.iops is None:
        raise Refusal("InvalidParameterCombination", f"The parameter iops is not supported for {name} volumes.")
    low, high = kind.iops
    if not low <= iops <= high:
        raise invalid("iops", iops, f"Volume iops of {iops} is out of range; expecting {low} to {high}.")
    if iops > max(low, size * kind.iops_per_gib):
        ratio = f"Iops to volume size ratio of {iops / size:.6f} is too high; maximum is {kind.iops_per_gib}"
        raise Refusal("InvalidParameterValue", ratio)
    return iops


def _throughput(name: str, kind: VolumeKind, throughput: int | None) -> int | None:
    if throughput is None:
        return kind.default_throughput
    if kind.throughput is None:
        raise Refusal("InvalidParameterCombination", f"The parameter throughput is not supported for {name} volumes.")
    low, high = kind.throughput
    if not low <= throughput <= high:
        raise invalid("throughput", throughput, f"Expecting {low} to {high} MiB/s.")
    return throughput


def _default_key(cloud: Cloud) -> str:
    return _DEFAULT_KEY.format(region=cloud.behaviour.region, account=cloud.behaviour.account)


def _encryption(cloud: Cloud, given: Mapping[str, Any], *, inherited: bool) -> tuple[str | None, bool]:
    encrypted = bool(given.get("Encrypted", cloud.behaviour.encrypt_by_default)) or inherited
    key = given.get("KmsKeyId")
    if key is not None and not encrypted:
        raise Refusal(
            "InvalidParameterDependency", "The parameter KmsKeyId requires the parameter Encrypted to be set."
        )
    return key or (_default_key(cloud) if encrypted else None), encrypted


def _charge(cloud: Cloud, volume: Volume) -> None:
    if len(cloud.volumes) >= cloud.behaviour.volume_quota:
        raise Refusal("VolumeLimitExceeded", "You have exceeded your maximum volume limit of this type.")
    if sum(each.size for each in cloud.volumes.values()) + volume.size > cloud.behaviour.storage_quota_gib:
        raise Refusal("VolumeLimitExceeded", "You have exceeded your maximum gigabyte limit of this type.")


def delete_volume(cloud: Cloud, given: Mapping[str, Any]) -> dict[str, Any]:
    """DeleteVolume: of what is available or failed; it is `deleting` for a while, then gone."""
    volume = cloud.volume(given)
    if volume.attachments:
        holder = next(iter(volume.attachments))
        raise Refusal("VolumeInUse", f"Volume {volume.id} is currently attached to {holder}")
    if volume.state == "deleting":
        return {}
    if volume.state not in ("available", "error"):
        raise Refusal("IncorrectState", f"The volume '{volume.id}' is in the '{volume.state}' state.")
    volume.state = "deleting"
    cloud.later(cloud.behaviour.delete_seconds, lambda: cloud.remove(volume))
    return {}


_FIELDS: Mapping[str, Read[Volume]] = {
    "volume-id": lambda volume: (volume.id,),
    "status": lambda volume: (volume.state,),
    "availability-zone": lambda volume: (volume.zone,),
    "size": lambda volume: (str(volume.size),),
    "volume-type": lambda volume: (volume.kind,),
    "encrypted": lambda volume: (str(volume.encrypted).lower(),),
    "snapshot-id": lambda volume: (volume.snapshot or "",),
    "multi-attach-enabled": lambda volume: (str(volume.multi_attach).lower(),),
    "attachment.instance-id": lambda volume: tuple(volume.attachments),
    "attachment.device": lambda volume: tuple(each.device for each in volume.attachments.values()),
    "attachment.status": lambda volume: tuple(each.state for each in volume.attachments.values()),
}


def describe_volumes(cloud: Cloud, given: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeVolumes: by ids, by filters, in pages. One unknown id fails the whole call."""
    filters = filters_of(given)
    if ids := given.get("VolumeIds"):
        found = _by_id(cloud, ids)
    else:
        found = [volume for volume in _candidates(cloud, filters) if cloud.visible(volume.created)]
    found = chosen(found, filters, _FIELDS, cloud.visible_tags)
    page, following = page_of(found, given, most=cloud.behaviour.most_results, ids="VolumeIds")
    return {"Volumes": [shown_volume(cloud, volume) for volume in page], "NextToken": following}


def _by_id(cloud: Cloud, ids: Sequence[str]) -> list[Volume]:
    malformed = [id_ for id_ in ids if not id_.startswith("vol-")]
    if malformed:
        raise invalid("volumeId", malformed[0], "Expected: 'vol-...'.")
    found = {id_: cloud.volumes.get(id_) for id_ in ids}
    missing = [id_ for id_, volume in found.items() if volume is None or not cloud.visible(volume.created)]
    if missing:
        many = f"The volumes '{', '.join(missing)}' do not exist."
        one = f"The volume '{missing[0]}' does not exist."
        raise Refusal("InvalidVolume.NotFound", one if len(missing) == 1 else many)
    return [volume for volume in found.values() if volume is not None]


def _candidates(cloud: Cloud, filters: Mapping[str, Sequence[str]]) -> list[Volume]:
    """A superset of what the filters let through, from an index where there is one."""
    ids = filters.get("volume-id")
    if ids is not None and not any("*" in id_ or "?" in id_ for id_ in ids):
        return [cloud.volumes[id_] for id_ in ids if id_ in cloud.volumes]
    for name, values in filters.items():
        exact = not any("*" in value or "?" in value for value in values)
        if name.startswith("tag:") and exact and cloud.behaviour.visible_after == 0:
            return [cloud.volumes[id_] for id_ in cloud.tagged.having(name.removeprefix("tag:"), values)]
    return list(cloud.volumes.values())


def shown_volume(cloud: Cloud, volume: Volume) -> dict[str, Any]:
    """As Describe calls and CreateVolume show it."""
    shown: dict[str, Any] = {
        "VolumeId": volume.id,
        "AvailabilityZone": volume.zone,
        "Size": volume.size,
        "VolumeType": volume.kind,
        "State": volume.state,
        "CreateTime": cloud.stamp(volume.created),
        "Encrypted": volume.encrypted,
        "MultiAttachEnabled": volume.multi_attach,
        "SnapshotId": volume.snapshot or "",
        "Attachments": [shown_attachment(cloud, volume, each) for each in volume.attachments.values()],
    }
    optional = {"Iops": volume.iops, "Throughput": volume.throughput, "KmsKeyId": volume.kms_key}
    shown.update({key: value for key, value in optional.items() if value is not None})
    if tags := cloud.visible_tags(volume):
        shown["Tags"] = shown_tags(tags)
    return shown


def shown_attachment(cloud: Cloud, volume: Volume, attachment: Attachment) -> dict[str, Any]:
    """As Describe calls, AttachVolume and DetachVolume show it."""
    return {
        "VolumeId": volume.id,
        "InstanceId": attachment.instance,
        "Device": attachment.device,
        "State": attachment.state,
        "AttachTime": cloud.stamp(attachment.since),
        "DeleteOnTermination": volume.root,
    }
