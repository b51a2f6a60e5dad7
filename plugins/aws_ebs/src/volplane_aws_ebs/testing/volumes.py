"""The actions CreateVolume, DeleteVolume and DescribeVolumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from volplane_aws_ebs.testing.behaviour import VolumeType
from volplane_aws_ebs.testing.faults import EC2Error, invalid
from volplane_aws_ebs.testing.filters import Read, filters_from, matching, page_from
from volplane_aws_ebs.testing.state import (
    VOLUME_ID,
    AccountState,
    Attachment,
    Snapshot,
    Token,
    Volume,
    canonical_request,
)
from volplane_aws_ebs.testing.tags import tags_from_specification, tags_output
from volplane_testing.cloud import Former

_LONGEST_TOKEN = 64
_INITIALIZATION_RATES = (100, 300)
_DEFAULT_KEY = "arn:aws:kms:{region}:{account}:key/aws-ebs-default"


def create_volume(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """CreateVolume: idempotent by its client token; the volume is `creating` at first."""
    token = params.get("ClientToken")
    request = canonical_request(params)
    if token is not None and (known := _used_token(account, token, request)) is not None:
        return volume_output(account, known)
    volume = _new_volume(account, params)
    if params.get("DryRun"):
        raise EC2Error("DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
    _check_quota(account, volume)
    account.volumes[volume.id] = volume
    account.tagged.add(volume.id, volume.tags)
    if token is not None:
        account.tokens[token] = Token(request, volume.id, account.now + account.behaviour.token_seconds)
    source = account.snapshots.get(volume.snapshot or "")
    account.contents.begin(volume.id, volume.snapshot)
    _begin(account, volume, source.kms_key if source is not None else None)
    return volume_output(account, volume)


def copy_volumes(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """CopyVolumes: as CreateVolume, in the zone of the source; gp2 unless another type is asked for."""
    if not account.behaviour.copies:
        raise EC2Error("UnsupportedOperation", "The functionality you requested is not available in this region.")
    token = params.get("ClientToken")
    request = canonical_request(params)
    if token is not None and (known := _used_token(account, token, request)) is not None:
        return {"Volumes": [volume_output(account, known)]}
    source = account.volume({"VolumeId": params["SourceVolumeId"]})
    if source.state not in ("available", "in-use"):
        raise EC2Error("IncorrectState", f"The volume '{source.id}' is in the '{source.state}' state.")
    wanted = {name: value for name, value in params.items() if name != "SourceVolumeId"}
    size = params.get("Size", source.size)
    if size < source.size:
        raise invalid("size", size, f"The size must be at least the {source.size} GiB of volume {source.id}.")
    of_source = {"Encrypted": True, "KmsKeyId": params.get("KmsKeyId") or source.kms_key} if source.encrypted else {}
    volume = _new_volume(account, {**wanted, "Size": size, "AvailabilityZone": source.zone, **of_source})
    volume.source = source.id
    if params.get("DryRun"):
        raise EC2Error("DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
    _check_quota(account, volume)
    account.volumes[volume.id] = volume
    account.contents.begin(volume.id, source.id)
    account.tagged.add(volume.id, volume.tags)
    if token is not None:
        account.tokens[token] = Token(request, volume.id, account.now + account.behaviour.token_seconds)
    _begin(account, volume, source.kms_key)
    return {"Volumes": [volume_output(account, volume)]}


def _begin(account: AccountState, volume: Volume, source_key: str | None) -> None:
    """Let the volume become available; or let it vanish, if its key or that of its source may not be used."""
    keys = {key for key in (volume.kms_key, source_key) if key not in (None, _default_key(account))}
    if all(account.behaviour.kms_keys.get(str(key)) for key in keys):
        made = "available" if account.failure is None else "error"
        account.later(account.behaviour.create_seconds, lambda: _become(volume, "creating", made))
    else:
        account.later(account.behaviour.vanish_seconds, lambda: account.remove(volume))


def _become(volume: Volume, before: str, after: str) -> None:
    if volume.state == before:
        volume.state = after


def _used_token(account: AccountState, token: str, request: str) -> Volume | None:
    """Return the volume that the client token was used for, None if it was not used.

    Raises IdempotentParameterMismatch if the parameters differ or the volume is gone.
    """
    if len(token) > _LONGEST_TOKEN or not token.isascii():
        raise invalid("clientToken", token, f"At most {_LONGEST_TOKEN} ASCII characters.")
    known = account.tokens.get(token)
    if known is None or known.expires <= account.now:
        return None
    volume = account.volumes.get(known.volume)
    if known.request != request or volume is None:
        message = (
            "Client token already used before and it is not possible to use it for the same operation with other "
            "parameters."
        )
        raise EC2Error("IdempotentParameterMismatch", message)
    return volume


def _new_volume(account: AccountState, params: Mapping[str, Any]) -> Volume:
    zone = _zone(account, params)
    snapshot = params.get("SnapshotId")
    source = account.snapshots.get(snapshot) if snapshot else None
    if snapshot and source is None:
        raise EC2Error("InvalidSnapshot.NotFound", f"The snapshot '{snapshot}' does not exist.")
    if source is not None and (source.state != "completed" or source.archived):
        state = "archived" if source.archived else source.state
        raise EC2Error("IncorrectState", f"Snapshot is in invalid state - {state}")
    size = params.get("Size", source.size if source else None)
    if size is None:
        raise EC2Error("MissingParameter", "The request must contain the parameter size or snapshotId")
    if source is not None and size < source.size:
        raise invalid("size", size, f"The size must be at least the {source.size} GiB of snapshot {source.id}.")
    volume_type = params.get("VolumeType", "gp2")
    iops, throughput = performance(
        account, zone, volume_type, size=size, iops=params.get("Iops"), throughput=params.get("Throughput")
    )
    key, encrypted = _encryption(account, params, source)
    number = account.number()
    tags = tags_from_specification(params, "volume")
    if params.get("MultiAttachEnabled") and not account.behaviour.volume_types[volume_type].multi_attach:
        raise EC2Error("InvalidParameterCombination", f"Multi-Attach is not supported for volume type {volume_type}.")
    return Volume(
        id=account.id("vol", number),
        number=number,
        zone=zone,
        size=size,
        volume_type=volume_type,
        created=account.now,
        iops=iops,
        throughput=throughput,
        encrypted=encrypted,
        kms_key=key,
        snapshot=snapshot,
        multi_attach=bool(params.get("MultiAttachEnabled")),
        initialization_rate=_initialization_rate(params),
        tags=tags,
        former_tags=Former(tags, account.now),
    )


def _zone(account: AccountState, params: Mapping[str, Any]) -> str:
    """Return the zone, named or by its id (Amazon EC2 API reference, CreateVolume)."""
    name, id_ = params.get("AvailabilityZone"), params.get("AvailabilityZoneId")
    if name is not None and id_ is not None:
        message = "The parameters AvailabilityZone and AvailabilityZoneId cannot be used together"
        raise EC2Error("InvalidParameterCombination", message)
    if name is None and id_ is None:
        raise EC2Error("MissingParameter", "The request must contain the parameter zone")
    behaviour = account.behaviour
    zone = next((each for each, its_id in behaviour.zone_ids.items() if each == name or its_id == id_), None)
    if zone is None:
        raise EC2Error("InvalidZone.NotFound", f"The zone '{name or id_}' does not exist.")
    state = behaviour.zone_states.get(zone)
    if state == "constrained":
        raise EC2Error("InsufficientVolumeCapacity", f"There is not enough capacity in {zone} for the volume.")
    if state == "unavailable":
        raise EC2Error("Unavailable", f"The zone {zone} is unavailable.")
    return zone


def performance(
    account: AccountState, zone: str, name: str, *, size: int, iops: int | None, throughput: int | None
) -> tuple[int | None, int | None]:
    """Return IOPS and throughput of a volume of this type. Raises EC2Error for what the type does not allow."""
    volume_type = account.behaviour.volume_types.get(name)
    if volume_type is None:
        raise EC2Error("UnknownVolumeType", f"Unsupported volume type '{name}' for volume creation.")
    low, high = volume_type.sizes
    if not low <= size <= high:
        raise invalid("size", size, f"Volume of type {name} must be between {low} and {high} GiB.")
    highest = account.behaviour.iops_ceilings.get((zone, name))
    iops, throughput = _iops(name, volume_type, size, iops, highest), _throughput(name, volume_type, throughput)
    if (throughput or 0) * volume_type.iops_per_mib > (iops or 0):
        message = (
            f"Throughput (MiBps) to iops ratio of {(throughput or 0) / (iops or 1):.6f} is too high; maximum is "
            f"{1 / volume_type.iops_per_mib:.6f} MiBps per iops"
        )
        raise EC2Error("InvalidParameterValue", message)
    return iops, throughput


def _iops(name: str, volume_type: VolumeType, size: int, iops: int | None, highest: int | None) -> int | None:
    """highest: what the zone gives, None = all that the type has.

    Codes and messages: kubernetes-sigs/aws-ebs-csi-driver, pkg/cloud/cloud_test.go, and issues of Terraform's provider.
    """
    if iops is None:
        if volume_type.iops_required:
            raise EC2Error("MissingParameter", f"The parameter iops must be specified for {name} volumes.")
        if volume_type.baseline is not None:
            low, high = volume_type.baseline
            return max(low, min(size * volume_type.baseline_per_gib, high))
        return volume_type.default_iops
    if volume_type.iops is None:
        raise EC2Error("InvalidParameterCombination", f"The parameter iops is not supported for {name} volumes.")
    low, high = volume_type.iops[0], min(volume_type.iops[1], highest or volume_type.iops[1])
    if iops < low:
        raise EC2Error("InvalidParameterValue", f"Volume iops of {iops} is too low; minimum is {low}.")
    if name == "io2" and (iops > high or iops > max(low, size * volume_type.iops_per_gib)):
        message = (
            f"io2 volumes configured with greater than {volume_type.sizes[1] >> 10} TiB or {high // 1000}K IOPS or "
            f"{volume_type.iops_per_gib}:1 IOPS:GB ratio are not supported."
        )
        raise EC2Error("InvalidParameterCombination", message)
    if iops > high:
        raise EC2Error("InvalidParameterValue", f"Volume iops of {iops} is too high; maximum is {high}.")
    if iops > max(low, size * volume_type.iops_per_gib):
        ratio = f"Iops to volume size ratio of {iops / size:.6f} is too high; maximum is {volume_type.iops_per_gib}"
        raise EC2Error("InvalidParameterValue", ratio)
    return iops


def _throughput(name: str, volume_type: VolumeType, throughput: int | None) -> int | None:
    if throughput is None:
        return volume_type.default_throughput
    if volume_type.throughput is None:
        raise EC2Error("InvalidParameterCombination", f"The parameter throughput is not supported for {name} volumes.")
    low, high = volume_type.throughput
    if not low <= throughput <= high:
        raise invalid("throughput", throughput, f"Expecting {low} to {high} MiB/s.")
    return throughput


def _default_key(account: AccountState) -> str:
    return _DEFAULT_KEY.format(region=account.behaviour.region, account=account.behaviour.account)


def _encryption(account: AccountState, params: Mapping[str, Any], source: Snapshot | None) -> tuple[str | None, bool]:
    """With encryption by default all volumes have it (Amazon EBS User Guide, "Enable encryption by default").

    A volume from an encrypted snapshot has it under the same key, or another one (there, "Encryption outcomes").
    """
    inherited = source is not None and source.encrypted
    if inherited and params.get("Encrypted") is False:
        message = "The parameter Encrypted cannot be false for a volume from an encrypted snapshot."
        raise EC2Error("InvalidParameterCombination", message)
    encrypted = bool(params.get("Encrypted")) or account.behaviour.encrypt_by_default or inherited
    key = params.get("KmsKeyId") or (source.kms_key if source is not None else None)
    if key is not None and not encrypted:
        raise EC2Error(
            "InvalidParameterDependency", "The parameter KmsKeyId requires the parameter Encrypted to be set."
        )
    return key or (_default_key(account) if encrypted else None), encrypted


def _initialization_rate(params: Mapping[str, Any]) -> int | None:
    """VolumeInitializationRate: only of a volume from a snapshot (Amazon EC2 API reference, CreateVolume)."""
    rate = params.get("VolumeInitializationRate")
    if rate is None:
        return None
    if not params.get("SnapshotId"):
        message = "The parameter VolumeInitializationRate is only supported for volumes created from snapshots."
        raise EC2Error("InvalidParameterCombination", message)
    low, high = _INITIALIZATION_RATES
    if not low <= rate <= high:
        raise invalid("volumeInitializationRate", rate, f"Expecting {low} to {high} MiB/s.")
    return int(rate)


def _check_quota(account: AccountState, volume: Volume) -> None:
    """Check the quotas of the account (AWS General Reference, "Amazon EBS endpoints and quotas")."""
    behaviour = account.behaviour
    if len(account.volumes) >= behaviour.volume_quota:
        raise EC2Error("VolumeLimitExceeded", "You have exceeded your maximum volume limit of this type.")
    if sum(each.size for each in account.volumes.values()) + volume.size > behaviour.storage_quota_gib:
        raise EC2Error("VolumeLimitExceeded", "You have exceeded your maximum gigabyte limit of this type.")
    check_type_quota(account, volume.volume_type, size=volume.size, iops=volume.iops or 0)


def check_type_quota(account: AccountState, volume_type: str, *, size: int, iops: int) -> None:
    """Raise EC2Error if the account's volumes of this type may not have so many GiB and IOPS more."""
    same = [each for each in account.volumes.values() if each.volume_type == volume_type]
    most_gib = account.behaviour.type_quotas_gib.get(volume_type)
    if most_gib is not None and sum(each.size for each in same) + size > most_gib:
        raise EC2Error("VolumeLimitExceeded", "You have exceeded your maximum gigabyte limit of this type.")
    most_iops = account.behaviour.iops_quotas.get(volume_type)
    if most_iops is not None and sum(each.iops or 0 for each in same) + iops > most_iops:
        raise EC2Error("MaxIOPSLimitExceeded", f"You have exceeded your maximum IOPS limit of {most_iops}.")


