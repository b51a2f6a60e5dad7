"""The sections `snapshots` and `restore` of `volplane check --cluster`, against controllers of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from integration.snapshot_world import storage
from integration.stock_api import StockApi
from integration.stock_snapshots import StockSnapshotController
from volplane import Done
from volplane.drivers.contract import Plugin
from volplane.drivers.driver import Driver
from volplane.kube.client import Client
from volplane.kube.kinds import NAMESPACES
from volplane.snapshots.objects import VOLUME_SNAPSHOT_CLASSES, VOLUME_SNAPSHOTS
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing import Cluster
from volplane_testing.faults import Answer, FaultyBackend
from volplane_testing.memory import MemoryBackend
from volplane_testing.memory_storage import MemoryStorage
from volplane_testing.qualification.assets import Assets
from volplane_testing.qualification.cleanup import empty
from volplane_testing.qualification.controllers import Controllers, Replica
from volplane_testing.qualification.report import Facts, Failed
from volplane_testing.qualification.site import Site
from volplane_testing.qualification.snapshotting import restore, snapshots


class Running(Controllers):
    """Those of a cluster in this process, which run already."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__((), Path("/nonexistent"))
        self._cluster = cluster

    async def need(self, count: int = 1, *, leader_elect: bool = True) -> Replica:
        return cast("Replica", None)  # No section of this file asks it.

    def check(self) -> None:
        self._cluster.controllers.check()


@asynccontextmanager
async def a_site(made: MemoryStorage, faults: Any = None, *, stock: bool = False) -> AsyncIterator[Site]:
    async with Cluster([FaultyBackend(MemoryBackend(storage=made), faults or {})]) as cluster:
        client = Client(InProcessTransport(cluster.server))
        beside = asyncio.create_task(StockSnapshotController(StockApi(cluster.server, 0.002)).run()) if stock else None
        backend = MemoryBackend(storage=made)
        plugin = Plugin(kind="backend", name="memory", factory=lambda _options: backend)
        cluster_id = (await client.get(NAMESPACES, "kube-system")).uid
        site = Site(
            run="check",
            client=client,
            controllers=Running(cluster),
            assets=Assets(Driver(cluster.driver, plugin, backend), cluster_id),
            facts=Facts(server="https://example.com", kubernetes="v1.36.0", no_pods="no node is Ready"),
            driver=cluster.driver,
            local=None,
            whole=True,
            image="image",
            capacity="1Gi",
            parameters={},
            kubeconfig=None,
            churn_seconds=1.0,
            kills=1,
            patience=60.0,
        )
        await client.create(NAMESPACES, NAMESPACES.body(metadata={"name": "check"}))
        try:
            await asyncio.sleep(1.0)
            yield site
        finally:
            if beside is not None:
                assert not beside.done()
                beside.cancel()


@pytest.mark.parametrize("stock", [False, True], ids=["alone", "beside a stock controller"])
async def test_both_sections_pass_and_leave_nothing(stock: bool) -> None:
    made = storage(delay=1.0)
    async with a_site(made, stock=stock) as site:
        measured = await snapshots(site)
        assert measured["bound_by"] == (
            "the holder of Lease kube-system/snapshot-controller-leader" if stock else "volplane"
        )
        assert "clone_seconds" in await restore(site)
        await empty(site)
        assert (await site.contents(), await site.snapshots(), await site.volumes()) == ([], [], [])
    assert not made.snapshots
    assert not made.assets


async def test_a_snapshot_that_stays_on_the_storage_is_told() -> None:
    made = storage()
    async with a_site(made, {"delete_snapshot": [Answer(Done(), effect=False)]}) as site:
        with pytest.raises(Failed, match=r"^not after 60 s: snapshot .+ is gone from the storage"):
            await snapshots(site)


async def test_a_snapshot_that_a_section_leaves_behind_is_removed_whatever_its_policy() -> None:
    made = storage()
    async with a_site(made) as site:
        await site.make_claim("left", await site.make_class("left"))
        await site.bound("left")
        of_class = VOLUME_SNAPSHOT_CLASSES.body(metadata={"name": "left"}, driver=site.driver, deletionPolicy="Retain")
        metadata = {"name": "left", "namespace": site.run}
        await site.client.create(VOLUME_SNAPSHOT_CLASSES, of_class)
        spec = {"source": {"persistentVolumeClaimName": "left"}, "volumeSnapshotClassName": "left"}
        await site.client.create(VOLUME_SNAPSHOTS, VOLUME_SNAPSHOTS.body(metadata=metadata, spec=spec))
        await asyncio.sleep(60.0)
        assert len(made.snapshots) == 1
        await empty(site)
        assert (await site.contents(), await site.snapshots(), await site.volumes()) == ([], [], [])
    assert not made.snapshots
