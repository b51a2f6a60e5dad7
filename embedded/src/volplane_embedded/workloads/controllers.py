"""The controllers of workloads, and what wakes them."""

from __future__ import annotations

from asyncio import TaskGroup
from contextlib import ExitStack
from typing import Any, Final

from volplane.controller.actions import Decide, Recorder
from volplane.controller.runner import Runner
from volplane.kube.cache import Cache
from volplane.kube.client import Client
from volplane.kube.kinds import Kind
from volplane_embedded.informers import Informers
from volplane_embedded.objects import DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS, Now, Workload, controller_of
from volplane_embedded.workloads.deployment import Deployments
from volplane_embedded.workloads.replicaset import ReplicaSets
from volplane_embedded.workloads.statefulset import StatefulSets

_MOST_STEPS: Final = 2000
"""Of a pass: pods that it makes or deletes."""


async def run_workloads(informers: Informers, client: Client, recorder: Recorder, now: Now) -> None:
    """Run the controllers until cancelled. The informers are followed by the caller."""
    pods, claims, revisions = informers.pods, informers.claims, informers.revisions
    replica_sets, deployments = ReplicaSets(informers, now), Deployments(informers, now)
    controllers: tuple[tuple[Kind[Workload], Decide, tuple[Cache[Any], ...]], ...] = (
        (STATEFUL_SETS, StatefulSets(informers, now).decide, (pods, claims, revisions)),
        (REPLICA_SETS, replica_sets.decide, (pods,)),
        (DEPLOYMENTS, deployments.decide, (informers.replica_sets,)),
    )
    caches = informers.caches
    with ExitStack() as stack:
        async with TaskGroup() as tasks:
            for kind, decide, dependents in controllers:
                runner = Runner(
                    kind.kind.lower(),
                    decide,
                    kind=kind,
                    caches=caches,
                    client=client,
                    recorder=recorder,
                    workers=4,
                    most_steps=_MOST_STEPS,
                )
                wakes = _Wakes(kind, caches[kind.plural], runner)
                for cache in (caches[kind.plural], *dependents):
                    stack.callback(cache.subscribe(wakes.changed))
                for each in caches[kind.plural].values():
                    runner.enqueue(each.key)
                tasks.create_task(runner.run(), name=f"node-{kind.plural}")


class _Wakes:
    """Wakes workloads of one kind by their own changes, and by those of what they own, or could adopt."""

    def __init__(self, kind: Kind[Workload], cache: Cache[Workload], runner: Runner) -> None:
        self._kind, self._cache, self._runner = kind, cache, runner

    def changed(self, old: Any, new: Any) -> None:
        for each in (old, new):
            owner = controller_of(each) if each is not None else None
            if isinstance(each, Workload) and each.key in self._cache and self._cache.get(each.key) is each:
                self._runner.enqueue(each.key)
            if owner is not None and owner.kind == self._kind.kind:
                self._runner.enqueue(f"{each.namespace}/{owner.name}")
            elif each is not None and owner is None:
                for workload in self._cache.values():
                    if workload.namespace == each.namespace and workload.selects(each):
                        self._runner.enqueue(workload.key)
