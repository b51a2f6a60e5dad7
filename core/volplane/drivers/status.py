"""What is known of each configured driver: whether it could be made, whether it can be used now, and why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from volplane.drivers.driver import Driver
from volplane.operations import DriverLimits

__all__ = [
    "BrokenDriver",
    "DriverState",
    "DriverStatus",
    "LoadedDrivers",
    "problem",
    "status_of_broken",
    "why_none_works",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenDriver:
    """A driver that could not be made. error: why, in one sentence."""

    name: str
    backend: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDrivers:
    """What `volplane.drivers.loading` made of a configuration.

    distributed: drivers whose hooks the processes of the nodes call, and not this one. drivers: the others.
    publishing: names of those whose room is published, of both kinds.
    """

    drivers: tuple[Driver, ...] = ()
    broken: tuple[BrokenDriver, ...] = ()
    limits: Mapping[str, DriverLimits] = field(default_factory=dict)
    distributed: tuple[Driver, ...] = ()
    publishing: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """Names of all that are configured, working or not."""
        usable = frozenset(each.name for each in (*self.drivers, *self.distributed))
        return usable | {each.name for each in self.broken}


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
    return DriverStatus(
        name=broken.name,
        backend=broken.backend,
        distribution="",
        state=DriverState.BROKEN,
        healthy=False,
        hung=False,
        error=broken.error,
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
