"""Explains why a pod with claims does not run: the state of each of its volumes, by the decisions that attach them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from volplane.attach.attach_detach import AttachDetachState, decide_pair
from volplane.attach.desired import (
    Pair,
    is_ready,
    listed_volumes,
    needs_attaching,
    out_of_service,
    unique_name,
    volume_of_claim,
    volumes_in_use,
)
from volplane.controller.actions import Action, Create, Delete, LiveReads, Wait
from volplane.explain.explain import Explanation, attachment_sentence
from volplane.kube.objects import Claim, Node, Pod, PodVolume, Volume, VolumeAttachment
from volplane.state.cluster_state import ClusterState, claim_of_volume, finished

__all__ = ["explain_pod"]


class _Attaching(NamedTuple):
    """A volume that a pod needs on its node."""

    pair: Pair
    attachment: VolumeAttachment | None
    """The one of the pair; None = there is none."""
    action: Action
    """What attach-detach decides."""


def explain_pod(pod: Pod, cluster: ClusterState, warnings: Sequence[str] = ()) -> Explanation:
    """Explain the pod. warnings: sentences about its last warning events."""
    place = f"on node {pod.spec.node_name}" if pod.spec.node_name else "on no node"
    going = ", and is being deleted" if pod.terminating else ""
    situation = [f"pod {pod.key} is {pod.status.phase or 'Pending'} {place}{going}"]
    if finished(pod):
        after: tuple[str, ...] = ("nothing: it has ended, and keeps no volume attached",)
    else:
        situation += _of_node(pod, cluster)
        after = tuple(_volumes(pod, situation, cluster))
    return Explanation(kind="pod", name=pod.key, situation=(*situation, *warnings), tried=(), next=after)


def _of_node(pod: Pod, cluster: ClusterState) -> Iterator[str]:
    name = pod.spec.node_name
    if not name:
        return
    node = cluster.nodes.get(name)
    if node is None:
        yield f"node {name} does not exist: nothing can be attached or mounted there"
        return
    if not is_ready(node):
        yield f"node {name} is not Ready: its kubelet does not say that it works, and may mount and unmount nothing"
    if out_of_service(node):
        yield f"node {name} is declared to be out of service"


def _volumes(pod: Pod, situation: list[str], cluster: ClusterState) -> Iterator[str]:
    """Yield what comes next for each of its volumes that is a claim; append to `situation` where that stands."""
    claims = [(volume, key) for volume in pod.spec.volumes or () if (key := claim_of_volume(pod, volume))]
    for volume, key in claims:
        claim = cluster.claims.get(key)
        flaw = _unusable(pod, volume, key, claim, cluster)
        found = volume_of_claim(claim, cluster) if claim is not None and not flaw else None
        if found is None:
            situation.append(flaw)
            yield f"volume {volume.name} waits for claim {key}"
            continue
        if claim is not None and claim.terminating:
            situation.append(f"claim {key} is being deleted: a kubelet starts no pod on it that does not run yet")
        if not pod.spec.node_name:
            yield f"volume {volume.name} is attached and mounted once the scheduler has given the pod a node"
            continue
        attaching = _attaching(pod, found, cluster)
        situation += _attached(pod, found, attaching)
        yield from _next(pod, volume.name, attaching, cluster)


def _unusable(pod: Pod, volume: PodVolume, key: str, claim: Claim | None, cluster: ClusterState) -> str:
    """Explain why the pod cannot have the volume of the claim; "": it can."""
    if claim is None:
        return f"claim {key}, its volume {volume.name}, does not exist"
    owners = claim.metadata.owner_references or ()
    if volume.ephemeral is not None and not any(each.controller and each.uid == pod.uid for each in owners):
        return f"claim {key} has the name of its ephemeral volume {volume.name} and was not made for this pod"
    if claim.status.phase != "Bound":
        return f"claim {key}, its volume {volume.name}, is {claim.status.phase or 'Pending'}"
    if cluster.volumes.get(claim.spec.volume_name) is None:
        return f"claim {key} is bound to volume {claim.spec.volume_name}, which does not exist"
    if volume_of_claim(claim, cluster) is None:
        return f"claim {key} is bound to volume {claim.spec.volume_name}, which refers to another claim"
    return ""


def _attaching(pod: Pod, volume: Volume, cluster: ClusterState) -> _Attaching | None:
    """Return what attaches the volume to the pod's node; None if it needs no attaching."""
    pair = Pair(pod.spec.node_name, unique_name(volume))
    if not pair.volume or not needs_attaching(pair.volume, cluster):
        return None
    action = decide_pair(pair, AttachDetachState(cluster), LiveReads()).action
    return _Attaching(pair, cluster.attachments.get(pair.attachment), action)


def _attached(pod: Pod, volume: Volume, attaching: _Attaching | None) -> Iterator[str]:
    """Yield whether the volume is attached to the pod's node, and what prevents it."""
    if attaching is None:
        yield f"volume {volume.name} needs no attaching"
        return
    pair, attachment, action = attaching
    if attachment is not None:
        yield attachment_sentence(attachment)
    if not isinstance(action, Wait) or (attachment is not None and attachment.status.attached):
        return
    if attachment is None:
        yield f"volume {volume.name} is not attached to node {pair.node}: {action.reason}"
    yield from (event.message for event in action.events if event.about.name == pod.name and event.message)


def _next(pod: Pod, name: str, attaching: _Attaching | None, cluster: ClusterState) -> Iterable[str]:
    """Return what happens next. name: of the volume in the pod."""
    if attaching is None:
        mounts = f"the kubelet of node {pod.spec.node_name} mounts volume {name}"
        return () if pod.status.phase == "Running" else (mounts,)
    pair, attachment, action = attaching
    match action:
        case Create():
            return (f"the attach-detach controller makes a VolumeAttachment of volume {name} for node {pair.node}",)
        case Delete(why=why):
            return (f"the VolumeAttachment of volume {name} is deleted: {why}",)
        case _ if attachment is None:
            return (f"volume {name} is attached to node {pair.node} when it can be",)
    if attachment.terminating:
        return (f"volume {name} is attached anew when attacher {attachment.spec.attacher} has detached it",)
    if not attachment.status.attached:
        return (f"attacher {attachment.spec.attacher} attaches volume {name} to node {pair.node}",)
    return _mounts(pod, name, pair, cluster.nodes.get(pair.node))


def _mounts(pod: Pod, name: str, pair: Pair, node: Node | None) -> Iterable[str]:
    if pod.status.phase == "Running" or node is None:
        return ()
    if pair.volume not in listed_volumes(node):
        return (f"the attach-detach controller tells node {pair.node} that volume {name} is attached",)
    if pair.volume not in volumes_in_use(node):
        return (f"the kubelet of node {pair.node} says that it uses volume {name}, then mounts it",)
    return (f"the kubelet of node {pair.node} mounts volume {name}",)
