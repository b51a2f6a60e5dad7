"""Explains one pod with claims: the state of each of its volumes, by the decisions that attach them.

A process that neither binds nor attaches has no pods, nodes and attachments in its caches, so that everything is read
live: the pod, its claims, volumes, node and attachments, and the warnings about it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

from volplane.attach import desired
from volplane.attach.attach_detach import AttachDetachState, decide_pair
from volplane.controller.actions import Create, Delete, LiveReads, Wait
from volplane.drivers.driver import LoadedDrivers
from volplane.drivers.executor import HookCalls, ThreadExecutor
from volplane.drivers.registry import DriverRegistry
from volplane.errors import ApiForbidden
from volplane.explain.explain import Explanation, attachment_sentence, going
from volplane.kube.cache import Cache
from volplane.kube.client import Client
from volplane.kube.events import EVENTS, Event
from volplane.kube.kinds import ATTACHMENTS, CLAIMS, CSI_DRIVERS, NODES, PODS, STORAGE_CLASSES, VOLUMES
from volplane.kube.objects import Claim, Pod, PodVolume, Volume
from volplane.state.cluster_state import (
    CLAIM_INDEXES,
    POD_INDEXES,
    VOLUME_INDEXES,
    ClusterState,
    claim_of_volume,
    claims_of_pod,
    finished,
    unique_name,
)
from volplane.state.records import Sealer


async def read_pod(client: Client, key: str) -> tuple[Explanation | None, Sequence[str], Sequence[str]]:
    """Explain the pod `namespace/name`; return with that the keys of its claims, which are to be explained after it.

    The explanation is None if a read that it needs is forbidden, and the last value says so. Raises ApiError.
    """
    pod = await client.find(PODS, key)
    claims = claims_of_pod(pod) if pod is not None else []
    if pod is None or not claims:
        why = f"there is no pod {key}" if pod is None else f"pod {key} uses no claim"
        return Explanation(kind="pod", name=key, found=pod is not None, situation=(why,)), (), ()
    try:
        cluster, warnings = await _state_around(client, pod, claims), await _warnings(client, pod)
    except ApiForbidden as error:
        return None, claims, (f"what keeps the pod itself from running is not told: {error.message}",)
    return explain_pod(pod, cluster, warnings), claims, ()


async def _state_around(client: Client, pod: Pod, claims: Sequence[str]) -> ClusterState:
    """Read what the pod's volumes depend on, without drivers: no hook tells where a volume is attached."""
    cluster = ClusterState(
        cluster_id="",
        claims=Cache(CLAIMS, CLAIM_INDEXES),
        volumes=Cache(VOLUMES, VOLUME_INDEXES),
        classes=Cache(STORAGE_CLASSES),
        pods=Cache(PODS, {**POD_INDEXES, **desired.NODE_INDEX}),
        nodes=Cache(NODES),
        drivers=DriverRegistry(LoadedDrivers(), HookCalls(LoadedDrivers(), ThreadExecutor())),
        sealer=Sealer(secrets.token_bytes(32)),
        now=lambda: datetime.now(UTC),
        monotonic=asyncio.get_running_loop().time,
    )
    for claim in await asyncio.gather(*(client.refresh(cluster.claims, key) for key in claims)):
        if claim is not None and claim.spec.volume_name:
            await client.refresh(cluster.volumes, claim.spec.volume_name)
    if pod.spec.node_name:
        await client.refresh(cluster.nodes, pod.spec.node_name)
    for other in (await client.list(PODS, namespace=pod.namespace)).items:
        cluster.pods.observe(other)
    for attachment in (await client.list(ATTACHMENTS)).items:
        cluster.attachments.observe(attachment)
    for driver in (await client.list(CSI_DRIVERS)).items:
        cluster.csi_drivers.observe(driver)
    # Other PersistentVolumes of the same disks, through which these are attached, and their claims.
    attachments = [each for volume in cluster.volumes.values() for each in cluster.attachments_of(volume)]
    through = {each.spec.source.persistent_volume_name or "" for each in attachments}
    for name in sorted(through - {"", *(volume.name for volume in cluster.volumes.values())}):
        volume = await client.refresh(cluster.volumes, name)
        if volume is not None and volume.spec.claim_ref is not None:
            await client.refresh(cluster.claims, volume.spec.claim_ref.key)
    return cluster


async def _warnings(client: Client, pod: Pod) -> list[str]:
    """Return the last warning of each reason about a pod that does not run, the newest last."""
    if pod.status.phase == "Running" and not pod.terminating:
        return []
    selector = f"involvedObject.uid={pod.uid}"
    events = (await client.list(EVENTS, namespace=pod.namespace, field_selector=selector)).items
    newest = {each.reason: each for each in sorted(events, key=_when) if each.type == "Warning"}
    sentences = []
    for each in sorted(newest.values(), key=_when):
        count = (each.series or {}).get("count") or each.count or 1
        times = f" ({count} times, last at {_when(each)})" if count > 1 else f" at {_when(each)}"
        sentences.append(f"warning {each.reason}{times}: {each.message}")
    return sentences


