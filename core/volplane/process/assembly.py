"""The wiring: `build` is the only function that makes a control plane.

The process, the read-only control plane, the testing kit and the simulation call it, each with its own parts. Nothing
here decides anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from volplane.attach.attach_detach import AttachDetachState
from volplane.attach.attacher import decide_attachment
from volplane.attach.comparison import AttachmentComparison
from volplane.attach.csidriver import decide_csi_driver
from volplane.attach.desired import NODE_INDEX, VOLUME_INDEXES
from volplane.attach.handlers import AttachDetachHandlers, AttacherHandlers
from volplane.attach.operation import AttachOperation, DetachOperation
from volplane.attach.reconcilers import NodeReconciler, PairReconciler
from volplane.controller.actions import Decide, Flow, Predicate
from volplane.controller.runner import Runner
from volplane.drivers.calls import HookCalls
from volplane.drivers.registry import DriverRegistry
from volplane.expand.handlers import ExpandHandlers
from volplane.expand.modify import decide_modify
from volplane.expand.operation import ExpandOperation, ModifyOperation
from volplane.expand.resize import decide_resize
from volplane.intents.discard import DiscardOperation
from volplane.intents.operation import HookCaller, OperationDeps
from volplane.kube.cache import Cache
from volplane.kube.kinds import CAPACITIES, CLAIMS, NODES, PODS, STORAGE_CLASSES, VOLUMES
from volplane.kube.names import PROVISIONED_BY
from volplane.kube.objects import KubeObject, Volume
from volplane.kube.reflector import Reflector
from volplane.leaks.adoption import Adoption
from volplane.leaks.check import LeakCheck
from volplane.leaks.repair import LeakRepair
from volplane.operations import Dispatcher, Ended, OperationRegistry
from volplane.placement.assign import Assigner
from volplane.placement.capacity import CapacityState, MeasureOperation, decide_capacity
from volplane.placement.handlers import PlacementHandlers
from volplane.placement.nodes import NodeBook
from volplane.placement.race import RoomOperation
from volplane.placement.recognise import RecogniseOperation
from volplane.placement.room import PublishedRoom
from volplane.placement.selectors import field_selector, label_selector
from volplane.placement.state import PlacementState
from volplane.placement.volumes import Membership, decide_node
from volplane.process.control_plane import ControlPlane, Runners
from volplane.process.dependencies import Dependencies
from volplane.process.measuring import CountedAssignments, MeasuredHooks
from volplane.protection.claims import ClaimProtection, ProtectionState
from volplane.protection.handlers import ProtectionHandlers
from volplane.protection.live_pods import LivePods, UnprotectOperation
from volplane.protection.volumes import decide_volume_protection, volume_protection_may_act
from volplane.provision.operation import ProvisionOperation
from volplane.reclaim.operation import DeleteOperation, IdentifyOperation, RecycleOperation
from volplane.reclaim.scrub_events import POD_EVENTS, POD_EVENTS_SELECTOR, PodEvent, ScrubEvents
from volplane.roles.claims import ClaimReconciler
from volplane.roles.volumes import VolumeReconciler, promised
from volplane.state.cluster_state import ClusterState, Settings
from volplane.state.handlers import EventHandlers
from volplane.state.indexes import CLAIM_INDEXES, POD_INDEXES, NodePlaces
from volplane.state.naming import volume_source
from volplane.state.race import RaceTimes

__all__ = ["Dependencies", "build"]

_WORKERS = 64
_WORKERS_OF_NODE = 8
"""Keys in flight in each controller of a process that serves one node: its driver takes few more."""


def build(settings: Settings, parts: Dependencies) -> ControlPlane:
    """Make a control plane with the controllers of `settings`. It reads and writes nothing until it is run."""
    return _Wiring(settings, parts).plane()


class _Wiring:
    """Holds the parts that several steps of the wiring need."""

    def __init__(self, settings: Settings, parts: Dependencies) -> None:
        self._settings = settings
        self._parts = parts
        self._client = parts.client.writing_while(parts.may_begin)
        self._plane: ControlPlane
        self._registry = OperationRegistry(parts.loaded.limits, observe=self._operation_ended)
        self._dispatcher = Dispatcher(self._registry)
        self._calls = HookCalls(
            parts.loaded,
            parts.executor,
            metrics=parts.lifecycle_metrics,
            call_hook=parts.call_hook,
            may_begin=parts.may_begin,
        )
        self._drivers = DriverRegistry(
            parts.loaded,
            self._calls,
            cluster_id=settings.cluster_id,
            node_name=settings.node_name or None,
            changed=self._driver_changed,
            refresh=parts.refresh,
        )
        self._state = ClusterState(
            settings=settings,
            claims=Cache(CLAIMS, CLAIM_INDEXES),
            volumes=Cache(VOLUMES, VOLUME_INDEXES if settings.attach_detach else None),
            classes=Cache(STORAGE_CLASSES),
            pods=Cache(PODS, {**POD_INDEXES, **NODE_INDEX} if settings.attach_detach else POD_INDEXES),
            nodes=Cache(NODES),
            drivers=self._drivers,
            sealer=parts.sealer,
            now=parts.clock.now,
            monotonic=parts.clock.monotonic,
            fence=parts.fence,
        )
        if settings.race is not None and settings.node_name:
            self._state.race = RaceTimes(settings.node_name, *settings.race, parts.clock.monotonic)
            self._state.claims.subscribe(self._state.race.claim_changed)
        self._placing: PlacementState | None = None
        self._follow_drivers: list[Callable[[str], None]] = []  # They take the name of a driver that has changed.
        self._measured: MeasuredHooks | None = None
        if parts.lifecycle_metrics is not None:
            claims, volumes = self._state.claims, self._state.volumes
            self._measured = MeasuredHooks(self._calls, claims, volumes, parts.lifecycle_metrics)
        state = self._state
        caches: list[Cache[Any]] = [state.claims, state.volumes, state.classes, state.nodes]
        if settings.follows_pods or settings.reclaimer:
            caches.append(state.pods)
        self._attaches = settings.attacher and parts.loaded.attaches
        self._publishes = settings.capacity and parts.loaded.publishes
        if settings.attach_detach or self._attaches:
            caches.append(state.attachments)
        if settings.attach_detach or self._attaches or (self._publishes and not settings.node_name):
            caches.append(state.csi_drivers)
        if self._publishes or (settings.assigner and parts.loaded.on_nodes):
            caches.append(state.capacities)
        self._caches = {cache.kind.plural: cache for cache in caches}

    def plane(self) -> ControlPlane:
        """Build the rest, each part after those that it needs."""
        runners = self._runners()
        deps = self._operations(runners.volumes)
        EventHandlers(self._state, runners.claims, runners.volumes, self._registry.forget).subscribe()
        if self._settings.expander:
            runners = self._expander(runners, deps)
        if self._settings.protection:
            runners = self._protection(runners)
        runners = replace(runners, attach=self._attach(deps), placement=(*self._assigner(), *self._capacity(deps)))
        check = LeakCheck(
            deps,
            self._drivers.names(),
            random=self._parts.random,
            node_name=self._settings.node_name or None,
            metrics=self._parts.lifecycle_metrics,
        )
        self._plane = ControlPlane(
            state=self._state,
            caches=self._caches,
            client=self._client,
            drivers=self._drivers,
            executor=self._parts.executor,
            operations=self._registry,
            runners=runners,
            reflectors=self._reflectors(),
            clock=self._parts.clock,
            leak_check=check,
            leak_repair=LeakRepair(check, deps, self._dispatcher),
            adoption=Adoption(deps, self._drivers.names(), self._dispatcher),
            attachments=self._comparison(deps),
            placing=self._placing,
            close=self._measured.close if self._measured is not None else lambda: None,
        )
        return self._plane

    # --- the controllers of claims and volumes -------------------------------------------------------------------

    def _runners(self) -> Runners:
        state = self._state
        of_claims = ClaimReconciler(state, lambda key: self._plane.wake("claims", key))
        of_volumes = VolumeReconciler(state)
        decide: Decide = of_claims
        if self._parts.lifecycle_metrics is not None:
            decide = CountedAssignments(decide, state.claims, self._parts.lifecycle_metrics)
        claims = self._runner("claims", decide, state.claims, state.flow_of_claim, of_claims.may_act)
        volumes = self._runner("volumes", of_volumes, state.volumes, state.flow_of_volume, of_volumes.may_act)
        return Runners(claims=claims, volumes=volumes)

    def _runner(
        self, name: str, decide: Decide, cache: Cache[Any], flow: Flow | None = None, predicate: Predicate | None = None
    ) -> Runner:
        return Runner(
            name,
            decide,
            kind=cache.kind,
            caches=self._caches,
            client=self._client,
            recorder=self._parts.recorder,
            dispatcher=self._dispatcher,
            workers=_WORKERS_OF_NODE if self._settings.node_name else _WORKERS,
            flow=flow,
            predicate=predicate,
            may_begin=self._parts.may_begin,
            metrics=self._parts.metrics,
        )

    def _driver_changed(self, name: str) -> None:
        self._plane.driver_changed(name)
        for changed in self._follow_drivers:
            changed(name)

    def _operations(self, volumes: Runner) -> OperationDeps:
        """Register the operations of claims and volumes; returns what operations of other duties need too."""
        hooks: HookCaller = self._measured or self._calls
        deps = OperationDeps(
            cluster=self._state,
            nodes=NodePlaces(self._state.nodes),
            client=self._client,
            hooks=hooks,
            registry=self._registry,
            recorder=self._parts.recorder,
            fence=self._parts.fence,
        )
        self._dispatcher.register("provision", ProvisionOperation(deps))
        self._dispatcher.register("discard", DiscardOperation(deps))
        self._dispatcher.register("delete", DeleteOperation(deps, volumes.enqueue))
        self._dispatcher.register("recycle", RecycleOperation(deps, volumes.enqueue))
        if self._settings.node_name:
            self._dispatcher.register("recognise", RecogniseOperation(deps))
            self._dispatcher.register("check-room", RoomOperation(deps))
        self._dispatcher.register("identify", IdentifyOperation(deps, self._drivers.identify))
        self._state.volumes.subscribe(self._forget_source)
        return deps

    def _forget_source(self, old: Volume | None, new: Volume | None) -> None:
        if new is None and old is not None and old.annotation(PROVISIONED_BY) is None:
            self._drivers.forget_source(volume_source(old))

    def _reflectors(self) -> list[Reflector[Any]]:
        parts = self._parts
        ours_alone = {CAPACITIES.plural, *(() if self._settings.follows_pods else (PODS.plural,))}
        reflectors: list[Reflector[Any]] = [
            Reflector(
                parts.client,
                cache,
                random=parts.random,
                namespace=self._settings.namespace if plural in ours_alone else "",
                label_selector=label_selector(plural, self._settings),
                field_selector=field_selector(plural, self._settings),
                restored=self._server_restored,
                metrics=parts.metrics,
            )
            for plural, cache in self._caches.items()
        ]
        if self._settings.reclaimer and not self._settings.node_name:
            events: Cache[PodEvent] = Cache(POD_EVENTS)
            ScrubEvents(events, self._state, parts.recorder)
            reflectors.append(
                Reflector(
                    parts.client,
                    events,
                    random=parts.random,
                    namespace=self._settings.namespace,
                    field_selector=POD_EVENTS_SELECTOR,
                    restored=self._server_restored,
                    metrics=parts.metrics,
                )
            )
        return reflectors

    def _server_restored(self) -> None:
        self._plane.server_restored()

    # --- the controllers of attachments --------------------------------------------------------------------------

    def _attach(self, deps: OperationDeps) -> tuple[Runner, ...]:
        return (
            *(self._attacher(deps) if self._attaches else ()),
            *(self._attach_detach() if self._settings.attach_detach else ()),
        )

    def _attacher(self, deps: OperationDeps) -> tuple[Runner, ...]:
        state = self._state
        attacher = self._runner(
            "attacher",
            lambda key, reads: decide_attachment(key, state, reads),
            state.attachments,
            state.flow_of_attachment,
        )
        self._dispatcher.register("attach", AttachOperation(deps, attacher.enqueue))
        self._dispatcher.register("detach", DetachOperation(deps, attacher.enqueue))
        AttacherHandlers(state, attacher).subscribe()
        return attacher, self._csi_drivers()

    def _comparison(self, deps: OperationDeps) -> AttachmentComparison | None:
        if not self._attaches:
            return None
        names, metrics = self._drivers.names(), self._parts.lifecycle_metrics
        return AttachmentComparison(deps, lambda key: self._plane.wake("attacher", key), names, metrics)

    def _attach_detach(self) -> tuple[Runner, ...]:
        state = AttachDetachState(self._state)
        nodes = self._runner("node-reports", NodeReconciler(state), self._state.nodes)
        decide = PairReconciler(
            state, lambda key: self._plane.wake("attach-detach", key), nodes.enqueue, self._parts.lifecycle_metrics
        )
        pairs = self._runner("attach-detach", decide, self._state.attachments)
        AttachDetachHandlers(state, pairs=pairs, nodes=nodes).subscribe()
        return pairs, nodes

    # --- where volumes are ---------------------------------------------------------------------------------------

    def _assigner(self) -> tuple[Runner, ...]:
        loaded = self._parts.loaded
        if not self._settings.assigner or not loaded.on_nodes:
            return ()
        state = self._state
        keys = {key for driver in loaded.distributed for key in driver.view.info.topology_keys}
        book = NodeBook(state.nodes, keys, state.monotonic)
        placing = self._placing = PlacementState(
            cluster=state, drivers=loaded.on_nodes, nodes=book, room=PublishedRoom(book)
        )
        claims = self._runner("assigner", Assigner(placing), state.claims, state.flow_of_claim)
        volumes = self._runner("node-volumes", Membership(placing), state.volumes)
        nodes = self._runner("node-names", lambda name, _: decide_node(name, placing), state.nodes)
        handlers = PlacementHandlers(placing, claims=claims, volumes=volumes, nodes=nodes)
        handlers.subscribe()
        self._follow_drivers.append(handlers.driver_changed)
        return claims, volumes, nodes

    def _capacity(self, deps: OperationDeps) -> tuple[Runner, ...]:
        if not self._publishes:
            return ()
        state = self._state
        publishing = CapacityState(state, self._drivers.publishers)
        capacities = self._runner(
            "capacity", lambda key, reads: decide_capacity(key, publishing, reads), state.capacities
        )
        self._dispatcher.register("measure", MeasureOperation(deps, publishing))
        publishing.subscribe(capacities)
        self._follow_drivers.append(publishing.driver_changed)
        return (capacities, *(() if self._settings.node_name or self._attaches else (self._csi_drivers(),)))

    def _csi_drivers(self) -> Runner:
        """The objects that say what drivers need of others."""
        state = self._state
        drivers = self._runner("csidrivers", lambda key, _: decide_csi_driver(key, state), state.csi_drivers)
        state.csi_drivers.subscribe(lambda old, new: drivers.enqueue((new or old or KubeObject()).name))
        for each in self._parts.loaded.distributed:
            drivers.enqueue(each.name)
        return drivers

    # --- growth and change of attributes -------------------------------------------------------------------------

    def _expander(self, runners: Runners, deps: OperationDeps) -> Runners:
        state = self._state
        resizer = self._runner("resizer", lambda key, _: decide_resize(key, state), state.claims)
        modifier = self._runner("modifier", lambda key, reads: decide_modify(key, state, reads), state.claims)
        self._dispatcher.register("expand", ExpandOperation(deps, resizer.enqueue))
        self._dispatcher.register("modify", ModifyOperation(deps, modifier.enqueue))
        ExpandHandlers(state, resizer, modifier, self._registry.forget).subscribe()
        return replace(runners, expander=(resizer, modifier))

    # --- the protection controllers ------------------------------------------------------------------------------

    def _protection(self, runners: Runners) -> Runners:
        state, parts = self._state, self._parts
        live = LivePods()
        self._dispatcher.register("unprotect", UnprotectOperation(parts.client, live, parts.clock.monotonic))
        protection = ProtectionState(
            claims=state.claims,
            pods=state.pods,
            live=live,
            monotonic=parts.clock.monotonic,
            promised=lambda claim: promised(claim, state),
        )
        claims = self._runner(
            "pvcprotection", ClaimProtection(protection), state.claims, predicate=state.claims.__contains__
        )
        volumes = self._runner(
            "pvprotection",
            lambda key, _: decide_volume_protection(key, state.volumes, state.claims, state.removes_protection),
            state.volumes,
            predicate=lambda key: volume_protection_may_act(key, state.volumes, state.removes_protection),
        )
        handlers = ProtectionHandlers(protection, claims=claims, volumes=volumes)
        state.claims.subscribe(handlers.claim_changed)
        state.volumes.subscribe(handlers.volume_changed)
        state.pods.subscribe(handlers.pod_changed)
        return replace(runners, protection=(claims, volumes))

    # --- what is counted -----------------------------------------------------------------------------------------

    def _operation_ended(self, ended: Ended) -> None:
        if self._parts.lifecycle_metrics is not None:
            failed = ended.error is not None
            self._parts.lifecycle_metrics.operation_ended(
                ended.run.driver, ended.run.verb, ended.seconds, failed=failed
            )
