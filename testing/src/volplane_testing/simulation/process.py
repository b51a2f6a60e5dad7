"""One controller process under simulation: the real control plane, which can be killed at any moment."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeVar

from volplane.controller.actions import EventRecord
from volplane.controller.config import ScrubberSettings
from volplane.controller.controller import Role
from volplane.controller.leader import Leadership
from volplane.controller.workqueue import ControllerMetrics
from volplane.drivers.driver import Driver, LoadedDrivers
from volplane.kube.client import Client, Counted
from volplane.kube.kinds import VOLUMES, Kind
from volplane.kube.objects import KubeObject
from volplane.leaks.check import lists
from volplane.operations.operation import DriverLimits, Phase
from volplane.process.assembly import Dependencies, build
from volplane.process.control_plane import ControlPlane
from volplane.state.records import Sealer
from volplane_testing.clock import LoopClock
from volplane_testing.control_plane import idle, reasons_of, run_plane
from volplane_testing.simulation.hook_rules import HookRules
from volplane_testing.simulation.hooks import TIMEOUT, FaultInjector, TimedExecutor
from volplane_testing.simulation.loop import WHO, ScheduleLoop
from volplane_testing.simulation.network import Network
from volplane_testing.simulation.run_context import CLUSTER_ID, LEASE_NAME, NAMESPACE
from volplane_testing.simulation.trace import FirstViolation

__all__ = ["FIRST", "Installation", "Process", "ProcessParts"]

T = TypeVar("T", bound=KubeObject)

ATTEMPTS = 3
MOST_PASSES = 20_000
STILL_BROKEN = 60.0
"""Seconds after the last fault in which a watch may still fail because of it."""
SEALING_KEY = b"a key for simulations, known to all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What tells installations of one cluster apart. key: it seals records. binds: it is the binder, and protects and
    reclaims volumes, too; else it makes them alone.
    """

    namespace: str
    key: bytes
    binds: bool = True


FIRST: Final = Installation(namespace=NAMESPACE, key=SEALING_KEY)


class Meter(ControllerMetrics):
    """Counts passes. A pass that ends with an error, too many passes, or a watch that fails long after the last fault
    breaks an invariant.
    """

    def __init__(
        self, failed: Callable[[str, str], None], broken: Callable[[str], None], calm_since: Callable[[], float]
    ) -> None:
        self._total = 0
        self._failed = failed
        self._broken = broken
        self._calm_since = calm_since

    def count(self, what: Counted, *labels: str) -> None:
        match what, labels:
            case "pass ended", (runner, result):
                self._total += 1
                if self._total == MOST_PASSES:
                    self._failed(runner, "made more passes than a finite run needs")
                if result in ("error", "unsettled"):
                    self._failed(runner, result)
            case "watch ended", (resource, "error"):
                if asyncio.get_running_loop().time() > self._calm_since() + STILL_BROKEN:
                    self._broken(resource)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessParts:
    """What a process is started with. leadership: what it believes about its lease.

    calm_since: loop time at which faults ended; infinity: not yet. restart: ends the process, and starts another one.
    fenced: called with the later term for which a storage refused a call. attaches: it runs the controllers of
    attachments. cuts: and those of snapshots.
    """

    drivers: Sequence[Driver]
    injector: FaultInjector
    network: Network
    latency: Callable[[str, str], tuple[float, float]]
    wall: LoopClock
    violations: FirstViolation
    record: Callable[[str, EventRecord], None]
    calm_since: Callable[[], float]
    restart: Callable[[], None]
    fenced: Callable[[str], None]
    leadership: Leadership
    rules: HookRules
    seed: int
    attaches: bool
    cuts: bool
    installation: Installation = FIRST


