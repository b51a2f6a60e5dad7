"""Hook calls in the simulation: their delays, their faults, and the record of their results."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from volplane import (
    Asset,
    AttachRequest,
    DeleteRequest,
    DeleteSnapshotRequest,
    DetachRequest,
    Done,
    Erased,
    ExpandRequest,
    FindRequest,
    FindSnapshotRequest,
    ListRequest,
    ModifyRequest,
    ProvisionRequest,
    RecycleRequest,
    SnapshotRequest,
    Throttled,
    Unavailable,
    hookimpl,
)
from volplane.drivers.contract import HOOKS, Plugin
from volplane.drivers.driver import Driver, Extension
from volplane.drivers.executor import PendingCall
from volplane.errors import OutcomeUnknown
from volplane.requests import HookRequest
from volplane_testing.executor import InlineExecutor, Latency
from volplane_testing.simulation.hook_rules import CHANGING, HookRules
from volplane_testing.simulation.loop import WHO
from volplane_testing.simulation.run_context import RunContext
from volplane_testing.simulation.safety import BEGAN

if TYPE_CHECKING:
    from volplane_testing.simulation.external_backends import ExternalBackend

__all__ = ["FaultInjector", "HookFaults", "TimedExecutor", "injecting", "latency_of"]

R = TypeVar("R")
T = TypeVar("T")

TIMEOUT: Final = 20.0
"""Deadline of hooks in simulations, seconds."""
LATE: Final[contextvars.ContextVar[bool]] = contextvars.ContextVar("volplane_simulation_late", default=False)
"""Whether a hook takes effect for a process that was stopped in the middle of it."""
_BEFORE: Final = ("unavailable", "throttled", "bug")
_AFTER: Final = ("lost answer", "unavailable after")


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFaults:
    """Shares of hook calls: that fail, that take seconds, that hang past their deadline, at which the process dies.

    longest: seconds that pass at most before a slow hook takes effect. listing: share of calls of start and list_assets
    that hang for up to 25 minutes. cancels: share of calls that raise CancelledError.
    """

    errors: float = 0.0
    slow: float = 0.0
    hangs: float = 0.0
    crashes: float = 0.0
    longest: float = 60.0
    listing: float = 0.0
    cancels: float = 0.0


class _ThreadStopped(OutcomeUnknown):
    """The hook has not returned, and takes effect at `until` (loop time)."""

    def __init__(self, until: float) -> None:
        super().__init__("its thread was stopped")
        self.until = until


class FaultInjector:
    """Wraps every hook of every driver. `down` holds the drivers that are unavailable now.

    crash: kills the calling process for the reason given, and says whether it did. externals: by driver; simulated
    backends report their effects themselves.
    """

    def __init__(self, run_context: RunContext, faults: HookFaults, crash: Callable[[str, str], bool]) -> None:
        self.down: set[str] = set()
        self.externals: Mapping[str, ExternalBackend] = {}
        self._chance = run_context.chance
        self._trace = run_context.trace
        self._view = run_context.view
        self._rules = run_context.hook_rules
        self.stalled: Mapping[str, float] = {}
        """Process whose threads are stopped one after another -> loop time at which they go on."""
        self._faults = faults
        self._crash = crash
        self._counts: Counter[str] = Counter()

    def __dir__(self) -> Iterable[str]:
        """Return the hooks alone, as `SimulatedBackend`."""
        return HOOKS

    @hookimpl(wrapper=True)
    def provision(self, request: ProvisionRequest) -> Generator[None, Any, Any]:
        return (yield from self._around("provision", request.name, request))

    @hookimpl(wrapper=True)
    def delete(self, request: DeleteRequest) -> Generator[None, Any, Any]:
        return (yield from self._around("delete", request.volume.name, request))

    @hookimpl(wrapper=True)
    def find(self, request: FindRequest) -> Generator[None, Any, Any]:
        return (yield from self._around("find", request.name, request))

    @hookimpl(wrapper=True)
    def recycle(self, request: RecycleRequest) -> Generator[None, Any, Any]:
        return (yield from self._around("recycle", request.volume.name, request))

    @hookimpl(wrapper=True)
    def expand(self, request: ExpandRequest) -> Generator[None, Any, Any]:
        return (yield from self._around("expand", request.volume.name, request))

    @hookimpl(wrapper=True)
    def modify(self, request: ModifyRequest) -> Generator[None, Any, Any]:
        return (yield from self._around("modify", request.volume.name, request))

    @hookimpl(wrapper=True)
    def attach(self, request: AttachRequest) -> Generator[None, Any, Any]:
        return (yield from self._around("attach", request.volume.name, request))

    @hookimpl(wrapper=True)
    def detach(self, request: DetachRequest) -> Generator[None, Any, Any]:
        return (yield from self._around("detach", request.volume.name, request))

    @hookimpl(wrapper=True)
    def create_snapshot(self, request: SnapshotRequest) -> Generator[None, Any, Any]:
        return (yield from self._around("create_snapshot", request.name, request))

    @hookimpl(wrapper=True)
    def find_snapshot(self, request: FindSnapshotRequest) -> Generator[None, Any, Any]:
        return (yield from self._around("find_snapshot", request.name or request.handle, request))

    @hookimpl(wrapper=True)
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Generator[None, Any, Any]:
        return (yield from self._around("delete_snapshot", request.handle, request))

    @hookimpl(wrapper=True)
    def list_assets(self, request: ListRequest) -> Generator[None, Any, Any]:
        self._counts["lists"] += 1
        self._cancel(f"{WHO.get()} {request.context.driver} lists {self._counts['lists']}")
        return (yield)

    def _cancel(self, name: str) -> None:
        """Raise what a loop of the backend's own leaves behind: no Exception."""
        if self._chance.strikes(f"{name} is cancelled", self._faults.cancels):
            self._trace.strike("hook: cancelled", f"{name}: cancelled")
            raise asyncio.CancelledError("a loop of the backend cancelled its task")

    def call_hook(self, driver: Driver, request: HookRequest[R], /) -> R:
        """Call a hook now; a real backend may be made to crash in the middle of it."""
        external = self.externals.get(driver.name)
        if external is None:
            if request.hook in CHANGING and (goes_on := self.stalled.get(WHO.get())) is not None:
                self._take_effect_later(driver, request, goes_on)
            return driver.call(request)
        external.catch_up()
        if isinstance(request, ProvisionRequest):
            external.asked(request.owner)
        spelled = f"{WHO.get()} {driver.name} {request.hook} {self._about(request)}"
        self._counts[f"inside {spelled}"] += 1
        name = f"inside {spelled} {self._counts[f'inside {spelled}']}"
        # Only if the process ends: the instance cannot be used after a crash inside of it.
        rate = self._faults.crashes * (2.0 if request.hook in CHANGING else 0.3)
        if self._chance.strikes(name, rate) and self._crash(WHO.get(), name):
            self._trace.happened["hook: crash inside"] += 1
            external.crash_inside(name, lambda: driver.call(request))
            raise OutcomeUnknown("the process is dead")
        if external.cuts_off(request.hook) and self._chance.strikes(f"{name} out of reach", self._faults.errors):
            self._trace.strike("hook: storage out of reach", f"{name}: the storage cannot be reached")
            external.call_cut_off(driver, request)
        return external.call(driver, request)

    def _take_effect_later(self, driver: Driver, request: HookRequest[Any], goes_on: float) -> NoReturn:
        """Stop the thread after its last check of the lease. The hook takes effect once the thread goes on."""
        who, loop = WHO.get(), asyncio.get_running_loop()
        name = f"{who} {driver.name} {request.hook} {self._about(request)} {self._counts['stalled']}"
        self._counts["stalled"] += 1
        self._trace.strike(f"hook: late {request.hook}", f"{name}: its thread is stopped")

        def act() -> None:
            if who in self._rules.dead:
                return
            try:
                driver.call(request)
            except Exception as error:  # noqa: BLE001 -- nobody hears of it
                self._trace.note("late", f"{name} raises {error}")

        effect = goes_on + self._chance.between(0.0, 5.0, name)
        context = contextvars.copy_context()
        context.run(LATE.set, True)
        context.run(WHO.set, "")
        loop.call_at(effect, act, context=context)
        raise _ThreadStopped(effect)

    def _about(self, request: HookRequest[Any]) -> str:
        volume = getattr(request, "volume", request)
        return self._view.spell(str(getattr(volume, "name", "")))

    def _around(self, hook: str, about: str, request: HookRequest[Any]) -> Generator[None, Any, Any]:
        driver = request.context.driver
        spelled = f"{WHO.get()} {driver} {hook} {self._view.spell(about)}"
        self._counts[spelled] += 1
        name = f"{spelled} {self._counts[spelled]}"
        if driver in self.down and not self._chance.calm.is_set():
            self._trace.happened["hook: driver down"] += 1
            raise Unavailable(f"{driver} is down")
        if not LATE.get():
            self._rules.called(request)
        fault = self._fault(name)
        self._cancel(name)
        self._raise_before(name, fault)
        try:
            result = yield
        except Exception as error:
            self._trace.note(WHO.get(), f"{hook} {self._view.spell(about)} of {driver} raises {error}")
            self._rules.failed(request, error)
            raise
        self._trace.note(WHO.get(), f"{hook} {self._view.spell(about)} of {driver} gives {result}")
        if driver in self.externals:
            self._record_effect(self.externals[driver], request, result)
            self.externals[driver].attached.look()
        self._raise_after(name, fault)
        return result

    def _record_effect(self, external: ExternalBackend, request: HookRequest[Any], result: object) -> None:
        """Record the effect of an external backend's result, also where the caller does not get the result."""
        match request, result:
            case ProvisionRequest(), Asset():
                external.made(request, result)
            case DeleteRequest(), Done():
                external.unmade(request.volume)
            case RecycleRequest(), Erased():
                external.erased(request.volume)

    def _fault(self, name: str) -> str:
        if self._chance.strikes(name, self._faults.errors):
            fault = self._chance.choice((*_BEFORE, *_AFTER), f"{name} fault")
        elif self._chance.strikes(f"{name} crash", self._faults.crashes):
            fault = self._chance.choice(("crash before", "crash after"), f"{name} fault")
        else:
            return ""
        self._trace.strike(f"hook: {fault}", f"{name}: {fault}")
        return fault

    def _raise_before(self, name: str, fault: str) -> None:
        match fault:
            case "unavailable":
                raise Unavailable("the storage does not answer")
            case "throttled":
                raise Throttled("too many calls", retry_after=1.0 + 5.0 * self._chance.number(f"{name} pause"))
            case "bug":
                raise KeyError("a bug of the backend")
            case "crash before":
                self._crash(WHO.get(), f"before {name}")
                raise ConnectionError("the process is dead")

    def _raise_after(self, name: str, fault: str) -> None:
        match fault:
            case "lost answer":
                raise ConnectionError("the connection broke before the answer came")
            case "unavailable after":
                raise Unavailable("the storage does not answer any more")
            case "crash after":
                self._crash(WHO.get(), f"after {name}")


