"""Reclaiming: what happens to the asset of a released volume, deletion or scrub, and how drain releases volumes.

`delete` and `recycle` hold the decisions and the operations with their live checks, `scrub_pod` is the body of the pod
that erases. `volplane.roles` calls them, once a live read in the same pass has shown that the claim is gone. It never
touches a volume that a living claim is bound to.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from volplane.controller.controller import READ, Duty, Handler, Role, Rule, Watch
from volplane.intents.operation import OperationDeps
from volplane.kube.cache import Cache
from volplane.kube.events import EVENTS, Event, EventRecord
from volplane.kube.kinds import VOLUMES
from volplane.reclaim.delete import DeleteOperation
from volplane.reclaim.recycle import RecycleOperation
from volplane.reclaim.scrub_pod import pod_name
from volplane.state.cluster_state import SCRUB_VOLUME
from volplane.state.naming import volume_source

__all__ = ["RECLAIMER", "operations", "watches"]


def operations(role: Role, deps: OperationDeps) -> Mapping[str, Handler]:
    """Return what the queue of volumes runs for this duty. `identify` asks who owns a static volume."""
    return {
        "delete": DeleteOperation(deps, role.runs("binder")),
        "recycle": RecycleOperation(deps, role.runs("binder")),
        "identify": lambda run: partial(deps.drivers.identify, volume_source(deps.volume(run))),
    }


def watches(deps: OperationDeps) -> tuple[Watch, ...]:
    """Return what the queue of volumes watches for this duty: scrubber pods, and what Kubernetes says about them."""
    cluster = deps.cluster
    events: Cache[Event] = Cache(EVENTS)

    def copy_to_volume(old: Event | None, new: Event | None) -> None:
        """Copy an event about a scrubber pod (of scheduler, kubelet, image puller) to the volume that it erases.

        The previous process has copied those of the first list; a repeated one is copied once.
        Source: pkg/volume/util/recyclerclient of Kubernetes, reason `RecyclerPod`.
        """
        if new is None or old is not None or not events.listed.is_set():
            return
        pod = cluster.pods.get(new.involved_object.key)
        volume = cluster.volumes.get(pod.annotation(SCRUB_VOLUME) or "") if pod is not None else None
        if volume is not None and new.involved_object.name == pod_name(volume):
            message = f"Recycler pod: {new.message}"
            deps.recorder.record(EventRecord(VOLUMES, volume, new.type, "RecyclerPod", message))

    events.subscribe(copy_to_volume)
    selector = "involvedObject.kind=Pod"
    pods = Watch(cache=cluster.pods, namespace=cluster.namespace)
    return (pods, Watch(cache=events, namespace=cluster.namespace, field_selector=selector, required=False))


RECLAIMER: Final[Duty[OperationDeps]] = Duty(
    option="reclaimer",
    default=True,
    on_nodes=True,
    permissions=(
        Rule("", "persistentvolumes", ("patch", "delete")),
        # Whose is the namespace of a claim that asks for a volume in the trash?
        Rule("", "namespaces", ("get",), where="cluster"),
        # What uses a volume, scrubber pods and their events, and the claims by which these mount a csi volume.
        Rule("", "pods", ("list",), where="cluster"),
        Rule("", "pods", (*READ, "create", "patch", "delete"), ours=True, where="cluster"),
        Rule("", "events", ("list", "watch"), ours=True, where="cluster"),
        Rule("", "persistentvolumeclaims", ("create", "delete"), ours=True, where="cluster"),
    ),
)
