"""A small cluster for tests of the node agent: the embedded API server, and nodes that run real processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from volplane.errors import ApiNotFound
from volplane.kube.client import Client
from volplane_embedded.apiserver.requests import Answer
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.kubelet.sandboxes import Sandboxes
from volplane_embedded.local_nodes import LocalNodes
from volplane_embedded.objects import PODS, Pod

SECONDS = 60.0


def now() -> datetime:
    return datetime.now(UTC)


def why_no_sandbox(directory: Path) -> str:
    async def main() -> str:
        async with Sandboxes() as sandboxes:
            return await sandboxes.check(directory / "check")

    return asyncio.run(main())


class Cluster:
    """What tests do to a cluster and wait for."""

    def __init__(self, server: ApiServer, client: Client, directory: Path, *, disks: Path | None = None) -> None:
        """disks: where a mocked cloud shows its disks."""
        self.server = server
        self.client = client
        self.directory = directory
        self.disks = disks
        self.local: LocalNodes

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @asynccontextmanager
    async def nodes(self, count: int = 1) -> AsyncIterator[LocalNodes]:
        """Nodes for as long as the context lasts."""
        self.local = LocalNodes(
            self.client, count=count, state_dir=self.state, now=now, random=Random(1), disks=self.disks
        )
        self.server.log_source, self.server.exec_source = self.local.log_source, self.local.exec_source
        task = asyncio.create_task(self.local.run())
        ready = asyncio.create_task(self.local.wait_ready())
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        try:
            yield self.local
        finally:
            ready.cancel()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def run(self, name: str, script: str, **fields: Any) -> Pod:
        """Create a pod whose only container runs a shell script; see `pod`."""
        return await self.client.create(PODS, pod(name, script, **fields))

    async def until(self, name: str, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The pod once it satisfies `reached`."""
        async with asyncio.timeout(SECONDS):
            version = 0
            while True:
                listing = await self.client.list(PODS, namespace="default")
                version = listing.version
                found = self.get(f"/api/v1/namespaces/default/pods/{name}")
                if found.get("kind") == "Pod" and reached(found):
                    return found
                async with self.client.watch(PODS, version=version, namespace="default") as changes:
                    async for _ in changes:
                        break

    async def ended(self, name: str) -> dict[str, Any]:
        """The pod once it is Succeeded or Failed."""
        return await self.until(name, lambda found: found["status"]["phase"] in {"Succeeded", "Failed"})

    async def running(self, name: str) -> dict[str, Any]:
        """The pod once all of its containers run."""
        return await self.until(name, lambda found: _is_ready(found["status"]))

    async def gone(self, name: str) -> None:
        async with asyncio.timeout(SECONDS):
            while True:
                version = (await self.client.list(PODS, namespace="default")).version
                try:
                    await self.client.get(PODS, f"default/{name}")
                except ApiNotFound:
                    return
                async with self.client.watch(PODS, version=version, namespace="default") as changes:
                    async for _ in changes:
                        break

    def get(self, path: str) -> dict[str, Any]:
        answer = self.server.handle("GET", path, {}, {}, b"")
        decoded: dict[str, Any] = json.loads(answer.body)
        return decoded

    async def event(self, name: str, reason: str) -> str:
        """Message of an event about a pod, once it is there."""
        async with asyncio.timeout(SECONDS):
            while True:
                for event in self.get("/api/v1/namespaces/default/events")["items"]:
                    if event["involvedObject"]["name"] == name and event["reason"] == reason:
                        return str(event["message"])
                await asyncio.sleep(0.01)

    async def log(self, name: str, **query: str) -> str:
        opened = self.server.log(f"/api/v1/namespaces/default/pods/{name}/log", query, {})
        if isinstance(opened, Answer):
            return str(json.loads(opened.body)["message"])
        return b"".join([piece async for piece in opened]).decode()


def _is_ready(status: dict[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ()))


def pod(name: str, script: str, *, container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod in `default` that is not restarted. container: more fields of its container `main`."""
    main = {"name": "main", "image": "host", "command": ["/bin/sh", "-c", script], **(container or {})}
    fields = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [main], **spec}
    return PODS.body(metadata={"name": name, "namespace": "default"}, spec=fields)


def host_path(path: Path, at: str, **mount: Any) -> dict[str, Any]:
    """Keywords for `pod` that mount a directory of the host at `at`."""
    return {
        "volumes": [{"name": "data", "hostPath": {"path": str(path), "type": "Directory"}}],
        "container": {"volumeMounts": [{"name": "data", "mountPath": at, **mount}]},
    }


def state_of(found: dict[str, Any], name: str = "main") -> dict[str, Any]:
    """State of a container."""
    listed = [*found["status"].get("initContainerStatuses", ()), *found["status"].get("containerStatuses", ())]
    return next((one["state"] for one in listed if one["name"] == name), {})
