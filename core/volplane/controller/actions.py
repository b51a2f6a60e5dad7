"""The actions that `decide` may return: the single next thing to do for one object.

A decide function is pure: it reads caches (and what this pass read live), and returns one of these. The runner performs
it, puts the server's answer into the cache, and asks again, until `Wait` or `Settled`. They are structs because several
are made for every write, and a frozen dataclass takes 20 times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from volplane.kube.events import EventRecord as EventRecord  # noqa: PLC0414 -- for those that make actions
from volplane.kube.kinds import Kind
from volplane.kube.objects import KubeObject


class Queue(Protocol):
    """Takes keys. `volplane.controller.runner.Runner` is one."""

    def enqueue(self, key: str, after: float = 0.0) -> None:
        """Decide about the key soon, or after so many seconds."""


class Recorder(Protocol):
    """Takes events. `volplane.kube.events.EventRecorder` is one."""

    def record(self, event: EventRecord) -> None:
        """Queue an event; never blocks."""


def started(operation: str) -> str:
    """Return the reason of a key whose operation was started last."""
    return f"{operation} is running"


def warning(kind: Kind[Any], about: KubeObject, reason: str, message: str, *, same_as: str = "") -> EventRecord:
    return EventRecord(kind, about, "Warning", reason, message, same_as)


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """A merge patch of `target` as it is in the cache; the runner adds its resourceVersion to `body`'s metadata."""

    kind: Kind[Any]
    target: KubeObject
    body: Mapping[str, Any]
    why: str
    """For logs, as in every action."""
    subresource: str = ""
    events: tuple[EventRecord, ...] = ()
    """Recorded once the write is acknowledged."""


class Create(msgspec.Struct, frozen=True, kw_only=True):
    """Create an object. One that exists already is read into the cache and decided upon; it is not an error."""

    kind: Kind[Any]
    body: Mapping[str, Any]
    why: str
    events: tuple[EventRecord, ...] = ()
    failure_event: EventRecord | None = None
    """Recorded, with the server's words added, when the server refuses the call or fails at it repeatedly."""


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """Delete `target`: with its uid as a precondition, and its resourceVersion too if `exact`."""

    kind: Kind[Any]
    target: KubeObject
    why: str
    exact: bool = True
    grace_seconds: int | None = None
    events: tuple[EventRecord, ...] = ()


class Read(msgspec.Struct, frozen=True):
    """Read an object live into the cache and into this pass's `LiveReads`, then decide again."""

    kind: Kind[Any]
    key: str
    why: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Start an operation on `asset` of `driver`, unless another holds it. Its end queues the object again."""

    verb: str
    """What to do, for which the registry of operations has a handler."""
    key: str
    """Of the object; of an operation that a person asked for, the name of the volume."""
    uid: str
    """Of the object; of an operation that a person asked for, the handle of the asset."""
    driver: str
    asset: str
    node: str = ""
    """Set where an asset may be on several nodes at once: operations on different nodes do not exclude each other."""
    group: str = ""
    """Operations of a driver that are likely to fail together, as those of one storage class, share a retry budget."""
    progress: str = ""
    """How far earlier calls of the hook came, for people."""
    planned: msgspec.Struct | None = None
    """The record that is written once the hook has said what belongs into it: it makes nothing before
    (`DriverInfo.plans_first`)."""
    live: bool = False
    """Set by the runner if the last step of this pass wrote the object, so that the cache is as new as the server."""

    @property
    def name(self) -> str:
        """Identifies the operation in logs, events and the registry: `provision-<namespace>/<name>[<uid>]`."""
        return operation_name(self.verb, self.key, self.node or self.uid)


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing to do until something changes, or until `seconds` are over."""

    reason: str
    """In plain words, for `explain`."""
    seconds: float | None = None
    events: tuple[EventRecord, ...] = ()


class Settled(msgspec.Struct, frozen=True):
    """Everything about this object is as it should be."""

    events: tuple[EventRecord, ...] = ()


def operation_name(verb: str, key: str, uid: str) -> str:
    """Return the name of a `Run` with these fields; uid: its node, where it has one."""
    return f"{verb}-{key}[{uid}]"


Ending = Wait | Settled | Run
Action = Patch | Create | Delete | Read | Ending


class LiveReads:
    """What this pass over one object read live: proof of presence or absence that a cache cannot give."""

    def __init__(self) -> None:
        self._read: dict[tuple[type[KubeObject], str], KubeObject | None] = {}
        self.unserved: set[str] = set()
        """Plurals of kinds that the server does not serve."""

    def __len__(self) -> int:
        return len(self._read)

    def serves(self, kind: Kind[Any]) -> bool:
        """Return whether the server serves this kind, as far as this pass has seen."""
        return kind.plural not in self.unserved

    def put(self, kind: Kind[Any], key: str, answer: KubeObject | None) -> None:
        self._read[kind.struct, key] = answer

    def written(self, kind: Kind[Any], answer: KubeObject) -> None:
        """Take over the answer to a write of this pass, if it has read the object."""
        if self.has(kind, answer.key):
            self.put(kind, answer.key, answer)

    def has(self, kind: Kind[Any], key: str) -> bool:
        return (kind.struct, key) in self._read

    def get(self, kind: Kind[Any], key: str) -> KubeObject | None:
        """Return the object as read in this pass, None if it was absent. KeyError if it was not read."""
        return self._read[kind.struct, key]


Flow = Callable[[str], str]
"""key -> the flow that it belongs to in its queue: flows are served in turns."""

Predicate = Callable[[str], bool]
"""key -> whether there may be something to decide about it, by the cached object alone. What it refuses, the decision
would call settled. The word is controller-runtime's.
"""

Decide = Callable[[str, LiveReads], Action]
"""(key, what was read live in this pass) -> the next action."""
