"""The scheduler and the registration of nodes against an embedded server, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from volplane.attach.desired import has_reported
from volplane.controller.actions import EventRecord
from volplane.errors import ApiNotFound
from volplane.kube.client import Client
from volplane.kube.kinds import CAPACITIES, CLAIMS, CSI_DRIVERS, LEASES, NODES, STORAGE_CLASSES, VOLUMES
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.informers import Informers
from volplane_embedded.inprocess import InProcessTransport
from volplane_embedded.kubelet.node_status import NodeRegistration, node_labels, node_names
from volplane_embedded.objects import PODS, Pod
from volplane_embedded.scheduler.scheduler import Scheduler
from volplane_testing.clock import now

SELECTED = "volume.kubernetes.io/selected-node"


class Told:
    """A recorder that remembers."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def record(self, event: EventRecord) -> None:
        self.said.append((event.reason, event.message))


class Bench:
    def __init__(self) -> None:
        self.server = ApiServer(now=now, random=Random(1))
        self.client = Client(InProcessTransport(self.server))
        self.informers = Informers()
        self.told = Told()

    async def register(self, *names: str) -> None:
        await NodeRegistration(self.client, names, exists=lambda _: True, now=now).register()

    async def pod(self, name: str, *claims: str, **spec: Any) -> None:
        volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
        containers = [{"name": "main", "image": "x"}]
        body = PODS.body(
            metadata={"name": name, "namespace": "default"}, spec={"containers": containers, "volumes": volumes, **spec}
        )
        await self.client.create(PODS, body)

    async def claim(self, name: str, storage_class: str) -> None:
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": storage_class,
        }
        await self.client.create(CLAIMS, CLAIMS.body(metadata={"name": name, "namespace": "default"}, spec=spec))

    async def get(self, name: str) -> Pod:
        return await self.client.get(PODS, f"default/{name}")

    async def node_of(self, name: str) -> str:
        """Where the pod is, a second later."""
        await asyncio.sleep(1)
        return (await self.get(name)).spec.node_name


@asynccontextmanager
async def scheduling() -> AsyncIterator[Bench]:
    bench = Bench()
    scheduler = Scheduler(bench.client, bench.informers, recorder=bench.told, now=now)
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(bench.informers.follow(bench.client, Random(1))),
            tasks.create_task(scheduler.run()),
        ]
        yield bench
        for task in running:
            task.cancel()
    bench.server.close()


async def test_a_pod_waits_until_there_is_a_node() -> None:
    async with scheduling() as bench:
        await bench.pod("early")
        assert await bench.node_of("early") == ""
        assert ("FailedScheduling", "no nodes available to schedule pods") in bench.told.said
        await bench.register("node-1")
        assert await bench.node_of("early") == "node-1"
        assert ("Scheduled", "Successfully assigned default/early to node-1") in bench.told.said


async def test_pods_are_spread_over_the_nodes() -> None:
    async with scheduling() as bench:
        await bench.register("node-1", "node-2")
        await asyncio.gather(*(bench.pod(f"pod-{number}") for number in range(6)))
        nodes = [await bench.node_of(f"pod-{number}") for number in range(6)]
        assert sorted(nodes) == ["node-1"] * 3 + ["node-2"] * 3
        assert len([reason for reason, _ in bench.told.said if reason == "Scheduled"]) == 6


async def test_a_full_node_takes_the_next_pod_when_one_ends() -> None:
    async with scheduling() as bench:
        await bench.register("node-1")
        await bench.client.patch(NODES, "node-1", {"status": {"allocatable": {"pods": "1"}}}, subresource="status")
        await bench.pod("first")
        assert await bench.node_of("first") == "node-1"
        await bench.pod("second")
        assert await bench.node_of("second") == ""
        assert ("FailedScheduling", "0/1 nodes are available: 1 Too many pods.") in bench.told.said
        await bench.client.patch(PODS, "default/first", {"status": {"phase": "Succeeded"}}, subresource="status")
        assert await bench.node_of("second") == "node-1"


async def test_a_claim_that_waits_gets_a_node_and_another_one_when_that_is_taken_back() -> None:
    async with scheduling() as bench:
        await bench.register("node-1", "node-2")
        body = STORAGE_CLASSES.body(
            metadata={"name": "late"}, provisioner="x.example.com", volumeBindingMode="WaitForFirstConsumer"
        )
        await bench.client.create(STORAGE_CLASSES, body)
        await bench.claim("data", "late")
        await bench.pod("web", "data")

        async def selected() -> str | None:
            await asyncio.sleep(1)
            return (await bench.client.get(CLAIMS, "default/data")).annotation(SELECTED)

        assert await selected() == "node-1"
        await bench.client.patch(NODES, "node-1", {"spec": {"unschedulable": True}})
        await bench.client.patch(CLAIMS, "default/data", {"metadata": {"annotations": {SELECTED: None}}})
        assert await selected() == "node-2"
        assert (await bench.get("web")).spec.node_name == ""


