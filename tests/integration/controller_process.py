"""A whole controller process over the embedded server, on real directories and in real time, whose calls are written
down.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from volplane.cli.framework.endpoints import serve_endpoints
from volplane.controller.config import Configuration, DriverSettings
from volplane.controller.http_access import HttpAddress, read_token
from volplane.controller.metrics import Metrics
from volplane.drivers.contract import Plugin
from volplane.errors import ApiNotFound
from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, NODES, PODS, STORAGE_CLASSES, VOLUMES
from volplane.process.process import ControllerProcess, Options
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_hostpath import HostPathBackend
from volplane_testing.given_plugins import GivenPlugins
from volplane_testing.transport import ApiCall, FaultTransport

DRIVER = "hostpath.volplane.dev"
SECONDS = 60.0
VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


ONE_NAME = "metadata.name="


@dataclass(frozen=True, slots=True)
class Asked:
    """A call as RBAC sees it. namespace, name: "" where the path has none.

    A list or watch that selects one name is about that name (`RequestInfoFactory` of apiserver).
    """

    verb: str
    group: str
    resource: str
    namespace: str
    name: str

    @classmethod
    def of_call(cls, call: ApiCall) -> Asked:
        method = "WATCH" if call.verb == "watch" else call.request.method
        return cls.of(method, call.request.path, call.request.query or {})

    @classmethod
    def of(cls, method: str, path: str, query: Mapping[str, str] | Sequence[tuple[str, str]] = ()) -> Asked:
        parts = path.strip("/").split("/")
        group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        resource, name, below = (*rest, "", "")[:3]
        verb = VERBS.get(method) or ("watch" if method == "WATCH" else "get" if name else "list")
        selected = dict(query).get("fieldSelector", "")
        if not name and selected.startswith(ONE_NAME):
            name = selected.removeprefix(ONE_NAME)
        return cls(verb, group, f"{resource}/{below}" if below else resource, namespace, name)


class Site:
    """What a test does to it: people have their own client."""

    def __init__(self, directory: Path, server: ApiServer | None = None) -> None:
        self.root = directory / "root"
        self.root.mkdir(parents=True, exist_ok=True)
        self.server = server or ApiServer(now=lambda: datetime.now(UTC), random=Random(1))
        self.transport = FaultTransport(InProcessTransport(self.server))
        self.client = Client(InProcessTransport(self.server))
        self.metrics = Metrics()
        self.process: ControllerProcess
        self.url = ""

    @property
    def asked(self) -> set[Asked]:
        """What the process has asked of the server."""
        return {Asked.of_call(each) for each in self.transport.script.requests}

    async def until(self, what: str, reached: Callable[[], Any]) -> None:
        """Wait for something to be so; `reached` may be a coroutine function."""
        async with asyncio.timeout(SECONDS):
            while True:
                answer = reached()
                if asyncio.iscoroutine(answer):
                    answer = await answer
                if answer:
                    return
                await asyncio.sleep(0.01)

    async def make_class(self, name: str, *, default: bool = False, driver: str = DRIVER, **fields: Any) -> None:
        annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
        body = STORAGE_CLASSES.body(metadata={"name": name, "annotations": annotations}, provisioner=driver, **fields)
        await self.client.create(STORAGE_CLASSES, body)

    async def make_claim(self, name: str, storage_class: str | None = None, size: str = "1Mi") -> Any:
        spec: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
        if storage_class is not None:
            spec["storageClassName"] = storage_class
        body = CLAIMS.body(metadata={"name": name, "namespace": "default"}, spec=spec)
        return await self.client.create(CLAIMS, body)

    async def make_volume(self, name: str, path: str, policy: str, **spec: Any) -> None:
        body = VOLUMES.body(
            metadata={"name": name},
            spec={
                "capacity": {"storage": "1Mi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": policy,
                "hostPath": {"path": path},
                **spec,
            },
        )
        await self.client.create(VOLUMES, body)

    async def make_pod(self, name: str, claim: str, node: str = "") -> None:
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
        spec: dict[str, Any] = {"containers": [{"name": "c", "image": "i"}], "volumes": [volume]}
        if node:
            spec["nodeName"] = node
        await self.client.create(PODS, PODS.body(metadata={"name": name, "namespace": "default"}, spec=spec))

    async def make_node(self, name: str) -> None:
        """One whose kubelet leaves attaching to the controller."""
        body = NODES.body(metadata={"name": name, "annotations": {names.ATTACH_BY_CONTROLLER: "true"}})
        await self.client.create(NODES, body)

    async def phase(self, claim: str) -> str:
        return (await self.client.get(CLAIMS, f"default/{claim}")).status.phase

    async def bound(self, *claims: str) -> None:
        for claim in claims:

            async def is_bound(name: str = claim) -> bool:
                return await self.phase(name) == "Bound"

            await self.until(f"{claim} is bound", is_bound)

    async def gone(self, kind: Any, key: str) -> None:
        async def is_gone() -> bool:
            try:
                await self.client.get(kind, key)
            except ApiNotFound:
                return True
            return False

        await self.until(f"{key} is gone", is_gone)

    async def command(self, *arguments: str) -> tuple[int | None, str]:
        """Run `volplane …` against the process; exit code and all it said."""
        pipe = asyncio.subprocess.PIPE
        address = self.url.removeprefix("http://")
        command = [sys.executable, "-m", "volplane", *arguments, "--http", address]
        started = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
        out, _ = await started.communicate()
        return started.returncode, out.decode()

    async def get(self, path: str) -> tuple[int, str]:
        """GET a page with the token of the process."""
        headers = {"Authorization": f"Bearer {read_token(int(self.url.rpartition(':')[2]))[0]}"}
        async with aiohttp.ClientSession(headers=headers) as session, session.get(self.url + path) as answer:
            return answer.status, await answer.text()


@contextmanager
def not_ended_by_a_lease() -> Iterator[None]:
    """A process that is too slow to renew its Lease ends at once: here the test fails instead, not all that follow."""

    def lease_over(why: str = "the lease was over and work did not stop in time: the machine is too slow") -> None:
        raise AssertionError(why)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("volplane.process.process._exit_hard", lease_over)
        yield


@asynccontextmanager
async def running_process(
    directory: Path,
    controllers: frozenset[str],
    *,
    configuration: Configuration | None = None,
    plugins: Iterable[Plugin] = (),
    hostpath: bool = True,
    server: ApiServer | None = None,
    leads: bool = True,
    **options: Any,
) -> AsyncIterator[Site]:
    """Run it until the block ends, with its pages served. plugins: beside hostpath, for drivers of the
    configuration. hostpath: whether there is a driver of it. server: one that runs already, or that of an earlier
    process. leads: the block begins when it works; else, when it serves its pages.
    """
    site = Site(directory, server)
    driver = DriverSettings(name=DRIVER, backend="hostpath", options={"root": str(site.root), "shared": True})
    configured = configuration or Configuration()
    configured = replace(configured, drivers=(*(configured.drivers or ()), *([driver] if hostpath else ())))
    plugin = Plugin(kind="backend", name="hostpath", factory=HostPathBackend, distribution="tests")
    site.process = ControllerProcess(
        Client(site.transport, metrics=site.metrics),
        configured,
        Options(controllers=controllers, **options),
        metrics=site.metrics,
        plugins=GivenPlugins([plugin, *plugins]),
    )
    stop = asyncio.Event()
    serving = serve_endpoints(HttpAddress("127.0.0.1", 0), site.process)
    with not_ended_by_a_lease():
        async with serving as url, asyncio.TaskGroup() as group:
            site.url = url
            group.create_task(site.process.run(stop))
            try:
                if leads:
                    async with asyncio.timeout(SECONDS):
                        await site.process.wait_working()
                yield site
            finally:
                stop.set()
