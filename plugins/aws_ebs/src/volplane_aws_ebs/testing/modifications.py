"""The actions ModifyVolume and DescribeVolumesModifications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volplane_aws_ebs.testing.faults import EC2Error
from volplane_aws_ebs.testing.filters import Read, filters_from, matching, page_from
from volplane_aws_ebs.testing.state import AccountState, Modification, Volume
from volplane_aws_ebs.testing.volumes import check_type_quota, performance

_DAY = 86_400.0
_OPEN = ("modifying", "optimizing")


def modify_volume(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """ModifyVolume: one at a time, never smaller, a limited number per day.

    The volume changes when the state `modifying` becomes `optimizing`.
    """
    volume = account.volume(params)
    if volume.state not in ("available", "in-use"):
        raise EC2Error("IncorrectState", f"Volume '{volume.id}' is in the '{volume.state}' state.")
    for name in (volume.volume_type, params.get("VolumeType", "")):
        kind = account.behaviour.volume_types.get(name)
        if kind is not None and not kind.modifiable:
            raise EC2Error("InvalidParameterValue", "Volume type EBS Magnetic is not supported.")
    last = volume.modifications[-1] if volume.modifications else None
    if last is not None and last.state in _OPEN:
        message = f"Cannot modify volume {volume.id}: its modification is in the '{last.state}' state."
        raise EC2Error("IncorrectModificationState", message)
    target = _target(account, volume, params)
    recent = [each.started for each in volume.modifications if each.started > account.now - _DAY]
    if len(recent) >= account.behaviour.modifications_per_day:
        wait = int(recent[-account.behaviour.modifications_per_day] + _DAY - account.now)
        message = (
            "You've reached the maximum modification rate per volume limit. "
            f"Wait at least {wait // 60} minutes between modifications per EBS volume."
        )
        raise EC2Error("VolumeModificationRateExceeded", message)
    _check_quota(account, volume, target)
    started = Modification(started=account.now, state="modifying", original=_properties(volume), target=target)
    volume.modifications.append(started)
    failure = account.failure
    if failure is None:
        account.later(account.behaviour.modify_seconds, lambda: _applied(account, volume, started))
    else:
        account.later(account.behaviour.modify_seconds, lambda: _failed(account, started, failure))
    return {"VolumeModification": _output(account, volume, started)}


def _properties(volume: Volume) -> dict[str, int | str | None]:
    return {
        "Size": volume.size,
        "Iops": volume.iops,
        "Throughput": volume.throughput,
        "VolumeType": volume.volume_type,
    }


def _target(account: AccountState, volume: Volume, params: Mapping[str, Any]) -> dict[str, int | str | None]:
    size = params.get("Size", volume.size)
    if size < volume.size:
        raise EC2Error("InvalidParameterValue", "New size cannot be smaller than existing size")
    volume_type = params.get("VolumeType", volume.volume_type)
    same_type = volume_type == volume.volume_type
    current_type = account.behaviour.volume_types.get(volume.volume_type)
    iops = params.get("Iops", volume.iops if same_type and current_type is not None and current_type.iops else None)
    throughput = params.get("Throughput", volume.throughput if same_type else None)
    iops, throughput = performance(account, volume.zone, volume_type, size=size, iops=iops, throughput=throughput)
    return {"Size": size, "Iops": iops, "Throughput": throughput, "VolumeType": volume_type}


def _check_quota(account: AccountState, volume: Volume, target: Mapping[str, int | str | None]) -> None:
    """Check the quotas of the new type; code of the size's quota: Amazon EC2 API reference, "Error codes"."""
    name, size, iops = str(target["VolumeType"]), int(target["Size"] or 0), int(target["Iops"] or 0)
    same = name == volume.volume_type
    more_gib, more_iops = size - (volume.size if same else 0), iops - ((volume.iops or 0) if same else 0)
    try:
        check_type_quota(account, name, size=more_gib, iops=more_iops)
    except EC2Error as error:
        if error.code == "VolumeLimitExceeded":
            raise EC2Error("VolumeModificationSizeLimitExceeded", error.message) from None
        raise


def _applied(account: AccountState, volume: Volume, change: Modification) -> None:
    change.state = "optimizing"
    volume.size = int(change.target["Size"] or volume.size)
    volume.volume_type = str(change.target["VolumeType"])
    iops, throughput = change.target["Iops"], change.target["Throughput"]
    volume.iops = None if iops is None else int(iops)
    volume.throughput = None if throughput is None else int(throughput)
    account.timeline.after(account.behaviour.optimize_seconds, lambda: _completed(account, change))


def _failed(account: AccountState, change: Modification, message: str) -> None:
    """Fail as after a fault of AWS: nothing changed.

    Amazon EBS User Guide, "Monitor the progress of volume modifications".
    """
    change.state, change.message, change.ended = "failed", message, account.now


def _completed(account: AccountState, change: Modification) -> None:
    change.state, change.ended = "completed", account.now


def _fields(account: AccountState) -> Mapping[str, Read[Volume]]:
    """Return the filters of DescribeVolumesModifications (Amazon EC2 API reference)."""

    def of(prefix: str, field: str) -> Read[Volume]:
        def read(volume: Volume) -> tuple[str, ...]:
            last = volume.modifications[-1]
            value = (last.target if prefix == "target" else last.original)[field]
            return () if value is None else (str(value),)

        return read

    names = {"size": "Size", "iops": "Iops", "throughput": "Throughput", "volume-type": "VolumeType"}
    return {
        "volume-id": lambda volume: (volume.id,),
        "modification-state": lambda volume: (volume.modifications[-1].state,),
        "start-time": lambda volume: (account.time_text(volume.modifications[-1].started),),
        **{
            f"{when}-multi-attach-enabled": lambda volume: (str(volume.multi_attach).lower(),)
            for when in ("target", "original")
        },
        **{f"{when}-{name}": of(when, field) for when in ("target", "original") for name, field in names.items()},
    }


def describe_volumes_modifications(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeVolumesModifications: the last one of each volume. An id without one fails a call by ids."""
    ids = params.get("VolumeIds")
    filters = filters_from(params)
    if ids:
        volumes = [account.volume({"VolumeId": id_}) for id_ in ids]
        without = [volume.id for volume in volumes if not volume.modifications]
        if without:
            message = f"Modification for volume '{', '.join(without)}' does not exist."
            raise EC2Error("InvalidVolumeModification.NotFound", message)
    else:
        wanted = filters.get("volume-id")
        pool = account.volumes.values() if wanted is None else (account.volumes.get(id_) for id_ in wanted)
        volumes = [volume for volume in pool if volume is not None and volume.modifications]
    found = matching(volumes, filters, _fields(account), lambda _volume: {})
    page, following = page_from(found, params, behaviour=account.behaviour, ids="VolumeIds")
    shown = [_output(account, volume, volume.modifications[-1]) for volume in page]
    return {"VolumesModifications": shown, "NextToken": following}


def _output(account: AccountState, volume: Volume, change: Modification) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "VolumeId": volume.id,
        "ModificationState": change.state,
        "StartTime": account.unix_time(change.started),
        "Progress": {"modifying": 0, "optimizing": 50}.get(change.state, 100),
    }
    if change.message:
        shown["StatusMessage"] = change.message
    if change.ended is not None:
        shown["EndTime"] = account.unix_time(change.ended)
    for prefix, properties in (("Original", change.original), ("Target", change.target)):
        shown.update({f"{prefix}{name}": value for name, value in properties.items() if value is not None})
    return shown
