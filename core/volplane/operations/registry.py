"""One operation at a time per asset, after the GoRoutineMap of Kubernetes (pkg/util/goroutinemap).

Handlers find the work that a `Run` names. `OneShots` are the operations that a person asked for: each runs once,
and its result is kept. Unlike those of objects they are not repeated after a failure: the user sees it and asks again.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from volplane._shared import TokenBucket
from volplane.controller import logs
from volplane.controller.actions import Run, operation_name
from volplane.controller.controller import Handler, Work
from volplane.errors import OperationError, OperationInProgress
from volplane.operations.operation import (
    RUNNING,
    UNLIMITED,
    Again,
    DriverLimits,
    Operation,
    OperationState,
    Pauses,
    Phase,
    Requeue,
    apart,
    retry_delay,
)

T = TypeVar("T")
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
        observe: Callable[[Run, float, BaseException | None], None] = lambda *_: None,
    ) -> None:
        """limits: per driver name; others get the defaults of `DriverLimits`.

        observe: called after every run, with the seconds from its start to the release of the asset, and its error:
        None for success and for `Again`.
        """
        self._limits = dict(limits or {})
        self._observe = observe
        self._handlers: dict[str, Handler] = {}
        self._operations: dict[str, Operation] = {}
        self._holders: dict[tuple[str, str], dict[str, Operation]] = {}
        self._pauses = Pauses()
        self._queues: dict[str, DriverQueue] = {}
        self._closed = False
        self._released = asyncio.Event()

    def register(self, verb: str, handler: Handler) -> None:
        """Use `handler` for this verb, which a decision may return. ValueError if it has one."""
        if verb in self._handlers:
            raise ValueError(f"verb {verb} has a handler already")
        self._handlers[verb] = handler

    def dispatch(self, run: Run, requeue: Requeue) -> None:
        """Start the operation with the work that its verb's handler finds. KeyError for a verb without a handler."""
        self.start(run, self._handlers[run.verb](run), requeue)

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
        # Two operations on one asset could undo or destroy each other's work.
        if (same := self._operations.get(name)) is not None:
            same.requeue = requeue
            raise OperationInProgress(f"{name} is {same.phase} already")
        holders = self._holders.get((run.driver, run.asset), {})
        busy = [operation for held_node, operation in holders.items() if not apart(run.node, held_node)]
        for operation in busy:
            operation.waiters[name] = requeue
        if busy:
            raise OperationInProgress(f"{name} waits for {busy[0].name}, which is {busy[0].phase}")
        failures = self._pauses.end(name, requeue)
        operation = Operation(run, name, work, requeue, asyncio.get_running_loop().time(), failures)
        operation.context.run(logs.bind, operation=name, driver=run.driver)
        operation.context.run(RUNNING.set, operation)
        self._operations[name] = operation
        self._holders.setdefault((run.driver, run.asset), {})[run.node] = operation
        if run.driver not in self._queues:
            self._queues[run.driver] = DriverQueue(self.limits(run.driver), self._begin)
        self._queues[run.driver].add(operation)

    def forget(self, verb: str, key: str, uid: str) -> None:
        """Drop the delay of the operation with these fields: what it failed on has changed. Queues nothing."""
        name = operation_name(verb, key, uid)
        if (pause := self._pauses.by_name.get(name)) is not None:
            self._pauses.drop(pause)
        if name in self._operations:
            self._operations[name].failures = 0

    def limits(self, driver: str) -> DriverLimits:
        """Return the limits of a driver; for "" (no driver), none."""
        return self._limits.get(driver, DriverLimits()) if driver else UNLIMITED

    def next_delay(self, run: Run, error: BaseException) -> float:
        """Return the seconds until the next try of the operation if it failed with `error` now; for events."""
        name = run.name
        known = self._operations.get(name) or self._pauses.by_name.get(name)
        if known is None:
            return retry_delay(error, 1)
        budget = self._pauses.budgets.get((known.run.driver, known.run.group))
        return retry_delay(error, known.failures + 1) + (budget.delay if budget is not None else 0.0)

    def attempt(self) -> int:
        """Return the number of the try that the caller is part of: one more than have failed in a row."""
        operation = RUNNING.get(None)
        return operation.failures + 1 if operation is not None else 1

    def snapshot(self) -> tuple[OperationState, ...]:
        """Return all operations that are queued, running, overrun or waiting for the next try, oldest first."""
        started = self._operations.values()
        states = [OperationState.of(o.run, o.error, phase=o.phase, since=o.since, failures=o.failures) for o in started]
        for pause in self._pauses.waiting():
            known = {"since": pause.since, "next_try": pause.until, "failures": pause.failures}
            states.append(OperationState.of(pause.run, pause.error, phase=Phase.WAITING, **known))
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
        for pause in list(self._pauses.by_name.values()):
            self._pauses.drop(pause)
        for queue in self._queues.values():
            for operation in queue.drop():
                self._remove(operation)
        try:
            async with asyncio.timeout(timeout):
                while self._operations:
                    self._released.clear()
                    await self._released.wait()
        except TimeoutError:
            left = list(self._operations.values())
            tasks = [o.task for o in left if o.task is not None]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=CANCEL_GRACE)
            return tuple(sorted(o.name for o in left))
        return ()

    def _begin(self, operation: Operation) -> None:
        loop = asyncio.get_running_loop()
        operation.phase = Phase.RUNNING
        operation.since = loop.time()
        operation.task = loop.create_task(operation.work(), name=operation.name, context=operation.context)
        ended = functools.partial(self._work_ended, operation)
        operation.task.add_done_callback(ended, context=operation.context)

    def _work_ended(self, operation: Operation, task: asyncio.Task[Any]) -> None:
        operation.error = asyncio.CancelledError("cancelled") if task.cancelled() else task.exception()
        operation.task = None  # The error's traceback leads back here: a cycle that would stay in memory for long.
        pending = {f for f in operation.held if not f.done()}
        if not pending:
            self._release(operation)
            return
        # A hook in a thread may still change the asset: another operation would work on it at the same time.
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
        self._schedule(operation)
        failure, run = None if isinstance(operation.error, Again) else operation.error, operation.run
        # What others on the asset have failed on may be otherwise now. After a failure it is not: two operations that
        # fail would wake each other without end.
        for other in sorted(self._pauses.by_asset.get((run.driver, run.asset), ())) if failure is None else ():
            pause = self._pauses.by_name[other]
            if pause.failures and not apart(run.node, pause.run.node):
                self._pauses.drop(pause)
                operation.waiters[other] = pause.requeue
        seconds = loop.time() - operation.since
        operation.error = None
        for requeue in operation.waiters.values():
            loop.call_soon(requeue)
        self._released.set()
        self._queues[run.driver].ended()
        self._observe(run, seconds, failure)

    def _schedule(self, operation: Operation) -> None:
        error = operation.error
        if self._closed:
            return
        if error is None:
            group, budgets = (operation.run.driver, operation.run.group), self._pauses.budgets
            if group in budgets and budgets[group].succeeded():
                del budgets[group]
            asyncio.get_running_loop().call_soon(operation.requeue)
            return
        if isinstance(error, Again):
            self._pauses.add(operation, max(error.after, 0.0), 0, None)
            return
        failures = operation.failures + 1
        delay = retry_delay(error, failures)
        text = str(error) or type(error).__name__
        # Only the first of a row is logged as info: 10,000 objects of a driver that is down must not flood the log.
        level = logging.INFO if failures == 1 else logging.DEBUG
        log.log(level, "%s failed (%d in a row), next try in %.1f s: %s", operation.name, failures, delay, text)
        log.debug("%s failed", operation.name, exc_info=error)
        self._pauses.add(operation, delay, failures, text)

    def _remove(self, operation: Operation) -> None:
        del self._operations[operation.name]
        run = operation.run
        holders = self._holders[run.driver, run.asset]
        del holders[run.node]
        if not holders:
            del self._holders[run.driver, run.asset]


