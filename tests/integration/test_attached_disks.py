"""Pods on nodes of the embedded cluster write to EBS volumes of a mocked EC2, from create to detach, and move."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from integration.node_cluster import Cluster, now, pod, why_no_sandbox
from volplane.controller.config import Configuration, DriverSettings
from volplane.controller.metrics import Metrics
from volplane.drivers.contract import Plugin
from volplane.kube.client import Client
from volplane.kube.kinds import ATTACHMENTS, CLAIMS, NODES, STORAGE_CLASSES, VOLUMES
from volplane.process.process import ControllerProcess, Options
from volplane_aws_ebs import AwsEbsBackend
from volplane_aws_ebs.testing import Behaviour, FakeEC2, FakeEC2Server
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_embedded.kubelet.attached_disks import device_path, disk_path
from volplane_embedded.objects import PODS
from volplane_testing.disks import DiskDirectory
from volplane_testing.given_plugins import GivenPlugins

pytestmark = pytest.mark.real_time(seconds=240)

DRIVER = "ebs.volplane.dev"
QUICK = {f"{what}_seconds": 0.1 for what in ("create", "attach", "detach", "delete", "modify", "optimize")}
SECONDS = 50.0
POOL = {"volplane.dev/on-release": "recycle"}


@pytest.fixture(autouse=True)
def _sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    if why := why_no_sandbox(tmp_path):
        pytest.skip(f"pods cannot run here: {why}")


class Site:
    """A cluster of two nodes, which are instances of a mocked region, and its controllers."""

    def __init__(self, cluster: Cluster, fake: Any) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self.fake = fake
        self.instances: dict[str, str] = {}

    async def become_instances(self) -> None:
        """Each node is an instance in the one zone of the region."""
        for node in (await self.client.list(NODES)).items:
            instance = self.fake.add_instance("eu-test-1a")
            self.instances[node.name] = instance.id
            body = {
                "spec": {"providerID": f"aws:///eu-test-1a/{instance.id}"},
                "metadata": {"labels": {"topology.kubernetes.io/zone": "eu-test-1a"}},
            }
            await self.client.patch(NODES, node.name, body)

    async def claim(self, *, parameters: dict[str, str] | None = None, provisioner: str = DRIVER, **more: Any) -> None:
        """A class with these parameters, and a claim of it with these fields."""
        body = STORAGE_CLASSES.body(
            metadata={"name": "fast"},
            provisioner=provisioner,
            volumeBindingMode="WaitForFirstConsumer",
            allowVolumeExpansion=True,
            parameters=parameters or {},
        )
        await self.client.create(STORAGE_CLASSES, body)
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "fast",
            **more,
        }
        await self.client.create(CLAIMS, CLAIMS.body(metadata={"name": "data", "namespace": "default"}, spec=spec))

    async def run(self, name: str, node: str, script: str) -> None:
        """A pod on this node that has the claim's volume at /data."""
        body = pod(
            name,
            script,
            nodeSelector={"kubernetes.io/hostname": node},
            volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            container={"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
        )
        await self.client.create(PODS, body)

    async def until(self, what: str, reached: Callable[[], Any]) -> None:
        """Wait for something to be so; `reached` may be a coroutine function."""
        try:
            async with asyncio.timeout(SECONDS):
                while True:
                    answer = reached()
                    if await answer if asyncio.iscoroutine(answer) else answer:
                        return
                    await asyncio.sleep(0.05)
        except TimeoutError:
            events = self.cluster.get("/api/v1/events")["items"]
            said = [f"{each['reason']}: {each['message']}" for each in events]
            raise AssertionError(f"not reached: {what}; events: {said}") from None

    async def phase(self, name: str) -> str:
        return (await self.client.get(PODS, f"default/{name}")).status.phase

    async def ended(self, name: str) -> None:
        async def over() -> bool:
            return await self.phase(name) in ("Succeeded", "Failed")

        await self.until(f"pod {name} ends", over)
        assert await self.phase(name) == "Succeeded", await self.cluster.log(name)

    def attached_to(self) -> list[str]:
        """Instances that have the one volume."""
        [nodes] = self.fake.attached().values() or [()]
        return list(nodes)


@asynccontextmanager
async def controlled(directory: Path, driver: DriverSettings, plugin: Plugin) -> AsyncIterator[Cluster]:
    """A cluster of two nodes, once they are there, and its controllers with this driver."""
    server = ApiServer(now=now, random=Random(1))
    client = Client(InProcessTransport(server))
    cluster = Cluster(server, client, directory, disks=directory / "disks")
    process = ControllerProcess(
        Client(InProcessTransport(server)),
        Configuration(drivers=(driver,)),
        Options(leader_elect=False),
        metrics=Metrics(),
        plugins=GivenPlugins((plugin,)),
    )
    stop = asyncio.Event()
    async with cluster.nodes(2), asyncio.TaskGroup() as tasks:
        tasks.create_task(process.run(stop))
        try:
            yield cluster
        finally:
            stop.set()
    server.close()


@asynccontextmanager
async def site(directory: Path) -> AsyncIterator[Site]:
    fake = FakeEC2(Behaviour(**QUICK))
    with FakeEC2Server(fake, disks=DiskDirectory(directory / "disks")) as ec2:
        options = {"region": "eu-test-1", "endpoint": ec2.url, "attach": True}
        driver = DriverSettings(name=DRIVER, backend="aws_ebs", options=options)
        plugin = Plugin(kind="backend", name="aws_ebs", factory=AwsEbsBackend, distribution="tests")
        async with controlled(directory, driver, plugin) as cluster:
            made = Site(cluster, fake)
            await made.become_instances()
            yield made


async def test_a_pod_finds_its_file_on_another_node(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        await here.claim()
        await here.run("writer", "node-1", "echo kept > /data/file && sleep 1")
        await here.ended("writer")
        assert here.attached_to() == [here.instances["node-1"]]
        await here.client.delete(PODS, "default/writer")
        await here.run("reader", "node-2", "test $(cat /data/file) = kept")
        await here.ended("reader")
        assert here.attached_to() == [here.instances["node-2"]]
        await here.client.delete(PODS, "default/reader")
        await here.until("it is detached", lambda: here.attached_to() == [])

        async def no_attachments() -> bool:
            return not (await here.client.list(ATTACHMENTS)).items

        await here.until("no attachment is left", no_attachments)
        for node in (await here.client.list(NODES)).items:
            assert not node.status.volumes_in_use
        await here.client.delete(CLAIMS, "default/data")
        await here.until("the volume is gone", lambda: not here.fake.volumes)
        assert list((tmp_path / "disks" / "contents").iterdir()) == []


async def test_a_pod_waits_while_the_disk_is_attached_elsewhere(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        await here.claim()
        await here.run("first", "node-1", "echo mine > /data/file && sleep 100")

        async def runs() -> bool:
            return await here.phase("first") == "Running"

        await here.until("the first runs", runs)
        await here.run("second", "node-2", "cat /data/file")
        message = await here.cluster.event("second", "FailedAttachVolume")
        assert "Multi-Attach error" in message
        assert await here.phase("second") == "Pending"
        assert here.attached_to() == [here.instances["node-1"]]
        await here.client.delete(PODS, "default/first")
        await here.ended("second")


async def test_a_volume_grows_while_a_pod_uses_it(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        await here.claim()
        await here.run("user", "node-1", "sleep 100")

        async def runs() -> bool:
            return await here.phase("user") == "Running"

        await here.until("it runs", runs)
        await here.client.patch(CLAIMS, "default/data", {"spec": {"resources": {"requests": {"storage": "2Gi"}}}})

        async def grown() -> bool:
            return (await here.client.get(CLAIMS, "default/data")).status.capacity == {"storage": "2Gi"}

        await here.until("the claim has grown", grown)
        assert [volume.size for volume in here.fake.volumes.values()] == [2]
        name = (await here.client.get(CLAIMS, "default/data")).spec.volume_name
        text = f'MountVolume.NodeExpandVolume succeeded for volume "{name}" node-1'

        async def told() -> bool:
            listed = json.loads(await here.client.raw("/api/v1/namespaces/default/events"))["items"]
            kinds = {each["involvedObject"]["kind"] for each in listed if each["message"] == text}
            return kinds == {"Pod", "PersistentVolumeClaim"}

        await here.until("pod and claim are told in the words of the stock kubelet", told)


async def offered_again(here: Site) -> Any:
    """The one volume, once it is free for another claim."""

    async def free() -> bool:
        [volume] = (await here.client.list(VOLUMES)).items
        return volume.status.phase == "Available" and volume.spec.claim_ref is None

    await here.until("the volume is offered again", free)
    [volume] = (await here.client.list(VOLUMES)).items
    return volume


async def test_a_disk_of_a_warm_pool_is_emptied_by_a_pod_and_offered_again(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        await here.claim(parameters=POOL)
        await here.run("writer", "node-1", "mkdir -p /data/a/b && echo secret > /data/a/b/c && echo x > /data/.hidden")
        await here.ended("writer")
        [handle] = here.fake.volumes
        contents = disk_path(tmp_path / "disks", "", handle).name
        assert (tmp_path / "disks" / "contents" / contents / "a" / "b" / "c").read_text() == "secret\n"
        await here.client.delete(PODS, "default/writer")
        await here.client.delete(CLAIMS, "default/data")
        volume = await offered_again(here)
        assert list((tmp_path / "disks" / "contents" / contents).iterdir()) == []
        assert "volplane.dev/intent" not in (volume.metadata.annotations or {})
        assert (await here.client.list(CLAIMS)).items == []
        assert list(here.fake.volumes) == [handle]
        await here.until("it is detached", lambda: here.attached_to() == [])


async def write_to_device(here: Site) -> None:
    """Run a pod that writes to the claim's volume of mode Block, and remove it."""
    body = pod(
        "writer",
        "printf secret | dd of=/dev/data bs=1 seek=5000 conv=notrunc",
        nodeSelector={"kubernetes.io/hostname": "node-1"},
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        container={"volumeDevices": [{"name": "data", "devicePath": "/dev/data"}]},
    )
    await here.client.create(PODS, body)
    await here.ended("writer")
    await here.client.delete(PODS, "default/writer")


def beginning(device: Path) -> bytes:
    with device.open("rb") as disk:
        return disk.read(8192)


async def test_a_block_disk_is_overwritten_and_offered_again(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        await here.claim(parameters=POOL, volumeMode="Block")
        await write_to_device(here)
        [handle] = here.fake.volumes
        device = device_path(tmp_path / "disks" / "contents" / disk_path(tmp_path / "disks", "", handle).name)
        assert b"secret" in beginning(device)
        await here.client.delete(CLAIMS, "default/data")
        await offered_again(here)
        assert beginning(device) == bytes(8192)
        assert device.stat().st_size == 1 << 30


@asynccontextmanager
async def google_site(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """A cluster whose two nodes are machines in one zone of a mocked project."""
    testing = pytest.importorskip("volplane_gce_pd.testing")
    from google.auth.credentials import AnonymousCredentials

    from volplane_gce_pd import GcePdBackend

    monkeypatch.setattr("google.auth.default", lambda **_: (AnonymousCredentials(), None))
    fake = testing.FakeCompute(testing.Behaviour(default_seconds=0.1))
    zone = fake.behaviour.zones[0]
    with testing.FakeComputeServer(fake, disks=DiskDirectory(directory / "disks")) as server:
        options = {
            "project": fake.behaviour.project,
            "region": fake.behaviour.region,
            "endpoint": server.url,
            "attach": True,
        }
        settings = DriverSettings(name="pd.volplane.dev", backend="gce_pd", options=options)
        plugin = Plugin(kind="backend", name="gce_pd", factory=GcePdBackend, distribution="tests")
        async with controlled(directory, settings, plugin) as cluster:
            here = Site(cluster, fake)
            for node in (await here.client.list(NODES)).items:
                fake.add_instance(node.name, zone)
                labels = {"topology.gke.io/zone": zone}
                provider = f"gce://{fake.behaviour.project}/{zone}/{node.name}"
                body = {"spec": {"providerID": provider}, "metadata": {"labels": labels}}
                await here.client.patch(NODES, node.name, body)
            yield here


def contents_of_disk(here: Site, disks: Path) -> Path:
    """Where the one disk of the mocked project keeps what pods write."""
    [disk] = here.fake.disks.values()
    return disks / "contents" / disk_path(disks, "", disk.path(here.fake.behaviour.project)).name


async def test_a_disk_of_google_is_emptied_by_a_pod_and_offered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with google_site(tmp_path, monkeypatch) as here:
        await here.claim(parameters=POOL, provisioner="pd.volplane.dev")
        await here.run("writer", "node-1", "echo secret > /data/file")
        await here.ended("writer")
        contents = contents_of_disk(here, tmp_path / "disks")
        assert (contents / "file").read_text() == "secret\n"
        await here.client.delete(PODS, "default/writer")
        await here.client.delete(CLAIMS, "default/data")
        await offered_again(here)
        assert list(contents.iterdir()) == []


@pytest.mark.soak
async def test_a_block_disk_of_google_is_overwritten_and_offered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with google_site(tmp_path, monkeypatch) as here:
        await here.claim(parameters=POOL, provisioner="pd.volplane.dev", volumeMode="Block")
        await write_to_device(here)
        device = device_path(contents_of_disk(here, tmp_path / "disks"))
        assert b"secret" in beginning(device)
        await here.client.delete(CLAIMS, "default/data")
        await offered_again(here)
        assert beginning(device) == bytes(8192)
