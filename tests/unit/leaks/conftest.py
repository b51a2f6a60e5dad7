"""A control plane in virtual time over the embedded server, with a backend of shelves, for what a running controller
does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from volplane import (
    Absent,
    AdoptRequest,
    AlreadyExists,
    Asset,
    AssetPage,
    BackendSpec,
    DeleteRequest,
    DescribeRequest,
    Done,
    DriverInfo,
    FindRequest,
    InProgress,
    ListedAsset,
    ListRequest,
    Ownership,
    ProvisionRequest,
    VolumeSource,
    hookimpl,
)
from volplane.assembly import Parts
from volplane.controller.actions import EventRecord
from volplane.controller.metrics import Metrics
from volplane.drivers.contract import Plugin
from volplane.drivers.driver import Driver
from volplane.drivers.status import LoadedDrivers
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, STORAGE_CLASSES, VOLUMES
from volplane.operations import DriverLimits
from volplane.state.cluster_state import Settings
from volplane.state.records import Sealer
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing import clock
from volplane_testing.control_plane import VirtualProcess
from volplane_testing.executor import InlineExecutor
from volplane_testing.transport import FaultTransport

DRIVER = "shelf.example.com"
CLUSTER = "here"


class Shelf(BackendSpec):
    """Keeps assets in memory and lists them two a page. What it shall answer instead stands in `answers`."""

    def __init__(self) -> None:
        super().__init__({})
        self.assets: dict[str, ListedAsset] = {}
        self.calls: list[str] = []
        self.answers: dict[str, list[Any]] = {}
        self.before: Callable[[str], None] = lambda _hook: None

    def _called(self, hook: str) -> Any:
        self.calls.append(hook)
        self.before(hook)
        waiting = self.answers.get(hook)
        answer = waiting.pop(0) if waiting else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return DriverInfo(version="1")

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset:
        answer: Asset | None = self._called("provision")
        if answer is not None:
            return answer
        handle = f"shelf/{request.name}"
        source = VolumeSource(kind="hostPath", fields={"path": f"/shelves/{request.name}"})
        self.assets[handle] = ListedAsset(
            handle=handle, name=request.name, capacity_bytes=request.capacity_bytes, owner=request.owner, source=source
        )
        return Asset(handle=handle, source=source, capacity_bytes=request.capacity_bytes)

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        self._called("find")
        found = self.assets.get(f"shelf/{request.name}")
        if found is None or found.source is None:
            return Absent()
        return Asset(handle=found.handle, source=found.source, capacity_bytes=found.capacity_bytes)

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        answer: Done | InProgress | None = self._called("delete")
        if answer is not None:
            return answer
        found = self.assets.get(request.volume.handle)
        if found is not None and found.owner != request.volume.owner:
            raise AlreadyExists(f"{found.handle} is another's")
        self.assets.pop(request.volume.handle, None)
        return Done()

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        answer: AssetPage | None = self._called("list_assets")
        if answer is not None:
            return answer
        handles = sorted(handle for handle in self.assets if request.page is None or handle > request.page)
        page = tuple(self.assets[handle] for handle in handles[:2])
        return AssetPage(assets=page, next_page=handles[1] if len(handles) > 2 else None)

    @hookimpl
    def adopt(self, request: AdoptRequest) -> Done:
        self._called("adopt")
        found = self.assets[request.volume.handle]
        if found.owner not in (request.former, request.volume.owner):
            raise AlreadyExists(f"{found.handle} is another's")
        self.assets[found.handle] = dataclasses.replace(found, owner=request.volume.owner)
        return Done()

    def put(self, uid: str, *, cluster: str | None = CLUSTER, size: int = 2**20, **fields: Any) -> ListedAsset:
        """An asset that nobody asked for now, marked for claim `uid`, or unmarked (cluster=None)."""
        name = f"pvc-{uid}"
        owner = Ownership(cluster_id=cluster, claim_uid=uid, volume_name=name) if cluster is not None else None
        source = VolumeSource(kind="hostPath", fields={"path": f"/shelves/{name}"})
        asset = ListedAsset(handle=f"shelf/{name}", name=name, capacity_bytes=size, owner=owner, source=source)
        asset = dataclasses.replace(asset, **fields)
        self.assets[asset.handle] = asset
        return asset


class Cluster:
    """Server, people and one process."""

    def __init__(self, backend: BackendSpec) -> None:
        self.server = ApiServer(now=clock.now, random=Random(3))
        self._transport = FaultTransport(InProcessTransport(self.server))
        self.client = Client(self._transport)
        self.metrics = Metrics()
        self.events: list[EventRecord] = []
        plugin = Plugin(kind="backend", name="shelf", factory=lambda _options: backend, distribution="tests")
        limits = {DRIVER: DriverLimits(concurrency=2)}
        loaded = LoadedDrivers(drivers=(Driver(DRIVER, plugin, backend),), limits=limits)
        parts = Parts(
            client=self.client,
            loaded=loaded,
            executor=InlineExecutor(limits),
            recorder=self,
            sealer=Sealer(b"k" * 32),
            clock=clock.LoopClock(),
            random=Random(5),
            fence=lambda: "1/test",
            metrics=self.metrics,
            lifecycle_metrics=self.metrics,
        )
        self.process = VirtualProcess(Settings(cluster_id=CLUSTER), parts, self._transport)
        self.plane = self.process.plane
        self.check = self.plane.leak_check
        self.repair = self.plane.leak_repair
        self.adoption = self.plane.adoption

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
    return Shelf()


@pytest.fixture
async def cluster(shelf: Shelf) -> AsyncIterator[Cluster]:
    """A fresh cluster with a running controller."""
    cluster = Cluster(shelf)
    async with cluster.running():
        yield cluster
