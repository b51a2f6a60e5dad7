"""A transport to an API server in the same process, without sockets and threads. The bytes are the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol, cast

from volplane.errors import ApiUnavailable
from volplane.kube.transport import LineStream, Request, Response


class Answered(Protocol):
    """A complete response of a server."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def body(self) -> bytes: ...


class Watched(Protocol):
    """An open watch of a server. Yields lines of JSON."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def close(self) -> None: ...


class Server(Protocol):
    """The interface of the embedded API server for callers in its own process."""

    def handle(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> Answered: ...

    def watch(self, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Watched | Answered: ...


class InProcessTransport:
    """Calls a `Server` directly. Every call yields to the event loop once before and once after the server acts.

    So a caller can be cancelled, and other tasks can run, where a network allows it too: before the request takes
    effect and before the response arrives.
    """

    def __init__(self, server: Server, *, headers: Mapping[str, str] | None = None) -> None:
        self._server = server
        self._headers = dict(headers or {})
        self._closed = False

    async def send(self, request: Request) -> Response:
        self._refuse_if_closed()
        if request.seconds <= 0:
            raise ApiUnavailable(f"no time was left for {request.method} {request.path}", status=0)
        await asyncio.sleep(0)
        answer = self._server.handle(
            request.method, request.path, request.query, {**self._headers, **request.headers}, request.body or b""
        )
        await asyncio.sleep(0)
        return Response(answer.status, _lower(answer.headers), answer.body)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[LineStream]:
        self._refuse_if_closed()
        await asyncio.sleep(0)
        opened = self._server.watch(request.path, request.query, {**self._headers, **request.headers})
        try:
            await asyncio.sleep(0)
            yield _Stream(opened, request)
        finally:
            if not _refused(opened):
                cast(Watched, opened).close()

    async def close(self) -> None:
        self._closed = True

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise ApiUnavailable("the connection to the API server is closed", status=0)


class _Stream:
    """A watch, or the response that refused it."""

    def __init__(self, opened: Watched | Answered, request: Request) -> None:
        refused = _refused(opened)
        self._watch = None if refused else cast(Watched, opened)
        self._answer = cast(Answered, opened) if refused else None
        self._path = request.path
        self._quiet = request.seconds

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
        timeout = _IdleTimeout(self._watch, self._quiet)
        try:
            async for line in self._watch:
                timeout.reset()
                yield line.rstrip(b"\n")
        finally:
            timeout.stop()
        if timeout.expired:
            raise ApiUnavailable(f"GET {self._path} was silent for {self._quiet:g} s", status=0)


class _IdleTimeout:
    """Closes a watch without lines for `quiet` seconds. It rearms one timer instead of one for each line."""

    def __init__(self, watch: Watched, quiet: float) -> None:
        self._watch = watch
        self._quiet = quiet
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(quiet, self._check)
        self.expired = False

    def reset(self) -> None:
        self._last = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        due = self._last + self._quiet
        if self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._check)
            return
        self.expired = True
        self._watch.close()


def _refused(opened: Watched | Answered) -> bool:
    """Tell whether a watch was refused. To ask for the whole protocol would take longer than to open the watch."""
    return hasattr(opened, "status")


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
