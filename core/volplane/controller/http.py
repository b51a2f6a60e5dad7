"""The HTTP endpoints of a controller process: health, metrics, and answers for the commands.

/healthz answers while the event loop runs. /readyz answers 200 if work can be done, else 503 with the reasons. /metrics
is in the text format of Prometheus. These are for every client that reaches the address, within limits: one request a
connection, a bounded time and number of connections, a tenth of the time for /metrics. Everything else is JSON from a
function that was passed in, for clients on this machine that have the token, or are admitted by the `Guard`, as those
are who come through a port-forward; POST changes something. Whoever asks the holder of a Lease names it, and gets no
answer of another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import resource
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, cast

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from volplane.controller.http_access import HOLDER, ActionToken, HttpAddress, is_loopback
from volplane.errors import ConfigurationError, VolplaneError

_MOST_CONNECTIONS: Final = 256
"""At once, of clients without the token, and as many of those whose addresses crowd."""
_BACKLOG: Final = 32
"""So many are accepted in one turn of the loop: a new one is served before so many newer ones come that it is cut."""
_MOST_A_SECOND: Final = 100
"""New ones of one address: further ones are answered only if they ask for health, at a fraction of the usual cost.
A flood may come from the address of the kubelet, which restarts a process that does not answer its probes."""
_PROBE: Final = re.compile(rb"(GET|HEAD) (/healthz|/livez|/readyz)[ ?]")
_SECONDS: Final = 30.0
"""How long a connection may last, from its acceptance until the client has read the answer."""
_SHARE: Final = 0.1
"""Part of the time in which /metrics may be made."""

_LOG = logging.getLogger(__name__)
_REQUESTS = logging.getLogger("volplane.http.requests")
"""What aiohttp reports of requests: mistakes of ours, and not those of clients, who could fill the log with them."""
_REQUESTS.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))

Answer = Callable[[Mapping[str, str]], Awaitable[Any]]
"""Query parameters -> what is sent as JSON. A VolplaneError becomes a 400 with its text."""
Guard = Callable[[str, Mapping[str, str], str], Awaitable[tuple[int, str]]]
"""(path, query parameters, bearer token) of a client without our token -> (200, ""), or how and why it is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    unready: Callable[[], Sequence[str]]
    metrics: Callable[[], bytes]
    """The exposition; made in a thread."""
    measure: Callable[[], None] = lambda: None
    """Brings the metrics up to date before; runs in the event loop."""
    details: Callable[[], Sequence[str]] = tuple
    """What /readyz adds in either case, a line each."""
    answers: Mapping[str, Answer] = field(default_factory=dict)
    """Path -> function, for GET, from this machine and with the token."""
    actions: Mapping[str, Answer] = field(default_factory=dict)
    """The same for POST."""
    guard: Guard | None = None
    """Admits clients without the token to some of them; None = none."""
    holder: Callable[[], str] = str
    """The identity of this process while it leads, else ""."""


@asynccontextmanager
async def serve_pages(address: HttpAddress, pages: Pages) -> AsyncIterator[str]:
    """Serve until the block ends; yields the URL. Raises ConfigurationError if the address cannot be had."""
    server = _Server(pages)
    runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address.host, address.port, backlog=_BACKLOG)
        try:
            await site.start()
        except OSError as error:
            why = f"cannot be used: {error.strerror or error}; choose another address"
            raise ConfigurationError(f"--http {address.host}:{address.port} {why}") from error
        host, port = runner.addresses[0][:2]
        if pages.answers or pages.actions:
            server.token = ActionToken(port, [each[0] for each in runner.addresses])
            if server.token.path is None:
                text = "commands cannot ask this process: no file can be made for their token (%s)"
                _LOG.warning(text, server.token.why)
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        with contextlib.suppress(TimeoutError):
            await runner.cleanup()
        if server.token is not None:
            server.token.remove()


