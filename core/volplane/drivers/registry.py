"""Starts, probes and stops the drivers of this process, and looks up those that can be used now."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass
from http import HTTPStatus
from typing import Final

from volplane._delays import DRIVER_NOT_STARTED
from volplane.assets import VolumeSource
from volplane.drivers.driver import (
    BrokenDriver,
    Driver,
    DriverState,
    DriverStatus,
    DriverView,
    LoadedDrivers,
    PendingDriver,
    problem,
    serves_attachments,
)
from volplane.drivers.executor import HookCalls
from volplane.drivers.owners import SourceOwner, SourceOwners
from volplane.drivers.predecessor import pod_of_predecessor
from volplane.errors import ApiError, ApiNotFound, BackendError, PermissionDenied, PluginError, Unavailable
from volplane.kube.client import Client
from volplane.kube.kinds import SECRETS
from volplane.requests import Context, ProbeRequest, StartRequest, StopRequest
from volplane.secret import Secret, SecretPlace

log = logging.getLogger(__name__)

START_TIMEOUT: Final = 30.0
START_GRACE: Final = 2.0
"""Seconds for which a driver may start, or be made, before objects that need it report it."""
PROBE_TIMEOUT: Final = 10.0
PROBE_INTERVAL: Final = 30.0


@dataclass(slots=True, eq=False)
class _Entry:
    driver: Driver
    state: DriverState = DriverState.STARTING
    error: str = ""
    """Why `start` or the last probe failed."""


@dataclass(eq=False, repr=False)
class DriverRegistry:
    """All configured drivers. Belongs to one event loop. The lookups call no hook: decisions use them.

    `keep` starts the drivers and runs until shutdown; `stop_all` comes last. A driver that is not made yet is starting:
    it can be looked up by its name, and joins the others once it is made.
    """

    loaded: InitVar[LoadedDrivers]
    calls: HookCalls
    _: KW_ONLY
    client: Client | None = None
    """Reads the Kubernetes Secrets of drivers, before they start and before each probe; None: no cluster."""
    cluster_id: str = ""
    node_name: str | None = None
    changed: Callable[[str], None] = lambda _driver: None
    """Gets a driver's name when it becomes usable or unusable, or is made; it queues the driver's objects."""

    def __post_init__(self, loaded: LoadedDrivers) -> None:
        self._entries = {driver.name: _Entry(driver) for driver in loaded.drivers}
        self._publishing = loaded.publishing
        self.on_each_node = {driver.name: driver for driver in loaded.distributed}
        """Drivers whose hooks the processes of nodes call."""
        self._broken = {broken.name: broken for broken in loaded.broken}
        self._pending = {pending.name: pending for pending in loaded.pending}
        self._making_is_slow = False
        self._owners = SourceOwners(self.calls, self.cluster_id)
        self.started = asyncio.Event()
        """Set once no driver is `starting` any more."""
        self.made = asyncio.Event()
        """Set once every driver is made and was started, or failed: perhaps long after `started`."""
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
        driver = self.on_each_node.get(name)
        return driver.view if driver is not None else None

    def on_nodes(self, name: str) -> bool:
        """Return whether the processes of the nodes call the hooks of this driver, and this one does not."""
        pending = self._pending.get(name)
        return name in self.on_each_node or (pending is not None and pending.on_nodes)

    def publishes(self, name: str) -> bool:
        """Return whether the room of this driver is published, by this process or by those of the nodes."""
        entry = self._entries.get(name)
        view = self.distributed(name) if entry is None else entry.driver.view
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
        """Return why the configured driver of this name cannot be used; "": it can, or none here has this name."""
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
        """Return the configured drivers, usable or not, that serve the attachments of this CSI driver name."""
        # Those with the hooks, and the one of this name, whose volumes need no attaching.
        views = (entry.driver.view for entry in self._entries.values())
        served = (v.name for v in views if v.info.csi_driver_name == csi_driver and serves_attachments(v))
        return tuple(sorted(served))

    def owner_of(self, source: VolumeSource) -> SourceOwner:
        """Return the one driver that owns a static volume's source, as far as it is known."""
        owning = {name: entry for name, entry in sorted(self._entries.items()) if entry.driver.supports("owns")}
        pending = [name for name, each in self._pending.items() if not each.on_nodes]
        if first := next(filter(self.starting, (*pending, *owning)), ""):
            return SourceOwner(known=False, starting=first)
        # A driver that cannot be asked may be the owner, so that the others' no proves nothing.
        unusable = {name: entry.state for name, entry in owning.items() if entry.state is not DriverState.READY}
        doubts = [f"driver {b.name} may own it but is broken: {b.error}" for b in self._broken.values()]
        doubts += [f"driver {name} may own it but is {DriverState.STARTING}" for name in pending]
        doubts += [f"driver {name} may own it but is {state}" for name, state in unusable.items()]
        usable = [entry.driver.view for name, entry in owning.items() if name not in unusable]
        return self._owners.lookup(source, usable, doubts)

    async def identify(self, source: VolumeSource) -> None:
        """Ask the usable drivers which of them owns it; `owner_of` knows it then. Raises as `SourceOwners.identify`."""
        await self._owners.identify(source, [driver for driver in self.ready() if driver.supports("owns")])

    def forget_source(self, source: VolumeSource) -> None:
        self._owners.forget_source(source)

    def status(self) -> tuple[DriverStatus, ...]:
        states: dict[str, DriverStatus] = {**self._broken}
        for name, pending in self._pending.items():
            states[name] = self._status_of_pending(pending)
        for name, entry in self._entries.items():
            driver, hung = entry.driver, self.calls.hung(name)
            waiting = (f"{o}: {each.lacking}" for o, each in driver.secrets.items() if each.lacking and not each.needed)
            threads = f"all {self.calls.limits(name).concurrency} hooks that may run at once hang"
            states[name] = DriverStatus(
                name=name,
                backend=driver.plugin.name,
                distribution=driver.plugin.distribution,
                state=entry.state,
                healthy=entry.state is DriverState.READY and not entry.error and not hung,
                hung=hung,
                error="; ".join(filter(None, (entry.error, *waiting, threads if hung else ""))),
                hooks=tuple(sorted(driver.view.hooks)),
            )
        return tuple(states[name] for name in sorted(states))

    def _status_of_pending(self, pending: PendingDriver) -> DriverStatus:
        error = f"{pending.doing} has not ended yet" if self._making_is_slow else ""
        return DriverStatus(name=pending.name, backend=pending.backend, state=DriverState.STARTING, error=error)

    @property
    def all_hang(self) -> bool:
        """Whether hanging hooks hold the threads of all drivers. Only a restart of the process can change that.

        These are as many operations as may run at once, or a `start`, which never runs twice at once.
        """
        calls, entries = self.calls, self._entries
        hanging = {name for name in entries if calls.hung(name) or calls.running(name, "start", overrun=True)}
        return bool(hanging) and all(n in hanging or e.state is not DriverState.READY for n, e in entries.items())

    # --- starting, probing, stopping ----------------------------------------------------------------------------

    def presume_started(self) -> None:
        """Treat every driver as started, in a process that only reads and calls no hook."""
        for entry in self._entries.values():
            entry.state = DriverState.READY

    async def keep(self) -> None:
        """Start all drivers, retry with `DRIVER_NOT_STARTED`, probe ready ones every 30 s. Runs until cancelled."""
        grace = asyncio.get_running_loop().call_later(START_GRACE, self._making_takes_long)
        try:
            async with asyncio.TaskGroup() as group:
                for pending in tuple(self._pending.values()):
                    group.create_task(self._keep_once_made(pending), name=f"driver {pending.name}")
                for entry in tuple(self._entries.values()):
                    group.create_task(self._keep_one(entry), name=f"driver {entry.driver.name}")
        finally:
            grace.cancel()

    def _making_takes_long(self) -> None:
        self._making_is_slow = True
        self._note_started()
        for pending in self._pending.values():
            log.warning("%s", problem(self._status_of_pending(pending)))
            self.changed(pending.name)

    async def _keep_once_made(self, pending: PendingDriver) -> None:
        made = await asyncio.wrap_future(pending.made)
        del self._pending[pending.name]
        if isinstance(made, Driver) and not pending.on_nodes:
            self.calls.drivers[made.name] = made
            entry = self._entries[made.name] = _Entry(made)
            await self._keep_one(entry)
            return
        if isinstance(made, BrokenDriver):
            self._broken[made.name] = made
        else:
            # The processes of the nodes call its hooks: here they would act on the storage of another machine.
            self.on_each_node[made.name] = made
        self._note_started()
        self.changed(made.name)

    def _note_started(self) -> None:
        if not any(self.starting(name) for name in (*self._entries, *self._pending)):
            self.started.set()
            if not self._pending:
                self.made.set()

    async def _keep_one(self, entry: _Entry) -> None:
        if entry.state is DriverState.STARTING:
            await self._start(entry)
        failures = 1
        while entry.state is not DriverState.STOPPED:
            if entry.state is DriverState.READY:
                failures = 1
                await asyncio.sleep(PROBE_INTERVAL)
                await self.probe(entry.driver.name)
            else:
                await asyncio.sleep(DRIVER_NOT_STARTED.delay(failures))
                failures += 1
                await self._start(entry)

    async def _start(self, entry: _Entry) -> None:
        driver = entry.driver
        if self.calls.running(driver.name, "start"):
            return  # an earlier start hangs; backends are promised that no two run at once
        context = Context(driver=driver.name, cluster_id=self.cluster_id)
        request = StartRequest(context=context, node_name=self.node_name)
        # Objects that need the driver wait without a message for as long as this.
        grace = asyncio.get_running_loop().call_later(START_GRACE, self._start_is_slow, entry)
        try:
            await refresh_secrets(self.client, driver.secrets)
            await self._require_alone(driver.view)
            await self.calls.call(driver.view, request, timeout=START_TIMEOUT)
        except (BackendError, PluginError) as error:
            self._turn(entry, DriverState.UNAVAILABLE, f"start failed: {error}")
        else:
            self._turn(entry, DriverState.READY, "")
        finally:
            grace.cancel()

    async def _require_alone(self, driver: DriverView) -> None:
        """Raise Unavailable while the controller whose place the driver takes runs, if that must not run beside it."""
        predecessor = driver.info.predecessor
        if self.client is None or predecessor is None or not predecessor.excludes:
            return
        try:
            pod = await pod_of_predecessor(self.client, predecessor, driver.name)
        except ApiError as error:
            log.warning("whether the former controller of driver %s runs cannot be seen: %s", driver.name, error)
            return
        if pod:
            raise Unavailable(f"its former controller runs in pod {pod}: stop it first")

    def _start_is_slow(self, entry: _Entry) -> None:
        if entry.state is DriverState.STARTING:
            self._turn(entry, DriverState.UNAVAILABLE, f"start has not returned within {START_GRACE:g} s")

    async def probe(self, name: str) -> str:
        """Call `probe` of a usable driver. Returns "", or what is wrong, which `status` shows until the next probe."""
        entry = self._entries[name]
        if entry.state is not DriverState.READY or self.calls.running(name, "probe"):
            return entry.error
        try:
            await refresh_secrets(self.client, entry.driver.secrets)
            request = ProbeRequest(context=Context(driver=name, cluster_id=self.cluster_id))
            await self.calls.call(entry.driver.view, request, timeout=PROBE_TIMEOUT)
        except (BackendError, PluginError) as error:
            if not entry.error:
                log.warning("driver %s is not healthy: %s", name, error)
            entry.error = f"probe failed: {error}"
        else:
            if entry.error:
                log.info("driver %s is healthy again", name)
            entry.error = ""
        return entry.error

    async def stop_all(self) -> None:
        """Call `stop` of every started driver, all at once, when no other hook runs any more. Errors are logged."""
        async with asyncio.TaskGroup() as group:
            for entry in self._entries.values():
                if entry.state is DriverState.READY:
                    group.create_task(self._stop(entry), name=f"driver {entry.driver.name}")

    async def _stop(self, entry: _Entry) -> None:
        self._turn(entry, DriverState.STOPPED, "")
        request = StopRequest(context=Context(driver=entry.driver.name, cluster_id=self.cluster_id))
        try:
            await self.calls.call(entry.driver.view, request, timeout=PROBE_TIMEOUT)
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
            self.changed(entry.driver.name)


