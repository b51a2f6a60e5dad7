"""What EC2's volume types allow, and the arithmetic of IOPS. Figures as botocore's service model documents CreateVolume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from volplane import InvalidArgument
from volplane_aws_ebs.seen import GIB

__all__ = ["KINDS", "LARGEST_GIB", "Kind", "gib", "iops_for"]


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