class _Connection(web.RequestHandler):
    """A connection for one request, which is cut when its time is over, or when it is the oldest of too many."""

    limited = True
    """Whether it counts, and is cut: its client has not shown the token, and it was not cut before."""
    crowded = False  # Or one too many of its address in a second.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # aiohttp forgets the transport before the client has read everything; those of uvloop are of no known class.
        self._accepted = cast("asyncio.Transport", transport)
        self._end = asyncio.get_running_loop().call_later(_SECONDS, self.cut)
        connections = self._manager.connections if self._manager is not None else []
        peer = transport.get_extra_info("peername")
        if isinstance(self._manager, _Server):
            self.crowded = self._manager.crowded(peer[0] if peer else "")
        others = [each for each in connections if isinstance(each, _Connection) and each.limited]
        others = [each for each in others if each.crowded is self.crowded]  # A crowd keeps no others away.
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # Most are for others, such as the API server.
        if len(others) > (_MOST_CONNECTIONS if files < 0 else min(_MOST_CONNECTIONS, files // 8)):
            others[0].cut()

    def data_received(self, data: bytes) -> None:
        if not self.crowded:
            super().data_received(data)
        elif isinstance(self._manager, _Server) and (probe := _PROBE.match(data)) is not None:
            status, text = self._manager.health(probe[2].decode())
            size = f"Content-Length: {len(text.encode())}\r\nConnection: close\r\n\r\n"
            answer = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{size}{text if probe[1] == b'GET' else ''}"
            self._accepted.write(answer.encode())
            self._accepted.close()
        else:
            self.cut()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._end.cancel()
        super().connection_lost(exc)

    def cut(self) -> None:
        """Close now, without sending what waits, unless the client is trusted."""
        if self.limited:
            self.limited = False
            self._accepted.abort()


class _Server(web.Server):
    token: ActionToken | None = None

    def __init__(self, pages: Pages) -> None:
        # No body is read, so none is unpacked: a small one could keep the process busy.
        super().__init__(self._handle, access_log=None, logger=_REQUESTS, auto_decompress=False)
        self._pages = pages
        self._second, self._new = 0, Counter[str]()
        self._exposition: asyncio.Task[bytes] | None = None
        self._fresh_until = 0.0
        """Loop time until which the exposition is given to others too."""

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)

    def crowded(self, address: str) -> bool:
        """Count a new connection of the address; return whether it is one too many in this second."""
        if self._second != (now := int(self._loop.time())):
            self._second, self._new = now, Counter()
        self._new[address] += 1
        return self._new[address] > _MOST_A_SECOND

    def health(self, path: str) -> tuple[int, str]:
        if path != "/readyz":
            return 200, "ok\n"
        reasons = self._pages.unready()
        return 503 if reasons else 200, "".join(f"{line}\n" for line in (*(reasons or ("ok",)), *self._pages.details()))

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._respond(request)
        response.force_close()
        return response

    async def _respond(self, request: web.BaseRequest) -> web.Response:
        pages = self._pages
        match request.method, request.path:
            case "GET" | "HEAD", "/healthz" | "/livez" | "/readyz":
                status, text = self.health(request.path)
                return web.Response(status=status, text=text)
            case "GET" | "HEAD", "/metrics":
                headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
                return web.Response(body=await self._metrics(), headers=headers)
            case "GET", path if path in pages.answers:
                return await self._answer(pages.answers[path], request)
            case "POST", path if path in pages.actions:
                return await self._answer(pages.actions[path], request)
        return web.Response(status=404, text=f"there is no page for {request.method} here\n")

    async def _metrics(self) -> bytes:
        """Return the exposition. It is made at most for `_SHARE` of the time, for all who ask meanwhile."""
        loop = asyncio.get_running_loop()

        async def make() -> bytes:
            began = loop.time()
            self._pages.measure()
            made = await asyncio.to_thread(self._pages.metrics)
            self._fresh_until = began + (loop.time() - began) / _SHARE
            return made

        if self._exposition is None or (self._exposition.done() and loop.time() >= self._fresh_until):
            self._exposition = loop.create_task(make())
        # A client that goes away must not end it for the others.
        return await asyncio.shield(self._exposition)

    async def _answer(self, answer: Answer, request: web.BaseRequest) -> web.Response:
        """Answer clients on this machine that have the token, or that the guard admits, and refuse others."""
        # The name counts too: a web page in a browser can have this address under a name of its own.
        here = is_loopback(request.remote) and is_loopback(request.url.host)
        kind, _, bearer = (given := request.headers.get("Authorization", "")).partition(" ")
        status, why = 200, ""
        if self.token is None or not self.token.allows(given):
            status, why = 401, "it needs the token that the controller keeps in a file of its user"
            if here and self._pages.guard is not None and kind == "Bearer" and bearer:
                status, why = await self._pages.guard(request.path, request.query, bearer)
        elif not here:
            status = 403
            why = "only processes on the machine of the controller may ask for this, by its loopback address"
        holder = self._pages.holder()
        if status == 200 and request.headers.get(HOLDER, holder) != holder:
            status, why = 421, "this process does not lead any more"
        if status != 200:
            return web.json_response({"error": why}, status=status)
        if isinstance(request.protocol, _Connection):
            request.protocol.limited = False  # An answer may ask every backend.
        try:
            content = await answer(request.query)
        except VolplaneError as error:
            return web.json_response({"error": str(error)}, status=400)
        body, headers = msgspec.json.encode(content), {HOLDER: holder}
        return web.Response(body=body, headers=headers, content_type="application/json")
