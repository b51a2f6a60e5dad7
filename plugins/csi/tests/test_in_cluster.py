"""Volumes of a CSI driver by the controllers, in a cluster in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from volplane_csi import CsiBackend
from volplane_csi.testing import ALL_CAPABILITIES, Behaviour, FakeDriver, InProcess
from volplane_testing import Cluster
from volplane_testing.cloud import Fault, FaultKind

DRIVER = "fake.csi.example.com"
SOURCE = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}
GIB = 1 << 30


def now() -> float:
    return asyncio.get_running_loop().time()


def driver_of(fake: FakeDriver, **options: Any) -> Any:
    given = {"socket": "/csi/csi.sock", **options}
    return {DRIVER: lambda: CsiBackend(given, connect_to=InProcess(fake))}


async def wait(cluster: Cluster, condition: Callable[[], Any]) -> Any:
    return await cluster.wait_for(condition, 600.0, "it has come")


async def test_a_claim_lives_grows_is_cut_restored_and_goes() -> None:
    fake = FakeDriver(Behaviour(), clock=now)
    async with Cluster(driver_of(fake)) as cluster:
        api = cluster.api
        grows = {"provisioner": DRIVER, "allowVolumeExpansion": True, "reclaimPolicy": "Delete"}
        api.create("storageclasses", {"metadata": {"name": "fast"}, **grows})
        claim = await cluster.create_claim("data", storage_class="fast")
        volume = await cluster.wait_bound(claim)
        assert volume["spec"]["csi"]["volumeAttributes"]["of"] == "fake"
        secret = "volume.kubernetes.io/provisioner-deletion-secret-name"
        assert volume["metadata"]["annotations"][secret] == ""
        fake.contents.write(volume["spec"]["csi"]["volumeHandle"], "data")
        daily = {"metadata": {"name": "daily"}, "driver": DRIVER, "deletionPolicy": "Delete"}
        api.create("volumesnapshotclasses", daily)
        spec = {"source": {"persistentVolumeClaimName": "data"}, "volumeSnapshotClassName": "daily"}
        api.create("volumesnapshots", {"metadata": {"name": "s"}, "spec": spec})
        await wait(cluster, lambda: (api.get("volumesnapshots", "s").get("status") or {}).get("readyToUse"))
        restored = await cluster.create_claim("back", storage_class="fast", dataSource=SOURCE)
        handle = (await cluster.wait_bound(restored))["spec"]["csi"]["volumeHandle"]
        assert fake.contents.written(handle) == ["data"]
        api.patch(
            "persistentvolumeclaims", "data", {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}, "default"
        )
        await wait(cluster, lambda: {each.size for each in fake.volumes.values()} == {GIB, 2 * GIB})
        api.delete("volumesnapshots", "s")
        for each in (claim, restored):
            await cluster.delete_claim(each)
        await wait(cluster, lambda: not fake.volumes and not fake.snapshots and not api.all("persistentvolumes"))
        await cluster.settle()


async def test_a_life_takes_ten_writes_of_which_one_keeps_intent_and_request() -> None:
    fake = FakeDriver(Behaviour(), clock=now)
    async with Cluster(driver_of(fake)) as cluster:
        await cluster.create_class("fast")
        await cluster.advance(10)
        begun = len(cluster.requests)
        claim = await cluster.create_claim("data", storage_class="fast")
        await cluster.wait_bound(claim)
        await cluster.delete_claim(claim)
        await wait(cluster, lambda: not cluster.api.all("persistentvolumes"))
        await cluster.settle()
        reads = ("get", "list", "watch")
        writes = Counter(f"{each.verb} {each.resource}" for each in cluster.requests[begun:] if each.verb not in reads)
        assert writes == {
            "patch persistentvolumeclaims": 3,
            "patch persistentvolumeclaims/status": 1,
            "create persistentvolumes": 1,
            "patch persistentvolumes/status": 2,
            "delete persistentvolumes": 1,
            "patch persistentvolumes": 1,
            "create events": 1,
        }


async def test_a_volume_without_an_answer_is_found_though_claim_and_class_are_gone() -> None:
    fake = FakeDriver(Behaviour(), clock=now)
    fake.faults.add(Fault(action="CreateVolume", kind=FaultKind.LOSE, times=5))
    async with Cluster(driver_of(fake)) as cluster:
        await cluster.create_class("fast")
        claim = await cluster.create_claim("data", storage_class="fast")
        await wait(cluster, lambda: fake.calls["CreateVolume"] >= 2)
        assert len(fake.volumes) == 1
        cluster.api.delete("storageclasses", "fast")
        await cluster.delete_claim(claim)
        await cluster.restart()
        await wait(cluster, lambda: not fake.volumes)
        await wait(cluster, lambda: not cluster.api.all("persistentvolumeclaims", "default"))


async def test_what_a_driver_cannot_do_is_said_and_disturbs_nothing() -> None:
    fake = FakeDriver(Behaviour(capabilities=ALL_CAPABILITIES - {"LIST_VOLUMES_PUBLISHED_NODES"}), clock=now)
    async with Cluster(driver_of(fake)) as cluster:
        await cluster.create_class("fast")
        await cluster.wait_bound(await cluster.create_claim("data", storage_class="fast"))
        await cluster.advance(1500)
        assert fake.calls["ListVolumes"] == 0
        assert not [each for each in cluster.api.all("events") if each["type"] == "Warning"]


async def test_a_group_is_cut_once_restored_and_goes_though_answers_are_lost() -> None:
    fake = FakeDriver(Behaviour(cut_seconds=30.0), clock=now)
    async with Cluster(driver_of(fake)) as cluster:
        api = cluster.api
        await cluster.create_class("fast")
        for name in ("data", "log"):
            bound = await cluster.wait_bound(await cluster.create_claim(name, storage_class="fast"))
            fake.contents.write(bound["spec"]["csi"]["volumeHandle"], name)
            api.patch("persistentvolumeclaims", name, {"metadata": {"labels": {"app": "db"}}})
        body = {"metadata": {"name": "together"}, "driver": DRIVER, "deletionPolicy": "Delete"}
        api.create("volumegroupsnapshotclasses", body)
        fake.faults.add(Fault(action="CreateVolumeGroupSnapshot", kind=FaultKind.LOSE, times=2))
        spec = {"volumeGroupSnapshotClassName": "together", "source": {"selector": {"matchLabels": {"app": "db"}}}}
        api.create("volumegroupsnapshots", {"metadata": {"name": "g"}, "spec": spec})
        await wait(cluster, lambda: fake.calls["CreateVolumeGroupSnapshot"] >= 1)
        await cluster.restart()
        await wait(cluster, lambda: (api.get("volumegroupsnapshots", "g").get("status") or {}).get("readyToUse"))
        assert len(fake.snapshots) == 2
        assert len({request.name for action, request in fake.requests if action == "CreateVolumeGroupSnapshot"}) == 1
        members = {each["spec"]["source"]["persistentVolumeClaimName"]: each for each in api.all("volumesnapshots")}
        source = {**SOURCE, "name": members["log"]["metadata"]["name"]}
        restored = await cluster.create_claim("back", storage_class="fast", dataSource=source)
        handle = (await cluster.wait_bound(restored))["spec"]["csi"]["volumeHandle"]
        assert fake.contents.written(handle) == ["log"]
        fake.faults.add(Fault(action="DeleteVolumeGroupSnapshot", kind=FaultKind.LOSE, times=2))
        api.delete("volumegroupsnapshots", "g")
        await wait(cluster, lambda: not fake.snapshots and not api.all("volumesnapshots"))
        await wait(cluster, lambda: not api.all("volumegroupsnapshotcontents"))
        assert len(fake.volumes) == 3


async def test_a_sidecar_that_works_beside_it_by_mistake_keeps_what_it_has_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One without a Lease cannot be kept away. Both ask the driver for one name, so both have one volume."""
    fake = FakeDriver(Behaviour(), clock=now)
    stock = "external-provisioner.volume.kubernetes.io/finalizer"
    async with Cluster(driver_of(fake)) as cluster:
        api, create = cluster.api, fake._CreateVolume

        def faster(request: Any) -> Any:
            answer = create(request)
            reference = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data"}
            spec = {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "fast",
                "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": {**reference, "uid": request.name.removeprefix("pvc-")},
                "csi": {"driver": DRIVER, "volumeHandle": answer.volume.volume_id},
            }
            marks = {"annotations": {"pv.kubernetes.io/provisioned-by": DRIVER}, "finalizers": [stock]}
            api.create("persistentvolumes", {"metadata": {"name": request.name, **marks}, "spec": spec})
            return answer

        monkeypatch.setattr(fake, "_CreateVolume", faster)
        await cluster.create_class("fast")
        claim = await cluster.create_claim("data", storage_class="fast")
        await cluster.wait_bound(claim)
        await cluster.advance(3000)
        assert len(fake.volumes) == 1
        assert fake.calls["DeleteVolume"] == 0
        await cluster.delete_claim(claim)
        await cluster.advance(3000)
        [volume] = api.all("persistentvolumes")
        assert (volume["status"]["phase"], len(fake.volumes)) == ("Released", 1)
        assert stock in volume["metadata"]["finalizers"]


