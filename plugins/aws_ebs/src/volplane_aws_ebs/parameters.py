"""The parameters of a StorageClass, and the volume that a claim of the class asks for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from typing import Any

from volplane import (
    AccessMode,
    ClaimIdentity,
    InvalidArgument,
    Parameter,
    ParameterKind,
    ParameterSchema,
    ProvisionRequest,
    Unsupported,
    VolumeMode,
)
from volplane_aws_ebs.resources import GIB, VolumeSeen
from volplane_aws_ebs.settings import check_tags

__all__ = ["KINDS", "LARGEST_GIB", "PARAMETERS", "Demand", "Kind", "Shape", "gib", "iops_for", "rendered_tags"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """sizes: in GiB. iops: what can be asked for, None = nothing. iops_required: must be asked for."""

    sizes: tuple[int, int]
    iops: tuple[int, int] | None = None
    iops_per_gib: int = 0
    iops_required: bool = False
    throughput: tuple[int, int] | None = None
    multi_attach: bool = False


KINDS: Mapping[str, Kind] = {
    "gp3": Kind(sizes=(1, 65_536), iops=(3_000, 80_000), iops_per_gib=500, throughput=(125, 2_000)),
    "gp2": Kind(sizes=(1, 16_384)),
    "io2": Kind(sizes=(4, 65_536), iops=(100, 256_000), iops_per_gib=1_000, iops_required=True, multi_attach=True),
    "io1": Kind(sizes=(4, 16_384), iops=(100, 64_000), iops_per_gib=50, iops_required=True, multi_attach=True),
    "st1": Kind(sizes=(125, 16_384)),
    "sc1": Kind(sizes=(125, 16_384)),
    "standard": Kind(sizes=(1, 1_024)),
}
LARGEST_GIB = max(kind.sizes[1] for kind in KINDS.values())


def gib(size_bytes: int) -> int:
    """Whole GiB that hold so many bytes."""
    return max(1, -(-size_bytes // GIB))


def iops_for(name: str, size: int, per_gib: int, *, raise_to_minimum: bool) -> int:
    """IOPS of a volume of so many GiB that has so many for each: within what the type allows at this size.

    raise_to_minimum: give the type's minimum where the product is below it, instead of raising InvalidArgument.
    """
    kind = KINDS[name]
    if kind.iops is None:
        raise InvalidArgument(f"iopsPerGB {per_gib}: volumes of type {name} have no IOPS to choose")
    low, high = kind.iops
    wanted = per_gib * size
    if wanted < low and not raise_to_minimum:
        raise InvalidArgument(
            f"iopsPerGB {per_gib} for {size} GiB gives {wanted} IOPS, type {name} has at least {low}; ask for more, or set "
            "allowAutoIOPSPerGBIncrease to get the minimum"
        )
    return max(low, min(wanted, high, size * kind.iops_per_gib))


_FS_TYPES = ("ext4", "ext3", "xfs", "ntfs")
_STOCK_FS_TYPE = "csi.storage.k8s.io/fstype"
_SHARED = frozenset({AccessMode.READ_WRITE_MANY, AccessMode.READ_ONLY_MANY})

PARAMETERS = ParameterSchema(
    version=1,
    parameters=(
        Parameter(name="type", doc="Volume type.", choices=tuple(KINDS), default="gp3"),
        Parameter(
            name="iops",
            doc="IOPS to provision, for gp3, io1 and io2.",
            kind=ParameterKind.INTEGER,
            minimum=100,
            maximum=256_000,
            excludes=("iopsPerGB",),
        ),
        Parameter(
            name="iopsPerGB",
            doc="IOPS to provision for each GiB, within the bounds of the type; computed anew when the volume grows.",
            kind=ParameterKind.INTEGER,
            minimum=1,
            maximum=1_000,
            excludes=("iops",),
        ),
        Parameter(
            name="allowAutoIOPSPerGBIncrease",
            doc="Where iopsPerGB gives less than the type's minimum, provision the minimum instead of refusing.",
            kind=ParameterKind.BOOLEAN,
            default=False,
        ),
        Parameter(
            name="throughput",
            doc="Throughput to provision in MiB/s, for gp3.",
            kind=ParameterKind.INTEGER,
            minimum=125,
            maximum=2_000,
        ),
        Parameter(
            name="encrypted",
            doc="Encrypt the volume. Default: what the account says; with kmsKeyId true.",
            kind=ParameterKind.BOOLEAN,
        ),
        Parameter(
            name="kmsKeyId",
            doc="ARN of the KMS key to encrypt with; default: the account's key for EBS.",
            pattern=r"arn:[^\s:]+:kms:[^\s]+",
        ),
        Parameter(
            name="fsType",
            doc="File system that the node makes on it.",
            choices=_FS_TYPES,
            default="ext4",
            excludes=(_STOCK_FS_TYPE,),
        ),
        Parameter(
            name=_STOCK_FS_TYPE,
            doc="The same, as classes of the official driver spell it.",
            choices=_FS_TYPES,
            excludes=("fsType",),
        ),
        Parameter(
            name="tags",
            doc="Tags for the volume, beside those of the driver's options. Values may contain ${namespace}, ${claim} "
            "and ${volume}.",
            kind=ParameterKind.MAPPING,
            default={},
        ),
        Parameter(
            name="snapshotId",
            doc="Snapshot that the volume is made from; it must be at least as large.",
            pattern="snap-[0-9a-f]{8,17}",
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a class asks for, apart from any claim. encrypted: None = as the account says."""

    kind: str
    iops: int | None
    iops_per_gib: int | None
    raise_iops: bool
    throughput: int | None
    encrypted: bool | None
    kms_key: str | None
    fs_type: str
    tags: Mapping[str, str]
    snapshot: str | None

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Shape:
        """Read class parameters that the schema has checked; raises `InvalidArgument` for what goes beyond it."""
        values: dict[str, Any] = {parameter.name: parameter.default for parameter in PARAMETERS.parameters}
        values.update({name: value for name, value in parameters.items() if value is not None})
        shape = cls(
            kind=values["type"],
            iops=values["iops"],
            iops_per_gib=values["iopsPerGB"],
            raise_iops=values["allowAutoIOPSPerGBIncrease"],
            throughput=values["throughput"],
            encrypted=True if values["kmsKeyId"] and values["encrypted"] is None else values["encrypted"],
            kms_key=values["kmsKeyId"],
            fs_type=values[_STOCK_FS_TYPE] or values["fsType"],
            tags=values["tags"],
            snapshot=values["snapshotId"],
        )
        shape._check()
        return shape

    def _check(self) -> None:
        kind = KINDS[self.kind]
        if kind.iops is None and (self.iops is not None or self.iops_per_gib is not None):
            named = "iops" if self.iops is not None else "iopsPerGB"
            raise InvalidArgument(f"parameter {named}: volumes of type {self.kind} have no IOPS to choose; remove it")
        if kind.iops_required and self.iops is None and self.iops_per_gib is None:
            raise InvalidArgument(f"type {self.kind} needs the parameter iops or iopsPerGB")
        if kind.throughput is None and self.throughput is not None:
            raise InvalidArgument(
                f"parameter throughput: only gp3 has a throughput to choose, not {self.kind}; remove it"
            )
        if self.kms_key is not None and self.encrypted is False:
            raise InvalidArgument("parameters kmsKeyId and encrypted=false contradict each other; remove one")
        check_tags(self.tags, "parameter tags")
        for key, value in self.tags.items():
            _refuse_unknown_placeholders(key, value)

    def iops_at(self, size: int) -> int | None:
        """IOPS of a volume of so many GiB; None = what the type gives by itself."""
        if self.iops_per_gib is None:
            return self.iops
        return iops_for(self.kind, size, self.iops_per_gib, raise_to_minimum=self.raise_iops)


