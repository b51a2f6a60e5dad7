"""The control plane of one process, queries about its state, and one term of leadership that runs it.

`volplane.process.assembly.build` makes it. Nothing here decides anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from volplane.attach.comparison import AttachmentComparison
from volplane.controller.actions import started
from volplane.controller.controller import Controller, Role
from volplane.controller.leader import Leadership
from volplane.controller.runner import Runner
from volplane.drivers.driver import DriverState, DriverStatus, problem
from volplane.drivers.executor import ThreadExecutor
from volplane.drivers.registry import DriverRegistry
from volplane.explain.explain import Explainer, Explanation, what_it_does
from volplane.kube.cache import Cache
from volplane.kube.events import EventRecorder
from volplane.kube.kinds import ATTACHMENTS
from volplane.kube.reflector import Reflector
from volplane.leaks.check import LeakCheck
from volplane.leaks.repair import Adoption, LeakRepair
from volplane.operations.registry import OperationRegistry
from volplane.process.duties import CHANGES
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import no_room_told

_LOG = logging.getLogger(__name__)

ENQUEUED_AT_ONCE = 100
ENQUEUE_PAUSE = 0.02
"""Seconds between batches of a resync: 5,000 objects a second, about a seventh of a core."""
STOP_SECONDS: Final = 9.0
"""Less than the 10 s within which the process promises to end after SIGTERM."""
STEP_SECONDS: Final = 1.5
DRAIN_SECONDS: Final = 3.0
HOOK_SECONDS: Final = 1.5
EVENT_SECONDS: Final = 1.0
HUNG_SECONDS = 60.0
"""Seconds without a driver that could work after which the term ends, because only a restart frees its threads."""
HUNG_INTERVAL = 5.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ControlPlane:
    """What one term of leadership runs. Belongs to one event loop."""

    role: Role
    state: ClusterState
    caches: Mapping[str, Cache[Any]]
    """By the plural of their kind. Controllers start once they are synced."""
    drivers: DriverRegistry
    executor: ThreadExecutor
    """Of the hooks; the caller closes it."""
    operations: OperationRegistry
    controllers: Mapping[str, Controller]
    """By their queues."""
    runners: Sequence[Runner]
    reflectors: Sequence[Reflector[Any]]
    leak_check: LeakCheck
    """Runs only if the process runs it, as the next three."""
    leak_repair: LeakRepair
    adoption: Adoption
    attachments: AttachmentComparison | None
    """None where none are served."""
    changed: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    """Drivers that have become usable or unusable, or were made, and whose objects are queued next."""
    restored: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the API server turns out to be restored from a backup: what this process knows may never have been."""

    @property
    def synced(self) -> bool:
        """Whether every cache holds what the server had when it was listed."""
        return all(cache.listed.is_set() for cache in self.caches.values())

    def follow(self) -> None:
        """Let `run` fill the caches and decide, and take no step until `lead`."""
        if (attachments := self.caches.get(ATTACHMENTS.plural)) is not None:
            attachments.followed = True
        for runner in self.runners:
            runner.follows = True

    def lead(self, group: asyncio.TaskGroup) -> None:
        """Take the steps that were left to another process, in tasks of `group`."""
        for runner in self.runners:
            runner.follows = False
            group.create_task(runner.take_up(), name="lead")

    async def wait_synced(self) -> None:
        for cache in self.caches.values():
            await cache.listed.wait()

    def reason(self, queue: str, key: str) -> str:
        """Why the key was left waiting last; "" if it was not."""
        return next((each.reasons.get(key, "") for each in self.runners if each.name == queue), "")

    async def resync(self) -> None:
        """Queue all objects."""
        for runner in self.runners:
            await _enqueue(runner, self.controllers[runner.name].resync(), pause=ENQUEUE_PAUSE)

    async def _follow_drivers(self) -> None:
        while True:
            name = await self.changed.get()
            for runner in self.runners:
                await _enqueue(runner, self.controllers[runner.name].of_driver(name))

    def reasons(self) -> Mapping[str, Mapping[str, str]]:
        """Queue -> key -> why the key waits. Of an operation it is what that does now, not that it was started."""
        now = self.state.monotonic()
        present = {started(state.name): what_it_does(state, now) for state in self.operations.snapshot()}
        return {
            runner.name: {key: present.get(reason, reason) for key, reason in runner.reasons.items()}
            for runner in self.runners
        }

    def drivers_on_nodes(self) -> Iterator[DriverStatus]:
        """Yield the drivers that the processes of nodes serve, as far as the room that those publish shows it."""
        published = {each.storage_class_name for each in self.state.capacities.values()}
        for name, driver in self.drivers.on_each_node.items():
            own = {each.name for each in self.state.classes.values() if each.provisioner == name}
            silent = bool(own) and own.isdisjoint(published) and self.drivers.publishes(name)
            yield DriverStatus(
                name=name,
                backend=driver.plugin.name,
                distribution=driver.plugin.distribution,
                state=DriverState.ON_NODES,
                healthy=not silent,
                error=no_room_told(self.state.namespace) if silent else "",
            )

    def explain(self, kind: str, key: str) -> Explanation:
        """Why an object is in its state, and what happens next. See `Explainer.explain`."""
        about = Explainer(
            cluster=self.state,
            controllers=self.controllers,
            reason=self.reason,
            operations=self.operations.snapshot(),
            drivers=self.drivers.names(),
            binds=self.role.runs("binder"),
            findings=self.leak_check.observations.findings,
            expands=not self.controllers.keys().isdisjoint(CHANGES),
        )
        return about.explain(kind, key)

    async def run(self) -> None:
        """Run reflectors and runners until `stop` or cancelled. The caller runs `drivers.keep`."""
        async with asyncio.TaskGroup() as group:
            reflecting = [group.create_task(reflector.run()) for reflector in self.reflectors]
            reflecting.append(group.create_task(self._follow_drivers()))
            working = [group.create_task(runner.run(), name=runner.name) for runner in self.runners]
            await asyncio.wait(working)
            for task in reflecting:
                task.cancel()

    def unread(self, *, required: bool) -> tuple[str, ...]:
        """What cannot be listed or watched now, and why; else of kinds that not every API server serves."""
        found = [each for each in self.reflectors if each.required is required and each.failing]
        return tuple(f"{each.kind.plural} cannot be read: {each.failing}" for each in found)

    def server_restored(self) -> None:
        """Stop: after a restore, caches and progress disagree."""
        if not self.restored.is_set():
            _LOG.critical("the API server was restored from a backup, or replaced: nothing is decided any more")
            self.restored.set()
            self.stop()

    def stop(self) -> None:
        """Let each worker finish its current step, then end `run`."""
        for runner in self.runners:
            runner.stop()