class DriverQueue:
    """Operations of one driver that wait for its limits, independent of other drivers.

    Verbs take turns, and within a verb the groups, storage classes: a hundred detaches that wait delay an attach, and
    ten thousand claims of one class those of another, by no more than the one that is about to begin.
    """

    def __init__(self, limits: DriverLimits, begin: Callable[[Operation], None]) -> None:
        """begin: starts an operation, whose end is reported by `ended`."""
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._begin = begin
        self._bucket = None if limits.rate is None else TokenBucket(limits.rate, self._loop.time())
        self._waiting: OrderedDict[str, OrderedDict[str, deque[Operation]]] = OrderedDict()
        """By verb and group, those whose turn it is first; none is empty."""
        self._running = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, operation: Operation) -> None:
        groups = self._waiting.setdefault(operation.run.verb, OrderedDict())
        groups.setdefault(operation.run.group, deque()).append(operation)
        self._pump()

    def drop(self) -> list[Operation]:
        """Forget the operations that have not started, and return them."""
        groups = [each for same in self._waiting.values() for each in same.values()]
        dropped = [operation for same in groups for operation in same]
        self._waiting.clear()
        return dropped

    def ended(self) -> None:
        """Start others, since one that was started is over."""
        self._running -= 1
        self._pump()

    def _pump(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting and self._running < self._limits.concurrency:
            if self._bucket is not None:
                now = self._loop.time()
                if (wait := self._bucket.wait(now)) > 0:
                    self._timer = self._loop.call_later(wait, self._pump)
                    return
                self._bucket.take(now)
            self._running += 1
            verb, groups = self._waiting.popitem(last=False)
            group, same = groups.popitem(last=False)
            operation = same.popleft()
            if same:
                groups[group] = same
            if groups:
                self._waiting[verb] = groups
            self._begin(operation)


class OneShotState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    """Not started: another operation holds the asset, or the delay after a failure is not over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneShotStatus:
    state: OneShotState
    detail: str = ""
    """What was done, or why not; "" while it runs."""


class OneShots(Generic[T]):
    """Runs the one-shot operations of one verb, each for an item that a person asked for. Belongs to one loop."""

    def __init__(
        self, registry: OperationRegistry, verb: str, perform: Callable[[Run, T], Awaitable[str | None]]
    ) -> None:
        """perform: returns what was done, as a sentence; `Again` goes on with it after a pause."""
        self._registry = registry
        self._perform = perform
        self._items: dict[str, T] = {}
        self.statuses: dict[str, OneShotStatus] = {}
        """By name of the operation, those started last and those that run."""
        registry.register(verb, lambda run: functools.partial(self._recorded, run))

    def start(self, asked: Iterable[tuple[Run, T]]) -> None:
        """Start them all, except those that run already. Earlier ones that have ended are forgotten."""
        self.statuses = {name: each for name, each in self.statuses.items() if each.state is OneShotState.RUNNING}
        self._items = {name: self._items[name] for name in self.statuses}
        for run, item in asked:
            if run.name not in self.statuses:
                self._items[run.name] = item
                self.statuses[run.name] = OneShotStatus(state=OneShotState.RUNNING)
                self._begin(run)

    def listed(self) -> list[tuple[T, OneShotStatus]]:
        """Return the items of those started last and of those that run, with the status of each."""
        return [(self._items[name], status) for name, status in self.statuses.items()]

    def _begin(self, run: Run) -> None:
        """Begin, or after `Again` go on with, an operation that has not ended."""
        status = self.statuses.get(run.name)
        if status is None or status.state is not OneShotState.RUNNING:
            return
        try:
            self._registry.dispatch(run, functools.partial(self._begin, run))
        except OperationError as error:
            self.statuses[run.name] = OneShotStatus(state=OneShotState.REFUSED, detail=str(error))

    async def _recorded(self, run: Run) -> None:
        try:
            done = await self._perform(run, self._items[run.name])
        except Again:
            raise
        except Exception as error:
            text = str(error) or type(error).__name__
            self.statuses[run.name] = OneShotStatus(state=OneShotState.FAILED, detail=text)
            raise
        self.statuses[run.name] = OneShotStatus(state=OneShotState.DONE, detail=done or "")
