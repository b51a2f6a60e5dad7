"""The protection of VolumeAttributesClasses against an embedded server, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from volplane.controller.actions import EventRecord
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, VOLUME_ATTRIBUTES_CLASSES, VOLUMES
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.attributes_class_protection import FINALIZER, AttributesClassProtection
from volplane_embedded.informers import Informers
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing.clock import now

SIZE = {"storage": "1Gi"}


class Bench:
    def __init__(self, *disabled: str) -> None:
        self.server = ApiServer(now=now, random=Random(1), disabled_admission=disabled)
        self.client = Client(InProcessTransport(self.server))
        self.informers = Informers()

    def record(self, event: EventRecord) -> None:
        raise AssertionError(event)

    async def make_class(self, name: str = "silver") -> None:
        kind = VOLUME_ATTRIBUTES_CLASSES
        body = kind.body(metadata={"name": name}, driverName="d", parameters={"speed": "1"})
        await self.client.create(kind, body)

    async def make_claim(self, named: str = "", **status: Any) -> None:
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": SIZE}}
        asked = {"volumeAttributesClassName": named} if named else {}
        await self.client.create(CLAIMS, CLAIMS.body(metadata={"name": "c", "namespace": "default"}, spec=spec | asked))
        if status:
            await self.client.patch(CLAIMS, "default/c", {"status": status}, subresource="status")

    async def make_volume(self, named: str) -> None:
        spec = {"capacity": SIZE, "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h"}}
        body = VOLUMES.body(metadata={"name": "v"}, spec={**spec, "volumeAttributesClassName": named})
        await self.client.create(VOLUMES, body)

    async def classes(self) -> dict[str, list[str]]:
        """Finalizers of each, a second later."""
        await asyncio.sleep(1)
        found = (await self.client.list(VOLUME_ATTRIBUTES_CLASSES)).items
        return {each.name: list(each.metadata.finalizers or ()) for each in found}

    async def delete_class(self, name: str = "silver") -> dict[str, list[str]]:
        await asyncio.sleep(1)
        await self.client.delete(VOLUME_ATTRIBUTES_CLASSES, name)
        return await self.classes()


@asynccontextmanager
async def running(*disabled: str) -> AsyncIterator[Bench]:
    bench = Bench(*disabled)
    controller = AttributesClassProtection(bench.client, bench.informers, recorder=bench)
    async with asyncio.TaskGroup() as tasks:
        followed = tasks.create_task(bench.informers.follow(bench.client, Random(1)))
        await bench.informers.wait_synced()
        working = tasks.create_task(controller.run())
        yield bench
        working.cancel()
        followed.cancel()
    bench.server.close()


async def test_a_class_that_nothing_names_goes_when_it_is_deleted() -> None:
    async with running() as bench:
        await bench.make_class()
        assert await bench.classes() == {"silver": [FINALIZER]}
        assert await bench.delete_class() == {}


async def test_a_class_that_was_made_without_the_finalizer_gets_it() -> None:
    async with running("StorageObjectInUseProtection") as bench:
        await bench.make_class()
        assert await bench.classes() == {"silver": [FINALIZER]}


async def test_a_class_that_a_claim_asks_for_stays_until_the_claim_is_gone() -> None:
    async with running() as bench:
        await bench.make_class()
        await bench.make_claim("silver")
        assert await bench.delete_class() == {"silver": [FINALIZER]}
        stripped = {"metadata": {"finalizers": None}}
        await bench.client.patch(CLAIMS, "default/c", stripped)
        await bench.client.delete(CLAIMS, "default/c")
        assert await bench.classes() == {}


@pytest.mark.parametrize(
    "status",
    [
        {"currentVolumeAttributesClassName": "silver"},
        {"modifyVolumeStatus": {"status": "InProgress", "targetVolumeAttributesClassName": "silver"}},
    ],
    ids=["has", "is being changed to"],
)
async def test_a_class_that_a_claim_still_has_stays_until_it_has_another(status: dict[str, Any]) -> None:
    async with running() as bench:
        await bench.make_class()
        await bench.make_claim(**status)
        assert await bench.delete_class() == {"silver": [FINALIZER]}
        await bench.client.patch(CLAIMS, "default/c", {"status": dict.fromkeys(status)}, subresource="status")
        assert await bench.classes() == {}


async def test_a_class_that_a_volume_has_stays_until_the_volume_is_gone() -> None:
    async with running() as bench:
        await bench.make_class()
        await bench.make_volume("silver")
        assert await bench.delete_class() == {"silver": [FINALIZER]}
        await bench.client.patch(VOLUMES, "v", {"metadata": {"finalizers": None}})
        await bench.client.delete(VOLUMES, "v")
        assert await bench.classes() == {}


async def test_a_class_that_was_deleted_while_nobody_looked_goes_too() -> None:
    bench = Bench()
    await bench.make_class()
    await bench.client.delete(VOLUME_ATTRIBUTES_CLASSES, "silver")
    controller = AttributesClassProtection(bench.client, bench.informers, recorder=bench)
    async with asyncio.TaskGroup() as tasks:
        followed = tasks.create_task(bench.informers.follow(bench.client, Random(1)))
        await bench.informers.wait_synced()
        working = tasks.create_task(controller.run())
        assert await bench.classes() == {}
        working.cancel()
        followed.cancel()
    bench.server.close()
