"""An API server in the process, and a wire to it that can be cut."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any

import pytest

from volplane.errors import ApiUnavailable
from volplane.kube.client import Client
from volplane.kube.transport import Response
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing.clock import now
from volplane_testing.transport import ApiCall, Ask, FaultTransport, requests

Call = tuple[str, str]


class Wire(FaultTransport):
    """A transport to an embedded server. `calls` has (method, path) of every exchange, WATCH for watches."""

    def __init__(self, **options: Any) -> None:
        """options: of the ApiServer."""
        self.server = ApiServer(now=now, random=Random(1), **options)
        super().__init__(InProcessTransport(self.server))
        self.client = Client(self)
        self.calls: list[Call] = []
        self.queries: list[Mapping[str, str]] = []
        self.before: Callable[[str, str], Response | None] = lambda _method, _path: None
        """May answer in the server's place, or raise, before the request took effect."""
        self.after: Callable[[str, str], None] = lambda _method, _path: None
        """May raise after the request took effect."""
        self.before_page: Callable[[], Awaitable[None]] | None = None
        """Awaited before each page of a list but the first."""
        self.script.add(requests(), self._behave, times=math.inf)

    @property
    def watches(self) -> int:
        """How many are open."""
        return self.script.open_watches

    async def _behave(self, call: ApiCall, ask: Ask) -> Response:
        request = call.request
        method = "WATCH" if call.verb == "watch" else request.method
        self.calls.append((method, request.path))
        self.queries.append(request.query)
        instead = self.before(method, request.path)
        if call.verb == "watch":
            return await ask()
        if instead is not None:
            await asyncio.sleep(0)
            return instead
        if self.before_page is not None and "continue" in request.query:
            await self.before_page()
        answer = await ask()
        self.after(method, request.path)
        return answer

    def fail(self, *calls: Call, times: int = 1, after: bool = False) -> None:
        """Lose the connection at the next `times` calls of these (method, prefix of the path)."""
        left = dict.fromkeys(calls, times)

        def cut(method: str, path: str) -> None:
            for known in left:
                if method == known[0] and path.startswith(known[1]) and left[known]:
                    left[known] -= 1
                    raise ApiUnavailable(f"{method} {path} was cut", status=0)

        if after:
            self.after = cut
        else:
            self.before = cut

    def writes(self) -> list[Call]:
        return [call for call in self.calls if call[0] not in {"GET", "WATCH"}]


@pytest.fixture
def wire() -> Callable[..., Wire]:
    """Make one inside the running loop."""
    return Wire


@pytest.fixture
def settle() -> Callable[[], Any]:
    """Let everything run that can run without time passing."""

    async def turns() -> None:
        for _ in range(200):
            await asyncio.sleep(0)

    return turns
