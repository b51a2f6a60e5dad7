"""What Compute Engine allows for each type of disk, and how many disks a virtual machine can hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from volplane import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskType:
    """A type of disk (Compute Engine documentation, "About Persistent Disk", "About Google Cloud Hyperdisk")."""

    sizes: tuple[int, int]
    """GiB."""
    regional_sizes: tuple[int, int] | None = None
    """Of a disk in two zones, None = there are none."""
    iops: tuple[int, int] | None = None
    """Range that can be provisioned, None = none."""
    iops_per_gib: int = 0
    """At most so many for each GiB, beyond the lowest number."""
    throughput: tuple[int, int] | None = None
    """MiB/s: range that can be provisioned, None = none."""
    least_iops_per_gib: int = 0
    """At least so many for each GiB."""
    least_iops: int = 1_000_000
    """No more than these are needed, however large the disk is."""
    least_throughput_per_gib: float = 0.0
    """At least so many for each GiB."""
    access_modes: frozenset[str] = frozenset()
    """Beside READ_WRITE_SINGLE, of hyperdisks."""
    confidential: bool = False
    pools: bool = False
    """It can be in a storage pool."""


_RWX, _ROX = "READ_WRITE_MANY", "READ_ONLY_MANY"
DISK_TYPES: Mapping[str, DiskType] = {
    "pd-standard": DiskType(sizes=(1, 65_536), regional_sizes=(200, 65_536)),
    "pd-balanced": DiskType(sizes=(1, 65_536), regional_sizes=(1, 65_536)),
    "pd-ssd": DiskType(sizes=(1, 65_536), regional_sizes=(1, 65_536)),
    "pd-extreme": DiskType(sizes=(500, 65_536), iops=(2_500, 120_000), iops_per_gib=120_000),
    "hyperdisk-balanced": DiskType(
        sizes=(4, 65_536),
        iops=(3_000, 160_000),
        iops_per_gib=500,
        throughput=(140, 2_400),
        least_iops_per_gib=500,
        least_iops=3_000,
        access_modes=frozenset({_RWX}),
        confidential=True,
        pools=True,
    ),
    "hyperdisk-balanced-high-availability": DiskType(
        sizes=(4, 65_536),
        regional_sizes=(4, 65_536),
        iops=(3_000, 100_000),
        iops_per_gib=500,
        throughput=(140, 2_400),
        least_iops_per_gib=500,
        least_iops=3_000,
        access_modes=frozenset({_RWX}),
    ),
    "hyperdisk-extreme": DiskType(sizes=(64, 65_536), iops=(128, 350_000), iops_per_gib=1_200, least_iops_per_gib=2),
    "hyperdisk-throughput": DiskType(
        sizes=(2_048, 32_768), throughput=(20, 2_400), least_throughput_per_gib=10 / 1_024, pools=True
    ),
    "hyperdisk-ml": DiskType(
        sizes=(4, 65_536),
        throughput=(400, 1_200_000),
        least_throughput_per_gib=0.12,
        access_modes=frozenset({_ROX}),
    ),
}
LARGEST_GIB = max(kind.sizes[1] for kind in DISK_TYPES.values())


def check_performance(name: str, size: int, iops: int | None, throughput: int | None) -> None:
    """Raise InvalidArgument for IOPS or throughput that a disk of this type and size cannot have. None = default."""
    kind = DISK_TYPES[name]
    for parameter, value, bounds, unit in (
        ("provisioned-iops-on-create", iops, kind.iops, "IOPS"),
        ("provisioned-throughput-on-create", throughput, kind.throughput, "MiB/s"),
    ):
        if value is None:
            continue
        if bounds is None:
            raise InvalidArgument(
                f"parameter {parameter} is {value}: disks of type {name} have no {unit} to choose; remove it"
            )
        if not bounds[0] <= value <= bounds[1]:
            raise InvalidArgument(
                f"parameter {parameter} is {value}{'' if unit == 'IOPS' else f' {unit}'}: disks of type {name} have "
                f"{bounds[0]} to {bounds[1]} {unit}"
            )
    if iops is not None and kind.iops is not None and iops > max(kind.iops[0], size * kind.iops_per_gib):
        raise InvalidArgument(
            f"provisioned-iops-on-create {iops} for {size} GiB: disks of type {name} have at most {kind.iops_per_gib} "
            f"IOPS for each GiB; ask for at most {max(kind.iops[0], size * kind.iops_per_gib)}, or for a larger disk"
        )


def least_performance(name: str, size: int) -> tuple[int, int]:
    """Return the IOPS and throughput (MiB/s) that a disk of this type and size (GiB) has at least; 0 = any.

    gcp-compute-persistent-disk-csi-driver, `pkg/common/utils.go`, GetMinIopsThroughput.
    """
    kind = DISK_TYPES.get(name)
    if kind is None:
        return 0, 0
    return min(size * kind.least_iops_per_gib, kind.least_iops), int(size * kind.least_throughput_per_gib)


def check_least_performance(name: str, size: int, iops: int | None, throughput: int | None) -> None:
    """Raise InvalidArgument for fewer IOPS, or less throughput, than a disk of this type and size has."""
    least = least_performance(name, size)
    for parameter, value, lowest, unit in (
        ("provisioned-iops-on-create", iops, least[0], "IOPS"),
        ("provisioned-throughput-on-create", throughput, least[1], "MiB/s"),
    ):
        if value is not None and value < lowest:
            raise InvalidArgument(
                f"{parameter} {value} for {size} GiB: disks of type {name} have at least {lowest} {unit} at this size"
            )


_HYPERDISK_LIMITS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "c4": ((2, 7), (4, 15), (24, 31), (48, 63), (96, 127)),
    "c4a": ((2, 7), (8, 15), (48, 31), (72, 63)),
    "c4d": ((2, 3), (4, 7), (8, 15), (96, 31), (192, 63), (384, 127)),
    "n4": ((8, 15), (80, 31)),
    "n4a": ((8, 15), (64, 31)),
    "n4d": ((8, 15), (96, 31)),
    "a4x": ((1, 63), (2, 127)),
}
"""Machine series -> (most vCPUs, disks beside the boot disk), for series that take only hyperdisks; of a4x, most GPUs.

gcp-compute-persistent-disk-csi-driver, `pkg/constants`.
"""
_LIMITS_OF_ALL: Mapping[str, int] = {"x4": 39, "a4": 127}
"""Machine series -> disks beside the boot disk, whatever the size (there, `pkg/gce-pd-csi-driver/node.go`)."""
_METAL: Mapping[str, int] = {"a4x": 31, "c3": 15}
"""The same, of machines without a hypervisor."""
_MACHINE = re.compile(r"([a-z0-9]+)-[a-z0-9]+-(\d+)g?(?:-[a-z0-9]+)*")


def hyperdisk_limit(machine_type: str) -> int | None:
    """Return how many disks such a virtual machine can hold, its boot disk included; None if the series has no such
    table.
    """
    series = machine_type.partition("-")[0]
    if machine_type.endswith("-metal") and series in _METAL:
        return 1 + _METAL[series]
    if series in _LIMITS_OF_ALL:
        return 1 + _LIMITS_OF_ALL[series]
    match = _MACHINE.fullmatch(machine_type)
    if match is None or match[1] not in _HYPERDISK_LIMITS:
        return None
    table = _HYPERDISK_LIMITS[match[1]]
    return 1 + next((disks for cpus, disks in table if int(match[2]) <= cpus), table[-1][1])
