"""The parameters of a VolumeSnapshotClass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any

from volplane import InvalidArgument, Param, ParameterKind, ParameterSchema, SnapshotIdentity
from volplane.cloud import AccountParameters
from volplane_aws_ebs.class_tags import SPECIFICATION, ClassTags
from volplane_aws_ebs.tag_templates import SNAPSHOT_FIELDS

_COMPLIANCE = "compliance"


@dataclass(frozen=True, kw_only=True)
class SnapshotParameters(AccountParameters):
    """The parameters of a VolumeSnapshotClass."""

    tag_specifications: Annotated[
        Mapping[str, str] | None,
        Param(
            'One tag for each parameter, as in tagSpecification_1: "key=value". Values may contain '
            "{{ .VolumeSnapshotNamespace }}, {{ .VolumeSnapshotName }}, {{ .VolumeSnapshotContentName }} and the "
            "functions of the official driver.",
            name=SPECIFICATION,
            kind=ParameterKind.KEYS,
        ),
    ] = None
    fast_restore_zones: Annotated[
        tuple[str, ...],
        Param(
            "Zones in which fast restore is enabled, which costs by the hour. The snapshot is ready when EC2 has "
            "accepted that; a zone that EC2 refuses for good is told.",
            name="fastSnapshotRestoreAvailabilityZones",
        ),
    ] = ()
    outpost: Annotated[
        str,
        Param(
            "Outpost to keep it on, that of its volume; default: the region.",
            name="outpostArn",
            pattern=r"arn:[^\s:]+:outposts:[^\s]+|",
        ),
    ] = ""
    lock_mode: Annotated[
        str | None,
        Param(
            "Lock it against deletion; it is ready when it is locked.",
            name="lockMode",
            choices=("governance", _COMPLIANCE),
        ),
    ] = None
    lock_days: Annotated[
        int | None,
        Param("For how many days.", name="lockDuration", minimum=1, maximum=36_500, excludes=("lockExpirationDate",)),
    ] = None
    lock_expires: Annotated[
        str | None,
        Param("Until when, such as 2030-01-01T00:00:00Z.", name="lockExpirationDate", excludes=("lockDuration",)),
    ] = None
    cool_off: Annotated[
        int | None,
        Param(
            "Hours in which a lock of mode compliance can be taken back; default: it never can.",
            name="lockCoolOffPeriod",
            minimum=1,
            maximum=72,
        ),
    ] = None

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` for what a schema cannot express."""
        _ = self.tags, self.expires  # They raise for texts that cannot be.
        given = {"lockDuration": self.lock_days, "lockExpirationDate": self.lock_expires}
        given["lockCoolOffPeriod"] = self.cool_off
        needless = next((name for name, value in given.items() if value is not None), None)
        if self.lock_mode is None and needless is not None:
            raise InvalidArgument(
                f"parameter {needless} is {given[needless]}: it needs lockMode; add that, or remove it"
            )
        if self.lock_mode is not None and self.lock_days is None and self.lock_expires is None:
            raise InvalidArgument(
                f"parameter lockMode is {self.lock_mode!r}: it needs lockDuration (days) or lockExpirationDate"
            )
        if self.cool_off is not None and self.lock_mode != _COMPLIANCE:
            raise InvalidArgument(
                f"parameter lockCoolOffPeriod is {self.cool_off}: only locks of mode {_COMPLIANCE} have one; remove it"
            )

    @cached_property
    def tags(self) -> ClassTags:
        """Return the tags of the snapshot. Raises `InvalidArgument`."""
        return ClassTags.of({}, self.tag_specifications or {}, SNAPSHOT_FIELDS)

    def rendered_tags(self, made_for: SnapshotIdentity) -> dict[str, str]:
        """Return the tags with their placeholders filled in. Raises `InvalidArgument`."""
        values = (made_for.namespace, made_for.name, made_for.content)
        fields = dict(zip(SNAPSHOT_FIELDS, values, strict=True))
        return self.tags.filled(fields, f"VolumeSnapshot {made_for.namespace}/{made_for.name}")

    @cached_property
    def expires(self) -> datetime | None:
        """Return when the lock ends, if it ends at a date. Raises `InvalidArgument`."""
        if self.lock_expires is None:
            return None
        try:
            date = datetime.fromisoformat(self.lock_expires)
        except ValueError:
            date = None
        if date is None or date.tzinfo is None:
            raise InvalidArgument(
                f"parameter lockExpirationDate is {self.lock_expires!r}, expected a date, time and zone such as "
                "2030-01-01T00:00:00Z"
            )
        return date

    @property
    def lock(self) -> dict[str, Any]:
        """Return the parameters of LockSnapshot; empty if it is not to be locked."""
        if self.lock_mode is None:
            return {}
        wanted = {"LockMode": self.lock_mode, "LockDuration": self.lock_days, "ExpirationDate": self.expires}
        wanted["CoolOffPeriod"] = self.cool_off
        return {name: value for name, value in wanted.items() if value is not None}

    @property
    def steps(self) -> bool:
        """Return whether something is to be reached after the snapshot was made."""
        return bool(self.lock_mode or self.fast_restore_zones)


PARAMETERS = ParameterSchema.of(SnapshotParameters)
