"""The quota controller against an embedded server, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from volplane.errors import ApiError
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, Kind
from volplane.kube.objects import KubeObject
from volplane.kube.transport import Request, Response
from volplane.snapshots.objects import VOLUME_SNAPSHOTS
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.informers import Informers
from volplane_embedded.inprocess import InProcessTransport
from volplane_embedded.objects import QUOTAS
from volplane_embedded.quota_status import QuotaStatus
from volplane_testing.clock import now

DEFINITIONS = Kind(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", False, KubeObject
)


class Interrupted(InProcessTransport):
    """A way to the server on which `once`, if it is set, is awaited before the next write."""

    once: Callable[[], Awaitable[None]] | None = None

    async def send(self, request: Request) -> Response:
        if request.method == "PATCH" and self.once is not None:
            meanwhile, self.once = self.once, None
            await meanwhile()
        return await super().send(request)


class Bench:
    def __init__(self) -> None:
        plugins = frozenset({"StorageObjectInUseProtection"})
        self.server = ApiServer(now=now, random=Random(1), disabled_admission=plugins)
        self.client = Client(InProcessTransport(self.server))
        self.way = Interrupted(self.server)
        self.informers = Informers()

    async def limit(self, name: str = "q", **hard: str) -> None:
        amounts = {key.replace("_", "."): amount for key, amount in hard.items()}
        await self.client.create(
            QUOTAS, QUOTAS.body(metadata={"name": name, "namespace": "default"}, spec={"hard": amounts})
        )

    async def claim(self, name: str = "c", size: str = "1Gi") -> None:
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
        await self.client.create(CLAIMS, CLAIMS.body(metadata={"name": name, "namespace": "default"}, spec=spec))

    async def snapshot(self, name: str) -> None:
        spec = {"source": {"persistentVolumeClaimName": "c"}}
        body = VOLUME_SNAPSHOTS.body(metadata={"name": name, "namespace": "default"}, spec=spec)
        await self.client.create(VOLUME_SNAPSHOTS, body)

    async def status(self, name: str = "q") -> dict[str, Any]:
        """A second later."""
        await asyncio.sleep(1)
        return (await self.client.get(QUOTAS, f"default/{name}")).status

    async def edit(self, body: dict[str, Any], subresource: str = "") -> None:
        await self.client.patch(QUOTAS, "default/q", body, subresource=subresource)


@asynccontextmanager
async def running(bench: Bench | None = None) -> AsyncIterator[Bench]:
    bench = bench or Bench()
    async with asyncio.TaskGroup() as tasks:
        followed = tasks.create_task(bench.informers.follow(bench.client, Random(1)))
        await bench.informers.wait_synced()
        working = tasks.create_task(QuotaStatus(Client(bench.way), bench.informers).run())
        yield bench
        working.cancel()
        followed.cancel()
    bench.server.close()


async def test_a_quota_made_after_claims_counts_them() -> None:
    async with running() as bench:
        await bench.claim()
        await bench.limit(requests_storage="3Gi", pods="4")
        assert await bench.status() == {"hard": {"requests.storage": "3Gi"}, "used": {"requests.storage": "1Gi"}}


async def test_a_quota_that_was_made_while_nobody_looked_is_measured_at_the_start() -> None:
    bench = Bench()
    await bench.limit(requests_storage="3Gi")
    await bench.claim()
    async with running(bench):
        assert (await bench.status())["used"] == {"requests.storage": "1Gi"}


async def test_what_a_deleted_claim_used_is_free_again() -> None:
    async with running() as bench:
        await bench.limit(requests_storage="1Gi", persistentvolumeclaims="1")
        await bench.status()
        await bench.claim()
        with pytest.raises(ApiError, match="exceeded quota: q, requested: persistentvolumeclaims=1,requests"):
            await bench.claim("d")
        await bench.client.delete(CLAIMS, "default/c")
        assert (await bench.status())["used"] == {"persistentvolumeclaims": "0", "requests.storage": "0"}
        await bench.claim("d")


async def test_a_claim_that_asks_for_less_frees_the_rest() -> None:
    async with running() as bench:
        await bench.limit(requests_storage="9Gi")
        await bench.claim(size="5Gi")
        await bench.client.patch(CLAIMS, "default/c", {"status": {"phase": "Bound"}}, subresource="status")
        less = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
        await bench.client.patch(CLAIMS, "default/c", less)
        assert (await bench.status())["used"] == {"requests.storage": "2Gi"}


async def test_a_claim_that_has_left_a_class_counts_for_it_no_more() -> None:
    async with running() as bench:
        scoped = {"hard": {"persistentvolumeclaims": "5"}, "scopes": ["VolumeAttributesClass"]}
        await bench.client.create(QUOTAS, QUOTAS.body(metadata={"name": "q", "namespace": "default"}, spec=scoped))
        await bench.status()
        await bench.claim()
        modified = {"status": {"modifyVolumeStatus": {"status": "Pending", "targetVolumeAttributesClassName": "gold"}}}
        await bench.client.patch(CLAIMS, "default/c", modified, subresource="status")
        assert (await bench.status())["used"] == {"persistentvolumeclaims": "1"}
        await bench.client.patch(CLAIMS, "default/c", {"status": {"modifyVolumeStatus": None}}, subresource="status")
        assert (await bench.status())["used"] == {"persistentvolumeclaims": "0"}


async def test_an_edited_quota_limits_what_it_says_now() -> None:
    async with running() as bench:
        await bench.limit(requests_storage="3Gi", persistentvolumeclaims="1")
        await bench.claim()
        await bench.edit({"spec": {"hard": {"persistentvolumeclaims": None, "requests.storage": "512Mi"}}})
        assert await bench.status() == {"hard": {"requests.storage": "512Mi"}, "used": {"requests.storage": "1Gi"}}
        await bench.edit({"spec": {"hard": None}})
        assert await bench.status() == {}


async def test_a_status_that_somebody_broke_is_written_again() -> None:
    async with running() as bench:
        await bench.limit(requests_storage="3Gi")
        await bench.claim()
        await bench.status()
        await bench.edit({"status": {"used": {"requests.storage": None}}}, "status")
        assert (await bench.status())["used"] == {"requests.storage": "1Gi"}
        await bench.edit({"status": {"used": {"requests.storage": "2Gi"}}}, "status")
        await asyncio.sleep(301)
        assert (await bench.status())["used"] == {"requests.storage": "1Gi"}


async def test_a_claim_that_is_made_while_claims_are_counted_is_not_lost() -> None:
    async with running() as bench:
        await bench.limit(requests_storage="3Gi")
        await bench.claim()
        await bench.status()
        bench.way.once = lambda: bench.claim("late")
        await bench.client.delete(CLAIMS, "default/c")
        assert (await bench.status())["used"] == {"requests.storage": "1Gi"}


async def test_of_creates_at_once_as_many_pass_as_fit() -> None:
    async with running() as bench:
        await bench.limit(persistentvolumeclaims="3")
        await bench.status()
        made = await asyncio.gather(*(bench.claim(f"c{number}") for number in range(8)), return_exceptions=True)
        assert made.count(None) == 3
        assert (await bench.status())["used"] == {"persistentvolumeclaims": "3"}


async def test_a_quota_that_goes_while_it_is_measured_is_forgotten() -> None:
    async with running() as bench:
        await bench.limit(persistentvolumeclaims="3")
        await bench.status()
        await bench.claim()
        await bench.client.delete(CLAIMS, "default/c")
        await bench.client.delete(QUOTAS, "default/q")
        await asyncio.sleep(301)
        assert (await bench.client.list(QUOTAS)).items == []


async def test_snapshots_are_counted_refused_beyond_the_quota_and_given_back_when_they_are_deleted() -> None:
    async with running() as bench:
        count = "count/volumesnapshots.snapshot.storage.k8s.io"
        await bench.snapshot("before")
        await bench.limit(**{count.replace(".", "_"): "2"})
        assert await bench.status() == {"hard": {count: "2"}, "used": {count: "1"}}
        await bench.snapshot("second")
        assert (await bench.client.get(QUOTAS, "default/q")).status["used"] == {count: "2"}, "charged at once"
        with pytest.raises(ApiError) as refused:
            await bench.snapshot("third")
        why = f"exceeded quota: q, requested: {count}=1, used: {count}=2, limited: {count}=2"
        assert refused.value.status == 403
        assert refused.value.message == f'volumesnapshots.snapshot.storage.k8s.io "third" is forbidden: {why}'
        body = {"metadata": {"labels": {"a": "b"}}}
        await bench.client.patch(VOLUME_SNAPSHOTS, "default/second", body)
        await bench.client.delete(VOLUME_SNAPSHOTS, "default/before")
        await bench.status()
        assert (await bench.status())["used"] == {count: "1"}
        await bench.snapshot("third")


async def test_a_quota_of_snapshots_limits_nothing_where_they_are_not_served() -> None:
    async with running() as bench:
        count = "count/volumesnapshots.snapshot.storage.k8s.io"
        await bench.client.delete(DEFINITIONS, "volumesnapshots.snapshot.storage.k8s.io")
        await bench.limit(**{count.replace(".", "_"): "0", "persistentvolumeclaims": "3"})
        assert await bench.status() == {
            "hard": {"persistentvolumeclaims": "3"},
            "used": {"persistentvolumeclaims": "0"},
        }
