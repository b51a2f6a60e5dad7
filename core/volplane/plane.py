"""The control plane: every controller of one process, wired over one client.

Nothing here decides anything. `volplane run`, `volplane dev`, the testing kit and the simulator all build this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from volplane.assets import VolumeSource
from volplane.binding.matching import class_of_claim, class_of_volume
from volplane.controller.actions import Decide, Notice
from volplane.controller.clock import Clock
from volplane.controller.metrics import Metrics
from volplane.controller.runner import Runner
from volplane.controller.workqueue import ControllerMetrics
from volplane.errors import ConfigurationError
from volplane.intents.discard import DiscardOperation
from volplane.intents.operation import HookCaller, OperationDeps
from volplane.kube.cache import Cache
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, NODES, PODS, STORAGE_CLASSES, VOLUMES
from volplane.kube.names import PROVISIONED_BY, PROVISIONING_FINALIZER
from volplane.kube.objects import Claim, Node, Pod, StorageClass, Volume
from volplane.kube.reflector import Reflector
from volplane.operations import Dispatcher, OperationRegistry
from volplane.protection.claims import LivePods, ProtectionWorld, decide_claim_protection
from volplane.protection.volumes import decide_volume_protection
from volplane.protection.wakeups import ProtectionWakeups
from volplane.provision.operation import ProvisionOperation
from volplane.reclaim.operation import DeleteOperation, IdentifyOperation, RecycleOperation
from volplane.reclaim.scrub_events import POD_EVENTS, POD_EVENTS_SELECTOR, PodEvent, ScrubEvents
from volplane.reconcile.explain import Explanation, explain_claim
from volplane.reconcile.measuring import CountedAssignments, MeasuredHooks
from volplane.reconcile.reconcilers import ClaimReconciler, VolumeReconciler
from volplane.reconcile.volumes import promised
from volplane.state.cluster_state import ClusterState, Drivers, Settings
from volplane.state.handlers import EventHandlers
from volplane.state.indexes import CLAIM_INDEXES, POD_INDEXES, claims_of_pod
from volplane.state.naming import volume_source
from volplane.state.records import Sealer

__all__ = ["ALL_CONTROLLERS", "CONTROLLERS_BESIDE", "ControlPlane", "Parts", "parse_controllers"]

ALL_CONTROLLERS = ("binder", "provisioner", "reclaimer", "protection")
CONTROLLERS_BESIDE = ("provisioner", "reclaimer")
"""What runs beside a stock kube-controller-manager."""


LOOKED_AT_ONCE = 500
LOOK_PAUSE = 0.1
"""Seconds between so many objects of a safety pass: 5,000 a second, a seventh of a core."""


def parse_controllers(text: str) -> frozenset[str]:
    """The value of `--controllers`: names separated by commas, or `all`. Raises ConfigurationError."""
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    if chosen == ["all"]:
        return frozenset(ALL_CONTROLLERS)
    for name in chosen:
        if name not in ALL_CONTROLLERS:
            known = ", ".join(ALL_CONTROLLERS)
            raise ConfigurationError(f'--controllers: "{name}" is no controller; valid are {known}, or all alone')
    if not chosen:
        raise ConfigurationError(f"--controllers is empty; name some of {', '.join(ALL_CONTROLLERS)}, or all")
    return frozenset(chosen)


class Recorder(Protocol):
    def record(self, notice: Notice) -> None:
        """Queue an event; never blocks."""


class PlaneDrivers(Drivers, HookCaller, Protocol):
    """The configured drivers: to see, to call, and to ask whose a static volume is."""

    async def identify(self, source: VolumeSource) -> None:
        """Ask the drivers whose the source is; `owner_of` knows it afterwards. Raises BackendError or PluginError."""

    def forget_source(self, source: VolumeSource) -> None:
        """Drop what is known about the owner of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a plane is built from; each belongs to the one event loop that runs it.

    fence: names holder and epoch of the lease under which hooks run. metrics: where the parts count their work;
    measures: where it is counted what becomes of claims and volumes.
    """

    client: Client
    drivers: PlaneDrivers
    registry: OperationRegistry
    recorder: Recorder
    sealer: Sealer
    clock: Clock
    random: Random
    fence: Callable[[], str] = lambda: ""
    metrics: ControllerMetrics | None = None
    measures: Metrics | None = None


class ControlPlane:
    """Caches, reflectors, decisions and runners of one process."""

    def __init__(self, settings: Settings, controllers: frozenset[str], parts: Parts) -> None:
        self.settings = settings
        self._parts = parts
        self._controllers = controllers
        self.claims: Cache[Claim] = Cache(CLAIMS, CLAIM_INDEXES)
        self.volumes: Cache[Volume] = Cache(VOLUMES)
        self.classes: Cache[StorageClass] = Cache(STORAGE_CLASSES)
        self.pods: Cache[Pod] = Cache(PODS, POD_INDEXES)
        self.nodes: Cache[Node] = Cache(NODES)
        self.volumes.subscribe(self._forget_source)
        self._caches: dict[str, Cache[Any]] = {
            cache.kind.plural: cache for cache in (self.claims, self.volumes, self.classes, self.pods, self.nodes)
        }
        self._measured: MeasuredHooks | None = None
        if parts.measures is not None:
            self._measured = MeasuredHooks(parts.drivers, self.claims, self.volumes, parts.measures)
        self._reflectors: dict[str, Reflector[Any]] = {}
        self.dispatcher = Dispatcher(parts.registry)
        """Starts the operations of this plane; whoever adds a verb registers it here."""
        self.state = self._build_state()
        self.deps = self._register_operations()
        """What operations on this state work with."""
        self._pod_events: Cache[PodEvent] = Cache(POD_EVENTS)
        ScrubEvents(self._pod_events, self.state, parts.recorder)
        self.runners = self._build_runners()

    def _build_state(self) -> ClusterState:
        parts = self._parts
        return ClusterState(
            settings=self.settings,
            claims=self.claims,
            volumes=self.volumes,
            classes=self.classes,
            pods=self.pods,
            nodes=self.nodes,
            drivers=parts.drivers,
            sealer=parts.sealer,
            now=parts.clock.now,
            monotonic=parts.clock.monotonic,
            fence=parts.fence,
        )

    def _register_operations(self) -> OperationDeps:
        parts = self._parts
        deps = OperationDeps(
            cluster=self.state,
            client=parts.client,
            hooks=self._measured or parts.drivers,
            registry=parts.registry,
            recorder=parts.recorder,
            fence=parts.fence,
        )
        self.dispatcher.register("provision", ProvisionOperation(deps))
        self.dispatcher.register("discard", DiscardOperation(deps))
        self.dispatcher.register("delete", DeleteOperation(deps, self._wake_volume))
        self.dispatcher.register("recycle", RecycleOperation(deps, self._wake_volume))
        self.dispatcher.register("identify", IdentifyOperation(deps, parts.drivers.identify))
        return deps

    def _build_runners(self) -> list[Runner]:
        decide: Decide = ClaimReconciler(self.state, self._wake_claim)
        if self._parts.measures is not None:
            decide = CountedAssignments(decide, self.claims, self._parts.measures)
        claims = Runner("claims", decide, kind=CLAIMS, flow=self._class_of_claim, **self._common())
        volumes = Runner(
            "volumes", VolumeReconciler(self.state), kind=VOLUMES, flow=self._class_of_volume, **self._common()
        )
        self._claims_runner = claims
        self._volumes_runner = volumes
        EventHandlers(self.state, claims, volumes, self._parts.registry.forget).subscribe()
        runners = [claims, volumes]
        if "protection" in self._controllers:
            runners += self._protection()
        return runners

    def _common(self) -> dict[str, Any]:
        parts = self._parts
        return {
            "caches": self._caches,
            "client": parts.client,
            "recorder": parts.recorder,
            "dispatcher": self.dispatcher,
            "metrics": parts.metrics,
        }

    def _forget_source(self, old: Volume | None, new: Volume | None) -> None:
        if new is None and old is not None and old.annotation(PROVISIONED_BY) is None:
            self._parts.drivers.forget_source(volume_source(old))

    def _wake_volume(self, key: str) -> None:
        self._volumes_runner.enqueue(key)

    def _class_of_claim(self, key: str) -> str:
        """Classes take turns: a crowd of claims whose driver does not work may not delay the others."""
        claim = self.claims.get(key)
        return class_of_claim(claim) or "" if claim is not None else ""

    def _class_of_volume(self, key: str) -> str:
        volume = self.volumes.get(key)
        return class_of_volume(volume) if volume is not None else ""

    def _wake_claim(self, key: str) -> None:
        self._claims_runner.enqueue(key)

    def _protection(self) -> list[Runner]:
        live = LivePods()
        clock, client = self._parts.clock, self._parts.client

        async def list_pods(namespace: str) -> None:
            started = clock.monotonic()
            listing = await client.list(PODS, namespace=namespace)
            live.listed(namespace, started, listing.items)

        self.dispatcher.register("unprotect", lambda run: lambda: list_pods(run.asset))
        seen = ProtectionWorld(
            claims=self.claims,
            pods=self.pods,
            live=live,
            monotonic=clock.monotonic,
            promised=lambda claim: promised(claim, self.state),
        )
        claims = Runner(
            "pvcprotection", lambda key, _: decide_claim_protection(key, seen), kind=CLAIMS, **self._common()
        )
        volumes = Runner(
            "pvprotection", lambda key, _: decide_volume_protection(key, self.volumes), kind=VOLUMES, **self._common()
        )

        wakeups = ProtectionWakeups(
            claims=claims,
            volumes=volumes,
            known=self.claims,
            live=live,
            claims_of_pod=claims_of_pod,
            monotonic=clock.monotonic,
        )
        self.claims.subscribe(wakeups.claim_changed)
        self.volumes.subscribe(wakeups.volume_changed)
        self.pods.subscribe(wakeups.pod_changed)
        return [claims, volumes]

    @property
    def caches(self) -> Mapping[str, Cache[Any]]:
        """Every cache, by the plural of its kind."""
        return self._caches

    @property
    def synced(self) -> bool:
        """Whether every cache holds what the server had when it was listed."""
        return all(cache.synced for cache in self._caches.values())

    async def wait_synced(self) -> None:
        """Return once every cache is."""
        for cache in self._caches.values():
            await cache.wait_synced()

    @property
    def idle(self) -> bool:
        """Whether no key is queued, in work or due now, and no operation runs."""
        return all(runner.idle for runner in self.runners) and not self._parts.registry.snapshot()

    def reason(self, runner: str, key: str) -> str:
        """Why the runner ("claims", "volumes") last left this key waiting, or ""."""
        return next((each.reasons.get(key, "") for each in self.runners if each.name == runner), "")

    async def look_again(self) -> None:
        """Decide about every object once more, some at a time, so that nothing that happens meanwhile waits for it."""
        for runner, cache in ((self._claims_runner, self.claims), (self._volumes_runner, self.volumes)):
            for number, key in enumerate(cache.keys(), 1):
                runner.enqueue(key)
                if number % LOOKED_AT_ONCE == 0:
                    await asyncio.sleep(LOOK_PAUSE)

    def driver_changed(self, name: str) -> None:
        """A driver came or went: decide about whatever may be its own."""
        served = [item.name for item in self.classes.values() if item.provisioner == name]
        for class_name in served:
            for claim in self.claims.by_index("unbound", class_name):
                self._claims_runner.enqueue(claim.key)
        for claim in self.claims.values():
            if claim.has_finalizer(PROVISIONING_FINALIZER):
                self._claims_runner.enqueue(claim.key)
        for volume in self.volumes.values():
            if volume.annotation(PROVISIONED_BY) in (None, name):
                self._volumes_runner.enqueue(volume.key)

    def reasons(self) -> Mapping[str, Mapping[str, str]]:
        """Why keys wait, by runner."""
        return {runner.name: dict(runner.reasons) for runner in self.runners}

    def explain(self, key: str) -> Explanation:
        """Why the claim is where it is, and what happens next."""
        operations = self._parts.registry.snapshot()
        return explain_claim(key, self.state, operations, now=self._parts.clock.monotonic())

    async def read_once(self) -> None:
        """Fill the caches without following what changes, for who only wants to look. Raises ApiError."""
        for cache in self._caches.values():
            listing = await self._parts.client.list(cache.kind)
            cache.replace(listing.items, listing.version, keep=listing.unreadable)
            cache.mark_synced()

    async def run(self) -> None:
        """Run until `stop` or cancelled."""
        async with asyncio.TaskGroup() as group:
            reflectors = [group.create_task(self._reflect(cache)) for cache in self._caches.values()]
            if self.settings.binder and self.settings.reclaimer:
                reflectors.append(group.create_task(self._reflect_pod_events()))
            working = [group.create_task(runner.run(), name=runner.name) for runner in self.runners]
            try:
                await asyncio.wait(working)
            finally:
                if self._measured is not None:
                    self._measured.close()
            for task in reflectors:
                task.cancel()

    @property
    def failing(self) -> tuple[str, ...]:
        """What cannot be listed or watched now, and why."""
        return tuple(
            f"{kind} cannot be read: {each.failing}" for kind, each in self._reflectors.items() if each.failing
        )

    async def _reflect(self, cache: Cache[Any]) -> None:
        parts = self._parts
        reflector = Reflector(parts.client, cache, random=parts.random, metrics=parts.metrics)
        self._reflectors[cache.kind.plural] = reflector
        await reflector.run()

    async def _reflect_pod_events(self) -> None:
        """What is said about scrubber pods. Nothing waits for it."""
        parts = self._parts
        await Reflector(
            parts.client,
            self._pod_events,
            random=parts.random,
            namespace=self.settings.namespace,
            field_selector=POD_EVENTS_SELECTOR,
            metrics=parts.metrics,
        ).run()

    def stop(self) -> None:
        """Finish the step that each worker is at, then end `run`."""
        for runner in self.runners:
            runner.stop()
