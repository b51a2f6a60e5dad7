"""The HTTP server in front of an `ApiServer`: sockets, authentication, limits, streams."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from volplane_embedded.apiserver.errors import StatusError, bad_request
from volplane_embedded.apiserver.execution import run_execution
from volplane_embedded.apiserver.portforward import forward
from volplane_embedded.apiserver.requests import Answer, Query, is_watch
from volplane_embedded.apiserver.responses import error_answer
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.apiserver.users import ADMIN, CALLER, User
from volplane_embedded.apiserver.watch import Watch

_log = logging.getLogger(__name__)
_requests = logging.getLogger(f"{__name__}.requests")
"""What aiohttp reports of requests: mistakes of ours, and not those of clients, who could fill the log with them."""
_requests.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))

MAX_BODY_BYTES: Final = 3 * 1024 * 1024
_OPEN_PATHS: Final = ("/healthz", "/livez", "/readyz", "/version")
_HEADER_SECONDS: Final = 15.0
"""How long a connection may take for the headers of its first request."""
_BODY_SECONDS: Final = 60.0
_LINGER_SECONDS: Final = 2.0
"""How long the rest of a body that was refused is read, so that its client sees the answer."""
_IDLE_SECONDS: Final = 75.0
_WRITE_SECONDS: Final = 30.0
"""How long a client may leave what it asked for unread before its connection is cut."""
_MAX_CONNECTIONS: Final = 1000
_GATHER_SECONDS: Final = 0.005
"""Pause between two chunks of a watch. Under load a chunk then has many events, which costs both sides a tenth."""


class _Connection(web.RequestHandler):
    """A connection that is cut if its first request does not come, or if its client does not read.

    If there are too many, the oldest one that has shown no token makes room for a new one; without any, the new one
    is closed.
    """

    _patience: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    admitted = False
    """Whether the client has shown the token."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._manager is not None and len(others := self._manager.connections) > _MAX_CONNECTIONS:
            stranger = next((each for each in others if isinstance(each, _Connection) and not each.admitted), self)
            stranger.cut()
            if stranger is self:
                return
        # Writing pauses as soon as the kernel takes no more: what is closed with bytes unsent is noticed too. The class
        # of the transport does not say that it can be written to: those of uvloop have no bases.
        cast("asyncio.Transport", transport).set_write_buffer_limits(high=1, low=0)
        self._patience = asyncio.get_running_loop().call_later(_HEADER_SECONDS, self.force_close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages and self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = asyncio.get_running_loop().call_later(_WRITE_SECONDS, self.cut, self.transport)

    def resume_writing(self) -> None:
        self._stop_waiting()
        super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def cut(self, transport: asyncio.Transport | None = None) -> None:
        """Close without sending what waits. transport: where the connection has already let go of it."""
        transport = transport or self.transport
        self.force_close()
        if transport is not None:
            transport.abort()


class _Server(web.Server):
    """Makes the connections of a listening socket."""

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


def _is_text(request: web.BaseRequest) -> bool:
    """Tell whether path, query and headers are text. Bytes that are none were decoded to lone surrogates."""
    try:
        request.path_qs.encode()
        for name, value in request.headers.items():
            name.encode()
            value.encode()
        for name, value in request.query.items():
            name.encode()
            value.encode()
    except UnicodeError:
        return False
    return True


_UPGRADED: Final = re.compile("/api/v1/namespaces/[^/]+/pods/[^/]+/(exec|attach|portforward)")
_Streamed = Callable[[web.BaseRequest, str, list[tuple[str, str]]], Awaitable[web.StreamResponse]]


class HttpHandler:
    """Handles HTTP requests by calls of the server. One instance per listening server."""

    def __init__(self, server: ApiServer, token: str) -> None:
        self._server = server
        server.users.by_token[token] = ADMIN

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the handler of an aiohttp low-level server."""
        if not _is_text(request):
            return _response(error_answer(bad_request("path, query or headers hold bytes that are no text")))
        path = request.path
        if not self._admitted(request, path):
            return _response(error_answer(StatusError(401, "Unauthorized", "Unauthorized")))
        query = list(request.query.items())
        if (streamed := self._streamed(request.method, path, query)) is not None:
            return await streamed(request, path, query)
        if (request.content_length or 0) > MAX_BODY_BYTES:
            return _too_large()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await request.read() if request.body_exists else b""
        except web.HTTPRequestEntityTooLarge:
            return _too_large()
        except TimeoutError:
            why = f"the body did not arrive within {_BODY_SECONDS:.0f} s"
            return _response(error_answer(StatusError(408, "Timeout", why)))
        return _response(await self._server.answer(request.method, path, query, request.headers, body))

    def _streamed(self, method: str, path: str, query: list[tuple[str, str]]) -> _Streamed | None:
        """Return who answers a request whose answer is a stream; None for another one."""
        if method in ("GET", "POST") and (upgraded := _UPGRADED.fullmatch(path)) is not None:
            return self._forward if upgraded[1] == "portforward" else self._execute
        if method != "GET":
            return None
        if path.endswith("/log"):
            return self._log
        return self._watch if is_watch(path, Query(query)) else None

    def _admitted(self, request: web.BaseRequest, path: str) -> bool:
        if path in _OPEN_PATHS or path.startswith(("/livez/", "/readyz/", "/healthz/")):
            return True
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        user = self._server.users.of(token) if kind.lower() == "bearer" else self._certified(request)
        if user is None:
            return False
        CALLER.set(user)
        if isinstance(request.protocol, _Connection):
            request.protocol.admitted = True
        return True

    def _certified(self, request: web.BaseRequest) -> User | None:
        """Return the user that a client certificate names, where the TLS context asks for one."""
        certificate = request.transport.get_extra_info("peercert") if request.transport is not None else None
        names = dict(part[0] for part in (certificate or {}).get("subject", ()))
        return self._server.users.named(names.get("commonName", ""))

    async def _watch(self, request: web.BaseRequest, path: str, query: list[tuple[str, str]]) -> web.StreamResponse:
        opened = self._server.watch(path, query, request.headers)
        if isinstance(opened, Answer):
            return _response(opened)
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        response.enable_chunked_encoding()
        try:
            await response.prepare(request)
            await self._send(opened, response)
            await response.write_eof()
        except ConnectionError:
            _log.debug("a watcher of %s went away", path)
        finally:
            opened.close()
        return response

    async def _send(self, watch: Watch, response: web.StreamResponse) -> None:
        while chunk := await watch.chunk():
            try:
                await self._server.store.settled()
            except OSError:
                return  # No watcher may see a change that is not on disk; it watches again.
            await response.write(chunk)
            await asyncio.sleep(_GATHER_SECONDS)

    async def _forward(self, request: web.BaseRequest, path: str, query: list[tuple[str, str]]) -> web.StreamResponse:
        ports, source = self._server.forwarded(path, query, request.headers), self._server.forward_source
        if isinstance(ports, Answer) or source is None:
            return _response(
                ports if isinstance(ports, Answer) else error_answer(bad_request("no ports are forwarded"))
            )
        _, namespace, _, name, _ = path.rsplit("/", 4)
        return await forward(request, ports, source, f"{namespace}/{name}")

    async def _execute(self, request: web.BaseRequest, path: str, query: list[tuple[str, str]]) -> web.StreamResponse:
        asked, source = self._server.executed(path, query, request.headers), self._server.exec_source
        if isinstance(asked, Answer) or source is None:
            return _response(asked if isinstance(asked, Answer) else error_answer(bad_request("nothing is executed")))
        try:
            command = await source(asked)
        except StatusError as failure:
            return _response(error_answer(failure))
        except OSError as failure:
            return _response(error_answer(StatusError(500, "InternalError", f"the container is gone: {failure}")))
        return await run_execution(request, asked, command)

    async def _log(self, request: web.BaseRequest, path: str, query: list[tuple[str, str]]) -> web.StreamResponse:
        opened = self._server.log(path, query, request.headers)
        if isinstance(opened, Answer):
            return _response(opened)
        try:
            first = await anext(opened, b"")
        except StatusError as failure:
            return _response(error_answer(failure))
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        response.enable_chunked_encoding()
        try:
            await response.prepare(request)
            if first:
                await response.write(first)
            await _copy(opened, response)
            await response.write_eof()
        except ConnectionError:
            _log.debug("a reader of %s went away", path)
        finally:
            await _end(opened)
        return response


async def _copy(source: AsyncIterator[bytes], response: web.StreamResponse) -> None:
    async for piece in source:
        await response.write(piece)


async def _end(source: AsyncIterator[bytes]) -> None:
    """Close a generator and the files that it has open."""
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


def _too_large() -> web.Response:
    message = f"Request entity too large: limit is {MAX_BODY_BYTES}"
    return _response(error_answer(StatusError(413, "RequestEntityTooLarge", message)))


def _response(answer: Answer) -> web.Response:
    return web.Response(status=answer.status, headers=answer.headers, body=answer.body)


_LINE_BYTES = 128 * 1024
_SHUTDOWN_SECONDS = 1.0


class Listener:
    """A listening server. url: the address that clients connect to."""

    def __init__(self, server: ApiServer, listening: asyncio.Server, runner: web.ServerRunner, url: str) -> None:
        self._server = server
        self._listening = listening
        self._runner = runner
        self.url = url

    async def close(self) -> None:
        """End all watches and stop listening. The `ApiServer` and its store stay open."""
        self._server.end_watches()
        self._listening.close()
        await self._runner.cleanup()


async def serve(
    server: ApiServer,
    *,
    host: str = "127.0.0.1",
    port: int = 6443,
    token: str,
    tls: ssl.SSLContext | None = None,
    ready: Callable[[str], None] | None = None,
) -> Listener:
    """Listen on `host` and `port` (0: any free one) and call `ready` with the URL once connections are accepted.

    All requests but /version and the health checks need the bearer `token`. Without `tls` kubectl cannot be used: it
    sends no credentials in clear text. Raises OSError if the address cannot be used.
    """
    handler = HttpHandler(server, token)
    loop = asyncio.get_running_loop()

    def request_of(message: object, payload: object, protocol: object, writer: object, task: object) -> web.BaseRequest:
        return web.BaseRequest(
            message,  # type: ignore[arg-type]
            payload,  # type: ignore[arg-type]
            protocol,  # type: ignore[arg-type]
            writer,  # type: ignore[arg-type]
            task,  # type: ignore[arg-type]
            loop,
            client_max_size=MAX_BODY_BYTES,
        )

    low_level = _Server(
        handler.handle,
        request_factory=request_of,
        handler_cancellation=True,
        access_log=None,
        logger=_requests,
        auto_decompress=False,  # a stock server unpacks no bodies, and a small one could keep this one busy
        keepalive_timeout=_IDLE_SECONDS,
        lingering_time=_LINGER_SECONDS,
        max_line_size=_LINE_BYTES,
        max_field_size=_LINE_BYTES,
    )
    runner = web.ServerRunner(low_level, handle_signals=False, shutdown_timeout=_SHUTDOWN_SECONDS)
    await runner.setup()
    handshake = _HEADER_SECONDS if tls is not None else None
    try:
        listening = await loop.create_server(
            low_level, host, port, ssl=tls, ssl_handshake_timeout=handshake, reuse_address=True
        )
    except BaseException:
        await runner.cleanup()
        raise
    shown = f"[{host}]" if ":" in host else host
    url = f"{'https' if tls is not None else 'http'}://{shown}:{listening.sockets[0].getsockname()[1]}"
    if ready is not None:
        ready(url)
    return Listener(server, listening, runner, url)
