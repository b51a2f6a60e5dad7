"""What the operations of all duties share: live reads before an asset is touched, and calls of hooks.

An operation may run long after the decision that asked for it. It reads the objects live before it touches an asset,
unless the server answered with them a moment ago, and does nothing if they no longer justify it: the object is decided
again when the operation ends.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from volplane._delays import LIVE_STATE_FORBIDS
from volplane.assets import Asset
from volplane.controller.actions import Queue, Recorder, Run
from volplane.controller.metrics import Metrics
from volplane.drivers.registry import DriverRegistry
from volplane.drivers.status import LoadedDrivers
from volplane.drivers.view import DriverView
from volplane.errors import OperationError
from volplane.intents.ownership import volume_elsewhere
from volplane.intents.record import can_never_be_bound, has_newer_intent
from volplane.intents.requests import context_of, owner_of_claim
from volplane.kube.cache import Cache
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, STORAGE_CLASSES, VOLUMES, Kind
from volplane.kube.objects import Claim, KubeObject, StorageClass, Volume
from volplane.operations import Again, OperationRegistry
from volplane.requests import Context, FindRequest, HookRequest
from volplane.state.cluster_state import ClusterState
from volplane.state.indexes import NodePlaces
from volplane.state.matching import class_of_claim
from volplane.state.naming import volume_name_of
from volplane.state.records import ClaimIntent

__all__ = ["HookCaller", "OperationDeps"]

_MOMENT = 0.25
"""Seconds for which an answer of the server counts as a live read: a read may take as long."""

R = TypeVar("R")
T = TypeVar("T")
ObjectT = TypeVar("ObjectT", bound=KubeObject)


class HookCaller(Protocol):
    """Calls hooks: the driver registry, or a wrapper of it that counts."""

    async def call(self, driver: DriverView, request: HookRequest[R]) -> R:
        """Call the request's hook in the driver's threads, within its deadline. Raises BackendError or PluginError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationDeps:
    """What the controllers of every duty and their operations work with."""

    cluster: ClusterState
    nodes: NodePlaces
    client: Client
    """Writes only while the lease lasts."""
    reads: Client
    """For reads, which need no lease."""
    drivers: DriverRegistry
    loaded: LoadedDrivers
    hooks: HookCaller
    registry: OperationRegistry
    recorder: Recorder
    fence: Callable[[], str]
    """Text of the `Fence` under which hooks run."""
    metrics: Metrics | None
    """None: nothing is counted."""
    queue: Callable[[str], Queue]
    """The queue of this name. What is queued is dropped if this process does not have it."""
    listing: Mapping[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    """Of each driver, held while its assets are listed: a storage that hangs costs one thread, however many ask."""

    # Handlers look these up in the turn of the decision. They raise OperationError if the object is gone.

    def claim(self, run: Run) -> Claim:
        """Return the claim that `run` names."""
        return _found(self.cluster.claims.get(run.key), run)

    def storage_class(self, run: Run) -> StorageClass:
        """Return the class of the claim that `run` names."""
        return _found(self.cluster.classes.get(class_of_claim(self.claim(run)) or ""), run)

    def volume(self, run: Run) -> Volume:
        """Return the volume that `run` names."""
        return _found(self.cluster.volumes.get(run.key), run)

    def driver(self, run: Run) -> DriverView:
        """Return the driver that `run` names."""
        return _found(self.cluster.drivers.get(run.driver), run)

    # Live reads.

    def not_justified(self) -> Again:
        """Return what to raise if the live state forbids what was decided: the object is decided again later."""
        return Again(after=LIVE_STATE_FORBIDS.delay())

    async def live_volume(self, name: str) -> Volume | None:
        """Return the volume as the server has it now, and put it into the cache."""
        return await self._live(VOLUMES, self.cluster.volumes, name)

    async def live_claim(self, key: str) -> Claim | None:
        """Return the claim as the server has it now, and put it into the cache."""
        return await self._live(CLAIMS, self.cluster.claims, key)

    async def live_class(self, name: str) -> StorageClass | None:
        """Return the class as the server has it now, and put it into the cache."""
        return await self._live(STORAGE_CLASSES, self.cluster.classes, name)

    async def _live(self, kind: Kind[ObjectT], cache: Cache[ObjectT], key: str) -> ObjectT | None:
        live = await self.client.find(kind, key)
        if live is not None:
            cache.observe(live)
        return live

    async def released_volume(
        self, volume: Volume, *, writes_phase: bool, answered: float = -math.inf
    ) -> Volume | None:
        """Return the volume as it is now, if it is still this one and no living claim is bound to it; else None.

        writes_phase: we are the binder: a volume that refers to no claim must have a phase before it is destroyed.
        answered: loop time at which the server answered with it; it is read again unless that was a moment ago.
        """
        live = self.cluster.volumes.get(volume.key)
        if live is None or live.uid != volume.uid or self.cluster.monotonic() - answered > _MOMENT:
            live = await self.live_volume(volume.name)
        if live is None:
            self.cluster.volumes.observe_deleted(volume.key, volume.uid)
            return None
        reference = live.spec.claim_ref
        if live.uid != volume.uid or volume_elsewhere(live, self.cluster):
            return None
        if reference is None or not reference.uid or not reference.namespace or not reference.name:
            settled = live.status.phase in ("Released", "Failed") or not writes_phase
            return live if settled or not live.terminating else None
        if self.cluster.claims.gone(reference.uid):
            return live  # A claim that has its name now is another one.
        claim = await self.live_claim(reference.key)
        if claim is None:
            return live
        bound_elsewhere = bool(claim.spec.volume_name) and claim.spec.volume_name != live.name
        never = can_never_be_bound(live, claim) and has_newer_intent(live, claim, self.cluster.sealer)
        return live if claim.uid != reference.uid or bound_elsewhere or never else None

    # Hooks.

    def context(self, driver: DriverView, generation: int = 1, state: Mapping[str, Any] | None = None) -> Context:
        """Return the context of a hook call that the running operation makes."""
        return context_of(
            driver,
            self.cluster.cluster_id,
            generation=generation,
            attempt=self.registry.attempt(),
            state=state,
            fence=self.fence(),
        )

    async def find(self, claim: Claim, intent: ClaimIntent, driver: DriverView) -> Asset | None:
        """Return the asset of the claim's intent; None if the backend shows none (see `DriverInfo.settle_seconds`)."""
        context = self.context(driver, intent.generation, intent.state)
        request = FindRequest(
            context=context,
            name=volume_name_of(claim),
            owner=owner_of_claim(claim, context.cluster_id, intent.generation),
            segment=intent.segment or None,
        )
        found = await self.hooks.call(driver, request)
        return found if isinstance(found, Asset) else None

    def next_due(self, retry_after: float) -> float:
        """Return the loop time at which a hook that answered `InProgress` is called again."""
        return self.cluster.monotonic() + max(retry_after, 0.0)


def _found(item: T | None, run: Run) -> T:
    if item is None:
        raise OperationError(f"{run.name} was not started: what it was decided for is gone")
    return item
