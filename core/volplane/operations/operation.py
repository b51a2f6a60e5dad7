"""One operation: its states, what its work may raise, what limits it, and its pause until it runs again."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from volplane._delays import HOOK_FAILED, HOOK_FAILED_SLOW, RETRIES_PER_SUCCESS, RETRY_BURST, RETRY_RATE
from volplane._shared import TokenBucket
from volplane.controller.actions import Run
from volplane.controller.controller import Work
from volplane.controller.workqueue import LoopTime
from volplane.errors import ApiError, BackendError, BackoffError, OperationError, RetryPolicy

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
    task: asyncio.Task[Any] | None = None
    error: BaseException | None = None
    held: list[asyncio.Future[None]] = field(default_factory=list)
    waiters: dict[str, Requeue] = field(default_factory=dict)
    """By name, operations that were refused because of this one."""
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """Of the caller that started it, because its task may be made when another operation ends."""


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


def apart(node: str, other: str) -> bool:
    """Return whether operations with these nodes do not exclude each other. "" stands for the whole asset."""
    return node != other and bool(node) and bool(other)


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
    progress: str = ""
    """How far earlier calls of the hook came, for people."""

    @classmethod
    def of(cls, run: Run, error: BaseException | str | None, **state: Any) -> OperationState:
        """Return the state of the operation that `run` names. state: the fields that `run` does not have."""
        same = ("name", "verb", "key", "uid", "driver", "asset", "node", "progress")
        named = {each: getattr(run, each) for each in same}
        return cls(error=None if error is None else str(error), **named, **state)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverLimits:
    """How much a driver does at once."""

    concurrency: int = 10
    """Operations that run at once."""
    rate: float | None = None
    """Operations started per second; None = any number."""
    timeout: float = 120.0
    """Seconds that a hook may take."""


UNLIMITED: Final = DriverLimits(concurrency=sys.maxsize)
"""For operations of no driver: they wait for others, and run no hook of their own."""


# --- until it runs again ----------------------------------------------------------------------------------------------


def retry_delay(error: BaseException, failures: int) -> float:
    """Return the seconds until an operation runs again after its `failures`-th failure in a row, counted from 1."""
    slow = isinstance(error, BackendError) and error.retry is RetryPolicy.SLOW
    asked = error.retry_after if isinstance(error, BackendError | ApiError) else None
    return (HOOK_FAILED_SLOW if slow else HOOK_FAILED).delay(failures, asked=asked)


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


class Pauses:
    """All operations between two runs. Queues their objects again when their delay is over."""

    def __init__(self) -> None:
        self.by_name: dict[str, Pause] = {}
        self.by_asset: dict[tuple[str, str], set[str]] = {}
        self.budgets: dict[tuple[str, str], RetryBudget] = {}
        """By driver and group."""

    def waiting(self) -> Iterator[Pause]:
        now = asyncio.get_running_loop().time()
        return (pause for pause in self.by_name.values() if now < pause.until)

    def add(self, operation: Operation, delay: float, failures: int, error: str | None) -> None:
        """Queue the object of `operation` again after `delay` seconds."""
        loop = asyncio.get_running_loop()
        now, run, name = loop.time(), operation.run, operation.name
        pause = Pause(run, name, now, now + delay, failures, error, operation.requeue)
        pause.timer = loop.call_at(pause.until, self._delay_over, pause)
        self.by_name[name] = pause
        self.by_asset.setdefault((run.driver, run.asset), set()).add(name)

    def end(self, name: str, requeue: Requeue) -> int:
        """End the pause of this operation, which is about to run; return its failures in a row.

        Raises BackoffError if its delay is not over; `requeue` is called at its end.
        """
        pause = self.by_name.get(name)
        if pause is None:
            return 0
        now = asyncio.get_running_loop().time()
        if now < pause.until:
            pause.requeue = requeue
            why = f"failed {pause.failures} times, last: {pause.error}" if pause.failures else "is in progress"
            raise BackoffError(f"{name} {why}; next try in {pause.until - now:.1f} s", until=pause.until)
        self.drop(pause)
        return pause.failures

    def drop(self, pause: Pause) -> None:
        """Forget the pause and its failures. Queues nothing."""
        pause.timer.cancel()
        pause.dropped = True
        del self.by_name[pause.name]
        names = self.by_asset[pause.run.driver, pause.run.asset]
        names.discard(pause.name)
        if not names:
            del self.by_asset[pause.run.driver, pause.run.asset]

    def _delay_over(self, pause: Pause) -> None:
        if not pause.failures:
            self._resume(pause)
            return
        group = pause.run.driver, pause.run.group
        if group not in self.budgets:
            self.budgets[group] = RetryBudget(self._resume)
        self.budgets[group].add(pause)

    def _resume(self, pause: Pause) -> None:
        loop = asyncio.get_running_loop()
        # A timer may ring a clock tick early; refused then, the object would not be queued again.
        pause.until = min(pause.until, loop.time())
        pause.timer = loop.call_later(HOOK_FAILED.forget_after, self.drop, pause)
        loop.call_soon(pause.requeue)


class RetryBudget:
    """Limits how many operations of one driver and group (a storage class) are tried again after a failure.

    Pauses whose delay is over are resumed at the rate of `RETRY_RATE`, those that failed least often first,
    so that a driver that is out of order is not flooded, however many objects wait for it. Each success allows two
    more: once the driver works again, retries double with every round. First tries and operations that go on after
    `Again` are not counted.
    """

    def __init__(self, resume: Callable[[Pause], None]) -> None:
        """resume: queues the object of a pause, soon; called in the loop."""
        self._resume = resume
        self._now = LoopTime()
        self._bucket = TokenBucket(RETRY_RATE, self._now(), burst=RETRY_BURST)
        self._waiting: list[tuple[int, int, Pause]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def delay(self) -> float:
        """Seconds until the last pause is resumed, unless operations succeed meanwhile."""
        return len(self._waiting) / RETRY_RATE

    def add(self, pause: Pause) -> None:
        """Resume the pause as soon as the budget allows; until then `pause.until` is an estimate of when."""
        heapq.heappush(self._waiting, (pause.failures, next(self._order), pause))
        pause.until = self._now() + self.delay
        self._resume_due()

    def succeeded(self) -> bool:
        """Add to the budget after a success; return whether it is full again, which it is only if nothing waits."""
        self._bucket.give(RETRIES_PER_SUCCESS)
        self._resume_due()
        return self._bucket.full(self._now())

    def _resume_due(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = self._now()
        while self._waiting:
            if self._waiting[0][2].dropped:
                heapq.heappop(self._waiting)
                continue
            if (wait := self._bucket.wait(now)) > 0:
                self._timer = asyncio.get_running_loop().call_later(wait, self._resume_due)
                return
            self._bucket.take(now)
            self._resume(heapq.heappop(self._waiting)[2])
