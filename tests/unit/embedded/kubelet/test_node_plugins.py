"""The CSI drivers that the nodes of `volplane dev` list, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from volplane.kube.client import Client
from volplane.kube.kinds import NODES
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.informers import Informers
from volplane_embedded.inprocess import InProcessTransport
from volplane_embedded.kubelet.node_plugins import NodePlugin, PluginRegistration
from volplane_embedded.kubelet.node_status import NodeRegistration
from volplane_embedded.objects import CSI_NODES, CsiNodeDriver
from volplane_testing.clock import now

EBS = NodePlugin("ebs.csi.aws.com", ("topology.kubernetes.io/zone",), 25)
ENTRY = CsiNodeDriver(
    name="ebs.csi.aws.com",
    node_id="i-1",
    topology_keys=["topology.kubernetes.io/zone"],
    allocatable={"count": 25},
)


class Nodes:
    """node-1."""

    def __init__(self, client: Client, plugins: PluginRegistration) -> None:
        self.client = client
        self.plugins = plugins

    async def become_a_machine(self) -> None:
        await self.client.patch(NODES, "node-1", {"spec": {"providerID": "aws:///eu-test-1a/i-1"}})

    async def listed(self) -> Any:
        """What the CSINode lists, a second later."""
        await asyncio.sleep(1.0)
        return (await self.client.get(CSI_NODES, "node-1")).spec.drivers


@asynccontextmanager
async def a_node(*, machine: bool = True) -> AsyncIterator[Nodes]:
    server, informers = ApiServer(now=now, random=Random(1)), Informers()
    client = Client(InProcessTransport(server))
    plugins = PluginRegistration(client, informers, ["node-1"])
    await NodeRegistration(client, ["node-1"], exists=lambda _: True, now=now).register()
    nodes = Nodes(client, plugins)
    if machine:
        await nodes.become_a_machine()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(informers.follow(client, Random(1)))]
        await informers.wait_synced()
        running.append(tasks.create_task(plugins.run()))
        yield nodes
        for task in running:
            task.cancel()
    server.close()


async def test_a_node_lists_the_drivers_whose_disks_it_can_use() -> None:
    async with a_node() as nodes:
        assert not await nodes.listed()
        nodes.plugins.register([EBS])
        assert await nodes.listed() == [ENTRY]


async def test_entries_of_others_stay_and_one_that_a_person_removes_comes_back() -> None:
    async with a_node() as nodes:
        nodes.plugins.register([EBS])
        other = {"name": "other.example.com", "nodeID": "n"}
        await nodes.client.patch(CSI_NODES, "node-1", {"spec": {"drivers": [other]}})
        assert await nodes.listed() == [CsiNodeDriver(name="other.example.com", node_id="n"), ENTRY]
        await nodes.client.delete(CSI_NODES, "node-1")
        assert await nodes.listed() == [ENTRY]


async def test_a_node_that_learns_which_machine_it_is_lists_that() -> None:
    async with a_node(machine=False) as nodes:
        nodes.plugins.register([EBS])
        assert [entry.node_id for entry in await nodes.listed()] == ["node-1"]
        await nodes.become_a_machine()
        assert await nodes.listed() == [ENTRY]


async def test_the_limit_of_a_driver_may_change() -> None:
    async with a_node() as nodes:
        nodes.plugins.register([EBS])
        await nodes.listed()
        nodes.plugins.register([NodePlugin(EBS.driver, EBS.topology_keys, 3)])
        [entry] = await nodes.listed()
        assert entry.allocatable == {"count": 3}