async def test_claims_go_where_room_is_published_and_wait_for_it_as_with_the_stock_scheduler() -> None:
    """What kube-scheduler 1.36.2 did with the same objects, but for the preemption that its message adds."""

    async def publish(node: str, room: str) -> None:
        await bench.client.patch(CAPACITIES, f"default/room-{node}", {"capacity": room})

    async def selected() -> str | None:
        await asyncio.sleep(1)
        return (await bench.client.get(CLAIMS, "default/data")).annotation(SELECTED)

    async with scheduling() as bench:
        await bench.register("node-1", "node-2")
        maker = "x.example.com"
        body = STORAGE_CLASSES.body(
            metadata={"name": "late"}, provisioner=maker, volumeBindingMode="WaitForFirstConsumer"
        )
        await bench.client.create(STORAGE_CLASSES, body)
        await bench.client.create(
            CSI_DRIVERS, CSI_DRIVERS.body(metadata={"name": maker}, spec={"storageCapacity": True})
        )
        for node in ("node-1", "node-2"):
            room = CAPACITIES.body(
                metadata={"name": f"room-{node}", "namespace": "default"},
                storageClassName="late",
                nodeTopology={"matchLabels": {"kubernetes.io/hostname": node}},
                capacity="500Mi",
            )
            await bench.client.create(CAPACITIES, room)
        await bench.claim("data", "late")
        await bench.pod("web", "data")
        assert await selected() is None
        full = "0/2 nodes are available: 2 node(s) did not have enough free storage."
        assert ("FailedScheduling", full) in bench.told.said
        await publish("node-2", "2Gi")
        assert await selected() == "node-2"
        # Others have filled it since: it gives the claim back, and says how much room is left.
        await publish("node-2", "500Mi")
        await bench.client.patch(CLAIMS, "default/data", {"metadata": {"annotations": {SELECTED: None}}})
        assert await selected() is None
        await publish("node-1", "2Gi")
        assert await selected() == "node-1"


async def test_a_static_volume_is_reserved_for_the_claim_that_waits() -> None:
    async with scheduling() as bench:
        await bench.register("node-1")
        body = STORAGE_CLASSES.body(
            metadata={"name": "local"},
            provisioner="kubernetes.io/no-provisioner",
            volumeBindingMode="WaitForFirstConsumer",
        )
        await bench.client.create(STORAGE_CLASSES, body)
        await bench.claim("data", "local")
        await bench.pod("web", "data")
        assert await bench.node_of("web") == ""
        reason = "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind."
        assert ("FailedScheduling", reason) in bench.told.said
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "hostPath": {"path": "/x"},
        }
        await bench.client.create(VOLUMES, VOLUMES.body(metadata={"name": "disk"}, spec=spec))
        await bench.client.patch(VOLUMES, "disk", {"status": {"phase": "Available"}}, subresource="status")
        await asyncio.sleep(1)
        reference = (await bench.client.get(VOLUMES, "disk")).spec.claim_ref
        assert reference is not None
        assert (reference.name, bool(reference.uid)) == ("data", True)


async def test_nodes_are_registered_ready_untainted_and_alive() -> None:
    bench = Bench()
    nodes = NodeRegistration(bench.client, node_names(2), exists=lambda _: True, now=now)
    await nodes.register()
    await nodes.register()
    node = await bench.client.get(NODES, "node-2")
    assert node.metadata.labels == node_labels("node-2", 1)
    assert not node.spec.taints
    assert node.status.conditions is not None
    assert (node.status.conditions[0]["type"], node.status.conditions[0]["status"]) == ("Ready", "True")
    before = (await bench.client.get(LEASES, "kube-node-lease/node-2")).spec.renew_time
    beating = asyncio.create_task(nodes.run())
    await asyncio.sleep(25)
    beating.cancel()
    after = (await bench.client.get(LEASES, "kube-node-lease/node-2")).spec.renew_time
    assert before is not None
    assert after is not None
    assert after > before
    bench.server.close()


async def test_a_node_reports_that_nothing_is_in_use_only_once_that_is_known() -> None:
    bench = Bench()
    known = False
    nodes = NodeRegistration(bench.client, ["node-1"], exists=lambda _: True, now=now, synced=lambda _: known)
    await nodes.register()
    beating = asyncio.create_task(nodes.run())
    await asyncio.sleep(45)
    node = await bench.client.get(NODES, "node-1")
    assert not has_reported(node)
    assert node.status.node_info.boot_id or not Path("/proc/sys/kernel/random/boot_id").exists()
    known = True
    await asyncio.sleep(15)
    assert has_reported(await bench.client.get(NODES, "node-1"))
    beating.cancel()
    bench.server.close()


async def test_a_node_that_is_no_longer_wanted_goes_with_its_pods() -> None:
    bench = Bench()
    await bench.register("node-1", "node-2")
    await bench.pod("stays", nodeName="node-1")
    await bench.pod("goes", nodeName="node-2")
    await bench.register("node-1")
    assert (await bench.get("stays")).spec.node_name == "node-1"
    for kind, key in ((PODS, "default/goes"), (NODES, "node-2"), (LEASES, "kube-node-lease/node-2")):
        with suppress(ApiNotFound):
            await bench.client.get(kind, key)
            raise AssertionError(f"{key} is still there")
    bench.server.close()


async def test_a_node_that_somebody_deleted_comes_back() -> None:
    bench = Bench()
    exists = True
    nodes = NodeRegistration(bench.client, ["node-1"], exists=lambda _: exists, now=now)
    await nodes.register()
    beating = asyncio.create_task(nodes.run())
    await bench.client.delete(NODES, "node-1")
    exists = False
    await asyncio.sleep(15)
    beating.cancel()
    assert (await bench.client.get(NODES, "node-1")).name == "node-1"
    bench.server.close()
