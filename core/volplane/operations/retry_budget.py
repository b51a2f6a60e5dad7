"""How late a failed operation is tried again, and how many of those that failed at once.

The delays are those of `volplane._delays`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

from volplane._delays import HOOK_FAILED, HOOK_FAILED_SLOW, RETRY_BUDGET
from volplane._token_bucket import TokenBucket
from volplane.controller.clock import LoopTime
from volplane.errors import ApiError, BackendError, RetryPolicy
from volplane.operations.operation import Pause

__all__ = ["RetryBudget", "retry_delay"]


def retry_delay(error: BaseException, failures: int) -> float:
    """Seconds until an operation runs again after its `failures`-th failure in a row, counted from 1.

    The rows are `HOOK_FAILED_SLOW` for errors of the slow policy and `HOOK_FAILED` for all others.
    """
    slow = isinstance(error, BackendError) and error.retry is RetryPolicy.SLOW
    asked = error.retry_after if isinstance(error, BackendError | ApiError) else None
    return (HOOK_FAILED_SLOW if slow else HOOK_FAILED).delay(failures, asked=asked)


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
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def delay(self) -> float:
        """Seconds that the last pause waits here, unless operations succeed meanwhile."""
        return len(self._waiting) / RETRY_BUDGET.rate

    def add(self, pause: Pause) -> None:
        """Resume the pause as soon as the budget allows; until then `pause.until` is an estimate of when."""
        heapq.heappush(self._waiting, (pause.failures, next(self._order), pause))
        pause.until = self._now() + self.delay
        self._resume_due()

    def succeeded(self) -> bool:
        """An operation of the group succeeded; whether the budget is full again, which it is only if nothing waits."""
        self._bucket.give(RETRY_BUDGET.per_success)
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
