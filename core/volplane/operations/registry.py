"""One operation at a time per asset, after the GoRoutineMap of Kubernetes (pkg/util/goroutinemap)."""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from volplane._delays import HOOK_FAILED, HOOK_FAILED_SLOW, RETRY_BUDGET
from volplane._token_bucket import TokenBucket
from volplane.controller import logs
from volplane.controller.actions import Run, operation_name
from volplane.controller.clock import LoopTime
from volplane.errors import ApiError, BackendError, BackoffError, OperationError, OperationInProgress, RetryPolicy
from volplane.operations.operation import (
    RUNNING,
    UNLIMITED,
    Again,
    DriverLimits,
    Ended,
    Operation,
    OperationState,
    Pause,
    Phase,
    Requeue,
    Work,
    limits_of,
)

__all__ = ["OperationRegistry", "RetryBudget", "retry_delay"]


def retry_delay(error: BaseException, failures: int) -> float:
    """Return the seconds until an operation runs again after its `failures`-th failure in a row, counted from 1.

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
        """Seconds until the last pause is resumed, unless operations succeed meanwhile."""
        return len(self._waiting) / RETRY_BUDGET.rate

    def add(self, pause: Pause) -> None:
        """Resume the pause as soon as the budget allows; until then `pause.until` is an estimate of when."""
        heapq.heappush(self._waiting, (pause.failures, next(self._order), pause))
        pause.until = self._now() + self.delay
        self._resume_due()

    def succeeded(self) -> bool:
        """Add to the budget after a success; return whether it is full again, which it is only if nothing waits."""
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


log = logging.getLogger(__name__)

CANCEL_GRACE: Final = 1.0


class OperationRegistry:
    """Runs operations within the limits of their driver, never two on one asset, and queues their objects again.

    Belongs to one event loop; every method is called in it. `requeue` callbacks are called in the loop, soon, never
    inside `start`.
    """

    def __init__(
        self,
        limits: Mapping[str, DriverLimits] | None = None,
        *,
        observe: Callable[[Ended], None] = lambda _ended: None,
    ) -> None:
        """limits: per driver name; others get the defaults of `DriverLimits`. observe: called after every run."""
        self._limits = dict(limits or {})
        self._observe = observe
        self._operations: dict[str, Operation] = {}
        self._holders: dict[tuple[str, str], dict[str, Operation]] = {}
        self._pauses = Pauses()
        self._queues: dict[str, DriverQueue] = {}
        self._closed = False
        self._released = asyncio.Event()

    def start(self, run: Run, work: Work, requeue: Requeue) -> None:
        """Call `work` as soon as the driver's limits allow.

        The asset is held from now until every hook that it calls has returned.
        Operations with different nodes do not exclude each other; one without a node excludes all of its asset.
        When the work succeeds, `requeue` is called. What it raises is its failure: `requeue` is called after the delay
        (see `retry_delay`). `Again` is no failure: `requeue` is called after its seconds.
        Raises OperationInProgress while another operation holds the asset (`requeue` is called when that one ends),
        BackoffError during the delay (`requeue` is called at its end), OperationError when shutting down.
        """
        name = run.name
        if self._closed:
            raise OperationError(f"{name} was not started: driver {run.driver} is shutting down")
        self._refuse_busy(run, name, requeue)
        failures = self._pauses.end(name, requeue)
        operation = Operation(run, name, work, requeue, asyncio.get_running_loop().time(), failures)
        operation.context.run(logs.bind, operation=name, driver=run.driver)
        operation.context.run(RUNNING.set, operation)
        for other in self._pauses.drop_others(run):
            operation.waiters[other.name] = other.requeue
        self._operations[name] = operation
        self._holders.setdefault((run.driver, run.asset), {})[run.node] = operation
        queue = self._queues.get(run.driver)
        if queue is None:
            queue = self._queues[run.driver] = DriverQueue(self.limits(run.driver), self._begin)
        queue.add(operation)

    def forget(self, verb: str, key: str, uid: str) -> None:
        """Drop the delay of the operation with these fields: what it failed on has changed. Queues nothing."""
        name = operation_name(verb, key, uid)
        pause = self._pauses.get(name)
        if pause is not None:
            self._pauses.drop(pause)
        if name in self._operations:
            self._operations[name].failures = 0

    def limits(self, driver: str) -> DriverLimits:
        """Return the limits of a driver; for "" (no driver), none."""
        return limits_of(driver, self._limits) if driver else UNLIMITED

    def next_delay(self, run: Run, error: BaseException) -> float:
        """Return the seconds until the next try of the operation if it failed with `error` now; for events."""
        name = run.name
        known = self._operations.get(name) or self._pauses.get(name)
        if known is None:
            return retry_delay(error, 1)
        return retry_delay(error, known.failures + 1) + self._pauses.budget_delay(known.run)

    def attempt(self) -> int:
        """Return the number of the try that the caller is part of: one more than have failed in a row."""
        operation = RUNNING.get(None)
        return operation.failures + 1 if operation is not None else 1

    def snapshot(self) -> tuple[OperationState, ...]:
        """Return all operations that are queued, running, overrun or waiting for the next try, oldest first."""
        states = [operation.state() for operation in self._operations.values()]
        states += [pause.state() for pause in self._pauses.waiting()]
        return tuple(sorted(states, key=lambda s: (s.since, s.name)))

    def counts(self) -> Counter[tuple[str, str, str]]:
        """Count operations by driver, verb and phase; costs less than a snapshot."""
        counted = Counter((o.run.driver, o.run.verb, o.phase.value) for o in self._operations.values())
        counted.update((p.run.driver, p.run.verb, Phase.WAITING.value) for p in self._pauses.waiting())
        return counted

    async def drain(self, timeout: float) -> tuple[str, ...]:  # noqa: ASYNC109 - not an error
        """Refuse new operations, drop queued ones, wait for the rest at most `timeout` seconds.

        Returns the names of those that still ran then; their tasks are cancelled, but hooks in threads may go on.
        """
        self._closed = True
        self._pauses.close()
        for queue in self._queues.values():
            for operation in queue.drop():
                self._remove(operation)
        try:
            async with asyncio.timeout(timeout):
                while self._operations:
                    self._released.clear()
                    await self._released.wait()
        except TimeoutError:
            return await self._cancel()
        return ()

    def _refuse_busy(self, run: Run, name: str, requeue: Requeue) -> None:
        same = self._operations.get(name)
        if same is not None:
            same.requeue = requeue
            raise OperationInProgress(f"{name} is {same.phase} already")
        holders = self._holders.get((run.driver, run.asset), {})
        busy = [operation for held_node, operation in holders.items() if not _apart(run.node, held_node)]
        for operation in busy:
            operation.waiters[name] = requeue
        if busy:
            raise OperationInProgress(f"{name} waits for {busy[0].name}, which is {busy[0].phase}")

    def _begin(self, operation: Operation) -> None:
        loop = asyncio.get_running_loop()
        operation.phase = Phase.RUNNING
        operation.since = loop.time()
        operation.task = loop.create_task(_drive(operation), name=operation.name, context=operation.context)
        ended = functools.partial(self._work_ended, operation)
        operation.task.add_done_callback(ended, context=operation.context)

    def _work_ended(self, operation: Operation, task: asyncio.Task[None]) -> None:
        operation.error = asyncio.CancelledError("cancelled") if task.cancelled() else task.exception()
        operation.task = None  # The error's traceback leads back here: a cycle that would stay in memory for long.
        pending = {f for f in operation.held if not f.done()}
        if not pending:
            self._release(operation)
            return
        operation.phase = Phase.OVERRUN
        log.warning("%s keeps its asset: a hook it called has not returned", operation.name)

        def returned(call: asyncio.Future[None]) -> None:
            pending.discard(call)
            if not pending:
                self._release(operation)

        for call in pending.copy():
            call.add_done_callback(returned)

    def _release(self, operation: Operation) -> None:
        loop = asyncio.get_running_loop()
        self._remove(operation)
        next_try = self._schedule(operation)
        failure = None if isinstance(operation.error, Again) else operation.error
        ended = Ended(run=operation.run, seconds=loop.time() - operation.since, error=failure, next_try=next_try)
        operation.error = None
        for requeue in operation.waiters.values():
            loop.call_soon(requeue)
        self._released.set()
        self._queues[operation.run.driver].ended()
        self._observe(ended)

    def _schedule(self, operation: Operation) -> float | None:
        """Queue the object again, now or when its delay is over; return the loop time of the end of the delay."""
        error = operation.error
        if self._closed:
            return None
        if error is None:
            self._pauses.succeeded(operation.run)
            asyncio.get_running_loop().call_soon(operation.requeue)
            return None
        if isinstance(error, Again):
            return self._pauses.add(operation, max(error.after, 0.0), 0, None)
        failures = operation.failures + 1
        delay = retry_delay(error, failures)
        text = str(error) or type(error).__name__
        # Only the first of a row is logged as info: 10,000 objects of a driver that is down must not flood the log.
        level = logging.INFO if failures == 1 else logging.DEBUG
        log.log(level, "%s failed (%d in a row), next try in %.1f s: %s", operation.name, failures, delay, text)
        log.debug("%s failed", operation.name, exc_info=error)
        return self._pauses.add(operation, delay, failures, text)

    def _remove(self, operation: Operation) -> None:
        del self._operations[operation.name]
        run = operation.run
        holders = self._holders[run.driver, run.asset]
        del holders[run.node]
        if not holders:
            del self._holders[run.driver, run.asset]

    async def _cancel(self) -> tuple[str, ...]:
        left = list(self._operations.values())
        tasks = [o.task for o in left if o.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_GRACE)
        return tuple(sorted(o.name for o in left))


def _apart(node: str, other: str) -> bool:
    """Return whether operations with these nodes do not exclude each other. "" stands for the whole asset."""
    return node != other and bool(node) and bool(other)


async def _drive(operation: Operation) -> None:
    await operation.work()


class DriverQueue:
    """Operations of one driver that wait for its limits, independent of other drivers.

    Verbs take turns, and within a verb it is first come, first served: a hundred detaches that wait delay an attach by
    no more than the one that is about to begin.
    """

    def __init__(self, limits: DriverLimits, begin: Callable[[Operation], None]) -> None:
        """begin: starts an operation, whose end is reported by `ended`."""
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._begin = begin
        self._bucket = None if limits.rate is None else TokenBucket(limits.rate, self._loop.time())
        self._waiting: OrderedDict[str, deque[Operation]] = OrderedDict()
        """By verb, the one whose turn it is first; none is empty."""
        self._running = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, operation: Operation) -> None:
        """Begin the operation now or later."""
        self._waiting.setdefault(operation.run.verb, deque()).append(operation)
        self._pump()

    def drop(self) -> list[Operation]:
        """Forget the operations that have not started, and return them."""
        dropped = [operation for same in self._waiting.values() for operation in same]
        self._waiting.clear()
        return dropped

    def ended(self) -> None:
        """Start others, since one that was started is over."""
        self._running -= 1
        self._pump()

    def _pump(self) -> None:
        while self._waiting and self._running < self._limits.concurrency:
            if self._bucket is not None:
                now = self._loop.time()
                if (wait := self._bucket.wait(now)) > 0:
                    if self._timer is None:
                        self._timer = self._loop.call_later(wait, self._refilled)
                    return
                self._bucket.take(now)
            self._running += 1
            verb, same = self._waiting.popitem(last=False)
            operation = same.popleft()
            if same:
                self._waiting[verb] = same
            self._begin(operation)

    def _refilled(self) -> None:
        self._timer = None
        self._pump()


class Pauses:
    """All operations between two runs, by name. Queues their objects again when their delay is over."""

    def __init__(self) -> None:
        self._by_name: dict[str, Pause] = {}
        self._by_asset: dict[tuple[str, str], set[str]] = {}
        self._budgets: dict[tuple[str, str], RetryBudget] = {}

    def get(self, name: str) -> Pause | None:
        return self._by_name.get(name)

    def waiting(self) -> Iterator[Pause]:
        """Return the pauses that are not over."""
        now = asyncio.get_running_loop().time()
        return (pause for pause in self._by_name.values() if now < pause.until)

    def add(self, operation: Operation, delay: float, failures: int, error: str | None) -> float:
        """Queue the object of `operation` again after `delay` seconds; return the loop time of that."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        run, name = operation.run, operation.name
        pause = Pause(run, name, now, now + delay, failures, error, operation.requeue)
        pause.timer = loop.call_at(pause.until, self._delay_over, pause)
        self._by_name[name] = pause
        self._by_asset.setdefault((run.driver, run.asset), set()).add(name)
        return pause.until

    def end(self, name: str, requeue: Requeue) -> int:
        """End the pause of this operation, which is about to run; return its failures in a row.

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
            if pause.failures and not _apart(run.node, pause.run.node):
                self.drop(pause)
                yield pause

    def succeeded(self, run: Run) -> None:
        """Let more operations of the group be tried again, since one succeeded."""
        group = run.driver, run.group
        if group in self._budgets and self._budgets[group].succeeded():
            del self._budgets[group]

    def budget_delay(self, run: Run) -> float:
        """Return the seconds that the retry budget would add to the delay of this operation."""
        budget = self._budgets.get((run.driver, run.group))
        return budget.delay if budget is not None else 0.0

    def close(self) -> None:
        """Drop all."""
        for pause in list(self._by_name.values()):
            self.drop(pause)

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
