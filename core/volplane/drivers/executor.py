"""Calls hooks in threads of their driver, with a deadline; hooks that change storage run only under the lease."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from volplane._delays import LIVE_STATE_FORBIDS
from volplane.assets import InProgress
from volplane.controller import logs
from volplane.controller.metrics import Metrics
from volplane.drivers.driver import Driver, DriverView, LoadedDrivers
from volplane.errors import BackendError, Fenced, OutcomeUnknown, PluginError, Unavailable
from volplane.operations.operation import Again, DriverLimits, hold_until
from volplane.requests import HookRequest

R = TypeVar("R")
log = logging.getLogger(__name__)

SPARE_THREADS: Final = 2
"""Threads beyond a driver's concurrency, so that probes and listings do not wait for operations."""
SLOW_AFTER = 0.005
"""Seconds after which a call counts as blocked, and the calls behind it get threads of their own. This is as long as
the interpreter lets one thread run before another (`sys.getswitchinterval`)."""
_ABOUT_THE_DRIVER: Final = frozenset({"owns", "list_assets", "list_snapshots", "get_capacity", "stop"})
"""Hooks that no operation locks by asset. While one hangs it is not called again; nor are `start` and `probe`."""
_CHANGES_NOTHING: Final = _ABOUT_THE_DRIVER | {"describe", "validate", "find", "inspect", "probe", "start"}
"""Hooks that may run without the lease."""

CallHook = Callable[[Driver, HookRequest[Any]], Any]
"""Calls a hook in a thread of its driver: `Driver.call`, or more than that in a simulation."""


@dataclass(eq=False, repr=False)
class HookCalls:
    """Calls the hooks of all drivers. Belongs to one event loop."""

    loaded: InitVar[LoadedDrivers]
    executor: ThreadExecutor
    _: KW_ONLY
    metrics: Metrics | None = None
    call_hook: CallHook = Driver.call
    may_begin: Callable[[], bool] = lambda: True
    """Whether a hook that changes storage may be called now. Called in the driver's threads, as `fenced` is."""
    fenced: Callable[[str], None] = lambda _term: None
    """Gets the later term of leadership of which a storage refused a call (`Fenced`)."""

    def __post_init__(self, loaded: LoadedDrivers) -> None:
        self.drivers = {driver.name: driver for driver in loaded.drivers}
        """The drivers that can be called. Those that are made later are added."""
        self._limits = dict(loaded.limits)

    def limits(self, driver: str) -> DriverLimits:
        return self._limits.get(driver) or DriverLimits()

    def running(self, driver: str, hook: str, *, overrun: bool = False) -> bool:
        """Tell whether a call of this hook has not returned. overrun: and its caller has stopped waiting."""
        calls = self.executor.running(driver)
        return any(call.what == hook and (call.abandoned.is_set() or not overrun) for call in calls)

    def hung(self, driver: str) -> bool:
        """Tell whether as many calls hang as may run at once. Only a restart of the process can change that."""
        return sum(call.abandoned.is_set() for call in self.executor.running(driver)) >= self.limits(driver).concurrency

    async def call(
        self,
        driver: DriverView,
        request: HookRequest[R],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - a hook cannot be cancelled
    ) -> R:
        """Call the hook of this request in the driver's own threads.

        timeout: seconds; None: the driver's. The request's context carries it, and its `cancelled` is true once the
        caller has stopped waiting. Raises what `Driver.call` raises, OutcomeUnknown after the timeout (see
        `ThreadExecutor`), Again if the lease is over, and KeyError for a driver that was not loaded.
        """
        facade = self.drivers[driver.name]
        if request.hook in _ABOUT_THE_DRIVER and self.running(driver.name, request.hook, overrun=True):
            # A hook about the driver as a whole that hangs costs it one thread, not one a call.
            raise Unavailable(f"an earlier call of {request.hook} of driver {driver.name} has not returned")
        seconds = self.limits(driver.name).timeout if timeout is None else timeout
        abandoned = threading.Event()
        context = dataclasses.replace(request.context, timeout=seconds, cancelled=abandoned.is_set)
        complete = dataclasses.replace(request, context=context)
        clock = asyncio.get_running_loop().time
        began, outcome = clock(), "cancelled"
        try:
            with logs.bound(driver=driver.name):
                perform = partial(self._call_in_thread, facade, complete)
                call = PendingCall(driver.name, perform, seconds, request.hook, abandoned)
                result: R = await self.executor.call(call)
            outcome = "in_progress" if isinstance(result, InProgress) else "ok"
        except (BackendError, PluginError) as error:
            outcome = type(error).__name__
            raise
        finally:
            if self.metrics is not None:
                self.metrics.hook_ended(driver.name, request.hook, clock() - began, outcome)
        return result

    def _call_in_thread(self, driver: Driver, request: HookRequest[R]) -> R:
        # The process may have lost the lease since the call was decided and queued.
        if request.hook not in _CHANGES_NOTHING and not self.may_begin():
            raise Again(after=LIVE_STATE_FORBIDS.delay())
        try:
            result: R = self.call_hook(driver, request)
        except Fenced as error:
            # A later leader has worked on the asset: the elector has to know, also if nobody waits for the call.
            self.fenced(error.fence)
            raise
        return result


