"""Device names, which AttachVolume demands even where the kernel ignores them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from string import ascii_lowercase

from volplane import ResourceExhausted
from volplane_aws_ebs.resources import InstanceSeen

__all__ = ["NAMES", "Devices"]

NAMES = tuple(
    [f"/dev/xvd{first}{last}" for first in "abd" for last in ascii_lowercase if (first, last) <= ("d", "x")]
    + [f"/dev/xvd{letter}" for letter in ascii_lowercase[1:]]
    + [f"/dev/sd{letter}" for letter in ascii_lowercase[1:]]
)
"""Names that EC2 takes, those first that work on every hypervisor: /dev/xvdc? is broken on some, /dev/xvdd? ends at x."""

_BAD_SECONDS = 3_600.0
_RESERVED_SECONDS = 120.0


@dataclass(slots=True)
class _Node:
    """reserved: name -> volume and until when it counts although EC2 does not show it. bad: name -> until when."""

    last: int = -1
    reserved: dict[str, tuple[str, float]] = field(default_factory=dict)
    bad: dict[str, float] = field(default_factory=dict)


class Devices:
    """Which names are free on each instance. Safe for threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._nodes: dict[str, _Node] = {}
        self._lock = threading.Lock()

    def reserve(self, instance: InstanceSeen, volume: str) -> str:
        """A name for this volume, the same until it is released. Raises ResourceExhausted.

        The walk goes on behind the last name given, because a name that was just freed may hang in `attaching`.
        """
        with self._lock:
            node = self._current(instance.id)
            for name, (holder, _) in node.reserved.items():
                if holder == volume and instance.devices.get(name, volume) == volume:
                    return name
            taken = {*instance.devices, *node.reserved}
            choice = self._walk(node, taken, node.bad) or self._walk(node, taken, ())
            if choice is None:
                raise ResourceExhausted(f"{instance.id} has no device name left: {len(taken)} are in use", scope="node")
            node.last = NAMES.index(choice)
            node.reserved[choice] = (volume, self._clock() + _RESERVED_SECONDS)
            return choice

    def holding(self, instance: InstanceSeen) -> int:
        """How many volumes the instance holds, those on their way included."""
        with self._lock:
            node = self._current(instance.id)
            return len({*instance.devices.values(), *(volume for volume, _ in node.reserved.values())})

    def release(self, instance: str, volume: str) -> None:
        """The volume is not on its way to this instance any more."""
        with self._lock:
            node = self._nodes.get(instance)
            if node is not None:
                node.reserved = {name: held for name, held in node.reserved.items() if held[0] != volume}

    def avoid(self, instance: str, name: str) -> None:
        """The name is in use though nobody shows it, or hung: take it last for an hour."""
        with self._lock:
            node = self._current(instance)
            node.bad[name] = self._clock() + _BAD_SECONDS
            node.reserved.pop(name, None)

    def _current(self, instance: str) -> _Node:
        now = self._clock()
        node = self._nodes.setdefault(instance, _Node())
        node.reserved = {name: held for name, held in node.reserved.items() if held[1] > now}
        node.bad = {name: until for name, until in node.bad.items() if until > now}
        return node

    @staticmethod
    def _walk(node: _Node, taken: set[str], bad: Iterable[str]) -> str | None:
        avoided = taken.union(bad)
        start = node.last + 1
        ordered = (*NAMES[start:], *NAMES[:start])
        return next((name for name in ordered if name not in avoided), None)
