"""`status.volumesInUse` of the nodes: what pods want or have mounted. The attach-detach controller detaches nothing
that stands there.

A volume is added before its node looks whether it is attached, and withdrawn after it was unmounted, so that kubelet
and controller never both go on. Source: pkg/kubelet/volumemanager (MarkVolumesAsReportedInUse), pkg/kubelet/nodestatus
(VolumesInUse).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from volplane.errors import ApiNotFound
from volplane.kube.client import Client
from volplane.kube.kinds import NODES
from volplane.kube.objects import Node


class VolumesInUse:
    """Who uses what on the nodes of this process. Nothing is written about a node before `begin`, so that the list of a
    former process stands until it is known what that left behind.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._users: dict[str, dict[str, set[str]]] = {}
        """Node -> unique name of a volume -> uids of pods."""
        self._begun: set[str] = set()
        self._reported: dict[str, list[str]] = {}
        self._writing = asyncio.Lock()

    def restore(self, node: str, uniques: Iterable[str], pod_uid: str) -> None:
        """Record what the pod uses since before this process, without a write."""
        for unique in uniques:
            self._users.setdefault(node, {}).setdefault(unique, set()).add(pod_uid)

    async def begin(self, nodes: Iterable[str]) -> None:
        """Report what is in use; everything of a former process is recorded. Raises ApiError."""
        for node in nodes:
            self._begun.add(node)
            await self._report(node)

    async def add(self, node: str, uniques: Collection[str], pod_uid: str) -> None:
        """Report that the pod wants the volumes. Raises ApiError."""
        if uniques:
            self.restore(node, uniques, pod_uid)
            await self._report(node)

    async def release(self, pod_uid: str) -> None:
        """Report that the pod has unmounted everything. Raises ApiError; then call it again."""
        for node, volumes in self._users.items():
            for unique in [unique for unique, users in volumes.items() if pod_uid in users]:
                volumes[unique].discard(pod_uid)
                if not volumes[unique]:
                    del volumes[unique]
            await self._report(node)

    def pods(self) -> set[str]:
        """Uids of the pods that use anything."""
        return {uid for volumes in self._users.values() for users in volumes.values() for uid in users}

    def is_stale(self, node: Node) -> bool:
        """Tell whether the node says something else: it was made anew, or somebody edited it."""
        said = sorted(node.status.volumes_in_use or ())
        return node.name in self._begun and said != self.on(node.name)

    async def correct(self, node: str) -> None:
        """Write the list once more. Raises ApiError."""
        self._reported.pop(node, None)
        await self._report(node)

    def synced(self, node: str) -> bool:
        """Tell whether it is known what is in use there."""
        return node in self._begun

    def on(self, node: str) -> list[str]:
        """Unique names of what pods use on the node, sorted."""
        return sorted(self._users.get(node, ()))

    async def _report(self, node: str) -> None:
        async with self._writing:
            now = self.on(node)
            if node not in self._begun or self._reported.get(node) == now:
                return
            body = {"status": {"volumesInUse": now or None}}
            try:
                await self._client.patch(NODES, node, body, subresource="status")
            except ApiNotFound:
                return  # it is corrected when the node is registered again
            self._reported[node] = now
