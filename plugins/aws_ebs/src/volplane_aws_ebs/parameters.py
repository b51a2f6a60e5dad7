"""The parameters of a StorageClass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from volplane import InvalidArgument, Parameter, ParameterKind, ParameterSchema
from volplane_aws_ebs.class_tags import SPECIFICATION, ClassTags
from volplane_aws_ebs.file_system import FILE_SYSTEM_PARAMETERS, FS_TYPES, check_file_system
from volplane_aws_ebs.volume_types import VOLUME_TYPES, allowed_iops

__all__ = ["PARAMETERS", "ClassParameters"]

_CSI_FS_TYPE = "csi.storage.k8s.io/fstype"

PARAMETERS = ParameterSchema(
    version=1,
    parameters=(
        Parameter(name="type", doc="Volume type.", choices=tuple(VOLUME_TYPES), default="gp3"),
        Parameter(
            name="iops",
            doc="IOPS to provision, for gp3, io1 and io2. More than the type has at the volume's size (500, 50 and "
            "1000 for each GiB), or the zone gives, are capped at that.",
            kind=ParameterKind.INTEGER,
            minimum=1,
            excludes=("iopsPerGB",),
        ),
        Parameter(
            name="iopsPerGB",
            doc="IOPS to provision for each GiB; capped in the same way.",
            kind=ParameterKind.INTEGER,
            minimum=1,
            excludes=("iops",),
        ),
        Parameter(
            name="allowAutoIOPSPerGBIncrease",
            doc="Where iops or iopsPerGB give less than the type's minimum, provision the minimum instead of refusing.",
            kind=ParameterKind.BOOLEAN,
            default=False,
        ),
        Parameter(
            name="allowAutoIOPSIncreaseOnModify",
            doc="Compute the IOPS of iopsPerGB anew when the volume grows.",
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
            doc="KMS key to encrypt with: its ARN, its id, or an alias (alias/name or its ARN); default: the account's "
            "key for EBS.",
            pattern=r"arn:[^\s:]+:kms:[^\s]+|alias/[\w/-]+|(mrk-)?[0-9a-f-]{32,36}|",
        ),
        Parameter(
            name="fsType",
            doc="File system that the node makes on it.",
            choices=FS_TYPES,
            default="ext4",
            excludes=(_CSI_FS_TYPE,),
        ),
        Parameter(
            name=_CSI_FS_TYPE,
            doc="The same, as classes of the official driver spell it.",
            choices=FS_TYPES,
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
            name=SPECIFICATION,
            doc='One tag for each parameter, as in tagSpecification_1: "key=value". Values may contain '
            "{{ .PVCNamespace }}, {{ .PVCName }}, {{ .PVName }} and the functions of the official driver.",
            kind=ParameterKind.KEYS,
        ),
        Parameter(
            name="blockExpress",
            doc="Accepted for older classes, without effect: all volumes of type io2 are on Block Express.",
            kind=ParameterKind.BOOLEAN,
        ),
        *FILE_SYSTEM_PARAMETERS,
        Parameter(
            name="volumeInitializationRate",
            doc="MiB/s at which a volume that is made from a snapshot is filled; for other volumes without effect.",
            kind=ParameterKind.INTEGER,
            minimum=100,
            maximum=300,
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
    """The parameters of a StorageClass. encrypted: None = the account's default. given: all of them, as they were read.

    increase_on_modify: growing the volume raises its IOPS. initialization_rate: MiB/s.
    """

    volume_type: str
    iops: int | None
    iops_per_gib: int | None
    raise_iops: bool
    increase_on_modify: bool
    throughput: int | None
    encrypted: bool | None
    kms_key: str | None
    fs_type: str
    tags: ClassTags
    snapshot: str | None
    initialization_rate: int | None
    given: Mapping[str, Any]

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
            increase_on_modify=values["allowAutoIOPSIncreaseOnModify"],
            throughput=values["throughput"],
            encrypted=True if values["kmsKeyId"] and values["encrypted"] is None else values["encrypted"],
            kms_key=values["kmsKeyId"] or None,
            fs_type=values[_CSI_FS_TYPE] or values["fsType"],
            tags=ClassTags.of(values["tags"], values[SPECIFICATION] or {}),
            snapshot=values["snapshotId"],
            initialization_rate=values["volumeInitializationRate"],
            given=values,
        )
        checked._check()
        return checked

    def _check(self) -> None:
        kind = VOLUME_TYPES[self.volume_type]
        if kind.iops is None and (self.iops is not None or self.iops_per_gib is not None):
            key, value = ("iops", self.iops) if self.iops is not None else ("iopsPerGB", self.iops_per_gib)
            raise InvalidArgument(
                f"parameter {key} is {value}: volumes of type {self.volume_type} have no IOPS to choose; remove it"
            )
        if kind.iops_required and self.iops is None and self.iops_per_gib is None:
            raise InvalidArgument(f"type {self.volume_type} needs the parameter iops or iopsPerGB")
        if kind.throughput is None and self.throughput is not None:
            raise InvalidArgument(
                f"parameter throughput is {self.throughput}: only gp3 has a throughput to choose, not "
                f"{self.volume_type}; remove it"
            )
        if self.kms_key is not None and self.encrypted is False:
            raise InvalidArgument(
                f"parameters kmsKeyId={self.kms_key} and encrypted=false contradict each other; remove one"
            )
        check_file_system(self.given, self.fs_type)

    def iops_at(self, size: int) -> int | None:
        """IOPS to provision for a volume of `size` GiB; None = the type's default. Raises InvalidArgument."""
        if self.iops is None and self.iops_per_gib is None:
            return None
        return allowed_iops(
            self.volume_type, size, iops=self.iops, per_gib=self.iops_per_gib, raise_to_minimum=self.raise_iops
        )
