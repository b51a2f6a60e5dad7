"""The HTTP face of an `ApiServer`: authentication, limits, streams."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from volplane_embedded.apiserver.errors import Failure
from volplane_embedded.apiserver.requests import Answer
from volplane_embedded.apiserver.responses import failed
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.apiserver.watch import Watch

__all__ = ["MAX_BODY_BYTES", "HttpFace"]

_log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 3 * 1024 * 1024
_OPEN_PATHS: Final = ("/healthz", "/livez", "/readyz", "/version")
_FALSE: Final = ("false", "0")
_GATHER_SECONDS: Final = 0.005
"""Between two pieces of a watch: under load a piece holds many events, which costs both sides a tenth; else none waits."""


class HttpFace:
    """Turns HTTP requests into calls of the server. One instance per listening server."""

    def __init__(self, server: ApiServer, token: str) -> None:
        self._server = server
        self._expected = f"Bearer {token}".encode()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The handler of an aiohttp low-level server."""
        path = request.path
        if not self._admitted(request, path):
            return _response(failed(Failure(401, "Unauthorized", "Unauthorized")))
        query = list(request.query.items())
        if request.method == "GET":
            if path.endswith("/log"):
                return await self._log(request, path, query)
            if request.query.get("watch", "false").lower() not in _FALSE:
                return await self._watch(request, path, query)
        if (request.content_length or 0) > MAX_BODY_BYTES:
            return _too_large()
        try:
            body = await request.read() if request.body_exists else b""
        except web.HTTPRequestEntityTooLarge:
            return _too_large()
        return _response(await self._server.answer(request.method, path, query, request.headers, body))

    def _admitted(self, request: web.BaseRequest, path: str) -> bool:
        if path in _OPEN_PATHS or path.startswith(("/livez/", "/readyz/", "/healthz/")):
            return True
        return hmac.compare_digest(request.headers.get("Authorization", "").encode(), self._expected)

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
                return  # What the disk refuses nobody may see; whoever watches comes back.
            await response.write(chunk)
            await asyncio.sleep(_GATHER_SECONDS)

    async def _log(self, request: web.BaseRequest, path: str, query: list[tuple[str, str]]) -> web.StreamResponse:
        opened = self._server.log(path, query, request.headers)
        if isinstance(opened, Answer):
            return _response(opened)
        try:
            first = await anext(opened, b"")
        except Failure as failure:
            return _response(failed(failure))
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
    """Let a generator close what it holds open."""
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


def _too_large() -> web.Response:
    message = f"Request entity too large: limit is {MAX_BODY_BYTES}"
    return _response(failed(Failure(413, "RequestEntityTooLarge", message)))


def _response(answer: Answer) -> web.Response:
    return web.Response(status=answer.status, headers=answer.headers, body=answer.body)
