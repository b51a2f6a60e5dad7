"""The drivers of this process: which there are, which can be used now, and whose a static volume is."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeVar

from volplane.assets import InProgress, VolumeSource
from volplane.backoff import DRIVER_NOT_STARTED
from volplane.controller import logs
from volplane.drivers.driver import Driver
from volplane.drivers.executor import HookExecutor
from volplane.drivers.status import DriverState, DriverStatus, LoadedDrivers, status_of_broken
from volplane.drivers.view import DriverView
from volplane.errors import BackendError, PluginError
from volplane.operations import DriverLimits
from volplane.requests import Context, OwnsRequest, ProbeRequest, StartRequest, StopRequest
from volplane.secret import Secret

__all__ = ["CallHook", "DriverRegistry", "HookRequest", "Observe", "Refresh", "call_hook", "no_secrets"]

log = logging.getLogger(__name__)

START_TIMEOUT: Final = 30.0
PROBE_TIMEOUT: Final = 10.0
PROBE_INTERVAL: Final = 30.0


class HookRequest(Protocol):
    """A request of a hook: a dataclass with a context."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def context(self) -> Context: ...


Q = TypeVar("Q", bound=HookRequest)
T = TypeVar("T")

Observe = Callable[[str, str, float, str], None]
"""(driver, hook, seconds, result) of every call of a hook; result: "ok", "in_progress", or the class of the error."""

Refresh = Callable[[Mapping[str, Secret]], Awaitable[None]]
"""Reads the Kubernetes Secrets among a driver's secrets anew (`ClusterSecrets.refresh`). Raises BackendError."""


async def no_secrets(_secrets: Mapping[str, Secret]) -> None:
    """Without a cluster to read from, only what the environment and files hold can be revealed."""


class CallHook(Protocol):
    """Calls a hook in a driver's thread."""

    def __call__(self, driver: Driver, hook: Callable[[Driver, Q], T], request: Q, /) -> T: ...


def call_hook(driver: Driver, hook: Callable[[Driver, Q], T], request: Q, /) -> T:
    """Call the hook and nothing else."""
    return hook(driver, request)


@dataclass(slots=True, eq=False)
class _Entry:
    driver: Driver
    state: DriverState = DriverState.STARTING
    error: str = ""
    """Why `start` or the last probe failed."""


