"""The control plane of one process: caches, drivers, operations and runners, and queries about their state.

`volplane.process.assembly.build` makes it. Nothing here decides anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from volplane.attach.comparison import AttachmentComparison
from volplane.controller.actions import started
from volplane.controller.clock import Clock
from volplane.controller.controller import Controller, Role
from volplane.controller.metrics import Metrics
from volplane.controller.runner import Runner
from volplane.drivers.executor import HookExecutor
from volplane.drivers.registry import DriverRegistry
from volplane.explain.explain import Explainer, Explanation, what_it_does
from volplane.kube.cache import Cache
from volplane.kube.client import Client
from volplane.kube.objects import Claim, Volume
from volplane.kube.reflector import Reflector
from volplane.leaks.check import LeakCheck
from volplane.leaks.repair import Adoption, LeakRepair
from volplane.operations import OperationRegistry
from volplane.process.duties import CHANGES
from volplane.state.cluster_state import ClusterState

__all__ = ["ControlPlane"]

_LOG = logging.getLogger(__name__)

ENQUEUED_AT_ONCE = 500
ENQUEUE_PAUSE = 0.1
"""Seconds between batches of a resync: 5,000 objects a second, about a seventh of a core."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ControlPlane:
    """What one term of leadership runs. Belongs to one event loop.

    caches: by the plural of their kind; controllers start once they are synced. reflectors: one per watch. controllers:
    by their queues. leak_check, leak_repair, adoption, attachments: run only if the process runs them; attachments is
    None where none are served. executor: of the hooks; the caller closes it. close: ends the metrics of the caches.
    """

    role: Role
    state: ClusterState
    caches: Mapping[str, Cache[Any]]
    client: Client
    drivers: DriverRegistry
    executor: HookExecutor
    operations: OperationRegistry
    controllers: Mapping[str, Controller]
    runners: Sequence[Runner]
    reflectors: Sequence[Reflector[Any]]
    clock: Clock
    leak_check: LeakCheck
    leak_repair: LeakRepair
    adoption: Adoption
    attachments: AttachmentComparison | None
    close: Callable[[], None]
    restored: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the API server turns out to be restored from a backup: what this process knows may never have been."""

    @property
    def claims(self) -> Cache[Claim]:
        return self.state.claims

    @property
    def volumes(self) -> Cache[Volume]:
        return self.state.volumes

    @property
    def synced(self) -> bool:
        """Whether every cache holds what the server had when it was listed."""
        return all(cache.synced for cache in self.caches.values())

    async def wait_synced(self) -> None:
        """Return once every cache is synced."""
        for cache in self.caches.values():
            await cache.wait_synced()

    @property
    def idle(self) -> bool:
        """Whether no key is queued, in work or due now, and no operation runs."""
        return all(runner.idle for runner in self.runners) and not self.operations.snapshot()

    def reason(self, queue: str, key: str) -> str:
        """Why the key was left waiting last; "" if it was not."""
        return next((each.reasons.get(key, "") for each in self.runners if each.name == queue), "")

    async def resync(self) -> None:
        """Queue all objects, in batches, so that changes made meanwhile do not wait behind them."""
        for runner in self.runners:
            for number, key in enumerate(self.controllers[runner.name].resync(), 1):
                runner.enqueue(key)
                if number % ENQUEUED_AT_ONCE == 0:
                    await asyncio.sleep(ENQUEUE_PAUSE)

    def driver_changed(self, name: str) -> None:
        """Queue the objects that may belong to a driver which has become usable or unusable, or was made."""
        for runner in self.runners:
            for key in self.controllers[runner.name].of_driver(name):
                runner.enqueue(key)

    def measure(self, metrics: Metrics) -> None:
        """Set the gauges that are computed when metrics are read."""
        metrics.operations_running(self.operations.counts())
        for controller in self.controllers.values():
            controller.measure(metrics)

    def reasons(self) -> Mapping[str, Mapping[str, str]]:
        """Queue -> key -> why the key waits. Of an operation it is what that does now, not that it was started."""
        now = self.clock.monotonic()
        present = {started(state.name): what_it_does(state, now) for state in self.operations.snapshot()}
        return {
            runner.name: {key: present.get(reason, reason) for key, reason in runner.reasons.items()}
            for runner in self.runners
        }

    def explain(self, kind: str, key: str) -> Explanation:
        """Why an object is in its state, and what happens next. kind: claim, volume or class. key: `namespace/name` of
        a claim, else the name. Raises ValueError for another kind.
        """
        about = Explainer(
            cluster=self.state,
            controllers=self.controllers,
            reason=self.reason,
            operations=self.operations.snapshot(),
            now=self.clock.monotonic(),
            drivers=self.drivers.names(),
            binds=self.role.runs("binder"),
            expands=not self.controllers.keys().isdisjoint(CHANGES),
        )
        return about.explain(kind, key)

    async def read_once(self) -> None:
        """List every cache once without a watch. Raises ApiError."""
        for cache in self.caches.values():
            listing = await self.client.list(cache.kind)
            cache.replace(listing.items, listing.version, keep=listing.unreadable)
            cache.mark_synced()

    async def run(self) -> None:
        """Run reflectors and runners until `stop` or cancelled. The caller runs `drivers.keep`."""
        async with asyncio.TaskGroup() as group:
            reflecting = [group.create_task(reflector.run()) for reflector in self.reflectors]
            working = [group.create_task(runner.run(), name=runner.name) for runner in self.runners]
            try:
                await asyncio.wait(working)
            finally:
                self.close()
            for task in reflecting:
                task.cancel()

    @property
    def failing(self) -> tuple[str, ...]:
        """What cannot be listed or watched now, and why."""
        followed = [each for each in self.reflectors if each.kind.plural in self.caches]
        return tuple(f"{each.kind.plural} cannot be read: {each.failing}" for each in followed if each.failing)

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