def delete_volume(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """DeleteVolume: of an available or failed volume; it is `deleting` for a while, then gone."""
    volume = account.volume(params)
    if volume.attachments:
        holder = next(iter(volume.attachments))
        raise EC2Error("VolumeInUse", f"Volume {volume.id} is currently attached to {holder}")
    if volume.state == "deleting":
        return {}
    if volume.state not in ("available", "error"):
        raise EC2Error("IncorrectState", f"The volume '{volume.id}' is in the '{volume.state}' state.")
    volume.state = "deleting"
    account.later(account.behaviour.delete_seconds, lambda: account.remove(volume))
    return {}


def _fields(account: AccountState) -> Mapping[str, Read[Volume]]:
    """Return the filters of DescribeVolumes (Amazon EC2 API reference). No volume here is fast-restored or managed."""
    zone_ids = account.behaviour.zone_ids
    return {
        "attachment.attach-time": lambda volume: [
            account.time_text(each.since) for each in volume.attachments.values()
        ],
        "attachment.delete-on-termination": lambda volume: [str(volume.root).lower() for _ in volume.attachments],
        "attachment.device": lambda volume: [each.device for each in volume.attachments.values()],
        "attachment.instance-id": lambda volume: list(volume.attachments),
        "attachment.status": lambda volume: [each.state for each in volume.attachments.values()],
        "availability-zone": lambda volume: (volume.zone,),
        "availability-zone-id": lambda volume: (zone_ids[volume.zone],),
        "create-time": lambda volume: (account.time_text(volume.created),),
        "encrypted": lambda volume: (str(volume.encrypted).lower(),),
        "fast-restored": lambda _volume: ("false",),
        "multi-attach-enabled": lambda volume: (str(volume.multi_attach).lower(),),
        "operator.managed": lambda _volume: ("false",),
        "operator.principal": lambda _volume: (),
        "size": lambda volume: (str(volume.size),),
        "snapshot-id": lambda volume: (volume.snapshot or "",),
        "status": lambda volume: (volume.state,),
        "volume-id": lambda volume: (volume.id,),
        "volume-type": lambda volume: (volume.volume_type,),
    }


def describe_volumes(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeVolumes: by ids, by filters, in pages. One unknown id fails the whole call."""
    filters = filters_from(params)
    if ids := params.get("VolumeIds"):
        found = volumes_by_id(account, ids)
    else:
        found = [volume for volume in _candidates(account, filters) if account.visible(volume.created)]
    found = matching(found, filters, _fields(account), account.visible_tags)
    page, following = page_from(found, params, behaviour=account.behaviour, ids="VolumeIds")
    return {"Volumes": [volume_output(account, volume) for volume in page], "NextToken": following}


def volumes_by_id(account: AccountState, ids: Sequence[str]) -> list[Volume]:
    """Return the volumes with these ids. Raises EC2Error for a malformed, unknown or invisible one."""
    malformed = [id_ for id_ in ids if not VOLUME_ID.fullmatch(id_)]
    if malformed:
        raise invalid("volumes", malformed[0], "Expected: 'vol-...'.")
    found = {id_: account.volumes.get(id_) for id_ in ids}
    missing = [id_ for id_, volume in found.items() if volume is None or not account.visible(volume.created)]
    if missing:
        many = f"The volumes '{', '.join(missing)}' do not exist."
        one = f"The volume '{missing[0]}' does not exist."
        raise EC2Error("InvalidVolume.NotFound", one if len(missing) == 1 else many)
    return [volume for volume in found.values() if volume is not None]


def _candidates(account: AccountState, filters: Mapping[str, Sequence[str]]) -> list[Volume]:
    """Return a superset of the volumes that match the filters, from an index where there is one."""
    ids = filters.get("volume-id")
    if ids is not None and not any("*" in id_ or "?" in id_ for id_ in ids):
        return [account.volumes[id_] for id_ in ids if id_ in account.volumes]
    for name, values in filters.items():
        exact = not any("*" in value or "?" in value for value in values)
        if name.startswith("tag:") and exact and account.behaviour.visible_after == 0:
            return [account.volumes[id_] for id_ in account.tagged.ids_with(name.removeprefix("tag:"), values)]
    return list(account.volumes.values())


def volume_output(account: AccountState, volume: Volume) -> dict[str, Any]:
    """Return the volume as in responses of DescribeVolumes and CreateVolume."""
    shown: dict[str, Any] = {
        "VolumeId": volume.id,
        "AvailabilityZone": volume.zone,
        "AvailabilityZoneId": account.behaviour.zone_ids[volume.zone],
        "Size": volume.size,
        "VolumeType": volume.volume_type,
        "State": volume.state,
        "CreateTime": account.unix_time(volume.created),
        "Encrypted": volume.encrypted,
        "MultiAttachEnabled": volume.multi_attach,
        "SnapshotId": volume.snapshot or "",
        "Attachments": [attachment_output(account, volume, each) for each in volume.attachments.values()],
    }
    optional = {
        "Iops": volume.iops,
        "Throughput": volume.throughput,
        "KmsKeyId": volume.kms_key,
        "SourceVolumeId": volume.source,
        "VolumeInitializationRate": volume.initialization_rate,
    }
    shown.update({key: value for key, value in optional.items() if value is not None})
    if tags := account.visible_tags(volume):
        shown["Tags"] = tags_output(tags)
    return shown


def attachment_output(account: AccountState, volume: Volume, attachment: Attachment) -> dict[str, Any]:
    """Return the attachment as in responses of DescribeVolumes, AttachVolume and DetachVolume."""
    return {
        "VolumeId": volume.id,
        "InstanceId": attachment.instance,
        "Device": attachment.device,
        "State": attachment.state,
        "AttachTime": account.unix_time(attachment.since),
        "DeleteOnTermination": volume.root,
        "EbsCardIndex": attachment.card,
    }
