"""Starts, probes and stops the drivers of this process, and looks up those that can be used now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from volplane._delays import DRIVER_NOT_STARTED
from volplane.assets import VolumeSource
from volplane.drivers.calls import HookCalls
from volplane.drivers.driver import Driver
from volplane.drivers.owners import SourceOwner, SourceOwners
from volplane.drivers.status import (
    BrokenDriver,
    DriverState,
    DriverStatus,
    LoadedDrivers,
    PendingDriver,
    problem,
)
from volplane.drivers.view import DriverView, serves_attachments
from volplane.errors import BackendError, PluginError
from volplane.requests import Context, OwnsRequest, ProbeRequest, StartRequest, StopRequest
from volplane.secret import Secret

__all__ = ["DriverRegistry", "Refresh", "no_secrets"]

log = logging.getLogger(__name__)

START_TIMEOUT: Final = 30.0
START_GRACE: Final = 2.0
"""Seconds for which a driver may start, or be made, before objects that need it report it."""
PROBE_TIMEOUT: Final = 10.0
OWNS_TIMEOUT: Final = 30.0
PROBE_INTERVAL: Final = 30.0

Refresh = Callable[[Mapping[str, Secret]], Awaitable[None]]
"""Reads the Kubernetes Secrets among a driver's secrets again (`ClusterSecrets.refresh`). Raises BackendError."""


async def no_secrets(_secrets: Mapping[str, Secret]) -> None:
    """Read nothing: without a cluster, only secrets in the environment and in files can be revealed."""


@dataclass(slots=True, eq=False)
class _Entry:
    driver: Driver
    state: DriverState = DriverState.STARTING
    error: str = ""
    """Why `start` or the last probe failed."""


