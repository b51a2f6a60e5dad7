"""The volume manager of the embedded kubelet: what pods mount, share, wait for, and what is found after a restart."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from integration.hand_attached import DRIVER, HandAttached, unique
from integration.node_cluster import Cluster, now, state_of, why_no_sandbox
from volplane.errors import ApiError, ApiUnavailable
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, CSI_DRIVERS, NODES, VOLUMES
from volplane.kube.transport import Request, Response
from volplane_embedded.apiserver.certificates import make_certificate, server_context
from volplane_embedded.apiserver.http import serve
from volplane_embedded.apiserver.kubeconfig import write_kubeconfig
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_embedded.kubelet import kubelet, node_status, pod_workers, volume_manager
from volplane_embedded.kubelet.populator import Desired
from volplane_embedded.kubelet.volume_data import VolumeData, read_volume_data, write_volume_data
from volplane_embedded.objects import PODS, Pod

pytestmark = pytest.mark.real_time(seconds=240)

SLEEP = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


@pytest.fixture(scope="module", autouse=True)
def _namespaces(tmp_path_factory: pytest.TempPathFactory) -> None:
    if message := why_no_sandbox(tmp_path_factory.mktemp("probe")):
        pytest.skip(message)


def made(directory: Path) -> HandAttached:
    """A cluster whose nodes do not run yet."""
    server = ApiServer(now=now)
    disks = directory / "disks"
    return HandAttached(Cluster(server, Client(InProcessTransport(server)), directory, disks=disks), disks)


@asynccontextmanager
async def running(directory: Path, nodes: int = 1) -> AsyncIterator[HandAttached]:
    site = made(directory)
    async with site.cluster.nodes(nodes):
        yield site
    site.cluster.server.close()


async def until(reached: Callable[[], Awaitable[bool]], what: str = "it") -> None:
    async with asyncio.timeout(30):
        while not await reached():
            await asyncio.sleep(0.01)


async def uses(site: HandAttached, *disks: str, node: str = "node-1") -> None:
    """Wait until the node says that it uses these."""

    async def reached() -> bool:
        return await site.in_use(node) == sorted(disks)

    await until(reached)


async def holds(site: HandAttached, disk: str, *files: str) -> None:
    """Wait until pods have written these."""

    async def reached() -> bool:
        return sorted(path.name for path in site.contents(disk).iterdir()) == sorted(files)

    await until(reached)


# --- what pods have ---------------------------------------------------------------------------------------------------


async def test_a_volume_is_in_use_before_it_is_attached_and_until_the_last_pod_has_unmounted_it(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        await site.bound("data", "disk")
        for name in ("one", "two"):
            await site.run(name, f"echo {name} > /data/{name}; {SLEEP}", "data")
        await uses(site, "disk")
        await site.attach("disk")
        for name in ("one", "two"):
            await site.cluster.running(name)
        await holds(site, "disk", "one", "two")
        await site.client.delete(PODS, "default/one", grace_seconds=0)
        await site.cluster.gone("one")
        assert await site.in_use() == ["disk"]
        await site.client.delete(PODS, "default/two")
        await site.cluster.gone("two")
        await uses(site)
        assert read_volume_data(site.cluster.local.root) == []


async def test_a_volume_that_waits_holds_up_the_report_of_no_other(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        for disk in ("a", "b"):
            await site.bound(f"claim-{disk}", disk)
        volumes = [{"name": each, "persistentVolumeClaim": {"claimName": f"claim-{each}"}} for each in ("a", "b")]
        mounts = [{"name": each, "mountPath": f"/{each}"} for each in ("a", "b")]
        await site.cluster.run(
            "both", "ls /a /b", nodeName="node-1", volumes=volumes, container={"volumeMounts": mounts}
        )
        await uses(site, "a", "b")


async def test_a_volume_that_is_not_attached_in_time_is_said_with_all_that_the_pod_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_workers, "_MOUNT_SECONDS", 0.2)
    async with running(tmp_path) as site:
        await site.bound("data", "disk")
        await site.run("user", "true", "data")
        said = await site.cluster.event("user", "FailedMount")
        assert said.startswith(
            "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[data], "
            "failed to process volumes=[]: timed out waiting for the condition: volume disk is not attached"
        )


async def test_a_claim_that_cannot_be_used_is_said_at_once_beside_what_waits(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        await site.bound("data", "disk")
        volumes = [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "other", "persistentVolumeClaim": {"claimName": "missing"}},
        ]
        mounts = [{"name": each["name"], "mountPath": f"/{each['name']}"} for each in volumes]
        await site.cluster.run("user", "true", nodeName="node-1", volumes=volumes, container={"volumeMounts": mounts})
        assert await site.cluster.event("user", "FailedMount") == (
            "Unable to attach or mount volumes: unmounted volumes=[data other], unattached volumes=[data], "
            'failed to process volumes=[other]: persistentvolumeclaim "missing" not found'
        )


async def test_a_claim_that_stays_missing_is_looked_for_with_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_workers, "_MOUNT_SECONDS", 0.1)
    looked: list[str] = []
    populate = volume_manager.populate

    async def counted(client: Client, pod: Pod, *, ran: bool) -> Desired:
        looked.append(pod.name)
        return await populate(client, pod, ran=ran)

    monkeypatch.setattr(volume_manager, "populate", counted)
    async with running(tmp_path) as site:
        await site.run("user", "true", "missing")
        await site.cluster.event("user", "FailedMount")
        await asyncio.sleep(1.0)
        assert len(looked) < 15


@pytest.mark.parametrize("period", [10, None])
async def test_a_full_node_rejects_the_pod_where_the_driver_says_that_limits_change(
    tmp_path: Path, period: int | None
) -> None:
    async with running(tmp_path) as site:
        spec = {"attachRequired": True, "nodeAllocatableUpdatePeriodSeconds": period}
        await site.client.create(CSI_DRIVERS, CSI_DRIVERS.body(metadata={"name": DRIVER}, spec=spec))
        await site.bound("data", "disk")
        await site.refuse("disk", 8, "the node has 25 volumes")
        await site.run("user", "true", "data")
        if period is None:
            await uses(site, "disk")
            assert site.cluster.get("/api/v1/namespaces/default/pods/user")["status"]["phase"] == "Pending"
            return
        status = (await site.cluster.ended("user"))["status"]
        assert (status["phase"], status["reason"]) == ("Failed", "VolumeAttachmentLimitExceeded")
        await uses(site)


async def test_a_device_of_a_disk_is_written_read_and_grows(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        await site.bound("raw", "disk", volumeMode="Block")
        await site.attach("disk")
        await site.run("user", f"printf kept | dd of=/dev/data conv=notrunc; {SLEEP}", "raw", block=True)
        await site.cluster.running("user")
        device = site.contents("disk").with_name(f"{site.contents('disk').name}.device")
        assert device.stat().st_size == 2**20

        async def written() -> bool:
            return device.read_bytes()[:4] == b"kept"

        await until(written)
        await site.client.patch(VOLUMES, "disk", {"spec": {"capacity": {"storage": "2Mi"}}})
        pending = {"allocatedResourceStatuses": {"storage": "NodeResizePending"}}
        await site.client.patch(CLAIMS, "default/raw", {"status": pending}, subresource="status")

        async def grown() -> bool:
            return (await site.client.get(CLAIMS, "default/raw")).status.capacity == {"storage": "2Mi"}

        await until(grown)
        assert device.stat().st_size == 2 * 2**20
        assert device.read_bytes()[:4] == b"kept"

        async def grown_by_itself() -> bool:
            return device.stat().st_size == 3 * 2**20

        await site.client.patch(VOLUMES, "disk", {"spec": {"capacity": {"storage": "3Mi"}}})
        await until(grown_by_itself)
        assert list(site.contents("disk").iterdir()) == []
        site.delete_disk("disk")
        assert not device.exists()


class GrownMeanwhile(InProcessTransport):
    """The claim `raw` is declared to have grown while the kubelet mounts it, and its first write about that is lost."""

    server: ApiServer
    lost = 0
    declared = False

    async def send(self, request: Request) -> Response:
        claim = "/api/v1/namespaces/default/persistentvolumeclaims/data/status"
        if request.method == "PATCH" and request.path == claim and self.declared and not self.lost:
            self.lost += 1
            raise ApiUnavailable("the server is busy", status=0)
        answer = await super().send(request)
        read = request.method == "GET" and "/volumeattachments/" in request.path and answer.status == 200
        if read and not self.declared and json.loads(answer.body)["status"].get("attached"):
            self.declared = True
            status = {"status": {"allocatedResourceStatuses": {"storage": "NodeResizePending"}}}
            headers = {"content-type": "application/merge-patch+json"}
            self.server.handle("PATCH", claim, {}, headers, json.dumps(status).encode())
        return answer


async def test_a_growth_that_is_declared_while_the_volume_is_being_mounted_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet, "_RETRY_SECONDS", 0.05)
    server, disks = ApiServer(now=now), tmp_path / "disks"
    transport = GrownMeanwhile(server)
    transport.server = server
    site = HandAttached(Cluster(server, Client(transport), tmp_path, disks=disks), disks)
    async with site.cluster.nodes(1):
        await site.bound("data", "disk")
        await site.run("user", SLEEP, "data")
        await site.attach("disk")
        await site.cluster.running("user")

        async def grown() -> bool:
            claim = await site.client.get(CLAIMS, "default/data")
            return transport.declared and not claim.status.allocated_resource_statuses

        await until(grown)
    server.close()
    assert transport.lost == 1


async def test_a_disk_that_several_nodes_share_is_in_use_on_each(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=2) as site:
        await site.bound("shared", "disk", modes=("ReadWriteMany",))
        for number in (1, 2):
            await site.attach("disk", f"node-{number}")
            await site.run(f"p{number}", f"touch /data/{number}; {SLEEP}", "shared", nodeName=f"node-{number}")
            await site.cluster.running(f"p{number}")
        await holds(site, "disk", "1", "2")
        await site.client.delete(PODS, "default/p1", grace_seconds=0)
        await site.cluster.gone("p1")
        await uses(site, node="node-1")
        assert await site.in_use("node-2") == ["disk"]


async def test_a_disk_is_read_only_whoever_says_so(tmp_path: Path) -> None:
    ways: dict[str, dict[str, Any]] = {"claim": {"read_only": True}, "mount": {"mount": {"readOnly": True}}, "disk": {}}
    async with running(tmp_path) as site:
        for name, how in ways.items():
            await site.bound(name, f"disk-{name}", csi={"readOnly": name == "disk"})
            await site.attach(f"disk-{name}")
            await site.run(name, "! touch /data/file", name, **how)
        for name in ways:
            assert (await site.cluster.ended(name))["status"]["phase"] == "Succeeded"
            assert list(site.contents(f"disk-{name}").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="another user has one group only")
async def test_the_group_of_a_volume_and_that_of_the_pod_reach_its_files(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        await site.bound("owned", "disk", annotations={"pv.beta.kubernetes.io/gid": "4321"})
        await site.bound("grouped", "other")
        for disk in ("disk", "other"):
            await site.attach(disk)
        user = {"runAsUser": 1000, "runAsGroup": 1000}
        await site.run("annotated", "id -G | grep -qw 4321", "owned", securityContext=user)
        script = "id -G | grep -qw 77 && touch /data/file"
        await site.run("with-group", script, "grouped", securityContext={**user, "fsGroup": 77})
        for name in ("annotated", "with-group"):
            found = await site.cluster.ended(name)
            assert found["status"]["phase"] == "Succeeded", await site.cluster.log(name)
        assert (site.contents("other") / "file").stat().st_gid == 77


async def test_a_sub_path_of_a_tenant_leads_nowhere_else(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        await site.bound("data", "disk")
        await site.attach("disk")
        (site.contents("disk") / "link").symlink_to("/")
        for path in ("deep/../../../../..", "/etc"):
            with pytest.raises(ApiError, match="subPath"):
                await site.run("refused", "true", "data", mount={"subPath": path})
        for name, path in (("over-a-link", "link/etc"), ("a-link", "link")):
            await site.run(name, "touch /data/here", "data", mount={"subPath": path})
            found = await site.cluster.until(name, lambda it: "is not followed" in str(state_of(it).get("waiting")))
            assert "sub path" in state_of(found)["waiting"]["message"]
        expanded = {"subPathExpr": "$(UP)/etc"}
        await site.run("expanded", "touch /data/here", "data", mount=expanded, env=[{"name": "UP", "value": ".."}])
        await site.cluster.until("expanded", lambda it: "without '..'" in str(state_of(it).get("waiting")))
        assert sorted(each.name for each in site.contents("disk").iterdir()) == ["link"]


# --- after a restart --------------------------------------------------------------------------------------------------


def remember(site: HandAttached, pod_uid: str, disk: str) -> None:
    """A former process had the disk mounted for the pod."""
    root = site.cluster.state / "pods"
    data = VolumeData(
        pod_uid=pod_uid,
        node_name="node-1",
        spec_volume_id=disk,
        driver_name=DRIVER,
        volume_handle=disk,
        attachment_id="csi-x",
        claim_uid=f"claim-of-{disk}",
        unique_name=unique(disk),
    )
    write_volume_data(root / pod_uid / "volumes", data)


async def lists_of_node(site: HandAttached, seen: list[list[str]]) -> None:
    version = (await site.client.list(NODES)).version
    async with site.client.watch(NODES, version=version) as changes:
        async for change in changes:
            named = getattr(change, "object", None)
            found = (named.status.volumes_in_use or []) if named is not None and named.name == "node-1" else None
            if found is not None:
                seen.append([name.rpartition("^")[2] for name in found])


async def test_what_a_killed_kubelet_left_stays_in_use_until_it_is_unmounted(tmp_path: Path) -> None:
    """A pod that is gone, one that is still there, and one of which only the node's list knows."""
    site = made(tmp_path)
    async with site.cluster.nodes():
        await site.bound("kept", "mounted")
        await site.attach("mounted")
        await site.run("stays", SLEEP, "kept", restartPolicy="Always")
        await site.cluster.running("stays")
    remember(site, "uid-of-nobody", "left-behind")
    said = [unique(each) for each in ("left-behind", "mounted", "never-mounted")]
    await site.client.patch(NODES, "node-1", {"status": {"volumesInUse": said}}, subresource="status")
    seen: list[list[str]] = []
    watching = asyncio.create_task(lists_of_node(site, seen))
    async with site.cluster.nodes():
        await uses(site, "mounted")
        await site.cluster.until("stays", lambda it: it["status"]["containerStatuses"][0]["restartCount"] == 1)
        await site.cluster.running("stays")
        assert [data.pod_uid != "uid-of-nobody" for data in read_volume_data(site.cluster.local.root)] == [True]
    watching.cancel()
    assert all("mounted" in each for each in seen), seen
    held = [each for each in seen if "left-behind" in each]
    assert held, "it was in use until its directory was gone"
    site.cluster.server.close()


