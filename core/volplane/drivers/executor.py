"""Runs blocking hooks with a deadline, in worker threads of their driver."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from volplane.errors import OutcomeUnknown, Unavailable
from volplane.operations.operation import DriverLimits, hold_until

__all__ = ["HookCall", "HookExecutor", "PendingCall", "ThreadExecutor", "all_overrun", "views_of"]

T = TypeVar("T")
log = logging.getLogger(__name__)

SPARE_THREADS: Final = 2
"""Threads beyond a driver's concurrency, so that probes and listings do not wait for operations."""
SLOW_AFTER = 0.005
"""Seconds after which a call counts as blocked, and the calls behind it get threads of their own. This is as long as
the interpreter lets one thread run before another (`sys.getswitchinterval`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCall:
    """A hook that has not returned."""

    driver: str
    what: str
    since: float
    """Loop time of its start."""
    overrun: bool
    """Its deadline is past."""


class HookExecutor(Protocol):
    """Runs a hook and waits for it, at most `timeout` seconds. Belongs to one event loop.

    A call that overruns raises `OutcomeUnknown`, sets `abandoned`, and keeps the asset of its operation locked until
    the hook returns. A call that found no free thread in time raises `Unavailable`: the hook was not called.
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
        """Tell whether as many hooks as the driver may run at once are past their deadlines."""
        ...

    def running(self, driver: str | None = None) -> tuple[HookCall, ...]:
        """Return the hooks that have not returned, of one driver or of all, overrun ones included."""
        ...

    def close(self) -> None:
        """End idle threads. Running hooks continue in daemon threads, which do not keep the process alive."""
        ...


@dataclass(slots=True, eq=False)
class PendingCall:
    """A hook call between its request and its end. Its futures belong to one loop."""

    driver: str
    what: str
    fn: Callable[[], Any]
    timeout: float
    abandoned: threading.Event
    returned: asyncio.Future[None]
    decided: asyncio.Future[None]
    """Done once the hook has returned or its deadline is past, whichever comes first."""
    begun: float | None = None
    """Loop time at which a thread took it."""
    overrun: bool = False
    performed: bool = False
    """The hook has returned; set in its thread."""
    value: Any = None
    error: BaseException | None = None
    context: contextvars.Context = field(default_factory=contextvars.copy_context)

    @classmethod
    def of(
        cls, driver: str, what: str, fn: Callable[[], Any], timeout: float, abandoned: threading.Event | None
    ) -> PendingCall:
        """Make a call by the current task, which holds the asset of its operation until the hook returns.

        Raises Unavailable if `timeout` is not positive.
        """
        if timeout <= 0:
            raise Unavailable(f"no time is left to start {what} of driver {driver}")
        loop = asyncio.get_running_loop()
        returned: asyncio.Future[None] = loop.create_future()
        hold_until(returned)
        return cls(driver, what, fn, timeout, abandoned or threading.Event(), returned, loop.create_future())

    def perform(self) -> None:
        """Run the hook in the current thread. Never raises."""
        try:
            self.value = self.context.run(self.fn)
        except BaseException as error:  # noqa: BLE001 - it is raised again where the result is awaited
            self.error = error
        self.performed = True

    def settle(self, now: float) -> None:
        """Note that the hook has returned, at loop time `now`."""
        if self.returned.done():
            return
        if self.overrun and self.begun is not None:
            end = "returned" if self.error is None else f"raised {type(self.error).__name__}: {self.error}"
            late = now - self.begun
            log.warning("%s of driver %s %s after %.1f s, too late to count", self.what, self.driver, end, late)
        self.returned.set_result(None)
        self._decide()

    async def wait(self, withdraw: Callable[[PendingCall], None]) -> Any:
        """Return or raise what the hook does, or raise OutcomeUnknown or Unavailable after the timeout.

        withdraw: called if the caller stops waiting before a thread has taken the call.
        """
        timer = asyncio.get_running_loop().call_later(self.timeout, self._decide)
        try:
            await self.decided
        except asyncio.CancelledError:
            self._abandon(withdraw)
            raise
        finally:
            timer.cancel()
        if self.returned.done():
            return self._result()
        begun = self.begun is not None
        self._abandon(withdraw)
        if begun:
            raise OutcomeUnknown(f"{self.what} of driver {self.driver} did not return within {self.timeout:g} s")
        raise Unavailable(f"driver {self.driver} had no free thread for {self.what} within {self.timeout:g} s")

    def view(self) -> HookCall:
        return HookCall(driver=self.driver, what=self.what, since=self.begun or 0.0, overrun=self.overrun)

    def _decide(self) -> None:
        if not self.decided.done():
            self.decided.set_result(None)

    def _abandon(self, withdraw: Callable[[PendingCall], None]) -> None:
        self.abandoned.set()
        self.overrun = True
        if self.begun is None:
            withdraw(self)
            self.returned.set_result(None)

    def _result(self) -> Any:
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None
        return self.value


