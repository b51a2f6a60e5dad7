"""In-use protection: the two finalizers that keep claims and volumes while they are used.

It never deletes anything: it adds a finalizer to a living object, and removes it from a terminating one that is proven
unused.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from volplane.binding.decide import is_promised
from volplane.controller.controller import FOLLOW, Controller, Duty, Role, Rule, Watch
from volplane.intents.operation import OperationDeps
from volplane.intents.ownership import removes_protection
from volplane.kube.objects import Volume
from volplane.protection.finalizers import (
    ClaimProtection,
    LivePods,
    ProtectionHandlers,
    decide_volume_protection,
    volume_protection_may_act,
)

__all__ = ["PROTECTION", "controllers"]


def controllers(role: Role, deps: OperationDeps) -> Iterable[Controller]:
    cluster, live = deps.cluster, LivePods()
    claim_protection = ClaimProtection(cluster=cluster, live=live, shows_unused=role.unused_condition)
    if role.runs("binder"):
        claim_protection.promised = partial(is_promised, cluster=cluster)
    handlers = ProtectionHandlers(
        state=claim_protection, claims=deps.queue("pvcprotection"), volumes=deps.queue("pvprotection")
    )

    reclaims = role.runs("binder") and role.runs("reclaimer")
    removed: Callable[[Volume], bool] = partial(removes_protection, cluster=cluster) if reclaims else lambda _: False

    def subscribe() -> None:
        cluster.claims.subscribe(handlers.claim_changed)
        cluster.volumes.subscribe(handlers.volume_changed)
        cluster.pods.subscribe(handlers.pod_changed)

    yield Controller(
        queue="pvcprotection",
        cache=cluster.claims,
        decide=claim_protection,
        explained="",
        watches=(Watch(cache=cluster.volumes), Watch(cache=cluster.pods)),
        subscribe=subscribe,
        operations={"unprotect": partial(live.operation, client=deps.client, monotonic=cluster.monotonic)},
        predicate=cluster.claims.__contains__,
    )
    yield Controller(
        queue="pvprotection",
        cache=cluster.volumes,
        decide=partial(decide_volume_protection, cluster=cluster, removes_protection=removed),
        explained="",
        predicate=partial(volume_protection_may_act, volumes=cluster.volumes, removes_protection=removed),
    )


PROTECTION: Final[Duty[OperationDeps]] = Duty(
    option="protection",
    permissions=(
        Rule("", "pods", FOLLOW),
        Rule("", "persistentvolumes", ("patch",)),
        Rule("", "persistentvolumeclaims", ("patch",)),
        Rule("", "persistentvolumeclaims/status", ("patch",)),
    ),
    controllers=controllers,
)