async def test_a_pod_that_was_finished_when_the_kubelet_died_is_unmounted(tmp_path: Path) -> None:
    site = made(tmp_path)
    async with site.cluster.nodes():
        await site.bound("data", "disk")
        await site.attach("disk")
        await site.run("over", "true", "data")
        uid = (await site.cluster.ended("over"))["metadata"]["uid"]
        await uses(site)
    remember(site, uid, "disk")
    async with site.cluster.nodes():

        async def clean() -> bool:
            return not read_volume_data(site.cluster.local.root) and not await site.in_use()

        await until(clean)
    site.cluster.server.close()


async def test_a_node_that_is_made_anew_is_told_again_what_it_uses(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        await site.bound("data", "disk")
        await site.attach("disk")
        await site.run("user", SLEEP, "data")
        await site.cluster.running("user")
        await site.client.patch(NODES, "node-1", {"status": {"volumesInUse": None}}, subresource="status")
        await uses(site, "disk")


async def test_a_node_that_is_made_anew_reports_what_its_pods_use_after_its_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_status, "_RENEW_SECONDS", 0.05)
    async with running(tmp_path) as site:
        await site.bound("data", "disk")
        await site.attach("disk")
        await site.run("user", SLEEP, "data")
        await site.cluster.running("user")
        version = (await site.client.list(NODES)).version
        await site.client.delete(NODES, "node-1")
        async with asyncio.timeout(30), site.client.watch(NODES, version=version) as changes:
            async for change in changes:
                if change.type == "ADDED":
                    assert not change.object.status.volumes_in_use, "as by a kubelet that has just been started"
                if change.type == "MODIFIED" and change.object.status.volumes_in_use == [unique("disk")]:
                    break


