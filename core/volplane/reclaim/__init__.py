"""Reclaiming: what happens to the asset of a released volume, deletion or scrub, and how drain releases volumes.

`delete` and `recycle` decide, `operation` makes the live checks and calls the hooks, `scrub_pod` is the body of the
pod that erases. `volplane.roles` calls them, once a live read in the same pass has shown that the claim is gone. It
never touches a volume that a living claim is bound to.
"""

from collections.abc import Mapping
from typing import Final

from volplane.controller.controller import READ, Duty, Handler, Role, Rule, Watch
from volplane.intents.operation import OperationDeps
from volplane.kube.cache import Cache
from volplane.kube.names import PROVISIONED_BY
from volplane.kube.objects import Volume
from volplane.reclaim.operation import DeleteOperation, IdentifyOperation, RecycleOperation
from volplane.reclaim.scrub_events import POD_EVENTS, POD_EVENTS_SELECTOR, PodEvent, ScrubEvents
from volplane.state.naming import volume_source

__all__ = ["RECLAIMER", "operations", "watches"]


def operations(role: Role, deps: OperationDeps) -> Mapping[str, Handler]:
    """Return what the queue of volumes runs for this duty."""

    def forget_source(old: Volume | None, new: Volume | None) -> None:
        if new is None and old is not None and old.annotation(PROVISIONED_BY) is None:
            deps.drivers.forget_source(volume_source(old))

    deps.cluster.volumes.subscribe(forget_source)
    wake, writes_phase = deps.queue("volumes").enqueue, role.runs("binder")
    return {
        "delete": DeleteOperation(deps, wake, writes_phase=writes_phase),
        "recycle": RecycleOperation(deps, wake, writes_phase=writes_phase),
        "identify": IdentifyOperation(deps, deps.drivers.identify),
    }


def watches(role: Role, deps: OperationDeps) -> tuple[Watch, ...]:
    """Return what the queue of volumes watches for this duty: scrubber pods, and what Kubernetes says about them."""
    cluster = deps.cluster
    pods = Watch(cache=cluster.pods, namespace=cluster.namespace)
    if role.node_name:
        return (pods,)
    events: Cache[PodEvent] = Cache(POD_EVENTS)
    ScrubEvents(events, cluster, deps.recorder)
    told = Watch(cache=events, namespace=cluster.namespace, field_selector=POD_EVENTS_SELECTOR, required=False)
    return (pods, told)


RECLAIMER: Final[Duty[OperationDeps]] = Duty(
    option="reclaimer",
    default=True,
    on_nodes=True,
    permissions=(
        Rule("", "persistentvolumes", ("patch", "delete")),
        Rule("", "pods", ("list",)),
        # Scrubber pods and their events.
        Rule("", "pods", (*READ, "create", "patch", "delete"), ours=True),
        Rule("", "events", ("list", "watch"), ours=True),
        # For scrubber pods that mount a csi volume. Processes of nodes have no such volumes.
        Rule("", "persistentvolumeclaims", ("create", "delete"), ours=True, where="cluster"),
    ),
)
