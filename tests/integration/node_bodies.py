"""Volumes and claims for pods of the node agent, and bringing them together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from integration.node_cluster import SECONDS, Cluster, now
from volplane.kube.client import Client
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport


@asynccontextmanager
async def in_cluster(directory: Path, *, nodes: int = 1) -> AsyncIterator[Cluster]:
    """A cluster with running nodes."""
    server = ApiServer(now=now)
    cluster = Cluster(server, Client(InProcessTransport(server)), directory)
    async with cluster.nodes(nodes):
        yield cluster
    server.close()


async def no_files_left(cluster: Cluster) -> None:
    async with asyncio.timeout(SECONDS):
        while list((cluster.state / "pods").iterdir()):
            await asyncio.sleep(0.01)