class DriverRegistry:
    """All configured drivers. Belongs to one event loop; the lookups are plain reads and may be made by decisions.

    `start_all` first; `keep` runs until shutdown; `stop_all` last.
    """

    def __init__(
        self,
        loaded: LoadedDrivers,
        executor: HookExecutor,
        *,
        cluster_id: str = "",
        node_name: str | None = None,
        changed: Callable[[str], None] = lambda _driver: None,
        observe: Observe = lambda _driver, _hook, _seconds, _result: None,
        refresh: Refresh = no_secrets,
        call_hook: CallHook = call_hook,
    ) -> None:
        """changed: called with a driver's name when it becomes usable or stops being so; queue its objects again.

        refresh: awaited before a driver starts and before each probe. call_hook: what the executor's thread does.
        """
        self._observe = observe
        self._refresh = refresh
        self._call_hook = call_hook
        self._entries = {driver.name: _Entry(driver) for driver in loaded.drivers}
        self._broken = {broken.name: broken for broken in loaded.broken}
        self._limits = dict(loaded.limits)
        self._executor = executor
        self._cluster_id = cluster_id
        self._node_name = node_name
        self._changed = changed

    # --- looking up ---------------------------------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        """All configured drivers, usable or not."""
        return tuple(sorted({*self._entries, *self._broken}))

    def get(self, name: str) -> DriverView | None:
        """The driver of this name, if it can be used now."""
        entry = self._entries.get(name)
        return entry.driver.view if entry is not None and entry.state is DriverState.READY else None

    def broken(self, name: str) -> str:
        """Why the configured driver of this name cannot be used; "" if it can, or if none has this name."""
        if name in self._broken:
            return self._broken[name].error
        entry = self._entries.get(name)
        if entry is None or entry.state is DriverState.READY:
            return ""
        return f"driver {name} is {entry.state}{f': {entry.error}' if entry.error else ''}"

    def ready(self) -> tuple[DriverView, ...]:
        """The drivers that can be used now, by name."""
        return tuple(e.driver.view for _, e in sorted(self._entries.items()) if e.state is DriverState.READY)

    def owner_of(self, source: VolumeSource) -> tuple[DriverView | None, str]:
        """The one driver that says a static volume is its own; else None and the reason ("": all of them say no).

        Asks `owns` in the caller's thread: it must not touch the storage.
        """
        context = Context(driver="", cluster_id=self._cluster_id)
        owners: list[DriverView] = []
        doubts = [f"driver {b.name} may own it but is broken: {b.error}" for b in self._broken.values()]
        for name, entry in sorted(self._entries.items()):
            if not entry.driver.supports("owns"):
                continue
            if entry.state is not DriverState.READY:
                doubts.append(f"driver {name} may own it but is {entry.state}")
                continue
            request = OwnsRequest(context=dataclasses.replace(context, driver=name), source=source)
            try:
                if entry.driver.owns(request):
                    owners.append(entry.driver.view)
            except (BackendError, PluginError) as error:
                doubts.append(f"driver {name} cannot tell whether it owns it: {error}")
        if len(owners) == 1:
            return owners[0], ""
        if owners:
            return None, f"several drivers say it is theirs: {', '.join(d.name for d in owners)}"
        return None, "; ".join(doubts)

    def limits(self, name: str) -> DriverLimits:
        return self._limits.get(name) or DriverLimits()

    def status(self) -> tuple[DriverStatus, ...]:
        """Every driver now, by name."""
        states = {name: self._status(entry) for name, entry in self._entries.items()}
        for name, broken in self._broken.items():
            states[name] = status_of_broken(broken)
        return tuple(states[name] for name in sorted(states))

    def _status(self, entry: _Entry) -> DriverStatus:
        driver = entry.driver
        hung = self._executor.hung(driver.name)
        threads = f"all {self.limits(driver.name).concurrency} hooks that may run at once hang"
        return DriverStatus(
            name=driver.name,
            backend=driver.plugin.name,
            distribution=driver.plugin.distribution,
            state=entry.state,
            healthy=entry.state is DriverState.READY and not entry.error and not hung,
            hung=hung,
            error="; ".join(filter(None, (entry.error, threads if hung else ""))),
            hooks=tuple(sorted(driver.view.hooks)),
        )

    # --- calling ------------------------------------------------------------------------------------------------

    async def call(
        self,
        driver: DriverView,
        hook: Callable[[Driver, Q], T],
        request: Q,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - a hook cannot be cancelled
    ) -> T:
        """Call a hook in the driver's own threads: `await drivers.call(driver, Driver.provision, request)`.

        timeout: seconds, None = the driver's. The request's context gets it, and its `cancelled` is true once the
        caller has stopped waiting. Raises what the method raises, OutcomeUnknown after the timeout (see
        `HookExecutor`), and KeyError for a driver that is not of this registry.
        """
        facade = self._entries[driver.name].driver
        seconds = self.limits(driver.name).timeout if timeout is None else timeout
        abandoned = threading.Event()
        context = dataclasses.replace(request.context, timeout=seconds, cancelled=abandoned.is_set)
        told = dataclasses.replace(request, context=context)
        clock = asyncio.get_running_loop().time
        began, outcome = clock(), "cancelled"
        try:
            with logs.bound(driver=driver.name):
                result = await self._executor.call(
                    driver.name,
                    lambda: self._call_hook(facade, hook, told),
                    seconds,
                    what=hook.__name__,
                    abandoned=abandoned,
                )
            outcome = "in_progress" if isinstance(result, InProgress) else "ok"
        except (BackendError, PluginError) as error:
            outcome = type(error).__name__
            raise
        finally:
            self._observe(driver.name, hook.__name__, clock() - began, outcome)
        return result

    # --- starting, probing, stopping ----------------------------------------------------------------------------

    def presume_started(self) -> None:
        """Take every driver for usable without starting it: for who only decides, and never calls."""
        for entry in self._entries.values():
            entry.state = DriverState.READY

    async def start_all(self) -> None:
        """Call `start` of every driver, all at once; one that fails is unavailable, and `keep` tries it again."""
        await self._each(self._start, self._entries.values())

    async def keep(self) -> None:
        """Start what is unavailable again and probe the others every 30 s, until cancelled."""
        await self._each(self._keep_one, self._entries.values())

    async def stop_all(self) -> None:
        """Call `stop` of every started driver, all at once; errors are logged. Call it when no hook runs any more."""
        await self._each(self._stop, [e for e in self._entries.values() if e.state is DriverState.READY])

    async def probe(self, name: str) -> str:
        """Ask a usable driver whether its storage can be used; "" or what is wrong, which `status` then shows."""
        entry = self._entries[name]
        await self._probe(entry)
        return entry.error

    async def _each(self, act: Callable[[_Entry], Any], entries: Iterable[_Entry]) -> None:
        async with asyncio.TaskGroup() as group:
            for entry in entries:
                group.create_task(act(entry), name=f"driver {entry.driver.name}")

    def _context(self, entry: _Entry) -> Context:
        return Context(driver=entry.driver.name, cluster_id=self._cluster_id)

    async def _start(self, entry: _Entry) -> None:
        name = entry.driver.name
        if any(call.what == "start" for call in self._executor.running(name)):
            return  # an earlier start hangs; two at once would break the promise to backends
        request = StartRequest(context=self._context(entry), node_name=self._node_name)
        try:
            await self._refresh(entry.driver.secrets)
            await self.call(entry.driver.view, Driver.start, request, timeout=START_TIMEOUT)
        except (BackendError, PluginError) as error:
            self._turn(entry, DriverState.UNAVAILABLE, f"start failed: {error}")
        else:
            self._turn(entry, DriverState.READY, "")

    async def _keep_one(self, entry: _Entry) -> None:
        failures = 1
        while entry.state is not DriverState.STOPPED:
            if entry.state is DriverState.READY:
                failures = 1
                await asyncio.sleep(PROBE_INTERVAL)
                await self._probe(entry)
            else:
                await asyncio.sleep(DRIVER_NOT_STARTED.delay(failures))
                failures += 1
                await self._start(entry)

    async def _probe(self, entry: _Entry) -> None:
        if entry.state is not DriverState.READY or any(
            call.what == "probe" for call in self._executor.running(entry.driver.name)
        ):
            return
        try:
            await self._refresh(entry.driver.secrets)
            await self.call(
                entry.driver.view, Driver.probe, ProbeRequest(context=self._context(entry)), timeout=PROBE_TIMEOUT
            )
        except (BackendError, PluginError) as error:
            if not entry.error:
                log.warning("driver %s is not healthy: %s", entry.driver.name, error)
            entry.error = f"probe failed: {error}"
        else:
            if entry.error:
                log.info("driver %s is healthy again", entry.driver.name)
            entry.error = ""

    async def _stop(self, entry: _Entry) -> None:
        self._turn(entry, DriverState.STOPPED, "")
        try:
            await self.call(
                entry.driver.view, Driver.stop, StopRequest(context=self._context(entry)), timeout=PROBE_TIMEOUT
            )
        except (BackendError, PluginError) as error:
            log.warning("driver %s did not stop cleanly: %s", entry.driver.name, error)

    def _turn(self, entry: _Entry, state: DriverState, error: str) -> None:
        was, entry.state, entry.error = entry.state, state, error
        if state is DriverState.UNAVAILABLE:
            log.warning("driver %s is unavailable: %s", entry.driver.name, error)
        if was is not state:
            log.info("driver %s is %s", entry.driver.name, state)
            self._changed(entry.driver.name)
