"""What EC2 allows for each type of volume: sizes, IOPS, throughput and their ratios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from volplane import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeType:
    """What EC2 allows for a volume type (Amazon EC2 API reference, CreateVolume)."""

    sizes: tuple[int, int]
    """GiB."""
    iops: tuple[int, int] | None = None
    """Range that can be provisioned, None = none."""
    iops_everywhere: int = 0
    """What every zone can give; some give no more."""
    iops_per_gib: int = 0
    """At most so many for each GiB, beyond the lowest number."""
    iops_required: bool = False
    """`iops` must be given."""
    throughput: tuple[int, int] | None = None
    """MiB/s: range that can be provisioned, None = none."""
    iops_per_mib: int = 0
    """At least so many for each MiB/s."""
    default_iops: int | None = None
    """What a volume has for which none are given."""
    multi_attach: bool = False
    modifiable: bool = True
    """ModifyVolume takes such volumes, and makes them."""


VOLUME_TYPES: Mapping[str, VolumeType] = {
    "gp3": VolumeType(
        sizes=(1, 65_536),
        iops=(3_000, 80_000),
        iops_everywhere=16_000,
        iops_per_gib=500,
        throughput=(125, 2_000),
        iops_per_mib=4,
        default_iops=3_000,
    ),
    "gp2": VolumeType(sizes=(1, 16_384)),
    "io2": VolumeType(
        sizes=(4, 65_536),
        iops=(100, 256_000),
        iops_everywhere=64_000,
        iops_per_gib=1_000,
        iops_required=True,
        multi_attach=True,
    ),
    "io1": VolumeType(
        sizes=(4, 16_384),
        iops=(100, 64_000),
        iops_everywhere=64_000,
        iops_per_gib=50,
        iops_required=True,
        multi_attach=True,
    ),
    "st1": VolumeType(sizes=(125, 16_384)),
    "sc1": VolumeType(sizes=(125, 16_384)),
    "standard": VolumeType(sizes=(1, 1_024), modifiable=False),
}
LARGEST_GIB = max(kind.sizes[1] for kind in VOLUME_TYPES.values())


def allowed_iops(
    name: str, size: int, *, iops: int | None = None, per_gib: int | None = None, raise_to_minimum: bool
) -> int:
    """Return the IOPS of a volume of `size` GiB, from `iops` or from `per_gib` for each GiB, capped by the type's.

    As the official driver does (kubernetes-sigs/aws-ebs-csi-driver, docs/parameters.md). raise_to_minimum: return the
    type's minimum where it is more than what is wanted, instead of raising InvalidArgument.
    """
    kind = VOLUME_TYPES[name]
    key, given = ("iops", iops) if per_gib is None else ("iopsPerGB", per_gib)
    if kind.iops is None:
        raise InvalidArgument(f"{key} {given}: volumes of type {name} have no IOPS to choose")
    low, high = kind.iops
    wanted = per_gib * size if per_gib is not None else (iops or 0)
    if wanted < low and not raise_to_minimum:
        gives = f" for {size} GiB gives {wanted} IOPS," if per_gib is not None else ":"
        raise InvalidArgument(
            f"{key} {given}{gives} type {name} has at least {low}; ask for more, or set allowAutoIOPSPerGBIncrease to "
            "get the minimum"
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
