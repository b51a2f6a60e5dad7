"""An API server that has bad days: no answers, refusals, half answers, silence, for as long as a test wants."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

from scenarios.harness import Harness
from volplane.errors import ApiUnavailable
from volplane.kube.transport import Response, Transport
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing.transport import ApiCall, Ask, FaultScript, FaultTransport, requests

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
    "401": answering(401),
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
        self._sky = FaultScript()
        self._sky.add(requests(), self._behave, times=math.inf)

    def way_to_server(self) -> Transport:
        return FaultTransport(InProcessTransport(self.server), self._sky)

    async def _behave(self, call: ApiCall, ask: Ask) -> Response:
        self.requests += 1
        if call.verb == "watch" and self.weather is not fine:
            if self.weather is silent:
                await asyncio.sleep(call.request.seconds)
            raise ApiUnavailable(f"GET {call.request.path} broke off", status=0)
        return await self.weather(ask, call.request.seconds)

    async def storm(self, weather: Weather, seconds: float) -> int:
        """Let it last so long; how many requests were made meanwhile."""
        before, self.weather = self.requests, weather
        self.server.end_watches()
        await asyncio.sleep(seconds)
        self.weather = fine
        return self.requests - before
