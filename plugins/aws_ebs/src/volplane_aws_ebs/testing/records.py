"""What a FakeEC2 keeps. Times are seconds of its clock."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Attachment", "Instance", "Modification", "Snapshot", "Token", "Volume"]


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
