"""kubectl as people use it, against the server on a real socket, with validation on."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from volplane_embedded.apiserver.certificates import make_certificate, server_context
from volplane_embedded.apiserver.custom_kinds import definitions
from volplane_embedded.apiserver.http import serve
from volplane_embedded.apiserver.kubeconfig import write_kubeconfig
from volplane_embedded.apiserver.requests import Query
from volplane_embedded.apiserver.server import ApiServer

KUBECTL = shutil.which("kubectl")
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")

VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv-a, labels: {tier: gold}}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  hostPath: {path: /srv/a}
  persistentVolumeReclaimPolicy: Retain
"""
CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: c-a}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  resources: {requests: {storage: 1Gi}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p-a}
spec:
  nodeName: n1
  containers: [{name: c, image: busybox, command: ["true"]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: c-a}}]
"""


KIND = "volumesnapshot"
SNAPSHOT = """
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: s}
spec:
  source: {persistentVolumeClaimName: c-a}
"""


class Kubectl:
    """Runs kubectl with a kubeconfig and a cache of its own."""

    def __init__(self, server: ApiServer, directory: Path) -> None:
        self.server = server
        self._directory = directory
        self._environment = {
            "HOME": str(directory),
            "KUBECONFIG": str(directory / "config"),
            "PATH": os.environ["PATH"],
            "KUBE_EDITOR": "sed -i s/Retain/Delete/",
        }

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        assert KUBECTL is not None
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            KUBECTL, *arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=self._environment, cwd=self._directory
        )

    async def finish(self, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        process = await self.start(*arguments)
        out, err = await asyncio.wait_for(process.communicate(stdin.encode()), 120)
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def __call__(self, *arguments: str, stdin: str = "") -> str:
        code, out, err = await self.finish(*arguments, stdin=stdin)
        assert code == 0, f"kubectl {' '.join(arguments)}: {err}"
        return out

    async def refused(self, *arguments: str, stdin: str = "") -> str:
        code, _, err = await self.finish(*arguments, stdin=stdin)
        assert code != 0
        return err

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self(*arguments, "-o", "json"))


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    """kubectl beside a fresh server."""

    def now() -> datetime:
        return datetime.now(UTC)

    server = ApiServer(now=now, random=random.Random(1))
    certificate = make_certificate(["127.0.0.1"], now())
    listener = await serve(server, port=0, token="secret", tls=server_context(certificate, tmp_path))
    write_kubeconfig(tmp_path / "config", listener.url, "secret", certificate.certificate)
    try:
        yield Kubectl(server, tmp_path)
    finally:
        await listener.close()


@pytest.mark.real_time(seconds=240)
async def test_apply_twice_changed_and_refused(kubectl: Kubectl) -> None:
    assert await kubectl("apply", "-f", "-", stdin=f"{VOLUME}---{CLAIM}") == (
        "persistentvolume/pv-a created\npersistentvolumeclaim/c-a created\n"
    )
    assert await kubectl("apply", "-f", "-", stdin=VOLUME) == "persistentvolume/pv-a unchanged\n"
    changed = VOLUME.replace("Retain", "Delete").replace("tier: gold", "other: x")
    assert await kubectl("apply", "-f", "-", stdin=changed) == "persistentvolume/pv-a configured\n"
    volume = await kubectl.json("get", "pv", "pv-a")
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
    assert volume["metadata"]["labels"] == {"other": "x"}
    assert 'unknown field "spec.bogus"' in await kubectl.refused("apply", "-f", "-", stdin=VOLUME + "  bogus: 1\n")
    assert "is immutable" in await kubectl.refused("apply", "-f", "-", stdin=changed.replace("/srv/a", "/srv/b"))
    assert "No such" not in await kubectl("diff", "-f", "-", stdin=changed)


@pytest.mark.real_time(seconds=240)
async def test_a_list_is_validated_and_applied(kubectl: Kubectl) -> None:
    """kubectl validates it itself, by version 2 of the OpenAPI document in protocol buffers."""
    for object_ in (VOLUME, CLAIM):
        await kubectl("create", "-f", "-", stdin=object_)
    saved = await kubectl("get", "pv,pvc", "-o", "json")
    assert await kubectl("apply", "-f", "-", stdin=saved.replace("Retain", "Delete"))
    volume = await kubectl.json("get", "pv", "pv-a")
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
    wrong = saved.replace('"persistentVolumeReclaimPolicy"', '"persistentVolumeReclaimPolice"')
    assert 'unknown field "persistentVolumeReclaimPolice"' in await kubectl.refused("apply", "-f", "-", stdin=wrong)


@pytest.mark.real_time(seconds=240)
async def test_snapshots_are_applied_shown_and_end_with_their_definition(kubectl: Kubectl) -> None:
    assert await kubectl("apply", "-f", "-", stdin=SNAPSHOT) == "volumesnapshot.snapshot.storage.k8s.io/s created\n"
    changed = f"{SNAPSHOT}  volumeSnapshotClassName: k\n"
    assert await kubectl("apply", "-f", "-", stdin=changed) == "volumesnapshot.snapshot.storage.k8s.io/s configured\n"
    refused = await kubectl.refused("apply", "-f", "-", stdin=changed.replace("c-a", "c-b"))
    assert "persistentVolumeClaimName is immutable" in refused
    status = '{"status": {"readyToUse": true, "restoreSize": "1Gi"}}'
    await kubectl("patch", "vs", "s", "--subresource=status", "--type=merge", "-p", status)
    assert (await kubectl("get", "vs", "--no-headers")).split()[:5] == ["s", "true", "c-a", "1Gi", "k"]
    assert "persistentVolumeClaimName" in await kubectl("explain", "vs.spec.source")
    (definition,) = (
        each for each in definitions("snapshot.storage.k8s.io") if each["spec"]["names"]["singular"] == KIND
    )
    saved = json.dumps(definition)
    assert "configured" in await kubectl("apply", "-f", "-", stdin=saved)
    assert "deleted" in await kubectl("delete", "crd", definition["metadata"]["name"])
    assert "could not find the requested resource" in await kubectl.refused("get", "vs")
    assert "created" in await kubectl("create", "-f", "-", stdin=saved)
    await kubectl("wait", "--for=condition=Established", f"crd/{definition['metadata']['name']}", "--timeout=100s")
    assert await kubectl("get", "vs") == ""


@pytest.mark.real_time(seconds=240)
async def test_create_refuses_what_is_there_and_what_is_wrong(kubectl: Kubectl) -> None:
    assert await kubectl("create", "-f", "-", stdin=VOLUME) == "persistentvolume/pv-a created\n"
    assert "already exists" in await kubectl.refused("create", "-f", "-", stdin=VOLUME)
    assert 'unknown field "spec.bogus"' in await kubectl.refused("create", "-f", "-", stdin=CLAIM + "  bogus: 1\n")
    nameless = CLAIM.replace("{name: c-a}", "{generateName: c-}")
    assert (await kubectl("create", "-f", "-", stdin=nameless)).startswith("persistentvolumeclaim/c-")
    assert "(server dry run)" in await kubectl("create", "--dry-run=server", "-f", "-", stdin=CLAIM)
    assert "not found" in await kubectl.refused("get", "pvc", "c-a")
    await kubectl("create", "namespace", "team")
    await kubectl("-n", "team", "create", "configmap", "m", "--from-literal=k=v")
    await kubectl("-n", "team", "create", "secret", "generic", "s", "--from-literal=k=v")
    await kubectl("-n", "team", "create", "serviceaccount", "a")
    assert (await kubectl.json("-n", "team", "get", "configmap", "m"))["data"] == {"k": "v"}
    secret = await kubectl.json("-n", "team", "get", "secret", "s")
    assert (secret["data"], secret["type"]) == ({"k": "dg=="}, "Opaque")
    await kubectl("-n", "team", "create", "deployment", "d", "--image=busybox", "--replicas=2", "--", "sleep", "1d")
    spec = (await kubectl.json("-n", "team", "get", "deployment", "d"))["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert (spec["replicas"], spec["selector"]["matchLabels"]) == (2, {"app": "d"})
    assert (container["image"], container["command"]) == ("busybox", ["sleep", "1d"])
    assert await kubectl("auth", "can-i", "delete", "persistentvolumes") == "yes\n"
    await kubectl("delete", "namespace", "team")
    assert "not found" in await kubectl.refused("get", "namespace", "team")


@pytest.mark.real_time(seconds=240)
async def test_quotas_are_made_shown_and_obeyed(kubectl: Kubectl) -> None:
    hard = "requests.storage=1Gi,persistentvolumeclaims=2"
    assert await kubectl("create", "quota", "q", f"--hard={hard}") == "resourcequota/q created\n"
    code, _, err = await kubectl.finish("create", "quota", "other", "--hard=pods=1")
    assert (code, "Warning: spec.hard: pods not enforced" in err) == (0, True)
    assert "must be a standard resource for quota" in await kubectl.refused("create", "quota", "x", "--hard=storage=1")
    limits = {"requests.storage": "1Gi", "persistentvolumeclaims": "2"}
    status = json.dumps({"status": {"hard": limits, "used": dict.fromkeys(limits, "0")}})
    await kubectl("patch", "quota", "q", "--subresource=status", "--type=merge", "-p", status)
    await kubectl("apply", "-f", "-", stdin=CLAIM)
    shown = await kubectl("get", "quota", "q", "--no-headers")
    assert "persistentvolumeclaims: 1/2, requests.storage: 1Gi/1Gi" in shown
    described = [line.split() for line in (await kubectl("describe", "resourcequota", "q")).splitlines()]
    assert ["requests.storage", "1Gi", "1Gi"] in described
    refused = await kubectl.refused("apply", "-f", "-", stdin=CLAIM.replace("c-a", "c-b"))
    assert (
        "exceeded quota: q, requested: requests.storage=1Gi, used: requests.storage=1Gi, limited: requests" in refused
    )
    assert "matchExpressions" in await kubectl("explain", "quota.spec.scopeSelector")


@pytest.mark.real_time(seconds=240)
async def test_get_in_every_output(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", stdin=f"{VOLUME}---{VOLUME.replace('pv-a', 'pv-b').replace('gold', 'tin')}")
    plain = (await kubectl("get", "pv")).splitlines()
    assert plain[0].split()[:5] == ["NAME", "CAPACITY", "ACCESS", "MODES", "RECLAIM"]
    assert plain[1].split()[:4] == ["pv-a", "1Gi", "RWO", "Retain"]
    assert "VOLUMEMODE" in (await kubectl("get", "pv", "-o", "wide")).splitlines()[0]
    assert "kind: PersistentVolume\n" in await kubectl("get", "pv", "pv-a", "-o", "yaml")
    assert [item["metadata"]["name"] for item in (await kubectl.json("get", "pv"))["items"]] == ["pv-a", "pv-b"]
    assert await kubectl("get", "pv", "-l", "tier in (gold)", "-o", "name") == "persistentvolume/pv-a\n"
    named = await kubectl("get", "pv", "--field-selector", "metadata.name!=pv-a", "-o", "name")
    assert named == "persistentvolume/pv-b\n"
    assert await kubectl("get", "pv", "pv-a", "-o", "jsonpath={.spec.capacity.storage}") == "1Gi"
    assert "tier=gold" in await kubectl("get", "pv", "--show-labels")
    assert (await kubectl("get", "pv", "--chunk-size=1", "-o", "name")).split() == [
        "persistentvolume/pv-a",
        "persistentvolume/pv-b",
    ]
    assert "default" in await kubectl("get", "ns")
    assert (await kubectl("get", "sc,pvc,po,nodes,events,leases,csinodes,csidrivers,volumeattachments", "-A")) == ""
    assert "doesn't have a resource type" in await kubectl.refused("get", "nonsense")


@pytest.mark.real_time(seconds=240)
async def test_a_watch_prints_changes_as_they_come(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", stdin=VOLUME)
    process = await kubectl.start("get", "pv", "-w", "-o", "name")
    table = await kubectl.start("get", "pv", "--watch")
    assert process.stdout is not None
    assert table.stdout is not None
    try:
        assert await asyncio.wait_for(process.stdout.readline(), 120) == b"persistentvolume/pv-a\n"
        assert (await asyncio.wait_for(table.stdout.readline(), 120)).startswith(b"NAME")
        assert (await asyncio.wait_for(table.stdout.readline(), 120)).startswith(b"pv-a")
        await kubectl("create", "-f", "-", stdin=VOLUME.replace("pv-a", "pv-b"))
        assert await asyncio.wait_for(process.stdout.readline(), 120) == b"persistentvolume/pv-b\n"
        assert (await asyncio.wait_for(table.stdout.readline(), 120)).startswith(b"pv-b")
    finally:
        for running in (process, table):
            running.kill()
            await running.communicate()


@pytest.mark.real_time(seconds=240)
async def test_patch_label_annotate_and_edit(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=VOLUME)
    await kubectl("label", "pv", "pv-a", "zone=b", "tier-")
    await kubectl("annotate", "pv", "pv-a", "note=hello")
    await kubectl("patch", "pv", "pv-a", "--type=merge", "-p", '{"spec": {"mountOptions": ["ro"]}}')
    await kubectl("patch", "pv", "pv-a", "--type=json", "-p", '[{"op": "remove", "path": "/metadata/labels/zone"}]')
    await kubectl("patch", "pv", "pv-a", "-p", '{"metadata": {"finalizers": ["example.com/x"]}}')
    await kubectl("patch", "pv", "pv-a", "--subresource=status", "--type=merge", "-p", '{"status": {"phase": "Bound"}}')
    assert "edited" in await kubectl("edit", "pv", "pv-a")
    volume = await kubectl.json("get", "pv", "pv-a")
    assert volume["metadata"]["annotations"]["note"] == "hello"
    assert "labels" not in volume["metadata"]
    assert volume["metadata"]["finalizers"] == ["example.com/x", "kubernetes.io/pv-protection"]
    assert volume["spec"]["mountOptions"] == ["ro"]
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
    assert volume["status"]["phase"] == "Bound"
    await kubectl("replace", "-f", "-", stdin=VOLUME.replace("gold", "lead"))
    assert (await kubectl.json("get", "pv", "pv-a"))["metadata"]["labels"] == {"tier": "lead"}


@pytest.mark.real_time(seconds=240)
async def test_describe_and_explain(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=f"{VOLUME}---{CLAIM}---{POD}")
    uid = (await kubectl.json("get", "pvc", "c-a"))["metadata"]["uid"]
    event = {
        "metadata": {"generateName": "e-"},
        "involvedObject": {"kind": "PersistentVolumeClaim", "name": "c-a", "namespace": "default", "uid": uid},
        "reason": "ProvisioningFailed",
        "message": "no space left on device",
        "type": "Warning",
    }
    answer = kubectl.server.handle("POST", "/api/v1/namespaces/default/events", (), {}, json.dumps(event).encode())
    assert answer.status == 201
    described = await kubectl("describe", "pvc", "c-a")
    assert "Used By:       p-a" in described
    assert "no space left on device" in described
    assert "Reclaim Policy:  Retain" in await kubectl("describe", "pv", "pv-a")
    assert "ClaimName:" in await kubectl("describe", "pod", "p-a")
    assert "no space left on device" in await kubectl("get", "events")
    assert "no space left on device" in await kubectl("events")
    assert "claimRef" in await kubectl("explain", "pv.spec")
    assert "persistentvolumeclaims" in await kubectl("api-resources")


@pytest.mark.real_time(seconds=240)
async def test_delete_and_wait(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=f"{VOLUME}---{CLAIM}---{POD}")
    waiting = await kubectl.start("wait", "pvc/c-a", "--for=jsonpath={.status.phase}=Bound", "--timeout=100s")
    patch = '{"status": {"phase": "Bound"}}'
    await kubectl("patch", "pvc", "c-a", "--subresource=status", "--type=merge", "-p", patch)
    out, _ = await asyncio.wait_for(waiting.communicate(), 120)
    assert out == b"persistentvolumeclaim/c-a condition met\n"
    said = await kubectl.refused("wait", "pv/pv-a", "--for=delete", "--timeout=100ms")
    assert "timed out" in said or "deadline exceeded" in said, "the latter where its first look took as long"
    await kubectl("delete", "pv", "pv-a", "--wait=false")
    assert "Terminating" in await kubectl("get", "pv")
    waiting = await kubectl.start("wait", "pv/pv-a", "--for=delete", "--timeout=100s")
    await kubectl("patch", "pv", "pv-a", "-p", '{"metadata": {"finalizers": null}}')
    assert (await asyncio.wait_for(waiting.communicate(), 120))[1] == b""
    assert waiting.returncode == 0
    assert 'pod "p-a" force deleted' in await kubectl("delete", "pod", "p-a", "--force", "--grace-period=0")
    assert "not found" in await kubectl.refused("delete", "pv", "pv-a")
    assert await kubectl("delete", "pv", "--all") == "No resources found\n"


@pytest.mark.real_time(seconds=240)
async def test_logs_come_from_whoever_runs_the_containers(kubectl: Kubectl) -> None:
    asked: list[tuple[Any, ...]] = []

    async def source(
        namespace: str, pod: str, container: str | None, follow: bool, query: Query
    ) -> AsyncIterator[bytes]:
        asked.append((namespace, pod, container, follow, query.text("tailLines")))
        yield b"one\n"
        yield b"two\n"

    await kubectl("apply", "-f", "-", stdin=POD)
    assert "no node agent" in await kubectl.refused("logs", "p-a")
    kubectl.server.log_source = source
    assert await kubectl("logs", "p-a") == "one\ntwo\n"
    assert await kubectl("logs", "-f", "p-a", "-c", "c", "--tail=2") == "one\ntwo\n"
    assert asked == [("default", "p-a", "c", False, ""), ("default", "p-a", "c", True, "2")]
    assert "not found" in await kubectl.refused("logs", "p-b")
    assert "container x is not valid" in await kubectl.refused("logs", "p-a", "-c", "x")
