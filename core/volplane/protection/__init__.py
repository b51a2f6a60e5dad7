"""In-use protection: the two finalizers that keep claims and volumes while somebody uses them.

Two controllers; `handlers` queues what a change may concern. It never deletes
anything: it adds a finalizer to a living object, and removes it from a terminating one that is proven unused.
"""

from collections.abc import Iterable
from typing import Final

from volplane.binding.steps import is_promised
from volplane.controller.controller import FOLLOW, Controller, Duty, Role, Rule, Watch
from volplane.intents.operation import OperationDeps
from volplane.intents.ownership import removes_protection
from volplane.kube.objects import Volume
from volplane.protection.claims import ClaimProtection, ProtectionState
from volplane.protection.handlers import ProtectionHandlers
from volplane.protection.live_pods import LivePods, UnprotectOperation
from volplane.protection.volumes import decide_volume_protection, volume_protection_may_act

__all__ = ["PROTECTION"]


def _controllers(role: Role, deps: OperationDeps) -> Iterable[Controller]:
    cluster, live = deps.cluster, LivePods()
    state = ProtectionState(
        claims=cluster.claims,
        pods=cluster.pods,
        live=live,
        monotonic=cluster.monotonic,
        promised=lambda claim: role.runs("binder") and is_promised(claim, cluster),
    )

    def removed(volume: Volume) -> bool:
        return role.runs("binder") and role.runs("reclaimer") and removes_protection(volume, cluster)

    handlers = ProtectionHandlers(state, claims=deps.queue("pvcprotection"), volumes=deps.queue("pvprotection"))

    def subscribe() -> None:
        cluster.claims.subscribe(handlers.claim_changed)
        cluster.volumes.subscribe(handlers.volume_changed)
        cluster.pods.subscribe(handlers.pod_changed)

    yield Controller(
        queue="pvcprotection",
        cache=cluster.claims,
        decide=ClaimProtection(state),
        explained="",
        watches=(Watch(cache=cluster.volumes), Watch(cache=cluster.pods)),
        subscribe=subscribe,
        operations={"unprotect": UnprotectOperation(deps.reads, live, cluster.monotonic)},
        predicate=cluster.claims.__contains__,
    )
    yield Controller(
        queue="pvprotection",
        cache=cluster.volumes,
        decide=lambda key, _: decide_volume_protection(key, cluster.volumes, cluster.claims, removed),
        explained="",
        predicate=lambda key: volume_protection_may_act(key, cluster.volumes, removed),
    )


PROTECTION: Final[Duty[OperationDeps]] = Duty(
    option="protection",
    permissions=(
        Rule("", "pods", FOLLOW),
        Rule("", "persistentvolumes", ("patch",)),
        Rule("", "persistentvolumeclaims", ("patch",)),
    ),
    controllers=_controllers,
)