def views_of(calls: Iterable[PendingCall], driver: str | None) -> tuple[HookCall, ...]:
    """Return the calls of one driver, or of all, oldest first."""
    return tuple(sorted((c.view() for c in calls if driver in (None, c.driver)), key=lambda c: c.since))


def all_overrun(calls: Iterable[PendingCall], driver: str, limits: DriverLimits) -> bool:
    """Tell whether as many calls of the driver as may run at once are past their deadlines."""
    return sum(c.driver == driver and c.overrun for c in calls) >= limits.concurrency


class _Worker:
    """A daemon thread. Unlike threads of concurrent.futures it does not keep the process alive if it hangs."""

    def __init__(
        self, name: str, loop: asyncio.AbstractEventLoop, ready: Callable[[_Worker, PendingCall], None]
    ) -> None:
        self._inbox: queue.SimpleQueue[PendingCall | None] = queue.SimpleQueue()
        self._loop = loop
        self._ready = ready
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def give(self, call: PendingCall | None) -> None:
        self._inbox.put(call)

    def _serve(self) -> None:
        while (call := self._inbox.get()) is not None:
            call.perform()
            try:
                self._loop.call_soon_threadsafe(self._ready, self, call)
            except RuntimeError:
                return  # the loop is closed, and with it everything that could use the result


class _Pool:
    """The threads of one driver. Everything here runs in the loop's thread.

    Threads that compute share the interpreter's lock, and passing it on costs more than a short hook. So calls run one
    after the other in one thread. Others start beside it once all running calls have taken longer than `SLOW_AFTER`.
    """

    def __init__(self, driver: str, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self.calls: set[PendingCall] = set()
        self._driver = driver
        self._size = size
        self._loop = loop
        self._threads = 0
        self._idle: list[_Worker] = []
        self._waiting: deque[PendingCall] = deque()
        self._timer: asyncio.TimerHandle | None = None
        """Calls `_check_running`, while calls wait."""
        self._closed = False

    def submit(self, call: PendingCall) -> None:
        self._waiting.append(call)
        self._begin_next()

    def withdraw(self, call: PendingCall) -> None:
        self._waiting.remove(call)

    def close(self) -> None:
        self._closed = True
        while self._begin():
            pass
        self._end_idle()

    def _begin_next(self) -> None:
        """Start one of the waiting calls, unless another one has just started."""
        if self._all_slow():
            self._begin()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._waiting and self._timer is None and (self._idle or self._threads < self._size):
            self._timer = self._loop.call_later(SLOW_AFTER, self._check_running)

    def _check_running(self) -> None:
        """Start half of the waiting calls if the running ones take long: all have started after a few checks."""
        self._timer = None
        if self._all_slow():
            for _ in range((len(self._waiting) + 1) // 2):
                self._begin()
        self._set_timer()

    def _all_slow(self) -> bool:
        """Tell whether no thread will soon be free for the next call. The loop may not know of the last end yet."""
        now = self._loop.time()
        return all(not call.performed and now - (call.begun or 0.0) >= SLOW_AFTER for call in self.calls)

    def _begin(self) -> bool:
        """Give the first waiting call to a free thread. Returns False if there is no call or no thread."""
        if not self._waiting or not (self._idle or self._threads < self._size):
            return False
        call = self._waiting.popleft()
        call.begun = self._loop.time()
        self.calls.add(call)
        if self._idle:
            worker = self._idle.pop()
        else:
            self._threads += 1
            worker = _Worker(f"volplane-{self._driver}-{self._threads}", self._loop, self._ready)
        worker.give(call)
        return True

    def _ready(self, worker: _Worker, call: PendingCall) -> None:
        self.calls.discard(call)
        call.settle(self._loop.time())
        self._idle.append(worker)
        self._begin_next()
        if self._closed:
            self._end_idle()

    def _end_idle(self) -> None:
        if not self._waiting:
            for worker in self._idle:
                worker.give(None)
            self._idle.clear()


class ThreadExecutor:
    """`HookExecutor` with worker threads for each driver: one whose hooks hang takes no threads of another."""

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
        call = PendingCall.of(driver, what, fn, timeout, abandoned)
        pool = self._pools.get(driver)
        if pool is None:
            size = self._limits.get(driver, DriverLimits()).concurrency + SPARE_THREADS
            pool = self._pools[driver] = _Pool(driver, size, asyncio.get_running_loop())
        pool.submit(call)
        result: T = await call.wait(pool.withdraw)
        return result

    def hung(self, driver: str) -> bool:
        pool = self._pools.get(driver)
        return pool is not None and all_overrun(pool.calls, driver, self._limits.get(driver, DriverLimits()))

    def running(self, driver: str | None = None) -> tuple[HookCall, ...]:
        return views_of((c for pool in self._pools.values() for c in pool.calls), driver)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
