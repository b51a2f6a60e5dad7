"""Pods and their volumes, agents that die, and what a pod may not see or have."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from integration.node_bodies import in_cluster, no_files_left
from integration.node_cluster import SECONDS, Cluster, host_path, now, state_of, why_no_sandbox
from volplane.errors import ApiError
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, STORAGE_CLASSES, VOLUMES
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_embedded.objects import PODS


@pytest.fixture(scope="module", autouse=True)
def _namespaces(tmp_path_factory: pytest.TempPathFactory) -> None:
    if message := why_no_sandbox(tmp_path_factory.mktemp("probe")):
        pytest.skip(message)


def volume_body(name: str, path: Path, node: str, **spec: Any) -> dict[str, Any]:
    need = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return VOLUMES.body(
        metadata={"name": name},
        spec={
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [need]}]}},
            **spec,
        },
    )


def claim_body(name: str, **spec: Any) -> dict[str, Any]:
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    return CLAIMS.body(metadata={"name": name, "namespace": "default"}, spec=asked)


async def bind(cluster: Cluster, claim: str, volume: str) -> None:
    """What a binder does once the scheduler has chosen."""
    uid = (await cluster.client.get(CLAIMS, f"default/{claim}")).uid
    reference = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": claim, "uid": uid}
    await cluster.client.patch(VOLUMES, volume, {"spec": {"claimRef": reference}})
    annotations = {"pv.kubernetes.io/bind-completed": "yes"}
    await cluster.client.patch(
        CLAIMS, f"default/{claim}", {"metadata": {"annotations": annotations}, "spec": {"volumeName": volume}}
    )
    await cluster.client.patch(CLAIMS, f"default/{claim}", {"status": {"phase": "Bound"}}, subresource="status")


@pytest.mark.real_time
async def test_a_pod_follows_its_local_volume_to_the_node_and_writes_into_it(tmp_path: Path) -> None:
    directory = tmp_path / "disk"
    directory.mkdir()

    async with in_cluster(tmp_path, nodes=2) as cluster:
        await cluster.client.create(VOLUMES, volume_body("disk", directory, "node-2"))
        fields = {
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "container": {"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
        }
        await cluster.run("user", "echo kept > /data/file", **fields)
        assert 'persistentvolumeclaim "data" not found' in await cluster.event("user", "FailedScheduling")
        await cluster.client.create(CLAIMS, claim_body("data", storageClassName=""))
        unbound = "pod has unbound immediate PersistentVolumeClaims"
        await cluster.until("user", lambda it: unbound in it["status"]["conditions"][0].get("message", ""))
        await bind(cluster, "data", "disk")
        found = await cluster.ended("user")
        assert found["status"]["phase"] == "Succeeded"
        assert found["spec"]["nodeName"] == "node-2"
        assert (directory / "file").read_text() == "kept\n"
        await cluster.client.delete(CLAIMS, "default/data")
        await cluster.run("too-late", "ls /data", **fields)
        assert "is being deleted" in await cluster.event("too-late", "FailedScheduling")
        await cluster.run("bold", "ls /data", nodeName="node-2", **fields)
        assert "PVC is being deleted" in await cluster.event("bold", "FailedMount")


@pytest.mark.real_time
async def test_the_scheduler_names_the_node_on_a_claim_that_waits_for_it(tmp_path: Path) -> None:
    directory = tmp_path / "disk"
    directory.mkdir()
    node = "volume.kubernetes.io/selected-node"

    async with in_cluster(tmp_path, nodes=2) as cluster:
        body = {"metadata": {"name": "late"}, "provisioner": "hostpath.volplane.dev"}
        await cluster.client.create(
            STORAGE_CLASSES, STORAGE_CLASSES.body(**body, volumeBindingMode="WaitForFirstConsumer")
        )
        await cluster.client.create(CLAIMS, claim_body("data", storageClassName="late"))
        fields = {
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "container": {"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
            "nodeSelector": {"topology.kubernetes.io/zone": "dev-b"},
        }
        await cluster.run("user", "touch /data/file", **fields)
        async with asyncio.timeout(SECONDS):
            while (await cluster.client.get(CLAIMS, "default/data")).annotation(node) != "node-2":
                await asyncio.sleep(0.01)
        await cluster.client.create(VOLUMES, volume_body("made", directory, "node-2", storageClassName="late"))
        await bind(cluster, "data", "made")
        assert (await cluster.ended("user"))["status"]["phase"] == "Succeeded"
    assert (directory / "file").exists()


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


async def written(path: Path, lines: int) -> None:
    """A container runs before its shell has done anything: wait until it has written so many lines."""
    async with asyncio.timeout(SECONDS):
        while lines_of(path) < lines:
            await asyncio.sleep(0.01)


@pytest.mark.real_time
async def test_after_a_restart_nothing_runs_twice_that_may_run_once(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()

    async def scenario(cluster: Cluster) -> None:
        async with cluster.nodes():
            fields = host_path(volume, "/data")
            await cluster.run("once", "echo x >> /data/once; sleep 60", **fields)
            await cluster.run("always", "echo x >> /data/always; sleep 60", restartPolicy="Always", **fields)
            await cluster.run("finished", "echo done", **fields)
            await cluster.running("once")
            await cluster.running("always")
            await cluster.ended("finished")
            await written(volume / "once", 1)
            await written(volume / "always", 1)
        assert _commands_with(str(cluster.state)) == []
        async with cluster.nodes():
            status = (await cluster.ended("once"))["status"]
            assert state_of({"status": status})["terminated"]["exitCode"] == 137
            await cluster.until("always", lambda it: it["status"]["containerStatuses"][0]["restartCount"] == 1)
            await cluster.running("always")
            await written(volume / "always", 2)
            assert await cluster.log("finished") == "done\n"
            await cluster.client.delete(PODS, "default/finished")
            await cluster.client.delete(PODS, "default/always", grace_seconds=0)
            await cluster.client.delete(PODS, "default/once")
            await no_files_left(cluster)
        assert len((volume / "always").read_text().split()) == 2
        assert (volume / "once").read_text() == "x\n"

    server = ApiServer(now=now)
    await scenario(Cluster(server, Client(InProcessTransport(server)), tmp_path))
    server.close()


KILLED_AGENT = """
import asyncio, sys
from pathlib import Path
from volplane_embedded.kubelet.sandboxes import Sandboxes
from volplane_embedded.sandbox.spec import Spec