async def refresh_secrets(client: Client | None, named: Mapping[str, Secret]) -> None:
    """Set the present values of all Kubernetes Secrets in `named` (option -> secret). Reads each object once.

    What cannot be read keeps its earlier value. Raises Unavailable or PermissionDenied naming option and Secret for the
    first of these that is needed. Without a client only secrets in the environment and in files can be revealed.
    """
    read: dict[str, Mapping[str, str] | ApiError] = {}
    failure: BackendError | None = None
    for option, secret in named.items():
        if secret.place is not SecretPlace.KUBERNETES or client is None:
            continue
        if secret.where not in read:
            try:
                read[secret.where] = (await client.get(SECRETS, secret.where)).data or {}
            except ApiError as error:
                read[secret.where] = error
        try:
            secret.give(_text_of(secret, read[secret.where]))
        except (Unavailable, PermissionDenied) as error:
            if secret.needed:
                failure = failure or type(error)(f"{option}: {error}")
            elif secret.lacking != str(error):
                log.warning("%s: %s; what needs it waits", option, error)
            secret.lacking = str(error)
    if failure is not None:
        raise failure


def _text_of(secret: Secret, data: Mapping[str, str] | ApiError) -> str:
    """Return the value of the secret in its object's data. Raises Unavailable or PermissionDenied."""
    where, key = secret.where, secret.key
    if isinstance(data, ApiNotFound):
        what = "its keys" if key == "*" else f"the key {key}"
        raise Unavailable(f"Secret {where} does not exist; create it with {what}")
    if isinstance(data, ApiError) and data.status == HTTPStatus.FORBIDDEN:
        how = "`volplane manifests --config` prints the Role that allows it"
        raise PermissionDenied(f"Secret {where} may not be read; {how}")
    if isinstance(data, ApiError):
        raise Unavailable(f"Secret {where} cannot be read: {data}")
    if key not in (*data, "*"):
        raise Unavailable(f"Secret {where} has no key {key}; its keys: {', '.join(sorted(data)) or 'none'}")
    try:
        texts = {k: base64.b64decode(v, validate=True).decode() for k, v in data.items() if key in (k, "*")}
    except (binascii.Error, UnicodeDecodeError):
        raise Unavailable(f"key {key} of Secret {where} is no UTF-8 text") from None
    return json.dumps(texts) if key == "*" else texts[key]
