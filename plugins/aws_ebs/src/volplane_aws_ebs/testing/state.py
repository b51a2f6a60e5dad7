"""The state of a mocked account in one region: its resources, client tokens, and planned changes of state."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from volplane_aws_ebs.testing.behaviour import Behaviour
from volplane_aws_ebs.testing.faults import EC2Error
from volplane_testing.cloud import DiskContents, Former, MemoryContents, Timeline


@dataclass(slots=True)
class Attachment:
    """The attachment of a volume to an instance."""

    instance: str
    device: str
    state: str
    """One of attaching, attached, detaching, busy."""
    since: float
    """When it began."""
    stuck: bool = False
    """It never leaves its state by itself."""
    card: int = 0
    """Index of the instance's EBS card."""


@dataclass(slots=True)
class Modification:
    """A modification."""

    started: float
    state: str
    """One of modifying, optimizing, completed, failed."""
    original: dict[str, int | str | None]
    target: dict[str, int | str | None]
    """Applied when `modifying` ends."""
    ended: float | None = None
    message: str = ""
    """Why it failed."""


@dataclass(slots=True)
class Volume:
    """A volume."""

    id: str
    number: int
    zone: str
    size: int
    volume_type: str
    created: float
    iops: int | None = None
    throughput: int | None = None
    encrypted: bool = False
    kms_key: str | None = None
    snapshot: str | None = None
    source: str | None = None
    """The volume that it is a copy of."""
    multi_attach: bool = False
    initialization_rate: int | None = None
    state: str = "creating"
    """One of creating, available, in-use, deleting, error. A deleted volume is in no table."""
    tags: dict[str, str] = field(default_factory=dict)
    former_tags: Former[Mapping[str, str]] = field(default_factory=lambda: Former({}, 0.0))
    """What Describe calls show of the tags until their last change is visible."""
    attachments: dict[str, Attachment] = field(default_factory=dict)
    modifications: list[Modification] = field(default_factory=list)
    root: bool = False


@dataclass(slots=True)
class Lock:
    """A lock of a snapshot."""

    mode: str
    """governance or compliance."""
    made: float
    expires: float
    days: int
    cool_off: int = 0
    """Hours, 0 = none."""

    def state(self, now: float) -> str:
        """Return LockState."""
        if now >= self.expires:
            return "expired"
        return "compliance-cooloff" if now < self.made + self.cool_off * 3_600 else self.mode


@dataclass(slots=True)
class Snapshot:
    """A snapshot."""

    id: str
    number: int
    volume: str
    """Its source."""
    size: int
    encrypted: bool
    started: float
    state: str = "pending"
    """One of pending, completed, error, recoverable, recovering."""
    description: str = ""
    message: str = ""
    """Why it failed."""
    tags: dict[str, str] = field(default_factory=dict)
    kms_key: str | None = None
    ends: float = 0.0
    """When it is complete."""
    owner: str = ""
    """Account that shares it; "" = this one."""
    archived: bool = False
    zone: str = ""
    """Of a local snapshot."""
    outpost: str = ""
    images: tuple[str, ...] = ()
    """Ids of AMIs that are made of it."""
    lock: Lock | None = None
    fast_restores: dict[str, str] = field(default_factory=dict)
    """Zone -> state of fast restore."""


@dataclass(slots=True)
class Instance:
    """An instance."""

    id: str
    number: int
    zone: str
    instance_type: str
    launched: float
    state: str = "running"
    """One of pending, running, stopping, stopped, shutting-down, terminated."""
    interfaces: int = 1
    """Attached network interfaces."""
    root_volume: str = ""
    root_device: str = "/dev/xvda"


@dataclass(slots=True)
class Token:
    """A client token."""

    request: str
    """The parameters that it was used with, in canonical form."""
    volume: str
    expires: float
    """When EC2 forgets it."""


VOLUME_ID = re.compile("vol-([0-9a-f]{8}|[0-9a-f]{17})")
SNAPSHOT_ID = re.compile("snap-([0-9a-f]{8}|[0-9a-f]{17})")
_INSTANCE_ID = re.compile("i-([0-9a-f]{8}|[0-9a-f]{17})")
"""The short and the long form of ids (Amazon EC2 User Guide, "Resource IDs")."""
_USUAL_ACCOUNT = Behaviour().account
_EPOCH = 1_767_225_600.0  # 2026-01-01T00:00:00Z is second 0 of the clock.


