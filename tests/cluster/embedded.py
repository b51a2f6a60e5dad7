"""An embedded cluster with a node, without controllers, in a thread of its own: the suite sees it as any other."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from integration.controller_process import Asked
from volplane.kube.client import Client
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.cli.embedded_server import ServerSettings, embedded_server
from volplane_embedded.inprocess import InProcessTransport
from volplane_embedded.local_nodes import LocalNodes

Beside = Callable[[ApiServer], Awaitable[Any]]


class EmbeddedCluster:
    """Where it is, and a way to look into it from another thread."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.server: ApiServer
        self.loop: asyncio.AbstractEventLoop

    def names(self, *paths: str) -> list[str]:
        """Names of all objects below these paths of the API."""

        async def listed() -> list[str]:
            found: list[str] = []
            for path in paths:
                answer = self.server.handle("GET", path, {}, {}, b"")
                found += [item["metadata"]["name"] for item in json.loads(answer.body)["items"]]
            return found

        return asyncio.run_coroutine_threadsafe(listed(), self.loop).result(30)

    def delete(self, path: str) -> None:
        """Delete the object at this path of the API."""

        async def deleted() -> None:
            assert self.server.handle("DELETE", path, {}, {}, b"").status == 200

        asyncio.run_coroutine_threadsafe(deleted(), self.loop).result(30)

    def record(self, asked: set[Asked]) -> None:
        """Write down what is asked of the server from outside from now on."""
        answer, watch = self.server.answer, self.server.watch

        def recorded(method: str, path: str, *rest: Any) -> Any:
            if path.startswith(("/api/v1/", "/apis/")):
                asked.add(Asked.of(method, path, rest[0]))
            return answer(method, path, *rest)

        def watched(path: str, query: Any, headers: Any) -> Any:
            if "authorization" in {name.lower() for name in headers}:  # the node is in the same process
                asked.add(Asked.of("WATCH", path, query))
            return watch(path, query, headers)

        self.server.answer, self.server.watch = recorded, watched  # type: ignore[method-assign]


@contextmanager
def embedded_cluster(
    directory: Path, *, node: bool = False, beside: Beside | None = None, nodes: int = 1, disks: Path | None = None
) -> Iterator[EmbeddedCluster]:
    """Serve until the block ends.

    node: one that runs pods, or `nodes`, with the disks of a mocked cloud. beside: what else runs there, such as a
    stock binder.
    """
    cluster = EmbeddedCluster(directory / "kubeconfig")
    ready, stop = threading.Event(), asyncio.Event()
    failed: list[BaseException] = []

    async def main() -> None:
        cluster.loop = asyncio.get_running_loop()
        settings = ServerSettings(data=None, host="127.0.0.1", port=0, kubeconfig=cluster.kubeconfig)
        async with embedded_server(settings) as embedded:
            cluster.server = embedded.server
            tasks = []
            if beside is not None:
                tasks.append(asyncio.ensure_future(beside(embedded.server)))
            if node:
                client = Client(InProcessTransport(embedded.server))
                state = directory / "node"
                local = LocalNodes(
                    client, count=nodes, state_dir=state, now=lambda: datetime.now(UTC), random=Random(1), disks=disks
                )
                tasks.append(asyncio.ensure_future(local.run()))
                await local.wait_ready()
            ready.set()
            await stop.wait()
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread of the test
            failed.append(error)
        ready.set()

    thread = threading.Thread(target=run, name="embedded cluster")
    thread.start()
    try:
        assert ready.wait(30), "the embedded cluster does not start"
        if not failed:
            yield cluster
    finally:
        if not failed:
            cluster.loop.call_soon_threadsafe(stop.set)
        thread.join(30)
    if failed:
        raise failed[0]
