"""How fast what failed is tried again: a driver that is out of order is not stormed, however many objects wait for it."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from volplane.backoff import RETRY_BUDGET
from volplane.controller.clock import LoopTime
from volplane.operations.entries import Pause
from volplane.operations.limits import TokenBucket

__all__ = ["RetryPace"]


class RetryPace:
    """Retries of one driver's operations of one group (a storage class), once their back-offs have ended.

    So many a second, those that failed least often first. Each success allows two more, so that they double with every
    round once the driver works again. First tries, and operations that go on after `Again`, have nothing to do with it.
    """

    def __init__(self, resume: Callable[[Pause], None]) -> None:
        """resume: runs a pause's operation again; called in the loop, soon."""
        self._resume = resume
        self._now = LoopTime()
        self._bucket = TokenBucket(RETRY_BUDGET.rate, self._now(), burst=RETRY_BUDGET.burst)
        self._waiting: list[tuple[int, int, Pause]] = []
        self._added = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def delay(self) -> float:
        """Seconds that the last one waits, unless some succeed."""
        return len(self._waiting) / RETRY_BUDGET.rate

    def add(self, pause: Pause) -> None:
        """Resume it now or later; until then `pause.until` is about when."""
        self._added += 1
        heapq.heappush(self._waiting, (pause.failures, self._added, pause))
        pause.until = self._now() + self.delay
        self._let_go()

    def succeeded(self) -> bool:
        """An operation of the group did; whether there is nothing left to pace."""
        self._bucket.give(RETRY_BUDGET.per_success)
        self._let_go()
        return not self._waiting and self._bucket.full(self._now())

    def close(self) -> None:
        """Resume nothing more."""
        self._waiting.clear()
        self._stop_timer()

    def _let_go(self) -> None:
        self._stop_timer()
        now = self._now()
        while self._waiting:
            if self._waiting[0][2].dropped:
                heapq.heappop(self._waiting)
                continue
            if (wait := self._bucket.wait(now)) > 0:
                self._timer = asyncio.get_running_loop().call_later(wait, self._let_go)
                return
            self._bucket.take(now)
            self._resume(heapq.heappop(self._waiting)[2])

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
