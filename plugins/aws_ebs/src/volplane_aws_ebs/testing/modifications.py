"""ModifyVolume and DescribeVolumesModifications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volplane_aws_ebs.testing.faults import Refusal
from volplane_aws_ebs.testing.filters import Read, chosen, filters_of, page_of
from volplane_aws_ebs.testing.state import Cloud, Modification, Volume
from volplane_aws_ebs.testing.volumes import performance

__all__ = ["describe_volumes_modifications", "modify_volume"]

_DAY = 86_400.0
_OPEN = ("modifying", "optimizing")


def modify_volume(cloud: Cloud, given: Mapping[str, Any]) -> dict[str, Any]:
    """ModifyVolume: never smaller, one at a time, so many a day; takes effect when `modifying` becomes `optimizing`."""
    volume = cloud.volume(given)
    if volume.state not in ("available", "in-use"):
        raise Refusal("IncorrectState", f"Volume '{volume.id}' is in the '{volume.state}' state.")
    last = volume.modifications[-1] if volume.modifications else None
    if last is not None and last.state in _OPEN:
        message = f"Cannot modify volume {volume.id}: its modification is in the '{last.state}' state."
        raise Refusal("IncorrectModificationState", message)
    target = _target(cloud, volume, given)
    recent = [each.started for each in volume.modifications if each.started > cloud.now - _DAY]
    if len(recent) >= cloud.behaviour.modifications_per_day:
        wait = int(recent[-cloud.behaviour.modifications_per_day] + _DAY - cloud.now)
        message = (
            "You've reached the maximum modification rate per volume limit. "
            f"Wait at least {wait // 60} minutes between modifications per EBS volume."
        )
        raise Refusal("VolumeModificationRateExceeded", message)
    started = Modification(started=cloud.now, state="modifying", original=_shape(volume), target=target)
    volume.modifications.append(started)
    cloud.later(cloud.behaviour.modify_seconds, lambda: _applied(cloud, volume, started))
    return {"VolumeModification": _shown(cloud, volume, started)}


def _shape(volume: Volume) -> dict[str, int | str | None]:
    return {
        "Size": volume.size,
        "Iops": volume.iops,
        "Throughput": volume.throughput,
        "VolumeType": volume.kind,
    }


def _target(cloud: Cloud, volume: Volume, given: Mapping[str, Any]) -> dict[str, int | str | None]:
    size = given.get("Size", volume.size)
    if size < volume.size:
        raise Refusal("InvalidParameterValue", "New size cannot be smaller than existing size")
    kind = given.get("VolumeType", volume.kind)
    same = kind == volume.kind
    settable = cloud.behaviour.volume_kinds.get(volume.kind)
    iops = given.get("Iops", volume.iops if same and settable is not None and settable.iops else None)
    throughput = given.get("Throughput", volume.throughput if same else None)
    iops, throughput = performance(cloud, kind, size, iops, throughput)
    return {"Size": size, "Iops": iops, "Throughput": throughput, "VolumeType": kind}


def _applied(cloud: Cloud, volume: Volume, change: Modification) -> None:
    change.state = "optimizing"
    volume.size = int(change.target["Size"] or volume.size)
    volume.kind = str(change.target["VolumeType"])
    iops, throughput = change.target["Iops"], change.target["Throughput"]
    volume.iops = None if iops is None else int(iops)
    volume.throughput = None if throughput is None else int(throughput)
    cloud.timeline.after(cloud.behaviour.optimize_seconds, lambda: _completed(cloud, change))


def _completed(cloud: Cloud, change: Modification) -> None:
    change.state, change.ended = "completed", cloud.now


_FIELDS: Mapping[str, Read[Volume]] = {
    "volume-id": lambda volume: (volume.id,),
    "modification-state": lambda volume: (volume.modifications[-1].state,),
    "target-size": lambda volume: (str(volume.modifications[-1].target["Size"]),),
    "original-size": lambda volume: (str(volume.modifications[-1].original["Size"]),),
}


def describe_volumes_modifications(cloud: Cloud, given: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeVolumesModifications: the last one of each volume; an id that never had one fails a call by ids."""
    ids = given.get("VolumeIds")
    filters = filters_of(given)
    if ids:
        volumes = [cloud.volume({"VolumeId": id_}) for id_ in ids]
        without = [volume.id for volume in volumes if not volume.modifications]
        if without:
            message = f"Modification for volume '{', '.join(without)}' does not exist."
            raise Refusal("InvalidVolumeModification.NotFound", message)
    else:
        wanted = filters.get("volume-id")
        pool = cloud.volumes.values() if wanted is None else (cloud.volumes.get(id_) for id_ in wanted)
        volumes = [volume for volume in pool if volume is not None and volume.modifications]
    found = chosen(volumes, filters, _FIELDS, lambda _volume: {})
    page, following = page_of(found, given, most=cloud.behaviour.most_results, ids="VolumeIds")
    shown = [_shown(cloud, volume, volume.modifications[-1]) for volume in page]
    return {"VolumesModifications": shown, "NextToken": following}


def _shown(cloud: Cloud, volume: Volume, change: Modification) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "VolumeId": volume.id,
        "ModificationState": change.state,
        "StartTime": cloud.stamp(change.started),
        "Progress": {"modifying": 0, "optimizing": 50}.get(change.state, 100),
    }
    if change.ended is not None:
        shown["EndTime"] = cloud.stamp(change.ended)
    for prefix, shape in (("Original", change.original), ("Target", change.target)):
        shown.update({f"{prefix}{name}": value for name, value in shape.items() if value is not None})
    return shown
