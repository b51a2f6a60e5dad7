"""Runs blocking hooks with a deadline, in worker threads of their driver or in the loop (simulation)."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from volplane.errors import OutcomeUnknown, Unavailable
from volplane.operations.limits import DriverLimits
from volplane.operations.operation import hold_until

__all__ = ["HookCall", "HookExecutor", "InlineExecutor", "Latency", "ThreadExecutor"]

T = TypeVar("T")
log = logging.getLogger(__name__)

SPARE_THREADS: Final = 2
"""Threads beyond a driver's concurrency, so that probes and listings do not wait for operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCall:
    """A hook that has not returned. since: loop time of its start; overrun: its deadline is past, nobody waits for it."""

    driver: str
    what: str
    since: float
    overrun: bool


class HookExecutor(Protocol):
    """Runs a hook and waits for it, at most `timeout` seconds. Belongs to one event loop.

    A call that overruns raises `OutcomeUnknown`, sets `abandoned`, and keeps the asset of the operation it was made in
    until the hook really returns. One that found no free thread in time raises `Unavailable`: it never began.
    """

    async def call(
        self,
        driver: str,
        fn: Callable[[], T],
        timeout: float,  # noqa: ASYNC109 - an overrun hook cannot be cancelled, so a cancel scope would lie
        *,
        what: str = "hook",
        abandoned: threading.Event | None = None,
    ) -> T: ...

    def hung(self, driver: str) -> bool:
        """Whether as many hooks as the driver may run at once have overrun: it can do no work."""
        ...

    def running(self, driver: str | None = None) -> tuple[HookCall, ...]:
        """Hooks that have not returned, of one driver or of all; those nobody waits for included."""
        ...

    def close(self) -> None:
        """Let idle threads end. Hooks that still run are left alone; they do not hold up the process."""
        ...


@dataclass(slots=True, eq=False)
class _Call:
    driver: str
    what: str
    fn: Callable[[], Any]
    timeout: float
    abandoned: threading.Event
    returned: asyncio.Future[None]
    decided: asyncio.Future[None]
    """Done once the hook has returned or its time is over, whichever comes first."""
    begun: float | None = None
    overrun: bool = False
    value: Any = None
    error: BaseException | None = None
    context: contextvars.Context = field(default_factory=contextvars.copy_context)

    def perform(self) -> None:
        """Run the hook; never raises, whatever it does."""
        try:
            self.value = self.context.run(self.fn)
        except BaseException as error:  # noqa: BLE001 - it is raised again where the result is awaited
            self.error = error

    def settle(self, now: float) -> None:
        if self.returned.done():
            return
        if self.overrun and self.begun is not None:
            end = "returned" if self.error is None else f"raised {type(self.error).__name__}: {self.error}"
            late = now - self.begun
            log.warning("%s of driver %s %s after %.1f s, too late to count", self.what, self.driver, end, late)
        self.returned.set_result(None)
        self.decide()

    def decide(self) -> None:
        if not self.decided.done():
            self.decided.set_result(None)

    def result(self) -> Any:
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None
        return self.value


async def _wait(call: _Call, withdraw: Callable[[_Call], None]) -> Any:
    timer = asyncio.get_running_loop().call_later(call.timeout, call.decide)
    try:
        await call.decided
    except asyncio.CancelledError:
        _abandon(call, withdraw)
        raise
    finally:
        timer.cancel()
    if call.returned.done():
        return call.result()
    begun = call.begun is not None
    _abandon(call, withdraw)
    if begun:
        raise OutcomeUnknown(f"{call.what} of driver {call.driver} did not return within {call.timeout:g} s")
    raise Unavailable(f"driver {call.driver} had no free thread for {call.what} within {call.timeout:g} s")


def _abandon(call: _Call, withdraw: Callable[[_Call], None]) -> None:
    call.abandoned.set()
    call.overrun = True
    if call.begun is None:
        withdraw(call)
        call.returned.set_result(None)


def _prepare(driver: str, what: str, fn: Callable[[], Any], timeout: float, abandoned: threading.Event | None) -> _Call:
    if timeout <= 0:
        raise Unavailable(f"no time is left to start {what} of driver {driver}")
    loop = asyncio.get_running_loop()
    returned: asyncio.Future[None] = loop.create_future()
    hold_until(returned)
    return _Call(driver, what, fn, timeout, abandoned or threading.Event(), returned, loop.create_future())


def _view(calls: set[_Call], driver: str | None) -> tuple[HookCall, ...]:
    chosen = (c for c in calls if driver in (None, c.driver))
    seen = (HookCall(driver=c.driver, what=c.what, since=c.begun or 0.0, overrun=c.overrun) for c in chosen)
    return tuple(sorted(seen, key=lambda c: c.since))


def _all_overrun(calls: set[_Call], driver: str, limits: DriverLimits) -> bool:
    return sum(c.driver == driver and c.overrun for c in calls) >= limits.concurrency


