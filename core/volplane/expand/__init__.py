"""Growing the assets of bound claims, and changing their attributes (VolumeAttributesClass).

`resize` and `modify` decide and are pure; `operation` makes the live checks and calls the hooks. The node plugin grows
the file systems.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from volplane.controller.controller import Controller, Duty, Role, Rule
from volplane.expand.modify import ExpandHandlers, decide_modify
from volplane.expand.operation import ExpandOperation, ModifyOperation
from volplane.expand.resize import decide_resize
from volplane.intents.operation import OperationDeps
from volplane.kube.names import PROVISIONED_BY

__all__ = ["EXPANDER", "controllers"]


def controllers(role: Role, deps: OperationDeps) -> Iterable[Controller]:
    cluster, whole = deps.cluster, role.runs("binder")
    resizer, modifier = deps.queue("resizer"), deps.queue("modifier")

    def bound_claims(driver: str) -> Iterator[str]:
        for volume in cluster.volumes.values():
            reference = volume.spec.claim_ref
            mine = volume.annotation(PROVISIONED_BY) in (None, driver)
            yield reference.key if mine and reference is not None and reference.uid else ""

    yield Controller(
        queue="resizer",
        cache=cluster.claims,
        decide=lambda key, _: decide_resize(key, cluster, whole=whole),
        subscribe=partial(cluster.follow, ExpandHandlers(cluster, resizer, modifier, deps.registry.forget)),
        operations={"expand": ExpandOperation(deps, resizer.enqueue)},
        of_driver=bound_claims,
    )
    yield Controller(
        queue="modifier",
        cache=cluster.claims,
        decide=lambda key, reads: decide_modify(key, cluster, reads),
        operations={"modify": ModifyOperation(deps, modifier.enqueue)},
        of_driver=bound_claims,
    )


EXPANDER: Final[Duty[OperationDeps]] = Duty(
    option="expander",
    default=True,
    on_nodes=True,
    changes=("resizer", "modifier"),
    permissions=(
        Rule("", "persistentvolumes", ("patch",)),
        Rule("", "persistentvolumeclaims/status", ("patch",)),
        Rule("storage.k8s.io", "volumeattributesclasses", ("get",)),
    ),
    controllers=controllers,
)