def _when(event: Event) -> str:
    seen = (event.series or {}).get("lastObservedTime") or event.last_timestamp or event.event_time
    return str(seen or event.metadata.creation_timestamp or "")


def explain_pod(pod: Pod, cluster: ClusterState, warnings: Sequence[str] = ()) -> Explanation:
    """Explain the pod. warnings: sentences about its last warning events. Pure."""
    name = pod.spec.node_name
    node = cluster.nodes.get(name)
    place = f"on node {name}" if name else "on no node"
    situation = [f"pod {pod.key} is {pod.status.phase or 'Pending'} {place}{going(pod)}"]
    if finished(pod):
        after = ("nothing: it has ended, and keeps no volume attached",)
        return Explanation(kind="pod", name=pod.key, situation=(*situation, *warnings), next=after)
    if name and node is None:
        situation.append(f"node {name} does not exist: nothing can be attached or mounted there")
    if node is not None and not desired.is_ready(node):
        doubt = "its kubelet does not say that it works, and may mount and unmount nothing"
        situation.append(f"node {name} is not Ready: {doubt}")
    if node is not None and desired.out_of_service(node):
        situation.append(f"node {name} is declared to be out of service")
    then: list[str] = []
    for each in pod.spec.volumes or ():
        if key := claim_of_volume(pod, each):
            stands, follows = _of_volume(pod, each, key, cluster)
            situation += stands
            then += follows
    return Explanation(kind="pod", name=pod.key, situation=(*situation, *warnings), next=tuple(then))


def _of_volume(pod: Pod, used: PodVolume, key: str, cluster: ClusterState) -> tuple[list[str], list[str]]:
    """Return where the volume of the claim `key` stands, and what comes next for it."""
    claim = cluster.claims.get(key)
    flaw = _unusable(pod, used, key, claim, cluster)
    volume = cluster.volume_of(claim) if claim is not None and not flaw else None
    if claim is None or volume is None:
        return [flaw], [f"volume {used.name} waits for claim {key}"]
    situation: list[str] = []
    then = [f"volume {used.name} is attached and mounted once the scheduler has given the pod a node"]
    if pod.spec.node_name:
        situation, then = _on_node(pod, used.name, volume, cluster)
    if claim.terminating:
        situation.insert(0, f"claim {key} is being deleted: a kubelet starts no pod on it that does not run yet")
    return situation, then


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
    if cluster.volume_of(claim) is None:
        return f"claim {key} is bound to volume {claim.spec.volume_name}, which refers to another claim"
    return ""


def _on_node(pod: Pod, name: str, volume: Volume, cluster: ClusterState) -> tuple[list[str], list[str]]:
    """Return where the attachment of a volume, called `name` in the pod, stands, and what happens next."""
    node = pod.spec.node_name
    pair = desired.Pair(node, unique_name(volume))
    if not pair.volume or not desired.needs_attaching(pair.volume, cluster):
        mounts = [] if pod.status.phase == "Running" else [f"the kubelet of node {node} mounts volume {name}"]
        return [f"volume {volume.name} needs no attaching"], mounts
    action = decide_pair(pair, AttachDetachState(cluster), LiveReads()).action
    attachment = cluster.attachments.get(pair.attachment)
    situation = [attachment_sentence(attachment)] if attachment is not None else []
    if isinstance(action, Wait) and (attachment is None or not attachment.status.attached):
        if attachment is None:
            situation.append(f"volume {volume.name} is not attached to node {node}: {action.reason}")
        situation += [event.message for event in action.events if event.about.name == pod.name and event.message]
    match action:
        case Create():
            then = [f"the attach-detach controller makes a VolumeAttachment of volume {name} for node {node}"]
        case Delete(why=why):
            then = [f"the VolumeAttachment of volume {name} is deleted: {why}"]
        case _ if attachment is None:
            then = [f"volume {name} is attached to node {node} when it can be"]
        case _ if attachment.terminating:
            then = [f"volume {name} is attached anew when attacher {attachment.spec.attacher} has detached it"]
        case _ if not attachment.status.attached:
            then = [f"attacher {attachment.spec.attacher} attaches volume {name} to node {node}"]
        case _:
            then = _mounts(pod, name, pair, cluster)
    return situation, then


def _mounts(pod: Pod, name: str, pair: desired.Pair, cluster: ClusterState) -> list[str]:
    node = cluster.nodes.get(pair.node)
    if pod.status.phase == "Running" or node is None:
        return []
    if pair.volume not in desired.listed_volumes(node):
        return [f"the attach-detach controller tells node {pair.node} that volume {name} is attached"]
    if pair.volume not in desired.volumes_in_use(node):
        return [f"the kubelet of node {pair.node} says that it uses volume {name}, then mounts it"]
    return [f"the kubelet of node {pair.node} mounts volume {name}"]
