"""Where a volume goes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from volplane import InvalidArgument, ProvisionRequest

__all__ = ["legal_zones", "zone_for"]


def legal_zones(request: ProvisionRequest, label: str, region: Sequence[str]) -> tuple[str, ...]:
    """The zones the volume may be in, the preferred first: the chosen one, else the allowed ones, else the region's.

    Which of several comes first is decided by the claim alone, so that it is the same in every try and every process.
    """
    if request.segment is not None:
        return (_zone_of(request.segment.get(label), label),)
    allowed = [_zone_of(segment.get(label), label) for segment in request.allowed_segments]
    zones = allowed or list(region)
    if not zones:
        raise InvalidArgument("the region has no availability zone for volumes; look at the option zones")
    return tuple(sorted(set(zones), key=lambda zone: hashlib.sha256(f"{request.claim.uid}\0{zone}".encode()).digest()))


def _zone_of(zone: str | None, label: str) -> str:
    if not zone:
        raise InvalidArgument(f"the place chosen for the volume has no {label}: nodes and the class's topology need it")
    return zone


def zone_for(zones: Sequence[str], full: Iterable[str]) -> str:
    """The first zone that is not known to be full; the first of all when every one is."""
    known = set(full)
    return next((zone for zone in zones if zone not in known), zones[0])
