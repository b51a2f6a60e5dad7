"""Virtual time: an event loop that never waits, so that hours of retries pass in milliseconds, always the same way.

`run(main())` is `asyncio.run` on such a loop. When nothing is ready, its clock jumps to the next timer. When there is
no timer either, nothing can ever happen again: that is `Deadlock`, with what every task waits for. With a seed, tasks
that are ready together run in a random order that the seed decides.

Worker threads may be used: while calls of `run_in_executor` are out, the loop really waits up to `thread_patience`
seconds for them before time jumps. Runs with threads are not deterministic. Sockets see timeouts pass in an instant:
keep to transports in the process.
"""

# ruff: noqa: SLF001 -- an event loop looks into its handles

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextvars import Context
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

__all__ = ["LIMIT", "Deadlock", "LoopClock", "OutOfTime", "VirtualTimeLoop", "now", "run"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT: Final = 7 * 86400.0
"""Virtual seconds after which a run counts as endless."""
_RESOLUTION: Final = 1e-6
_LAST_WAIT: Final = 10.0
_OWN_SOCKETS: Final = 1
"""By which threads wake the loop: without threads, and other sockets, there is nothing to be polled."""


class Deadlock(RuntimeError):
    """No task is ready and no timer is set, so nothing can happen any more. The message names the tasks."""


class OutOfTime(RuntimeError):
    """More virtual time passed than the run is allowed."""


def run(main: Coroutine[Any, Any, T], *, seed: int | None = None, limit: float = LIMIT) -> T:
    """Run `main` in virtual time and return its result.

    seed: shuffle what is ready together. limit: virtual seconds until OutOfTime. Raises Deadlock.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(seed=seed, limit=limit)) as runner:
        return runner.run(main)


def now() -> datetime:
    """Return the wall time that belongs to the running loop's time: loop second 0 is 2026-01-01T00:00:00Z."""
    return _EPOCH + timedelta(seconds=asyncio.get_running_loop().time())


class LoopClock:
    """The clock of controllers on the running loop. offset: seconds by which wall time is off; loop time never is."""

    def __init__(self) -> None:
        self.offset = 0.0

    def now(self) -> datetime:
        """Wall time."""
        return now() + timedelta(seconds=self.offset)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` starts at 0 and moves only by jumping to the next timer.

    seed: shuffle tasks that are ready together; None keeps asyncio's order. limit: virtual seconds until OutOfTime.
    """

    _ready: deque[Any]
    _scheduled: list[tuple[float, int, Any]]
    """Timers by when they are due, those of one moment in the order they were set."""
    _stopping: bool
    _selector: _JumpingSelector
    _signal_handlers: dict[int, asyncio.Handle]
    _process_events: Callable[[Any], None]
    _check_closed: Callable[[], None]

    def __init__(self, *, seed: int | None = None, limit: float = math.inf, thread_patience: float = 0.05) -> None:
        self._virtual = 0.0
        self._limit = limit
        self._random = None if seed is None else Random(seed)  # noqa: S311 -- schedules, not secrets
        self._threads = 0
        self._thread_patience = thread_patience
        self._timers = itertools.count()
        super().__init__(_JumpingSelector(self._wait))
        self._clock_resolution = _RESOLUTION

    def time(self) -> float:
        return self._virtual

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> asyncio.Future[T]:
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self._threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    async def shutdown_default_executor(self, *args: Any, **options: Any) -> None:
        self._threads += 1
        try:
            await super().shutdown_default_executor(*args, **options)
        finally:
            self._threads -= 1

    def _thread_ended(self, _: asyncio.Future[Any]) -> None:
        self._threads -= 1

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._check_closed()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._set(timer)
        return timer

    def _set(self, timer: asyncio.TimerHandle) -> None:
        heapq.heappush(self._scheduled, (timer.when(), next(self._timers), timer))

    def _run_once(self) -> None:
        """Make one turn, as asyncio's loop does in twice the time."""
        ready, scheduled = self._ready, self._scheduled
        if len(ready) > 1 and self._random is not None:
            self._shuffle(self._random)
        while scheduled and scheduled[0][2]._cancelled:
            heapq.heappop(scheduled)
        if not ready and not self._stopping:
            timeout = max(0.0, scheduled[0][0] - self._virtual) if scheduled else None
            self._process_events(self._selector.select(timeout))
        elif self._polls():
            self._process_events(self._selector.select(0))
        end = self._virtual + self._clock_resolution
        while scheduled and scheduled[0][0] < end:
            ready.append(heapq.heappop(scheduled)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()
        handle = None  # The traceback of a failed task holds this frame, and the handle would hold its task.

    def _shuffle(self, random: Random) -> None:
        """Shuffle the steps of tasks; other callbacks (futures, sockets) keep their places."""
        ready = self._ready
        places = [place for place, handle in enumerate(ready) if _is_task_step(handle)]
        if len(places) < 2:
            return
        handles = [ready[place] for place in places]
        random.shuffle(handles)
        for place, handle in zip(places, handles, strict=True):
            ready[place] = handle

    def _polls(self) -> bool:
        """Tell whether something may come from outside: of a thread, a socket or a signal."""
        return bool(self._threads or self._signal_handlers) or self._selector.sockets > _OWN_SOCKETS

    def _wait(self, timeout: float | None, poll: Callable[[float | None], _Ready]) -> _Ready:
        """Used by the selector instead of waiting: poll real events, then advance the time."""
        ready = poll(0) if timeout is None or self._polls() else []
        if ready or timeout == 0:
            return ready
        if self._threads:
            ready = poll(_LAST_WAIT if timeout is None else self._thread_patience)
            if ready:
                return ready
        if timeout is None:
            raise Deadlock(self._describe())
        self._virtual = max(self._virtual + timeout, math.nextafter(self._virtual, math.inf))
        if self._virtual > self._limit:
            raise OutOfTime(f"{self._limit:g} virtual seconds are over; {self._describe()}")
        return ready

    def _describe(self) -> str:
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        lines = [f"at {self._virtual:.3f} s {len(tasks)} tasks wait:"]
        lines += [f"  {task.get_name()}: {' > '.join(_awaited(task.get_coro())) or 'nowhere'}" for task in tasks]
        return "\n".join(lines)


_Ready = list[tuple[selectors.SelectorKey, int]]


class _JumpingSelector(selectors.BaseSelector):
    """A selector whose `select` calls the given function instead of waiting."""

    def __init__(self, wait: Callable[[float | None, Callable[[float | None], _Ready]], _Ready]) -> None:
        self._real = selectors.DefaultSelector()
        self._wait = wait
        self.sockets = 0
        """How many are registered."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self.sockets += 1
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        self.sockets -= 1
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> _Ready:
        return self._wait(timeout, self._real.select)

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()


def _awaited(awaitable: Any) -> Iterator[str]:
    """Return the line of a suspended coroutine, and of every coroutine that it awaits."""
    while (frame := getattr(awaitable, "cr_frame", None)) is not None:
        yield f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
        awaitable = awaitable.cr_await


def _is_task_step(handle: asyncio.Handle) -> bool:
    callback = getattr(handle, "_callback", None)
    return isinstance(getattr(callback, "__self__", None), asyncio.Task)
