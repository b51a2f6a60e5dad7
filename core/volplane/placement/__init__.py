"""On which node the volumes of distributed drivers are, and how much room there is.

`assign` is the assigner: pure decisions about claims and volumes over a `PlacementState` (`state`), which knows the
nodes (`nodes`), what is published and promised on them, and which of them to take (`room`).
"""

from collections.abc import Iterable
from functools import partial
from typing import Final

from volplane.controller.controller import FOLLOW, READ, Controller, Duty, Role, Rule, Watch
from volplane.intents.operation import OperationDeps
from volplane.placement.assign import decide_assignment, decide_membership, decide_node
from volplane.placement.capacity import CapacityState, decide_capacity, measure_operation
from volplane.placement.nodes import NodeBook
from volplane.placement.state import PlacementState

__all__ = ["ASSIGNER", "CAPACITY"]


def _assigner(role: Role, deps: OperationDeps) -> Iterable[Controller]:
    loaded, cluster = deps.loaded, deps.cluster
    if role.race is not None or not loaded.on_nodes:
        return
    keys = {key for driver in loaded.distributed for key in driver.view.info.topology_keys}
    state = PlacementState(
        cluster=cluster,
        drivers=loaded.on_nodes,
        nodes=NodeBook(cluster.nodes, keys, cluster.monotonic),
        claims=deps.queue("assigner"),
        volumes=deps.queue("node-volumes"),
        node_names=deps.queue("node-names"),
        external_choice=role.external_choice,
    )
    yield Controller(
        queue="assigner",
        cache=cluster.claims,
        decide=lambda key, reads: decide_assignment(key, state, reads),
        explained="reason",
        topic="its node: ",
        watches=(Watch(cache=cluster.capacities, namespace=cluster.namespace),),
        subscribe=partial(cluster.follow, state),
        resync=cluster.claims.keys,
        of_driver=state.claims_of_driver,
        flow=cluster.flow_of,
        measure=lambda metrics: metrics.lost.show(state.count_lost()),
    )
    yield Controller(
        queue="node-volumes",
        cache=cluster.volumes,
        decide=lambda name, _: decide_membership(name, state),
        explained="reason",
        resync=cluster.volumes.keys,
        of_driver=state.volumes_of_driver,
    )
    yield Controller(queue="node-names", cache=cluster.nodes, decide=lambda name, _: decide_node(name, state))


def _capacity(_role: Role, deps: OperationDeps) -> Iterable[Controller]:
    if not deps.loaded.publishes:
        return
    cluster = deps.cluster
    state = CapacityState(cluster, deps.drivers.publishers, deps.queue("capacity"))
    yield Controller(
        queue="capacity",
        cache=cluster.capacities,
        decide=lambda key, reads: decide_capacity(key, state, reads),
        watches=(Watch(cache=cluster.capacities, namespace=cluster.namespace),),
        subscribe=partial(cluster.follow, state),
        operations={"measure": lambda run: measure_operation(run, deps, state)},
        resync=cluster.capacities.keys,
        of_driver=state.of_driver,
    )


_WRITE = ("create", "patch", "delete")
ASSIGNER: Final[Duty[OperationDeps]] = Duty(
    option="assigner",
    default=True,
    permissions=(
        Rule("", "persistentvolumeclaims", ("patch",), where="distributed"),
        Rule("", "persistentvolumes", ("patch",), where="distributed"),
        Rule("", "nodes", ("get",), where="distributed"),
        Rule("storage.k8s.io", "csistoragecapacities", FOLLOW, ours=True, where="publishing"),
    ),
    controllers=_assigner,
)
CAPACITY: Final[Duty[OperationDeps]] = Duty(
    option="capacity",
    default=True,
    on_nodes=True,
    permissions=(
        Rule("storage.k8s.io", "csidrivers", (*READ, "create", "patch"), where="distributed"),
        Rule("", "nodes", ("get",), where="distributed"),
        Rule("storage.k8s.io", "csistoragecapacities", (*READ, *_WRITE), ours=True, where="publishing"),
    ),
    controllers=_capacity,
)
