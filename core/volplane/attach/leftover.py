"""Detaches what the backend has attached to a node of ours without a VolumeAttachment. Pure.

That happens when a process that was stopped in the middle of `attach` goes on after its attachment was removed, when a
person removes the finalizer of an attachment, and when the API server is restored from a backup. The missing attachment
is put back, with an annotation that it is to be deleted. From then on it is detached like any other: one operation at a
time, on a live read, fenced, with the error in its status. There cannot be two attachments of one name, so this one and
one that a pod needs exclude each other.
"""

from __future__ import annotations

from typing import Any, Final

from volplane.attach.desired import listed_volumes, volumes_in_use
from volplane.attach.identity import attacher_finalizer, attachment_name, csi_parts, unique_name
from volplane.attach.record import declaration
from volplane.controller.actions import Action, Create, LiveReads, Read, Settled, Wait
from volplane.kube import names
from volplane.kube.kinds import ATTACHMENTS, NODES
from volplane.kube.objects import Node, Volume
from volplane.state.cluster_state import ClusterState
from volplane.state.progress import UnrecordedAttachment

__all__ = ["VALID", "leftover_name", "put_back"]

VALID: Final = 60.0
"""Seconds for which a look at the backend counts: a process that was stopped meanwhile looks again."""


def leftover_name(volume: Volume, node: str, driver: str, cluster: ClusterState) -> str:
    """Name of the attachment that should be there; "" if the driver does not serve attachments of such volumes."""
    attacher, handle = csi_parts(unique_name(volume))
    return attachment_name(attacher, handle, node) if driver in cluster.drivers.attachers(attacher) else ""


def put_back(name: str, cluster: ClusterState, reads: LiveReads) -> Action:
    """The next step for an attachment that does not exist: nothing, unless the backend showed its volume at its node.

    The Node is read live: what its kubelet uses, or may begin to use, is left to those who look after it.
    """
    leftover = cluster.progress.unrecorded.get(name)
    volume = _volume_of(leftover, cluster) if leftover is not None else None
    if leftover is None or volume is None:
        return Settled()
    if not reads.has(NODES, leftover.node):
        return Read(NODES, leftover.node, why="does its kubelet use the volume?")
    node = reads.get(NODES, leftover.node)
    if not isinstance(node, Node) or node.uid != leftover.node_uid:
        return Settled()
    if unique_name(volume) in (*listed_volumes(node), *volumes_in_use(node)):
        return Wait(reason=f"node {node.name} uses volume {volume.name}, for which there is no VolumeAttachment")
    return _create(name, volume, node, leftover, cluster)


def _volume_of(leftover: UnrecordedAttachment, cluster: ClusterState) -> Volume | None:
    """The volume, if what was seen is not too old, and no attachment of any name is there for it by now."""
    volume = cluster.volumes.get(leftover.volume)
    if volume is None or volume.uid != leftover.uid or cluster.monotonic() - leftover.seen > VALID:
        return None
    return None if leftover.node in cluster.attached_to(volume) else volume


def _create(name: str, volume: Volume, node: Node, leftover: UnrecordedAttachment, cluster: ClusterState) -> Action:
    driver, (attacher, _) = cluster.drivers.get(leftover.driver), csi_parts(unique_name(volume))
    if driver is None:
        return Wait(reason=cluster.drivers.broken(leftover.driver) or f"driver {leftover.driver} is not usable")
    known = declaration(volume, driver, node, cluster.cluster_id)
    metadata: dict[str, Any] = {
        "name": name,
        "finalizers": [attacher_finalizer(attacher)],
        "annotations": {names.NODE_UID: node.uid, names.LEFTOVER: "true", **known},
    }
    spec = {"attacher": attacher, "nodeName": node.name, "source": {"persistentVolumeName": volume.name}}
    body = ATTACHMENTS.body(metadata=metadata, spec=spec)
    return Create(kind=ATTACHMENTS, body=body, why=f"{volume.name} is attached to {node.name}, and nothing says so")
