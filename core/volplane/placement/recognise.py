"""Volumes of a node that was made again: they are the new node's if its storage shows that they are there.

A kubelet that registers anew, after its Node was deleted, has the old disks; a machine that was replaced under the same
name has not. The name says nothing, and the uid of the Node says only that there may be a difference. So the driver is
asked: an asset with the marks and the very handle of the volume is the one that was there.
"""

from __future__ import annotations

from volplane.assets import Asset
from volplane.controller.actions import Action, EventRecord, LiveReads, Patch, Read, Run, Wait
from volplane.controller.controller import Work
from volplane.intents.operation import OperationDeps
from volplane.intents.ownership import on_node
from volplane.intents.requests import volume_identity
from volplane.kube import names
from volplane.kube.kinds import NODES, VOLUMES
from volplane.kube.objects import Volume
from volplane.requests import FindRequest
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import asset_key


def own_node_differs(cluster: ClusterState, reads: LiveReads) -> Action | None:
    """Return what comes before a write of our Node's uid, None if it is proven: a process that could not reach the
    server would go on writing that of the former Node, in turns with the one that could.
    """
    if not reads.has(NODES, cluster.node_name):
        return Read(NODES, cluster.node_name, why="is this still our Node?")
    node, live = cluster.own_node, reads.get(NODES, cluster.node_name)
    if node is None or live is None or live.uid != node.uid:
        return Wait(reason=f"node {cluster.node_name} is gone, or was made again", seconds=1.0)
    return None


def decide_recognition(volume: Volume, cluster: ClusterState, reads: LiveReads) -> Action | None:
    """Return the next action for a volume of an earlier node of our name; None for any other volume."""
    node, uid = cluster.own_node, volume.annotation(names.NODE_UID)
    driver = cluster.drivers.get(volume.annotation(names.PROVISIONED_BY) or "")
    if node is None or driver is None or uid in (None, node.uid) or not on_node(volume, node):
        return None
    known = cluster.progress.volumes.get(volume.uid)
    if known.found_on == node.uid:
        if (first := own_node_differs(cluster, reads)) is not None:
            return first
        body = {"metadata": {"annotations": {names.NODE_UID: node.uid}}}
        message = f"the storage of node {node.name} has it, though the node was made again"
        events = (EventRecord(VOLUMES, volume, "Normal", "VolumeFound", message),)
        return Patch(kind=VOLUMES, target=volume, body=body, why="its node is back", events=events)
    if known.missing_on == node.uid or not driver.supports("find"):
        where = "and not on the storage of the present one"
        return Wait(reason=f"it is of an earlier node {node.name} (uid {uid}), {where}")
    return Run(verb="recognise", key=volume.key, uid=volume.uid, driver=driver.name, asset=asset_key(volume))


def recognise_operation(run: Run, deps: OperationDeps) -> Work:
    volume, driver, cluster = deps.volume(run), deps.driver(run), deps.cluster
    progress = cluster.progress.volumes.track(run.uid)

    async def recognise() -> None:
        node = cluster.own_node
        identity = volume_identity(volume, cluster.cluster_id)
        if node is None or identity.owner is None:
            return
        request = FindRequest(
            context=deps.context(driver, identity.owner.generation),
            name=identity.owner.volume_name,
            owner=identity.owner,
            segment=next(iter(identity.node_affinity), None),
            only_look=True,
        )
        found = await deps.hooks.call(driver, request)
        if isinstance(found, Asset) and found.handle == identity.handle:
            progress.found_on = node.uid
        else:
            progress.missing_on = node.uid

    return recognise
