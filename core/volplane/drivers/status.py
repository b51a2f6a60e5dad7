"""The state of each configured driver: whether it could be made, whether it can be used now, and why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum

from volplane.drivers.driver import Driver
from volplane.drivers.view import serves_attachments
from volplane.operations import DriverLimits

__all__ = [
    "BrokenDriver",
    "DriverState",
    "DriverStatus",
    "LoadedDrivers",
    "PendingDriver",
    "problem",
    "status_of_broken",
    "status_of_pending",
    "why_none_works",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenDriver:
    """A driver that could not be made. error: why, in one sentence."""

    name: str
    backend: str
    error: str


def _begun() -> Future[Driver | BrokenDriver]:
    future: Future[Driver | BrokenDriver] = Future()
    future.set_running_or_notify_cancel()  # Who waits for it cannot cancel it.
    return future


@dataclass(slots=True, kw_only=True, eq=False)
class PendingDriver:
    """A driver that is being made: only what the configuration says of it is known.

    on_nodes: the processes of the nodes will call its hooks, and this one will not. doing: what takes its time now.
    made: ends within the deadlines of `volplane.drivers.loading`; it is set in another thread.
    """

    name: str
    backend: str
    on_nodes: bool = False
    doing: str = ""
    made: Future[Driver | BrokenDriver] = field(default_factory=_begun)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDrivers:
    """What `volplane.drivers.loading` made of a configuration.

    pending: drivers that are still being made. distributed: those whose hooks the processes of the nodes call, and not
    this one. drivers: the others. publishing: names of all whose room is published, if they measure it.
    """

    drivers: tuple[Driver, ...] = ()
    broken: tuple[BrokenDriver, ...] = ()
    limits: Mapping[str, DriverLimits] = field(default_factory=dict)
    distributed: tuple[Driver, ...] = ()
    publishing: frozenset[str] = frozenset()
    pending: tuple[PendingDriver, ...] = ()

    def settled(self) -> LoadedDrivers:
        """The same, with those that were made meanwhile, or turned out to be broken, in their places."""
        drivers, distributed, broken, pending = [*self.drivers], [*self.distributed], [*self.broken], []
        for each in self.pending:
            made = each.made.result() if each.made.done() else None
            if made is None:
                pending.append(each)
            elif isinstance(made, BrokenDriver):
                broken.append(made)
            else:
                (distributed if each.on_nodes else drivers).append(made)
        return replace(
            self,
            drivers=tuple(drivers),
            distributed=tuple(distributed),
            broken=tuple(broken),
            pending=tuple(pending),
        )

    @property
    def on_nodes(self) -> tuple[str, ...]:
        """Names of the drivers whose hooks the processes of the nodes call, made or not."""
        return (*(each.name for each in self.distributed), *(each.name for each in self.pending if each.on_nodes))

    @property
    def attaches(self) -> bool:
        """Whether a driver of this process serves attachments. One that is not made yet may."""
        served = any(serves_attachments(each.view) for each in self.drivers)
        return served or any(not each.on_nodes for each in self.pending)

    @property
    def publishes(self) -> bool:
        """Whether the room of a driver is published. That of one that is not made yet is, if it is to be."""
        able = [each.name for each in (*self.drivers, *self.distributed) if each.supports("get_capacity")]
        return not self.publishing.isdisjoint([*able, *(each.name for each in self.pending)])

    @property
    def names(self) -> frozenset[str]:
        """Names of all that are configured, working or not, made or not."""
        usable = frozenset(each.name for each in (*self.drivers, *self.distributed))
        return usable | {each.name for each in self.broken} | {each.name for each in self.pending}


class DriverState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    UNAVAILABLE = "unavailable"
    """`start` failed and is tried again."""
    BROKEN = "broken"
    """It could not be made. Only a restart of the process can change that."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStatus:
    """The state of a driver, for /readyz, metrics and `volplane status`.

    healthy: ready, its last probe good, and not all its threads hung. error: why not. hung: all threads are.
    """

    name: str
    backend: str
    distribution: str
    state: DriverState
    healthy: bool
    hung: bool
    error: str
    hooks: tuple[str, ...]


def status_of_broken(broken: BrokenDriver) -> DriverStatus:
    """The status of a driver that could not be made. It never changes."""
    return _without_driver(broken, DriverState.BROKEN, broken.error)


def status_of_pending(pending: PendingDriver, error: str) -> DriverStatus:
    """The status of a driver that is being made. error: what takes long, or "" as long as that is nothing special."""
    return _without_driver(pending, DriverState.STARTING, error)


def _without_driver(named: BrokenDriver | PendingDriver, state: DriverState, error: str) -> DriverStatus:
    return DriverStatus(
        name=named.name,
        backend=named.backend,
        distribution="",
        state=state,
        healthy=False,
        hung=False,
        error=error,
        hooks=(),
    )


def problem(status: DriverStatus) -> str:
    """What is wrong with a driver that is not healthy."""
    what = f"driver {status.name} is {'hung' if status.hung else status.state}"
    return f"{what}: {status.error}" if status.error else what


def why_none_works(statuses: Sequence[DriverStatus], *, needed: bool) -> str:
    """Why no driver can work; "" = one can, or there is none and the controllers can do without."""
    if not statuses:
        missing = "no driver is configured: name one under `drivers` in the configuration, or install a backend"
        return missing if needed else ""
    return "" if any(status.healthy for status in statuses) else "no driver can work"
