"""Sends exchanges to an API server: the embedded one in this process, or any by HTTP."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import yaml
from tools.api_exchanges import Exchange, Reply, Variables, differences

from volplane_embedded.apiserver.requests import Answer
from volplane_embedded.apiserver.server import ApiServer

__all__ = ["Client", "InProcess", "OverHttp", "connect", "exchanged", "replay", "send"]

Query = list[tuple[str, str]]


class Client(Protocol):
    """Sends requests. The body of a reply is decoded if it is JSON."""

    async def send(self, method: str, path: str, query: Query, headers: dict[str, str], body: bytes) -> Reply: ...

    async def watch(self, path: str, query: Query, headers: dict[str, str]) -> Reply: ...


def _decoded(body: bytes, content_type: str) -> Any:
    return json.loads(body) if "json" in content_type else body.decode()


class InProcess:
    """The embedded server without sockets."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def send(self, method: str, path: str, query: Query, headers: dict[str, str], body: bytes) -> Reply:
        answer = self._server.handle(method, path, query, headers, body)
        return Reply(answer.status, _decoded(answer.body, answer.headers["Content-Type"]))

    async def watch(self, path: str, query: Query, headers: dict[str, str]) -> Reply:
        opened = self._server.watch(path, query, headers)
        if isinstance(opened, Answer):
            return Reply(opened.status, events=[json.loads(opened.body)])
        return Reply(200, events=[json.loads(line) async for line in opened])


class OverHttp:
    """Any server at a URL, with the credentials of the session."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def send(self, method: str, path: str, query: Query, headers: dict[str, str], body: bytes) -> Reply:
        async with self._session.request(
            method, self._url + path, params=query, headers=headers, data=body or None
        ) as response:
            return Reply(response.status, _decoded(await response.read(), response.headers["Content-Type"]))

    async def watch(self, path: str, query: Query, headers: dict[str, str]) -> Reply:
        async with self._session.get(self._url + path, params=query, headers=headers) as response:
            return Reply(response.status, events=[json.loads(line) async for line in response.content])


@asynccontextmanager
async def connect(kubeconfig: str) -> AsyncIterator[OverHttp]:
    """A client of the current context of a kubeconfig file: with a bearer token or a client certificate."""
    config = _read(Path(kubeconfig))
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster = _named(config["clusters"], context["cluster"])["cluster"]
    user = _named(config["users"], context["user"])["user"]
    trust = ssl.create_default_context(
        cafile=cluster.get("certificate-authority"),
        cadata=base64.b64decode(cluster.get("certificate-authority-data", "")).decode() or None,
    )
    if "client-certificate" in user:
        trust.load_cert_chain(user["client-certificate"], user["client-key"])
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=trust)) as session:
        yield OverHttp(session, cluster["server"])


def _read(kubeconfig: Path) -> Any:
    return yaml.safe_load(kubeconfig.read_text())


def _named(entries: Iterable[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


async def send(client: Client, variables: Variables, exchange: Exchange) -> Reply:
    """Send one exchange, and keep of the response what later ones use."""
    path, query, body, headers = variables.request(exchange)
    if exchange.is_watch:
        return await client.watch(path, query, headers)
    reply = await client.send(exchange.method, path, query, headers, body)
    if exchange.save and reply.status < 300:
        variables.keep(exchange, reply.body)
    return reply


async def exchanged(client: Client, exchanges: Iterable[Exchange]) -> list[tuple[Exchange, Reply]]:
    """Send all exchanges in order. Neighbouring watches change nothing, so they wait for their timeouts together."""
    variables = Variables()
    replies: list[tuple[Exchange, Reply]] = []
    for are_watches, group in itertools.groupby(exchanges, key=lambda exchange: exchange.is_watch):
        if are_watches:
            watches = list(group)
            found = await asyncio.gather(*(send(client, variables, watch) for watch in watches))
            replies += zip(watches, found, strict=True)
        else:
            replies += [(exchange, await send(client, variables, exchange)) for exchange in group]
    return replies


async def replay(client: Client, exchanges: Iterable[Exchange]) -> list[str]:
    """Send all exchanges in order. Returns what differs from the recording."""
    return [
        f"{exchange}: {difference}"
        for exchange, reply in await exchanged(client, exchanges)
        for difference in differences(exchange, reply)
    ]
