"""What is tested, and what the kit may know of it and do with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, fields
from random import Random
from typing import Any, Final

from volplane.assets import Asset, Ownership, Segment, VolumeSource
from volplane.errors import ConfigurationError
from volplane.requests import NodeIdentity

__all__ = ["MakeSubject", "Subject", "opened"]

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Subject:
    """A backend on a storage of its own. `factory(options)` makes an instance, as for a driver; every instance that is
    made works on the same storage, so a fresh one is what a restart leaves.

    Only the first two fields are needed; each of the others lets more rules say something. Sizes are bytes, times
    seconds.
    """

    factory: Callable[[Mapping[str, Any]], object]
    """The backend's class, or whatever its entry point names."""
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """As in the configuration file; they are checked and typed by `options_schema`."""
    _: KW_ONLY
    driver_name: str = "conformance.example.com"
    """Of the driver that is built."""
    cluster_id: str = "conformance"
    """In the marks of everything that is made."""
    node_name: str | None = None
    """Given to `start`, as by `--node-name`."""

    parameters: Mapping[str, str] = field(default_factory=dict)
    """Of a class, as strings."""
    other_parameters: Mapping[str, str] | None = None
    """Legal parameters that ask for a different asset."""
    snapshot_parameters: Mapping[str, str] = field(default_factory=dict)
    """Of a VolumeSnapshotClass, as strings."""
    backing_parameters: Mapping[str, str] | None = None
    """Parameters with which a demand for ReadOnlyMany gets its snapshot itself (`Asset.backing_snapshot`)."""
    mutable_parameters: Mapping[str, str] = field(default_factory=dict)
    """What `modify` shall be asked for."""
    capacity_bytes: int = GIB
    """A size of which a dozen assets fit."""
    too_large_bytes: int | None = None
    """A size that never fits; None: far more than any storage has."""
    segments: tuple[Segment, ...] = ()
    """Places in which assets can be made; the first is used by rules that need only one."""
    nodes: tuple[NodeIdentity, ...] = (NodeIdentity(name="node-1"), NodeIdentity(name="node-2"))
    """Nodes to which assets can be attached; two are enough."""
    static_source: VolumeSource | None = None
    """A source that a person could write and that is this backend's, without an asset of ours behind it."""
    foreign_sources: tuple[VolumeSource, ...] = ()
    """Sources of the backend's own kind that are not its own (another server, another root)."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Texts from the options that may be seen nowhere."""
    page_assets: int = 5
    """How many assets, or snapshots, do not fit on one page of a listing; make the page small by an option of the
    backend."""

    advance: Callable[[float], None] = time.sleep
    """Let so many seconds pass: for asynchronous backends on an injected clock."""
    now: Callable[[], float] | None = None
    """Unix time as the storage has it, to be compared with `Snapshot.created_at`."""
    inspect: Callable[[], object] | None = None
    """A picture of the storage: equal pictures mean that nothing was changed."""
    fill: Callable[[Asset], None] | None = None
    """Write something into the asset, as a pod would."""
    is_empty: Callable[[Asset], bool] | None = None
    """Whether nothing of what was ever written into the asset can be read from it."""
    size_of: Callable[[Asset], int] | None = None
    """Bytes that the asset has, as the storage itself says."""
    use: Callable[[Asset], AbstractContextManager[object]] | None = None
    """Hold the asset in use (mounted, open) while the block runs."""
    attachments: Callable[[], Mapping[str, Collection[str]]] | None = None
    """Handle of every asset -> ids (`NodeIdentity.instance_id`) of the machines that have it, as the storage itself
    knows. With it, and with more than two `nodes`, attachments are simulated."""
    owners: Callable[[], Mapping[str, Ownership]] | None = None
    """Handle of every asset -> for whom it was made, of a storage without marks (`DriverInfo.marks`) of which the test
    knows more than the backend."""
    trouble: Callable[[Random], AbstractContextManager[object]] | None = None
    """Let the storage fail and dawdle while the block runs, as the random numbers say; only the simulation asks for
    it."""
    unreachable: Mapping[str, object] = field(default_factory=dict, repr=False)
    """Options with which the backend cannot reach the storage, such as an endpoint at which nobody listens."""
    outage: Callable[[], AbstractContextManager[object]] | None = None
    """Let the storage refuse every call while the block runs, also those of instances that have started."""

    real_crashes: bool = False
    """The storage is outside of this process (files, a server): crashes are those of a child process (fork), which is
    killed at a line of the backend. Else an exception is raised at the line."""
    crash_points: int = 48
    """At how many lines of a hook it is made to crash, spread evenly."""
    storage_modules: tuple[str, ...] = ()
    """Modules that play the storage (a fake cloud): no crash happens inside of them or beneath."""
    patience: float | None = 60.0
    """Real seconds a single hook call may take. None: any; hooks then run in the caller's thread, where a debugger
    stops."""
    progress_patience: float = 600.0
    """Seconds that work may stay in progress, or ask to be called again later; those that `advance` is told of."""

    def __post_init__(self) -> None:
        """Raise ConfigurationError for a value of which no rule could make sense."""
        for each in fields(self):
            value, (good, must) = getattr(self, each.name), _VALUES.get(each.name, (_anything, ""))
            if not good(value):
                shown = repr(value) if each.repr else type(value).__name__
                raise ConfigurationError(f"Subject.{each.name}: {shown} must be {must}")


