"""What is known of each configured driver: whether it could be made, whether it can be used now, and why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from volplane.drivers.driver import Driver
from volplane.operations import DriverLimits

__all__ = ["BrokenDriver", "DriverState", "DriverStatus", "LoadedDrivers", "status_of_broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenDriver:
    """A driver that could not be made. error: one sentence for people."""

    name: str
    backend: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDrivers:
    """What `volplane.drivers.loading` made of a configuration."""

    drivers: tuple[Driver, ...] = ()
    broken: tuple[BrokenDriver, ...] = ()
    limits: Mapping[str, DriverLimits] = field(default_factory=dict)


class DriverState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    UNAVAILABLE = "unavailable"
    """`start` failed and is tried again."""
    BROKEN = "broken"
    """Could not be made; nothing but a new process helps."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStatus:
    """A driver now, for /readyz, metrics and `volplane status`.

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
    """As it is, and will be as long as the process lives."""
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
