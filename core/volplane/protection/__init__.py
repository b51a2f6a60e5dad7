"""In-use protection: the two finalizers that keep claims and volumes while they are used.

It never deletes anything: it adds a finalizer to a living object, and removes it from a terminating one that is proven
unused.
"""

from collections.abc import Iterable
from functools import partial
from typing import Final

from volplane.controller.controller import FOLLOW, Controller, Duty, Role, Rule, Watch
from volplane.intents.operation import OperationDeps
from volplane.protection.finalizers import Protection

__all__ = ["PROTECTION", "controllers"]


def controllers(role: Role, deps: OperationDeps) -> Iterable[Controller]:
    cluster, binds = deps.cluster, role.runs("binder")
    protection = Protection(
        cluster=cluster,
        claims=deps.queue("pvcprotection"),
        volumes=deps.queue("pvprotection"),
        binds=binds,
        reclaims=binds and role.runs("reclaimer"),
        shows_unused=role.unused_condition,
    )

    yield Controller(
        queue="pvcprotection",
        cache=cluster.claims,
        decide=protection.reconcile_claim,
        explained="",
        watches=(Watch(cache=cluster.volumes), Watch(cache=cluster.pods)),
        subscribe=partial(cluster.follow, protection),
        operations={"unprotect": partial(protection.unprotect, client=deps.client)},
        predicate=cluster.claims.__contains__,
    )
    yield Controller(
        queue="pvprotection",
        cache=cluster.volumes,
        decide=protection.decide_volume,
        explained="",
        predicate=protection.volume_may_act,
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