def injecting(injector: FaultInjector) -> Extension:
    """Return the faults as an extension of drivers."""
    plugin = Plugin(kind="extension", name="simulation", factory=lambda _options: injector)
    return Extension(plugin=plugin, instance=injector)


def latency_of(who: str, run_context: RunContext, faults: HookFaults) -> Callable[[str, str], tuple[float, float]]:
    """Return the `Latency` of an InlineExecutor for one process."""
    chance, trace = run_context.chance, run_context.trace
    counts: Counter[str] = Counter()

    def latency(driver: str, what: str) -> tuple[float, float]:
        counts[f"{driver} {what}"] += 1
        name = f"{who} {driver} {what} latency {counts[f'{driver} {what}']}"
        share = chance.number(name)
        usual = (0.001 + 0.05 * (share * 1e4 % 1), 0.001 + 0.05 * (share * 1e6 % 1))
        if what == "owns":
            usual = (0.0, 0.0)  # it touches no storage
        if what in ("start", "list_assets") and chance.strikes(f"{name} long", faults.listing):
            trace.strike(f"hook: {what} hangs", f"{name}: hangs for long")
            return 0.1, chance.between(100.0, 1500.0, f"{name} longer")
        if chance.strikes(f"{name} hang", faults.hangs):
            trace.strike("hook: hangs", f"{name}: hangs")
            long = chance.between(TIMEOUT * 0.5, TIMEOUT * 3, f"{name} long")
            return (min(long, faults.longest), 0.1) if share < 0.5 else (0.1, long)
        if chance.strikes(f"{name} slow", faults.slow):
            trace.happened["hook: slow"] += 1
            return min(usual[0] * 100, faults.longest), usual[1] * 100
        return usual

    return latency


class TimedExecutor(InlineExecutor):
    """The executor of one simulated process; hooks can tell when they were called, by `BEGAN`."""

    def __init__(self, latency: Latency, rules: HookRules) -> None:
        super().__init__(latency)
        self._rules = rules

    async def call(self, call: PendingCall) -> Any:
        now = asyncio.get_running_loop().time()
        BEGAN.set(now)
        call.context.run(BEGAN.set, now)
        return await super().call(call)

    async def _perform(self, call: PendingCall) -> None:
        who = WHO.get()
        self._rules.thread_taken(call.driver, call.what)
        try:
            await super()._perform(call)
            if isinstance(call.error, _ThreadStopped):
                await asyncio.sleep(max(0.0, call.error.until - asyncio.get_running_loop().time()))
        finally:
            self._rules.thread_left(who, call.driver, call.what)
