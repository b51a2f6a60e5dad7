"""Device names: AttachVolume requires one, even where the kernel of the instance ignores it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from string import ascii_lowercase

from volplane import ResourceExhausted
from volplane_aws_ebs.resources import Ec2Instance

NAMES = tuple(
    [f"/dev/xvd{first}{last}" for first in "abd" for last in ascii_lowercase if (first, last) <= ("d", "x")]
    + [f"/dev/xvd{letter}" for letter in ascii_lowercase[1:]]
    + [f"/dev/sd{letter}" for letter in ascii_lowercase[1:]]
    + ["/dev/sda2"]
)
"""Names that EC2 accepts; first those that work on every hypervisor. /dev/xvdc? fails on some, /dev/xvdd? ends at x."""

_AVOIDED_SECONDS = 3_600.0
_RESERVED_SECONDS = 120.0


@dataclass(slots=True)
class _InstanceNames:
    """last: index in NAMES. reserved: name -> volume, and until when it is in use although EC2 does not show it yet.

    avoided: name -> until when. cards: volume -> index of the EBS card at which it is being attached.
    """

    last: int = -1
    cards: dict[str, int] = field(default_factory=dict)
    reserved: dict[str, tuple[str, float]] = field(default_factory=dict)
    avoided: dict[str, float] = field(default_factory=dict)


class DeviceNames:
    """Which names are free on each instance. Safe for threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._instances: dict[str, _InstanceNames] = {}
        self._lock = threading.Lock()

    def reserve(self, instance: Ec2Instance, volume: str) -> str:
        """Return a name for this volume, the same until it is released. Raises ResourceExhausted.

        Names are taken round-robin, because a name that was just freed may hang in `attaching`.
        """
        with self._lock:
            names = self._current(instance.id)
            for name, (holder, _) in names.reserved.items():
                if holder == volume and instance.devices.get(name, volume) == volume:
                    return name
            taken = {*instance.devices, *names.reserved}
            choice = self._next(names, taken, names.avoided) or self._next(names, taken, ())
            if choice is None:
                raise ResourceExhausted(f"{instance.id} has no device name left: {len(taken)} are in use", scope="node")
            names.last = NAMES.index(choice)
            names.reserved[choice] = (volume, self._clock() + _RESERVED_SECONDS)
            return choice

    def card(self, instance: Ec2Instance, volume: str, cards: int) -> int:
        """Return the index of the EBS card with the fewest volumes, for a volume that has a name reserved.

        It is the same until the name is released.
        """
        with self._lock:
            names = self._current(instance.id)
            attaching = {held for held, _ in names.reserved.values()}
            names.cards = {held: index for held, index in names.cards.items() if held in attaching}
            if volume not in names.cards:
                used = [*({**names.cards, **instance.cards}.values())]
                names.cards[volume] = min(range(cards), key=used.count)
            return names.cards[volume]

    def count(self, instance: Ec2Instance) -> int:
        """Return how many volumes the instance holds, those that are being attached included."""
        with self._lock:
            names = self._current(instance.id)
            return len({*instance.devices.values(), *(volume for volume, _ in names.reserved.values())})

    def release(self, instance: str, volume: str) -> None:
        """Free the name of a volume that is not being attached to this instance any more."""
        with self._lock:
            names = self._instances.get(instance)
            if names is not None:
                names.reserved = {name: held for name, held in names.reserved.items() if held[0] != volume}

    def avoid(self, instance: str, name: str) -> None:
        """Use the name last for an hour: it is in use though EC2 does not show it, or an attachment hung."""
        with self._lock:
            names = self._current(instance)
            names.avoided[name] = self._clock() + _AVOIDED_SECONDS
            names.reserved.pop(name, None)

    def _current(self, instance: str) -> _InstanceNames:
        now = self._clock()
        names = self._instances.setdefault(instance, _InstanceNames())
        names.reserved = {name: held for name, held in names.reserved.items() if held[1] > now}
        names.avoided = {name: until for name, until in names.avoided.items() if until > now}
        return names

    @staticmethod
    def _next(names: _InstanceNames, taken: set[str], avoided: Iterable[str]) -> str | None:
        excluded = taken.union(avoided)
        start = names.last + 1
        ordered = (*NAMES[start:], *NAMES[:start])
        return next((name for name in ordered if name not in excluded), None)
