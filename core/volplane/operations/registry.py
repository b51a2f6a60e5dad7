"""The operation registry: Kubernetes' GoRoutineMap, with exclusion by asset and limits by driver."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from volplane.backoff import HOOK_FAILED
from volplane.controller import logs
from volplane.controller.actions import Run, operation_name
from volplane.errors import BackoffError, OperationError, OperationInProgress
from volplane.operations.entries import RUNNING, Lane, Operation, Pause, Requeue, Work
from volplane.operations.limits import UNLIMITED, DriverLimits, TokenBucket, retry_delay
from volplane.operations.pacing import RetryPace
from volplane.operations.states import Again, Ended, OperationState, Phase

__all__ = ["OperationRegistry"]

log = logging.getLogger(__name__)

CANCEL_GRACE: Final = 1.0


class OperationRegistry:
    """Runs operations, never two on one asset; keeps count of their failures; queues their objects again.

    Belongs to one event loop; every method is called in it. `requeue` callbacks run in the loop, soon, never inside `start`.
    """

    def __init__(
        self,
        limits: Mapping[str, DriverLimits] | None = None,
        *,
        observe: Callable[[Ended], None] = lambda _ended: None,
    ) -> None:
        """limits: per driver name; others get the defaults of `DriverLimits`. observe: told of every run that is over."""
        self._limits = dict(limits or {})
        self._observe = observe
        self._operations: dict[str, Operation] = {}
        self._holders: dict[tuple[str, str], dict[str, Operation]] = {}
        self._pauses: dict[str, Pause] = {}
        self._paused: dict[tuple[str, str], set[str]] = {}
        self._lanes: dict[str, Lane] = {}
        self._paces: dict[tuple[str, str], RetryPace] = {}
        self._closed = False
        self._released = asyncio.Event()

    def start(
        self,
        run: Run,
        work: Work,
        requeue: Requeue,
    ) -> None:
        """Call `work` as soon as the driver's limits allow; the asset is held from now until every hook it called has returned.

        Operations with different nodes do not exclude each other; one without a node excludes all of its asset.
        When the work succeeds, `requeue` is called. What it raises is its failure: `requeue` is called when the back-off
        ends (see `retry_delay`). `Again` is no failure: `requeue` is called after its seconds.
        Raises OperationInProgress while another operation holds the asset (`requeue` is called when that one ends),
        BackoffError during back-off (`requeue` is called at its end), OperationError when shutting down.
        """
        name = run.name
        if self._closed:
            raise OperationError(f"{name} was not started: driver {run.driver} is shutting down")
        self._refuse_busy(run, name, requeue)
        now = asyncio.get_running_loop().time()
        failures = self._end_pause(name, requeue, now)
        operation = Operation(run, name, work, requeue, now, failures)
        operation.context.run(logs.bind, operation=name, driver=run.driver)
        operation.context.run(RUNNING.set, operation)
        self._reset_others(operation)
        self._operations[name] = operation
        self._holders.setdefault((run.driver, run.asset), {})[run.node] = operation
        lane = self._lane(run.driver, now)
        lane.queue.append(operation)
        self._pump(lane)

    def forget(self, verb: str, key: str, uid: str) -> None:
        """Drop the back-off of the operation with these fields: what it failed on has changed. Queues nothing."""
        name = operation_name(verb, key, uid)
        pause = self._pauses.get(name)
        if pause is not None:
            self._drop(pause)
        if name in self._operations:
            self._operations[name].failures = 0

    def limits(self, driver: str) -> DriverLimits:
        """Those of the driver; "" (no driver) has none."""
        return (self._limits.get(driver) or DriverLimits()) if driver else UNLIMITED

    def next_delay(self, run: Run, error: BaseException) -> float:
        """Seconds after which the operation would be tried again if it failed with `error` now; for events."""
        name = run.name
        known = self._operations.get(name) or self._pauses.get(name)
        if known is None:
            return retry_delay(error, 1)
        pace = self._paces.get((known.run.driver, known.run.group))
        return retry_delay(error, known.failures + 1) + (pace.delay if pace is not None else 0.0)

    def attempt(self) -> int:
        """Which try of the operation it is that the caller is part of: one more than have failed in a row."""
        operation = RUNNING.get(None)
        return operation.failures + 1 if operation is not None else 1

    def snapshot(self) -> tuple[OperationState, ...]:
        """Everything queued, running, overrun or waiting for its next try, oldest first."""
        now = asyncio.get_running_loop().time()
        states = [o.state() for o in self._operations.values()]
        states += [p.state() for p in self._pauses.values() if now < p.until]
        return tuple(sorted(states, key=lambda s: (s.since, s.name)))

    def counts(self) -> Counter[tuple[str, str]]:
        """How many there are by driver and phase; costs less than a snapshot."""
        now = asyncio.get_running_loop().time()
        counted = Counter((o.run.driver, o.phase.value) for o in self._operations.values())
        counted.update((p.run.driver, Phase.WAITING.value) for p in self._pauses.values() if now < p.until)
        return counted

    async def drain(self, timeout: float) -> tuple[str, ...]:  # noqa: ASYNC109 - not an error
        """Refuse new operations, drop queued ones, wait for the rest at most `timeout` seconds.

        Returns the names of those that still ran then; their tasks are cancelled, but hooks in threads may go on.
        """
        self._closed = True
        for pause in list(self._pauses.values()):
            self._drop(pause)
        for pace in self._paces.values():
            pace.close()
        self._paces.clear()
        self._drop_queued()
        try:
            async with asyncio.timeout(timeout):
                while self._operations:
                    self._released.clear()
                    await self._released.wait()
        except TimeoutError:
            return await self._cancel()
        return ()

    # --- exclusion and back-off ---------------------------------------------------------------------------------

    def _conflicts(self, run: Run) -> Iterator[Operation]:
        for held_node, operation in self._holders.get((run.driver, run.asset), {}).items():
            if not run.node or not held_node or run.node == held_node:
                yield operation

    def _refuse_busy(self, run: Run, name: str, requeue: Requeue) -> None:
        same = self._operations.get(name)
        if same is not None:
            same.requeue = requeue
            raise OperationInProgress(f"{name} is {same.phase} already")
        busy = list(self._conflicts(run))
        for operation in busy:
            operation.waiters[name] = requeue
        if busy:
            raise OperationInProgress(f"{name} waits for {busy[0].name}, which is {busy[0].phase}")

    def _end_pause(self, name: str, requeue: Requeue, now: float) -> int:
        pause = self._pauses.get(name)
        if pause is None:
            return 0
        if now < pause.until:
            pause.requeue = requeue
            why = f"failed {pause.failures} times, last: {pause.error}" if pause.failures else "is in progress"
            raise BackoffError(f"{name} {why}; next try in {pause.until - now:.1f} s", until=pause.until)
        self._drop(pause)
        return pause.failures

    def _reset_others(self, operation: Operation) -> None:
        """A different operation on the asset changes the conditions: what failed before may be tried when it ends."""
        run = operation.run
        for name in sorted(self._paused.get((run.driver, run.asset), ())):
            pause = self._pauses[name]
            apart = bool(run.node and pause.run.node) and run.node != pause.run.node
            if pause.failures and not apart:
                self._drop(pause)
                operation.waiters[name] = pause.requeue

    def _pause(self, operation: Operation, delay: float, failures: int, error: str | None) -> float:
        loop = asyncio.get_running_loop()
        now = loop.time()
        o = operation
        pause = Pause(o.run, o.name, now, now + delay, failures, error, o.requeue)
        pause.timer = loop.call_at(pause.until, self._back_off_ended, pause)
        self._pauses[o.name] = pause
        self._paused.setdefault((o.run.driver, o.run.asset), set()).add(o.name)
        return pause.until

    def _back_off_ended(self, pause: Pause) -> None:
        if not pause.failures:
            self._resume_pause(pause)
            return
        group = pause.run.driver, pause.run.group
        if group not in self._paces:
            self._paces[group] = RetryPace(self._resume_pause)
        self._paces[group].add(pause)

    def _succeeded(self, operation: Operation) -> None:
        group = operation.run.driver, operation.run.group
        if group in self._paces and self._paces[group].succeeded():
            del self._paces[group]

    def _resume_pause(self, pause: Pause) -> None:
        loop = asyncio.get_running_loop()
        # A timer may ring a clock tick early; refused then, the object would not be queued again.
        pause.until = min(pause.until, loop.time())
        pause.timer = loop.call_later(HOOK_FAILED.forget_after, self._drop, pause)
        loop.call_soon(pause.requeue)

    def _drop(self, pause: Pause) -> None:
        if pause.timer is not None:
            pause.timer.cancel()
        pause.dropped = True
        del self._pauses[pause.name]
        names = self._paused[pause.run.driver, pause.run.asset]
        names.discard(pause.name)
        if not names:
            del self._paused[pause.run.driver, pause.run.asset]

    # --- running ------------------------------------------------------------------------------------------------

    def _lane(self, driver: str, now: float) -> Lane:
        lane = self._lanes.get(driver)
        if lane is None:
            limits = self.limits(driver)
            bucket = None if limits.rate is None else TokenBucket(limits.rate, now)
            lane = self._lanes[driver] = Lane(limits, bucket)
        return lane

    def _pump(self, lane: Lane) -> None:
        loop = asyncio.get_running_loop()
        while lane.queue and lane.running < lane.limits.concurrency:
            wait = lane.bucket.wait(loop.time()) if lane.bucket else 0.0
            if wait > 0:
                if lane.timer is None:
                    lane.timer = loop.call_later(wait, self._refilled, lane)
                return
            if lane.bucket:
                lane.bucket.take(loop.time())
            operation = lane.queue.popleft()
            lane.running += 1
            operation.phase = Phase.RUNNING
            operation.since = loop.time()
            operation.task = loop.create_task(self._drive(operation), name=operation.name, context=operation.context)
            ended = functools.partial(self._run_ended, operation)
            operation.task.add_done_callback(ended, context=operation.context)

    def _refilled(self, lane: Lane) -> None:
        lane.timer = None
        self._pump(lane)

    async def _drive(self, operation: Operation) -> None:
        await operation.work()

    def _run_ended(self, operation: Operation, task: asyncio.Task[None]) -> None:
        operation.error = asyncio.CancelledError("cancelled") if task.cancelled() else task.exception()
        operation.task = None  # Its error's traceback leads back here: garbage that nobody would free for long.
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
        lane = self._lanes[operation.run.driver]
        lane.running -= 1
        self._remove(operation)
        next_try = self._schedule(operation)
        failure = None if isinstance(operation.error, Again) else operation.error
        ended = Ended(
            run=operation.run,
            seconds=loop.time() - operation.since,
            error=failure,
            next_try=next_try,
        )
        operation.error = None
        for requeue in operation.waiters.values():
            loop.call_soon(requeue)
        self._released.set()
        self._pump(lane)
        self._observe(ended)

    def _schedule(self, operation: Operation) -> float | None:
        """Queue the object again: now, or when its back-off ends (the loop time of which is returned)."""
        loop = asyncio.get_running_loop()
        error = operation.error
        if self._closed:
            return None
        if error is None:
            self._succeeded(operation)
            loop.call_soon(operation.requeue)
            return None
        if isinstance(error, Again):
            return self._pause(operation, max(error.after, 0.0), 0, None)
        failures = operation.failures + 1
        delay = retry_delay(error, failures)
        text = str(error) or type(error).__name__
        # The first of a row is news, the others are what its event said; 10,000 objects of a dead driver may not flood.
        level = logging.INFO if failures == 1 else logging.DEBUG
        log.log(level, "%s failed (%d in a row), next try in %.1f s: %s", operation.name, failures, delay, text)
        log.debug("%s failed", operation.name, exc_info=error)
        return self._pause(operation, delay, failures, text)

    def _remove(self, operation: Operation) -> None:
        del self._operations[operation.name]
        run = operation.run
        holders = self._holders[run.driver, run.asset]
        del holders[run.node]
        if not holders:
            del self._holders[run.driver, run.asset]

    # --- shutting down and looking in ---------------------------------------------------------------------------

    def _drop_queued(self) -> None:
        for operation in list(self._operations.values()):
            if operation.phase is Phase.QUEUED:
                self._lanes[operation.run.driver].queue.remove(operation)
                self._remove(operation)

    async def _cancel(self) -> tuple[str, ...]:
        left = list(self._operations.values())
        tasks = [o.task for o in left if o.task is not None and not o.task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_GRACE)
        return tuple(sorted(o.name for o in left))
