"""Storage on nodes: a central process assigns, one process a node provisions what is its own."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from volplane.cli.drain import Drain, Leftover
from volplane.cli.framework.console import Console
from volplane.controller.metrics import Metrics
from volplane.errors import VolplaneError
from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.events import EventRecorder
from volplane.placement.nodes import NodeBook
from volplane.process.control_plane import ControlPlane
from volplane.state.naming import node_hash
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing.clock import now
from volplane_testing.distributed import CENTRAL, NODE_DRIVER, DistributedCluster
from volplane_testing.memory import ZONE
from volplane_testing.transport import delay, requests, unanswered

GIB = 1 << 30


def label_of(item: dict[str, Any]) -> str | None:
    found: str | None = item["metadata"].get("labels", {}).get(names.NODE)
    return found


def selected(item: dict[str, Any]) -> str | None:
    found: str | None = item["metadata"].get("annotations", {}).get(names.SELECTED_NODE)
    return found


def conflicts(cluster: DistributedCluster) -> int:
    """Writes of all processes that the server refused because the object had changed."""
    return sum(request.status == 409 for script in cluster.scripts.values() for request in script.requests)


def lost_volumes(plane: ControlPlane) -> float | None:
    """The metric `volplane_lost_volumes` of the driver on nodes."""
    registry = CollectorRegistry()
    plane.controllers["assigner"].measure(Metrics(registry))
    return registry.get_sample_value("volplane_lost_volumes", {"driver": NODE_DRIVER})


def reasons(cluster: DistributedCluster, about: dict[str, Any]) -> list[str]:
    return [event["reason"] for event in cluster.api.events(about)]


async def local_volume(cluster: DistributedCluster, node: str = "") -> dict[str, Any]:
    """The volume of claim `data`, once it is bound. node: that the scheduler selected, "" = the assigner chooses."""
    cluster.create_class("local")
    cluster.create_claim("data", "local", node=node)
    await cluster.settle()
    volume = cluster.volume("data")
    assert volume is not None
    return volume


async def begin_on_a_node_that_goes(cluster: DistributedCluster, *, late: bool = False, dies: bool = True) -> None:
    """Let node a make the asset of claim `data` and go before it can say so, for longer than the class waits.

    dies: its process too; else that only reaches nobody.
    """
    storage_class = "late" if late else "local"
    cluster.create_class(storage_class, late=late, parameters={names.NODE_GONE_AFTER: "1m"})
    cluster.scripts["a"].add(requests("create", "persistentvolumes"), unanswered, times=1e9)
    cluster.create_claim("data", storage_class, node="a")
    await cluster.advance(5)
    if dies:
        await cluster.kill("a")
    cluster.set_ready("a", ready=False)
    await cluster.advance(70)


def select(cluster: DistributedCluster, node: str) -> None:
    """Choose the node of claim `data`, as the scheduler does."""
    annotations = {names.SELECTED_NODE: node}
    cluster.api.patch("persistentvolumeclaims", "data", {"metadata": {"annotations": annotations}})


async def test_claims_are_spread_by_count_and_each_node_makes_its_own() -> None:
    async with DistributedCluster(["a", "b", "c"]) as cluster:
        cluster.create_class("local")
        for number in range(9):
            cluster.create_claim(f"c{number}", "local")
        await cluster.settle()
        nodes = [cluster.node_of(f"c{number}") for number in range(9)]
        assert {node: nodes.count(node) for node in "abc"} == {"a": 3, "b": 3, "c": 3}
        assert {node: len(assets) for node, assets in cluster.assets().items()} == {"a": 3, "b": 3, "c": 3}
        for number in range(9):
            claim, volume = cluster.claim(f"c{number}"), cluster.volume(f"c{number}")
            assert volume is not None
            assert label_of(claim) == label_of(volume) == node_hash(nodes[number])


async def test_a_process_of_a_node_sees_its_own_objects_alone() -> None:
    async with DistributedCluster(["a", "b"]) as cluster:
        cluster.create_class("local")
        for number in range(6):
            cluster.create_claim(f"c{number}", "local")
        await cluster.settle()
        for node in ("a", "b"):
            plane = cluster.plane(node)
            assert {
                claim.metadata.labels[names.NODE] for claim in plane.state.claims.values() if claim.metadata.labels
            } == {node_hash(node)}
            assert len(plane.state.claims) == len(plane.state.volumes) == 3
            assert plane.state.nodes.keys() == [node]


async def test_the_scheduler_selects_the_node_of_a_claim_that_waits_for_a_pod() -> None:
    async with DistributedCluster(["a", "b"]) as cluster:
        cluster.create_class("late", late=True)
        cluster.create_claim("data", "late")
        await cluster.settle()
        assert label_of(cluster.claim("data")) is None
        select(cluster, "b")
        await cluster.settle()
        assert cluster.node_of("data") == "b"


async def test_somebody_else_may_choose_the_nodes() -> None:
    async with DistributedCluster(["a", "b"], external_choice=True) as cluster:
        cluster.create_class("local")
        cluster.create_claim("data", "local")
        await cluster.settle()
        assert label_of(cluster.claim("data")) is None
        select(cluster, "b")
        await cluster.settle()
        assert cluster.node_of("data") == "b"


async def test_a_released_volume_is_deleted_by_the_process_of_its_node() -> None:
    async with DistributedCluster(["a", "b"]) as cluster:
        volume = await local_volume(cluster, "b")
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.settle()
        assert volume not in cluster.api
        assert cluster.assets() == {"a": [], "b": []}
        assert conflicts(cluster) == 0


async def test_no_two_processes_write_one_object_at_the_same_time() -> None:
    async with DistributedCluster(["a", "b", "c"]) as cluster:
        cluster.create_class("local")
        for number in range(20):
            cluster.create_claim(f"c{number}", "local")
        await cluster.settle()
        assert all(cluster.node_of(f"c{number}") for number in range(20))
        assert conflicts(cluster) == 0
        cluster.scripts[CENTRAL].latency = 0.05
        for number in range(20):
            cluster.api.delete("persistentvolumeclaims", f"c{number}")
        await cluster.advance(5)
        assert cluster.api.all("persistentvolumes") == []
        assert conflicts(cluster) == 0


async def test_allowed_topologies_and_cordons_are_respected() -> None:
    async with DistributedCluster(["a", "b", "c"]) as cluster:
        terms = [{"matchLabelExpressions": [{"key": ZONE, "values": ["b", "c"]}]}]
        cluster.create_class("local", allowedTopologies=terms)
        cluster.api.patch("nodes", "c", {"spec": {"unschedulable": True}})
        await cluster.settle()
        for number in range(3):
            cluster.create_claim(f"c{number}", "local")
        await cluster.settle()
        assert {cluster.node_of(f"c{number}") for number in range(3)} == {"b"}


async def test_a_claim_for_which_there_is_no_node_says_so_and_gets_the_first_that_comes() -> None:
    async with DistributedCluster(["a"]) as cluster:
        cluster.create_class("local")
        cluster.set_ready("a", ready=False)
        await cluster.settle()
        claim = cluster.create_claim("data", "local")
        await cluster.settle()
        (event,) = [each for each in cluster.api.events(claim) if each["reason"] == "ProvisioningFailed"]
        assert event["message"] == "no node can take it; of the nodes are 1 not ready, cordoned or tainted"
        cluster.create_node("b")
        await cluster.start("b")
        await cluster.advance(2)
        assert cluster.node_of("data") == "b"


async def test_a_full_node_gives_the_claim_back_and_another_one_takes_it() -> None:
    async with DistributedCluster(["a", "b"], capacity=10 * GIB) as cluster:
        cluster.create_class("local")
        cluster.disks["a"].capacity_bytes = GIB // 2
        for number in range(4):
            cluster.create_claim(f"c{number}", "local")
        await cluster.advance(2)
        assert {cluster.node_of(f"c{number}") for number in range(4)} == {"b"}
        assert cluster.assets()["a"] == []


async def test_a_full_node_gives_a_claim_that_waits_for_a_pod_back_to_the_scheduler() -> None:
    async with DistributedCluster(["a", "b"], capacity=GIB // 2) as cluster:
        cluster.create_class("late", late=True)
        cluster.create_claim("data", "late", node="a")
        await cluster.advance(2)
        claim = cluster.claim("data")
        assert selected(claim) is None
        assert label_of(claim) is None
        assert names.PROVISIONING_FINALIZER not in claim["metadata"].get("finalizers", [])
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.settle()
        assert cluster.api.get("persistentvolumeclaims", "data") is None


# --- labels that are wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [None, node_hash("b"), "nonsense"])
async def test_a_label_that_somebody_edits_is_put_right_and_nothing_is_made_or_lost(label: str | None) -> None:
    async with DistributedCluster(["a", "b"]) as cluster:
        volume = await local_volume(cluster, "a")
        edit = {"metadata": {"labels": {names.NODE: label}}}
        cluster.api.patch("persistentvolumeclaims", "data", edit)
        cluster.api.patch("persistentvolumes", volume["metadata"]["name"], edit)
        await cluster.settle()
        now = cluster.volume("data")
        assert now is not None
        assert label_of(cluster.claim("data")) == label_of(now) == node_hash("a")
        assert {node: len(found) for node, found in cluster.assets().items()} == {"a": 1, "b": 0}


@pytest.fixture
def one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of all nodes have one hash."""

    def alike(_name: str) -> str:
        return "f" * 16

    for name, module in list(sys.modules.items()):
        if name.startswith("volplane.") and getattr(module, "node_hash", None) is node_hash:
            monkeypatch.setattr(module, "node_hash", alike)
    monkeypatch.setattr(NodeBook.__init__, "__defaults__", (alike,))


