"""The zones of a region in which a driver makes assets that have no chosen place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from volplane.assets import Segment
from volplane.cloud.calls import CloudError
from volplane.errors import InvalidArgument, ResourceExhausted
from volplane.requests import Context, ProvisionRequest

__all__ = ["ZoneStates", "Zones", "refuse_other_zone", "zones_for"]

_SECONDS: Final = 600.0


class ZoneStates(NamedTuple):
    """What the cloud answers."""

    states: Mapping[str, str]
    """The state of every zone by its name."""
    usual: Collection[str]
    """The zones that are used where no option names any."""
    keys: Mapping[str, Mapping[str, str]] = {}
    """Keys of a class's allowedTopologies beside `zone_label`: their values -> the zones that these name."""


class Zones:
    """Reads the zones, and again after ten minutes, since their states change.

    A zone that is not up is left out, unless no other one is left: then the cloud says why it refuses. Safe for
    threads in so far as `read` is.
    """

    def __init__(
        self,
        read: Callable[[], ZoneStates],
        *,
        wanted: tuple[str, ...],
        up: Collection[str],
        assets: str,
        clock: Callable[[], float],
    ) -> None:
        """read: asks the cloud; raises CloudError or InvalidArgument. wanted: of the option `zones`, empty = the usual
        ones. up: states in which a zone can be used. assets: their name in messages, "disks". clock: seconds.
        """
        self._read = read
        self._wanted = wanted
        self._up = up
        self._assets = assets
        self._clock = clock
        self._read_at = 0.0
        self._keys: Mapping[str, Mapping[str, str]] = {}
        self.names: tuple[str, ...] = ()
        """The zones that can be used now, empty before the first reading."""

    def load(self, context: Context) -> None:
        """Read them now. Raises CloudError, and InvalidArgument for a zone of the option that does not exist."""
        states, usual, self._keys = self._read()
        unknown = [zone for zone in self._wanted if zone not in states]
        if unknown:
            raise InvalidArgument(f"option zones: {unknown[0]!r} is not one of {', '.join(sorted(states))}")
        wanted = self._wanted or tuple(sorted(usual))
        up = tuple(name for name in wanted if states[name] in self._up)
        for name in wanted:
            if name not in up:
                context.log.warning(
                    "zone %s is %s: %s without a place of their own are made elsewhere",
                    name,
                    states[name],
                    self._assets,
                )
        self.names, self._read_at = up or wanted, self._clock()

    def refresh(self, context: Context) -> None:
        """Read them again if they are ten minutes old. Only a first reading may fail."""
        if self.names and self._clock() - self._read_at < _SECONDS:
            return
        try:
            self.load(context)
        except CloudError:
            if not self.names:
                raise
            self._read_at = self._clock()

    def named(self, request: ProvisionRequest, label: str) -> ProvisionRequest:
        """Return the request with each place's zone under `label`, whichever key of the class's topology names it.

        Raises InvalidArgument for a value that names no zone.
        """
        allowed = tuple(self._named(segment, label) for segment in request.allowed_segments)
        segment = None if request.segment is None else self._named(request.segment, label)
        return replace(request, segment=segment, allowed_segments=allowed)

    def _named(self, segment: Segment, label: str) -> Segment:
        key = next((key for key in self._keys if key in segment), None)
        if label in segment or key is None:
            return segment
        zone = self._keys[key].get(segment[key])
        if zone is None:
            raise InvalidArgument(
                f"allowedTopologies: {key} {segment[key]!r} is none of {', '.join(sorted(self._keys[key]))}"
            )
        return {**segment, label: zone}


def zones_for(request: ProvisionRequest, label: str, region: Sequence[str], *, count: int = 1) -> tuple[str, ...]:
    """Return the zones that a disk may be in, in order of preference.

    They are the selected node's, else those of the class's allowedTopologies, else those of the region in which nodes
    are, else all of the region. The order of several is a hash of the claim's uid, so that it is the same in every
    attempt and every process. label: of nodes, for their zone. count: how many zones the disk needs. Of a disk in two
    zones the second one is from the latter three, and one without nodes only where no other is left.

    Raises `InvalidArgument` if there are too few, or a segment has no such label.
    """

    def order(zones: Collection[str]) -> list[str]:
        return sorted(zones, key=lambda zone: hashlib.sha256(f"{request.claim.uid}\0{zone}".encode()).digest())

    selected = () if request.segment is None else (_zone_of(request.segment, label),)
    if selected and count == 1:
        return selected
    allowed = [_zone_of(segment, label) for segment in request.allowed_segments]
    with_nodes = {segment.get(label) for segment in request.node_segments}
    near = allowed or [zone for zone in region if zone in with_nodes] or region
    zones = (*selected, *order(set(near) - set(selected)))
    if len(zones) < count and not allowed:
        zones += tuple(order(set(region) - set(zones)))
    if len(zones) < count:
        raise InvalidArgument(
            f"the volume needs {count} zone{'s' if count > 1 else ''}, and {len(zones)} can be had; look at the option "
            "zones and at the class's allowedTopologies"
        )
    return zones


def refuse_other_zone(source: str, zone: str, zones: Sequence[str], *, selected: bool) -> None:
    """Raise unless a disk can be where its source is: it must be in this zone, and may be in `zones`.

    selected: the first of them is a selected node's: then it is ResourceExhausted, so that another node is selected;
    else InvalidArgument.
    """
    if zone in zones:
        return
    where = f"{source} is in {zone}, where what is made from it must be, and"
    if selected:
        text = f"{where} the selected node is in {zones[0]}; a node there is asked for"
        raise ResourceExhausted(text, scope="zone", reschedule=True)
    raise InvalidArgument(f"{where} {', '.join(zones)} is asked for")


def _zone_of(segment: Segment, label: str) -> str:
    zone = segment.get(label)
    if not zone:
        raise InvalidArgument(f"the place chosen for the volume has no {label}: nodes and the class's topology need it")
    return zone
