"""Defines one operation: its states, what its work may raise, what limits it, and what is shown of it."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from volplane.controller.actions import Run
from volplane.controller.controller import Work
from volplane.errors import OperationError

__all__ = [
    "RUNNING",
    "UNLIMITED",
    "Again",
    "DriverLimits",
    "Ended",
    "Operation",
    "OperationState",
    "Pause",
    "Phase",
    "Requeue",
    "Work",
    "hold_until",
    "limits_of",
]

Requeue = Callable[[], None]
"""Queues the object of an operation, to be decided again."""


class Again(OperationError):
    """Raised by work that is not finished, which is no failure.

    The asset is released, and the object is queued again after `after` seconds. Until then the registry refuses the
    operation, so that an event about the object does not call the hook too early.
    """

    def __init__(self, *, after: float) -> None:
        super().__init__(f"goes on in {after:g} s")
        self.after = after


class Phase(StrEnum):
    QUEUED = "queued"
    """Holds the asset, waits for the driver's concurrency or rate."""
    RUNNING = "running"
    OVERRUN = "overrun"
    """The work ended, but a hook it called has not returned: the asset stays taken."""
    WAITING = "waiting"
    """Holds nothing; runs again at `next_try`."""


@dataclass(slots=True, eq=False)
class Operation:
    """An operation that holds its asset."""

    run: Run
    name: str
    work: Work
    requeue: Requeue
    since: float
    """Loop time."""
    failures: int
    """Runs in a row that failed before this one."""
    phase: Phase = Phase.QUEUED
    task: asyncio.Task[None] | None = None
    error: BaseException | None = None
    held: list[asyncio.Future[None]] = field(default_factory=list)
    """Hooks that it called."""
    waiters: dict[str, Requeue] = field(default_factory=dict)
    """By name, operations that were refused because of this one."""
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """Of the caller that started it, because its task may be made when another operation ends."""

    def state(self) -> OperationState:
        return OperationState.of(
            self.run,
            phase=self.phase,
            since=self.since,
            failures=self.failures,
            error=str(self.error) if self.error is not None else None,
        )


@dataclass(slots=True, eq=False)
class Pause:
    """An operation between two runs."""

    run: Run
    name: str
    since: float
    until: float
    """Loop time of the next run."""
    failures: int
    """Those in a row, 0 after `Again`."""
    error: str | None
    requeue: Requeue
    timer: asyncio.TimerHandle = field(init=False)
    """Ends the delay; after that, forgets the failures."""
    dropped: bool = False
    """Whether the operation was started again, or its failures are forgotten."""

    def state(self) -> OperationState:
        return OperationState.of(
            self.run,
            phase=Phase.WAITING,
            since=self.since,
            next_try=self.until,
            failures=self.failures,
            error=self.error,
        )


RUNNING: Final[ContextVar[Operation]] = ContextVar("volplane_operation")
"""The operation that the current task belongs to; unset outside operations."""


def hold_until(returned: asyncio.Future[None]) -> None:
    """Keep the asset of the current operation taken until `returned` is done. Does nothing outside operations.

    A context variable carries the operation, because the code between the registry and the executor may catch any
    error.
    """
    operation = RUNNING.get(None)
    if operation is not None:
        operation.held.append(returned)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationState:
    """The state of one operation. Times are loop times."""

    name: str
    verb: str
    key: str
    uid: str
    driver: str
    asset: str
    node: str
    phase: Phase
    since: float
    next_try: float | None = None
    failures: int = 0
    """How many in a row."""
    error: str | None = None
    """The text of the last failure."""

    @classmethod
    def of(
        cls, run: Run, *, phase: Phase, since: float, failures: int, error: str | None, next_try: float | None = None
    ) -> OperationState:
        """Return the state of the operation that `run` names."""
        return cls(
            name=run.name,
            verb=run.verb,
            key=run.key,
            uid=run.uid,
            driver=run.driver,
            asset=run.asset,
            node=run.node,
            phase=phase,
            since=since,
            next_try=next_try,
            failures=failures,
            error=error,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One run that is over."""

    run: Run
    seconds: float
    """From the start of the work to the release of the asset."""
    error: BaseException | None
    """None for success and for `Again`."""
    next_try: float | None
    """Loop time at which the operation may run again; None if nothing delays it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverLimits:
    """How much a driver does at once."""

    concurrency: int = 10
    """Operations that run at once."""
    rate: float | None = None
    """Operations started per second; None = any number."""
    timeout: float = 120.0
    """Seconds that a hook may take."""


def limits_of(driver: str, configured: Mapping[str, DriverLimits]) -> DriverLimits:
    """Return the configured limits of a driver; the defaults if it has none."""
    return configured.get(driver) or DriverLimits()


UNLIMITED: Final = DriverLimits(concurrency=sys.maxsize)
"""For operations of no driver: they wait for others, and run no hook of their own."""