@pytest.mark.usefixtures("one_hash")
async def test_nodes_whose_names_have_one_hash_make_and_delete_what_is_their_own_and_say_so() -> None:
    async with DistributedCluster(["a", "b"], capacity=10 * GIB) as cluster:
        cluster.create_class("local", parameters={names.PLACEMENT: "round-robin"})
        await cluster.advance(120)
        for number in range(6):
            cluster.create_claim(f"c{number}", "local")
        await cluster.advance(5)
        nodes = [cluster.node_of(f"c{number}") for number in range(6)]
        assert {node: nodes.count(node) for node in "ab"} == {"a": 3, "b": 3}
        assert {node: len(assets) for node, assets in cluster.assets().items()} == {"a": 3, "b": 3}
        for number in range(5):
            cluster.api.delete("persistentvolumeclaims", f"c{number}")
        await cluster.advance(5)
        assert [len(cluster.assets()[node]) for node in "ab"] == [nodes[5:].count(node) for node in "ab"]
        assert [each["metadata"]["name"] for each in cluster.api.all("persistentvolumes")] == [
            f"pvc-{cluster.claim('c5')['metadata']['uid']}"
        ]
        told = [each for each in cluster.api.all("events") if each["reason"] == "NodeHashCollision"]
        assert {each["involvedObject"]["name"] for each in told} == {"a", "b"}


