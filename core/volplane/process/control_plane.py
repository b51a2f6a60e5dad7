"""The control plane of one process: caches, drivers, operations and runners, and queries about their state.

`volplane.process.assembly.build` makes it. Nothing here decides anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from volplane.attach.comparison import AttachmentComparison
from volplane.attach.desired import wanted_or_attached
from volplane.controller.actions import started
from volplane.controller.clock import Clock
from volplane.controller.runner import Runner
from volplane.drivers.executor import HookExecutor
from volplane.drivers.registry import DriverRegistry
from volplane.explain.explain import Explanation, explain_claim, explain_class, explain_volume, what_it_does
from volplane.kube.cache import Cache
from volplane.kube.client import Client
from volplane.kube.names import PROVISIONED_BY, PROVISIONING_FINALIZER
from volplane.kube.objects import Claim, Volume
from volplane.kube.reflector import Reflector
from volplane.leaks.adoption import Adoption
from volplane.leaks.check import LeakCheck
from volplane.leaks.repair import LeakRepair
from volplane.operations import OperationRegistry
from volplane.placement.state import PlacementState
from volplane.state.cluster_state import ClusterState

__all__ = ["ControlPlane", "Runners"]

_LOG = logging.getLogger(__name__)

ENQUEUED_AT_ONCE = 500
ENQUEUE_PAUSE = 0.1
"""Seconds between batches of a resync: 5,000 objects a second, about a seventh of a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runners:
    """The controllers. expander: of sizes and of attributes; protection: of the in-use finalizers; attach: of
    attachments; placement: of the nodes of claims and volumes.

    These are empty if this process does not run them.
    """

    claims: Runner
    volumes: Runner
    expander: tuple[Runner, ...] = ()
    protection: tuple[Runner, ...] = ()
    attach: tuple[Runner, ...] = ()
    placement: tuple[Runner, ...] = ()

    def __iter__(self) -> Iterator[Runner]:
        return iter((self.claims, self.volumes, *self.expander, *self.protection, *self.attach, *self.placement))

    def named(self, name: str) -> Runner | None:
        """The one of this name."""
        return next((runner for runner in self if runner.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ControlPlane:
    """What one term of leadership runs. Belongs to one event loop.

    caches: by the plural of their kind. reflectors: one per cache, and one for pod events where we scrub. leak_check,
    leak_repair, adoption, attachments: run only if the process runs them; attachments is None where none are served,
    placing where there is no assigner. executor: of the hooks; the caller closes it. close: ends the metrics of the
    caches.
    """

    state: ClusterState
    caches: Mapping[str, Cache[Any]]
    client: Client
    drivers: DriverRegistry
    executor: HookExecutor
    operations: OperationRegistry
    runners: Runners
    reflectors: Sequence[Reflector[Any]]
    clock: Clock
    leak_check: LeakCheck
    leak_repair: LeakRepair
    adoption: Adoption
    attachments: AttachmentComparison | None
    placing: PlacementState | None
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

    def reason(self, runner: str, key: str) -> str:
        """Why the runner ("claims", "volumes") last left this key waiting; "" if it did not."""
        return next((each.reasons.get(key, "") for each in self.runners if each.name == runner), "")

    def wake(self, runner: str, key: str) -> None:
        """Queue a key of the runner of this name, if this process has it."""
        if (found := self.runners.named(runner)) is not None:
            found.enqueue(key)

    async def resync(self) -> None:
        """Queue all objects, in batches, so that changes made meanwhile do not wait behind them."""
        keys: list[tuple[str, Callable[[], Iterable[str]]]] = [
            ("claims", self.claims.keys),
            ("volumes", self.volumes.keys),
            ("assigner", self.claims.keys),
            ("node-volumes", self.volumes.keys),
            ("attacher", self.state.attachments.keys),
            ("csidrivers", self.drivers.names),
            ("capacity", self.state.capacities.keys),
            ("node-reports", self.state.nodes.keys),
            ("attach-detach", lambda: wanted_or_attached(self.state)),
        ]
        for name, known in keys:
            runner = self.runners.named(name)
            for number, key in enumerate(known() if runner is not None else (), 1):
                self.wake(name, key)
                if number % ENQUEUED_AT_ONCE == 0:
                    await asyncio.sleep(ENQUEUE_PAUSE)

    def driver_changed(self, name: str) -> None:
        """Queue the objects that may belong to a driver which has become usable or unusable, or was made."""
        self.wake("csidrivers", name)
        for attachment in self.state.attachments.values():
            volume = self.volumes.get(attachment.spec.source.persistent_volume_name or "")
            made_it = volume is not None and volume.annotation(PROVISIONED_BY) == name
            if made_it or name in self.drivers.attachers(attachment.spec.attacher):
                self.wake("attacher", attachment.key)
        served = [item.name for item in self.state.classes.values() if item.provisioner == name]
        for class_name in served:
            for claim in self.claims.by_index("unbound", class_name):
                self.runners.claims.enqueue(claim.key)
        for claim in self.claims.values():
            if claim.has_finalizer(PROVISIONING_FINALIZER):
                self.runners.claims.enqueue(claim.key)
        for volume in self.volumes.values():
            if volume.annotation(PROVISIONED_BY) in (None, name):
                self.runners.volumes.enqueue(volume.key)
                self._enqueue_expander(volume)

    def _enqueue_expander(self, volume: Volume) -> None:
        """Queue the volume's claim where its size or its attributes may have to change."""
        reference = volume.spec.claim_ref
        if reference is not None and reference.uid:
            for runner in self.runners.expander:
                runner.enqueue(f"{reference.namespace}/{reference.name}")

    def reasons(self) -> Mapping[str, Mapping[str, str]]:
        """Runner -> key -> why the key waits. Of an operation it is what that does now, not that it was started."""
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
        operations, now = self.operations.snapshot(), self.clock.monotonic()
        match kind:
            case "claim":
                node, drivers = self.reason("assigner", key), self.drivers.names()
                return explain_claim(key, self.state, operations, now=now, node=node, drivers=drivers)
            case "volume":
                lost = self.placing.lost.get(key, "") if self.placing is not None else ""
                return explain_volume(key, self.state, operations, now=now, lost=lost)
            case "class":
                return explain_class(key, self.state, drivers=self.drivers.names())
        raise ValueError(f"kind {kind!r} is none of claim, volume, class")

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
        """Decide nothing any more: caches that are read anew one by one, and progress, tell two stories."""
        if not self.restored.is_set():
            _LOG.critical("the API server was restored from a backup, or replaced: nothing is decided any more")
            self.restored.set()
            self.stop()

    def stop(self) -> None:
        """Let each worker finish its current step, then end `run`."""
        for runner in self.runners:
            runner.stop()
