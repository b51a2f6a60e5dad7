"""Volumes on nodes that are erased after their release: the central process decides, and alone sees pods."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import pytest

from integration.test_distributed import reasons
from volplane.kube import names
from volplane.state.records import RecycleIntent, read_intent
from volplane_testing.control_plane import NAMESPACE
from volplane_testing.distributed import CENTRAL, DistributedCluster
from volplane_testing.memory import ZONE
from volplane_testing.transport import requests, unanswered

DISKS = {"hostPath": {"path": "/disks", "type": "Directory"}}
POOL = {names.ON_RELEASE: "recycle"}


async def written(cluster: DistributedCluster, node: str = "a") -> dict[str, Any]:
    """The volume of claim `data` of a warm pool, with something in it."""
    cluster.create_class("pool", parameters=POOL)
    cluster.create_claim("data", "pool", node=node)
    await cluster.settle()
    volume = cluster.volume("data")
    assert volume is not None
    (asset,) = cluster.disks[node].assets.values()
    asset.contents.append("secret")
    return volume


def contents(cluster: DistributedCluster, node: str = "a") -> set[str]:
    (asset,) = cluster.disks[node].assets.values()
    return set(asset.contents)


def now(cluster: DistributedCluster, volume: dict[str, Any]) -> dict[str, Any]:
    found = cluster.api.get("persistentvolumes", volume["metadata"]["name"])
    assert found is not None
    return found


def is_offered(cluster: DistributedCluster, volume: dict[str, Any]) -> bool:
    found = now(cluster, volume)
    return found["status"]["phase"] == "Available" and "claimRef" not in found["spec"]


def record(cluster: DistributedCluster, volume: dict[str, Any]) -> RecycleIntent | None:
    return read_intent(RecycleIntent, now(cluster, volume)["metadata"]["annotations"].get(names.INTENT))


def scrubber(cluster: DistributedCluster) -> dict[str, Any]:
    (pod,) = cluster.api.all("pods", NAMESPACE)
    return pod


def end(cluster: DistributedCluster, phase: str, node: str = "a") -> None:
    """Bind the scrubber pod to this node, and report its end as the kubelet there."""
    pod = scrubber(cluster)
    assert not pod["spec"].get("schedulingGates"), "it may not run"
    body = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": node}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/binding"
    answer = cluster.server.handle("POST", path, {}, {"content-type": "application/json"}, json.dumps(body).encode())
    assert answer.status == HTTPStatus.CREATED
    status = {"status": {"phase": phase}}
    cluster.api.patch("pods", pod["metadata"]["name"], status, NAMESPACE, subresource="status")


def make_pod(cluster: DistributedCluster, name: str) -> None:
    """A pod on node a that uses claim `data`."""
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    spec = {"nodeName": "a", "containers": [{"name": "c", "image": "i"}], "volumes": [volume]}
    cluster.api.create("pods", {"metadata": {"name": name}, "spec": spec})


def asked_for(cluster: DistributedCluster, name: str) -> set[str]:
    """The kinds of objects for which this process asked the server."""
    return {request.resource for request in cluster.scripts[name].requests}


async def test_a_driver_on_a_node_erases_a_volume_once_the_central_process_asks_and_sees_no_pods() -> None:
    async with DistributedCluster(["a", "b"]) as cluster:
        volume = await written(cluster)
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.settle()
        assert contents(cluster) == set()
        assert is_offered(cluster, volume)
        assert "VolumeRecycled" in reasons(cluster, volume)
        assert "pods" not in asked_for(cluster, "a") | asked_for(cluster, "b")
        assert cluster.api.all("pods") == []


async def test_the_central_process_makes_the_pod_that_the_driver_of_a_node_asks_for() -> None:
    async with DistributedCluster(["a"], pod_volume=DISKS) as cluster:
        volume = await written(cluster)
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.settle()
        spec = scrubber(cluster)["spec"]
        assert [each.get("hostPath") for each in spec["volumes"]] == [DISKS["hostPath"]]
        assert spec["containers"][0]["volumeMounts"][0]["subPath"] == now(cluster, volume)["spec"]["local"]["path"][7:]
        affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        field = {"key": "metadata.name", "operator": "In", "values": ["a"]}
        assert affinity == {"nodeSelectorTerms": [{**term, "matchFields": [field]}]}
        end(cluster, "Succeeded")
        await cluster.settle()
        assert is_offered(cluster, volume)
        assert cluster.api.all("pods") == []
        assert not any(each.resource == "pods" for each in cluster.scripts["a"].requests)


async def test_a_pod_that_failed_is_followed_by_another_for_which_the_node_is_asked_again() -> None:
    async with DistributedCluster(["a"], pod_volume=DISKS) as cluster:
        volume = await written(cluster)
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.settle()
        first = scrubber(cluster)["metadata"]["uid"]
        end(cluster, "Failed")
        await cluster.advance(60)
        assert scrubber(cluster)["metadata"]["uid"] != first
        end(cluster, "Succeeded")
        await cluster.settle()
        assert is_offered(cluster, volume)


@pytest.mark.parametrize("again", [False, True])
async def test_only_the_node_of_a_volume_can_report_that_a_pod_erased_it(again: bool) -> None:
    """A kubelet gives its Node the label of another one. again: after that it registers under that one's name."""
    async with DistributedCluster(["a", "b"], pod_volume=DISKS) as cluster:
        volume = await written(cluster)
        cluster.api.patch("nodes", "b", {"metadata": {"labels": {ZONE: "a"}}})
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.settle()
        if again:
            cluster.failing.add("a")
            cluster.api.delete("nodes", "a")
            cluster.create_node("a")
        end(cluster, "Succeeded", "a" if again else "b")
        await cluster.advance(10)
        intent = record(cluster, volume)
        assert intent is not None
        assert intent.attempt == 2
        assert any("where the volume is not" in each["message"] for each in cluster.api.events(volume))
        assert not is_offered(cluster, volume)
        if not again:
            await cluster.advance(60)
            end(cluster, "Succeeded")
            await cluster.settle()
            assert is_offered(cluster, volume)