async def test_an_instance_deletes_nothing_for_a_label_that_lies() -> None:
    async with DistributedCluster(["a", "b"]) as cluster:
        volume = await local_volume(cluster, "a")
        await cluster.kill("a")
        labels = requests("patch", "persistentvolumes")
        cluster.scripts[CENTRAL].add(
            lambda each: labels(each) and b"dev/node" in (each.request.body or b""), unanswered, times=1e9
        )
        lie = {"metadata": {"labels": {names.NODE: node_hash("b")}}}
        cluster.api.patch("persistentvolumes", volume["metadata"]["name"], lie)
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.advance(30)
        assert len(cluster.assets()["a"]) == 1
        assert volume in cluster.api
        deleted = [each for each in cluster.scripts["b"].requests if each.request.method == "DELETE"]
        assert deleted == []
        assert "whatever its label" in cluster.plane("b").reason("volumes", volume["metadata"]["name"])


async def test_volumes_made_before_there_was_an_assigner_get_their_label() -> None:
    async with DistributedCluster(["a", "b"]) as cluster:
        volume = await local_volume(cluster, "b")
        await cluster.kill(CENTRAL)
        bare = {"metadata": {"labels": {names.NODE: None}, "annotations": {names.NODE_UID: None}}}
        cluster.api.patch("persistentvolumes", volume["metadata"]["name"], bare)
        cluster.api.patch("persistentvolumeclaims", "data", bare)
        await cluster.settle()
        assert len(cluster.plane("b").state.volumes) == 0
        await cluster.start(CENTRAL)
        await cluster.settle()
        assert len(cluster.plane("b").state.volumes) == len(cluster.plane("b").state.claims) == 1
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.settle()
        assert cluster.assets() == {"a": [], "b": []}


# --- nodes that go -----------------------------------------------------------------------------------------------


async def test_a_claim_that_a_lost_node_had_begun_moves_on_after_the_time_of_its_class() -> None:
    async with DistributedCluster(["a", "b"]) as cluster:
        cluster.create_class("local", parameters={names.NODE_GONE_AFTER: "2m"})
        cluster.scripts["a"].add(requests("create", "persistentvolumes"), unanswered, times=1e9)
        claim = cluster.create_claim("data", "local", node="a")
        await cluster.advance(5)
        assert len(cluster.assets()["a"]) == 1  # Made, but not saved: nobody else knows of it.
        await cluster.kill("a")
        cluster.set_ready("a", ready=False)
        await cluster.advance(100)
        assert selected(cluster.claim("data")) == "a"
        await cluster.advance(30)
        assert cluster.node_of("data") == "b"
        volume = cluster.volume("data")
        assert volume is not None
        assert volume["metadata"]["annotations"][names.GENERATION] == "2"
        assert any("node a is gone" in event["message"] for event in cluster.api.events(claim))


@pytest.mark.parametrize("begun", [True, False])
async def test_a_node_that_is_back_keeps_its_claim_though_the_assigner_has_not_heard_of_it(begun: bool) -> None:
    async with DistributedCluster(["a", "b"]) as cluster:
        cluster.create_class("late", late=True, parameters={names.NODE_GONE_AFTER: "1m"})
        cluster.scripts["a"].add(requests("create", "persistentvolumes"), unanswered, times=1e9)
        if begun:
            cluster.create_claim("data", "late", node="a")
            await cluster.advance(5)
        cluster.set_ready("a", ready=False)
        await cluster.advance(50)
        if not begun:
            await cluster.kill("a")
            cluster.create_claim("data", "late", node="a")
        for verb in ("watch", "list"):
            cluster.scripts[CENTRAL].add(requests(verb, "nodes"), unanswered, times=1e9)
        cluster.server.end_watches()
        cluster.set_ready("a", ready=True)
        await cluster.advance(30)
        assert selected(cluster.claim("data")) == "a"


async def test_a_full_node_does_not_forget_what_was_begun_on_one_that_is_gone() -> None:
    """Else two assets of one generation are there when that node comes back, and nobody can tell them apart."""
    async with DistributedCluster(["a", "b", "c"]) as cluster:
        await begin_on_a_node_that_goes(cluster, late=True)
        cluster.disks["b"].capacity_bytes = 0
        for node in "bc":
            assert selected(cluster.claim("data")) is None
            select(cluster, node)
            await cluster.advance(5)
        volume = cluster.volume("data")
        assert volume is not None
        assert cluster.node_of("data") == "c"
        assert volume["metadata"]["annotations"][names.GENERATION] == "2"


async def test_a_claim_that_is_deleted_between_two_nodes_is_let_go() -> None:
    async with DistributedCluster(["a", "b"]) as cluster:
        await begin_on_a_node_that_goes(cluster, late=True)
        cluster.disks["b"].capacity_bytes = 0
        select(cluster, "b")
        await cluster.advance(5)
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.settle()
        assert cluster.api.get("persistentvolumeclaims", "data") is None


async def test_a_node_that_comes_back_leaves_the_claim_alone_that_went_elsewhere() -> None:
    async with DistributedCluster(["a", "b"]) as cluster:
        await begin_on_a_node_that_goes(cluster)
        assert cluster.node_of("data") == "b"
        cluster.scripts["a"].faults.clear()
        cluster.set_ready("a", ready=True)
        await cluster.start("a")
        await cluster.advance(30)
        assert cluster.node_of("data") == "b"
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.settle()
        assert cluster.assets()["b"] == []


@pytest.mark.parametrize("dies", [True, False])
async def test_a_claim_that_comes_back_to_a_node_replaces_what_was_begun_there_before(dies: bool) -> None:
    async with DistributedCluster(["a"]) as cluster:
        await begin_on_a_node_that_goes(cluster, dies=dies)
        assert selected(cluster.claim("data")) is None
        cluster.scripts["a"].faults.clear()
        cluster.set_ready("a", ready=True)
        if dies:
            await cluster.start("a")
        await cluster.advance(70)
        volume = cluster.volume("data")
        assert volume is not None
        assert volume["metadata"]["annotations"][names.GENERATION] == "2"
        assert [each.owner.generation for each in cluster.disks["a"].assets.values() if each.owner] == [2]