class WatchedClient(Client):
    """Tells what a process creates, as it is decided: a request may wait before it is sent."""

    def __init__(self, network: Network, created: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__(network)
        self._created = created

    async def create(
        self, kind: Kind[T], body: Mapping[str, Any], *, low_priority: bool = False, seconds: float | None = None
    ) -> T:
        if kind is VOLUMES:
            self._created(body)
        return await super().create(kind, body, low_priority=low_priority, seconds=seconds)


class Process:
    """One process: started once, then killed."""

    def __init__(self, name: str, parts: ProcessParts) -> None:
        self.name = name
        self.leadership = parts.leadership
        self.network = parts.network
        self.meter = Meter(self._pass_failed, self._watch_broke, parts.calm_since)
        self._parts = parts
        limits: Mapping[str, DriverLimits] = {d.name: DriverLimits(timeout=TIMEOUT) for d in parts.drivers}
        self._rules = parts.rules
        self._safety = parts.network.run_context.safety
        self._rules.leaderships[name] = parts.leadership
        self._executor = TimedExecutor(parts.latency, parts.rules)
        self._loaded = LoadedDrivers(drivers=tuple(parts.drivers), limits=limits)
        self.plane: ControlPlane | None = None
        self._leads = asyncio.Event()
        """Set unless it follows another one."""
        self._task: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    def start(self, *, follows: bool = False) -> None:
        """Run in a task of its own; all tasks of the process descend from it. follows: it waits for `lead`."""
        if not follows:
            self._leads.set()
        self._task = asyncio.get_running_loop().create_task(self._run(), context=self._context())

    def _context(self) -> contextvars.Context:
        """Return the context for a task of this process."""
        context = contextvars.copy_context()
        context.run(WHO.set, self.name)
        return context

    def kill(self) -> None:
        """End it between two steps of its tasks: no task of it runs on, no hook that has not begun takes effect."""
        self.network.dead = True
        self._rules.dead.add(self.name)
        self._executor.close()
        loop = asyncio.get_running_loop()
        if isinstance(loop, ScheduleLoop):
            loop.continue_process(self.name)
            for task in loop.tasks_of(self.name):
                task.cancel()

    def lead(self, leadership: Leadership) -> None:
        """Begin the term for which it has kept its caches warm."""
        self.leadership = self._rules.leaderships[self.name] = leadership
        self._leads.set()

    def lead_again(self, leadership: Leadership) -> None:
        """Make it the leader of a new term."""
        self.lead(leadership)
        if self.plane is not None:
            self._looking = asyncio.get_running_loop().create_task(self.plane.resync(), context=self._context())

    def look_again(self, queue: str) -> None:
        """Queue the keys of one queue as the resync does, which comes every ten minutes."""
        for runner in self.plane.runners if self.plane is not None else ():
            if self.plane is not None and runner.name == queue:
                for key in self.plane.controllers[queue].resync():
                    runner.enqueue(key)

    def _may_begin(self) -> bool:
        return self.leadership.may_begin()

    def at_rest(self, unending: AbstractSet[str]) -> bool:
        """Tell whether nothing is in work or due later, no operation runs or waits, and no hook runs.

        unending: uids of claims for which something is tried again without end.
        """
        plane = self.plane
        if plane is None or not plane.synced or self._executor.running():
            return False
        if any(each.uid not in unending or each.phase is not Phase.WAITING for each in plane.operations.snapshot()):
            return False
        return all(idle(runner) and runner.queue.next_due is None for runner in plane.runners)

    def reasons(self) -> dict[str, str]:
        """Return why keys wait, by runner and key."""
        return {} if self.plane is None else reasons_of(self.plane)

    def unchecked(self) -> list[str]:
        """Return the drivers that the leak check does not go on with, though they list assets."""
        running = {task.get_name() for task in asyncio.all_tasks()}
        drivers = self.plane.drivers.ready() if self.plane is not None else ()
        listing = [driver.name for driver in drivers if lists(driver)]
        return [name for name in listing if f"leak check {name}" not in running]

    def record(self, event: EventRecord) -> None:
        if not self.network.dead:
            self._parts.record(self.name, event)

    async def _run(self) -> None:
        try:
            await self._live()
        except Exception as error:  # noqa: BLE001 -- a control plane must not end by itself
            self._parts.violations.report("no-internal-error", f"process {self.name} ended: {error!r}")

    async def _live(self) -> None:
        parts = self._parts
        installation = parts.installation
        role = Role(
            controllers=frozenset(
                {"provisioner", "expander", "assigner", "capacity"}
                | ({"binder", "reclaimer", "protection"} if installation.binds else set())
                | ({"attacher", "attach-detach"} if parts.attaches else set())
                | ({"snapshot-controller", "snapshotter", "snapshot-scheduler"} if parts.cuts else set())
            ),
            cluster_id=CLUSTER_ID,
            namespace=installation.namespace,
            lease=f"{installation.namespace}/{LEASE_NAME}",
            scrub=ScrubberSettings(attempts=ATTEMPTS),
        )
        plane = build(
            role,
            Dependencies(
                client=WatchedClient(parts.network, self._saves),
                loaded=self._loaded,
                executor=self._executor,
                recorder=self,
                sealer=Sealer(parts.installation.key, parts.installation.namespace),
                now=parts.wall.now,
                random=Random(parts.seed),  # noqa: S311 -- jitter
                fence=lambda: str(self.leadership.fence),
                may_begin=self._may_begin,
                metrics=self.meter,
                call_hook=parts.injector.call_hook,
                fenced=parts.fenced,
            ),
        )

        def started() -> None:
            self.plane = plane
            self._watching = asyncio.get_running_loop().create_task(self._end_when_restored(plane))
            self._safety.promises.believed[self.name] = plane.state.volumes.get

        async with asyncio.TaskGroup() as group:
            if self._leads.is_set():
                group.create_task(run_plane(plane, started), name="plane")
            else:
                group.create_task(self._follow(plane, started), name="plane")
                await self._leads.wait()
            group.create_task(plane.leak_check.run(), name="leak check")
            if plane.attachments is not None:
                group.create_task(plane.attachments.run(), name="attachments")
            group.create_task(self.network.credentials.keep(), name="credentials")

    async def _follow(self, plane: ControlPlane, started: Callable[[], None]) -> None:
        """Fill the caches and take no step until it leads; then run the drivers, too."""
        self.plane = plane
        plane.follow()
        async with asyncio.TaskGroup() as group:
            group.create_task(plane.run(), name="controllers")
            await self._leads.wait()
            started()
            plane.lead(group)
            group.create_task(plane.drivers.keep(), name="drivers")

    def _saves(self, volume: Mapping[str, Any]) -> None:
        self._safety.saving(volume, self.plane.state.claims.get if self.plane is not None else lambda _key: None)

    async def _end_when_restored(self, plane: ControlPlane) -> None:
        await plane.restored.wait()
        self._parts.restart()

    def _watch_broke(self, resource: str) -> None:
        plane = self.plane
        why = [each.failing for each in plane.reflectors if each.kind.plural == resource] if plane is not None else []
        self._parts.violations.report("watches-go-on", f"the watch of {resource} fails without a fault: {why}")

    def _pass_failed(self, runner: str, result: str) -> None:
        why = [text for key, text in self.reasons().items() if key.startswith(runner)]
        texts = [
            text for text in why if "internal error" in text or "did not settle" in text or "changed nothing" in text
        ]
        self._parts.violations.report("no-internal-error", f"runner {runner}: {result}: {'; '.join(texts)}")
