"""Growing a volume and changing its performance: one ModifyVolume, its progress, its cool-down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from volplane import (
    Asset,
    BackendError,
    Done,
    ExpandRequest,
    InvalidArgument,
    ModifyRequest,
    NotFound,
    Throttled,
    VolumeIdentity,
)
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import AwsRefusal, Call
from volplane_aws_ebs.ec2 import Ec2
from volplane_aws_ebs.errors import MODIFICATION_COOLDOWN
from volplane_aws_ebs.hook_calls import Later, Turn
from volplane_aws_ebs.parameters import KINDS, gib, iops_for
from volplane_aws_ebs.resources import ModificationSeen, VolumeSeen, asset_of, volume_of

__all__ = ["Modifying"]

_OPTIMIZING_RETRY = 60.0
_NUMBERS = {"iops": "Iops", "throughput": "Throughput"}

Change = Mapping[str, int | str]
"""Parameters of ModifyVolume that differ from what the volume has; empty = nothing to do."""


class Modifying:
    """The hooks `expand` and `modify` of one driver. Safe for threads."""

    def __init__(self, ec2: Ec2) -> None:
        self._ec2 = ec2

    def expand(self, request: ExpandRequest, turn: Turn) -> Asset:
        """Raises Later, AwsRefusal and the errors of the contract."""
        size = gib(request.capacity_bytes)
        seen = self._reach(request.volume, lambda seen: _growth(seen, size), turn)
        return asset_of(self._ec2.settings, seen, request.volume.source, driver=request.context.driver)

    def modify(self, request: ModifyRequest, turn: Turn) -> Done:
        """Raises Later, AwsRefusal and the errors of the contract."""
        wanted = _wanted(request.parameters)
        self._reach(request.volume, lambda seen: _difference(seen, wanted), turn)
        return Done()

    def _reach(self, volume: VolumeIdentity, difference: Callable[[VolumeSeen], Change], turn: Turn) -> VolumeSeen:
        """The volume once nothing differs any more."""
        id_ = volume_of(volume)
        seen = self._ec2.volume(id_)
        if seen is None or seen.going:
            raise NotFound(f"volume {id_} of {volume.name} does not exist (any more)", code="InvalidVolume.NotFound")
        ownership_tags.refuse_foreign(id_, seen.tags, volume.owner)
        change = difference(seen)
        if not change:
            return seen
        if seen.state == "creating":
            raise Later(self._ec2.lookups.volumes.come_back(id_, after=0.5))
        last = self._ec2.modification(id_)
        if last is not None:
            self._wait_for(last, change)
        try:
            self._ec2.change(Call.MODIFY_VOLUME, id_, turn, VolumeId=id_, **change)
        except AwsRefusal as refusal:
            self._ec2.lookups.modifications.touched(id_)
            if refusal.code == "VolumeModificationRateExceeded":
                raise _cooling(id_, refusal, last) from None
            raise
        self._ec2.lookups.modifications.touched(id_)
        self._ec2.lookups.volumes.touched(id_)
        raise Later(self._ec2.lookups.volumes.come_back(id_, after=1.0))

    def _wait_for(self, last: ModificationSeen, change: Change) -> None:
        """Raise unless EC2 takes another change now."""
        covered = all(last.target.get(name) == value for name, value in change.items())
        if last.state == "modifying" or (last.state == "optimizing" and covered):
            raise Later(self._ec2.lookups.volumes.come_back(last.volume, after=1.0))
        if last.state == "optimizing":
            raise Throttled(
                f"{last.volume} is still being optimized after the change of {_moment(last.started)}; EC2 takes the next one "
                "when that is complete; the wish is kept",
                code="IncorrectModificationState",
                retry_after=_OPTIMIZING_RETRY,
            )


def _growth(seen: VolumeSeen, size: int) -> Change:
    if seen.size >= size:
        return {}
    kind = KINDS.get(seen.kind)
    if kind is not None and size > kind.sizes[1]:
        raise InvalidArgument(f"{size} GiB: volumes of type {seen.kind} have at most {kind.sizes[1]} GiB")
    change: dict[str, int | str] = {"Size": size}
    per_gib = seen.tags.get(ownership_tags.IOPS_PER_GIB, "")
    if per_gib.isdigit() and kind is not None and kind.iops is not None:
        iops = iops_for(seen.kind, size, int(per_gib), raise_to_minimum=True)
        if iops > (seen.iops or 0):
            change["Iops"] = iops
    return change


def _wanted(parameters: Mapping[str, str]) -> dict[str, int | str]:
    """Parameters of a VolumeAttributesClass, as ModifyVolume takes them."""
    wanted: dict[str, int | str] = {}
    for key, text in parameters.items():
        name = key.lower()
        if name == "type":
            if text not in KINDS:
                raise InvalidArgument(f"parameter type is {text!r}, expected one of {', '.join(KINDS)}")
            wanted["VolumeType"] = text
        elif name in _NUMBERS:
            if not text.isdigit():
                raise InvalidArgument(f"parameter {key} is {text!r}, expected a whole number")
            wanted[_NUMBERS[name]] = int(text)
        else:
            raise InvalidArgument(f"unknown parameter {key!r}; what can be changed is type, iops and throughput")
    return wanted


def _difference(seen: VolumeSeen, wanted: Mapping[str, int | str]) -> dict[str, Any]:
    found = {"VolumeType": seen.kind, "Iops": seen.iops, "Throughput": seen.throughput}
    return {name: value for name, value in wanted.items() if found[name] != value}


def _cooling(id_: str, refusal: AwsRefusal, last: ModificationSeen | None) -> BackendError:
    since = f", the last time {_moment(last.started)}" if last is not None else ""
    said = refusal.message.strip().rstrip(".")
    return Throttled(
        f"{id_} was changed too often{since}: EC2 allows four changes in 24 hours ({said}); the wish is kept and tried again",
        code=refusal.code,
        retry_after=MODIFICATION_COOLDOWN,
        nothing_done=True,
    )


def _moment(stamp: float) -> str:
    return datetime.fromtimestamp(stamp, UTC).strftime("%Y-%m-%d %H:%M UTC")
