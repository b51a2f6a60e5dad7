"""`attach: true` in a cluster, in virtual time: volumes of EBS follow the pods that use them, from node to node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from volplane_aws_ebs import AwsEbsBackend
from volplane_aws_ebs.testing import Behaviour, FakeEC2, InProcess
from volplane_testing import Cluster

DRIVER = "ebs.volplane.dev"
MANAGED = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
Json = dict[str, Any]


class Region:
    """A cluster whose nodes are instances of a mocked region. The test is the scheduler and the kubelets."""

    def __init__(self, cluster: Cluster, fake: FakeEC2) -> None:
        self.cluster = cluster
        self.fake = fake
        self.instances: dict[str, Any] = {}

    def add_node(self, name: str, **more: Any) -> None:
        instance = self.instances[name] = self.fake.add_instance("eu-test-1a", **more)
        body = {"metadata": {"name": name, "annotations": MANAGED}, "spec": {"providerID": f"aws:///z/{instance.id}"}}
        self.cluster.api.create("nodes", body)
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        self.cluster.api.patch("nodes", name, ready, subresource="status")

    async def add_claim(self, name: str = "data") -> Json:
        claim = await self.cluster.create_claim(name, storage_class="fast")
        return await self.cluster.wait_bound(claim)

    def start(self, pod: str, node: str, claim: str = "data") -> None:
        volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}], "volumes": volumes}
        self.cluster.api.create("pods", {"metadata": {"name": pod}, "spec": spec})

    def end(self, pod: str) -> None:
        self.cluster.api.delete("pods", pod, grace_seconds=0)

    def use(self, node: str, *volumes: str) -> None:
        """The kubelet reports these as in use."""
        self.cluster.api.patch("nodes", node, {"status": {"volumesInUse": list(volumes)}}, subresource="status")

    def listed(self, node: str) -> list[str]:
        found = self.cluster.api.get("nodes", node) or {}
        return [each["name"] for each in found["status"].get("volumesAttached") or ()]

    def places(self) -> list[str]:
        """Names of the nodes that have a volume."""
        names = {instance.id: name for name, instance in self.instances.items()}
        return [names.get(id_, id_) for volume in self.fake.volumes.values() for id_ in volume.attachments]

    async def attached(self, *nodes: str) -> None:
        await self.cluster.wait_for(
            lambda: self.places() == list(nodes) and all(self.listed(n) for n in nodes), 120.0, f"on {nodes}"
        )


@asynccontextmanager
async def a_region(**behaviour: Any) -> AsyncIterator[Region]:
    now = asyncio.get_running_loop().time
    fake = FakeEC2(Behaviour(**behaviour), clock=now)
    connect = InProcess(fake)

    def driver() -> AwsEbsBackend:
        return AwsEbsBackend(
            {"region": "eu-test-1", "zones": ["eu-test-1a"], "attach": True}, connect_to=connect, clock=now
        )

    async with Cluster({DRIVER: driver}) as cluster:
        await cluster.create_class("fast", parameters={"type": "gp3"})
        region = Region(cluster, fake)
        region.add_node("node-a")
        region.add_node("node-b")
        yield region


def unique(volume: Json) -> str:
    return f"kubernetes.io/csi/ebs.csi.aws.com^{volume['spec']['csi']['volumeHandle']}"


async def test_a_volume_follows_its_pod_to_another_node() -> None:
    async with a_region() as region:
        volume = await region.add_claim()
        region.start("first", "node-a")
        await region.attached("node-a")
        [attachment] = region.cluster.api.all("volumeattachments")
        assert attachment["spec"]["attacher"] == "ebs.csi.aws.com"
        assert attachment["status"]["attachmentMetadata"]["devicePath"].startswith("/dev/")
        region.use("node-a", unique(volume))
        region.end("first")
        region.start("second", "node-b")
        await region.cluster.advance(300.0)
        assert region.places() == ["node-a"], "the kubelet has not unmounted it"
        region.use("node-a")
        await region.attached("node-b")
        assert region.listed("node-a") == []
        assert region.fake.calls["AttachVolume"] == 2
        region.end("second")
        await region.cluster.wait_for(lambda: region.places() == [], 60.0, "detached")
        assert region.cluster.api.all("volumeattachments") == []


async def test_an_attachment_made_by_hand_is_served_and_undone() -> None:
    async with a_region() as region:
        volume = await region.add_claim()
        spec = {
            "attacher": "ebs.csi.aws.com",
            "nodeName": "node-a",
            "source": {"persistentVolumeName": volume["metadata"]["name"]},
        }
        region.cluster.api.create("volumeattachments", {"metadata": {"name": "by-hand"}, "spec": spec})

        def attached() -> bool:
            found = region.cluster.api.get("volumeattachments", "by-hand") or {}
            return bool(found["status"]["attached"])

        await region.cluster.wait_for(attached, 60.0, "attached")
        region.cluster.api.delete("volumeattachments", "by-hand")
        await region.cluster.wait_for(lambda: not region.cluster.api.all("volumeattachments"), 60.0, "detached")
        assert region.places() == []


async def test_a_process_that_dies_in_the_middle_attaches_no_second_time() -> None:
    async with a_region(attach_seconds=30.0, detach_seconds=30.0) as region:
        await region.add_claim()
        region.start("pod", "node-a")
        await region.cluster.advance(10.0)
        await region.cluster.restart()
        await region.attached("node-a")
        region.end("pod")
        await region.cluster.advance(10.0)
        await region.cluster.restart()
        await region.cluster.wait_for(lambda: not region.cluster.api.all("volumeattachments"), 120.0, "detached")
        assert region.places() == []
        assert (region.fake.calls["AttachVolume"], region.fake.calls["DetachVolume"]) == (1, 1)


async def test_what_a_deleted_node_had_is_detached_by_a_process_that_never_saw_the_node() -> None:
    async with a_region() as region:
        await region.add_claim()
        region.start("pod", "node-a")
        await region.attached("node-a")
        region.end("pod")
        region.cluster.fail("delete", "volumeattachments", times=10**6)
        region.cluster.api.delete("nodes", "node-a")
        await region.cluster.restart()
        region.cluster.heal()
        await region.cluster.wait_for(lambda: region.places() == [], 600.0, "detached")
        assert region.cluster.api.all("volumeattachments") == []


async def test_a_node_made_anew_under_its_name_gets_the_volume_on_its_new_machine() -> None:
    async with a_region() as region:
        await region.add_claim()
        region.start("pod", "node-a")
        await region.attached("node-a")
        former = region.instances["node-a"]
        region.cluster.api.delete("nodes", "node-a")
        region.add_node("node-a")
        await region.attached("node-a")
        assert former.id not in {id_ for volume in region.fake.volumes.values() for id_ in volume.attachments}


async def test_a_volume_is_not_deleted_while_it_is_attached() -> None:
    async with a_region() as region:
        volume = await region.add_claim()
        region.start("pod", "node-a")
        await region.attached("node-a")
        region.use("node-a", unique(volume))
        region.end("pod")
        region.cluster.api.delete("persistentvolumeclaims", "data")
        await region.cluster.advance(60.0)
        assert region.places() == ["node-a"]
        assert region.fake.calls["DeleteVolume"] == 0
        region.use("node-a")
        await region.cluster.wait_for(lambda: not region.fake.volumes, 300.0, "deleted")


async def test_a_full_node_is_told_with_the_code_by_which_kubelets_reject_the_pod() -> None:
    async with a_region() as region:
        region.add_node("small", instance_type="m5.large", interfaces=27)
        await region.add_claim()
        region.start("pod", "small")

        def error() -> Json:
            found = region.cluster.api.all("volumeattachments")
            return (found[0]["status"].get("attachError") or {}) if found else {}

        await region.cluster.wait_for(error, 120.0, "refused")
        assert error()["errorCode"] == 8
        assert "can hold" in error()["message"]
        pod = region.cluster.api.get("pods", "pod") or {}
        await region.cluster.advance(5.0)
        assert any(event["reason"] == "FailedAttachVolume" for event in region.cluster.api.events(pod))


async def test_an_attachment_that_the_region_lost_is_reported_and_made_again() -> None:
    async with a_region() as region:
        volume = await region.add_claim()
        region.start("pod", "node-a")
        await region.attached("node-a")
        plane = region.cluster.controllers.plane
        driver = plane.drivers.get(DRIVER)
        assert driver is not None
        assert plane.attachments is not None
        await plane.attachments.compare(driver)
        (stored,) = region.fake.volumes.values()
        stored.attachments.clear()
        stored.state = "available"
        await region.cluster.advance(60.0)
        await plane.attachments.compare(driver)
        assert region.places() == [], "once may be a late answer"
        await plane.attachments.compare(driver)
        await region.attached("node-a")
        await region.cluster.advance(5.0)
        assert [e["reason"] for e in region.cluster.api.events(volume)] == ["AttachmentLost"]


async def compared(region: Region, times: int) -> None:
    """The controllers compare attachments with the region, a minute apart."""
    for _ in range(times):
        plane = region.cluster.controllers.plane
        driver = plane.drivers.get(DRIVER)
        assert driver is not None
        assert plane.attachments is not None
        await plane.attachments.compare(driver)
        await region.cluster.advance(60.0)


async def test_what_is_attached_to_an_instance_of_ours_without_an_attachment_is_detached() -> None:
    async with a_region() as region:
        volume = await region.add_claim()
        attach_by_hand(region, region.instances["node-b"].id)
        await compared(region, 1)
        assert region.places() == ["node-b"], "one look may be a late answer"
        await compared(region, 1)
        assert region.places() == []
        [told] = [e for e in region.cluster.api.events(volume) if e["reason"] == "UnexpectedAttachment"]
        assert "shows it attached to node-b" in told["message"]


async def test_what_is_attached_to_the_former_machine_of_a_node_stays_and_does_not_pass_for_its_new_one() -> None:
    async with a_region() as region:
        volume = await region.add_claim()
        region.start("pod", "node-a")
        await region.attached("node-a")
        former = region.instances["node-a"]
        region.cluster.api.delete("nodes", "node-a")
        region.add_node("node-a")
        await region.attached("node-a")
        (stored,) = region.fake.volumes.values()
        stored.attachments.clear()
        attach_by_hand(region, former.id)
        await compared(region, 3)
        assert list(stored.attachments) == [former.id]
        told = {e["reason"]: e["message"] for e in region.cluster.api.events(volume)}
        assert f"shows it attached to {former.id}, for which" in told["UnexpectedAttachment"]
        assert "does not show it attached to node-a" in told["AttachmentLost"]


def attach_by_hand(region: Region, instance: str) -> None:
    """As a person does, or a request of long ago."""
    (stored,) = region.fake.volumes.values()
    InProcess(region.fake).client().attach_volume(VolumeId=stored.id, InstanceId=instance, Device="/dev/sdp")


async def test_a_pod_whose_volume_a_person_attached_elsewhere_is_told_where_and_gets_it_when_it_is_free() -> None:
    async with a_region() as region:
        await region.add_claim()
        stranger = region.fake.add_instance("eu-test-1a")
        attach_by_hand(region, stranger.id)
        region.start("pod", "node-a")
        await region.cluster.advance(120.0)
        assert region.places() == [stranger.id], "nobody takes it from there"
        pod = region.cluster.api.get("pods", "pod") or {}
        told = [e["message"] for e in region.cluster.api.events(pod) if e["reason"] == "FailedAttachVolume"]
        assert told
        assert all(stranger.id in message for message in told)
        (stored,) = region.fake.volumes.values()
        InProcess(region.fake).client().detach_volume(VolumeId=stored.id)
        await region.attached("node-a")


async def test_many_detaches_delay_an_attach_by_little() -> None:
    async with a_region() as region:
        for number in range(8):
            await region.add_claim(f"old-{number}")
            region.start(f"old-{number}", "node-a", f"old-{number}")
        await region.cluster.wait_for(lambda: len(region.listed("node-a")) == 8, 300.0, "attached")
        await region.add_claim("new")
        began = asyncio.get_running_loop().time()
        for number in range(8):
            region.end(f"old-{number}")
        region.start("new", "node-b", "new")
        await region.cluster.wait_for(lambda: region.listed("node-b"), 60.0, "attached")
        assert asyncio.get_running_loop().time() - began < 10.0
