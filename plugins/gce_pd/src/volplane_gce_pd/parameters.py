"""The parameters of a StorageClass, and of a VolumeAttributesClass."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated

from volplane import (
    InvalidArgument,
    Param,
    ParameterKind,
    ParameterSchema,
)
from volplane.cloud import AccountParameters
from volplane_gce_pd.disk_types import DISK_TYPES, check_performance
from volplane_gce_pd.settings import check_labels

MIB = 1 << 20
_FS_TYPES = ("ext4", "ext3", "xfs", "btrfs", "ntfs")
_CSI_FS_TYPE = "csi.storage.k8s.io/fstype"
_FAILOVER = "regional-hard-failover"
_MOST_RESOURCE_TAGS = 50
_RESOURCE_TAG = re.compile(r"([^/\s]+)/([^/\s]+)/([^/\s]+)")
_POOL = re.compile(r"projects/[^/\s]+/zones/([a-z0-9-]+)/storagePools/[a-z][a-z0-9-]{0,62}")


DISK_TYPE_LABEL = "disk-type.gke.io/"
"""Beginning of node labels: the machine takes disks of the type that follows."""
_DYNAMIC = "dynamic"
_UNITS = {"": 1, "mi": 1, "gi": 1024}


def _types(beginning: str) -> tuple[str, ...]:
    return tuple(name for name in DISK_TYPES if name.startswith(beginning))


def mebibytes(size_bytes: int) -> int:
    """Return the throughput in MiB/s, rounded up."""
    return -(-size_bytes // MIB)


@dataclass(frozen=True, kw_only=True)
class ClassParameters(AccountParameters):
    """The parameters of a StorageClass."""

    disk_type: Annotated[
        str,
        Param(
            "Type of the disk; dynamic: the one of pd-type and hyperdisk-type that the selected node takes, by its "
            f"labels {DISK_TYPE_LABEL}TYPE. What the other type alone has is ignored then.",
            name="type",
            choices=(*DISK_TYPES, _DYNAMIC),
        ),
    ] = "pd-standard"
    pd_type: Annotated[
        str | None,
        Param("With type dynamic; default: pd-balanced.", name="pd-type", choices=_types("pd-")),
    ] = None
    hyperdisk_type: Annotated[
        str | None,
        Param("With type dynamic; default: hyperdisk-balanced.", name="hyperdisk-type", choices=_types("hyperdisk-")),
    ] = None
    type_preference: Annotated[
        str | None,
        Param(
            "With type dynamic: which one where the node takes both, or no node is selected; default: hyperdisk-type.",
            name="disk-type-preference",
            choices=("pd-type", "hyperdisk-type"),
        ),
    ] = None
    type_topology: Annotated[
        bool,
        Param(
            f"Let the volume be used only on nodes with the label {DISK_TYPE_LABEL}TYPE of its type.",
            name="use-allowed-disk-topology",
        ),
    ] = False
    replication_type: Annotated[
        str,
        Param(
            "regional-pd: a disk with a copy in a second zone of the region.",
            name="replication-type",
            choices=("none", "regional-pd"),
        ),
    ] = "none"
    availability_class: Annotated[
        str,
        Param(
            f"{_FAILOVER}: of a regional disk; it is taken away from a node that does not answer when it is "
            "attached to another one.",
            name="availability-class",
            choices=("none", _FAILOVER),
        ),
    ] = "none"
    kms_key: Annotated[
        str | None,
        Param(
            "Key of Cloud KMS to encrypt with; default: a key of Google's.",
            name="disk-encryption-kms-key",
            pattern=r"projects/[^/\s]+/locations/[^/\s]+/keyRings/[^/\s]+/cryptoKeys/[^/\s]+(/cryptoKeyVersions/\d+)?|",
        ),
    ] = None
    iops_on_create: Annotated[
        int | None,
        Param(
            "IOPS to provision, for pd-extreme and hyperdisks that have them.",
            name="provisioned-iops-on-create",
            minimum=0,
            maximum=350_000,
        ),
    ] = None
    throughput_bytes: Annotated[
        int | None,
        Param(
            "Throughput to provision a second, such as 250Mi, for hyperdisks that have it.",
            name="provisioned-throughput-on-create",
            kind=ParameterKind.SIZE,
            minimum=0,
        ),
    ] = None
    confidential: Annotated[
        bool,
        Param(
            "A disk of Confidential mode; needs hyperdisk-balanced and disk-encryption-kms-key.",
            name="enable-confidential-storage",
        ),
    ] = False
    storage_pools: Annotated[
        tuple[str, ...],
        Param(
            "Full names of storage pools (projects/p/zones/z/storagePools/s), at most one a zone; the disk is made "
            "in the one of its zone.",
            name="storage-pools",
        ),
    ] = ()
    access_mode: Annotated[
        str | None,
        Param(
            "How several virtual machines may use a hyperdisk; default: what the claim's access modes need.",
            name="access-mode",
            choices=("READ_WRITE_SINGLE", "READ_ONLY_MANY", "READ_WRITE_MANY"),
        ),
    ] = None
    labels: Annotated[Mapping[str, str], Param("Labels for the disk, beside those of the driver's options.")] = field(
        default_factory=dict
    )
    resource_tags: Annotated[
        tuple[str, ...],
        Param(
            "Tags of Resource Manager to bind to the disk: parent/key/value, several with commas.", name="resource-tags"
        ),
    ] = ()
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

    service_account: Annotated[
        str,
        Param(
            "Service account to act as in all calls about its disks, one of the option class_service_accounts; empty = "
            "none. Not together with Secrets.",
            name="impersonate-service-account",
        ),
    ] = ""

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` for what a schema cannot express."""
        _ = self.pools, self.tag_values  # They raise for names that cannot be.
        check_labels(self.labels, "parameter labels")
        if self.disk_type == _DYNAMIC:
            return  # What `of_type` returns is checked.
        for key, value in (
            ("pd-type", self.pd_type),
            ("hyperdisk-type", self.hyperdisk_type),
            ("disk-type-preference", self.type_preference),
        ):
            if value:
                raise InvalidArgument(f"parameter {key} is {value!r}: it needs type: dynamic; remove it")
        self._check_combination()

    def _check_combination(self) -> None:
        name, kind = self.disk_type, DISK_TYPES[self.disk_type]
        if self.regional and kind.regional_sizes is None:
            raise InvalidArgument(f"replication-type regional-pd: there are no regional disks of type {name}")
        if name == "hyperdisk-balanced-high-availability" and not self.regional:
            raise InvalidArgument(f"type {name} needs replication-type: regional-pd")
        if self.failover and not self.regional:
            raise InvalidArgument(f"availability-class {_FAILOVER} needs replication-type: regional-pd")
        if self.confidential and (not self.kms_key or not kind.confidential):
            raise InvalidArgument(
                "enable-confidential-storage needs type hyperdisk-balanced and disk-encryption-kms-key"
            )
        if self.pools and (self.regional or not kind.pools):
            raise InvalidArgument(f"parameter storage-pools: no disk of type {name} can be in one here; remove it")
        if self.access_mode is not None and not name.startswith("hyperdisk-"):
            raise InvalidArgument(
                f"parameter access-mode is {self.access_mode}: only hyperdisks have one, not {name}; remove it"
            )
        if self.access_mode not in (None, "READ_WRITE_SINGLE", *kind.access_modes):
            raise InvalidArgument(f"access-mode {self.access_mode}: disks of type {name} do not have it")
        if self.throughput_bytes and self.throughput_bytes < MIB:
            raise InvalidArgument(
                f"parameter provisioned-throughput-on-create is {self.throughput_bytes} bytes/s: write "
                f"{self.throughput_bytes}Mi for MiB/s"
            )
        check_performance(name, kind.sizes[1], self.iops, self.throughput)

    @property
    def types(self) -> tuple[str, ...]:
        """Return the types that the disk may have, the preferred one first."""
        if self.disk_type != _DYNAMIC:
            return (self.disk_type,)
        both = (self.hyperdisk_type or "hyperdisk-balanced", self.pd_type or "pd-balanced")
        return both[::-1] if self.type_preference == "pd-type" else both

    def of_type(self, name: str) -> ClassParameters:
        """Return the parameters of a disk of this type, one of `types`, without what only the others have. Raises
        InvalidArgument.
        """
        if self.disk_type != _DYNAMIC:
            return self
        kind = DISK_TYPES[name]
        return replace(
            self,
            disk_type=name,
            pd_type=None,
            hyperdisk_type=None,
            type_preference=None,
            iops_on_create=self.iops_on_create if kind.iops else None,
            throughput_bytes=self.throughput_bytes if kind.throughput else None,
            confidential=self.confidential and kind.confidential,
            storage_pools=self.storage_pools if kind.pools else (),
            access_mode=self.access_mode if name.startswith("hyperdisk-") else None,
        )

    @property
    def regional(self) -> bool:
        """Return whether the disk has a copy in a second zone."""
        return self.replication_type == "regional-pd"

    @property
    def failover(self) -> bool:
        """Return whether the disk is taken away from a node that does not answer."""
        return self.availability_class == _FAILOVER

    @property
    def iops(self) -> int | None:
        """Return the IOPS; None = the type's default."""
        return self.iops_on_create or None

    @property
    def throughput(self) -> int | None:
        """Return the MiB/s; None = the type's default."""
        return mebibytes(self.throughput_bytes) if self.throughput_bytes else None

    @cached_property
    def pools(self) -> dict[str, str]:
        """Return the storage pools by zone. Raises InvalidArgument."""
        pools: dict[str, str] = {}
        for name in self.storage_pools:
            match = _POOL.fullmatch(name)
            if match is None:
                raise InvalidArgument(
                    f"parameter storage-pools: {name!r} is no full name of one, such as "
                    "projects/p/zones/z/storagePools/s"
                )
            if match[1] in pools:
                raise InvalidArgument(f"parameter storage-pools: two of zone {match[1]}; leave one")
            pools[match[1]] = name
        return pools

    @cached_property
    def tag_values(self) -> dict[str, str]:
        """Return the tags of Resource Manager, from "parent/key" to the value. Raises InvalidArgument."""
        return tag_values_of(self.resource_tags)

    @property
    def fs_type(self) -> str:
        """Return the file system that the node makes."""
        return self.csi_fs_type or self.plain_fs_type