async def test_a_claim_goes_to_another_node_when_no_process_serves_its_own() -> None:
    async with DistributedCluster(["a", "b"]) as cluster:
        cluster.create_class("local", parameters={names.NODE_GONE_AFTER: "1m"})
        await cluster.kill("a")
        cluster.create_claim("data", "local", node="a")
        await cluster.advance(50)
        assert selected(cluster.claim("data")) == "a"
        await cluster.advance(20)
        assert cluster.node_of("data") == "b"


async def test_volumes_of_a_lost_node_are_said_to_be_lost_and_come_back_with_it() -> None:
    async with DistributedCluster(["a", "b"]) as cluster:
        cluster.create_class("local")
        claim = cluster.create_claim("data", "local", node="a")
        await cluster.settle()
        volume = cluster.volume("data")
        assert volume is not None
        name = volume["metadata"]["name"]
        await cluster.kill("a")
        cluster.api.delete("nodes", "a")
        await cluster.settle()
        assert "VolumeLost" in reasons(cluster, volume)
        assert "VolumeLost" in reasons(cluster, claim)
        central = cluster.plane(CENTRAL)
        assert lost_volumes(central) == 1
        assert "it is lost, unless the node comes back" in " ".join(central.explain("volume", name).situation)
        assert volume in cluster.api
        cluster.create_node("a")  # The kubelet registers anew; the disk is the same.
        await cluster.start("a")
        await cluster.settle()
        assert "VolumeFound" in reasons(cluster, volume)
        assert lost_volumes(central) == 0
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.settle()
        assert volume not in cluster.api
        assert cluster.assets()["a"] == []


async def test_a_node_that_registers_anew_gets_its_volumes_back_while_its_process_runs_on() -> None:
    async with DistributedCluster(["a"]) as cluster:
        await local_volume(cluster)
        cluster.api.delete("nodes", "a")
        await cluster.settle()
        node = cluster.create_node("a")
        await cluster.settle()
        now = cluster.volume("data")
        assert now is not None
        assert now["metadata"]["annotations"][names.NODE_UID] == node["metadata"]["uid"]
        cluster.create_claim("more", "local")
        await cluster.advance(2)
        assert cluster.node_of("more") == "a"


async def test_what_a_volume_is_called_like_on_a_node_that_registers_anew_is_not_its_asset() -> None:
    """Somebody has made it again, from a backup perhaps."""
    async with DistributedCluster(["a"]) as cluster:
        volume = await local_volume(cluster)
        cluster.api.delete("nodes", "a")
        await cluster.settle()
        [asset] = cluster.disks["a"].assets.values()
        asset.handle = "another"
        cluster.create_node("a")
        await cluster.settle()
        assert "VolumeFound" not in reasons(cluster, volume)
        assert lost_volumes(cluster.plane(CENTRAL)) == 1


async def test_two_processes_of_a_node_do_not_take_turns_at_writing_which_node_a_volume_is_of() -> None:
    """The Node was made again, and one of the two has not heard of it."""
    async with DistributedCluster(["a"]) as cluster:
        name = (await local_volume(cluster))["metadata"]["name"]
        await cluster.start("a", twin=True)
        processes = [cluster.scripts["a"], cluster.scripts["a#2"]]
        for script in processes:
            script.latency = 0.005
        processes[1].add(requests("watch", "nodes"), unanswered, times=1e9)
        cluster.server.end_watches()
        cluster.api.delete("nodes", "a")
        uid = cluster.create_node("a")["metadata"]["uid"]
        await asyncio.sleep(20)
        assert cluster.api.get("persistentvolumes", name)["metadata"]["annotations"][names.NODE_UID] == uid
        written = [request for script in processes for request in script.requests if request.verb == "patch"]
        assert len([each for each in written if each.request.path.endswith(name)]) <= 2


async def test_a_claim_has_time_on_its_node_though_its_class_waits_for_no_node() -> None:
    for value in ("0s", "1s"):
        async with DistributedCluster(["a", "b", "c"]) as cluster:
            cluster.create_class("local", parameters={names.NODE_GONE_AFTER: value})
            await cluster.settle()
            for node in "abc":
                cluster.scripts[node].latency = 0.5
            cluster.create_claim("data", "local")
            await cluster.advance(30)
            assert cluster.node_of("data")
            assert not [each for each in cluster.api.events(cluster.claim("data")) if each["type"] == "Warning"]
            cluster.create_claim("late", "local")
            chosen = ""
            while not chosen:
                await asyncio.sleep(0.01)
                chosen = selected(cluster.claim("late"))
            cluster.set_ready(chosen, ready=False)
            await cluster.kill(chosen)
            await cluster.advance(20)
            assert cluster.node_of("late") not in ("", chosen), "a node that is not ready is left as the class says"


async def make_one_that_grows(cluster: DistributedCluster) -> None:
    """A volume of 1 GiB on node a, which has 10 GiB; node b has 8."""
    cluster.create_class("local", parameters={names.PLACEMENT: "most-room"}, allowVolumeExpansion=True)
    cluster.disks["b"].capacity_bytes = 8 * GIB
    await cluster.advance(70)
    cluster.create_claim("grows", "local", "1Gi")
    await cluster.advance(70)
    assert cluster.node_of("grows") == "a"


