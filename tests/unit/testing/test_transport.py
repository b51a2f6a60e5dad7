"""The scriptable transport: what each behaviour does to a request, which requests a fault meets, and what is kept."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from volplane.errors import ApiConflict, ApiNotFound, ApiUnavailable
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.transport import Request
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing import clock
from volplane_testing.transport import (
    Behaviour,
    FaultScript,
    FaultTransport,
    answer_lost,
    delay,
    refuse,
    requests,
    target_of,
    unanswered,
)

BODY = VOLUMES.body(
    metadata={"name": "v"},
    spec={"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/v"}},
)


def setting() -> tuple[FaultScript, Client, Client]:
    """A script, a client that it is for, and one without faults."""
    server, script = ApiServer(now=clock.now, random=Random(1)), FaultScript()
    inner = InProcessTransport(server)
    return script, Client(FaultTransport(inner, script)), Client(inner)


@pytest.mark.parametrize(
    ("behaviour", "error", "performed"),
    [
        (refuse(409), ApiConflict, False),
        (refuse(409, after=True), ApiConflict, True),
        (unanswered, ApiUnavailable, False),
        (answer_lost, ApiUnavailable, True),
        (delay(1e6), ApiUnavailable, False),
        (delay(1.0), None, True),
    ],
)
async def test_what_a_behaviour_does(behaviour: Behaviour, error: type[Exception] | None, performed: bool) -> None:
    script, client, other = setting()
    script.add(requests("create", "persistentvolumes", "v"), behaviour)
    if error is None:
        await client.create(VOLUMES, BODY)
    else:
        with pytest.raises(error):
            await client.create(VOLUMES, BODY)
    assert (len((await other.list(VOLUMES)).items) == 1) == performed
    assert [(each.verb, each.name) for each in script.requests] == [("create", "v")]


async def test_a_fault_meets_so_many_requests_after_the_first_ones() -> None:
    script, client, _ = setting()
    script.add(requests("get", "*"), refuse(404, "gone"), times=1, skip=1)
    await client.create(VOLUMES, BODY)
    assert await client.get(VOLUMES, "v") is not None
    with pytest.raises(ApiNotFound, match="gone"):
        await client.get(VOLUMES, "v")
    assert await client.get(VOLUMES, "v") is not None
    assert [each.status for each in script.requests] == [201, 200, 404, 200]


async def test_latency_passes_twice(virtual_time: Any) -> None:
    script, client, _ = setting()
    script.latency = 0.25
    await client.list(VOLUMES)
    assert virtual_time.time() == pytest.approx(0.5)


async def test_a_hidden_object_is_in_no_list_of_all_namespaces_and_in_no_watch() -> None:
    script, client, other = setting()
    script.shows = lambda request, item: (request.resource, item["metadata"]["name"]) != ("persistentvolumes", "v")
    await other.create(VOLUMES, BODY)
    listing = await client.list(VOLUMES)
    assert not listing.items
    assert len((await other.list(VOLUMES)).items) == 1
    transport = FaultTransport(client._transport.inner, script)  # type: ignore[attr-defined]
    query = {"watch": "1", "resourceVersion": str(listing.version)}
    async with transport.stream(Request(path=VOLUMES.path(), query=query, seconds=60.0)) as lines:
        assert script.open_watches == 1
        await other.delete(VOLUMES, "v")
        await other.create(VOLUMES, {**BODY, "metadata": {"name": "w"}})
        async for line in lines:
            assert b'"w"' in line
            break
    assert script.open_watches == 0


async def test_a_refused_watch_is_unavailable() -> None:
    script, client, _ = setting()
    script.add(requests("watch"), refuse(503))
    with pytest.raises(ApiUnavailable, match="no watch was opened"):
        async with client._transport.stream(Request(path=VOLUMES.path(), query={"watch": "1"}, seconds=1.0)):
            pass
    assert [(each.verb, each.status) for each in script.requests] == [("watch", 503)]


async def test_nothing_passes_once_the_process_is_dead() -> None:
    script, client, other = setting()
    client._transport.dead = True  # type: ignore[attr-defined]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5.0):
            await client.create(VOLUMES, BODY)
    assert not (await other.list(VOLUMES)).items
    assert not script.requests


def test_what_a_request_is_about() -> None:
    path = CLAIMS.path("default", "data", "status")
    assert target_of("PATCH", path, b"{}") == ("patch", "persistentvolumeclaims/status", "default", "data")
    assert target_of("POST", VOLUMES.path(), b'{"metadata":{"name":"v"}}') == ("create", "persistentvolumes", "", "v")
    assert target_of("GET", VOLUMES.path(), None).verb == "list"