async def main(directory):
    async with Sandboxes() as sandboxes:
        (directory / "root").mkdir()
        sandbox = await sandboxes.launch(Spec(
            argv=["/bin/sh", "-c", "sleep 60 & sleep 60"], env={"PATH": "/usr/bin:/bin"}, base=str(directory / "root"),
            log=str(directory / "log"), result=str(directory / "result"),
        ))
        async for report in sandbox.reports():
            print(report.pid, flush=True)

asyncio.run(main(Path(sys.argv[1])))
"""


def test_containers_die_with_an_agent_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_AGENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        pid = agent.stdout.readline().strip()
        assert Path("/proc", pid).exists()
        agent.kill()
    give_up = time.monotonic() + SECONDS
    while Path("/proc", pid).exists() and time.monotonic() < give_up:
        time.sleep(0.01)
    assert not Path("/proc", pid).exists()
    result = tmp_path / "result"
    while b'"code":137' not in result.read_bytes() and time.monotonic() < give_up:
        time.sleep(0.01)  # what watched the container outlives it by a moment
    assert b'"code":137' in result.read_bytes()


NO_NAMESPACES = """
import asyncio, sys
from pathlib import Path
from integration.node_cluster import SECONDS, Cluster, now
from volplane_embedded.apiserver.server import ApiServer
from volplane.kube.client import Client
from volplane_embedded.inprocess import InProcessTransport

async def main():
    server = ApiServer(now=now)
    cluster = Cluster(server, Client(InProcessTransport(server)), Path(sys.argv[1]))
    async with cluster.nodes():
        await cluster.run("bare", "touch /tmp/never")
        status = (await cluster.ended("bare"))["status"]
        print(status["phase"], status["reason"], status["message"])

asyncio.run(main())
"""


def test_where_no_namespaces_can_be_had_pods_fail_and_say_so(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare(1) is not installed")
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    python = [sys.executable, "-c", NO_NAMESPACES, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])}
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh", *python]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.stdout.startswith("Failed SandboxUnavailable no sandbox can be had on this machine"), done.stderr
    assert "user.max_user_namespaces is 0" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.real_time
async def test_a_pod_does_not_see_the_agents_files_or_the_hosts_sockets(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as cluster:
        state = cluster.state
        script = f"ls -A {state} /run /tmp | grep -v ':$' | grep .; ls /dev/sd* /dev/mem; cat /proc/self/comm"
        await cluster.run("curious", script)
        assert (await cluster.ended("curious"))["status"]["phase"] == "Succeeded"
        lines = (await cluster.log("curious")).splitlines()
        assert [line for line in lines if not line.startswith("ls: cannot access")] == ["cat"]


def _commands_with(text: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if path.parent.name != str(os.getpid()) and text in path.read_text(errors="replace"):
                found.append(path.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.real_time
async def test_many_pods_at_once_all_run(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()

    async with in_cluster(tmp_path, nodes=2) as cluster:
        for number in range(40):
            await cluster.run(f"pod-{number}", f"echo {number} > /data/{number}", **host_path(volume, "/data"))
        for number in range(40):
            assert (await cluster.ended(f"pod-{number}"))["status"]["phase"] == "Succeeded"
        nodes = {item["spec"]["nodeName"] for item in cluster.get("/api/v1/namespaces/default/pods")["items"]}
        assert nodes == {"node-1", "node-2"}
    assert len(list(volume.iterdir())) == 40


@pytest.mark.real_time
async def test_what_cannot_be_given_is_refused(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as cluster:
        await cluster.run("privileged", "true", container={"securityContext": {"privileged": True}})
        admin = {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}
        await cluster.run("admin", "true", container=admin)
        for name in ("privileged", "admin"):
            assert (await cluster.ended(name))["status"]["reason"] == "Unsupported"


@pytest.mark.real_time
async def test_logs_of_a_pod_that_waits_say_so(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as cluster:
        await cluster.run("waits", "true", nodeSelector={"no": "such-node"})
        assert "waiting to start" in await cluster.log("waits")
        assert "didn't match Pod's node affinity/selector" in await cluster.event("waits", "FailedScheduling")
        with pytest.raises(ApiError):
            await cluster.client.raw("/api/v1/namespaces/default/pods/nobody/log")