@dataclass(slots=True, eq=False)
class PendingCall:
    """A hook call between its request and its end. Its futures belong to one loop.

    It is made by the current task, which holds the asset of its operation until the hook returns. Raises Unavailable
    if `timeout` is not positive.
    """

    driver: str
    fn: Callable[[], Any]
    timeout: float
    """Seconds that the caller waits."""
    what: str = "hook"
    abandoned: threading.Event = field(default_factory=threading.Event)
    """Set once the caller has stopped waiting."""
    returned: asyncio.Future[None] = field(init=False)
    decided: asyncio.Future[None] = field(init=False)
    """Done once the hook has returned or its deadline is past, whichever comes first."""
    begun: float | None = None
    """Loop time at which a thread took it."""
    entered: bool = False
    """Its thread runs: it may have waited for the interpreter's lock, which more threads would make scarcer."""
    performed: bool = False
    """The hook has returned; set in its thread, as `entered` is."""
    value: Any = None
    error: BaseException | None = None
    context: contextvars.Context = field(default_factory=contextvars.copy_context)

    def __post_init__(self) -> None:
        if self.timeout <= 0:
            raise Unavailable(f"no time is left to start {self.what} of driver {self.driver}")
        loop = asyncio.get_running_loop()
        self.returned, self.decided = loop.create_future(), loop.create_future()
        hold_until(self.returned)

    def perform(self) -> None:
        """Run the hook in the current thread. Never raises."""
        self.entered = True
        try:
            self.value = self.context.run(self.fn)
        except BaseException as error:  # noqa: BLE001 - it is raised again where the result is awaited
            self.error = error
        self.performed = True

    def settle(self, now: float) -> None:
        """Note that the hook has returned, at loop time `now`."""
        if self.returned.done():
            return  # it was withdrawn before
        if self.abandoned.is_set() and self.begun is not None:
            end = "returned" if self.error is None else f"raised {type(self.error).__name__}: {self.error}"
            late = now - self.begun
            log.warning("%s of driver %s %s after %.1f s, too late to count", self.what, self.driver, end, late)
        self.returned.set_result(None)
        self._decide()

    async def wait(self, withdraw: Callable[[PendingCall], bool]) -> Any:
        """Wait as `ThreadExecutor.call`. withdraw: called if the wait ends; whether no thread takes the call."""
        timer = asyncio.get_running_loop().call_later(self.timeout, self._decide)
        try:
            await self.decided
        except asyncio.CancelledError:
            self._abandon(withdraw)
            raise
        finally:
            timer.cancel()
        if not self.returned.done():
            if not self._abandon(withdraw):
                # The hook goes on, so what it makes or destroys may still take effect.
                raise OutcomeUnknown(f"{self.what} of driver {self.driver} did not return within {self.timeout:g} s")
            raise Unavailable(f"driver {self.driver} had no free thread for {self.what} within {self.timeout:g} s")
        if self.error is not None:
            try:
                if isinstance(self.error, Exception):
                    raise self.error
                raised = f"{self.what} of driver {self.driver} raised {type(self.error).__name__}"
                raise OutcomeUnknown(raised) from self.error
            finally:
                self.error = None  # Its traceback has this frame, which keeps this call.
        return self.value

    def _decide(self) -> None:
        if not self.decided.done():
            self.decided.set_result(None)

    def _abandon(self, withdraw: Callable[[PendingCall], bool]) -> bool:
        """Stop waiting; return whether no thread takes the call."""
        self.abandoned.set()
        if withdrawn := withdraw(self):
            # The hook is never called, and the asset is free at once.
            self.returned.set_result(None)
        return withdrawn