async def test_a_claim_goes_to_no_node_whose_room_another_one_has_grown_into() -> None:
    async with DistributedCluster(["a", "b"], capacity=10 * GIB) as cluster:
        await make_one_that_grows(cluster)
        cluster.scripts["a"].add(requests("patch", "csistoragecapacities"), unanswered, times=1e9)
        grown = {"spec": {"resources": {"requests": {"storage": "6Gi"}}}}
        cluster.api.patch("persistentvolumeclaims", "grows", grown)
        await cluster.advance(5)
        cluster.create_claim("next", "local", "5Gi")
        await cluster.advance(5)
        assert cluster.node_of("next") == "b"


@pytest.mark.parametrize(("asked", "goes"), [("6Gi", "b"), ("60Gi", "a")])
async def test_a_claim_goes_to_no_node_whose_room_another_one_is_to_grow_into(asked: str, goes: str) -> None:
    """A growth that the node has no room for takes none."""
    async with DistributedCluster(["a", "b"], capacity=10 * GIB) as cluster:
        await make_one_that_grows(cluster)
        if goes == "b":
            cluster.failing.add("a")
        cluster.api.patch("persistentvolumeclaims", "grows", {"spec": {"resources": {"requests": {"storage": asked}}}})
        await cluster.advance(70)
        cluster.create_claim("next", "local", "5Gi")
        await cluster.advance(5)
        assert cluster.node_of("next") == goes
        if goes == "b":
            cluster.failing.clear()
            await cluster.advance(200)
            assert cluster.claim("grows")["status"]["capacity"] == {"storage": asked}
            cluster.create_claim("small", "local", "3Gi")
            await cluster.advance(5)
            assert cluster.node_of("small") == "a", "what has grown counts once"


async def test_what_a_volume_is_to_grow_counts_whatever_other_claims_name_it() -> None:
    async with DistributedCluster(["a", "b"], capacity=10 * GIB) as cluster:
        await make_one_that_grows(cluster)
        await cluster.kill("a")
        cluster.api.patch("persistentvolumeclaims", "grows", {"spec": {"resources": {"requests": {"storage": "6Gi"}}}})
        spec = cluster.claim("grows")["spec"]
        cluster.api.create("persistentvolumeclaims", {"metadata": {"name": "stranger"}, "spec": spec}, "other")
        for name in ("first", "second"):
            await cluster.advance(5)
            cluster.create_claim(name, "local", "5Gi")
            await cluster.advance(5)
            assert cluster.node_of(name) == "b"
            cluster.api.delete("persistentvolumeclaims", name)
            if name == "first":
                cluster.api.delete("persistentvolumeclaims", "stranger", "other")
            await cluster.advance(70)


async def test_the_central_process_says_nothing_of_the_growth_that_a_node_works_on() -> None:
    async with DistributedCluster(["a"]) as cluster:
        cluster.create_class("local", allowVolumeExpansion=True)
        cluster.create_claim("data", "local")
        await cluster.settle()
        grown = {"spec": {"resources": {"requests": {"storage": "3Gi"}}}}
        cluster.api.patch("persistentvolumeclaims", "data", grown)
        await cluster.advance(120)
        claim = cluster.claim("data")
        assert claim["status"]["capacity"] == {"storage": "3Gi"}
        assert not [each for each in cluster.api.events(claim) if each["type"] == "Warning"]


async def test_a_node_made_again_under_its_name_is_not_the_old_one() -> None:
    async with DistributedCluster(["a", "b"]) as cluster:
        volume = await local_volume(cluster, "a")
        await cluster.kill("a")
        cluster.api.delete("nodes", "a")
        old = cluster.disks.pop("a")
        cluster.create_node("a")
        await cluster.start("a")
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.settle()
        assert volume in cluster.api
        assert len(old.assets) == 1
        assert "VolumeLost" in reasons(cluster, volume)
        told = cluster.plane("a").reason("volumes", volume["metadata"]["name"])
        assert "not on the storage of the present one" in told


async def drained(cluster: DistributedCluster, node: str) -> Sequence[Leftover]:
    """What `volplane drain --node NODE --delete --yes` does."""
    client = Client(InProcessTransport(cluster.server))
    work = Drain("", "volplane-system", 30.0, node)
    recorder = EventRecorder(client, instance="drain", now=now)
    gone = await work.node_is_gone(client)
    return await work.delete(Console(out=io.StringIO()), client, recorder, "127.0.0.1:1", gone=gone)


async def test_a_central_process_that_starts_anew_counts_claims_that_are_on_their_way_to_a_node() -> None:
    """Claims come before their class, which says of which driver they are."""
    async with DistributedCluster(["a", "b"], capacity=10 * GIB) as cluster:
        cluster.create_class("local", parameters={names.PLACEMENT: "most-room"})
        cluster.create_class("late", late=True)
        await cluster.advance(120)
        for node in "ab":
            cluster.scripts[node].add(requests("patch", "persistentvolumeclaims"), unanswered, times=1e9)
        cluster.create_claim("first", "late", "8Gi", node="a")
        await cluster.settle()
        await cluster.kill(CENTRAL)
        cluster.create_claim("second", "local", "7Gi")
        await cluster.start(CENTRAL)
        await cluster.settle()
        assert selected(cluster.claim("second")) == "b"


@pytest.mark.parametrize("offset", [-600, 600])
async def test_a_clock_that_is_wrong_by_minutes_promises_no_room_twice(offset: float) -> None:
    """What was made a moment ago is not in the published room yet."""
    async with DistributedCluster(["a", "b"], capacity=10 * GIB) as cluster:
        cluster.clocks[CENTRAL].offset = offset
        cluster.disks["b"].capacity_bytes = 8 * GIB
        cluster.create_class("local", parameters={names.PLACEMENT: "most-room"})
        await cluster.advance(120)
        for number in range(3):
            cluster.create_claim(f"c{number}", "local", "5Gi")
            await asyncio.sleep(0.1)
        await cluster.settle()
        assert [cluster.node_of(f"c{number}") for number in range(3)] == ["a", "b", "a"]
        assert not [each for each in cluster.api.all("events") if each["reason"] == "ProvisioningFailed"]


