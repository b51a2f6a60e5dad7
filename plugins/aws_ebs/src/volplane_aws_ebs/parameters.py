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
from volplane_aws_ebs.resources import GIB, Ec2Volume
from volplane_aws_ebs.settings import check_tags

__all__ = [
    "LARGEST_GIB",
    "PARAMETERS",
    "VOLUME_TYPES",
    "ClassParameters",
    "VolumeSpec",
    "VolumeType",
    "check_throughput",
    "gib",
    "iops_for",
    "rendered_tags",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeType:
    """What EC2 allows for a volume type (Amazon EC2 API reference, CreateVolume).

    sizes: GiB. iops, throughput (MiB/s): range that can be provisioned, None = none. iops_required: iops must be given.
    iops_per_gib: at most so many for each GiB, beyond the lowest number. iops_per_mib: at least so many for each MiB/s.
    default_iops: what a volume has for which none are given.
    """

    sizes: tuple[int, int]
    iops: tuple[int, int] | None = None
    iops_per_gib: int = 0
    iops_required: bool = False
    throughput: tuple[int, int] | None = None
    iops_per_mib: int = 0
    default_iops: int | None = None
    multi_attach: bool = False


VOLUME_TYPES: Mapping[str, VolumeType] = {
    "gp3": VolumeType(
        sizes=(1, 65_536),
        iops=(3_000, 80_000),
        iops_per_gib=500,
        throughput=(125, 2_000),
        iops_per_mib=4,
        default_iops=3_000,
    ),
    "gp2": VolumeType(sizes=(1, 16_384)),
    "io2": VolumeType(
        sizes=(4, 65_536), iops=(100, 256_000), iops_per_gib=1_000, iops_required=True, multi_attach=True
    ),
    "io1": VolumeType(sizes=(4, 16_384), iops=(100, 64_000), iops_per_gib=50, iops_required=True, multi_attach=True),
    "st1": VolumeType(sizes=(125, 16_384)),
    "sc1": VolumeType(sizes=(125, 16_384)),
    "standard": VolumeType(sizes=(1, 1_024)),
}
LARGEST_GIB = max(kind.sizes[1] for kind in VOLUME_TYPES.values())


def gib(size_bytes: int) -> int:
    """The size in GiB, rounded up."""
    return max(1, -(-size_bytes // GIB))


def iops_for(name: str, size: int, per_gib: int, *, raise_to_minimum: bool) -> int:
    """IOPS of a volume of `size` GiB with `per_gib` for each, limited to what the type allows at this size.

    raise_to_minimum: return the type's minimum where the product is below it, instead of raising InvalidArgument.
    """
    kind = VOLUME_TYPES[name]
    if kind.iops is None:
        raise InvalidArgument(f"iopsPerGB {per_gib}: volumes of type {name} have no IOPS to choose")
    low, high = kind.iops
    wanted = per_gib * size
    if wanted < low and not raise_to_minimum:
        raise InvalidArgument(
            f"iopsPerGB {per_gib} for {size} GiB gives {wanted} IOPS, type {name} has at least {low}; ask for more, "
            "or set allowAutoIOPSPerGBIncrease to get the minimum"
        )
    return max(low, min(wanted, high, size * kind.iops_per_gib))


def check_throughput(name: str, iops: int | None, throughput: int | None) -> None:
    """Raise InvalidArgument for a throughput (MiB/s) that the IOPS do not allow. None = the type's default.

    Amazon EBS User Guide, "General Purpose SSD volumes".
    """
    kind = VOLUME_TYPES[name]
    has = iops or kind.default_iops or 0
    needed = (throughput or 0) * kind.iops_per_mib
    if needed > has:
        raise InvalidArgument(
            f"throughput {throughput} MiB/s with {has} IOPS: type {name} has at most {1 / kind.iops_per_mib:g} MiB/s "
            f"for each of its IOPS; set iops to {needed} or more, or lower throughput"
        )


def _check_iops(name: str, size: int, iops: int | None) -> None:
    kind = VOLUME_TYPES[name]
    if iops is None or kind.iops is None:
        return
    most = max(kind.iops[0], size * kind.iops_per_gib)
    if iops > most:
        raise InvalidArgument(
            f"iops {iops} for {size} GiB: type {name} has at most {kind.iops_per_gib} IOPS for each GiB, which are "
            f"{most}; ask for fewer, or for a larger volume"
        )


_FS_TYPES = ("ext4", "ext3", "xfs", "ntfs")
_CSI_FS_TYPE = "csi.storage.k8s.io/fstype"
_MULTI_NODE = frozenset({AccessMode.READ_WRITE_MANY, AccessMode.READ_ONLY_MANY})

PARAMETERS = ParameterSchema(
    version=1,
    parameters=(
        Parameter(name="type", doc="Volume type.", choices=tuple(VOLUME_TYPES), default="gp3"),
        Parameter(
            name="iops",
            doc="IOPS to provision, for gp3, io1 and io2; at most 500, 50 and 1000 for each GiB.",
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
            doc="Throughput to provision in MiB/s, for gp3; at most 0.25 for each of its IOPS.",
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
            excludes=(_CSI_FS_TYPE,),
        ),
        Parameter(
            name=_CSI_FS_TYPE,
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
class ClassParameters:
    """The parameters of a StorageClass. encrypted: None = the account's default."""

    volume_type: str
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
    def of(cls, parameters: Mapping[str, Any]) -> ClassParameters:
        """Read parameters that the schema has checked; raises `InvalidArgument` for what a schema cannot express."""
        values: dict[str, Any] = {parameter.name: parameter.default for parameter in PARAMETERS.parameters}
        values.update({name: value for name, value in parameters.items() if value is not None})
        checked = cls(
            volume_type=values["type"],
            iops=values["iops"],
            iops_per_gib=values["iopsPerGB"],
            raise_iops=values["allowAutoIOPSPerGBIncrease"],
            throughput=values["throughput"],
            encrypted=True if values["kmsKeyId"] and values["encrypted"] is None else values["encrypted"],
            kms_key=values["kmsKeyId"],
            fs_type=values[_CSI_FS_TYPE] or values["fsType"],
            tags=values["tags"],
            snapshot=values["snapshotId"],
        )
        checked._check()
        return checked

    def _check(self) -> None:
        kind = VOLUME_TYPES[self.volume_type]
        if kind.iops is None and (self.iops is not None or self.iops_per_gib is not None):
            named = "iops" if self.iops is not None else "iopsPerGB"
            raise InvalidArgument(
                f"parameter {named}: volumes of type {self.volume_type} have no IOPS to choose; remove it"
            )
        if kind.iops_required and self.iops is None and self.iops_per_gib is None:
            raise InvalidArgument(f"type {self.volume_type} needs the parameter iops or iopsPerGB")
        if kind.throughput is None and self.throughput is not None:
            raise InvalidArgument(
                f"parameter throughput: only gp3 has a throughput to choose, not {self.volume_type}; remove it"
            )
        if self.kms_key is not None and self.encrypted is False:
            raise InvalidArgument("parameters kmsKeyId and encrypted=false contradict each other; remove one")
        check_tags(self.tags, "parameter tags")
        for key, value in self.tags.items():
            _refuse_unknown_placeholders(key, value)

    def iops_at(self, size: int) -> int | None:
        """IOPS to provision for a volume of `size` GiB; None = the type's default."""
        if self.iops_per_gib is None:
            return self.iops
        return iops_for(self.volume_type, size, self.iops_per_gib, raise_to_minimum=self.raise_iops)


def _refuse_unknown_placeholders(key: str, value: str) -> None:
    known = {"namespace", "claim", "volume"}
    bare = Template(value)
    if not bare.is_valid() or not known.issuperset(bare.get_identifiers()):
        raise InvalidArgument(
            f"parameter tags: the value {value!r} of {key!r} may contain ${{namespace}}, ${{claim}} and ${{volume}}, "
            "no other $"
        )


def rendered_tags(tags: Mapping[str, str], claim: ClaimIdentity, volume: str) -> dict[str, str]:
    """The tags of the class with their placeholders filled in, truncated to 256 characters."""
    values = {"namespace": claim.namespace, "claim": claim.name, "volume": volume}
    return {key: Template(value).substitute(values)[:256] for key, value in tags.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeSpec:
    """The volume that a claim asks for. size: GiB. snapshot: the source, if any."""

    size: int
    parameters: ClassParameters
    iops: int | None
    snapshot: str | None
    multi_attach: bool

    @classmethod
    def of(cls, request: ProvisionRequest) -> VolumeSpec:
        """Raises `InvalidArgument` or `Unsupported` if no volume of EBS can be like this."""
        parameters = ClassParameters.of(request.parameters)
        if request.source_volume is not None:
            raise Unsupported("volumes cannot be made from other volumes; make a snapshot and a volume from that")
        size = gib(request.capacity_bytes)
        low, high = VOLUME_TYPES[parameters.volume_type].sizes
        if not low <= size <= high:
            raise InvalidArgument(f"{size} GiB: volumes of type {parameters.volume_type} have {low} to {high} GiB")
        if request.limit_bytes is not None and size * GIB > request.limit_bytes:
            raise InvalidArgument(
                f"{request.capacity_bytes} bytes are {size} GiB when rounded up, more than the limit of "
                f"{request.limit_bytes}"
            )
        iops = parameters.iops_at(size)
        _check_iops(parameters.volume_type, size, iops)
        check_throughput(parameters.volume_type, iops, parameters.throughput)
        return cls(
            size=size,
            parameters=parameters,
            iops=iops,
            snapshot=request.source_snapshot or parameters.snapshot,
            multi_attach=_multi_attach(request, parameters),
        )

    def create_volume_parameters(self) -> dict[str, Any]:
        """Parameters of CreateVolume that describe the volume."""
        wanted: dict[str, Any] = {
            "Size": self.size,
            "VolumeType": self.parameters.volume_type,
            "Iops": self.iops,
            "Throughput": self.parameters.throughput,
            "Encrypted": self.parameters.encrypted,
            "KmsKeyId": self.parameters.kms_key,
            "SnapshotId": self.snapshot,
            "MultiAttachEnabled": True if self.multi_attach else None,
        }
        return {name: value for name, value in wanted.items() if value is not None}

    @property
    def digest(self) -> str:
        """A hash for a tag: equal specs have equal ones."""
        return hashlib.sha256(json.dumps(self.create_volume_parameters(), sort_keys=True).encode()).hexdigest()[:16]

    def difference(self, volume: Ec2Volume) -> str:
        """How an existing volume differs from this spec, for a message."""
        found = {
            "Size": volume.size,
            "VolumeType": volume.volume_type,
            "Iops": volume.iops,
            "Throughput": volume.throughput,
        }
        found |= {"Encrypted": volume.encrypted, "KmsKeyId": volume.kms_key, "SnapshotId": volume.snapshot or None}
        found["MultiAttachEnabled"] = volume.multi_attach
        differences = [
            f"{name} {found[name]} instead of {value}"
            for name, value in self.create_volume_parameters().items()
            if found[name] != value
        ]
        return ", ".join(differences) or "it was asked for with other parameters"


def _multi_attach(request: ProvisionRequest, parameters: ClassParameters) -> bool:
    shared = sorted(str(mode) for mode in _MULTI_NODE.intersection(request.access_modes))
    if not shared:
        return False
    if request.volume_mode is not VolumeMode.BLOCK or not VOLUME_TYPES[parameters.volume_type].multi_attach:
        raise Unsupported(
            f"access mode {shared[0]}: only a volume of type io2 (or io1) with volumeMode Block can be attached to "
            "several nodes"
        )
    return True
