"""The hooks `expand` and `modify`: ModifyVolume, its progress, and the limit of modifications per day."""

from __future__ import annotations

from datetime import UTC, datetime

from volplane import (
    Asset,
    BackendError,
    Done,
    ExpandRequest,
    InvalidArgument,
    ModifyRequest,
    OutOfRange,
    ResourceExhausted,
    Throttled,
    VolumeIdentity,
)
from volplane.cloud import BoundedCache, Fences, HookCall, RetryLater, size_in_gib
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import Action, AwsError
from volplane_aws_ebs.attributes_class import AttributesClass
from volplane_aws_ebs.ceilings import Ceilings
from volplane_aws_ebs.ec2 import Ec2
from volplane_aws_ebs.errors import MODIFICATION_RETRY_SECONDS, to_backend_error
from volplane_aws_ebs.ownership import write_term
from volplane_aws_ebs.pending_modifications import Change, PendingModifications
from volplane_aws_ebs.resources import Ec2Volume, VolumeModification, asset_from, existing, place, volume_id
from volplane_aws_ebs.state_waits import StateWaits
from volplane_aws_ebs.volume_types import VOLUME_TYPES, allowed_iops, check_throughput

_OPTIMIZING_RETRY = 60.0
_FAILED_RETRY = 8 * 3_600.0
"""A change that failed is tried again after this time: three times a day, which leaves one change for other wishes."""


class Modifier:
    """The hooks `expand` and `modify` of one driver. Safe for threads."""

    def __init__(self, ec2: Ec2, fences: Fences, waits: StateWaits, ceilings: Ceilings) -> None:
        self._ec2 = ec2
        self._ceilings = ceilings
        self._fences = fences
        self._waits = waits
        self._pending = PendingModifications(ec2.clock)
        self._failed_since: BoundedCache[tuple[str, float], float] = BoundedCache()
        """By volume and start of its last modification: since when this process knows that it failed."""

    def expand(self, request: ExpandRequest, call: HookCall) -> Asset:
        """Raises RetryLater, AwsError and the errors of the contract."""
        size, volume = size_in_gib(request.capacity_bytes), self._volume(request.volume)
        volume = self._modify_until(volume, "expand", _growth(volume, size), call)
        return asset_from(self._ec2.settings, volume, request.volume.source, driver=request.context.driver)

    def modify(self, request: ModifyRequest, call: HookCall) -> Done:
        """Raises RetryLater, AwsError and the errors of the contract."""
        wanted, volume = AttributesClass.of(request.parameters), self._volume(request.volume)
        self._tag(volume, wanted, request.volume.name, call)
        values = wanted.values_for(volume)
        self._modify_until(volume, "modify", _checked(volume, values) if _differs(volume, values) else {}, call)
        return Done()

    def _volume(self, identity: VolumeIdentity) -> Ec2Volume:
        volume = existing(self._ec2.volume(volume_id(identity)), identity)
        ownership_tags.refuse_foreign(volume.id, volume.tags, identity.owner)
        return volume

    def _tag(self, volume: Ec2Volume, wanted: AttributesClass, name: str, call: HookCall) -> None:
        """Write and remove tags. They cost none of the volume's changes of the day, so they do not wait for those."""
        removed, written = wanted.tags_to_remove(volume), wanted.tags_to_write(volume, name)
        if not removed and not written:
            return
        self._fences.refuse_former_leader(volume.id, volume.tags, call.context)
        if removed:
            tags = [{"Key": key} for key in removed]
            self._ec2.change(Action.DELETE_TAGS, volume.id, call, Resources=[volume.id], Tags=tags)
        own = {key: value for key, value in written.items() if key in ownership_tags.WRITABLE_LATER}
        for group in (own, {key: value for key, value in written.items() if key not in own}):
            if group:  # The IAM policy allows either kind, not both in one call.
                tags = [{"Key": key, "Value": value} for key, value in group.items()]
                self._ec2.change(Action.CREATE_TAGS, volume.id, call, Resources=[volume.id], Tags=tags)
        self._ec2.batches.volumes.invalidate(volume.id)

    def _capped(self, volume: Ec2Volume, change: Change, call: HookCall) -> Change:
        """Return the change with no more IOPS than the type has at the volume's size, and the volume's zone gives.

        With no fewer than the type's minimum, too, as in the official driver.
        """
        if "Iops" not in change:
            return change
        name, iops = str(change.get("VolumeType", volume.volume_type)), int(change["Iops"])
        if name in VOLUME_TYPES and VOLUME_TYPES[name].iops is not None:
            iops = allowed_iops(name, int(change.get("Size", volume.size)), iops=iops, raise_to_minimum=True)
        return {**change, "Iops": self._ceilings.capped(name, place(self._ec2.settings, volume), iops, call)}

    def _modify_until(self, volume: Ec2Volume, hook: str, own: Change, call: HookCall) -> Ec2Volume:
        """Modify the volume until nothing differs; returns it then. What the other hook wants is modified with it.

        own: what this hook wants and the volume has not. Its IOPS are capped at the size that the volume gets.
        """
        id_ = volume.id
        if not own:
            self._pending.satisfied(id_, hook)
            return volume
        self._fences.refuse_former_leader(volume.id, volume.tags, call.context)
        kind = VOLUME_TYPES.get(volume.volume_type)
        if kind is not None and not kind.modifiable:
            raise InvalidArgument(
                f"{id_} is of type {volume.volume_type}, which EC2 does not change; make a snapshot, and a volume of "
                "another type from that"
            )
        if volume.state == "creating":
            self._waits.creating(volume, after=0.5)
        merged, open_for = self._pending.merged(id_, hook, own)
        change = self._capped(volume, merged, call)
        last, differs = self._ec2.modification(id_), _differs(volume, change)
        if last is not None and (differs or last.state == "modifying"):
            self._wait_for(last, {name: change[name] for name in own})
        if open_for > 0:
            raise RetryLater(self._ec2.batches.volumes.next_poll(id_, after=open_for))
        if not differs:  # The volume has as many IOPS as it can.
            self._pending.satisfied(id_, hook)
            return volume
        write_term(self._ec2, self._fences, volume, call)
        try:
            self._ec2.change(Action.MODIFY_VOLUME, id_, call, VolumeId=id_, **change)
        except AwsError as error:
            self._ec2.batches.modifications.invalidate(id_)
            if error.code == "VolumeModificationRateExceeded":
                raise _too_many_modifications(id_, error, last) from None
            if merged != own and isinstance(to_backend_error(error, ""), InvalidArgument | ResourceExhausted):
                self._pending.keep_apart(id_)
                raise RetryLater(self._ec2.batches.volumes.next_poll(id_)) from None
            raise
        self._pending.made(id_)
        self._ec2.batches.modifications.invalidate(id_)
        self._ec2.batches.volumes.invalidate(id_)
        raise RetryLater(self._ec2.batches.volumes.next_poll(id_, after=1.0))

    def _wait_for(self, last: VolumeModification, change: Change) -> None:
        """Raise unless EC2 accepts another modification now, and unless the last one was this change and failed."""
        covered = all(last.target.get(name) == value for name, value in change.items())
        if last.state == "modifying" or (last.state == "optimizing" and covered):
            raise RetryLater(self._ec2.batches.volumes.next_poll(last.volume, after=1.0))
        if last.state == "optimizing":
            raise Throttled(
                f"{last.volume} is still being optimized after the change of {_utc(last.started)}; EC2 takes the next "
                "one when that is complete; the wish is kept",
                code="IncorrectModificationState",
                retry_after=_OPTIMIZING_RETRY,
            )
        if last.state == "failed" and covered:
            self._refuse_early_repetition(last, change)

    def _refuse_early_repetition(self, last: VolumeModification, change: Change) -> None:
        """Raise for some hours after a change has failed: each repetition uses up one of the changes of the day."""
        now = self._ec2.clock()
        left = self._failed_since.setdefault((last.volume, last.started), now) + _FAILED_RETRY - now
        if left > 0:
            values = ", ".join(f"{name} {value}" for name, value in change.items())
            raise BackendError(
                f"the change of {last.volume} to {values} of {_utc(last.started)} has failed: "
                f"{last.message.strip().rstrip('.') or 'EC2 does not say why'}; it is tried again in "
                f"{max(round(left / 3600), 1)} h, since EC2 allows four changes in 24 hours",
                code="failed",
                retry_after=left,
            )


