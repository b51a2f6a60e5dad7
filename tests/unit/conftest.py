"""An API server in the process, and a wire to it that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from volplane.errors import ApiUnavailable
from volplane.kube.client import Client
from volplane.kube.transport import LineStream, Response
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing.clock import now

Call = tuple[str, str]


class Wire:
    """A transport to an embedded server. `calls` has (method, path) of every exchange, `watches` the open ones."""

    def __init__(self) -> None:
        self.server = ApiServer(now=now, random=Random(1))
        self.client = Client(self)
        self.calls: list[Call] = []
        self.queries: list[Mapping[str, str]] = []
        self.watches = 0
        self.before: Callable[[str, str], Response | None] = lambda _method, _path: None
        """May answer in the server's place, or raise, before the request took effect."""
        self.after: Callable[[str, str], None] = lambda _method, _path: None
        """May raise after the request took effect."""
        self.inner = InProcessTransport(self.server)

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | None,
        seconds: float,
    ) -> Response:
        self.calls.append((method, path))
        self.queries.append(query)
        instead = self.before(method, path)
        if instead is not None:
            await asyncio.sleep(0)
            return instead
        answer = await self.inner.request(method, path, query=query, headers=headers, body=body, seconds=seconds)
        self.after(method, path)
        return answer

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], headers: Mapping[str, str], quiet: float
    ) -> AsyncIterator[LineStream]:
        self.calls.append(("WATCH", path))
        self.queries.append(query)
        self.before("WATCH", path)
        async with self.inner.stream(path, query=query, headers=headers, quiet=quiet) as stream:
            self.watches += 1
            try:
                yield stream
            finally:
                self.watches -= 1

    async def close(self) -> None:
        await self.inner.close()

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
def wire() -> Callable[[], Wire]:
    """Make one inside the running loop."""
    return Wire


@pytest.fixture
def settle() -> Callable[[], Any]:
    """Let everything run that can run without time passing."""

    async def turns() -> None:
        for _ in range(200):
            await asyncio.sleep(0)

    return turns
