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
    "why_none_works",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenDriver:
    """A driver that could not be made."""

    name: str
    backend: str
    error: str
    """Why, in one sentence."""

    @property
    def status(self) -> DriverStatus:
        """The status of this driver. It never changes."""
        return DriverStatus(name=self.name, backend=self.backend, state=DriverState.BROKEN, error=self.error)


def _running_future() -> Future[Driver | BrokenDriver]:
    future: Future[Driver | BrokenDriver] = Future()
    future.set_running_or_notify_cancel()  # A caller that waits for it cannot cancel it.
    return future


@dataclass(slots=True, kw_only=True, eq=False)
class PendingDriver:
    """A driver that is being made. Only its configuration is known."""

    name: str
    backend: str
    on_nodes: bool = False
    """The processes of the nodes will call its hooks, and this one will not."""
    doing: str = ""
    """The part of its making that runs now."""
    made: Future[Driver | BrokenDriver] = field(default_factory=_running_future)
    """Ends within the deadlines of `volplane.drivers.loading`; set in another thread."""

    def status(self, error: str) -> DriverStatus:
        """Return the status of this driver. error: what takes long, or ""."""
        return DriverStatus(name=self.name, backend=self.backend, state=DriverState.STARTING, error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDrivers:
    """The drivers that `volplane.drivers.loading` made from a configuration."""

    drivers: tuple[Driver, ...] = ()
    """Those whose hooks this process calls."""
    broken: tuple[BrokenDriver, ...] = ()
    limits: Mapping[str, DriverLimits] = field(default_factory=dict)
    distributed: tuple[Driver, ...] = ()
    """Those whose hooks the processes of the nodes call, and not this one."""
    publishing: frozenset[str] = frozenset()
    """Names of the drivers whose capacity is published, if they measure it."""
    pending: tuple[PendingDriver, ...] = ()
    """Those that are still being made."""

    def settled(self) -> LoadedDrivers:
        """Return a copy in which the pending drivers that are made, or broken, are in their places."""
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
        """Whether a driver of this process serves attachments, or may once it is made."""
        served = any(serves_attachments(each.view) for each in self.drivers)
        return served or any(not each.on_nodes for each in self.pending)

    @property
    def publishes(self) -> bool:
        """Whether the capacity of a driver is published, or will be once it is made."""
        able = [each.name for each in (*self.drivers, *self.distributed) if each.supports("get_capacity")]
        return not self.publishing.isdisjoint([*able, *(each.name for each in self.pending)])

    @property
    def names(self) -> frozenset[str]:
        """Names of all configured drivers, working or not, made or not."""
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
    """The state of a driver, for /readyz, metrics and `volplane status`."""

    name: str
    backend: str
    state: DriverState
    distribution: str = ""
    healthy: bool = False
    """It is ready, its last probe succeeded, and not all its threads hang."""
    hung: bool = False
    """All threads hang."""
    error: str = ""
    """Why it is not healthy."""
    hooks: tuple[str, ...] = ()


def problem(status: DriverStatus) -> str:
    """Describe why a driver is not healthy."""
    what = f"driver {status.name} is {'hung' if status.hung else status.state}"
    return f"{what}: {status.error}" if status.error else what


def why_none_works(statuses: Sequence[DriverStatus], *, needed: bool) -> str:
    """Explain why no driver can work.

    needed: whether the controllers need one. Returns "" if a driver is healthy, or if there is none and none is needed.
    """
    if not statuses:
        missing = "no driver is configured: name one under `drivers` in the configuration, or install a backend"
        return missing if needed else ""
    return "" if any(status.healthy for status in statuses) else "no driver can work"
