"""Attaching: which volume is to be on which node, and the attachments of our drivers.

Two controllers. attach-detach compares pods and nodes with the VolumeAttachments: it creates and deletes those, and
keeps the list `volumesAttached` of each node. attacher serves the VolumeAttachments of our drivers with the hooks
`attach` and `detach`. Beside a stock kube-controller-manager only the second runs. Neither relies on the other being
ours. Source: pkg/controller/volume/attachdetach of Kubernetes, and kubernetes-csi/external-attacher.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from volplane.attach.attach_detach import AttachDetach, AttachDetachState, waiting_nodes
from volplane.attach.attacher import decide_attachment, decide_csi_driver
from volplane.attach.desired import NODE_INDEX, show_volumes, wanted_or_attached
from volplane.attach.operation import AttacherHandlers, AttachOperation, DetachOperation
from volplane.controller.controller import FOLLOW, READ, Controller, Duty, Role, Rule, Watch
from volplane.intents.operation import OperationDeps
from volplane.kube.names import PROVISIONED_BY
from volplane.kube.objects import KubeObject
from volplane.state.cluster_state import VOLUME_INDEXES

__all__ = ["ATTACHER", "ATTACH_DETACH", "CSI_DRIVER_OBJECTS"]


def _attacher(_role: Role, deps: OperationDeps) -> Iterable[Controller]:
    if not deps.loaded.attaches:
        return  # No driver here attaches.
    cluster, queue = deps.cluster, deps.queue("attacher")

    def of_driver(name: str) -> Iterator[str]:
        for attachment in cluster.attachments.values():
            volume = cluster.volumes.get(attachment.spec.source.persistent_volume_name or "")
            made_it = volume is not None and volume.annotation(PROVISIONED_BY) == name
            yield attachment.key if made_it or name in cluster.drivers.attachers(attachment.spec.attacher) else ""

    yield Controller(
        queue="attacher",
        cache=cluster.attachments,
        decide=lambda key, reads: decide_attachment(key, cluster, reads),
        watches=(Watch(cache=cluster.attachments), Watch(cache=cluster.csi_drivers)),
        subscribe=partial(cluster.follow, AttacherHandlers(cluster, queue)),
        operations={"attach": AttachOperation(deps), "detach": DetachOperation(deps)},
        resync=cluster.attachments.keys,
        of_driver=of_driver,
        flow=cluster.flow_of_attachment,
    )


def _csi_drivers(role: Role, deps: OperationDeps) -> Iterable[Controller]:
    attacher, capacity = role.runs("attacher"), role.runs("capacity")
    publishes = capacity and deps.loaded.publishes and not role.node_name
    if not publishes and not (attacher and deps.loaded.attaches):
        return  # Nothing here needs the objects.
    cluster, queue = deps.cluster, deps.queue("csidrivers")

    def subscribe() -> None:
        cluster.csi_drivers.subscribe(lambda old, new: queue.enqueue((new or old or KubeObject()).name))
        for each in deps.loaded.distributed:
            queue.enqueue(each.name)

    yield Controller(
        queue="csidrivers",
        cache=cluster.csi_drivers,
        decide=lambda key, _: decide_csi_driver(key, cluster, attacher=attacher, capacity=capacity),
        watches=(Watch(cache=cluster.csi_drivers),),
        subscribe=subscribe,
        resync=deps.drivers.names,
        of_driver=lambda name: (name,),
    )


def _attach_detach(role: Role, deps: OperationDeps) -> Iterable[Controller]:
    cluster = deps.cluster
    cluster.volumes.add_indexes(VOLUME_INDEXES)
    cluster.pods.add_indexes(NODE_INDEX)
    state = AttachDetachState(cluster, force_detach_after=role.force_detach_after, attaches_here=role.runs("attacher"))
    both = AttachDetach(state, deps.queue("attach-detach"), deps.queue("node-reports"), deps.metrics)
    yield Controller(
        queue="attach-detach",
        cache=cluster.attachments,
        awaited=lambda claim: waiting_nodes(claim, cluster),
        decide=both.reconcile_pair,
        watches=(Watch(cache=cluster.pods), Watch(cache=cluster.attachments), Watch(cache=cluster.csi_drivers)),
        subscribe=partial(cluster.follow, both),
        resync=lambda: wanted_or_attached(cluster),
        measure=lambda metrics: show_volumes(cluster, metrics),
    )
    yield Controller(queue="node-reports", cache=cluster.nodes, decide=both.reconcile_node, resync=cluster.nodes.keys)


ATTACH_DETACH: Final[Duty[OperationDeps]] = Duty(
    option="attach-detach",
    permissions=(
        Rule("storage.k8s.io", "volumeattachments", (*READ, "create", "delete")),
        Rule("storage.k8s.io", "csidrivers", FOLLOW),
        Rule("", "pods", FOLLOW),
        Rule("", "nodes", ("get",)),
        Rule("", "nodes/status", ("patch",)),
    ),
    controllers=_attach_detach,
)
ATTACHER: Final[Duty[OperationDeps]] = Duty(
    option="attacher",
    default=True,
    permissions=(
        Rule("storage.k8s.io", "volumeattachments", (*READ, "create", "patch", "delete")),
        Rule("storage.k8s.io", "volumeattachments/status", ("patch",)),
        Rule("", "nodes", ("get",)),
        Rule("storage.k8s.io", "csidrivers", (*READ, "create")),
    ),
    controllers=_attacher,
)
CSI_DRIVER_OBJECTS: Final[Duty[OperationDeps]] = Duty(option="", controllers=_csi_drivers)
"""The CSIDriver objects that attachers and publishers of room need."""