@pytest.mark.parametrize("seen", [True, False])
async def test_nothing_is_erased_while_a_pod_uses_the_volume(seen: bool) -> None:
    """seen: whether the central process has heard of the pod; else a live list shows it."""
    async with DistributedCluster(["a"]) as cluster:
        volume = await written(cluster)
        await cluster.settle()
        if not seen:
            cluster.scripts[CENTRAL].add(requests("watch", "pods"), unanswered, times=1e9)
            cluster.server.end_watches()
        make_pod(cluster, "writer")
        cluster.api.patch("persistentvolumeclaims", "data", {"metadata": {"finalizers": None}})
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.advance(20)
        intent = record(cluster, volume)
        assert contents(cluster) == {"secret"}
        assert intent is None or not intent.asked
        cluster.api.delete("pods", "writer", grace_seconds=0)
        cluster.scripts[CENTRAL].faults.clear()
        cluster.server.end_watches()
        await cluster.advance(60)
        assert contents(cluster) == set()
        assert is_offered(cluster, volume)


async def test_a_volume_that_is_to_be_kept_after_all_is_not_erased_by_a_node_that_was_asked() -> None:
    async with DistributedCluster(["a"]) as cluster:
        volume = await written(cluster)
        await cluster.kill("a")
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.settle()
        intent = record(cluster, volume)
        assert intent is not None
        assert intent.asked
        keep = {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}
        cluster.api.patch("persistentvolumes", volume["metadata"]["name"], keep)
        await cluster.settle()
        assert record(cluster, volume) is not None, "the node may be erasing it"
        await cluster.start("a")
        await cluster.settle()
        assert contents(cluster) == {"secret"}
        assert record(cluster, volume) is None


@pytest.mark.parametrize("pod_volume", [{"nfs": {"server": "filer", "path": "/"}}, {"secret": {"secretName": "s"}}])
async def test_a_node_cannot_make_the_central_process_mount_what_is_on_no_node(pod_volume: dict[str, Any]) -> None:
    async with DistributedCluster(["a"], pod_volume=pod_volume) as cluster:
        volume = await written(cluster)
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.settle()
        assert cluster.api.all("pods") == []
        assert "VolumeFailedRecycle" in reasons(cluster, volume)
        assert not is_offered(cluster, volume)


async def test_either_process_may_be_killed_at_any_moment_of_a_scrub() -> None:
    async with DistributedCluster(["a"]) as cluster:
        volume = await written(cluster)
        for victim in ("a", CENTRAL):
            cluster.scripts[victim].add(requests("patch", "persistentvolumes"), unanswered, times=1e9)
        cluster.api.delete("persistentvolumeclaims", "data")
        for victim in (CENTRAL, "a", CENTRAL, "a"):
            await cluster.advance(5)
            await cluster.kill(victim)
            cluster.scripts[victim].faults.clear()
            await cluster.start(victim)
        await cluster.advance(30)
        assert contents(cluster) == set()
        assert is_offered(cluster, volume)
