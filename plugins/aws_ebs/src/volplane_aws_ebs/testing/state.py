"""The state of a mocked account."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from volplane_aws_ebs.testing.behaviour import Behaviour
from volplane_aws_ebs.testing.faults import Refusal

__all__ = [
    "Attachment",
    "Cloud",
    "Instance",
    "Modification",
    "Snapshot",
    "TagIndex",
    "Timeline",
    "Token",
    "Volume",
    "demand_of",
]


@dataclass(slots=True)
class Attachment:
    """Of one volume to one instance. state: attaching, attached, detaching, busy."""

    instance: str
    device: str
    state: str
    since: float
    stuck: bool = False
    """Never gets on by itself."""


@dataclass(slots=True)
class Modification:
    """state: modifying, optimizing, completed, failed. Targets are what the volume gets when `modifying` ends."""

    started: float
    state: str
    original: dict[str, int | str | None]
    target: dict[str, int | str | None]
    ended: float | None = None


@dataclass(slots=True)
class Volume:
    """state: creating, available, in-use, deleting, error. What is gone is in no table any more."""

    id: str
    number: int
    zone: str
    size: int
    kind: str
    created: float
    iops: int | None = None
    throughput: int | None = None
    encrypted: bool = False
    kms_key: str | None = None
    snapshot: str | None = None
    multi_attach: bool = False
    state: str = "creating"
    tags: dict[str, str] = field(default_factory=dict)
    old_tags: dict[str, str] = field(default_factory=dict)
    tagged: float = 0.0
    """When the tags last changed: until they are visible, `old_tags` are shown."""
    attachments: dict[str, Attachment] = field(default_factory=dict)
    modifications: list[Modification] = field(default_factory=list)
    root: bool = False


@dataclass(slots=True)
class Snapshot:
    """state: pending, completed, error."""

    id: str
    number: int
    volume: str
    size: int
    encrypted: bool
    started: float
    state: str = "pending"
    description: str = ""
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Instance:
    """state: running, stopped, shutting-down, terminated. interfaces: attached network interfaces."""

    id: str
    number: int
    zone: str
    kind: str
    launched: float
    state: str = "running"
    interfaces: int = 1
    root_volume: str = ""
    root_device: str = "/dev/xvda"


@dataclass(slots=True)
class Token:
    """What a client token stands for. demand: the request's parameters, in a comparable form."""

    demand: str
    volume: str
    expires: float


class Timeline:
    """Events in order of their time, those of one time in the order they were planned."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.now = clock()
        """The time that has been lived through; an event sees its own time here."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Let it happen so many seconds after `now`."""
        self._planned += 1
        heapq.heappush(self._events, (self.now + seconds, self._planned, event))

    def catch_up(self) -> float:
        """Let everything happen that is due, and return the time. Events may plan further ones."""
        end = self.clock()
        while self._events and self._events[0][0] <= end:
            due, _, event = heapq.heappop(self._events)
            self.now = max(self.now, due)
            event()
        self.now = max(self.now, end)
        return self.now

    @property
    def next_due(self) -> float | None:
        """When the next event is due; None when nothing will happen by itself."""
        return self._events[0][0] if self._events else None


_EPOCH = 1_767_225_600.0  # 2026-01-01T00:00:00Z is second 0 of the clock.


class TagIndex:
    """Which volumes carry a tag, so that a lookup by tag does not read every volume."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], dict[str, None]] = {}

    def add(self, volume: str, tags: Mapping[str, str]) -> None:
        for item in tags.items():
            self._ids.setdefault(item, {})[volume] = None

    def remove(self, volume: str, tags: Mapping[str, str]) -> None:
        for item in tags.items():
            ids = self._ids.get(item, {})
            ids.pop(volume, None)
            if not ids:
                self._ids.pop(item, None)

    def having(self, key: str, values: Iterable[str]) -> dict[str, None]:
        """Ids of the volumes that carry the tag with any of the values."""
        found: dict[str, None] = {}
        for value in values:
            found.update(self._ids.get((key, value), {}))
        return found


class Cloud:
    """Tables of what exists, and the clock it lives by."""

    def __init__(self, behaviour: Behaviour, clock: Callable[[], float]) -> None:
        self.behaviour = behaviour
        self.timeline = Timeline(clock)
        self.volumes: dict[str, Volume] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.instances: dict[str, Instance] = {}
        self.tokens: dict[str, Token] = {}
        self.tagged = TagIndex()
        self.stalled: bool = False
        """Whether what the call of this moment starts shall never end."""
        self._last = 0

    @property
    def now(self) -> float:
        """Seconds of the fake's clock, as far as it has been lived through."""
        return self.timeline.now

    def number(self) -> int:
        """The next number; what was made later has a higher one."""
        self._last += 1
        return self._last

    def id(self, prefix: str, number: int) -> str:
        """An id that looks like EC2's and is the same in every run."""
        return f"{prefix}-0{hashlib.sha256(f'{prefix}{number}'.encode()).hexdigest()[:16]}"

    def stamp(self, at: float) -> float:
        """Unix time of a moment of the clock."""
        return _EPOCH + at

    def later(self, seconds: float, event: Callable[[], None]) -> None:
        """Plan an event, unless a fault of this call stalls what it starts."""
        if not self.stalled:
            self.timeline.after(seconds, event)

    def volume(self, given: Mapping[str, Any]) -> Volume:
        """The volume of a mutating call. Raises what EC2 raises for ids that are malformed or unknown."""
        id_ = str(given["VolumeId"])
        if not id_.startswith("vol-") or not 12 <= len(id_) <= 21:
            raise Refusal("InvalidVolumeID.Malformed", f'Invalid id: "{id_}" (expecting "vol-...")')
        if id_ not in self.volumes:
            raise Refusal("InvalidVolume.NotFound", f"The volume '{id_}' does not exist.")
        return self.volumes[id_]

    def instance(self, id_: str) -> Instance:
        """The instance. Raises InvalidInstanceID.Malformed and .NotFound."""
        if not id_.startswith("i-") or len(id_) < 10:
            raise Refusal("InvalidInstanceID.Malformed", f'Invalid id: "{id_}"')
        if id_ not in self.instances:
            raise Refusal("InvalidInstanceID.NotFound", f"The instance ID '{id_}' does not exist")
        return self.instances[id_]

    def visible(self, made: float) -> bool:
        """Whether what was made then can be seen by Describe calls now."""
        return self.now >= made + self.behaviour.visible_after

    def visible_tags(self, volume: Volume) -> Mapping[str, str]:
        """The tags that Describe calls show now."""
        return volume.tags if self.visible(volume.tagged) else volume.old_tags

    def remove(self, volume: Volume) -> None:
        """The volume is gone for good."""
        if self.volumes.pop(volume.id, None) is not None:
            self.tagged.remove(volume.id, volume.tags)


def demand_of(given: Mapping[str, Any]) -> str:
    """A request's parameters, the token aside, as text that is equal for equal demands."""
    plain = {key: value for key, value in given.items() if key not in ("ClientToken", "DryRun")}
    return json.dumps(plain, sort_keys=True, default=str)