@dataclass(eq=False, repr=False)
class ThreadExecutor:
    """Runs hooks in worker threads of each driver: one whose hooks hang takes no threads of another.

    Belongs to one event loop.
    """

    _limits: Mapping[str, DriverLimits] = field(default_factory=dict)
    """Per driver name; others get the defaults of `DriverLimits`."""
    _pools: dict[str, _Pool] = field(default_factory=dict)

    async def call(self, call: PendingCall) -> Any:
        """Run the hook and wait for it, at most its timeout.

        A call that overruns raises `OutcomeUnknown`, sets `abandoned`, and keeps the asset of its operation locked
        until the hook returns. A call that found no free thread in time raises `Unavailable`: the hook was not called.
        """
        if (pool := self._pools.get(call.driver)) is None:
            size = self._limits.get(call.driver, DriverLimits()).concurrency + SPARE_THREADS
            pool = self._pools[call.driver] = _Pool(call.driver, size, asyncio.get_running_loop())
        pool.waiting.append(call)
        pool.advance(1)
        return await call.wait(pool.withdraw)

    def running(self, driver: str | None = None) -> tuple[PendingCall, ...]:
        """Return the calls that have not returned, of one driver or of all, oldest first."""
        calls = (call for name, pool in self._pools.items() if driver in (None, name) for call in tuple(pool.calls))
        return tuple(sorted(calls, key=lambda call: call.begun or 0.0))

    def close(self) -> None:
        """End idle threads. Running hooks continue in daemon threads, which do not keep the process alive."""
        for pool in self._pools.values():
            pool.close()


@dataclass(eq=False, repr=False)
class _Pool:
    """The threads of one driver. Everything here but `_serve` and `_take` runs in the loop's thread.

    Threads that compute share the interpreter's lock, and passing it on costs more than a short hook. So calls run one
    after the other in one thread, which takes the next one itself. Others start beside it once all running calls have
    taken longer than `SLOW_AFTER`.
    They are daemon threads: unlike those of concurrent.futures, one that hangs does not keep the process alive.
    """

    _driver: str
    _size: int
    _loop: asyncio.AbstractEventLoop
    calls: set[PendingCall] = field(default_factory=set)
    """Those that a thread has taken and whose hooks have not returned."""
    waiting: deque[PendingCall] = field(default_factory=deque)
    _threads: int = 0
    _idle: list[queue.SimpleQueue[PendingCall | None]] = field(default_factory=list)
    """The inboxes of threads that have nothing to do. None ends a thread."""
    _timer: asyncio.TimerHandle | None = None
    _closed: bool = False

    def close(self) -> None:
        self._closed = True
        while self._begin():
            pass
        self._end_idle()

    def advance(self, most: int) -> None:
        """Start so many of the waiting calls if no thread will soon be free for them; else look again later."""
        now = self._loop.time()
        # The loop may not know yet that a call has ended, so `performed` is asked too.
        if all(c.entered and not c.performed and now - (c.begun or 0.0) >= SLOW_AFTER for c in tuple(self.calls)):
            for _ in range(most):
                self._begin()
        if self.waiting and self._timer is None and (self._idle or self._threads < self._size):
            self._timer = self._loop.call_later(SLOW_AFTER, self._look_again)

    def _look_again(self) -> None:
        """Start half of the waiting calls if the running ones take long: all have started after a few times."""
        self._timer = None
        self.advance((len(self.waiting) + 1) // 2)

    def _begin(self) -> bool:
        """Give the first waiting call to a free thread. Returns False if there is no call or no thread."""
        if not (self._idle or self._threads < self._size) or (call := self._take()) is None:
            return False
        if self._idle:
            inbox = self._idle.pop()
        else:
            self._threads += 1
            inbox = queue.SimpleQueue()
            name = f"volplane-{self._driver}-{self._threads}"
            threading.Thread(target=self._serve, args=(inbox,), name=name, daemon=True).start()
        inbox.put(call)
        return True

    def _take(self) -> PendingCall | None:
        """Return the first waiting call, which runs from now on. Two threads may take: a call is taken once."""
        try:
            call = self.waiting.popleft()
        except IndexError:
            return None
        call.begun = self._loop.time()
        self.calls.add(call)
        return call

    def withdraw(self, call: PendingCall) -> bool:
        """Return whether the call has waited till now; it does no more."""
        with suppress(ValueError):
            self.waiting.remove(call)
            return True
        return False

    def _serve(self, inbox: queue.SimpleQueue[PendingCall | None]) -> None:
        call = inbox.get()
        while call is not None:
            call.perform()
            following = self._take()
            try:
                self._loop.call_soon_threadsafe(self._ready, call, inbox if following is None else None)
            except RuntimeError:
                return  # the loop is closed, and with it everything that could use the result
            call = following or inbox.get()

    def _ready(self, call: PendingCall, idle: queue.SimpleQueue[PendingCall | None] | None) -> None:
        """Note the end of a call. idle: the inbox of its thread, if that has nothing to do."""
        self.calls.discard(call)
        call.settle(self._loop.time())
        if idle is not None:
            self._idle.append(idle)
        self.advance(1)
        if self._closed:
            self._end_idle()

    def _end_idle(self) -> None:
        if not self.waiting:
            for inbox in self._idle:
                inbox.put(None)
            self._idle.clear()
