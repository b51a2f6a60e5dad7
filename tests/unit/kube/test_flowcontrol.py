"""Many callers and a server in trouble: few requests, and all of them once it is back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from volplane.errors import ApiError, ApiUnavailable
from volplane.kube.client import CircuitBreaker, Client
from volplane.kube.kinds import CAPACITIES, VOLUMES
from volplane.kube.transport import Response
from volplane_testing.transport import refusal


def body(name: str) -> dict[str, Any]:
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
    return VOLUMES.body(metadata={"name": name}, spec=spec)


async def insist(client: Any, name: str) -> None:
    """Read until there is an answer, as eager as the back-off of a work queue allows."""
    pause = 0.005
    while True:
        try:
            await client.get(VOLUMES, name)
        except ApiUnavailable:
            await asyncio.sleep(pause)
            pause = min(30.0, pause * 2)
        else:
            return


def lost(_method: str, _path: str) -> Response | None:
    raise ApiUnavailable("the connection was lost", status=0)


def answering(status: int, text: bytes = b"", **headers: str) -> Callable[[str, str], Response]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _method, _path: Response(status, named, text)


OUTAGES = {
    "no connection": lost,
    "500": answering(500, b"oh"),
    "503": answering(503),
    "429": answering(429, b"Too many requests, please try again later.", retry_after="1"),
    "404 of a proxy": answering(404, b"404 page not found"),
    "half an answer": answering(200, b'{"kind":"PersistentVolume","metad'),
    "a page of a proxy": answering(200, b"<html>welcome</html>"),
}


@pytest.mark.parametrize("outage", OUTAGES)
async def test_a_minute_without_usable_answers_costs_few_requests_and_ends_for_everybody_at_once(
    wire: Callable[[], Any], outage: str
) -> None:
    line = wire()
    await line.client.create(VOLUMES, body("v"))
    line.calls.clear()
    line.before = OUTAGES[outage]
    callers = [asyncio.create_task(insist(line.client, "v")) for _ in range(500)]
    await asyncio.sleep(1.0)
    at_first = len(line.calls)
    await asyncio.sleep(59.0)
    assert at_first < 600, "everybody tries once"
    assert len(line.calls) - at_first < 70, "then about one a second"
    line.before = lambda _method, _path: None
    begun = asyncio.get_running_loop().time()
    await asyncio.gather(*callers)
    assert asyncio.get_running_loop().time() - begun < 32.0, "the longest back-off of a caller"


async def test_the_time_that_a_server_asks_for_is_kept_by_all(wire: Callable[[], Any]) -> None:
    line = wire()
    line.before = answering(429, retry_after="20")
    loop = asyncio.get_running_loop()
    callers = [asyncio.create_task(insist(line.client, "v")) for _ in range(50)]
    await asyncio.sleep(19.0)
    asked = len(line.calls)
    assert asked <= 50
    await asyncio.sleep(60.0)
    assert len(line.calls) - asked <= 4
    assert loop.time() == pytest.approx(79.0)
    for caller in callers:
        caller.cancel()


async def test_refusals_are_answers(wire: Callable[[], Any]) -> None:
    line = wire()
    line.before = answering(403)
    for _ in range(50):
        with pytest.raises(ApiError):
            await line.client.get(VOLUMES, "v")
    assert asyncio.get_running_loop().time() < 1.0


async def test_a_few_failures_of_one_object_do_not_hold_up_the_others(wire: Callable[[], Any]) -> None:
    line = wire()
    await line.client.create(VOLUMES, body("v"))
    line.before = lambda _method, path: Response(500, {}, b"") if path.endswith("/poisoned") else None
    for _ in range(200):
        with pytest.raises(ApiUnavailable):
            await line.client.get(VOLUMES, "poisoned")
        await line.client.get(VOLUMES, "v")
    assert asyncio.get_running_loop().time() < 1.0


OF_ONE_CALL = {
    "a webhook that fails": refusal(500, 'Internal error occurred: failed calling webhook "x.example.com": refused'),
    "a limit on events": refusal(429, "limit reached on type Namespace for key default"),
}


@pytest.mark.parametrize("answer", OF_ONE_CALL.values(), ids=OF_ONE_CALL.keys())
async def test_what_is_refused_to_one_namespace_does_not_hold_up_the_others(
    wire: Callable[[], Any], answer: Response
) -> None:
    line = wire()
    await line.client.create(VOLUMES, body("v"))
    line.before = lambda _method, path: answer if path.endswith("/refused") else None
    for _ in range(100):
        with pytest.raises(ApiUnavailable):
            await line.client.get(VOLUMES, "refused")
    await line.client.get(VOLUMES, "v")
    assert asyncio.get_running_loop().time() < 1.0


async def test_a_kind_that_the_server_does_not_serve_holds_up_nothing(wire: Callable[[], Any]) -> None:
    line = wire()
    await line.client.create(VOLUMES, body("v"))
    line.before = lambda method, path: answering(404, b"404 page not found")(method, path) if "csi" in path else None
    for _ in range(100):
        with pytest.raises(ApiUnavailable):
            await line.client.list(CAPACITIES)
    await line.client.get(VOLUMES, "v")
    assert asyncio.get_running_loop().time() < 1.0


async def test_a_call_with_a_limit_of_its_own_does_not_wait(wire: Callable[[], Any]) -> None:
    line = wire()
    line.before = lost
    callers = [asyncio.create_task(insist(line.client, "v")) for _ in range(100)]
    await asyncio.sleep(5.0)
    begun, asked = asyncio.get_running_loop().time(), len(line.calls)
    with pytest.raises(ApiUnavailable, match="was lost"):
        await line.client.get(VOLUMES, "v", seconds=2.0)
    assert len(line.calls) == asked + 1
    assert asyncio.get_running_loop().time() == begun
    for caller in callers:
        caller.cancel()


async def test_a_call_whose_turn_does_not_come_in_time_says_that_it_was_not_sent(wire: Callable[[], Any]) -> None:
    line = wire()
    client = Client(line, deadline=10.0)
    line.before = answering(429, retry_after="300")
    errors = []
    for _ in range(11):
        with pytest.raises(ApiUnavailable) as refused:
            await client.get(VOLUMES, "v")
        errors.append(str(refused.value))
    assert ["answered 429" in text for text in errors] == [True] * 10 + [False]
    assert errors[-1].endswith("persistentvolumes/v was not sent: the API server gives no usable answers")


@pytest.mark.parametrize("told", ["soon", "-5", "0", "nan", "", "Wed, 21 Oct 2026 07:28:00 GMT"])
async def test_a_time_that_is_none_is_not_kept(wire: Callable[[], Any], told: str) -> None:
    line = wire()
    line.before = answering(429, retry_after=told)
    with pytest.raises(ApiUnavailable) as refused:
        await line.client.get(VOLUMES, "v")
    assert refused.value.retry_after is None


@pytest.mark.parametrize("told", ["86400", "inf", "1e300"])
async def test_a_time_that_is_too_long_is_cut(wire: Callable[[], Any], told: str) -> None:
    line = wire()
    line.before = answering(429, retry_after=told)
    with pytest.raises(ApiUnavailable) as refused:
        await line.client.get(VOLUMES, "v")
    assert refused.value.retry_after == 300.0


async def test_a_call_that_waited_while_the_process_was_stopped_is_not_sent() -> None:
    """Found by the simulation: what it was decided for, and the lease with it, may be over."""
    loop = asyncio.get_running_loop()
    circuit = CircuitBreaker()
    for _ in range(20):
        circuit.record_failure()
    assert circuit.open
    waiting = asyncio.create_task(circuit.wait(100.0, "PATCH a"))
    await asyncio.sleep(0.0)
    stopped = loop.time()
    # As SIGSTOP: time goes on, and nothing runs.
    loop.call_later(0.01, lambda: setattr(loop, "_virtual", loop.time() + 60.0))
    with pytest.raises(ApiUnavailable, match="was stopped while it waited"):
        await waiting
    assert loop.time() > stopped + 50.0


async def test_a_write_that_waited_until_the_lease_was_over_is_not_sent(wire: Callable[[], Any]) -> None:
    """Found by the simulation, where a leader was cut off from the API server and another one led meanwhile."""
    line = wire()
    leads = True
    of_leader = line.client.writing_while(lambda: leads)
    stored = await of_leader.create(VOLUMES, body("v"))
    line.before = lost
    for _ in range(20):
        with pytest.raises(ApiUnavailable):
            await line.client.get(VOLUMES, "v", seconds=1.0)
    line.before = lambda _method, _path: None
    waiting = asyncio.create_task(of_leader.patch(VOLUMES, "v", {"metadata": {"labels": {"late": "yes"}}}))
    await asyncio.sleep(0.0)
    leads = False
    with pytest.raises(ApiUnavailable, match="was not sent: the lease was over"):
        await waiting
    assert (await line.client.get(VOLUMES, "v")).metadata.resource_version == stored.metadata.resource_version
