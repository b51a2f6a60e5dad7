"""The wiring: `build` is the only function that makes a control plane.

The process, the read-only control plane, the testing kit and the simulation call it, each with its own parts. Nothing
here decides anything, and nothing here knows a single controller: `volplane.process.duties` lists them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random
from typing import Any

from volplane.attach.comparison import AttachmentComparison
from volplane.controller.actions import Recorder, Run
from volplane.controller.controller import Controller, Role, Watch
from volplane.controller.metrics import Metrics
from volplane.controller.runner import Runner
from volplane.controller.workqueue import NO_METRICS, ControllerMetrics, LateQueue, LoopTime
from volplane.drivers.driver import Driver, LoadedDrivers
from volplane.drivers.executor import CallHook, HookCalls, ThreadExecutor
from volplane.drivers.registry import DriverRegistry
from volplane.intents.operation import OperationDeps
from volplane.kube.cache import Cache
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, NODES, PODS, STORAGE_CLASSES, VOLUMES
from volplane.kube.reflector import Reflector
from volplane.leaks.check import LeakCheck
from volplane.leaks.repair import Adoption, LeakRepair
from volplane.operations.registry import OperationRegistry
from volplane.process import duties
from volplane.process.control_plane import ControlPlane
from volplane.process.measuring import MeasuredHooks
from volplane.roles.node import selectors
from volplane.state.cluster_state import CLAIM_INDEXES, POD_INDEXES, ClusterState
from volplane.state.records import Sealer

_WORKERS = 64
_WORKERS_OF_NODE = 8
"""Keys in flight in each controller of a process that serves one node: its driver takes few more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What a control plane is built from. All parts belong to one event loop."""

    client: Client
    loaded: LoadedDrivers
    executor: ThreadExecutor = field(default_factory=ThreadExecutor)
    """Runs the hooks; the caller closes it."""
    recorder: Recorder
    sealer: Sealer
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    """The wall clock."""
    random: Random = field(default_factory=Random)
    fence: Callable[[], str] = lambda: ""
    """Returns the text of our term's `Fence`."""
    may_begin: Callable[[], bool] = lambda: True
    """Whether the lease lasts long enough to begin something that changes cluster or storage; for any thread."""
    metrics: ControllerMetrics = NO_METRICS
    """Of runners and reflectors."""
    lifecycle_metrics: Metrics | None = None
    """Of claims, volumes, hooks and leaks; None = nothing is counted."""
    call_hook: CallHook = Driver.call
    fenced: Callable[[str], None] = lambda _term: None
    """Gets the term of a later leader that a storage knows, in a thread of the executor."""


def build(role: Role, parts: Dependencies) -> ControlPlane:
    """Make a control plane with the controllers of `role`. It reads and writes nothing until it is run."""
    metrics = parts.lifecycle_metrics

    def operation_ended(run: Run, seconds: float, error: BaseException | None) -> None:
        if metrics is not None:
            metrics.operation_ended(run.driver, run.verb, seconds, failed=error is not None)

    client = parts.client.writing_while(parts.may_begin)
    operations = OperationRegistry(parts.loaded.limits, observe=operation_ended)
    calls = HookCalls(
        parts.loaded,
        parts.executor,
        metrics=metrics,
        call_hook=parts.call_hook,
        may_begin=parts.may_begin,
        fenced=parts.fenced,
    )
    drivers = DriverRegistry(
        parts.loaded,
        calls,
        client=parts.client,
        cluster_id=role.cluster_id,
        node_name=role.node_name or None,
        changed=lambda name: plane.changed.put_nowait(name),  # noqa: PLW0108 - the plane is made below
    )
    cluster = ClusterState(
        cluster_id=role.cluster_id,
        namespace=role.namespace,
        lease=role.lease,
        node_name=role.node_name,
        claims=Cache(CLAIMS, CLAIM_INDEXES),
        volumes=Cache(VOLUMES),
        classes=Cache(STORAGE_CLASSES),
        pods=Cache(PODS, POD_INDEXES),
        nodes=Cache(NODES),
        drivers=drivers,
        sealer=parts.sealer,
        now=parts.now,
        server_time=client.server_time,
        monotonic=LoopTime(),
        fence=parts.fence,
    )
    queues: defaultdict[str, LateQueue] = defaultdict(LateQueue)
    deps = OperationDeps(
        cluster=cluster,
        client=client,
        drivers=drivers,
        loaded=parts.loaded,
        hooks=calls if metrics is None else MeasuredHooks(calls, cluster.claims, cluster.volumes, metrics),
        registry=operations,
        recorder=parts.recorder,
        metrics=metrics,
        queue=queues.__getitem__,
    )
    controllers: list[Controller] = [
        controller
        for duty in duties.DUTIES
        if not duty.option or role.runs(duty.option)
        for controller in duty.controllers(role, deps)
    ]
    watches = watches_of(controllers)
    caches = {plural: watch.cache for plural, watch in watches.items() if watch.required}
    runners: dict[str, Runner] = {}
    for each in controllers:
        runners[each.queue] = queues[each.queue].runner = Runner(
            each.queue,
            each.decide,
            pure=each.explain,
            kind=each.cache.kind,
            caches={**caches, **{watch.cache.kind.plural: watch.cache for watch in each.own}},
            client=client,
            recorder=parts.recorder,
            start_operation=operations.dispatch,
            workers=_WORKERS_OF_NODE if role.node_name else _WORKERS,
            flow=each.flow,
            predicate=each.predicate,
            may_begin=parts.may_begin,
            metrics=parts.metrics,
        )
        for verb, handler in each.operations.items():
            operations.register(verb, handler)
    for each in controllers:
        each.subscribe()
    reflectors: list[Reflector[Any]] = [
        Reflector(
            parts.client,
            watch.cache,
            random=parts.random,
            namespace=watch.namespace,
            label_selector=labels,
            field_selector=watch.field_selector or fields,
            required=watch.required,
            restored=lambda: plane.server_restored(),  # noqa: PLW0108
            expired=cluster.claims.doubt,
            metrics=parts.metrics,
        )
        for plural, watch in watches.items()
        for labels, fields in (selectors(plural, role),)
    ]
    check = LeakCheck(deps, parts.random)
    attaches = duties.ATTACHES in runners
    plane = ControlPlane(
        role=role,
        state=cluster,
        caches=caches,
        drivers=drivers,
        executor=parts.executor,
        operations=operations,
        controllers={each.queue: each for each in controllers},
        runners=tuple(runners.values()),
        reflectors=reflectors,
        leak_check=check,
        leak_repair=LeakRepair(check, deps),
        adoption=Adoption(check, deps),
        attachments=AttachmentComparison(deps, queues[duties.ATTACHES].enqueue) if attaches else None,
    )
    return plane


def watches_of(controllers: Iterable[Controller]) -> dict[str, Watch]:
    """Return what is watched, by plural, optional kinds last. A watch of all namespaces wins over others."""
    found: dict[str, Watch] = {}
    for controller in controllers:
        watches = (*controller.watches, *(replace(each, required=False) for each in controller.own))
        named = any(each.cache is controller.cache for each in watches)
        for watch in watches if named else (Watch(cache=controller.cache), *watches):
            known = found.get(watch.cache.kind.plural)
            if known is None or not watch.namespace:
                found[watch.cache.kind.plural] = watch
    return dict(sorted(found.items(), key=lambda item: not item[1].required))
