"""The roles of a process: which decision a claim and a volume get, composed of the steps of several duties.

Three roles: the whole control plane, beside a stock one, and one node. Claims and volumes have one queue each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final, Protocol

from volplane import provision, reclaim
from volplane.binding.claims import ClaimReconciler, CountedAssignments
from volplane.controller.actions import Action, Decide, LiveReads
from volplane.controller.controller import Controller, Duty, Handler, Role, Watch
from volplane.intents.shared import Shared
from volplane.kube.names import PROVISIONED_BY, PROVISIONING_FINALIZER
from volplane.placement.race import RoomOperation
from volplane.placement.recognise import RecogniseOperation
from volplane.reclaim.delete import Terms
from volplane.roles.beside import Beside
from volplane.roles.node import OneNode
from volplane.roles.whole import Whole
from volplane.state.cluster_state import ClusterState
from volplane.state.handlers import EventHandlers
from volplane.state.race import RaceTimes

__all__ = ["CLAIMS_AND_VOLUMES", "Decisions", "decisions"]


class Decisions(Protocol):
    """What a role decides about claims and volumes."""

    def claim_may_act(self, key: str) -> bool:
        """Return whether something may be left to do for the claim `namespace/name`."""

    def decide_claim(self, key: str, reads: LiveReads) -> Action:
        """Return the next action for the claim `namespace/name`."""

    def volume_may_act(self, key: str) -> bool:
        """Return whether something may be left to do for the volume of this name."""

    def decide_volume(self, key: str, reads: LiveReads) -> Action:
        """Return the next action for the volume of this name."""


def decisions(role: Role, cluster: ClusterState, race: RaceTimes | None = None) -> Decisions:
    """Return the decisions of a process of this role. race: see `OneNode`."""
    provisions, reclaims = role.runs("provisioner"), role.runs("reclaimer")
    terms = Terms(scrub=role.scrub, writes_phase=role.runs("binder"), protects=role.runs("protection"))
    if role.runs("binder"):
        return Whole(cluster=cluster, provisions=provisions, reclaims=reclaims, reclaim=terms)
    if role.node_name:
        return OneNode(cluster=cluster, provisions=provisions, reclaims=reclaims, reclaim=terms, race=race)
    return Beside(cluster=cluster, provisions=provisions, reclaims=reclaims, reclaim=terms)


def _claims_of_driver(cluster: ClusterState, name: str) -> Iterator[str]:
    for class_name in [item.name for item in cluster.classes.values() if item.provisioner == name]:
        for claim in cluster.claims.by_index("unbound", class_name):
            yield claim.key
    for claim in cluster.claims.values():
        if claim.has_finalizer(PROVISIONING_FINALIZER):
            yield claim.key


def _volumes_of_driver(cluster: ClusterState, name: str) -> Iterator[str]:
    for volume in cluster.volumes.values():
        if volume.annotation(PROVISIONED_BY) in (None, name):
            yield volume.key


def _of_node(role: Role, shared: Shared) -> tuple[RaceTimes | None, Mapping[str, Handler]]:
    """Return what the process of one node has beside the others: the times of a race, and operations."""
    if not role.node_name:
        return None, {}
    operations: dict[str, Handler] = {"recognise": RecogniseOperation(shared.deps)}
    if role.race is None:
        return None, operations
    cluster = shared.cluster
    race = RaceTimes(role.node_name, *role.race, cluster.monotonic, external_choice=role.external_choice)
    cluster.claims.subscribe(race.claim_changed)
    return race, {**operations, "check-room": RoomOperation(shared.deps, race)}


def _controllers(role: Role, shared: Shared) -> Iterable[Controller]:
    cluster, claims, volumes = shared.cluster, shared.queue("claims"), shared.queue("volumes")
    race, on_node = _of_node(role, shared)
    decided = decisions(role, cluster, race)
    binds = role.runs("binder")
    handlers = EventHandlers(cluster, claims, volumes, shared.deps.registry.forget, writes_phase=binds)

    decide: Decide = ClaimReconciler(cluster, decided.decide_claim, claims) if binds else decided.decide_claim
    if binds and shared.metrics is not None:
        decide = CountedAssignments(decide, cluster.claims, shared.metrics)
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
        subscribe=handlers.subscribe,
        operations=provision.operations(role, shared),
        resync=cluster.claims.keys,
        of_driver=partial(_claims_of_driver, cluster),
        flow=cluster.flow_of_claim,
        predicate=decided.claim_may_act,
    )
    yield Controller(
        queue="volumes",
        cache=cluster.volumes,
        decide=decided.decide_volume,
        watches=reclaim.watches(role, shared) if role.runs("reclaimer") else (),
        operations={**reclaim.operations(role, shared), **on_node},
        resync=cluster.volumes.keys,
        of_driver=partial(_volumes_of_driver, cluster),
        flow=cluster.flow_of_volume,
        predicate=decided.volume_may_act,
    )


CLAIMS_AND_VOLUMES: Final[Duty[Shared]] = Duty(option="", controllers=_controllers)
"""The queues to which the binder, the provisioner and the reclaimer contribute steps."""
