"""A control plane in virtual time over the embedded server, with a backend of shelves, for what a running controller
does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from backends import Shelf
from volplane.controller.actions import EventRecord
from volplane.controller.controller import Role
from volplane.controller.metrics import Metrics
from volplane.drivers.contract import Plugin
from volplane.drivers.driver import Driver, LoadedDrivers
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, STORAGE_CLASSES, VOLUMES
from volplane.operations.operation import DriverLimits
from volplane.process.assembly import Dependencies
from volplane.process.duties import ALL_CONTROLLERS
from volplane.state.records import Sealer
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing import clock
from volplane_testing.control_plane import VirtualProcess
from volplane_testing.executor import InlineExecutor
from volplane_testing.faults import FaultyBackend
from volplane_testing.transport import FaultTransport

DRIVER = Shelf.default_driver_name
CLUSTER = "here"


class Cluster:
    """Server, people and one process. server: of another one, whose process has ended; None = a new one."""

    def __init__(self, backend: FaultyBackend, server: ApiServer | None = None) -> None:
        self.server = server if server is not None else ApiServer(now=clock.now, random=Random(3))
        self._transport = FaultTransport(InProcessTransport(self.server))
        self.faults = self._transport.script
        self.client = Client(self._transport)
        self.metrics = Metrics()
        self.events: list[EventRecord] = []
        plugin = Plugin(kind="backend", name="shelf", factory=lambda _options: backend, distribution="tests")
        limits = {DRIVER: DriverLimits(concurrency=2)}
        loaded = LoadedDrivers(drivers=(Driver(DRIVER, plugin, backend),), limits=limits)
        parts = Dependencies(
            client=self.client,
            loaded=loaded,
            executor=InlineExecutor(),
            recorder=self,
            sealer=Sealer(b"k" * 32),
            now=clock.now,
            random=Random(5),
            fence=lambda: "1/test",
            metrics=self.metrics,
            lifecycle_metrics=self.metrics,
        )
        role = Role(controllers=frozenset(ALL_CONTROLLERS), cluster_id=CLUSTER)
        self.process = VirtualProcess(role, parts, self._transport)
        self.plane = self.process.plane
        self.check = self.plane.leak_check
        self.repair = self.plane.leak_repair
        self.adoption = self.plane.adoption

    def listed(self) -> list[str]:
        """The kinds that were listed, in order."""
        return [call.resource for call in self.faults.requests if call.verb == "list"]

    def record(self, event: EventRecord) -> None:
        self.events.append(event)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.process.start()
        self.process.begin("leak check", self.check.run())
        try:
            yield
        finally:
            await self.process.kill()

    async def make_class(self, name: str = "shelves", policy: str = "Delete") -> None:
        await self.client.create(
            STORAGE_CLASSES,
            STORAGE_CLASSES.body(metadata={"name": name}, provisioner=DRIVER, reclaimPolicy=policy),
        )

    async def claim(self, name: str = "data", *, storage_class: str = "shelves") -> str:
        """Create a claim and return its uid."""
        body = CLAIMS.body(
            metadata={"name": name, "namespace": "default"},
            spec={
                "storageClassName": storage_class,
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Mi"}},
            },
        )
        return (await self.client.create(CLAIMS, body)).uid

    async def volume(self, name: str, path: str = "/elsewhere", **metadata: Any) -> Any:
        """Create a volume by hand."""
        body = VOLUMES.body(
            metadata={"name": name, **metadata},
            spec={
                "capacity": {"storage": "1Mi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": path},
            },
        )
        return await self.client.create(VOLUMES, body)

    def found(self) -> list[tuple[str, str]]:
        """(verdict, handle or volume) of every finding."""
        return [(str(f.verdict), f.handle or f.volume) for f in self.check.observations.findings()]


@pytest.fixture
def shelf() -> Shelf:
    """The storage of the cluster."""
    return Shelf()


@pytest.fixture
def hooks(shelf: Shelf) -> FaultyBackend:
    """What the cluster calls of it: the calls so far, and the script of the next."""
    return FaultyBackend(shelf)


@pytest.fixture
async def cluster(hooks: FaultyBackend) -> AsyncIterator[Cluster]:
    """A fresh cluster with a running controller."""
    cluster = Cluster(hooks)
    async with cluster.running():
        yield cluster
