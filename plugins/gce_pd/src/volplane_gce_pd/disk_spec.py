"""The disk that a claim asks for, by its class, its VolumeAttributesClass and its size."""

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
from volplane_gce_pd.disk_types import DISK_TYPES, check_least_performance, check_performance
from volplane_gce_pd.parameters import DISK_TYPE_LABEL, MIB, ClassParameters, attributes_of
from volplane_gce_pd.resources import FORCE_ATTACH, Disk, disk_key_from, key_of_version, snapshot_key_from
from volplane_gce_pd.settings import Settings

_SHARED = (AccessMode.READ_WRITE_MANY, AccessMode.READ_ONLY_MANY)
_RAISED_GIB = 10
"""A claim gets the smallest disk of its type up to this size; a larger one would cost what nobody asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpec:
    """The disk that a claim asks for."""

    size: int
    """GiB."""
    parameters: ClassParameters
    access_mode: str | None
    source: Mapping[str, str]
    """Of `sourceSnapshot`, `sourceImage` or `sourceDisk`, by the field's name."""
    demanded: ClassParameters
    """Without a VolumeAttributesClass."""

    @classmethod
    def of(cls, request: ProvisionRequest, settings: Settings, *, like: Disk | None = None) -> DiskSpec:
        """Return the disk. like: one that was made for this demand, or is copied, whose type is taken if the class lets
        it.

        Raises `InvalidArgument`, `Unsupported` or `NotFound` if no disk can be like this.
        """
        dynamic = read_parameters(ClassParameters, request.parameters)
        demanded = dynamic.of_type(_chosen_type(dynamic.types, request, like))
        # As in the official driver these win, and a type that has neither is refused.
        mutable = attributes_of(request.mutable_parameters)
        iops, throughput = mutable.get("provisioned_iops"), mutable.get("provisioned_throughput")
        parameters = demanded if iops is None else replace(demanded, iops_on_create=iops)
        parameters = parameters if throughput is None else replace(parameters, throughput_bytes=throughput * MIB)
        kind = DISK_TYPES[parameters.disk_type]
        size = size_in_gib(request.capacity_bytes)
        low, high = (kind.regional_sizes if parameters.regional else None) or kind.sizes
        if size > high:
            raise OutOfRange(f"{size} GiB: disks of type {parameters.disk_type} have at most {high} GiB")
        if size < low <= _RAISED_GIB:
            size = low
        elif size < low:
            raise OutOfRange(
                f"{size} GiB: {'regional ' if parameters.regional else ''}disks of type {parameters.disk_type} have at "
                f"least {low} GiB; ask for that, or for another type"
            )
        if request.limit_bytes is not None and size * GIB > request.limit_bytes:
            raise OutOfRange(
                f"a disk of type {parameters.disk_type} for {request.capacity_bytes} bytes has {size} GiB, more than "
                f"the limit of {request.limit_bytes}"
            )
        check_performance(parameters.disk_type, size, parameters.iops, parameters.throughput)
        check_least_performance(parameters.disk_type, size, parameters.iops, parameters.throughput)
        source = _source(request, settings)
        mode = _access_mode(request, parameters)
        return cls(size=size, parameters=parameters, demanded=demanded, access_mode=mode, source=source)

    @property
    def attributes(self) -> dict[str, str]:
        """Return the attributes of the volume, for `attach`."""
        return {FORCE_ATTACH: "true"} if self.parameters.failover else {}

    def description(self, request: ProvisionRequest) -> str:
        """Return the text of the disk that people and the official driver's tools read."""
        return json.dumps(
            {
                "kubernetes.io/created-for/pv/name": request.name,
                "kubernetes.io/created-for/pvc/name": request.claim.name,
                "kubernetes.io/created-for/pvc/namespace": request.claim.namespace,
                "storage.gke.io/created-by": "volplane",
            },
            sort_keys=True,
        )

    def message(self, project: str, zone: str) -> dict[str, Any]:
        """Return the fields of compute.v1.Disk that describe the disk. zone: where it is made, or one of its two."""
        wanted: dict[str, Any] = {
            "size_gb": self.size,
            "provisioned_iops": self.parameters.iops,
            "provisioned_throughput": self.parameters.throughput,
            "access_mode": self.access_mode,
            "enable_confidential_compute": self.parameters.confidential or None,
            "storage_pool": self.parameters.pools.get(zone),
            **self.source,
        }
        if self.parameters.kms_key:
            wanted["disk_encryption_key"] = {"kms_key_name": self.parameters.kms_key}
        if self.parameters.tag_values:
            wanted["params"] = {"resource_manager_tags": self.parameters.tag_values}
        return {name: value for name, value in wanted.items() if value is not None}

    @property
    def digest(self) -> str:
        """Return a hash for a label: equal demands have equal ones, whatever zone and VolumeAttributesClass."""
        wanted = {
            **replace(self, parameters=self.demanded).message("", ""),
            "type": self.parameters.disk_type,
            "regional": self.parameters.regional,
        }
        wanted["pools"] = self.parameters.pools
        return hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:16]

    def difference(self, disk: Disk) -> str:
        """Return how an existing disk differs from this demand, for a message; "" if it does not."""
        parameters = self.parameters
        pairs = [
            ("size", disk.size, self.size),
            ("type", disk.disk_type, parameters.disk_type),
            ("key", key_of_version(disk.kms_key), key_of_version(parameters.kms_key or "")),
            ("regional", disk.place.startswith("regions/"), parameters.regional),
        ]
        pairs += [
            (name, found, wanted)
            for name, found, wanted in (
                ("iops", disk.iops, parameters.iops),
                ("throughput", disk.throughput, parameters.throughput),
                ("access mode", disk.access_mode or "READ_WRITE_SINGLE", self.access_mode),
            )
            if wanted is not None
        ]
        return ", ".join(f"{name} {found} instead of {wanted}" for name, found, wanted in pairs if found != wanted)


