"""The parameters of a StorageClass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Final

from volplane import InvalidArgument, Param, ParameterKind, ParameterSchema, VolumeMode
from volplane.cloud import AccountParameters
from volplane_aws_ebs.class_tags import SPECIFICATION, ClassTags
from volplane_aws_ebs.volume_types import VOLUME_TYPES, allowed_iops

BLOCK_UNTIL_INITIALIZED: Final = "blockAttachUntilInitialized"
_CSI_FS_TYPE: Final = "csi.storage.k8s.io/fstype"
_FS_TYPES: Final = ("ext4", "ext3", "xfs", "ntfs")
_EXT4: Final = ("ext4",)
_EXT: Final = ("ext4", "ext3")
_LINUX: Final = ("ext4", "ext3", "xfs")
_NUMBER: Final = "[0-9A-Za-z]+"
_ZERO_IS_ABSENT: Final = ("iops", "iops_per_gib", "throughput", "initialization_rate")
"""Parameters of which the official driver does not tell 0 from none."""
_SLOWEST_INITIALIZATION: Final = 100


@dataclass(frozen=True, kw_only=True)
class ClassParameters(AccountParameters):
    """The parameters of a StorageClass, those that only the node plugin honours included."""

    volume_type: Annotated[str, Param("Volume type.", name="type", choices=tuple(VOLUME_TYPES))] = "gp3"
    iops: Annotated[
        int | None,
        Param(
            "IOPS to provision, for gp3, io1 and io2. More than the type has at the volume's size (500, 50 and "
            "1000 for each GiB), or the zone gives, are capped at that. 0: the type's default.",
            minimum=0,
            excludes=("iopsPerGB",),
        ),
    ] = None
    iops_per_gib: Annotated[
        int | None,
        Param(
            "IOPS to provision for each GiB; capped in the same way.", name="iopsPerGB", minimum=0, excludes=("iops",)
        ),
    ] = None
    raise_iops: Annotated[
        bool,
        Param(
            "Where iops or iopsPerGB give less than the type's minimum, provision the minimum instead of refusing.",
            name="allowAutoIOPSPerGBIncrease",
        ),
    ] = False
    increase_on_modify: Annotated[
        bool, Param("Compute the IOPS of iopsPerGB again when the volume grows.", name="allowAutoIOPSIncreaseOnModify")
    ] = False
    throughput: Annotated[
        int | None,
        Param(
            "Throughput to provision in MiB/s, for gp3; at most 0.25 for each of its IOPS. 0: the type's default.",
            minimum=0,
            maximum=2_000,
        ),
    ] = None
    encrypted: Annotated[
        bool | None, Param("Encrypt the volume. Default: what the account says; with kmsKeyId true.")
    ] = None
    kms_key_id: Annotated[
        str | None,
        Param(
            "KMS key to encrypt with: its ARN, its id, or an alias (alias/name or its ARN); default: the account's "
            "key for EBS.",
            name="kmsKeyId",
            pattern=r"arn:[^\s:]+:kms:[^\s]+|alias/[\w/-]+|(mrk-)?[0-9a-f-]{32,36}|",
        ),
    ] = None
    plain_fs_type: Annotated[
        str, Param("File system that the node makes on it.", name="fsType", choices=_FS_TYPES, excludes=(_CSI_FS_TYPE,))
    ] = "ext4"
    csi_fs_type: Annotated[
        str | None,
        Param(
            "The same, as classes of the official driver spell it.",
            name=_CSI_FS_TYPE,
            choices=_FS_TYPES,
            excludes=("fsType",),
        ),
    ] = None
    plain_tags: Annotated[
        Mapping[str, str],
        Param(
            "Tags for the volume, beside those of the driver's options. Values may contain ${namespace}, ${claim} "
            "and ${volume}.",
            name="tags",
        ),
    ] = field(default_factory=dict)
    tag_specifications: Annotated[
        Mapping[str, str] | None,
        Param(
            'One tag for each parameter, as in tagSpecification_1: "key=value". Values may contain '
            "{{ .PVCNamespace }}, {{ .PVCName }}, {{ .PVName }} and the functions of the official driver.",
            name=SPECIFICATION,
            kind=ParameterKind.KEYS,
        ),
    ] = None
    block_express: Annotated[
        bool | None,
        Param(
            "Accepted for older classes, without effect: all volumes of type io2 are on Block Express.",
            name="blockExpress",
        ),
    ] = None
    block_size: Annotated[
        str | None, Param("Block size of the file system; not for ntfs.", name="blockSize", pattern=_NUMBER)
    ] = None
    inode_size: Annotated[str | None, Param("Size of its inodes; not for ntfs.", name="inodeSize", pattern=_NUMBER)] = (
        None
    )
    bytes_per_inode: Annotated[
        str | None, Param("One inode for so many bytes; for ext3 and ext4.", name="bytesPerInode", pattern=_NUMBER)
    ] = None
    number_of_inodes: Annotated[
        str | None, Param("So many inodes; for ext3 and ext4.", name="numberOfInodes", pattern=_NUMBER)
    ] = None
    ext4_big_alloc: Annotated[bool, Param("Allocate blocks in clusters; for ext4.", name="ext4BigAlloc")] = False
    ext4_cluster_size: Annotated[
        str | None, Param("Size of these clusters, with ext4BigAlloc.", name="ext4ClusterSize", pattern=_NUMBER)
    ] = None
    ext4_encryption_support: Annotated[
        bool, Param("Let programs encrypt directories of the file system; for ext4.", name="ext4EncryptionSupport")
    ] = False
    block_until_initialized: Annotated[
        bool,
        Param(
            "Attach a volume that was made from a snapshot or another volume only when all of it has been read from "
            "there.",
            name=BLOCK_UNTIL_INITIALIZED,
        ),
    ] = False
    initialization_rate: Annotated[
        int | None,
        Param(
            "MiB/s, from 100, at which a volume from a snapshot is filled; for other volumes without effect.",
            name="volumeInitializationRate",
            minimum=0,
            maximum=300,
        ),
    ] = None
    snapshot: Annotated[
        str | None,
        Param(
            "Snapshot that the volume is made from; it must be at least as large.",
            name="snapshotId",
            pattern="snap-[0-9a-f]{8,17}",
        ),
    ] = None

    role: Annotated[
        str,
        Param(
            "Role to assume for all calls about its volumes, one of the option class_roles; empty = none. Not together "
            "with Secrets.",
            name="roleArn",
        ),
    ] = ""

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` for what a schema cannot express."""
        _ = self.tags  # It raises for tags that cannot be.
        for name in _ZERO_IS_ABSENT:
            if getattr(self, name) == 0:
                object.__setattr__(self, name, None)
        kind = VOLUME_TYPES[self.volume_type]
        if kind.iops is None and (self.iops is not None or self.iops_per_gib is not None):
            key, value = ("iops", self.iops) if self.iops is not None else ("iopsPerGB", self.iops_per_gib)
            raise InvalidArgument(
                f"parameter {key} is {value}: volumes of type {self.volume_type} have no IOPS to choose; remove it"
            )
        if kind.throughput is None and self.throughput is not None:
            raise InvalidArgument(
                f"parameter throughput is {self.throughput}: only gp3 has a throughput to choose, not "
                f"{self.volume_type}; remove it"
            )
        self._check_minimums()
        for name, (option, file_systems) in self._file_system_options.items():
            if option and self.fs_type not in file_systems:
                raise InvalidArgument(
                    f"parameter {name} is {_text(option)!r}: the file system {self.fs_type} has no such option, only "
                    f"{', '.join(file_systems)}; remove it, or choose another file system"
                )
        if self.ext4_cluster_size and not self.ext4_big_alloc:
            raise InvalidArgument(
                f"parameter ext4ClusterSize is {self.ext4_cluster_size!r}: clusters are used only with ext4BigAlloc, "
                "which must be true"
            )

    def _check_minimums(self) -> None:
        """Raise `InvalidArgument` for a number that is neither 0 nor enough."""
        throughput = VOLUME_TYPES[self.volume_type].throughput
        for name, value, least in (
            ("throughput", self.throughput, throughput[0] if throughput else 0),
            ("volumeInitializationRate", self.initialization_rate, _SLOWEST_INITIALIZATION),
        ):
            if value is not None and value < least:
                raise InvalidArgument(f"parameter {name} is {value}, expected at least {least}, or 0 for the default")

    @property
    def fs_type(self) -> str:
        """Return the file system that the node makes."""
        return self.csi_fs_type or self.plain_fs_type

    @property
    def kms_key(self) -> str | None:
        """Return the key to encrypt with; None = the account's key."""
        return self.kms_key_id or None

    def refuse_key_of_another_region(self, region: str) -> None:
        """Raise `InvalidArgument` for a key by which EC2 would make the volume, and delete it at once."""
        where = self.kms_key.split(":")[3] if self.kms_key and self.kms_key.startswith("arn:") else region
        if where != region:
            raise InvalidArgument(
                f"parameter kmsKeyId is {self.kms_key!r}: a key of {where or 'no region'}, and volumes of {region} are "
                f"encrypted with keys of {region} alone; name one of these"
            )

    @property
    def create_encrypted(self) -> bool | None:
        """Return whether to encrypt; None = the account's default. A key always encrypts, as in the official driver."""
        return True if self.kms_key else self.encrypted

    @cached_property
    def tags(self) -> ClassTags:
        """Return the tags of the volume. Raises `InvalidArgument`."""
        return ClassTags.of(self.plain_tags, self.tag_specifications or {})

    @property
    def _file_system_options(self) -> dict[str, tuple[str | bool | None, tuple[str, ...]]]:
        """Return, by parameter, its value and the file systems that have the option."""
        return {
            "blockSize": (self.block_size, _LINUX),
            "inodeSize": (self.inode_size, _LINUX),
            "bytesPerInode": (self.bytes_per_inode, _EXT),
            "numberOfInodes": (self.number_of_inodes, _EXT),
            "ext4BigAlloc": (self.ext4_big_alloc, _EXT4),
            "ext4ClusterSize": (self.ext4_cluster_size, _EXT4),
            "ext4EncryptionSupport": (self.ext4_encryption_support, _EXT4),
        }

    def iops_at(self, size: int) -> int | None:
        """Return the IOPS of a volume of `size` GiB; None = the type's default. Raises InvalidArgument."""
        if self.iops is None and self.iops_per_gib is None:
            if VOLUME_TYPES[self.volume_type].iops_required:  # A VolumeAttributesClass may have given them.
                raise InvalidArgument(f"type {self.volume_type} needs the parameter iops or iopsPerGB")
            return None
        return allowed_iops(
            self.volume_type, size, iops=self.iops, per_gib=self.iops_per_gib, raise_to_minimum=self.raise_iops
        )

    def node_attributes(self, mode: VolumeMode) -> dict[str, str]:
        """Return the volume's attributes for the node plugin, under the keys that the official driver's plugin reads.

        They are those of kubernetes-sigs/aws-ebs-csi-driver, pkg/driver/constants.go. Raises InvalidArgument for
        options of a file system that the volume will not have.
        """
        given = {name: _text(value) for name, (value, _) in self._file_system_options.items() if value}
        if given and mode is VolumeMode.BLOCK:
            name, text = next(iter(given.items()))
            raise InvalidArgument(
                f"parameter {name} is {text!r}: a volume of mode Block has no file system; use another class for it"
            )
        if self.block_until_initialized:
            given[BLOCK_UNTIL_INITIALIZED] = "true"
        return {name.lower(): text for name, text in given.items()}


PARAMETERS = ParameterSchema.of(ClassParameters)


def _text(value: object) -> str:
    return "true" if value is True else str(value)