AGENT = """
import asyncio, sys
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from volplane.kube.client import Client
from volplane.kube.http.transport import HttpTransport
from volplane_embedded.local_nodes import LocalNodes

async def main(directory):
    client = Client(await HttpTransport.connect(directory / "kubeconfig"))
    nodes = LocalNodes(
        client,
        state_dir=directory / "state",
        now=lambda: datetime.now(UTC),
        random=Random(1),
        disks=directory / "disks",
    )
    await nodes.run()

asyncio.run(main(Path(sys.argv[1])))
"""


async def killed_after(site: HandAttached, directory: Path, reached: Callable[[], Awaitable[object]]) -> None:
    """Run the node as a process of its own, and kill it when something is so."""
    agent = await asyncio.create_subprocess_exec(sys.executable, "-c", AGENT, str(directory), stderr=subprocess.DEVNULL)
    try:
        await reached()
    finally:
        agent.kill()
        await agent.wait()


async def test_a_kubelet_that_is_killed_leaves_nothing_mounted_and_nothing_unsaid(tmp_path: Path) -> None:
    site = made(tmp_path)
    certificate = make_certificate(["127.0.0.1"], datetime.now(UTC))
    listener = await serve(site.cluster.server, port=0, token="t", tls=server_context(certificate, tmp_path))
    write_kubeconfig(tmp_path / "kubeconfig", listener.url, "t", certificate.certificate)
    await site.bound("data", "disk")

    async def reported() -> None:
        async def node() -> bool:
            return bool((await site.client.list(NODES)).items)

        await until(node)
        await site.run("user", f"echo x > /data/new; mv /data/new /data/file; {SLEEP}", "data", restartPolicy="Always")
        await uses(site, "disk")

    async def runs() -> None:
        await site.attach("disk")
        await site.cluster.running("user")
        await holds(site, "disk", "file")

    async def terminates() -> None:
        await site.client.delete(PODS, "default/user")

    for moment in (reported, runs, terminates):
        await killed_after(site, tmp_path, moment)
        assert await site.in_use() == ["disk"]
    assert (site.contents("disk") / "file").read_text() == "x\n"
    async with site.cluster.nodes():
        await site.cluster.gone("user")
        await uses(site)
        assert read_volume_data(site.cluster.local.root) == []
    await listener.close()
    site.cluster.server.close()
