"""Waiting for a Lease that a process of an earlier version may hold."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest

from volplane.kube.client import Client
from volplane.kube.leases import LeaseLock, wait_unheld
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing.api import Api
from volplane_testing.clock import now
from volplane_testing.transport import FaultScript, FaultTransport, requests, unanswered

KEY = "ours/volplane-0123456789abcdef"


def made(script: FaultScript | None = None) -> tuple[Client, LeaseLock]:
    server = ApiServer(now=now, random=Random(0))
    Api(server).create("namespaces", {"metadata": {"name": "ours"}})
    transport = InProcessTransport(server)
    client = Client(transport)
    lock = LeaseLock(client, namespace="ours", name=KEY.partition("/")[2], identity="former", now=now, duration=40)
    return (client if script is None else Client(FaultTransport(transport, script))), lock


async def seconds_waited(client: Client) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await wait_unheld(client, KEY, 40.0)
    return loop.time() - began


async def test_nobody_is_waited_for_where_nobody_ever_held_it() -> None:
    client, _ = made()
    assert await seconds_waited(client) == 0


async def test_a_holder_that_goes_on_is_waited_for_until_it_lets_go_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client, lock = made()
    lease = await lock.take(None, seconds=5)
    with caplog.at_level(logging.WARNING):
        waiting = asyncio.create_task(seconds_waited(client))
        for _ in range(30):
            await asyncio.sleep(10)
            assert not waiting.done()
            lease = await lock.renew(lease, seconds=5)
        await lock.release(lease, seconds=5)
        assert await waiting == pytest.approx(301, abs=2)
    assert [each.getMessage() for each in caplog.records] == [
        f"waits for lease {KEY}, which former holds: stop that process"
    ]


async def test_what_the_holder_notes_is_written_with_the_next_renewal_and_once() -> None:
    script = FaultScript()
    client, lock = made(script)
    lock.client = client
    lease = await lock.take(None, seconds=5)
    lock.notes["volplane.dev/findings"] = "{}"
    for _ in range(3):
        lease = await lock.renew(lease, seconds=5)
    sent = [call.request.body for call in script.requests if call.verb == "patch"]
    assert [b"findings" in (body or b"") for body in sent] == [True, False, False]
    assert lease.annotation("volplane.dev/findings") == "{}"
    lock.notes["volplane.dev/findings"] = ""
    await lock.release(lease, seconds=5)
    left = await lock.read(seconds=5)
    assert left is not None
    assert left.annotation("volplane.dev/findings") == ""


async def test_a_holder_that_died_is_waited_for_as_long_as_its_lease_lasts() -> None:
    client, lock = made()
    await lock.take(None, seconds=5)
    assert await seconds_waited(client) == pytest.approx(41, abs=2)


async def test_a_server_that_does_not_answer_proves_nothing() -> None:
    script = FaultScript()
    client, _ = made(script)
    script.add(requests("get", "leases"), unanswered, times=3)
    assert await seconds_waited(client) > 0
