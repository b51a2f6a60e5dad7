"""docs/how-to/take-over-volumes.md on mocked clouds, and move-from-sidecars-to-volplane.md on a CSI driver: from the
official controller to volplane and back, pods go on.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from volplane.leaks.repair import Adoptable
from volplane_aws_ebs import AwsEbsBackend
from volplane_aws_ebs.testing import Behaviour, FakeEC2, Fault, FaultKind
from volplane_aws_ebs.testing import InProcess as InEc2
from volplane_csi import CsiBackend
from volplane_csi.testing import Behaviour as CsiBehaviour
from volplane_csi.testing import FakeDriver, FakeVolume
from volplane_csi.testing import InProcess as InCsi
from volplane_gce_pd import GcePdBackend
from volplane_gce_pd.testing import DiskRecord, FakeCompute
from volplane_gce_pd.testing import InProcess as InCompute
from volplane_testing import Cluster
from volplane_testing.control_plane import reasons_of

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
PROVISIONER, RECLAIM = "external-provisioner.volume.kubernetes.io/finalizer", "volplane.dev/reclaim"
HANDLE = "volplane.dev/handle"
GIB = 1 << 30


def now() -> float:
    return asyncio.get_running_loop().time()


class Ec2:
    """A region with two instances, and disks as the official driver makes them."""

    name, pods = "ebs.csi.aws.com", {"app": "ebs-csi-controller"}
    page, on_page = "take-over-volumes.md", ("ebs.csi.aws.com", "ebs-csi-controller")
    flags: tuple[str, ...] = ()
    detach = "DetachVolume"

    def __init__(self) -> None:
        self.fake = FakeEC2(Behaviour(), clock=now)
        self._connect = InEc2(self.fake)
        self.machines = [self.fake.add_instance("eu-test-1a") for _ in range(2)]
        self.ids = [f"aws:///eu-test-1a/{each.id}" for each in self.machines]

    def driver(self) -> AwsEbsBackend:
        return AwsEbsBackend({"region": "eu-test-1", "attach": True}, connect_to=self._connect, clock=now)

    def make(self, name: str) -> str:
        tags = {"CSIVolumeName": name, "ebs.csi.aws.com/cluster": "true", "Name": f"dynamic-{name}"}
        shown = [{"Key": key, "Value": value} for key, value in tags.items()]
        made = self._connect.client().create_volume(
            AvailabilityZone="eu-test-1a", Size=4, TagSpecifications=[{"ResourceType": "volume", "Tags": shown}]
        )
        return str(made["VolumeId"])

    def attach(self, handle: str) -> None:
        given = {"VolumeId": handle, "InstanceId": self.machines[0].id, "Device": "/dev/xvdaa"}
        self._connect.client().attach_volume(**given)

    def attached_to(self, handle: str) -> list[str]:
        attachments = self.fake.volumes[handle].attachments
        return [self.ids[[each.id for each in self.machines].index(machine)] for machine in attachments]

    def delete(self, handle: str) -> None:
        self._connect.client().delete_volume(VolumeId=handle)

    def size(self, handle: str) -> int:
        return self.fake.volumes[handle].size

    def handles(self) -> set[str]:
        return {each.id for each in self.fake.volumes.values() if each.state != "deleting"}


class ComputeEngine:
    """A project with two machines, and disks as the official driver makes them."""

    name, pods = "pd.csi.storage.gke.io", {"app": "gcp-compute-persistent-disk-csi-driver", "pod-template-hash": "1"}
    page, on_page = Ec2.page, Ec2.on_page
    flags = ("--stopped",)
    """GKE runs the controller where no pod is seen."""
    detach = "instances.detachDisk"

    def __init__(self) -> None:
        self.fake = FakeCompute(clock=now)
        self._connect = InCompute(self.fake)
        self.zone = self.fake.behaviour.zones[0]
        self.machines = [self.fake.add_instance(f"vm-{number}", self.zone) for number in range(2)]
        self.ids = [f"gce://test-project/{self.zone}/{each.name}" for each in self.machines]

    def driver(self) -> GcePdBackend:
        options = {"project": "test-project", "region": "europe-test1", "attach": True}
        return GcePdBackend(options, connect_to=self._connect, clock=now)

    def make(self, name: str) -> str:
        text = {"kubernetes.io/created-for/pv/name": name, "storage.gke.io/created-by": self.name}
        labels = {"goog-gke-volume": ""} if name == "pvc-0" else {}
        disk = DiskRecord(
            place=f"zones/{self.zone}",
            name=name,
            id=len(self.fake.disks) + 900,
            wanted={"description": json.dumps(text) if name != "pvc-0" else ""},
            size=10,
            kind="pd-ssd",
            created="2026-01-01T00:00:00Z",
            status="READY",
            labels=labels,
        )
        with self.fake.locked_state() as project:
            project.disks[disk.place, disk.name] = disk
        return disk.path("test-project")

    def attach(self, handle: str) -> None:
        disk, machine = self._disk(handle), self.machines[0]
        with self.fake.locked_state():
            machine.disks[disk.name] = (handle, "READ_WRITE")
            disk.users[machine.zone, machine.name] = "READ_WRITE"

    def _disk(self, handle: str) -> DiskRecord:
        return next(each for each in self.fake.disks.values() if each.path("test-project") == handle)

    def attached_to(self, handle: str) -> list[str]:
        return [f"gce://test-project/{zone}/{name}" for zone, name in self._disk(handle).users]

    def delete(self, handle: str) -> None:
        disk = self._disk(handle)
        self.fake.remove_disk(disk.place, disk.name)

    def size(self, handle: str) -> int:
        return self._disk(handle).size

    def handles(self) -> set[str]:
        return {each.path("test-project") for each in self.fake.disks.values()}


class AnyCsiDriver:
    """A CSI driver with two nodes, and volumes as its sidecars make them."""

    name, pods = "fake.csi.example.com", {"app": "fake-controller"}
    page, on_page = "move-from-sidecars-to-volplane.md", ("hostpath.csi.k8s.io", "csi-hostpath-controller")
    flags: tuple[str, ...] = ()
    detach = "ControllerUnpublishVolume"

    def __init__(self) -> None:
        self.ids = ["id-of-node-0", "id-of-node-1"]
        self.fake = FakeDriver(CsiBehaviour(nodes=tuple(self.ids)), clock=now)

    def driver(self) -> CsiBackend:
        options = {"socket": "/csi/csi.sock", "controller_pods": "app=fake-controller"}
        return CsiBackend(options, connect_to=InCsi(self.fake))

    def make(self, name: str) -> str:
        self.fake.volumes[name] = FakeVolume(id=f"vol-of-{name}", name=name, size=4 * GIB, demand=b"")
        return f"vol-of-{name}"

    def attach(self, handle: str) -> None:
        self._volume(handle).published[self.ids[0]] = False

    def _volume(self, handle: str) -> FakeVolume:
        return next(each for each in self.fake.volumes.values() if each.id == handle)

    def attached_to(self, handle: str) -> list[str]:
        return list(self._volume(handle).published)

    def delete(self, handle: str) -> None:
        del self.fake.volumes[self._volume(handle).name]

    def size(self, handle: str) -> int:
        return self._volume(handle).size // GIB

    def handles(self) -> set[str]:
        return {each.id for each in self.fake.volumes.values()}


class Site:
    """A cluster that the official driver served until now, with a pod that writes."""

    def __init__(self, cluster: Any, cloud: Any) -> None:
        self.cluster, self.cloud, self.api = cluster, cloud, cluster.api
        self.attacher = "external-attacher/" + cloud.name.replace(".", "-")
        self.plans: list[list[Adoptable]] = []

    async def begin(self) -> None:
        """Two volumes of the official driver: that of a writing pod, and one that is not attached."""
        fields: Any = {"provisioner": self.cloud.name, "allowVolumeExpansion": True, "reclaimPolicy": "Delete"}
        self.api.create("storageclasses", {"metadata": {"name": "old"}, "volumeBindingMode": "Immediate", **fields})
        for number, id_ in enumerate(self.cloud.ids):
            keep = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
            keep |= {"csi.volume.kubernetes.io/nodeid": json.dumps({self.cloud.name: id_})}
            body: Any = {"metadata": {"name": f"node-{number}", "annotations": keep}, "spec": {"providerID": id_}}
            self.api.create("nodes", body)
        handles = [self.volume(f"pvc-{number}", f"data-{number}") for number in range(2)]
        await asyncio.sleep(5)
        self.cloud.attach(handles[0])
        await asyncio.sleep(5)
        self.write_from("writer", "node-0")
        digest = hashlib.sha256(f"{handles[0]}{self.cloud.name}node-0".encode()).hexdigest()
        attachment: Any = {
            "metadata": {
                "name": f"csi-{digest}",
                "finalizers": [self.attacher],
                "annotations": {"csi.alpha.kubernetes.io/node-id": "it-is-another-text"},
            },
            "spec": {
                "attacher": self.cloud.name,
                "nodeName": "node-0",
                "source": {"persistentVolumeName": "pvc-0"},
            },
        }
        self.api.create("volumeattachments", attachment)
        self.api.patch("volumeattachments", f"csi-{digest}", {"status": {"attached": True}}, "", subresource="status")
        self.scale_official(1)

    def volume(self, name: str, claim_name: str) -> str:
        handle: str = self.cloud.make(name)
        modes = ["ReadWriteOnce"]
        claim = self.api.create(
            "persistentvolumeclaims",
            {
                "metadata": {"name": claim_name, "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
                "spec": {
                    "accessModes": modes,
                    "storageClassName": "old",
                    "volumeName": name,
                    "resources": {"requests": {"storage": "4Gi"}},
                },
            },
            "default",
        )
        bound = {"status": {"phase": "Bound", "capacity": {"storage": "4Gi"}, "accessModes": modes}}
        self.api.patch("persistentvolumeclaims", claim_name, bound, subresource="status")
        reference = {"namespace": "default", "name": claim_name, "uid": claim["metadata"]["uid"]}
        attached = [self.attacher] if name == "pvc-0" else []
        self.api.create(
            "persistentvolumes",
            {
                "metadata": {
                    "name": name,
                    "annotations": {"pv.kubernetes.io/provisioned-by": self.cloud.name},
                    "finalizers": ["kubernetes.io/pv-protection", PROVISIONER, *attached],
                },
                "spec": {
                    "capacity": {"storage": "4Gi"},
                    "accessModes": modes,
                    "storageClassName": "old",
                    "persistentVolumeReclaimPolicy": "Delete",
                    "claimRef": {"kind": "PersistentVolumeClaim", **reference},
                    "csi": {"driver": self.cloud.name, "volumeHandle": handle, "fsType": "ext4"},
                },
            },
        )
        self.api.patch("persistentvolumes", name, {"status": {"phase": "Bound"}}, subresource="status")
        return handle

    def write_from(self, name: str, node: str) -> None:
        used = [{"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}}]
        pod = {
            "metadata": {"name": name},
            "spec": {"nodeName": node, "volumes": used, "containers": [{"name": "w", "image": "w"}]},
        }
        self.api.create("pods", pod, "default")
        self.api.patch("pods", name, {"status": {"phase": "Running"}}, "default", subresource="status")
        used_by_kubelet = [f"kubernetes.io/csi/{self.cloud.name}^{self.handle('pvc-0')}"]
        self.api.patch("nodes", node, {"status": {"volumesInUse": used_by_kubelet}}, subresource="status")

    def end(self, name: str, node: str) -> None:
        self.api.delete("pods", name, "default", grace_seconds=0)
        self.api.patch("nodes", node, {"status": {"volumesInUse": []}}, subresource="status")

    def scale_official(self, replicas: int) -> None:
        if not replicas:
            self.api.delete("pods", "controller-0", "kube-system", grace_seconds=0)
            return
        metadata = {"name": "controller-0", "labels": self.cloud.pods}
        self.api.create(
            "pods", {"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "c"}]}}, "kube-system"
        )
        self.api.patch("pods", "controller-0", {"status": {"phase": "Running"}}, "kube-system", subresource="status")

    # --- commands of the page -----------------------------------------------------------------------------------

    async def run(self, *commands: str) -> None:
        for command in commands:
            await self._run(command)

    async def _run(self, command: str) -> None:
        words = shlex.split(command)
        if words[:2] == ["volplane", "adopt"]:
            assert words[2:4] == ["--from", self.cloud.on_page[0]]
            given = [*words[4:], *self.cloud.flags]
            adoption = self.cluster.controllers.plane.adoption
            flags = {"back": "--back" in given, "stopped": "--stopped" in given}
            self.plans.append(await (adoption.start if "--yes" in given else adoption.plan)(self.cloud.name, **flags))
        elif self.cloud.on_page[1] in words:
            self.scale_official(int(words[-1].removeprefix("--replicas=")))
        elif words[-1] == "--replicas=1":
            await self.cluster.restart()
        else:
            assert words[-1] == "--replicas=0"
            await self.cluster.controllers.stop()
        await asyncio.sleep(30)
        self.writes()

    def writes(self) -> None:
        """The pod's disk is attached to the pod's machine, and was at all times."""
        node = int(self.api.all("pods", "default")[0]["spec"]["nodeName"].removeprefix("node-"))
        assert self.cloud.attached_to(self.handle("pvc-0")) == [self.cloud.ids[node]]

    def handle(self, volume: str) -> str:
        return str(self.api.get("persistentvolumes", volume)["spec"]["csi"]["volumeHandle"])

    def finalizers(self, volume: str) -> set[str]:
        return set(self.api.get("persistentvolumes", volume)["metadata"]["finalizers"])

    async def until(self, what: str, reached: Callable[[], Any]) -> None:
        await self.cluster.wait_for(reached, 600.0, what)


@asynccontextmanager
async def served(cloud: Any, *, stopped: bool = True) -> AsyncIterator[Site]:
    """A cluster that the official driver serves. stopped: else volplane runs from the start."""
    async with Cluster({cloud.name: cloud.driver}) as cluster:
        if stopped:
            await cluster.controllers.stop()
        site = Site(cluster, cloud)
        await site.begin()
        yield site


def blocks(page: str = "take-over-volumes.md") -> list[list[str]]:
    """The commands of each block of the page."""
    found = re.findall(r"```console\n(.*?)```", (PAGES / page).read_text("utf-8"), flags=re.DOTALL)
    return [[line.strip().removeprefix("$ ") for line in block.splitlines() if line.strip()] for block in found]


@pytest.mark.parametrize("cloud", [Ec2, ComputeEngine, AnyCsiDriver])
async def test_volumes_of_the_official_driver_are_taken_over_and_given_back_while_pods_write(cloud: Any) -> None:
    swap, look, take, back, leave = blocks(cloud.page)
    cloud = cloud()
    async with served(cloud) as site:
        cluster = site.cluster
        old = cloud.handles()
        await site.run(*swap, *look)
        assert {(each.volume, each.obstacle) for each in site.plans[-1]} == {("pvc-0", ""), ("pvc-1", "")}
        assert PROVISIONER in site.finalizers("pvc-1")  # Nothing was done.
        await site.run(*take)
        assert site.finalizers("pvc-0") == site.finalizers("pvc-1") == {"kubernetes.io/pv-protection", RECLAIM}
        assert cloud.fake.calls[cloud.detach] == 0
        # A volume grows, its pod moves, another one is deleted by its policy, and a new one is made.
        grown = {"spec": {"resources": {"requests": {"storage": "12Gi"}}}}
        site.api.patch("persistentvolumeclaims", "data-0", grown, "default")
        await site.until("it has grown", lambda: cloud.size(site.handle("pvc-0")) == 12)
        site.end("writer", "node-0")
        site.write_from("moved", "node-1")
        await site.until("it has moved", lambda: cloud.attached_to(site.handle("pvc-0")) == [cloud.ids[1]])
        site.api.delete("persistentvolumeclaims", "data-1", "default")
        made = await cluster.wait_bound(await cluster.create_claim("new", storage_class="old"))
        await cluster.advance(120)
        assert site.api.get("persistentvolumes", "pvc-1") is None
        assert cloud.handles() == {site.handle("pvc-0"), site.handle(made["metadata"]["name"])}
        assert len(old & cloud.handles()) == 1
        # Back: the finalizers say who reclaims, and volplane keeps away even while it runs.
        await site.run(*back)
        names = {"pvc-0", made["metadata"]["name"]}
        assert {(each.volume, each.obstacle) for each in site.plans[-1]} == {(name, "") for name in names}
        kept = {"kubernetes.io/pv-protection", PROVISIONER}
        assert site.finalizers("pvc-0") == {*kept, site.attacher}
        assert site.finalizers(made["metadata"]["name"]) == kept
        site.api.delete("persistentvolumeclaims", "new", "default")
        await cluster.advance(120)
        assert site.api.get("persistentvolumes", made["metadata"]["name"])["status"]["phase"] == "Released"
        assert len(cloud.handles()) == 2
        await site.run(*leave)
        # And once more: what was given back can be taken again, with what volplane had made.
        await site.run(*swap, *take)
        await cluster.advance(120)
        assert cloud.handles() == {site.handle("pvc-0")}
        assert cloud.fake.calls[cloud.detach] == 1  # When the pod moved.


async def test_nothing_is_taken_over_while_a_pod_of_the_official_controller_runs() -> None:
    cloud = Ec2()
    async with served(cloud, stopped=False) as site:
        cluster = site.cluster
        await cluster.advance(30)
        adoption = cluster.controllers.plane.adoption
        why = "the controller of ebs.csi.aws.com runs in pod kube-system/controller-0: stop it first"
        assert {each.obstacle for each in await adoption.start(cloud.name, stopped=True)} == {why}
        assert {each.obstacle for each in await adoption.start(cloud.name, back=True)} <= {why}
        cluster.fail("list", "pods", status=403, times=2)
        site.scale_official(0)
        await cluster.advance(5)
        (blind,) = {each.obstacle for each in await adoption.plan(cloud.name)}
        assert blind.startswith("whether the controller of ebs.csi.aws.com runs cannot be seen")
        assert blind.endswith("stop it, and say so by --stopped")
        assert {each.obstacle for each in await adoption.plan(cloud.name, stopped=True)} == {""}
        # Until then they are the other's: neither grown nor deleted.
        site.api.delete("persistentvolumeclaims", "data-1", "default")
        await cluster.advance(120)
        assert len(cloud.handles()) == 2
        assert PROVISIONER in site.finalizers("pvc-1")
        why = "the former controller of ebs.csi.aws.com holds the volume; `volplane adopt --from ebs.csi.aws.com` takes"
        assert any(text.startswith(why) for text in reasons_of(cluster.controllers.plane).values())


async def test_where_gke_hides_the_controller_a_person_must_say_that_it_is_stopped() -> None:
    cloud = ComputeEngine()
    async with served(cloud, stopped=False) as site:
        cluster = site.cluster
        site.scale_official(0)
        await cluster.advance(5)
        (why,) = {each.obstacle for each in await cluster.controllers.plane.adoption.plan(cloud.name)}
        assert why == (
            "the controller of pd.csi.storage.gke.io may run outside of the cluster, where GKE runs it; stop it, and "
            "say so by --stopped"
        )


async def test_an_adoption_that_is_asked_for_again_while_it_waits_is_finished() -> None:
    swap, *_ = blocks()
    cloud = ComputeEngine()
    async with served(cloud) as site:
        cluster = site.cluster
        await site.run(*swap)
        adoption = cluster.controllers.plane.adoption
        await adoption.start(cloud.name, stopped=True)
        await asyncio.sleep(0.5)  # Labels are being written.
        await adoption.start(cloud.name, stopped=True)
        await cluster.advance(60)
        assert {status.state for _, status in adoption.one_shots.listed()} == {"done"}
        assert await adoption.plan(cloud.name, stopped=True) == []


async def test_a_volume_that_is_deleted_between_the_writes_of_its_adoption_is_adopted_and_goes() -> None:
    swap, look, take, _, _ = blocks()
    cloud = Ec2()
    async with served(cloud) as site:
        cluster = site.cluster
        await site.run(*swap)
        # As if its policy had been printed without --former.
        denied: Any = {"kind": FaultKind.REFUSE, "code": "UnauthorizedOperation", "status": 403}
        cloud.fake.faults.add(Fault(action="CreateTags", times=2, **denied))
        await site.run(*take)
        assert site.finalizers("pvc-1") == {"kubernetes.io/pv-protection", RECLAIM}
        site.api.delete("persistentvolumeclaims", "data-1", "default")
        await site.until(
            "it goes", lambda: "deletionTimestamp" in site.api.get("persistentvolumes", "pvc-1")["metadata"]
        )
        await site.run(*look, *take)
        assert {(each.volume, each.obstacle) for each in site.plans[-1]} == {("pvc-0", ""), ("pvc-1", "")}
        await cluster.advance(900)
        assert site.api.get("persistentvolumes", "pvc-1") is None
        assert cloud.handles() == {site.handle("pvc-0")}


async def test_volumes_of_an_official_driver_that_wrote_no_finalizer_are_its_own_until_they_are_taken_over() -> None:
    swap, look, take, back, _ = blocks()
    cloud = Ec2()
    async with served(cloud) as site:
        cluster = site.cluster
        kept = ["kubernetes.io/pv-protection"]
        site.api.patch("persistentvolumes", "pvc-0", {"metadata": {"finalizers": [*kept, site.attacher]}}, "")
        site.api.patch("persistentvolumes", "pvc-0", {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}, "")
        site.api.patch("persistentvolumes", "pvc-1", {"metadata": {"finalizers": kept}}, "")
        await site.run(*swap, *back)
        assert site.plans[-1] == []
        assert site.finalizers("pvc-1") == set(kept)
        # What is to be deleted waits for the adoption, and then goes.
        site.api.delete("persistentvolumeclaims", "data-1", "default")
        await cluster.advance(120)
        assert len(cloud.handles()) == 2
        await site.run(*look, *take)
        assert {(each.volume, each.obstacle) for each in site.plans[-1]} == {("pvc-0", ""), ("pvc-1", "")}
        await cluster.advance(120)
        assert site.api.get("persistentvolumes", "pvc-1") is None
        assert cloud.handles() == {site.handle("pvc-0")}
        assert site.api.get("persistentvolumes", "pvc-0")["metadata"]["annotations"][HANDLE] == site.handle("pvc-0")
        # What was given back stays the official driver's, whatever its policy becomes.
        await site.run(*back)
        site.api.patch("persistentvolumes", "pvc-0", {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}, "")
        await cluster.advance(60)
        assert site.finalizers("pvc-0") == {*kept, site.attacher}
        assert HANDLE not in site.api.get("persistentvolumes", "pvc-0")["metadata"]["annotations"]


async def test_what_the_official_controller_has_put_its_finalizer_on_meanwhile_is_taken_over_once_more() -> None:
    swap, look, take, back, _ = blocks()
    cloud = Ec2()
    async with served(cloud) as site:
        cluster = site.cluster
        await site.run(*swap, *take)
        # Somebody has started it for a moment.
        held = ["kubernetes.io/pv-protection", RECLAIM, PROVISIONER]
        site.api.patch("persistentvolumes", "pvc-1", {"metadata": {"finalizers": held}}, "")
        site.api.delete("persistentvolumeclaims", "data-1", "default")
        await cluster.advance(120)
        assert len(cloud.handles()) == 2
        await site.run(*look, *take)
        assert [(each.volume, each.obstacle) for each in site.plans[-1]] == [("pvc-1", "")]
        await cluster.advance(120)
        assert site.api.get("persistentvolumes", "pvc-1") is None
        assert cloud.handles() == {site.handle("pvc-0")}
        # A return whose marks could not be written, and an adoption of that kind, can be gone on with either way.
        denied: Any = {"kind": FaultKind.REFUSE, "code": "UnauthorizedOperation", "status": 403}
        cloud.fake.faults.add(Fault(action="CreateTags", times=1, **denied))
        await site.run(back[-1])
        assert PROVISIONER in site.finalizers("pvc-0")
        await cluster.advance(60)
        await site.run(*take)
        assert [(each.volume, each.obstacle) for each in site.plans[-1]] == [("pvc-0", "")]
        assert site.finalizers("pvc-0") == {"kubernetes.io/pv-protection", RECLAIM}
        await site.run(back[-1])
        cloud.fake.faults.add(Fault(action="CreateTags", times=1, **denied))
        await site.run(*take)
        assert RECLAIM in site.finalizers("pvc-0")
        await cluster.advance(60)
        await site.run(back[-1])
        assert site.finalizers("pvc-0") == {"kubernetes.io/pv-protection", PROVISIONER, site.attacher}
        assert await cluster.controllers.plane.adoption.plan(cloud.name, back=True) == []