def _refuse_unknown_placeholders(key: str, value: str) -> None:
    known = {"namespace", "claim", "volume"}
    bare = Template(value)
    if not bare.is_valid() or not known.issuperset(bare.get_identifiers()):
        raise InvalidArgument(
            f"parameter tags: the value {value!r} of {key!r} may contain ${{namespace}}, ${{claim}} and ${{volume}}, no "
            "other $"
        )


def rendered_tags(tags: Mapping[str, str], claim: ClaimIdentity, volume: str) -> dict[str, str]:
    """The class's tags with their placeholders filled in, cut at what EC2 takes."""
    values = {"namespace": claim.namespace, "claim": claim.name, "volume": volume}
    return {key: Template(value).substitute(values)[:256] for key, value in tags.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The volume that a claim of a class asks for."""

    size: int
    shape: Shape
    iops: int | None
    snapshot: str | None
    multi_attach: bool

    @classmethod
    def of(cls, request: ProvisionRequest) -> Demand:
        """Raises `InvalidArgument` or `Unsupported` for what no volume of EBS can be."""
        shape = Shape.of(request.parameters)
        if request.source_volume is not None:
            raise Unsupported("volumes cannot be made from other volumes; make a snapshot and a volume from that")
        size = gib(request.capacity_bytes)
        low, high = KINDS[shape.kind].sizes
        if not low <= size <= high:
            raise InvalidArgument(f"{size} GiB: volumes of type {shape.kind} have {low} to {high} GiB")
        if request.limit_bytes is not None and size * GIB > request.limit_bytes:
            raise InvalidArgument(
                f"{request.capacity_bytes} bytes are {size} GiB when rounded up, more than the limit of {request.limit_bytes}"
            )
        return cls(
            size=size,
            shape=shape,
            iops=shape.iops_at(size),
            snapshot=request.source_snapshot or shape.snapshot,
            multi_attach=_multi_attach(request, shape),
        )

    def call(self) -> dict[str, Any]:
        """The parameters of CreateVolume that say what the volume is."""
        wanted: dict[str, Any] = {
            "Size": self.size,
            "VolumeType": self.shape.kind,
            "Iops": self.iops,
            "Throughput": self.shape.throughput,
            "Encrypted": self.shape.encrypted,
            "KmsKeyId": self.shape.kms_key,
            "SnapshotId": self.snapshot,
            "MultiAttachEnabled": True if self.multi_attach else None,
        }
        return {name: value for name, value in wanted.items() if value is not None}

    @property
    def mark(self) -> str:
        """A short form for a tag: equal demands have equal ones."""
        return hashlib.sha256(json.dumps(self.call(), sort_keys=True).encode()).hexdigest()[:16]

    def difference(self, seen: VolumeSeen) -> str:
        """In which way an existing volume is another one, for a message."""
        found = {"Size": seen.size, "VolumeType": seen.kind, "Iops": seen.iops, "Throughput": seen.throughput}
        found |= {"Encrypted": seen.encrypted, "KmsKeyId": seen.kms_key, "SnapshotId": seen.snapshot or None}
        found["MultiAttachEnabled"] = seen.multi_attach
        told = [
            f"{name} {found[name]} instead of {value}" for name, value in self.call().items() if found[name] != value
        ]
        return ", ".join(told) or "it was asked for with other parameters"


def _multi_attach(request: ProvisionRequest, shape: Shape) -> bool:
    shared = sorted(str(mode) for mode in _SHARED.intersection(request.access_modes))
    if not shared:
        return False
    if request.volume_mode is not VolumeMode.BLOCK or not KINDS[shape.kind].multi_attach:
        raise Unsupported(
            f"access mode {shared[0]}: only a volume of type io2 (or io1) with volumeMode Block can be attached to several nodes"
        )
    return True
