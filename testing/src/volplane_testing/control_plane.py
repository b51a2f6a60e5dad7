"""The controllers of a test cluster: one process's worth, built afresh by every start, killed without a farewell."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any

from volplane.assembly import Parts, build
from volplane.controller.config import ScrubberSettings
from volplane.drivers.contract import Plugin
from volplane.drivers.loading import build_driver, build_extension
from volplane.drivers.status import LoadedDrivers
from volplane.intents.bootstrap import cluster_id_of, ensure_namespace, ensure_sealer
from volplane.kube.client import Client
from volplane.kube.events import EventRecorder
from volplane.operations import DriverLimits, OperationState, Phase
from volplane.state.cluster_state import Settings
from volplane_embedded.inprocess import InProcessTransport, Server
from volplane_testing import clock
from volplane_testing.executor import InlineExecutor
from volplane_testing.faults import FaultyBackend
from volplane_testing.transport import FaultTransport

__all__ = ["Controllers", "Plan", "Time"]

NAMESPACE = "volplane-system"


class Time:
    """The clock of the running loop, real or virtual."""

    def now(self) -> datetime:
        """Wall time."""
        return clock.now()

    def monotonic(self) -> float:
        """Loop time."""
        return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to build. backends: driver name -> instance, or what makes one at every start."""

    backends: Mapping[str, object]
    extensions: Sequence[object] = ()
    controllers: frozenset[str]
    limits: Mapping[str, DriverLimits] = field(default_factory=dict)
    scrubber: ScrubberSettings = field(default_factory=ScrubberSettings)


class Controllers:
    """A control plane at work. Belongs to the loop in which it is started."""

    def __init__(self, plan: Plan, server: Server, transport: FaultTransport, random: Random) -> None:
        self.transport = transport
        self._plan = plan
        self._random = random
        self._client = Client(transport)
        self._bootstrap = Client(InProcessTransport(server))
        self._executor = InlineExecutor(plan.limits, self._latency)
        self.backends: dict[str, object] = {}
        self._ends: list[float] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Build everything, start the drivers, and return once the caches are filled.

        Raises PluginError or ConfigurationError for what cannot be loaded.
        """
        await ensure_namespace(self._bootstrap, NAMESPACE)
        cluster_id = await cluster_id_of(self._bootstrap, None)
        sealer = await ensure_sealer(self._bootstrap, NAMESPACE)
        self.recorder = EventRecorder(self._client, instance="test-cluster", now=clock.now)
        settings = Settings.of(
            self._plan.controllers, cluster_id=cluster_id, namespace=NAMESPACE, scrub=self._plan.scrubber
        )
        parts = Parts(
            client=self._client,
            loaded=self._load(),
            executor=self._executor,
            recorder=self.recorder,
            sealer=sealer,
            clock=Time(),
            random=self._random,
        )
        self.plane = build(settings, parts)
        self._begin("events", self.recorder.run())
        await self.plane.drivers.start_all()
        self._begin("drivers", self.plane.drivers.keep())
        self._begin("controllers", self.plane.run())
        await self.plane.wait_synced()

    async def stop(self) -> None:
        """End in order, as by SIGTERM: hooks that run are waited for, drivers are stopped."""
        self.plane.stop()
        await self.plane.operations.drain(4.0)
        await self.plane.drivers.stop_all()
        await self.recorder.close(1.0)
        await self._end()

    async def kill(self) -> None:
        """End at once, as by SIGKILL: nothing that is under way reaches the server or the storage any more."""
        self.transport.dead = True
        if self._tasks:
            await self._end()
            await self.plane.operations.drain(0.0)

    @property
    def quiet(self) -> bool:
        """Whether nothing happens before some delay ends: no key is queued or in work, no event waits, no hook runs.

        A hook that nobody waits for any more and that will never return counts as over.
        """
        idle = all(runner.idle for runner in self.plane.runners) and self.recorder.idle
        return idle and not self.running and not self.hooks_end

    @property
    def running(self) -> tuple[OperationState, ...]:
        """Operations that are queued or run; not those that wait for their next try, or for a hook that never
        returns.
        """
        now = asyncio.get_running_loop().time()
        return tuple(
            state
            for state in self.plane.operations.snapshot()
            if state.phase in (Phase.QUEUED, Phase.RUNNING)
            or (state.phase is Phase.WAITING and (state.next_try or 0.0) <= now)
        )

    @property
    def hooks_end(self) -> float | None:
        """When the next hook that runs will return; None if none runs, or none ever will."""
        now = asyncio.get_running_loop().time()
        self._ends = [end for end in self._ends if end > now]
        return min(self._ends) if self._executor.running() and self._ends else None

    def check(self) -> None:
        """Raise what ended a part of the process that should go on."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    def reasons(self) -> dict[str, str]:
        """Why objects wait: "claims default/data" -> reason."""
        return {
            f"{runner.name} {key}": reason for runner in self.plane.runners for key, reason in runner.reasons.items()
        }

    # --- building -----------------------------------------------------------------------------------------------

    def _load(self) -> LoadedDrivers:
        extensions = tuple(
            build_extension(Plugin(kind="extension", name=type(each).__name__, factory=_giving(each)), {})
            for each in self._plan.extensions
        )
        drivers = []
        for name, given in self._plan.backends.items():
            backend = given() if callable(given) else given
            self.backends[name] = backend
            plugin = Plugin(kind="backend", name=type(backend).__name__, factory=_giving(backend))
            drivers.append(build_driver(name, plugin, {}, extensions))
        return LoadedDrivers(drivers=tuple(drivers), limits=self._plan.limits)

    def _latency(self, driver: str, hook: str) -> tuple[float, float]:
        backend = self.backends.get(driver)
        if not isinstance(backend, FaultyBackend) or hook not in backend.hooks:
            return 0.0, 0.0
        before, after = backend.plan(hook)
        end = asyncio.get_running_loop().time() + before + after
        if before + after and end < math.inf:
            self._ends.append(end)
        return before, after

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._executor.close()
        await asyncio.sleep(0)


def _giving(instance: object) -> Callable[[Mapping[str, object]], object]:
    return lambda _options: instance