def sidecar(image: str, *names: str, **container: Any) -> dict[str, Any]:
    """A pod with a sidecar beside a CSI driver that is told these names."""
    driver = {"name": "driver", "image": "example.com/driver:v1", "args": [f"--drivername={name}" for name in names]}
    containers = [driver, {"name": "sidecar", "image": image, **container}]
    metadata = {"name": "controller-0", "namespace": "kube-system", "labels": {"app": "storage"}}
    return {"metadata": metadata, "spec": {"containers": containers}, "status": {"phase": "Running"}}


@pytest.mark.parametrize(
    ("pod", "options"),
    [
        (sidecar("registry.k8s.io/sig-storage/csi-provisioner:v6.3.0", DRIVER), {}),
        (sidecar("example.com:5000/ose-csi-external-attacher@sha256:abc", DRIVER), {}),
        (sidecar("example.com/own:v1", DRIVER, command=["/usr/bin/csi-resizer"]), {}),
        (sidecar("example.com/own:v1"), {"controller_pods": "app=storage"}),
    ],
    ids=("image", "image of a vendor", "command", "label"),
)
async def test_a_driver_does_not_start_beside_sidecars_that_hold_no_lease(
    pod: dict[str, Any], options: dict[str, str]
) -> None:
    fake = FakeDriver(Behaviour(), clock=now)
    async with Cluster(driver_of(fake, **options)) as cluster:
        cluster.api.create("pods", pod)
        await cluster.restart()
        await cluster.create_class("fast")
        claim = await cluster.create_claim("data", storage_class="fast")
        await cluster.advance(300)
        (status,) = cluster.controllers.plane.drivers.status()
        assert "its former controller runs in pod kube-system/controller-0: stop it first" in status.error
        assert fake.calls["CreateVolume"] == 0
        cluster.api.delete("pods", "controller-0", "kube-system")
        await cluster.wait_bound(claim)