async def test_a_claim_that_waits_for_room_gets_what_was_counted_twice_for_a_while() -> None:
    """The room was measured between the making of an asset and that of its volume."""
    async with DistributedCluster(["a"], capacity=10 * GIB) as cluster:
        cluster.create_class("local")
        await cluster.advance(120)
        fault = cluster.scripts["a"].add(requests("create", "persistentvolumes"), unanswered, times=1e9)
        cluster.create_claim("first", "local", "6Gi")
        await cluster.advance(70)
        assert published(cluster) == {"a": "4Gi"}
        fault.times = 0
        await cluster.advance(20)
        assert cluster.node_of("first") == "a"
        cluster.create_claim("second", "local", "3Gi")
        await cluster.advance(70)
        assert cluster.node_of("second") == "a"


async def test_a_claim_that_goes_while_it_is_assigned_leaves_no_room_taken() -> None:
    async with DistributedCluster(["a"], capacity=10 * GIB) as cluster:
        cluster.create_class("local")
        await cluster.advance(120)
        cluster.scripts[CENTRAL].latency = 0.05
        cluster.create_claim("first", "local", "8Gi")
        await asyncio.sleep(0.08)  # The binder has asked for a volume, the assigner's write is on its way.
        assert names.STORAGE_PROVISIONER in cluster.claim("first")["metadata"]["annotations"]
        assert label_of(cluster.claim("first")) is None
        cluster.api.delete("persistentvolumeclaims", "first")
        cluster.api.patch("persistentvolumeclaims", "first", {"metadata": {"finalizers": None}})
        await cluster.settle()
        cluster.create_claim("second", "local", "8Gi")
        await cluster.advance(5)
        assert cluster.node_of("second") == "a"


async def test_what_was_on_a_lost_node_can_be_drained_and_other_nodes_are_left_alone() -> None:
    async with DistributedCluster(["a", "b"]) as cluster:
        cluster.create_class("local")
        for node in "ab":
            cluster.create_claim(f"on-{node}", "local", node=node)
        await cluster.settle()
        lost, kept = cluster.volume("on-a"), cluster.volume("on-b")
        assert lost is not None
        assert kept is not None
        await cluster.kill("a")
        cluster.set_ready("a", ready=False)
        with pytest.raises(VolplaneError, match="node a is not ready, but may come back"):
            await drained(cluster, "a")
        cluster.api.delete("nodes", "a")
        await cluster.settle()
        assert await drained(cluster, "a") == []
        await cluster.settle()
        assert lost not in cluster.api
        assert cluster.api.get("persistentvolumeclaims", "on-a") is None
        assert kept in cluster.api
        assert cluster.node_of("on-b") == "b"


async def test_a_node_that_works_is_drained_by_its_own_process() -> None:
    async with DistributedCluster(["a", "b"]) as cluster:
        cluster.create_class("local")
        for node in "ab":
            cluster.create_claim(f"on-{node}", "local", node=node)
        await cluster.settle()
        assert await drained(cluster, "a") == []
        assert {node: len(found) for node, found in cluster.assets().items()} == {"a": 0, "b": 1}


# --- the assigner dies -------------------------------------------------------------------------------------------


async def test_an_assigner_that_dies_between_two_writes_makes_nothing_twice() -> None:
    async with DistributedCluster(["a", "b", "c"]) as cluster:
        cluster.create_class("local")
        cluster.scripts[CENTRAL].add(requests("patch", "persistentvolumeclaims"), delay(0.5), times=1e9)
        for number in range(6):
            cluster.create_claim(f"c{number}", "local")
        for _ in range(5):
            await asyncio.sleep(0.4)
            await cluster.restart(CENTRAL)
        cluster.scripts[CENTRAL].faults.clear()
        await cluster.settle()
        assert all(cluster.node_of(f"c{number}") for number in range(6))
        assert sum(map(len, cluster.assets().values())) == 6


async def test_claims_of_other_drivers_are_left_alone() -> None:
    async with DistributedCluster(["a"]) as cluster:
        cluster.api.create("storageclasses", {"metadata": {"name": "other"}, "provisioner": "other.example.com"})
        cluster.create_claim("data", "other")
        await cluster.settle()
        assert label_of(cluster.claim("data")) is None
        assert NODE_DRIVER not in cluster.plane(CENTRAL).drivers.names()


# --- published room ----------------------------------------------------------------------------------------------


def published(cluster: DistributedCluster) -> dict[str, str]:
    """Node -> its published room."""
    found = cluster.api.all("csistoragecapacities")
    return {each["nodeTopology"]["matchLabels"][ZONE]: each["capacity"] for each in found}


async def test_every_node_publishes_its_room_and_the_driver_says_so() -> None:
    async with DistributedCluster(["a", "b"], capacity=10 * GIB) as cluster:
        cluster.create_class("local")
        await cluster.settle()
        assert published(cluster) == {"a": "10Gi", "b": "10Gi"}
        (one, _) = cluster.api.all("csistoragecapacities")
        assert one["metadata"]["namespace"] == "volplane-system"
        assert one["metadata"]["name"].startswith("csisc-")
        labels = one["metadata"]["labels"]
        assert (labels[names.CAPACITY_DRIVER], labels[names.CAPACITY_PUBLISHER]) == (NODE_DRIVER, "volplane")
        (owner,) = one["metadata"]["ownerReferences"]
        node = cluster.api.get("nodes", owner["name"])
        assert node is not None
        assert owner["uid"] == node["metadata"]["uid"]
        driver = cluster.api.get("csidrivers", NODE_DRIVER)
        assert driver is not None
        assert driver["spec"]["storageCapacity"] is True
        assert driver["spec"]["attachRequired"] is False