PARAMETERS = ParameterSchema.of(ClassParameters)


def tag_values_of(resource_tags: Sequence[str]) -> dict[str, str]:
    """Return the tags of Resource Manager in the parameter resource-tags, from "parent/key" to the value. Raises
    InvalidArgument.
    """
    tags: dict[str, str] = {}
    for text in resource_tags:
        match = _RESOURCE_TAG.fullmatch(text)
        if match is None:
            raise InvalidArgument(f"parameter resource-tags: {text!r} must look like parent/key/value")
        key = f"{match[1]}/{match[2]}"
        if tags.setdefault(key, match[3]) != match[3]:
            raise InvalidArgument(
                f"parameter resource-tags: {key!r} has the values {tags[key]!r} and {match[3]!r}, and can have one"
            )
    if len(tags) > _MOST_RESOURCE_TAGS:
        raise InvalidArgument(f"parameter resource-tags: {len(tags)} tags, at most {_MOST_RESOURCE_TAGS} are possible")
    return tags


def attributes_of(parameters: Mapping[str, str]) -> dict[str, int]:
    """Return the fields of compute.v1.Disk that a VolumeAttributesClass sets."""
    wanted: dict[str, int] = {}
    for key, text in parameters.items():
        name = key.lower()
        if name == "iops" and text.isascii() and text.isdigit():
            wanted["provisioned_iops"] = int(text)
        elif name == "throughput" and (value := _throughput(text)) is not None:
            wanted["provisioned_throughput"] = value
        elif name in ("iops", "throughput"):
            raise InvalidArgument(
                f"parameter {key} is {text!r}, expected a whole number"
                + (" of MiB/s, such as 250 or 250Mi" if name == "throughput" else "")
            )
        else:
            raise InvalidArgument(f"unknown parameter {key!r}; what can be changed is iops and throughput")
    return wanted


def _throughput(text: str) -> int | None:
    number = text.rstrip("MGi")
    unit = _UNITS.get(text[len(number) :].lower())
    return int(number) * unit if unit is not None and number.isascii() and number.isdigit() else None
