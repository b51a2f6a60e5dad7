"""The Lease looks as earlier releases have left it: a candidate of another version understands it."""

import json
from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from volplane import Fence
from volplane.kube.client import Client
from volplane.kube.kinds import LEASES
from volplane.kube.leases import LeaseLock, drivers_of, fence_of
from volplane.kube.transport import Request
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport

GOLDEN = json.loads((Path(__file__).parent / "lease.json").read_text("utf-8"))
PATH = "/apis/coordination.k8s.io/v1/namespaces/default/leases/volplane"


class World:
    """A server with a clock of its own, and what its Lease looks like."""

    def __init__(self) -> None:
        self.now = datetime.fromisoformat(GOLDEN["now"])
        self.wire = InProcessTransport(ApiServer(now=lambda: self.now, random=Random(1)))
        self.client = Client(self.wire)

    def lock(self, identity: str, drivers: Collection[str]) -> LeaseLock:
        return LeaseLock(
            self.client, namespace="default", name="volplane", identity=identity, now=lambda: self.now, drivers=drivers
        )

    async def look(self, after: str) -> dict[str, Any]:
        answer = await self.wire.send(Request(method="GET", path=PATH, headers={}, body=None, seconds=5))
        body, lease = json.loads(answer.body), await self.client.get(LEASES, "default/volplane")
        return {
            "after": after,
            "annotations": body["metadata"]["annotations"],
            "spec": body["spec"],
            "drivers": sorted(drivers_of(lease)),
            "term": str(fence_of(lease)).replace(lease.uid, "UID"),
        }


async def test_every_write_of_an_election_leaves_the_lease_as_it_did() -> None:
    world = World()
    one, two = world.lock("a_1", {"b.example.com", "a.example.com"}), world.lock("b_2", ())
    lease = await one.take(await one.read(seconds=5), seconds=5)
    looks = [await world.look("take")]
    world.now += timedelta(seconds=2)
    lease = await one.renew(lease, seconds=5)
    looks.append(await world.look("renew"))
    lease = await one.renew(lease, seconds=5)
    looks.append(await world.look("renew at the same time"))
    lease = await one.count_on(lease, 7, seconds=5)
    looks.append(await world.look("count on to 7"))
    await one.release(lease, seconds=5)
    looks.append(await world.look("release"))
    world.now += timedelta(seconds=1)
    await two.take(await two.read(seconds=5), seconds=5)
    looks.append(await world.look("take by another one"))
    assert looks == GOLDEN["lease"]


@pytest.mark.parametrize("row", GOLDEN["terms"], ids=lambda row: row["text"])
def test_the_text_of_a_term_is_the_same(row: dict[str, Any]) -> None:
    fence = Fence(row["transitions"], row["holder"], row["lease"])
    assert str(fence) == row["text"]
    assert Fence.parse(row["text"]) == fence