class TagIndex:
    """Volumes by tag, so that a lookup by tag does not read every volume."""

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

    def ids_with(self, key: str, values: Iterable[str]) -> dict[str, None]:
        """Return the ids of the volumes that carry the tag with any of the values."""
        found: dict[str, None] = {}
        for value in values:
            found.update(self._ids.get((key, value), {}))
        return found


class AccountState:
    """The resources of the account and their clock. Not safe for threads: FakeEC2 locks it.

    Times are seconds of the clock.
    """

    def __init__(self, behaviour: Behaviour, timeline: Timeline) -> None:
        self.behaviour = behaviour
        self.timeline = timeline
        self.volumes: dict[str, Volume] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.instances: dict[str, Instance] = {}
        self.tokens: dict[str, Token] = {}
        self.tagged = TagIndex()
        self.tags_busy: dict[str, float] = {}
        """Resource -> until when its tags take no other change."""
        self.contents: DiskContents = MemoryContents()
        self.stalled: bool = False
        """Whether the change of state that the current call starts never ends."""
        self.failure: str | None = None
        """Why the change of state that the current call starts fails; None if it succeeds."""
        self.answers = 0
        """Calls so far."""
        self._last = 0

    @property
    def now(self) -> float:
        """Return the seconds of the clock, up to which events have run."""
        return self.timeline.now

    def number(self) -> int:
        """Return the next number: a later resource has a higher one."""
        self._last += 1
        return self._last

    def id(self, prefix: str, number: int) -> str:
        """Return an id of EC2's form, the same in every run."""
        of = "" if self.behaviour.account == _USUAL_ACCOUNT else self.behaviour.account
        return f"{prefix}-0{hashlib.sha256(f'{prefix}{number}{of}'.encode()).hexdigest()[:16]}"

    def unix_time(self, at: float) -> float:
        """Return the Unix time of a time of the clock."""
        return _EPOCH + at

    def time_text(self, at: float) -> str:
        """Return a time of the clock as filters compare it."""
        return datetime.fromtimestamp(self.unix_time(at), UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")

    def later(self, seconds: float, event: Callable[[], None]) -> None:
        """Plan an event, unless a fault stalls this call."""
        if not self.stalled:
            self.timeline.after(seconds, event)

    def volume(self, params: Mapping[str, Any]) -> Volume:
        """Return the volume of a mutating call. Raises what EC2 raises for ids that are malformed, unknown, or not
        visible.

        Amazon EC2 Developer Guide, "Eventual consistency in the Amazon EC2 API".
        """
        id_ = str(params["VolumeId"])
        if not VOLUME_ID.fullmatch(id_):
            raise EC2Error("InvalidVolumeID.Malformed", f'Invalid id: "{id_}" (expecting "vol-...")')
        volume = self.volumes.get(id_)
        if volume is None or not self.visible(volume.created):
            raise EC2Error("InvalidVolume.NotFound", f"The volume '{id_}' does not exist.")
        return volume

    def instance(self, id_: str) -> Instance:
        """Return the instance. Raises InvalidInstanceID.Malformed and .NotFound."""
        if not _INSTANCE_ID.fullmatch(id_):
            raise EC2Error("InvalidInstanceID.Malformed", f'Invalid id: "{id_}"')
        if id_ not in self.instances:
            raise EC2Error("InvalidInstanceID.NotFound", f"The instance ID '{id_}' does not exist")
        return self.instances[id_]

    def visible(self, made: float) -> bool:
        """Return whether Describe calls show what was created at that time."""
        return self.now >= made + self.behaviour.visible_after or self._other_server

    @property
    def _other_server(self) -> bool:
        """Return whether a server answers that knows all changes already."""
        return self.behaviour.flickers and self.answers % 2 == 1

    def visible_tags(self, volume: Volume) -> Mapping[str, str]:
        """Return the tags that Describe calls show now."""
        lag = 0.0 if self._other_server else self.behaviour.visible_after
        return volume.former_tags.shown(volume.tags, self.now, lag)

    def remove(self, volume: Volume) -> None:
        """Remove a volume from all tables."""
        if self.volumes.pop(volume.id, None) is not None:
            self.tagged.remove(volume.id, volume.tags)


def canonical_request(params: Mapping[str, Any]) -> str:
    """Return the parameters of a request without its token, as text that is equal for equal parameters."""
    plain = {key: value for key, value in params.items() if key not in ("ClientToken", "DryRun")}
    return json.dumps(plain, sort_keys=True, default=str)
