"""Volumes and claims for pods of the node agent, and bringing them together."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from integration.node_cluster import Cluster, now
from volplane.kube.client import Client
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport

Scenario = Callable[[Cluster], Awaitable[None]]


def in_cluster(directory: Path, scenario: Scenario, *, nodes: int = 1) -> None:
    async def main() -> None:
        server = ApiServer(now=now)
        cluster = Cluster(server, Client(InProcessTransport(server)), directory)
        async with cluster.nodes(nodes):
            await scenario(cluster)
        server.close()

    asyncio.run(main())


async def no_files_left(cluster: Cluster) -> None:
    async with asyncio.timeout(5):
        while list((cluster.state / "pods").iterdir()):
            await asyncio.sleep(0.01)