def _chosen_type(types: tuple[str, ...], request: ProvisionRequest, like: Disk | None) -> str:
    """Return the only one of the types that the selected node takes, else the first.

    gcp-compute-persistent-disk-csi-driver, pkg/gce-pd-csi-driver/disk_selection.go.
    """
    if like is not None and like.disk_type in types:
        return like.disk_type
    labels = request.selected_node.labels if request.selected_node is not None else {}
    taken = [name for name in types if DISK_TYPE_LABEL + name in labels]
    return taken[0] if len(taken) == 1 else types[0]


def _access_mode(request: ProvisionRequest, parameters: ClassParameters) -> str | None:
    """Return that of a hyperdisk. Raises InvalidArgument or Unsupported if the claim's access modes cannot be had."""
    kind = DISK_TYPES[parameters.disk_type]
    shared = [mode for mode in _SHARED if mode in request.access_modes]
    if AccessMode.READ_WRITE_MANY in shared:
        if "READ_WRITE_MANY" not in kind.access_modes or request.volume_mode is not VolumeMode.BLOCK:
            raise Unsupported(
                "access mode ReadWriteMany: only a hyperdisk-balanced or hyperdisk-balanced-high-availability with "
                "volumeMode Block can be written by several nodes"
            )
        needed = "READ_WRITE_MANY"
    elif shared:
        if "READ_ONLY_MANY" not in kind.access_modes and not (request.source_snapshot or request.source_volume):
            raise Unsupported(
                "access mode ReadOnlyMany: only a disk that is made from a snapshot or another disk, or a "
                "hyperdisk-ml, can be read by several nodes"
            )
        if "READ_ONLY_MANY" in kind.access_modes and not (request.source_snapshot or request.source_volume):
            # It is written first; `attach` switches it when it is to be read.
            return parameters.access_mode or "READ_WRITE_SINGLE"
        needed = "READ_ONLY_MANY" if "READ_ONLY_MANY" in kind.access_modes else ""
    else:
        return parameters.access_mode
    if needed and parameters.access_mode not in (None, needed):
        raise InvalidArgument(
            f"access-mode {parameters.access_mode}: access mode {shared[0]} of the claim needs {needed}"
        )
    return needed or parameters.access_mode


def _source(request: ProvisionRequest, settings: Settings) -> dict[str, str]:
    if request.source_snapshot is not None:
        found = snapshot_key_from(request.source_snapshot)
        if found is None or found[0] not in (settings.project, *settings.snapshot_projects):
            raise NotFound(
                f"{request.source_snapshot!r} is no snapshot of project {settings.project!r}, nor of one of the option "
                "snapshot_projects"
            )
        return {f"source_{found[1].removesuffix('s')}": request.source_snapshot}
    if request.source_volume is not None:
        key = disk_key_from(request.source_volume, settings.project)
        if key is None:
            raise NotFound(f"{request.source_volume!r} is no disk of project {settings.project!r}")
        return {"source_disk": f"projects/{settings.project}/{key[0]}/disks/{key[1]}"}
    return {}
