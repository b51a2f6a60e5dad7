"""Generic ephemeral volumes against an embedded server, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from volplane.controller.actions import EventRecord
from volplane.controller.runner import Steps
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.ephemeral_volumes import EphemeralVolumes
from volplane_embedded.garbage_collector import GarbageCollector
from volplane_embedded.informers import Informers
from volplane_embedded.inprocess import InProcessTransport
from volplane_embedded.objects import PODS, QUOTAS, Pod
from volplane_testing.clock import now

TEMPLATE = {
    "metadata": {"labels": {"app": "db"}, "annotations": {"team": "a"}},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "x"},
}


class Bench:
    def __init__(self) -> None:
        self.server = ApiServer(now=now, random=Random(1), disabled_admission=("StorageObjectInUseProtection",))
        self.client = Client(InProcessTransport(self.server))
        self.informers = Informers()
        self.said: list[tuple[str, str]] = []

    def record(self, event: EventRecord) -> None:
        self.said.append((event.reason, event.message))

    async def pod(self, name: str = "web") -> Pod:
        volumes = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": TEMPLATE}}]
        body = PODS.body(
            metadata={"name": name, "namespace": "default"},
            spec={"containers": [{"name": "main", "image": "x"}], "volumes": volumes},
        )
        return await self.client.create(PODS, body)

    async def delete(self, name: str = "web") -> None:
        await self.client.delete(PODS, f"default/{name}", grace_seconds=0)

    async def claims(self) -> list[Any]:
        """All claims, a second later."""
        await asyncio.sleep(1)
        return (await self.client.list(CLAIMS)).items


@asynccontextmanager
async def running() -> AsyncIterator[Bench]:
    bench = Bench()
    controller = EphemeralVolumes(bench.client, bench.informers, recorder=bench)
    async with asyncio.TaskGroup() as tasks:
        followed = tasks.create_task(bench.informers.follow(bench.client, Random(1)))
        await bench.informers.wait_synced()
        collector = GarbageCollector(bench.informers, Steps(bench.client, bench.informers.caches))
        working = [tasks.create_task(each.run()) for each in (controller, collector)]
        yield bench
        for each in working:
            each.cancel()
        followed.cancel()
    bench.server.close()


async def test_a_pod_gets_a_claim_of_its_own_by_the_template() -> None:
    async with running() as bench:
        pod = await bench.pod()
        [claim] = await bench.claims()
        assert claim.name == "web-scratch"
        assert claim.spec.storage_class_name == "x"
        assert claim.metadata.labels == {"app": "db"}
        assert claim.metadata.annotations == {"team": "a"}
        [owner] = claim.metadata.owner_references
        assert (owner.kind, owner.uid, owner.controller) == ("Pod", pod.uid, True)


async def test_the_claim_goes_with_the_pod() -> None:
    async with running() as bench:
        await bench.pod()
        assert len(await bench.claims()) == 1
        await bench.delete()
        assert await bench.claims() == []


async def test_a_pod_made_again_under_its_name_gets_another_claim() -> None:
    async with running() as bench:
        await bench.pod()
        [former] = await bench.claims()
        await bench.delete()
        await bench.pod()
        [claim] = await bench.claims()
        assert claim.uid != former.uid


async def test_a_claim_that_somebody_deleted_is_made_again() -> None:
    async with running() as bench:
        await bench.pod()
        [former] = await bench.claims()
        await bench.client.delete(CLAIMS, former.key)
        [claim] = await bench.claims()
        assert claim.uid != former.uid


async def test_a_claim_of_that_name_which_is_not_the_pods_is_never_taken_over_nor_deleted() -> None:
    async with running() as bench:
        body = CLAIMS.body(metadata={"name": "web-scratch", "namespace": "default"}, spec=TEMPLATE["spec"])
        stranger = await bench.client.create(CLAIMS, body)
        await bench.pod()
        [claim] = await bench.claims()
        assert claim.uid == stranger.uid
        reason, message = bench.said[0]
        assert reason == "FailedBinding"
        assert message == (
            "ephemeral volume scratch: PVC default/web-scratch was not created for pod default/web (pod is not owner)"
        )
        await bench.delete()
        assert len(await bench.claims()) == 1


async def test_once_a_stranger_of_that_name_is_gone_the_pod_gets_its_claim() -> None:
    async with running() as bench:
        body = CLAIMS.body(metadata={"name": "web-scratch", "namespace": "default"}, spec=TEMPLATE["spec"])
        stranger = await bench.client.create(CLAIMS, body)
        pod = await bench.pod()
        assert [claim.uid for claim in await bench.claims()] == [stranger.uid]
        await bench.client.delete(CLAIMS, stranger.key)
        [claim] = await bench.claims()
        assert [owner.uid for owner in claim.metadata.owner_references] == [pod.uid]


async def test_a_claim_that_a_quota_refuses_is_said_on_the_pod_and_made_when_there_is_room() -> None:
    async with running() as bench:
        none = {"persistentvolumeclaims": "0"}
        made = QUOTAS.body(metadata={"name": "full", "namespace": "default"}, spec={"hard": none})
        await bench.client.create(QUOTAS, made)
        await bench.client.patch(QUOTAS, "default/full", {"status": {"hard": none, "used": none}}, subresource="status")
        await bench.pod()
        assert await bench.claims() == []
        reason, message = bench.said[0]
        assert reason == "FailedBinding"
        assert message.startswith("ephemeral volume scratch: create PVC web-scratch: ")
        assert "exceeded quota: full, requested: persistentvolumeclaims=1, used: persistentvolumeclaims=0" in message
        more = {"persistentvolumeclaims": "1"}
        await bench.client.patch(QUOTAS, "default/full", {"status": {"hard": more}}, subresource="status")
        await asyncio.sleep(300)
        assert [claim.name for claim in await bench.claims()] == ["web-scratch"]
        assert len(bench.said) < 10