async def _enqueue(runner: Runner, keys: Iterable[str], pause: float = 0.0) -> None:
    """Queue the keys in batches, so that changes made meanwhile do not wait behind them. "" is no key."""
    for number, key in enumerate(keys, 1):
        if key:
            runner.enqueue(key)
        if number % ENQUEUED_AT_ONCE == 0:
            await asyncio.sleep(pause)


@dataclass(slots=True, eq=False)
class Term:
    """Runs a control plane until it is told to stop or cannot go on."""

    plane: ControlPlane
    recorder: EventRecorder
    resync: float
    """Seconds between passes over all objects; 0 = never."""
    random: Random
    served_on_nodes: bool
    """Whether processes of nodes serve a driver, whose claims are assigned here."""
    leadership: Leadership = field(default_factory=lambda: Leadership(fence=None, until=0.0, lost=True))
    """Its right to work; none before it begins."""
    following: asyncio.Task[None] | None = None
    """Runs the control plane already, which has followed another process until now."""
    counted: Counter[tuple[str, tuple[str, ...]]] = field(default_factory=Counter)
    """The objects that it has counted for metrics meanwhile."""
    stopping: bool = False
    gave_up: str = ""

    def no_driver_works(self) -> str:
        """Why no driver can work; "" = one can, or the controllers can do without."""
        statuses = self.plane.drivers.status()
        if self.served_on_nodes or any(status.healthy for status in statuses):
            return ""
        if statuses:
            return "no driver can work"
        missing = "no driver is configured: name one under `drivers` in the configuration, or install a backend"
        return "" if self.plane.role.runs("binder") else missing

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, the term gives up or is cancelled; then stop all in order."""
        plane = self.plane
        async with asyncio.TaskGroup() as group:
            events = group.create_task(self.recorder.run(), name="events")
            plane.lead(group)
            controllers = group.create_task(self._work(), name="controllers")
            finding = [group.create_task(self._check_leaks(), name="leak check")]
            if plane.attachments is not None:
                finding.append(group.create_task(plane.attachments.run(), name="attachments"))
            keeping = [
                group.create_task(plane.drivers.keep(), name="drivers"),
                group.create_task(self._resync(), name="resync"),
                group.create_task(self._end_when_all_hang(stop), name="hanging drivers"),
                group.create_task(self._say_when_no_driver_works(), name="useless drivers"),
                group.create_task(self._end_when_restored(stop), name="restored server"),
            ]
            try:
                await stop.wait()
            finally:
                self.stopping = True
                for task in finding:
                    task.cancel()
                plane.leak_check.forget()
                plane.stop()
                await asyncio.wait({controllers}, timeout=STEP_SECONDS)
                left = await plane.operations.drain(DRAIN_SECONDS)
                if left:
                    _LOG.warning("not waiting any longer for %s; the next start goes on with it", ", ".join(left))
                for task in (*keeping, controllers):
                    task.cancel()
                with suppress(TimeoutError):
                    async with asyncio.timeout(HOOK_SECONDS):
                        await plane.drivers.stop_all()
                plane.executor.close()
                await self.recorder.close(EVENT_SECONDS)
                events.cancel()

    async def _work(self) -> None:
        await (self.following or self.plane.run())

    async def _check_leaks(self) -> None:
        await self.plane.drivers.started.wait()
        await self.plane.leak_check.run()

    async def _end_when_all_hang(self, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        worked = loop.time()
        while loop.time() < worked + HUNG_SECONDS:
            await asyncio.sleep(HUNG_INTERVAL)
            if not self.plane.drivers.all_hang:
                worked = loop.time()
        names = ", ".join(status.name for status in self.plane.drivers.status())
        why = f"hooks hang in every driver ({names}) for {HUNG_SECONDS:g} s: ending, so that another can work"
        _LOG.critical("%s", why)
        self.gave_up = why
        stop.set()

    async def _say_when_no_driver_works(self) -> None:
        """Log once that no driver can work, as long as that lasts, and once that one works again."""
        await self.plane.drivers.started.wait()
        said = ""
        while True:
            why = self.no_driver_works()
            if why and not said:
                problems = "; ".join(map(problem, self.plane.drivers.status()))
                _LOG.error("%s: nothing is provisioned or deleted%s", why, f" ({problems})" if problems else "")
            elif said and not why:
                _LOG.info("a driver works again")
            said = why
            await asyncio.sleep(HUNG_INTERVAL)

    async def _end_when_restored(self, stop: asyncio.Event) -> None:
        await self.plane.restored.wait()
        self.gave_up = "the API server was restored from a backup, or replaced: ending, to start with empty caches"
        stop.set()

    async def _resync(self) -> None:
        """Queue all objects from time to time, in case an event was lost. Jitter: 10 %."""
        while self.resync:
            await asyncio.sleep(self.resync * self.random.uniform(0.9, 1.1))
            await self.plane.resync()