class _Worker:
    """A daemon thread: unlike those of concurrent.futures, one that hangs does not keep the process from exiting."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, ready: Callable[[_Worker, _Call], None]) -> None:
        self._inbox: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._loop = loop
        self._ready = ready
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def give(self, call: _Call | None) -> None:
        self._inbox.put(call)

    def _serve(self) -> None:
        while (call := self._inbox.get()) is not None:
            call.perform()
            try:
                self._loop.call_soon_threadsafe(self._ready, self, call)
            except RuntimeError:
                return  # the loop is closed: nobody is left to tell


class _Pool:
    """The threads of one driver. Everything here runs in the loop's thread."""

    def __init__(self, driver: str, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self.calls: set[_Call] = set()
        self._driver = driver
        self._size = size
        self._loop = loop
        self._threads = 0
        self._idle: list[_Worker] = []
        self._waiting: deque[_Call] = deque()
        self._closed = False

    def submit(self, call: _Call) -> None:
        if self._idle:
            self._begin(self._idle.pop(), call)
        elif self._threads < self._size:
            self._threads += 1
            name = f"volplane-{self._driver}-{self._threads}"
            self._begin(_Worker(name, self._loop, self._ready), call)
        else:
            self._waiting.append(call)

    def withdraw(self, call: _Call) -> None:
        self._waiting.remove(call)

    def close(self) -> None:
        self._closed = True
        for worker in self._idle:
            worker.give(None)
        self._idle.clear()

    def _begin(self, worker: _Worker, call: _Call) -> None:
        call.begun = self._loop.time()
        self.calls.add(call)
        worker.give(call)

    def _ready(self, worker: _Worker, call: _Call) -> None:
        self.calls.discard(call)
        call.settle(self._loop.time())
        if self._waiting:
            self._begin(worker, self._waiting.popleft())
        elif self._closed:
            worker.give(None)
        else:
            self._idle.append(worker)


class ThreadExecutor:
    """`HookExecutor` with worker threads of each driver's own: a hung driver takes no other's threads."""

    def __init__(self, limits: Mapping[str, DriverLimits] | None = None) -> None:
        """limits: per driver name; others get the defaults of `DriverLimits`."""
        self._limits = dict(limits or {})
        self._pools: dict[str, _Pool] = {}

    async def call(
        self,
        driver: str,
        fn: Callable[[], T],
        timeout: float,  # noqa: ASYNC109
        *,
        what: str = "hook",
        abandoned: threading.Event | None = None,
    ) -> T:
        call = _prepare(driver, what, fn, timeout, abandoned)
        pool = self._pools.get(driver)
        if pool is None:
            size = self._limit(driver).concurrency + SPARE_THREADS
            pool = self._pools[driver] = _Pool(driver, size, asyncio.get_running_loop())
        pool.submit(call)
        result: T = await _wait(call, pool.withdraw)
        return result

    def hung(self, driver: str) -> bool:
        pool = self._pools.get(driver)
        return pool is not None and _all_overrun(pool.calls, driver, self._limit(driver))

    def running(self, driver: str | None = None) -> tuple[HookCall, ...]:
        return _view({c for pool in self._pools.values() for c in pool.calls}, driver)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def _limit(self, driver: str) -> DriverLimits:
        return self._limits.get(driver) or DriverLimits()


Latency = Callable[[str, str], tuple[float, float]]
"""(driver, what) -> loop seconds that pass before the hook takes effect, and between its effect and its return."""


class InlineExecutor:
    """`HookExecutor` that runs hooks in the loop itself, for simulations in virtual time: hooks must not block.

    `latency` makes hooks slow, or late: one that takes longer than its deadline still takes effect afterwards, as a
    thread would.
    """

    def __init__(
        self, limits: Mapping[str, DriverLimits] | None = None, latency: Latency = lambda _driver, _what: (0.0, 0.0)
    ) -> None:
        self._limits = dict(limits or {})
        self._latency = latency
        self._tasks: dict[_Call, asyncio.Task[None]] = {}

    async def call(
        self,
        driver: str,
        fn: Callable[[], T],
        timeout: float,  # noqa: ASYNC109
        *,
        what: str = "hook",
        abandoned: threading.Event | None = None,
    ) -> T:
        call = _prepare(driver, what, fn, timeout, abandoned)
        loop = asyncio.get_running_loop()
        call.begun = loop.time()
        task = self._tasks[call] = loop.create_task(self._perform(call), name=f"{driver} {what}")
        task.add_done_callback(lambda _task: self._settle(call, loop.time()))
        result: T = await _wait(call, lambda _call: None)
        return result

    def hung(self, driver: str) -> bool:
        return _all_overrun(set(self._tasks), driver, self._limits.get(driver) or DriverLimits())

    def running(self, driver: str | None = None) -> tuple[HookCall, ...]:
        return _view(set(self._tasks), driver)

    def close(self) -> None:
        """Cancel what has not returned: the process of the simulation is dead, what had no effect yet never has one."""
        for task in self._tasks.values():
            task.cancel()

    async def _perform(self, call: _Call) -> None:
        before, after = self._latency(call.driver, call.what)
        await asyncio.sleep(before)
        call.perform()
        await asyncio.sleep(after)

    def _settle(self, call: _Call, now: float) -> None:
        task = self._tasks.pop(call)
        if task.cancelled():
            call.error = OutcomeUnknown(f"{call.what} of driver {call.driver} was cut off")
        call.settle(now)
