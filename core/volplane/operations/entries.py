"""What the operation registry keeps: operations, pauses between their runs, and each driver's queue."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from volplane.controller.actions import Run
from volplane.operations.limits import DriverLimits, TokenBucket
from volplane.operations.states import OperationState, Phase

__all__ = ["RUNNING", "Lane", "Operation", "Pause", "Requeue", "Work", "hold_until"]

Requeue = Callable[[], None]
Work = Callable[[], Awaitable[str | None]]
"""Does what a `Run` says; what it returns is what was done, in words. Raises the failure, or `Again` to go on later."""


@dataclass(slots=True, eq=False)
class Operation:
    run: Run
    name: str
    work: Work
    requeue: Requeue
    since: float
    failures: int
    phase: Phase = Phase.QUEUED
    task: asyncio.Task[None] | None = None
    error: BaseException | None = None
    held: list[asyncio.Future[None]] = field(default_factory=list)
    waiters: dict[str, Requeue] = field(default_factory=dict)
    # Of who started it: by the time it runs, another operation's end may be what runs it.
    context: contextvars.Context = field(default_factory=contextvars.copy_context)

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
    """What is left of an operation between two runs. failures is 0 after `Again`. dropped: nobody waits for it any more."""

    run: Run
    name: str
    since: float
    until: float
    failures: int
    error: str | None
    requeue: Requeue
    timer: asyncio.TimerHandle | None = None
    dropped: bool = False

    def state(self) -> OperationState:
        return OperationState.of(
            self.run,
            phase=Phase.WAITING,
            since=self.since,
            next_try=self.until,
            failures=self.failures,
            error=self.error,
        )


@dataclass(slots=True, eq=False)
class Lane:
    """One driver's queue: first come, first served, none of it shared with other drivers."""

    limits: DriverLimits
    bucket: TokenBucket | None
    queue: deque[Operation] = field(default_factory=deque)
    running: int = 0
    timer: asyncio.TimerHandle | None = None


RUNNING: Final[ContextVar[Operation]] = ContextVar("volplane_operation")
"""The operation that the current task belongs to; unset outside operations."""


def hold_until(returned: asyncio.Future[None]) -> None:
    """Keep the asset of the current operation taken until `returned` is done. Does nothing outside operations.

    A context variable carries the operation, because the code between the registry and the executor may catch any error.
    """
    operation = RUNNING.get(None)
    if operation is not None:
        operation.held.append(returned)
