"""Lists in CSINode the CSI drivers whose volumes a node of `volplane dev` can use.

On a machine a driver's node plugin registers at the kubelet, which writes the entry. Here the node agent is the node
plugin of the drivers whose disks it is shown. Source: pkg/volume/csi/nodeinfomanager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from volplane.errors import ApiError
from volplane.kube.client import Client
from volplane.kube.objects import Node
from volplane_embedded.informers import Informers, unsubscribing
from volplane_embedded.objects import CSI_NODES, CsiNode, CsiNodeDriver

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodePlugin:
    """driver: its CSI driver name. max_volumes: that can be attached to a node at once; None: the driver says none."""

    driver: str
    topology_keys: tuple[str, ...] = ()
    max_volumes: int | None = None


def entries(node: Node, listed: Sequence[CsiNodeDriver], plugins: Sequence[NodePlugin]) -> list[CsiNodeDriver]:
    """Return the next entries of the node's CSINode. Entries of others stay.

    The API server lets nothing but `allocatable` of an entry change: one that is about another machine is left out
    first, and made anew by the next call.
    """
    present = {each.name: each for each in listed}
    wanted = {each.driver: _entry(node, each) for each in plugins}
    stale = {name for name, entry in wanted.items() if name in present and _identity(present[name]) != _identity(entry)}
    kept = [wanted.get(each.name, each) for each in listed if each.name not in stale]
    return [*kept, *(entry for name, entry in sorted(wanted.items()) if name not in present)]


def _entry(node: Node, plugin: NodePlugin) -> CsiNodeDriver:
    # The machine is the last part of a provider id: aws:///eu-central-1a/i-0123, gce://project/zone/name.
    return CsiNodeDriver(
        name=plugin.driver,
        node_id=node.spec.provider_id.rpartition("/")[2] or node.name,
        topology_keys=sorted(plugin.topology_keys) or None,
        allocatable={"count": plugin.max_volumes} if plugin.max_volumes is not None else None,
    )


def _identity(entry: CsiNodeDriver) -> tuple[str, tuple[str, ...]]:
    return entry.node_id, tuple(entry.topology_keys or ())


class PluginRegistration:
    """Keeps the entries of some nodes, whatever becomes of their CSINode or provider id."""

    def __init__(self, client: Client, informers: Informers, names: Sequence[str]) -> None:
        self._client = client
        self._informers = informers
        self._names = tuple(names)
        self._plugins: tuple[NodePlugin, ...] = ()
        self._woken = asyncio.Event()

    def register(self, plugins: Sequence[NodePlugin]) -> None:
        """List these drivers from now on."""
        self._plugins = tuple(plugins)
        self._woken.set()

    async def run(self) -> None:
        """Write until cancelled. The informers are synced."""
        with unsubscribing(
            self._informers.nodes.subscribe(lambda _old, _new: self._woken.set()),
            self._informers.csi_nodes.subscribe(lambda _old, _new: self._woken.set()),
        ):
            while True:
                await self._woken.wait()
                self._woken.clear()
                for name in self._names if self._plugins else ():
                    await self._write(name)

    async def _write(self, name: str) -> None:
        node, found = self._informers.nodes.get(name), self._informers.csi_nodes.get(name)
        if node is None:
            return
        listed = (found.spec.drivers or ()) if found is not None else ()
        wanted = entries(node, listed, self._plugins)
        if found is not None and wanted == list(listed):
            return
        try:
            await self._send(node, found, [msgspec.to_builtins(each) for each in wanted])
        except ApiError as error:
            _LOG.info("the CSI drivers of node %s are listed later: %s", name, error)

    async def _send(self, node: Node, found: CsiNode | None, drivers: list[dict[str, Any]]) -> None:
        if found is None:
            owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
            metadata: dict[str, Any] = {"name": node.name, "ownerReferences": [owner]}
            await self._client.create(CSI_NODES, CSI_NODES.body(metadata=metadata, spec={"drivers": drivers}))
            return
        metadata = {"resourceVersion": found.metadata.resource_version}
        await self._client.patch(CSI_NODES, node.name, {"metadata": metadata, "spec": {"drivers": drivers}})
