"""Registers the nodes of `volplane dev`, which all are this machine, renews their leases, and writes their status.

Source: pkg/kubelet/kubelet_node_status.go, pkg/kubelet/nodestatus, k8s.io/component-helpers/apimachinery/lease.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from volplane.errors import ApiConflict, ApiError, ApiNotFound
from volplane.kube.client import JSON_PATCH, Client
from volplane.kube.kinds import LEASES, NAMESPACES, NODES, Kind
from volplane.kube.names import ATTACH_BY_CONTROLLER
from volplane.kube.objects import Node
from volplane_embedded.objects import CSI_NODES, PODS, Now, timestamp, with_condition

_LOG = logging.getLogger(__name__)

LOCAL_NODE: Final = "node.volplane.dev/local"
"""Label of nodes that `volplane dev` registered."""
FIXED_LABELS: Final = frozenset({"kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch", LOCAL_NODE})
"""Labels of every node that say what it is; no option changes them."""
ZONES: Final = ("dev-a", "dev-b", "dev-c")
_NOT_READY: Final = "node.kubernetes.io/not-ready"
_LEASE_NAMESPACE: Final = "kube-node-lease"
_RENEW_SECONDS: Final = 10.0
_REPORT_EVERY: Final = 30
"""Renewals from one status without a change to the next."""
_LEASE_SECONDS: Final = 40
_PODS: Final = 110
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def node_names(count: int) -> list[str]:
    """Return the names of `count` nodes: `node-1`, `node-2`, ..."""
    return [f"node-{number}" for number in range(1, count + 1)]


def node_labels(name: str, position: int) -> dict[str, str]:
    """Labels of the node at this position (from 0). Zones are assigned round-robin."""
    return {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "topology.kubernetes.io/region": "dev",
        "topology.kubernetes.io/zone": ZONES[position % len(ZONES)],
        LOCAL_NODE: "true",
    }


def node_status(node: Node, now: str) -> dict[str, Any]:
    """Return the status of a node that is Ready. now: RFC 3339."""
    conditions = with_condition(
        node.status.conditions,
        "Ready",
        status=True,
        now=now,
        reason="NodeAgentReady",
        message="the node agent of volplane dev runs pods as local processes",
    )
    room = {"cpu": str(os.cpu_count() or 1), "memory": f"{_memory_kib()}Ki", "pods": str(_PODS)}
    return {
        "capacity": room,
        "allocatable": room,
        "conditions": [{**each, "lastHeartbeatTime": now} if each["type"] == "Ready" else each for each in conditions],
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": node.name}],
        "nodeInfo": {
            "kernelVersion": platform.release(),
            "bootID": _boot_id(),
            "osImage": platform.system(),
            "operatingSystem": "linux",
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "kubeletVersion": f"volplane-{version('volplane')}",
            "containerRuntimeVersion": "local-process",
        },
    }


def taint_removal(node: Node) -> list[dict[str, str]] | None:
    """Return the JSON patch that removes the not-ready taint, None if the node does not have it."""
    for position, taint in enumerate(node.spec.taints or ()):
        if taint.key == _NOT_READY:
            path = f"/spec/taints/{position}"
            return [{"op": "test", "path": f"{path}/key", "value": _NOT_READY}, {"op": "remove", "path": path}]
    return None


@functools.cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""  # Not Linux.


def _memory_kib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024


class NodeRegistration:
    """Registers nodes, renews their leases and writes their status. Nodes of a former run that are not in `names` are
    deleted.

    exists: whether a cache has a node of this name. labels: node -> more labels, or other values of `node_labels`.
    synced: whether it is known what is mounted on a node. A Node is registered without volumesInUse, as by every
    kubelet; a later status, while the list is empty, tells the attach-detach controller that nothing is in use.
    """

    def __init__(
        self,
        client: Client,
        names: Sequence[str],
        *,
        exists: Callable[[str], bool],
        now: Now,
        labels: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
        synced: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._client = client
        self._names = list(names)
        self._synced = synced
        self._renewals: Counter[str] = Counter()
        """By node, those since the last status."""
        self._labels = {
            name: {**node_labels(name, position), **labels.get(name, {})} for position, name in enumerate(names)
        }
        self._exists = exists
        self._now = now

    async def register(self) -> None:
        """Create every node and make it Ready. Idempotent. Raises ApiError."""
        await self._ensure(NAMESPACES, {"metadata": {"name": _LEASE_NAMESPACE}})
        for name in self._names:
            await self._register(name)
        for node in (await self._client.list(NODES, label_selector=f"{LOCAL_NODE}=true")).items:
            if node.name not in self._names:
                await self._remove(node)

    async def run(self) -> None:
        """Renew the leases until cancelled. A node that was deleted is registered again."""
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            for name in self._names:
                try:
                    if self._exists(name):
                        await self._renew_lease(name)
                        await self._report(name)
                    else:
                        await self._register(name)
                except ApiError as error:
                    _LOG.warning("the lease of node %s could not be renewed: %s", name, error)

    async def _report(self, name: str) -> None:
        """Write the status, if that is due: the first time right after the registration."""
        self._renewals[name] += 1
        if self._renewals[name] >= _REPORT_EVERY and self._synced(name):
            await self._write_status(await self._client.get(NODES, name))
            self._renewals[name] = 0

    async def _write_status(self, node: Node) -> None:
        status = node_status(node, timestamp(self._now()))
        await self._client.patch(NODES, node.name, {"status": status}, subresource="status")

    async def _register(self, name: str) -> None:
        metadata = {"labels": self._labels[name], "annotations": {ATTACH_BY_CONTROLLER: "true"}}
        await self._ensure(NODES, {"metadata": {"name": name, **metadata}, "spec": {}})
        node = await self._client.patch(NODES, name, {"metadata": metadata})
        if (removal := taint_removal(node)) is not None:
            await self._client.patch(NODES, name, removal, content_type=JSON_PATCH)
        await self._write_status(node)
        self._renewals[name] = _REPORT_EVERY - 1
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid}
        await self._ensure(CSI_NODES, {"metadata": {"name": name, "ownerReferences": [owner]}, "spec": {"drivers": []}})
        await self._renew_lease(name)

    async def _renew_lease(self, name: str) -> None:
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": _LEASE_SECONDS,
            "renewTime": self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        try:
            await self._client.patch(LEASES, f"{_LEASE_NAMESPACE}/{name}", {"spec": spec})
        except ApiNotFound:
            body = LEASES.body(metadata={"namespace": _LEASE_NAMESPACE, "name": name}, spec=spec)
            await self._client.create(LEASES, body)

    async def _remove(self, node: Node) -> None:
        """Delete a node that no process runs any more, and its pods, which no kubelet would end."""
        _LOG.info("node %s is left from a former run and is removed, with its pods", node.name)
        pods = await self._client.list(PODS, field_selector=f"spec.nodeName={node.name}")
        for pod in pods.items:
            await self._delete(PODS, pod.key, uid=pod.uid, grace_seconds=0)
        await self._delete(LEASES, f"{_LEASE_NAMESPACE}/{node.name}")
        await self._delete(CSI_NODES, node.name)
        await self._delete(NODES, node.name, uid=node.uid)

    async def _delete(
        self, kind: Kind[Any], key: str, *, uid: str | None = None, grace_seconds: int | None = None
    ) -> None:
        try:
            await self._client.delete(kind, key, uid=uid, grace_seconds=grace_seconds)
        except (ApiNotFound, ApiConflict) as error:
            _LOG.debug("deleting %s %s: %s", kind.plural, key, error)

    async def _ensure(self, kind: Kind[Any], body: dict[str, Any]) -> None:
        try:
            await self._client.create(kind, kind.body(**body))
        except ApiError as error:
            if not error.already_exists:
                raise
