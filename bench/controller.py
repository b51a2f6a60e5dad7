"""The controllers of `volplane run --controllers all --no-leader-elect` with a backend that only remembers.

python bench/controller.py KUBECONFIG HTTP_PORT
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

from volplane import (
    Absent,
    Asset,
    BackendSpec,
    DeleteRequest,
    DescribeRequest,
    Done,
    DriverInfo,
    FindRequest,
    ProvisionRequest,
    VolumeSource,
    hookimpl,
)
from volplane.cli import running
from volplane.cli.serving import HttpAddress, serving
from volplane.controller import logs
from volplane.controller.config import Configuration
from volplane.controller.metrics import Metrics
from volplane.kube.client import Client
from volplane.kube.http_transport import HttpTransport
from volplane.loading.contract import Plugin
from volplane.loading.discovery import GivenPlugins
from volplane.process import ControllerProcess, Options


class MemoryBackend(BackendSpec):
    """Assets are entries of a dict: what is measured is everything but the backend."""

    default_driver_name = "memory.volplane.dev"

    def __init__(self, options: object) -> None:
        self._assets: dict[str, Asset] = {}
        self._lock = threading.Lock()

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return DriverInfo(version="1")

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset:
        source = VolumeSource(kind="hostPath", fields={"path": f"/srv/{request.name}"})
        asset = Asset(handle=request.name, source=source, capacity_bytes=request.capacity_bytes)
        with self._lock:
            return self._assets.setdefault(request.name, asset)

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done:
        with self._lock:
            self._assets.pop(request.volume.handle, None)
        return Done()

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        return self._assets.get(request.name) or Absent()


async def _run(kubeconfig: Path, port: int, stop: asyncio.Event) -> None:
    transport = await HttpTransport.connect(kubeconfig)
    metrics = Metrics()
    plugins = GivenPlugins([Plugin(kind="backend", name="memory", factory=MemoryBackend, distribution="bench")])
    process = ControllerProcess(
        Client(transport, metrics=metrics),
        Configuration(),
        Options(leader_elect=False),
        metrics=metrics,
        plugins=plugins,
    )
    async with serving(HttpAddress("127.0.0.1", port), process):
        await process.run(stop)
    await transport.close()


if __name__ == "__main__":
    logs.configure()
    running.run(lambda stop: _run(Path(sys.argv[1]), int(sys.argv[2]), stop))