@pytest.mark.parametrize(
    ("pod", "options"),
    [
        (sidecar("registry.k8s.io/sig-storage/csi-provisioner:v6.3.0", f"other.{DRIVER}", "x"), {}),
        (sidecar("registry.k8s.io/sig-storage/csi-node-driver-registrar:v2", DRIVER), {}),
        (sidecar("registry.k8s.io/sig-storage/csi-attacher:v4", DRIVER), {"attach": False}),
    ],
    ids=("another driver", "another program", "what it leaves to the sidecars"),
)
async def test_pods_that_do_other_work_keep_no_driver_from_starting(
    pod: dict[str, Any], options: dict[str, Any]
) -> None:
    fake = FakeDriver(Behaviour(), clock=now)
    async with Cluster(driver_of(fake, **options)) as cluster:
        cluster.api.create("pods", pod)
        await cluster.restart()
        await cluster.create_class("fast")
        await cluster.wait_bound(await cluster.create_claim("data", storage_class="fast"))


async def test_a_process_that_may_not_see_pods_starts() -> None:
    fake = FakeDriver(Behaviour(), clock=now)
    async with Cluster(driver_of(fake)) as cluster:
        cluster.fail("list", "pods", status=403, times=9)
        await cluster.restart()
        await cluster.create_class("fast")
        await cluster.wait_bound(await cluster.create_claim("data", storage_class="fast"))
