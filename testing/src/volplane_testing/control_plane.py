"""A control plane in virtual time: how one is run, as a process that can be killed, and in a test cluster.

`run_plane` is the only place of the kit that starts the drivers and controllers of a plane; the simulation uses it too.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from volplane.controller.config import ScrubberSettings
from volplane.controller.controller import Role
from volplane.controller.runner import Runner
from volplane.drivers.contract import Plugin
from volplane.drivers.driver import LoadedDrivers
from volplane.drivers.loading import build_driver, build_extension
from volplane.intents.bootstrap import Bootstrap
from volplane.kube.client import Client
from volplane.kube.events import EventRecorder
from volplane.operations.operation import DriverLimits, OperationState, Phase
from volplane.process.assembly import Dependencies, build
from volplane.process.control_plane import ControlPlane
from volplane_embedded.inprocess import InProcessTransport, Server
from volplane_testing import clock
from volplane_testing.executor import InlineExecutor
from volplane_testing.faults import FaultyBackend
from volplane_testing.transport import FaultTransport, KillableTransport

__all__ = ["ControllerSpec", "Controllers", "VirtualProcess", "idle", "reasons_of", "run_plane"]

NAMESPACE = "volplane-system"


async def run_plane(plane: ControlPlane, started: Callable[[], object] = lambda: None) -> None:
    """Run drivers and controllers until cancelled. started: called before they begin."""
    started()
    async with asyncio.TaskGroup() as group:
        group.create_task(plane.drivers.keep(), name="drivers")
        group.create_task(plane.run(), name="controllers")


def idle(runner: Runner) -> bool:
    """Tell whether there is nothing to decide now."""
    return runner.queue.idle and (runner.follows or not runner.unsettled)


def reasons_of(plane: ControlPlane) -> dict[str, str]:
    """Explain why objects wait: "claims default/data" -> reason."""
    return {
        f"{runner} {key}": reason
        for runner, waiting in plane.reasons().items()
        for key, reason in sorted(waiting.items())
    }


class VirtualProcess:
    """A controller process in virtual time. It is made for one start, and belongs to the running loop."""

    def __init__(self, role: Role, parts: Dependencies, transport: KillableTransport) -> None:
        """Build the plane; nothing runs yet. transport: the one under `parts.client`."""
        self.plane = build(role, parts)
        self._executor = parts.executor
        self._transport = transport
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Run drivers and controllers, and return once the caches are filled. Raises what ended them before."""
        running = self.begin("control plane", run_plane(self.plane))
        synced = asyncio.create_task(self.plane.wait_synced())
        await asyncio.wait((running, synced), return_when=asyncio.FIRST_COMPLETED)
        synced.cancel()
        self.check()

    def begin(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside the controllers, until the end of the process."""
        task = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        return task

    async def kill(self) -> None:
        """End at once, as after SIGKILL: no request reaches the server and no hook takes effect any more."""
        self._transport.dead = True
        if self._tasks:
            await self.end()
            await self.plane.operations.drain(0.0)

    async def end(self) -> None:
        """Cancel all tasks and close the executor."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._executor.close()
        await asyncio.sleep(0)

    def check(self) -> None:
        """Raise what ended a part of the process that should go on."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSpec:
    """What to build. backends: driver name -> instance, or what makes one at every start."""

    backends: Mapping[str, object]
    extensions: Sequence[object] = ()
    controllers: frozenset[str]
    limits: Mapping[str, DriverLimits] = field(default_factory=dict)
    scrubber: ScrubberSettings = field(default_factory=ScrubberSettings)


class Controllers:
    """The controllers of a `Cluster`, with the backends of a spec; made anew at every start."""

    def __init__(self, spec: ControllerSpec, server: Server, transport: FaultTransport, random: Random) -> None:
        self._transport = transport
        self._spec = spec
        self._random = random
        self._client = Client(transport)
        self._bootstrap = Bootstrap(Client(InProcessTransport(server)), namespace=NAMESPACE)
        self._executor = InlineExecutor(self._latency)
        self.backends: dict[str, object] = {}
        self._ends: list[float] = []
        self._process: VirtualProcess | None = None

    async def start(self) -> None:
        """Build everything, start the drivers, and return once the caches are filled.

        Raises PluginError or ConfigurationError for what cannot be loaded.
        """
        cluster_id, sealer = await self._bootstrap.run()
        self.recorder = EventRecorder(self._client, instance="test-cluster", now=clock.now)
        role = Role(
            controllers=self._spec.controllers, cluster_id=cluster_id, namespace=NAMESPACE, scrub=self._spec.scrubber
        )
        parts = Dependencies(
            client=self._client,
            loaded=self._load(),
            executor=self._executor,
            recorder=self.recorder,
            sealer=sealer,
            now=clock.now,
            random=self._random,
        )
        self._process = VirtualProcess(role, parts, self._transport)
        self._process.begin("events", self.recorder.run())
        await self._process.start()

    @property
    def plane(self) -> ControlPlane:
        """The running control plane."""
        return self._started.plane

    @property
    def _started(self) -> VirtualProcess:
        if self._process is None:
            raise RuntimeError("the controllers were not started")
        return self._process

    async def stop(self) -> None:
        """End in order, as after SIGTERM: wait for running hooks, stop the drivers."""
        self.plane.stop()
        await self.plane.operations.drain(4.0)
        await self.plane.drivers.stop_all()
        await self.recorder.close(1.0)
        await self._started.end()

    async def kill(self) -> None:
        """See `VirtualProcess.kill`."""
        if self._process is not None:
            await self._process.kill()

    @property
    def quiet(self) -> bool:
        """Whether nothing happens before some delay ends: no key is queued or in work, no event waits, no hook runs.

        A hook that nobody waits for any more and that will never return counts as over.
        """
        at_rest = all(idle(runner) for runner in self.plane.runners) and self.recorder.idle
        return at_rest and not self.running and not self.hooks_end

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
        self._started.check()

    # --- building -----------------------------------------------------------------------------------------------

    def _load(self) -> LoadedDrivers:
        extensions = tuple(
            build_extension(Plugin(kind="extension", name=type(each).__name__, factory=_giving(each)), {})
            for each in self._spec.extensions
        )
        drivers = []
        for name, given in self._spec.backends.items():
            backend = given() if callable(given) else given
            self.backends[name] = backend
            plugin = Plugin(kind="backend", name=type(backend).__name__, factory=_giving(backend))
            drivers.append(build_driver(name, plugin, {}, extensions))
        return LoadedDrivers(drivers=tuple(drivers), limits=self._spec.limits)

    def _latency(self, driver: str, hook: str) -> tuple[float, float]:
        backend = self.backends.get(driver)
        if not isinstance(backend, FaultyBackend) or hook not in backend.hooks:
            return 0.0, 0.0
        before, after = backend.plan(hook)
        end = asyncio.get_running_loop().time() + before + after
        if before + after and end < math.inf:
            self._ends.append(end)
        return before, after


def _giving(instance: object) -> Callable[[Mapping[str, object]], object]:
    return lambda _options: instance
