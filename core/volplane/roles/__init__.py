"""The roles of a process: which decision a claim and a volume get, composed of the steps of several duties.

Three roles: the whole control plane, beside a stock one, and one node. Claims and volumes have one queue each.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import Final

from volplane import provision, reclaim
from volplane.binding.decide import ClaimReconciler
from volplane.controller.actions import Decide
from volplane.controller.controller import Controller, Duty, Handler, Role, Watch
from volplane.intents.operation import OperationDeps
from volplane.kube.names import PROVISIONED_BY, PROVISIONING_FINALIZER
from volplane.placement.one_node import RaceTimes, recognise_operation, room_operation
from volplane.reclaim.delete import Terms
from volplane.roles.beside import Beside
from volplane.roles.node import OneNode
from volplane.roles.whole import Whole
from volplane.state.cluster_state import ClusterState
from volplane.state.handlers import EventHandlers

__all__ = ["CLAIMS_AND_VOLUMES", "decisions"]


def decisions(role: Role, cluster: ClusterState, race: RaceTimes | None = None) -> Whole | Beside:
    """Return the decisions of a process of this role. race: see `OneNode`."""
    provisions, reclaims = role.runs("provisioner"), role.runs("reclaimer")
    terms = Terms(scrub=role.scrub, writes_phase=role.runs("binder"), protects=role.runs("protection"))
    if role.runs("binder"):
        return Whole(cluster, provisions, reclaims, terms)
    if role.node_name:
        # Without a race it sees only the claims of its node.
        return OneNode(cluster, provisions, reclaims, terms, keeps=race is not None, race=race)
    return Beside(cluster, provisions, reclaims, terms)


def _controllers(role: Role, deps: OperationDeps) -> Iterable[Controller]:
    cluster, claims, volumes = deps.cluster, deps.queue("claims"), deps.queue("volumes")
    race: RaceTimes | None = None
    on_node: dict[str, Handler] = {}
    if role.node_name:
        on_node["recognise"] = partial(recognise_operation, deps=deps)
    if role.node_name and role.race is not None:
        race = RaceTimes(role.node_name, *role.race, cluster.monotonic, external_choice=role.external_choice)
        cluster.claims.subscribe(race.claim_changed)
        on_node["check-room"] = partial(room_operation, deps=deps, race=race)
    decided = decisions(role, cluster, race)
    binds = role.runs("binder")
    schedules = deps.queue("snapshot-schedules")
    handlers = EventHandlers(cluster, claims, volumes, schedules, deps.registry.forget, writes_phase=binds)

    decide: Decide = decided.decide_claim
    if binds:
        decide = ClaimReconciler(cluster, decide, claims, deps.metrics)
    yield Controller(
        queue="claims",
        cache=cluster.claims,
        decide=decide,
        explain=decided.decide_claim,
        watches=(
            Watch(cache=cluster.volumes),
            Watch(cache=cluster.classes),
            Watch(cache=cluster.nodes),
            *((Watch(cache=cluster.pods),) if binds else ()),
        ),
        subscribe=partial(cluster.follow, cluster.record_conflicts, handlers),
        operations=provision.operations(deps),
        resync=lambda: (*cluster.claims.keys(), *cluster.progress.vanished),
        of_driver=lambda name: chain(
            tuple(cluster.progress.vanished),
            (
                claim.key
                for each in cluster.classes.values()
                if each.provisioner == name
                for claim in cluster.claims.by_index("unbound", each.name)
            ),
            (claim.key if claim.has_finalizer(PROVISIONING_FINALIZER) else "" for claim in cluster.claims.values()),
        ),
        flow=cluster.flow_of,
        predicate=decided.claim_may_act,
    )
    yield Controller(
        queue="volumes",
        cache=cluster.volumes,
        decide=decided.decide_volume,
        watches=reclaim.watches(deps) if role.runs("reclaimer") and not role.node_name else (),
        operations={**reclaim.operations(role, deps), **on_node},
        resync=cluster.volumes.keys,
        of_driver=lambda name: (
            volume.key if volume.annotation(PROVISIONED_BY) in (None, name) else ""
            for volume in cluster.volumes.values()
        ),
        flow=cluster.flow_of,
        predicate=decided.volume_may_act,
    )


CLAIMS_AND_VOLUMES: Final[Duty[OperationDeps]] = Duty(option="", controllers=_controllers)
"""The queues to which the binder, the provisioner and the reclaimer contribute steps."""