async def test_published_room_follows_what_is_made_and_deleted_and_what_others_take() -> None:
    async with DistributedCluster(["a"], capacity=10 * GIB) as cluster:
        cluster.create_class("local")
        cluster.create_claim("data", "local", "3Gi")
        await cluster.advance(2)
        assert published(cluster) == {"a": "7Gi"}
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.advance(2)
        assert published(cluster) == {"a": "10Gi"}
        cluster.disks["a"].capacity_bytes = 4 * GIB
        await cluster.advance(70)
        assert published(cluster) == {"a": "4Gi"}


async def test_a_node_that_gives_a_claim_back_says_at_once_how_much_room_there_is() -> None:
    """Else the scheduler, which goes by what is published, would choose it again."""
    async with DistributedCluster(["a", "b"], capacity=10 * GIB) as cluster:
        cluster.create_class("late", late=True)
        await cluster.settle()
        cluster.disks["a"].capacity_bytes = GIB // 2
        cluster.create_claim("data", "late", node="a")
        await cluster.advance(2)
        assert selected(cluster.claim("data")) is None
        assert published(cluster) == {"a": "512Mi", "b": "10Gi"}


async def test_room_goes_with_its_class_and_with_its_node() -> None:
    async with DistributedCluster(["a", "b"]) as cluster:
        cluster.create_class("local")
        cluster.create_class("more")
        await cluster.settle()
        assert len(cluster.api.all("csistoragecapacities")) == 4
        cluster.api.delete("storageclasses", "more")
        await cluster.settle()
        assert len(cluster.api.all("csistoragecapacities")) == 2
        await cluster.kill("a")
        cluster.api.delete("nodes", "a")
        await cluster.settle()
        assert list(published(cluster)) == ["b"]


@pytest.mark.parametrize(
    "edit",
    [
        {"capacity": "1Ei"},
        {"capacity": None},
        {"metadata": {"labels": {names.NODE: None}}},
        {"metadata": {"labels": {names.CAPACITY_DRIVER: "other", names.CAPACITY_PUBLISHER: "me"}}},
        {"metadata": {"ownerReferences": None}},
    ],
)
async def test_what_somebody_edits_on_published_room_is_put_right(edit: dict[str, Any]) -> None:
    async with DistributedCluster(["a"], capacity=10 * GIB) as cluster:
        cluster.create_class("local")
        await cluster.settle()
        (before,) = cluster.api.all("csistoragecapacities")
        cluster.api.patch("csistoragecapacities", before["metadata"]["name"], edit, "volplane-system")
        await cluster.advance(120)
        (after,) = cluster.api.all("csistoragecapacities")
        for each in (before, after):
            del each["metadata"]["resourceVersion"]
        assert after == before


async def test_two_processes_of_one_node_do_not_write_their_figures_over_each_others() -> None:
    """As while a Lease was edited: the figure of the one is older than that of the other."""
    async with DistributedCluster(["a"], capacity=10 * GIB) as cluster:
        cluster.create_class("local")
        await cluster.advance(30)
        await cluster.start("a", twin=True)
        processes = [cluster.scripts["a"], cluster.scripts["a#2"]]
        for script in processes:
            script.latency = 0.005
            script.requests.clear()
        cluster.disks["a"].capacity_bytes = 4 * GIB
        await asyncio.sleep(180)
        assert published(cluster) == {"a": "4Gi"}
        written = [request for script in processes for request in script.requests if request.verb == "patch"]
        assert len(written) <= 2


async def test_no_room_is_published_for_a_node_that_is_gone_though_its_process_has_not_heard_of_it() -> None:
    """The object is collected with the node; who made it again, would make it again and again."""
    async with DistributedCluster(["a"], capacity=10 * GIB) as cluster:
        cluster.create_class("local")
        await cluster.settle()
        cluster.scripts["a"].latency = 0.005
        cluster.scripts["a"].add(requests("watch", "nodes"), unanswered, times=1e9)
        cluster.server.end_watches()
        cluster.api.delete("nodes", "a")
        cluster.scripts["a"].requests.clear()
        await asyncio.sleep(30)
        assert published(cluster) == {}
        assert not [each for each in cluster.scripts["a"].requests if each.verb == "create" and each.status == 201]


async def test_claims_go_where_room_is_and_nothing_is_promised_twice() -> None:
    async with DistributedCluster(["a", "b", "c"], capacity=10 * GIB) as cluster:
        cluster.disks["b"].capacity_bytes = 3 * GIB
        cluster.disks["c"].capacity_bytes = GIB
        cluster.create_class("local")
        await cluster.settle()
        for number in range(7):
            cluster.create_claim(f"c{number}", "local", "2Gi")
        await cluster.settle()
        nodes = [cluster.node_of(f"c{number}") for number in range(7)]
        assert {node: nodes.count(node) for node in "abc"} == {"a": 5, "b": 1, "c": 0}
        assert nodes.count("") == 1
        given_back = f'"{names.SELECTED_NODE}":null'.encode()
        assert not any(
            given_back in (each.request.body or b"") for node in "abc" for each in cluster.scripts[node].requests
        )
        waiting = f"c{nodes.index('')}"
        told = [e["message"] for e in cluster.api.events(cluster.claim(waiting)) if e["reason"] == "ProvisioningFailed"]
        assert told == ["no node can take it; of the nodes are 3 without room for it"]
        cluster.api.delete("persistentvolumeclaims", f"c{nodes.index('a')}")
        await cluster.advance(5)
        assert cluster.node_of(waiting) == "a"


