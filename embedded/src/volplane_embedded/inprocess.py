"""A transport to an API server in the same process: no sockets, no threads, the same bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol, runtime_checkable

from volplane.errors import ApiUnavailable
from volplane.kube.transport import LineStream, Response

__all__ = ["Answered", "InProcessTransport", "Server", "Watched"]


class Answered(Protocol):
    """A finished answer of a server."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def body(self) -> bytes: ...


@runtime_checkable
class Watched(Protocol):
    """An open watch of a server: lines of JSON."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def close(self) -> None: ...


class Server(Protocol):
    """What the embedded API server offers to a caller in its own process."""

    def handle(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> Answered: ...

    def watch(self, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Watched | Answered: ...


class InProcessTransport:
    """Calls a `Server` directly. Every call yields to the event loop once before and once after the server acts.

    So a caller can be cancelled, and others can run, at the two places where a network would let them: before the
    request took effect and before its answer arrived.
    """

    def __init__(self, server: Server, *, headers: Mapping[str, str] | None = None) -> None:
        self._server = server
        self._headers = dict(headers or {})
        self._closed = False

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
        self._refuse_if_closed()
        if seconds <= 0:
            raise ApiUnavailable(f"no time was left for {method} {path}", status=0)
        await asyncio.sleep(0)
        answer = self._server.handle(method, path, query, {**self._headers, **headers}, body or b"")
        await asyncio.sleep(0)
        return Response(answer.status, _lower(answer.headers), answer.body)

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], headers: Mapping[str, str], quiet: float
    ) -> AsyncIterator[LineStream]:
        self._refuse_if_closed()
        await asyncio.sleep(0)
        opened = self._server.watch(path, query, {**self._headers, **headers})
        try:
            await asyncio.sleep(0)
            yield _Stream(opened, path, quiet)
        finally:
            if isinstance(opened, Watched):
                opened.close()

    async def close(self) -> None:
        self._closed = True

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise ApiUnavailable("the connection to the API server is closed", status=0)


class _Stream:
    """A watch, or the answer that refused it."""

    def __init__(self, opened: Watched | Answered, path: str, quiet: float) -> None:
        self._watch = opened if isinstance(opened, Watched) else None
        self._answer = None if isinstance(opened, Watched) else opened
        self._path = path
        self._quiet = quiet

    @property
    def status(self) -> int:
        return 200 if self._answer is None else self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        return {} if self._answer is None else _lower(self._answer.headers)

    async def read(self) -> bytes:
        return b"" if self._answer is None else self._answer.body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._watch is None:
            for line in (await self.read()).splitlines():
                yield line
            return
        silence = _Silence(self._watch, self._quiet)
        try:
            async for line in self._watch:
                silence.heard()
                yield line.rstrip(b"\n")
        finally:
            silence.stop()
        if silence.noticed:
            raise ApiUnavailable(f"GET {self._path} was silent for {self._quiet:g} s", status=0)


class _Silence:
    """Closes a watch that brings nothing for `quiet` seconds. One timer for many lines."""

    def __init__(self, watch: Watched, quiet: float) -> None:
        self._watch = watch
        self._quiet = quiet
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(quiet, self._look)
        self.noticed = False

    def heard(self) -> None:
        self._last = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        due = self._last + self._quiet
        if self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._look)
            return
        self.noticed = True
        self._watch.close()


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