class DriverRegistry:
    """All configured drivers. Belongs to one event loop. The lookups call no hook, so decisions may use them.

    `keep` starts the drivers and runs until shutdown; `stop_all` comes last. A driver that is not made yet is starting:
    it can be looked up by its name, and joins the others once it is made.
    """

    def __init__(
        self,
        loaded: LoadedDrivers,
        calls: HookCalls,
        *,
        cluster_id: str = "",
        node_name: str | None = None,
        changed: Callable[[str], None] = lambda _driver: None,
        refresh: Refresh = no_secrets,
    ) -> None:
        """calls: how their hooks are called. cluster_id, node_name: for the contexts and the start requests of hooks.

        changed: called with a driver's name when it becomes usable or unusable, or is made; it queues the driver's
        objects.
        refresh: awaited before a driver starts and before each probe.
        """
        self._refresh = refresh
        self._entries = {driver.name: _Entry(driver) for driver in loaded.drivers}
        self._publishing = loaded.publishing
        self._distributed = {driver.name: driver.view for driver in loaded.distributed}
        self._broken = {broken.name: broken for broken in loaded.broken}
        self._pending = {pending.name: pending for pending in loaded.pending}
        self._making_is_slow = False
        self.calls = calls
        self._cluster_id = cluster_id
        self._node_name = node_name
        self._changed = changed
        self._owners = SourceOwners(self._ask_owns)
        self._none_starting = asyncio.Event()
        self._none_pending = asyncio.Event()
        self._note_started()

    # --- looking up ---------------------------------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        """Return the names of all configured drivers but the distributed ones, usable or not."""
        pending = (each.name for each in self._pending.values() if not each.on_nodes)
        return tuple(sorted({*self._entries, *self._broken, *pending}))

    def get(self, name: str) -> DriverView | None:
        """Return the driver of this name if it can be used now."""
        entry = self._entries.get(name)
        return entry.driver.view if entry is not None and entry.state is DriverState.READY else None

    def distributed(self, name: str) -> DriverView | None:
        """Return the driver of this name if it is `on_nodes` and made."""
        return self._distributed.get(name)

    def on_nodes(self, name: str) -> bool:
        """Tell whether the processes of the nodes call the hooks of this driver, and this one does not."""
        pending = self._pending.get(name)
        return name in self._distributed or (pending is not None and pending.on_nodes)

    def publishes(self, name: str) -> bool:
        """Tell whether the driver's capacity is published, by this process or by those of the nodes."""
        entry = self._entries.get(name)
        view = self._distributed.get(name) if entry is None else entry.driver.view
        return view is not None and name in self._publishing and view.supports("get_capacity")

    def publishers(self) -> tuple[DriverView, ...]:
        """Return the drivers whose capacity this process publishes, usable or not."""
        return tuple(entry.driver.view for name, entry in sorted(self._entries.items()) if self.publishes(name))

    def starting(self, name: str) -> bool:
        """Tell whether this driver is being made or started for the first time, for at most `START_GRACE` seconds."""
        if self._pending_here(name) is not None:
            return not self._making_is_slow
        entry = self._entries.get(name)
        return entry is not None and entry.state is DriverState.STARTING

    def _pending_here(self, name: str) -> PendingDriver | None:
        """Return the driver of this name if this process will call it and it is not made yet."""
        pending = self._pending.get(name)
        return pending if pending is not None and not pending.on_nodes else None

    def broken(self, name: str) -> str:
        """Explain why the configured driver of this name cannot be used; "": it can, or none here has this name."""
        if name in self._broken:
            return self._broken[name].error
        if (pending := self._pending_here(name)) is not None:
            return problem(self._status_of_pending(pending))
        entry = self._entries.get(name)
        if entry is None or entry.state is DriverState.READY:
            return ""
        return f"driver {name} is {entry.state}{f': {entry.error}' if entry.error else ''}"

    def ready(self) -> tuple[DriverView, ...]:
        """Return the drivers that can be used now, by name."""
        return tuple(e.driver.view for _, e in sorted(self._entries.items()) if e.state is DriverState.READY)

    def attachers(self, csi_driver: str) -> tuple[str, ...]:
        """Return the names of the configured drivers that serve the attachments of this CSI driver name, usable or not.

        These are the drivers with the hooks, and the one of this name, whose volumes need no attaching.
        """
        views = (entry.driver.view for entry in self._entries.values())
        served = (v.name for v in views if v.info.csi_driver_name == csi_driver and serves_attachments(v))
        return tuple(sorted(served))

    def owner_of(self, source: VolumeSource) -> SourceOwner:
        """Return the owner of a static volume's source, as far as it is known. Calls no hook; `identify` does."""
        owning = [(name, entry) for name, entry in sorted(self._entries.items()) if entry.driver.supports("owns")]
        pending = [name for name in self._pending if self._pending_here(name) is not None]
        if first := next((name for name in (*pending, *(name for name, _ in owning)) if self.starting(name)), ""):
            return SourceOwner(known=False, starting=first)
        doubts = [f"driver {b.name} may own it but is broken: {b.error}" for b in self._broken.values()]
        doubts += [f"driver {name} may own it but is {DriverState.STARTING}" for name in pending]
        doubts += [
            f"driver {name} may own it but is {entry.state}"
            for name, entry in owning
            if entry.state is not DriverState.READY
        ]
        return self._owners.lookup(source, self._possible_owners(), doubts)

    def forget_source(self, source: VolumeSource) -> None:
        """Drop the drivers' answers about a source whose volume is gone."""
        self._owners.forget_source(source)

    def _possible_owners(self) -> tuple[DriverView, ...]:
        return tuple(driver for driver in self.ready() if driver.supports("owns"))

    def status(self) -> tuple[DriverStatus, ...]:
        """Return the status of every driver, by name."""
        states = {name: self._status(entry) for name, entry in self._entries.items()}
        for name, broken in self._broken.items():
            states[name] = broken.status
        for name, pending in self._pending.items():
            states[name] = self._status_of_pending(pending)
        return tuple(states[name] for name in sorted(states))

    def _status_of_pending(self, pending: PendingDriver) -> DriverStatus:
        return pending.status(f"{pending.doing} has not ended yet" if self._making_is_slow else "")

    def _status(self, entry: _Entry) -> DriverStatus:
        driver = entry.driver
        hung = self.calls.hung(driver.name)
        threads = f"all {self.calls.limits(driver.name).concurrency} hooks that may run at once hang"
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

    async def identify(self, source: VolumeSource) -> None:
        """Ask the usable drivers which of them owns a static volume's source; `owner_of` knows it afterwards.

        Raises the BackendError or PluginError of a driver that failed, if the owner is not known without its answer.
        """
        await self._owners.identify(source, self._possible_owners())

    async def _ask_owns(self, name: str, source: VolumeSource) -> bool:
        entry = self._entries[name]
        request = OwnsRequest(context=self._context(entry), source=source)
        return await self.calls.call(entry.driver.view, request, timeout=OWNS_TIMEOUT)

    # --- starting, probing, stopping ----------------------------------------------------------------------------

    def presume_started(self) -> None:
        """Treat every driver as started, in a process that only reads and calls no hook."""
        for entry in self._entries.values():
            entry.state = DriverState.READY

    async def start_all(self) -> None:
        """Start all drivers at once and wait. One whose `start` fails is unavailable until `keep` starts it."""
        await self._each(self._start, self._entries.values())

    async def keep(self) -> None:
        """Start all drivers, retry with `DRIVER_NOT_STARTED`, probe ready ones every 30 s. Runs until cancelled."""
        grace = asyncio.get_running_loop().call_later(START_GRACE, self._making_takes_long)
        try:
            async with asyncio.TaskGroup() as group:
                for pending in tuple(self._pending.values()):
                    group.create_task(self._keep_once_made(pending), name=f"driver {pending.name}")
                await self._each(self._keep_one, tuple(self._entries.values()))
        finally:
            grace.cancel()

    def _making_takes_long(self) -> None:
        self._making_is_slow = True
        self._note_started()
        for pending in self._pending.values():
            log.warning("%s", problem(self._status_of_pending(pending)))
            self._changed(pending.name)

    async def _keep_once_made(self, pending: PendingDriver) -> None:
        made = await asyncio.wrap_future(pending.made)
        del self._pending[pending.name]
        if isinstance(made, Driver) and not pending.on_nodes:
            self.calls.add(made)
            entry = self._entries[made.name] = _Entry(made)
            await self._keep_one(entry)
            return
        if isinstance(made, BrokenDriver):
            self._broken[made.name] = made
        else:
            self._distributed[made.name] = made.view
        self._note_started()
        self._changed(made.name)

    async def started(self) -> None:
        """Return once no driver is `starting` any more."""
        await self._none_starting.wait()

    async def made(self) -> None:
        """Return once every driver is made and was started, or failed: perhaps long after `started`."""
        await self._none_pending.wait()

    def _note_started(self) -> None:
        if not any(self.starting(name) for name in (*self._entries, *self._pending)):
            self._none_starting.set()
            if not self._pending:
                self._none_pending.set()

    @property
    def all_hang(self) -> bool:
        """Whether hanging hooks hold the threads of all drivers. Only a restart of the process can change that."""
        useless = [entry for entry in self._entries.values() if self._hangs(entry)]
        return bool(useless) and all(
            self._hangs(entry) or entry.state is not DriverState.READY for entry in self._entries.values()
        )

    def _hangs(self, entry: _Entry) -> bool:
        """Tell whether as many operations hang as may run at once, or a `start`, which never runs twice at once."""
        return self.calls.hung(entry.driver.name) or self.calls.overrun(entry.driver.name, "start")

    async def stop_all(self) -> None:
        """Call `stop` of every started driver, all at once, when no other hook runs any more. Errors are logged."""
        await self._each(self._stop, [e for e in self._entries.values() if e.state is DriverState.READY])

    async def probe(self, name: str) -> str:
        """Call `probe` of a usable driver. Returns "", or what is wrong, which `status` shows until the next probe."""
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
        if self.calls.running(entry.driver.name, "start"):
            return  # an earlier start hangs; backends are promised that no two run at once
        request = StartRequest(context=self._context(entry), node_name=self._node_name)
        # Objects that need the driver wait without a message for as long as this.
        grace = asyncio.get_running_loop().call_later(START_GRACE, self._start_is_slow, entry)
        try:
            await self._refresh(entry.driver.secrets)
            await self.calls.call(entry.driver.view, request, timeout=START_TIMEOUT)
        except (BackendError, PluginError) as error:
            self._turn(entry, DriverState.UNAVAILABLE, f"start failed: {error}")
        else:
            self._turn(entry, DriverState.READY, "")
        finally:
            grace.cancel()

    def _start_is_slow(self, entry: _Entry) -> None:
        if entry.state is DriverState.STARTING:
            self._turn(entry, DriverState.UNAVAILABLE, f"start has not returned within {START_GRACE:g} s")

    async def _keep_one(self, entry: _Entry) -> None:
        if entry.state is DriverState.STARTING:
            await self._start(entry)
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
        if entry.state is not DriverState.READY or self.calls.running(entry.driver.name, "probe"):
            return
        try:
            await self._refresh(entry.driver.secrets)
            await self.calls.call(entry.driver.view, ProbeRequest(context=self._context(entry)), timeout=PROBE_TIMEOUT)
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
            await self.calls.call(entry.driver.view, StopRequest(context=self._context(entry)), timeout=PROBE_TIMEOUT)
        except (BackendError, PluginError) as error:
            log.warning("driver %s did not stop cleanly: %s", entry.driver.name, error)

    def _turn(self, entry: _Entry, state: DriverState, error: str) -> None:
        was, entry.state, entry.error = entry.state, state, error
        self._owners.forget_driver(entry.driver.name)
        self._note_started()
        if state is DriverState.UNAVAILABLE:
            log.warning("driver %s is unavailable: %s", entry.driver.name, error)
        if was is not state:
            log.info("driver %s is %s", entry.driver.name, state)
            self._changed(entry.driver.name)
