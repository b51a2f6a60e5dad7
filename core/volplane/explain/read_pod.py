"""Explains one pod from live reads: the pod, its claims, volumes, node and attachments, and the warnings about it.

A process that neither binds nor attaches has no pods, nodes and attachments in its caches.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from volplane.attach.desired import NODE_INDEX, VOLUME_INDEXES
from volplane.drivers.driver import LoadedDrivers
from volplane.drivers.executor import HookCalls, ThreadExecutor
from volplane.drivers.registry import DriverRegistry
from volplane.errors import ApiError
from volplane.explain.explain import Explanation
from volplane.explain.explain_pod import explain_pod
from volplane.kube.cache import Cache
from volplane.kube.client import Client
from volplane.kube.kinds import ATTACHMENTS, CLAIMS, CSI_DRIVERS, NODES, PODS, STORAGE_CLASSES, VOLUMES, Kind
from volplane.kube.objects import KubeObject, Pod
from volplane.state.cluster_state import CLAIM_INDEXES, POD_INDEXES, ClusterState, claims_of_pod
from volplane.state.records import Sealer

__all__ = ["PodExplanation", "read_pod"]


class PodEvent(KubeObject):
    """core/v1 Event about a pod."""

    type: str = "Normal"
    reason: str = ""
    message: str = ""
    count: int | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: dict[str, Any] | None = None


_EVENTS: Kind[PodEvent] = Kind("v1", "Event", "events", True, PodEvent)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodExplanation:
    """The explanation of a pod, and the claims to explain after it."""

    explanation: Explanation | None
    """None if a read that it needs is forbidden."""
    claims: Sequence[str] = ()
    """Keys of the pod's claims."""
    doubts: Sequence[str] = ()
    """Why there is no explanation."""


async def read_pod(client: Client, key: str) -> PodExplanation:
    """Explain the pod `namespace/name`. Raises ApiError."""
    pod = await client.find(PODS, key)
    claims = claims_of_pod(pod) if pod is not None else []
    if pod is None or not claims:
        why = f"there is no pod {key}" if pod is None else f"pod {key} uses no claim"
        missing = Explanation(kind="pod", name=key, found=pod is not None, situation=(why,), tried=(), next=())
        return PodExplanation(explanation=missing)
    try:
        cluster, warnings = await _state_around(client, pod, claims), await _warnings(client, pod)
    except ApiError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        doubt = f"what keeps the pod itself from running is not told: {error.message}"
        return PodExplanation(explanation=None, claims=claims, doubts=(doubt,))
    return PodExplanation(explanation=explain_pod(pod, cluster, warnings), claims=claims)


async def _state_around(client: Client, pod: Pod, claims: Sequence[str]) -> ClusterState:
    """Read the objects that the pod's volumes depend on, without drivers: no hook tells where a volume is attached.

    Other pods that use its claims are in its namespace.
    """
    cluster = ClusterState(
        cluster_id="",
        claims=Cache(CLAIMS, CLAIM_INDEXES),
        volumes=Cache(VOLUMES, VOLUME_INDEXES),
        classes=Cache(STORAGE_CLASSES),
        pods=Cache(PODS, {**POD_INDEXES, **NODE_INDEX}),
        nodes=Cache(NODES),
        drivers=DriverRegistry(LoadedDrivers(), HookCalls(LoadedDrivers(), ThreadExecutor())),
        sealer=Sealer(secrets.token_bytes(32)),
        now=lambda: datetime.now(UTC),
        monotonic=asyncio.get_running_loop().time,
    )
    for claim in await asyncio.gather(*(client.find(CLAIMS, key) for key in claims)):
        if claim is None:
            continue
        cluster.claims.observe(claim)
        volume = await client.find(VOLUMES, claim.spec.volume_name) if claim.spec.volume_name else None
        if volume is not None:
            cluster.volumes.observe(volume)
    node = await client.find(NODES, pod.spec.node_name) if pod.spec.node_name else None
    if node is not None:
        cluster.nodes.observe(node)
    for other in (await client.list(PODS, namespace=pod.namespace)).items:
        cluster.pods.observe(other)
    for attachment in (await client.list(ATTACHMENTS)).items:
        cluster.attachments.observe(attachment)
    for driver in (await client.list(CSI_DRIVERS)).items:
        cluster.csi_drivers.observe(driver)
    await _learn_others(client, cluster)
    return cluster


async def _learn_others(client: Client, cluster: ClusterState) -> None:
    """Read other PersistentVolumes of the same disks, through which these are attached, and their claims."""
    attachments = [each for volume in cluster.volumes.values() for each in cluster.attachments_of(volume)]
    through = {each.spec.source.persistent_volume_name or "" for each in attachments}
    for name in sorted(through - {"", *(volume.name for volume in cluster.volumes.values())}):
        volume = await client.find(VOLUMES, name)
        if volume is None:
            continue
        cluster.volumes.observe(volume)
        reference = volume.spec.claim_ref
        claim = await client.find(CLAIMS, reference.key) if reference is not None else None
        if claim is not None:
            cluster.claims.observe(claim)


async def _warnings(client: Client, pod: Pod) -> list[str]:
    """Return the last warning of each reason about a pod that does not run, the newest last."""
    if pod.status.phase == "Running" and not pod.terminating:
        return []
    selector = f"involvedObject.uid={pod.uid}"
    events = (await client.list(_EVENTS, namespace=pod.namespace, field_selector=selector)).items
    newest = {each.reason: each for each in sorted(events, key=_when) if each.type == "Warning"}
    return [_describe(each) for each in sorted(newest.values(), key=_when)]


def _when(event: PodEvent) -> str:
    seen = (event.series or {}).get("lastObservedTime") or event.last_timestamp or event.event_time
    return str(seen or event.metadata.creation_timestamp or "")


def _describe(event: PodEvent) -> str:
    count = (event.series or {}).get("count") or event.count or 1
    times = f" ({count} times, last at {_when(event)})" if count > 1 else f" at {_when(event)}"
    return f"warning {event.reason}{times}: {event.message}"
