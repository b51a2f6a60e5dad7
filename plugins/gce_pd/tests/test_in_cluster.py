"""The driver in a cluster, in virtual time: claims get disks, and nothing is left of them afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from volplane_gce_pd import GcePdBackend
from volplane_gce_pd.testing import Behaviour, FakeCompute, InProcess
from volplane_testing import Cluster

DRIVER = "pd.volplane.dev"
ZONE = "topology.gke.io/zone"
A, B = "europe-test1-a", "europe-test1-b"
SELECTED = "volume.kubernetes.io/selected-node"


class Site:
    """A mocked project that lives by the loop's clock, and fresh drivers on it."""

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.fake = FakeCompute(behaviour or Behaviour(), clock=self.now)
        self._connect = InProcess(self.fake)

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()

    def driver(self) -> GcePdBackend:
        options = {"project": "test-project", "region": "europe-test1"}
        return GcePdBackend(options, connect_to=self._connect, clock=self.now)

    def cluster(self) -> Cluster:
        return Cluster({DRIVER: self.driver})


async def test_a_claim_gets_a_disk_that_stock_nodes_mount_and_that_goes_with_it() -> None:
    site = Site()
    async with site.cluster() as cluster:
        await cluster.create_class("fast", parameters={"type": "pd-ssd", "csi.storage.k8s.io/fstype": "xfs"})
        claim = await cluster.create_claim("data", storage_class="fast", capacity="5Gi")
        volume = await cluster.wait_bound(claim)
        (disk,) = site.fake.disks.values()
        spec = volume["spec"]
        assert spec["csi"]["driver"] == "pd.csi.storage.gke.io"
        assert spec["csi"]["volumeHandle"] == disk.path("test-project")
        assert spec["csi"]["fsType"] == "xfs"
        (term,) = spec["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert term["matchExpressions"] == [{"key": ZONE, "operator": "In", "values": list(disk.zones)}]
        await cluster.delete_claim(claim)
        await cluster.advance(60.0)
        assert site.fake.disks == {}
        assert cluster.api.all("persistentvolumes") == []


async def test_a_regional_disk_may_be_used_in_both_its_zones() -> None:
    site = Site()
    async with site.cluster() as cluster:
        await cluster.create_class("safe", parameters={"type": "pd-ssd", "replication-type": "regional-pd"})
        volume = await cluster.wait_bound(await cluster.create_claim("data", storage_class="safe"))
        terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        zones = {value for term in terms for each in term["matchExpressions"] for value in each["values"]}
        (disk,) = site.fake.disks.values()
        assert zones == set(disk.zones)
        assert len(zones) == 2


async def test_a_zone_without_room_sends_the_claim_back_to_the_scheduler() -> None:
    site = Site(Behaviour(stock_outs=frozenset({A})))
    async with site.cluster() as cluster:
        for zone in (A, B):
            cluster.api.create("nodes", {"metadata": {"name": f"node-{zone}", "labels": {ZONE: zone}}})
        await cluster.create_class("late", binding_mode="WaitForFirstConsumer")
        claim = await cluster.create_claim("data", storage_class="late", selected_node=f"node-{A}")
        await cluster.advance(30.0)
        now = cluster.api.get("persistentvolumeclaims", "data")
        assert SELECTED not in now["metadata"]["annotations"]
        told = [event["message"] for event in cluster.api.events(claim)]
        assert any("does not have enough resources" in message for message in told)
        cluster.api.patch("persistentvolumeclaims", "data", {"metadata": {"annotations": {SELECTED: f"node-{B}"}}})
        await cluster.wait_bound(claim)
        (disk,) = site.fake.disks.values()
        assert disk.zones == (B,)


async def test_the_operation_is_in_the_intent_until_the_claim_is_bound() -> None:
    site = Site(Behaviour(default_seconds=30.0))
    async with site.cluster() as cluster:
        await cluster.create_class("slow")
        claim = await cluster.create_claim("data", storage_class="slow")
        await cluster.advance(10.0)
        saved: Any = cluster.api.get("persistentvolumeclaims", "data")["metadata"]["annotations"]["volplane.dev/intent"]
        assert "/operations/operation-" in saved
        await cluster.wait_bound(claim)
        assert site.fake.calls["disks.insert"] == 1


async def test_a_disk_that_has_grown_waits_for_its_node_to_grow_the_file_system() -> None:
    site = Site()
    async with site.cluster() as cluster:
        await cluster.create_class("fast", allowVolumeExpansion=True)
        await cluster.wait_bound(await cluster.create_claim("data", storage_class="fast", capacity="5Gi"))
        body = {"spec": {"resources": {"requests": {"storage": "7Gi"}}}}
        cluster.api.patch("persistentvolumeclaims", "data", body)
        await cluster.advance(60.0)
        (disk,) = site.fake.disks.values()
        status: Any = cluster.api.get("persistentvolumeclaims", "data")["status"]
        assert disk.size == 7
        assert status["capacity"] == {"storage": "5Gi"}
        assert status["allocatedResourceStatuses"] == {"storage": "NodeResizePending"}
        assert [each["type"] for each in status["conditions"]] == ["FileSystemResizePending"]


async def wait(cluster: Any, condition: Any, seconds: float = 900.0) -> Any:
    """Return what the condition gives once it is something."""
    for _ in range(int(seconds)):
        if found := condition():
            return found
        await cluster.advance(1.0)
    raise AssertionError(f"not within {seconds:g} s")


@pytest.mark.parametrize("kind", ["snapshots", "images"])
async def test_a_volume_snapshot_is_made_and_deleted_by_the_controllers(kind: str) -> None:
    site = Site(Behaviour(upload_seconds=200.0))
    async with site.cluster() as cluster:
        api: Any = cluster.api
        await cluster.create_class("fast")
        await cluster.wait_bound(await cluster.create_claim("data", storage_class="fast", capacity="5Gi"))
        parameters = {"snapshot-type": kind, "storage-locations": "us-east1"}
        daily = {"metadata": {"name": "daily"}, "driver": DRIVER, "deletionPolicy": "Delete", "parameters": parameters}
        api.create("volumesnapshotclasses", daily)
        spec = {"source": {"persistentVolumeClaimName": "data"}, "volumeSnapshotClassName": "daily"}
        api.create("volumesnapshots", {"metadata": {"name": "s"}, "spec": spec})

        def status() -> Any:
            return (api.get("volumesnapshots", "s") or {}).get("status") or {}

        begun = site.now()
        await wait(cluster, lambda: status().get("creationTime"))
        if kind == "snapshots":
            assert site.now() - begun < 30, "told at its moment, while the upload goes on"
            assert not status().get("readyToUse")
        await wait(cluster, lambda: status().get("readyToUse"))
        assert status()["restoreSize"] == "5Gi"
        (stored,) = [*site.fake.snapshots.values(), *site.fake.images.values()]
        uid = api.get("volumesnapshots", "s")["metadata"]["uid"]
        assert (stored.kind, stored.labels["volplane-snapshot-uid"]) == (kind, uid)
        (content,) = api.all("volumesnapshotcontents")
        assert content["status"]["snapshotHandle"] == stored.path("test-project")
        api.delete("volumesnapshots", "s")
        await wait(cluster, lambda: api.get("volumesnapshots", "s") is None)
        assert site.fake.snapshots == site.fake.images == {}
        assert api.all("volumesnapshotcontents") == []
