"""Operations between two runs: how late each is tried again, and how many of those that failed at once.

The delays are those of `volplane.backoff`.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from volplane.backoff import HOOK_FAILED, HOOK_FAILED_SLOW, RETRY_BUDGET
from volplane.controller.actions import Run
from volplane.controller.clock import LoopTime
from volplane.errors import ApiError, BackendError, BackoffError, RetryPolicy
from volplane.operations.limits import TokenBucket
from volplane.operations.operation import Operation, OperationState, Phase, Requeue

__all__ = ["Pause", "Pauses", "RetryBudget", "retry_delay"]


def retry_delay(error: BaseException, failures: int) -> float:
    """Seconds until an operation runs again after its `failures`-th failure in a row, counted from 1.

    The rows are `HOOK_FAILED_SLOW` for errors of the slow policy and `HOOK_FAILED` for all others.
    """
    slow = isinstance(error, BackendError) and error.retry is RetryPolicy.SLOW
    asked = error.retry_after if isinstance(error, BackendError | ApiError) else None
    return (HOOK_FAILED_SLOW if slow else HOOK_FAILED).delay(failures, asked=asked)


@dataclass(slots=True, eq=False)
class Pause:
    """An operation between two runs. until: loop time of the next; failures: those in a row, 0 after `Again`.

    dropped: the operation was started again, or nobody waits for it any more.
    """

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


class RetryBudget:
    """Limits how many operations of one driver and group (a storage class) are tried again after a failure.

    Pauses whose delay is over are resumed at the rate of `backoff.RETRY_BUDGET`, those that failed least often first,
    so that a driver that is out of order is not flooded, however many objects wait for it. Each success allows two
    more: once the driver works again, retries double with every round. First tries and operations that go on after
    `Again` are not counted.
    """

    def __init__(self, resume: Callable[[Pause], None]) -> None:
        """resume: queues the object of a pause, soon; called in the loop."""
        self._resume = resume
        self._now = LoopTime()
        self._bucket = TokenBucket(RETRY_BUDGET.rate, self._now(), burst=RETRY_BUDGET.burst)
        self._waiting: list[tuple[int, int, Pause]] = []
        self._added = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def delay(self) -> float:
        """Seconds that the last pause waits here, unless operations succeed meanwhile."""
        return len(self._waiting) / RETRY_BUDGET.rate

    def add(self, pause: Pause) -> None:
        """Resume the pause as soon as the budget allows; until then `pause.until` is an estimate of when."""
        self._added += 1
        heapq.heappush(self._waiting, (pause.failures, self._added, pause))
        pause.until = self._now() + self.delay
        self._resume_due()

    def succeeded(self) -> bool:
        """An operation of the group succeeded; whether nothing waits and the budget is full again."""
        self._bucket.give(RETRY_BUDGET.per_success)
        self._resume_due()
        return not self._waiting and self._bucket.full(self._now())

    def close(self) -> None:
        """Resume nothing more."""
        self._waiting.clear()
        self._stop_timer()

    def _resume_due(self) -> None:
        self._stop_timer()
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

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Pauses:
    """All operations between two runs, by name. Queues their objects again when their delay is over."""

    def __init__(self) -> None:
        self._by_name: dict[str, Pause] = {}
        self._by_asset: dict[tuple[str, str], set[str]] = {}
        self._budgets: dict[tuple[str, str], RetryBudget] = {}

    def get(self, name: str) -> Pause | None:
        return self._by_name.get(name)

    def waiting(self) -> Iterator[Pause]:
        """Those whose delay is not over."""
        now = asyncio.get_running_loop().time()
        return (pause for pause in self._by_name.values() if now < pause.until)

    def add(self, operation: Operation, delay: float, failures: int, error: str | None) -> float:
        """Queue the object of `operation` again after `delay` seconds; the loop time of that."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        run, name = operation.run, operation.name
        pause = Pause(run, name, now, now + delay, failures, error, operation.requeue)
        pause.timer = loop.call_at(pause.until, self._delay_over, pause)
        self._by_name[name] = pause
        self._by_asset.setdefault((run.driver, run.asset), set()).add(name)
        return pause.until

    def end(self, name: str, requeue: Requeue) -> int:
        """End the pause of this operation, which is about to run; its failures in a row.

        Raises BackoffError if its delay is not over; `requeue` is called at its end.
        """
        pause = self._by_name.get(name)
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
        if pause.timer is not None:
            pause.timer.cancel()
        pause.dropped = True
        del self._by_name[pause.name]
        names = self._by_asset[pause.run.driver, pause.run.asset]
        names.discard(pause.name)
        if not names:
            del self._by_asset[pause.run.driver, pause.run.asset]

    def drop_others(self, run: Run) -> Iterator[Pause]:
        """Drop the failed operations on the asset of `run`, which is about to change what they failed on."""
        for name in sorted(self._by_asset.get((run.driver, run.asset), ())):
            pause = self._by_name[name]
            apart = bool(run.node and pause.run.node) and run.node != pause.run.node
            if pause.failures and not apart:
                self.drop(pause)
                yield pause

    def succeeded(self, run: Run) -> None:
        """An operation succeeded: more of its group may be tried again."""
        group = run.driver, run.group
        if group in self._budgets and self._budgets[group].succeeded():
            del self._budgets[group]

    def budget_delay(self, run: Run) -> float:
        """Seconds that the retry budget would add to the delay of this operation."""
        budget = self._budgets.get((run.driver, run.group))
        return budget.delay if budget is not None else 0.0

    def close(self) -> None:
        """Drop all."""
        for pause in list(self._by_name.values()):
            self.drop(pause)
        for budget in self._budgets.values():
            budget.close()
        self._budgets.clear()

    def _delay_over(self, pause: Pause) -> None:
        if not pause.failures:
            self._resume(pause)
            return
        group = pause.run.driver, pause.run.group
        if group not in self._budgets:
            self._budgets[group] = RetryBudget(self._resume)
        self._budgets[group].add(pause)

    def _resume(self, pause: Pause) -> None:
        loop = asyncio.get_running_loop()
        # A timer may ring a clock tick early; refused then, the object would not be queued again.
        pause.until = min(pause.until, loop.time())
        pause.timer = loop.call_later(HOOK_FAILED.forget_after, self.drop, pause)
        loop.call_soon(pause.requeue)