def _anything(_value: object) -> bool:
    return True


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _holds_texts(value: object) -> bool:
    return value is None or (isinstance(value, Mapping) and _tuple_of(str)((*value, *value.values())))


def _is_function(value: object) -> bool:
    return value is None or callable(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 1


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


def _tuple_of(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, tuple) and all(isinstance(each, kind) for each in value)


_OPTIONS: Final = (_is_mapping, "a mapping of options, as in the configuration file")
_PARAMETERS: Final = (_holds_texts, "a mapping of texts, since parameters of classes are strings")
_FUNCTION: Final = (_is_function, "a function")
_COUNT: Final = (_is_count, "a whole number from 1 on")
_TEXTS: Final = (_tuple_of(str), "a tuple of texts")
_VALUES: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "factory": (callable, "the backend's class, or a function that makes an instance of options"),
    **dict.fromkeys(("options", "unreachable"), _OPTIONS),
    **dict.fromkeys(("driver_name", "cluster_id"), (_is_text, "a text")),
    **dict.fromkeys(("parameters", "snapshot_parameters", "mutable_parameters"), _PARAMETERS),
    **dict.fromkeys(("other_parameters", "backing_parameters"), _PARAMETERS),
    **dict.fromkeys(("capacity_bytes", "crash_points", "page_assets"), _COUNT),
    "segments": (_tuple_of(Mapping), "a tuple of mappings, topology key to place"),
    "nodes": (_tuple_of(NodeIdentity), "a tuple of NodeIdentity"),
    "foreign_sources": (_tuple_of(VolumeSource), "a tuple of VolumeSource"),
    **dict.fromkeys(("secrets", "storage_modules"), _TEXTS),
    **dict.fromkeys(("now", "inspect", "fill", "is_empty", "size_of", "use"), _FUNCTION),
    **dict.fromkeys(("attachments", "owners", "trouble", "outage"), _FUNCTION),
    "advance": (callable, "a function"),
    "patience": (lambda value: value is None or _is_duration(value), "more than 0 seconds, or None"),
    "progress_patience": (_is_duration, "more than 0 seconds"),
}
"""Field -> what its value must be, and the words for that."""


MakeSubject = Callable[[], Subject | AbstractContextManager[Subject]]
"""Gives a subject, best with an empty storage each time; as a context manager it is closed when it is done with."""


@contextmanager
def opened(make: Subject | MakeSubject) -> Iterator[Subject]:
    """The subject itself, or one that is made, for as long as the block runs."""
    given = make if isinstance(make, Subject) else make()
    with nullcontext(given) if isinstance(given, Subject) else given as subject:
        yield subject