def _growth(volume: Ec2Volume, size: int) -> Change:
    if volume.size >= size:
        return {}
    kind = VOLUME_TYPES.get(volume.volume_type)
    if kind is not None and size > kind.sizes[1]:
        raise OutOfRange(f"{size} GiB: volumes of type {volume.volume_type} have at most {kind.sizes[1]} GiB")
    change: dict[str, int | str] = {"Size": size}
    per_gib = volume.tags.get(ownership_tags.IOPS_PER_GIB, "")
    raises = volume.tags.get(ownership_tags.RAISE_ON_MODIFY) == "true"
    if raises and per_gib.isdigit() and kind is not None and kind.iops is not None:
        before, after = (
            allowed_iops(volume.volume_type, each, per_gib=int(per_gib), raise_to_minimum=True)
            for each in (volume.size, size)
        )
        # Other IOPS than these were set later, by a VolumeAttributesClass or a person: they stay.
        if before == volume.iops and after > before:
            change["Iops"] = after
    return change


def _checked(volume: Ec2Volume, wanted: Change) -> Change:
    """Return what is wanted. Raises InvalidArgument for a throughput that the IOPS do not allow.

    It is all in one change: what a ModifyVolume with another type does not name gets the default of that type, also
    where the old value is the wanted one (Amazon EC2 API reference, ModifyVolume). Whether the size allows such IOPS is
    seen later, since the volume may grow in the same modification.
    """
    name = str(wanted.get("VolumeType", volume.volume_type))
    if kind := VOLUME_TYPES.get(name):
        kept = (volume.iops, volume.throughput) if name == volume.volume_type else (None, None)
        iops, throughput = wanted.get("Iops", kept[0]), wanted.get("Throughput", kept[1])
        least = kind.iops[0] if kind.iops is not None else 0  # Fewer are raised to that.
        check_throughput(name, max(int(iops or 0), least) or None, int(throughput or 0) or None)
    return wanted


def _differs(volume: Ec2Volume, wanted: Change) -> bool:
    found = {"Size": volume.size, "VolumeType": volume.volume_type, "Iops": volume.iops}
    found["Throughput"] = volume.throughput
    return any(found[name] != value for name, value in wanted.items())


def _too_many_modifications(id_: str, error: AwsError, last: VolumeModification | None) -> BackendError:
    since = f", the last time {_utc(last.started)}" if last is not None else ""
    reason = error.message.strip().rstrip(".")
    return Throttled(
        f"{id_} was changed too often{since}: EC2 allows four changes in 24 hours ({reason}); the wish is kept and "
        "tried again",
        code=error.code,
        retry_after=MODIFICATION_RETRY_SECONDS,
        nothing_done=True,
    )


def _utc(stamp: float) -> str:
    return datetime.fromtimestamp(stamp, UTC).strftime("%Y-%m-%d %H:%M UTC")
