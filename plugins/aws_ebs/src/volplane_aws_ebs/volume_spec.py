"""The volume that a claim asks for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from volplane import (
    AccessMode,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ProvisionRequest,
    Unsupported,
    VolumeMode,
    read_parameters,
)
from volplane.cloud import GIB, size_in_gib
from volplane_aws_ebs.attributes_class import AttributesClass
from volplane_aws_ebs.parameters import ClassParameters
from volplane_aws_ebs.resources import Ec2Snapshot, Ec2Volume, volume_id_from
from volplane_aws_ebs.volume_types import VOLUME_TYPES, check_throughput

_MULTI_NODE = frozenset({AccessMode.READ_WRITE_MANY, AccessMode.READ_ONLY_MANY})


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeSpec:
    """The volume that a claim asks for."""

    size: int
    """GiB."""
    parameters: ClassParameters
    iops: int | None
    snapshot: str | None
    """The source, if any."""
    copied: str | None
    """The volume that is copied, if any."""
    multi_attach: bool
    attributes: Mapping[str, str]
    """For the node plugin."""
    mutable: AttributesClass
    """Whose tags it gets, too."""
    demand: Mapping[str, Any] | None = None
    """What is asked for without the VolumeAttributesClass: parameters of CreateVolume, or, where these cannot be, the
    class. None = there is none.
    """

    @classmethod
    def of(cls, request: ProvisionRequest) -> VolumeSpec:
        """Raises `InvalidArgument` or `Unsupported` if no volume of EBS can be like this."""
        mutable = AttributesClass.of(request.mutable_parameters)
        spec = cls._of(request, mutable)
        if not request.mutable_parameters:
            return spec
        try:
            demand = cls._of(request, AttributesClass.of({})).create_volume_parameters()
        except (InvalidArgument, Unsupported):  # The class alone is not enough.
            given = {key: str(value) for key, value in request.parameters.items()}
            demand = {"Size": spec.size, "SnapshotId": spec.snapshot, "Class": given}
            demand |= {"SourceVolumeId": spec.copied} if spec.copied else {}
        return replace(spec, demand=demand)

    @classmethod
    def _of(cls, request: ProvisionRequest, mutable: AttributesClass) -> VolumeSpec:
        parameters = read_parameters(ClassParameters, mutable.over(request.parameters))
        if request.source_volume is not None and parameters.snapshot is not None:
            raise InvalidArgument(
                f"parameter snapshotId is {parameters.snapshot!r}: a copy of a volume is not made from a snapshot; use "
                "another class"
            )
        size = size_in_gib(request.capacity_bytes)
        low, high = VOLUME_TYPES[parameters.volume_type].sizes
        if not low <= size <= high:
            raise OutOfRange(f"{size} GiB: volumes of type {parameters.volume_type} have {low} to {high} GiB")
        if request.limit_bytes is not None and size * GIB > request.limit_bytes:
            raise OutOfRange(
                f"{request.capacity_bytes} bytes are {size} GiB when rounded up, more than the limit of "
                f"{request.limit_bytes}"
            )
        iops = parameters.iops_at(size)
        check_throughput(parameters.volume_type, iops, parameters.throughput)
        return cls(
            size=size,
            parameters=parameters,
            iops=iops,
            snapshot=request.source_snapshot or parameters.snapshot,
            copied=_source_volume(request),
            multi_attach=_multi_attach(request, parameters),
            attributes=parameters.node_attributes(request.volume_mode),
            mutable=mutable,
        )

    def create_volume_parameters(self) -> dict[str, Any]:
        """Return the parameters of CreateVolume, or of CopyVolumes, that describe the volume."""
        wanted: dict[str, Any] = {
            "Size": self.size,
            "VolumeType": self.parameters.volume_type,
            "Iops": self.iops,
            "Throughput": self.parameters.throughput,
            "Encrypted": self.parameters.create_encrypted,
            "KmsKeyId": self.parameters.kms_key,
            "SnapshotId": self.snapshot,
            "SourceVolumeId": self.copied,
            "VolumeInitializationRate": self.parameters.initialization_rate if self.snapshot else None,
            "MultiAttachEnabled": True if self.multi_attach else None,
        }
        return {name: value for name, value in wanted.items() if value is not None}

    def refuse_source(self, source: Ec2Snapshot | Ec2Volume) -> None:
        """Raise InvalidArgument for a volume without encryption of what is encrypted: EC2 makes none."""
        if source.encrypted and self.parameters.create_encrypted is False:
            raise InvalidArgument(
                f"parameter encrypted is 'false', and {source.id} is encrypted: what is made from it is, too; use "
                "another class"
            )

    @property
    def digest(self) -> str:
        """Return a hash for a tag: equal demands have equal ones, whatever their VolumeAttributesClasses."""
        demand = self.create_volume_parameters() if self.demand is None else self.demand
        return hashlib.sha256(json.dumps(demand, sort_keys=True).encode()).hexdigest()[:16]

    def difference(self, volume: Ec2Volume) -> str:
        """Return how an existing volume differs from this spec, for a message."""
        found = {
            "Size": volume.size,
            "VolumeType": volume.volume_type,
            "Iops": volume.iops,
            "Throughput": volume.throughput,
        }
        found |= {"Encrypted": volume.encrypted, "KmsKeyId": volume.kms_key, "SnapshotId": volume.snapshot or None}
        found |= {"SourceVolumeId": volume.source or None}
        found |= {"MultiAttachEnabled": volume.multi_attach, "VolumeInitializationRate": volume.initialization_rate}
        differences = [
            f"{name} {found[name]} instead of {value}"
            for name, value in self.create_volume_parameters().items()
            if found[name] != value
        ]
        return ", ".join(differences) or "it was asked for with other parameters"


def _source_volume(request: ProvisionRequest) -> str | None:
    """Return the id of the volume that is to be copied. Raises NotFound for a handle that is none of EBS."""
    if request.source_volume is None:
        return None
    id_ = volume_id_from(request.source_volume)
    if id_ is None:
        raise NotFound(f"{request.source_volume!r}, which is to be copied, is no volume of EBS")
    return id_


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
