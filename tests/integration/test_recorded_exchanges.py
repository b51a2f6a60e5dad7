"""Every exchange recorded with a real API server, sent to ours: in process, and over HTTP."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import pytest

from integration.recordings import Exchange, Reply, Variables, differences, read
from volplane_embedded.apiserver.http import serve
from volplane_embedded.apiserver.requests import Answer
from volplane_embedded.apiserver.server import ApiServer
from volplane_testing import clock

_Query = list[tuple[str, str]]


class _Client(Protocol):
    async def send(self, method: str, path: str, query: _Query, headers: dict[str, str], body: bytes) -> Reply: ...

    async def watch(self, path: str, query: _Query, headers: dict[str, str]) -> Reply: ...


def _decoded(body: bytes, content_type: str) -> Any:
    return json.loads(body) if "json" in content_type else body.decode()


class _InProcess:
    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def send(self, method: str, path: str, query: _Query, headers: dict[str, str], body: bytes) -> Reply:
        answer = self._server.handle(method, path, query, headers, body)
        return Reply(answer.status, _decoded(answer.body, answer.headers["Content-Type"]))

    async def watch(self, path: str, query: _Query, headers: dict[str, str]) -> Reply:
        opened = self._server.watch(path, query, headers)
        if isinstance(opened, Answer):
            return Reply(opened.status, events=[json.loads(opened.body)])
        return Reply(200, events=[json.loads(line) async for line in opened])


class _OverHttp:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def send(self, method: str, path: str, query: _Query, headers: dict[str, str], body: bytes) -> Reply:
        async with self._session.request(
            method, self._url + path, params=query, headers=headers, data=body or None
        ) as response:
            return Reply(response.status, _decoded(await response.read(), response.headers["Content-Type"]))

    async def watch(self, path: str, query: _Query, headers: dict[str, str]) -> Reply:
        async with self._session.get(self._url + path, params=query, headers=headers) as response:
            return Reply(response.status, events=[json.loads(line) async for line in response.content])


async def _replay(client: _Client, exchanges: Iterator[Exchange]) -> list[str]:
    """What differs. Neighbouring watches change nothing, so they wait for their timeouts together."""
    variables = Variables()
    found: list[str] = []
    for are_watches, group in itertools.groupby(exchanges, key=lambda exchange: exchange.is_watch):
        if are_watches:
            watches = list(group)
            replies = await asyncio.gather(*(_watch(client, variables, exchange) for exchange in watches))
            for exchange, reply in zip(watches, replies, strict=True):
                found += [f"{exchange}: {difference}" for difference in differences(exchange, reply)]
            continue
        for exchange in group:
            path, query, body, headers = variables.request(exchange)
            reply = await client.send(exchange.method, path, query, headers, body)
            found += [f"{exchange}: {difference}" for difference in differences(exchange, reply)]
            if exchange.save and reply.status < 300:
                variables.keep(exchange, reply.body)
    return found


async def _watch(client: _Client, variables: Variables, exchange: Exchange) -> Reply:
    path, query, _, headers = variables.request(exchange)
    return await client.watch(path, query, headers)


@pytest.fixture
def exchanges(shared: Path) -> Iterator[Exchange]:
    return read(shared / "apiserver")


def _server(now: Callable[[], datetime]) -> ApiServer:
    return ApiServer(now=now, random=random.Random(36))


async def test_every_recorded_exchange_is_reproduced_in_process(exchanges: Iterator[Exchange]) -> None:
    found = await _replay(_InProcess(_server(clock.now)), exchanges)
    assert not found, "\n".join(found)


@pytest.mark.real_time
async def test_every_recorded_exchange_is_reproduced_over_http(exchanges: Iterator[Exchange]) -> None:
    listener = await serve(_server(lambda: datetime.now(UTC)), port=0, token="secret")
    try:
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer secret"}) as session:
            found = await _replay(_OverHttp(session, listener.url), exchanges)
    finally:
        await listener.close()
    assert not found, "\n".join(found)
