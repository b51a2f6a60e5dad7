"""Objects that were deleted and made again under their names, and second attachments: no disk of a pod is detached."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from scenarios.attached_world import a_world
from scenarios.test_attachment_faults import AttachesAnywhere
from volplane import (
    AttachRequest,
    BackendError,
    DetachRequest,
    Done,
    InvalidArgument,
    Throttled,
    Unavailable,
    VolumeInUse,
    hookimpl,
)
from volplane.controller.metrics import Metrics
from volplane.process.duties import ALL_CONTROLLERS
from volplane_testing import Cluster, FailAfter, FailBefore, FaultyBackend
from volplane_testing.memory import DRIVER, MemoryBackend, MemoryStorage


class Counted(MemoryBackend):
    """Notes the calls that change what is attached; `attached_to` of its assets are names of nodes."""

    def __init__(self, storage: MemoryStorage, calls: list[str]) -> None:
        super().__init__(storage=storage)
        self._calls = calls

    @hookimpl
    def attach(self, request: AttachRequest) -> Any:
        self._calls.append(f"attach {request.node.name} {request.node.uid[:4]}")
        return super().attach(request)

    @hookimpl
    def detach(self, request: DetachRequest) -> Done:
        self._calls.append(f"detach {request.node.name}")
        done: Done = super().detach(request)
        return done


class Site:
    """A cluster with the whole control plane, a bound claim and a pod on node-1 that has it mounted."""

    def __init__(self, cluster: Cluster, storage: MemoryStorage, calls: list[str]) -> None:
        self.cluster, self.api, self.storage, self.calls = cluster, cluster.api, storage, calls
        self.volume: Any = None

    def register(self, name: str, provider_id: str = "", boot: str = "") -> None:
        """Register a Node, as a kubelet does that has just been started: it does not know yet what is in use."""
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": _time(0), "lastHeartbeatTime": _time(0)}
        key = "volumes.kubernetes.io/controller-managed-attach-detach"
        body = {
            "metadata": {"name": name, "annotations": {key: "true"}},
            "spec": {"providerID": provider_id} if provider_id else {},
            "status": {"conditions": [ready], "nodeInfo": {"bootID": boot}},
        }
        self.api.create("nodes", body)

    def report(self, node: str, *volumes: str) -> None:
        """Write the node's status, some time after it was ready."""
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": _time(0), "lastHeartbeatTime": _time(40)}
        body = {"status": {"volumesInUse": list(volumes) or None, "conditions": [ready]}}
        self.api.patch("nodes", node, body, subresource="status")

    def start_pod(self, name: str, node: str) -> None:
        used = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
        container = {"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
        spec = {"nodeName": node, "containers": [container], "volumes": [used]}
        self.api.create("pods", {"metadata": {"name": name}, "spec": spec})

    def remove(self, resource: str, name: str) -> None:
        """Delete without waiting for a kubelet."""
        path = f"/api/v1/namespaces/default/{resource}/{name}"
        headers = {"content-type": "application/json"}
        self.cluster.server.handle("DELETE", path, {}, headers, b'{"gracePeriodSeconds": 0}')

    @property
    def unique(self) -> str:
        csi = self.volume["spec"]["csi"]
        return f"kubernetes.io/csi/{csi['driver']}^{csi['volumeHandle']}"

    @property
    def attached_to(self) -> list[str]:
        return next(iter(self.storage.assets.values())).attached_to

    def attachments(self) -> list[tuple[str, str]]:
        return [(each["metadata"]["name"], each["spec"]["nodeName"]) for each in self.api.all("volumeattachments")]


def _time(second: int) -> str:
    return f"2026-01-01T00:00:{second:02}Z"


@asynccontextmanager
async def a_site(provider_id: str = "", boot: str = "boot-1") -> AsyncIterator[Site]:
    storage, calls = MemoryStorage(), list[str]()
    async with Cluster({DRIVER: lambda: Counted(storage, calls)}) as cluster:
        site = Site(cluster, storage, calls)
        site.register("node-1", provider_id, boot)
        site.register("node-2")
        await cluster.create_class("fast", reclaim_policy="Retain")
        site.volume = await cluster.wait_bound(await cluster.create_claim("data", storage_class="fast"))
        site.start_pod("first", "node-1")
        site.report("node-1", site.unique)
        await cluster.advance(10.0)
        assert site.attached_to == ["node-1"]
        site.calls.clear()
        yield site


# --- a node registered again --------------------------------------------------------------------------------------


async def test_a_node_that_its_kubelet_registers_again_keeps_the_disks_of_its_running_pods() -> None:
    for provider_id, boot in (("gce://p/z/node-1", "boot-1"), ("gce://p/z/node-1", ""), ("", "boot-1"), ("", "")):
        async with a_site(provider_id, boot) as site:
            site.api.delete("nodes", "node-1")
            await site.cluster.advance(15.0)
            site.register("node-1", provider_id, boot)
            await site.cluster.advance(9.0)
            assert site.calls == []
            site.report("node-1", site.unique)
            await site.cluster.advance(400.0)
            assert not any("detach" in call for call in site.calls)
            [attachment] = site.api.all("volumeattachments")
            assert attachment["status"]["attached"] is True


async def test_what_is_being_unmounted_while_its_node_registers_again_is_detached_after_its_report() -> None:
    async with a_site("gce://p/z/node-1") as site:
        site.api.delete("nodes", "node-1")
        site.remove("pods", "first")
        site.register("node-1", "gce://p/z/node-1", "boot-1")
        await site.cluster.advance(60.0)
        assert site.attached_to == ["node-1"], "the kubelet has not said that it is unmounted"
        listed = site.api.get("nodes", "node-1")["status"]["volumesAttached"]
        assert [each["name"] for each in listed] == [site.unique]
        site.report("node-1", site.unique)
        await site.cluster.advance(60.0)
        assert site.attached_to == ["node-1"]
        site.report("node-1")
        await site.cluster.advance(10.0)
        assert site.attached_to == []


async def test_a_pass_over_everything_looks_at_what_is_attached_and_at_what_is_wanted() -> None:
    async with a_site() as site:
        controller = site.cluster.controllers.plane.controllers["attach-detach"]
        assert set(filter(None, controller.resync())) == {f"node-1/{site.unique}"}
        metrics = Metrics()
        assert controller.measure is not None
        controller.measure(metrics)
        assert 'state="actual_state_of_world"} 1.0' in metrics.exposition().decode()


async def test_an_attachment_for_the_attacher_beside_it_costs_two_writes() -> None:
    async with a_site() as site:
        written = [call for call in site.cluster.requests if call.resource.startswith("volumeattachments")]
        writes = [f"{call.verb} {call.resource}" for call in written if call.verb in ("create", "patch")]
        assert writes == ["create volumeattachments", "patch volumeattachments/status"]


async def test_a_pod_that_is_there_before_its_node_gets_its_volume_once_that_registers() -> None:
    async with a_site() as site:
        site.remove("pods", "first")
        site.report("node-1")
        await site.cluster.advance(10.0)
        site.start_pod("early", "node-3")
        await site.cluster.advance(10.0)
        assert site.attached_to == []
        site.register("node-3")
        await site.cluster.advance(10.0)
        assert site.attached_to == ["node-3"]


async def test_a_new_machine_with_the_id_of_the_former_one_gets_the_disk() -> None:
    async with a_site("gce://p/z/node-1") as site:
        site.api.delete("nodes", "node-1")
        site.attached_to.clear()  # The cloud detaches what was attached to the machine that it deletes.
        site.register("node-1", "gce://p/z/node-1", "boot-2")
        site.report("node-1", site.unique)
        await site.cluster.advance(30.0)
        assert site.attached_to == ["node-1"]
        assert not any("detach" in call for call in site.calls)


async def test_a_failure_to_attach_again_takes_no_disk_from_a_pod() -> None:
    async with a_site("gce://p/z/node-1") as site:
        site.api.delete("nodes", "node-1")
        asset = next(iter(site.storage.assets.values()))
        asset.attached_to[:] = ["another"]  # The backend refuses.
        site.register("node-1", "gce://p/z/node-1", "boot-2")
        site.report("node-1", site.unique)
        await site.cluster.advance(60.0)
        [attachment] = site.api.all("volumeattachments")
        assert attachment["status"]["attached"] is True
        assert not any("detach" in call for call in site.calls)


# --- a volume restored under its name -----------------------------------------------------------------------------


async def test_a_volume_restored_under_its_name_with_another_disk_is_attached() -> None:
    async with a_site() as site:
        name = site.volume["metadata"]["name"]
        site.api.delete("nodes", "node-1")
        site.remove("pods", "first")
        await site.cluster.advance(10.0)
        site.api.delete("persistentvolumeclaims", "data")
        await site.cluster.advance(30.0)
        site.api.delete("persistentvolumes", name)
        await site.cluster.advance(10.0)
        [old] = site.storage.assets.values()
        new = dataclasses.replace(old, handle="memory-2", name="restored", owner=None, attached_to=[])
        site.storage.assets["restored"] = new
        source = {"csi": {"driver": DRIVER, "volumeHandle": "memory-2"}}
        reference = {"namespace": "default", "name": "data"}
        await site.cluster.create_volume(name, source, storage_class="fast", claimRef=reference)
        await site.cluster.wait_bound(await site.cluster.create_claim("data", storage_class="fast", volumeName=name))
        site.start_pod("second", "node-2")
        site.report("node-2", f"kubernetes.io/csi/{DRIVER}^memory-2")
        await site.cluster.advance(10.0)
        assert new.attached_to == ["node-2"], "the former disk is no reason to wait"
        assert old.attached_to == ["node-1"], "its node may still use it"
        await site.cluster.advance(400.0)
        assert (new.attached_to, old.attached_to) == (["node-2"], [])
        assert [node for _, node in site.attachments()] == ["node-2"]


async def test_an_attachment_of_the_former_disk_never_attaches_the_restored_one() -> None:
    async with a_world() as world:
        await world.attach("node-1")
        spec, old = world.api.get("persistentvolumes", world.volume)["spec"], world.asset
        world.api.delete("persistentvolumes", world.volume)
        world.api.patch("persistentvolumes", world.volume, {"metadata": {"finalizers": None}})
        new = dataclasses.replace(old, handle="memory-2", name="restored", owner=None, attached_to=[])
        world.storage.assets["restored"] = new
        kept = {key: spec[key] for key in ("accessModes", "capacity")}
        csi = {"csi": {"driver": DRIVER, "volumeHandle": "memory-2"}}
        world.api.create("persistentvolumes", {"metadata": {"name": world.volume}, "spec": {**kept, **csi}})
        old.attached_to.clear()
        for _ in range(2):
            await world.compare()
            await world.cluster.advance(30.0)
        assert new.attached_to == []
        status = await world.later("to-node-1")
        assert "was made again for another asset" in status["attachError"]["message"]


# --- two attachments ----------------------------------------------------------------------------------------------


async def test_of_two_attachments_to_one_node_the_end_of_one_detaches_nothing() -> None:
    async with a_site() as site:
        source = {"persistentVolumeName": site.volume["metadata"]["name"]}
        spec = {"attacher": DRIVER, "nodeName": "node-1", "source": source}
        site.api.create("volumeattachments", {"metadata": {"name": "rescue"}, "spec": spec})
        await site.cluster.advance(10.0)
        site.calls.clear()
        site.api.delete("volumeattachments", "rescue")
        await site.cluster.advance(30.0)
        assert site.calls == []
        assert "rescue" not in dict(site.attachments())
        site.remove("pods", "first")
        site.report("node-1")
        await site.cluster.advance(30.0)
        assert site.attached_to == [], "the last one detaches it"
        assert site.attachments() == []


async def test_the_later_of_two_attachments_detaches_when_both_are_deleted() -> None:
    async with a_world() as world:
        await world.attach("node-1")
        spec = {"attacher": DRIVER, "nodeName": "node-1", "source": {"persistentVolumeName": world.volume}}
        world.api.create("volumeattachments", {"metadata": {"name": "rescue"}, "spec": spec})
        await world.cluster.advance(10.0)
        for name in ("rescue", "to-node-1"):
            world.api.delete("volumeattachments", name)
        await world.cluster.advance(30.0)
        assert world.asset.attached_to == []
        assert world.api.all("volumeattachments") == []


# --- an attach of unknown outcome ---------------------------------------------------------------------------------


class NotTheFirstNode(AttachesAnywhere):
    """Knows that node-1 can have nothing."""

    @hookimpl
    def attach(self, request: AttachRequest) -> Any:
        if request.node.name == "node-1":
            raise InvalidArgument("it has no port")
        return super().attach(request)


@asynccontextmanager
async def beside_stock(
    *faults: Any, backend: type[MemoryBackend] = AttachesAnywhere, most_attached: int | None = None
) -> AsyncIterator[tuple[Cluster, Any, str]]:
    """Only the attacher is ours, its storage allows several nodes, and the first process meets these faults."""
    storage, made = MemoryStorage(most_attached=most_attached), list[FaultyBackend]()

    def faulty() -> FaultyBackend:
        made.append(FaultyBackend(backend(storage=storage), {} if made else {"attach": list(faults)}))
        return made[-1]

    controllers = frozenset(ALL_CONTROLLERS) - {"attach-detach"}
    async with Cluster({DRIVER: faulty}, controllers=controllers) as cluster:
        for name in ("node-1", "node-2"):
            cluster.api.create("nodes", {"metadata": {"name": name}, "spec": {"providerID": f"memory:///{name}"}})
        await cluster.create_class("fast")
        volume = await cluster.wait_bound(await cluster.create_claim("data", storage_class="fast"))
        [asset] = storage.assets.values()
        yield cluster, asset, volume["metadata"]["name"]


def ask(cluster: Cluster, node: str, volume: str, name: str = "") -> None:
    spec = {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": volume}}
    cluster.api.create("volumeattachments", {"metadata": {"name": name or f"to-{node}"}, "spec": spec})


def status_of(cluster: Cluster, node: str) -> Any:
    return cluster.api.get("volumeattachments", f"to-{node}")["status"]


async def test_while_the_outcome_of_an_attach_is_unknown_no_second_node_gets_the_volume() -> None:
    async with beside_stock(*[FailAfter()] * 4) as (cluster, asset, volume):
        ask(cluster, "node-1", volume)
        await cluster.advance(2.0)
        ask(cluster, "node-2", volume)
        await cluster.advance(60.0)
        assert set(asset.attached_to) == {"node-1"}
        assert "attached to node-1 by to-node-1" in status_of(cluster, "node-2")["attachError"]["message"]
        cluster.api.delete("volumeattachments", "to-node-1")
        await cluster.advance(130.0)
        assert status_of(cluster, "node-2")["attached"] is True


async def test_another_process_does_not_attach_it_elsewhere_either() -> None:
    async with beside_stock(FailAfter()) as (cluster, asset, volume):
        ask(cluster, "node-1", volume)
        await cluster.advance(0.2)
        assert status_of(cluster, "node-1")["attached"] is False
        ask(cluster, "node-2", volume)
        await cluster.restart()
        await cluster.advance(60.0)
        assert set(asset.attached_to) == {"node-1"}
        assert status_of(cluster, "node-1")["attached"] is True


async def test_an_attach_that_is_known_to_have_failed_keeps_the_volume_from_no_other_node() -> None:
    async with beside_stock(backend=NotTheFirstNode) as (cluster, asset, volume):
        ask(cluster, "node-1", volume)
        await cluster.advance(5.0)
        assert status_of(cluster, "node-1")["attachError"]["message"] == "it has no port"
        ask(cluster, "node-2", volume)
        await cluster.advance(700.0)
        assert asset.attached_to == ["node-2"]
        assert status_of(cluster, "node-2")["attached"] is True


async def test_a_later_refusal_proves_nothing_about_an_attach_of_unknown_outcome() -> None:
    refusals = [FailBefore(InvalidArgument("not so"))] * 3
    async with beside_stock(FailAfter(), *refusals) as (cluster, asset, volume):
        ask(cluster, "node-1", volume)
        await cluster.advance(3.0)
        assert status_of(cluster, "node-1")["attachError"]["message"] == "not so"
        ask(cluster, "node-2", volume)
        await cluster.advance(500.0)
        assert set(asset.attached_to) == {"node-1"}


class RefusesAfterAnEffect(AttachesAnywhere):
    """Attaches to node-1 without an answer, and then refuses that with this error."""

    refusal: type[BackendError] = InvalidArgument

    @hookimpl
    def attach(self, request: AttachRequest) -> Any:
        if request.node.name == "node-1":
            if self._there(request.volume).attached_to:
                raise self.refusal("it has no port")
            super().attach(request)
            raise Unavailable("no answer")
        return super().attach(request)


class IsInUse(RefusesAfterAnEffect):
    refusal = VolumeInUse


@pytest.mark.parametrize("backend", [RefusesAfterAnEffect, IsInUse])
async def test_nor_does_it_to_another_process(backend: type[MemoryBackend]) -> None:
    async with beside_stock(backend=backend) as (cluster, asset, volume):
        ask(cluster, "node-1", volume)
        await cluster.advance(3.0)
        assert status_of(cluster, "node-1")["attachError"]["message"] == "it has no port"
        await cluster.restart()
        ask(cluster, "node-2", volume)
        await cluster.advance(500.0)
        assert asset.attached_to == ["node-1"]
        cluster.api.delete("volumeattachments", "to-node-1")
        await cluster.advance(700.0)
        assert asset.attached_to == ["node-2"]


class DetachesNothing(AttachesAnywhere):
    """Attaches to node-1 without an answer, and sends no `detach`."""

    @hookimpl
    def attach(self, request: AttachRequest) -> Any:
        attached = super().attach(request)
        if request.node.name == "node-1":
            raise Unavailable("no answer")
        return attached

    @hookimpl
    def detach(self, request: DetachRequest) -> Done:
        raise Throttled("nothing was sent", retry_after=30.0, nothing_done=True)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_detach_that_did_nothing_proves_nothing_about_an_attach(*, restarts: bool) -> None:
    async with beside_stock(backend=DetachesNothing) as (cluster, asset, volume):
        if restarts:  # The next process knows of no failure of `attach`.
            cluster.fail("patch", "volumeattachments/status", times=10)
        ask(cluster, "node-1", volume)
        await cluster.advance(2.0)
        if restarts:
            await cluster.restart()
        cluster.api.delete("volumeattachments", "to-node-1")
        cluster.heal()
        await cluster.advance(5.0)
        assert status_of(cluster, "node-1")["detachError"]["message"] == "nothing was sent"
        ask(cluster, "node-2", volume)
        await cluster.advance(100.0)
        assert set(asset.attached_to) == {"node-1"}


class RefusesAtFirst(AttachesAnywhere):
    """Refuses node-2 once, or every time but for the second. What comes of that second call, no status ever shows."""

    clusters: ClassVar[list[Cluster]] = []
    calls: ClassVar[list[str]] = []

    @hookimpl
    def attach(self, request: AttachRequest) -> Any:
        self.calls.append(request.node.name)
        if request.node.name == "node-2":
            if (tries := self.calls.count("node-2")) == 1 or (tries > 2 and self.goes_on):
                raise InvalidArgument("it has no port")
            if tries == 2:
                self.clusters[-1].fail("patch", "volumeattachments/status", times=10**6)
        return super().attach(request)

    goes_on = False


class RefusesButOnce(RefusesAtFirst):
    goes_on = True


@pytest.mark.parametrize("backend", [RefusesAtFirst, RefusesButOnce])
async def test_a_refusal_proves_nothing_about_the_attach_after_it(backend: type[RefusesAtFirst]) -> None:
    async with beside_stock(backend=backend) as (cluster, asset, volume):
        backend.clusters.append(cluster)
        backend.calls.clear()
        ask(cluster, "node-2", volume)
        await cluster.advance(1.0)
        assert status_of(cluster, "node-2")["attachError"]["errorCode"] == 3
        await cluster.advance(400.0)
        assert asset.attached_to == ["node-2"]
        ask(cluster, "node-1", volume)
        await cluster.advance(20.0)
        assert status_of(cluster, "node-2")["attached"] is False
        cluster.heal()
        await cluster.restart()
        await cluster.advance(500.0)
        assert set(asset.attached_to) == {"node-2"}


async def test_a_volume_that_one_node_never_gets_can_be_attached_to_another_one_after_a_restart() -> None:
    """Therefore a shown refusal is withdrawn before the next call, by a write, and is believed until then."""
    async with beside_stock(backend=NotTheFirstNode) as (cluster, asset, volume):
        ask(cluster, "node-1", volume)
        await cluster.advance(5.0)
        await cluster.restart()
        await cluster.advance(400.0)
        assert status_of(cluster, "node-1")["attachError"]["errorCode"] == 3
        await cluster.restart()
        ask(cluster, "node-2", volume)
        await cluster.advance(700.0)
        assert asset.attached_to == ["node-2"]


async def test_a_node_that_is_full_keeps_the_volume_from_no_other_node() -> None:
    """The backend proves that it has attached nothing."""
    async with beside_stock(backend=MemoryBackend, most_attached=1) as (cluster, asset, volume):
        other = await cluster.wait_bound(await cluster.create_claim("other", storage_class="fast"))
        ask(cluster, "node-1", other["metadata"]["name"], "full")
        await cluster.advance(5.0)
        ask(cluster, "node-1", volume)
        await cluster.advance(5.0)
        assert "node-1 has 1 assets" in status_of(cluster, "node-1")["attachError"]["message"]
        ask(cluster, "node-2", volume)
        await cluster.advance(30.0)
        assert asset.attached_to == ["node-2"]