async def test_a_new_class_is_not_crowded_on_the_first_node_that_publishes_room_for_it() -> None:
    async with DistributedCluster(["a", "b", "c"]) as cluster:
        for node in "bc":
            cluster.scripts[node].add(requests("create", "csistoragecapacities"), delay(5.0), times=1e9)
        cluster.create_class("local")
        await asyncio.sleep(1)
        assert list(published(cluster)) == ["a"]
        for number in range(6):
            cluster.create_claim(f"c{number}", "local")
        await cluster.settle()
        nodes = [cluster.node_of(f"c{number}") for number in range(6)]
        assert {node: nodes.count(node) for node in "abc"} == {"a": 2, "b": 2, "c": 2}


async def test_most_room_and_turns_by_class_parameter() -> None:
    async with DistributedCluster(["a", "b"], capacity=10 * GIB) as cluster:
        cluster.disks["b"].capacity_bytes = 20 * GIB
        cluster.create_class("most", parameters={names.PLACEMENT: "most-room"})
        cluster.create_class("turns", parameters={names.PLACEMENT: "round-robin"})
        cluster.create_class("wrong", parameters={names.PLACEMENT: "most"})
        await cluster.settle()
        for number in range(4):
            cluster.create_claim(f"m{number}", "most")
            cluster.create_claim(f"t{number}", "turns")
        wrong = cluster.create_claim("w", "wrong")
        await cluster.settle()
        assert {cluster.node_of(f"m{number}") for number in range(4)} == {"b"}
        assert sorted(cluster.node_of(f"t{number}") for number in range(4)) == ["a", "a", "b", "b"]
        (event,) = [each for each in cluster.api.events(wrong) if each["reason"] == "ProvisioningFailed"]
        assert "parameter 'volplane.dev/placement' is 'most', expected one of" in event["message"]


# --- without an assigner ------------------------------------------------------------------------------------------


async def test_in_a_race_every_claim_is_made_once_by_whoever_takes_it_first() -> None:
    async with DistributedCluster(["a", "b", "c"], race=(400.0, 1200.0)) as cluster:
        cluster.create_class("local")
        for number in range(9):
            cluster.create_claim(f"c{number}", "local")
        await cluster.settle()
        assert not any(selected(cluster.claim(f"c{number}")) for number in range(9))
        await cluster.advance(410)
        nodes = [cluster.node_of(f"c{number}") for number in range(9)]
        assert all(nodes)
        assert len(set(nodes)) > 1
        assert sum(map(len, cluster.assets().values())) == 9
        cluster.api.delete("persistentvolumeclaims", "c0")
        await cluster.settle()
        assert sum(map(len, cluster.assets().values())) == 8


async def test_in_a_race_a_full_node_does_not_take_part() -> None:
    async with DistributedCluster(["a", "b"], capacity=10 * GIB, race=(1.0, 4.0)) as cluster:
        cluster.disks["a"].capacity_bytes = GIB
        cluster.create_class("local")
        for number in range(4):
            cluster.create_claim(f"c{number}", "local", "2Gi")
        await cluster.advance(10)
        assert {cluster.node_of(f"c{number}") for number in range(4)} == {"b"}


async def test_in_a_race_claims_of_selected_nodes_are_made_there_at_once() -> None:
    async with DistributedCluster(["a", "b"], race=(20.0, 60.0)) as cluster:
        cluster.create_class("late", late=True)
        cluster.create_claim("data", "late", node="b")
        await cluster.settle()
        assert cluster.node_of("data") == "b"


async def test_in_a_race_a_claim_that_was_taken_for_a_node_stays_with_it_when_it_registers_again() -> None:
    async with DistributedCluster(["a"], race=(0.5, 5.0)) as cluster:
        cluster.create_class("local")
        await cluster.settle()
        cluster.scripts["a"].add(requests("create", "persistentvolumes"), unanswered, times=1e9)
        cluster.create_claim("data", "local")
        await cluster.advance(8)
        assert selected(cluster.claim("data")) == "a"
        cluster.api.delete("nodes", "a")
        await cluster.advance(5)
        cluster.create_node("a")
        cluster.scripts["a"].faults.clear()
        await cluster.advance(120)
        assert cluster.node_of("data") == "a"
        assert len(cluster.assets()["a"]) == 1


async def test_in_a_race_claims_are_looked_at_as_soon_as_the_node_can_take_them() -> None:
    async with DistributedCluster(["a"], race=(0.5, 5.0)) as cluster:
        cluster.create_class("local")
        await cluster.settle()
        cluster.api.delete("nodes", "a")
        await cluster.advance(2)
        cluster.create_claim("first", "local")
        await cluster.advance(10)
        cluster.create_node("a")
        await cluster.advance(10)
        assert cluster.node_of("first") == "a"
        cluster.set_ready("a", ready=False)
        await cluster.advance(2)
        cluster.create_claim("second", "local")
        await cluster.advance(10)
        cluster.set_ready("a", ready=True)
        await cluster.advance(10)
        assert cluster.node_of("second") == "a"


async def test_two_nodes_with_one_label_do_not_write_the_room_of_that_place_in_turns() -> None:
    async with DistributedCluster(["a", "b"]) as cluster:
        cluster.create_class("local")
        await cluster.settle()
        cluster.api.patch("nodes", "b", {"metadata": {"labels": {ZONE: "a"}}})
        await cluster.settle()
        before = len(cluster.scripts["a"].requests) + len(cluster.scripts["b"].requests)
        await cluster.advance(600)
        (room,) = [each for each in cluster.api.all("csistoragecapacities") if each["nodeTopology"]]
        assert room["metadata"]["ownerReferences"][0]["name"] == "a"
        assert len(cluster.scripts["a"].requests) + len(cluster.scripts["b"].requests) < before + 300
