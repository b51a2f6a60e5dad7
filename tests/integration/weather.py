"""An API server that has bad days: no answers, refusals, half answers, silence, for as long as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from scenarios.harness import Harness
from volplane.errors import ApiUnavailable
from volplane.kube.transport import LineStream, Response, Transport
from volplane_embedded.inprocess import InProcessTransport

Ask = Callable[[], Awaitable[Response]]
Weather = Callable[[Ask, float], Awaitable[Response]]
"""(performs the request, the caller's seconds) -> the answer."""


async def fine(ask: Ask, _seconds: float) -> Response:
    return await ask()


async def no_connection(_ask: Ask, _seconds: float) -> Response:
    raise ApiUnavailable("the connection was refused", status=0)


async def silent(_ask: Ask, seconds: float) -> Response:
    await asyncio.sleep(seconds)
    raise ApiUnavailable(f"no answer within {seconds:g} s", status=0)


async def answer_lost(ask: Ask, _seconds: float) -> Response:
    await ask()
    raise ApiUnavailable("the connection was lost", status=0)


async def half_an_answer(ask: Ask, _seconds: float) -> Response:
    answer = await ask()
    return Response(answer.status, answer.headers, answer.body[: len(answer.body) // 2])


def answering(status: int, **headers: str) -> Weather:
    told = {name.replace("_", "-"): value for name, value in headers.items()}

    async def weather(_ask: Ask, _seconds: float) -> Response:
        return Response(status, told, b"upstream connect error")

    return weather


WEATHERS: dict[str, Weather] = {
    "no connection": no_connection,
    "silence": silent,
    "answers lost": answer_lost,
    "half answers": half_an_answer,
    "429": answering(429, retry_after="2"),
    "500": answering(500),
    "503": answering(503),
}


class Outdoors(Harness):
    """`weather` lies between every control plane and the server. Watches end when it turns bad, and none open then."""

    def __init__(self, *backends: Any, **more: Any) -> None:
        super().__init__(*backends, **more)
        self.weather: Weather = fine
        self.requests = 0

    def way_to_server(self) -> Transport:
        return _Way(self, InProcessTransport(self.server))

    async def storm(self, weather: Weather, seconds: float) -> int:
        """Let it last so long; how many requests were made meanwhile."""
        before, self.weather = self.requests, weather
        self.server.end_watches()
        await asyncio.sleep(seconds)
        self.weather = fine
        return self.requests - before


class _Way:
    def __init__(self, outdoors: Outdoors, inner: InProcessTransport) -> None:
        self._outdoors = outdoors
        self._inner = inner

    async def request(self, method: str, path: str, *, seconds: float, **options: Any) -> Response:
        self._outdoors.requests += 1
        ask = lambda: self._inner.request(method, path, seconds=seconds, **options)  # noqa: E731
        return await self._outdoors.weather(ask, seconds)

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], headers: Mapping[str, str], quiet: float
    ) -> AsyncIterator[LineStream]:
        self._outdoors.requests += 1
        if self._outdoors.weather is silent:
            await asyncio.sleep(quiet)
        if self._outdoors.weather is not fine:
            raise ApiUnavailable(f"GET {path} broke off", status=0)
        async with self._inner.stream(path, query=query, headers=headers, quiet=quiet) as lines:
            yield lines

    async def close(self) -> None:
        await self._inner.close()
