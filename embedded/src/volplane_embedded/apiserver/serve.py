"""Listening: an `ApiServer` on a socket, in the running event loop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from aiohttp import web

from volplane_embedded.apiserver.http import MAX_BODY_BYTES, HttpFace
from volplane_embedded.apiserver.server import ApiServer

__all__ = ["Listener", "serve"]

_LINE_BYTES = 128 * 1024
_SHUTDOWN_SECONDS = 1.0


class Listener:
    """A listening server; `url` is what clients connect to."""

    def __init__(self, server: ApiServer, runner: web.ServerRunner, url: str) -> None:
        self._server = server
        self._runner = runner
        self.url = url

    async def close(self) -> None:
        """End all watches and stop listening. The `ApiServer` and its store stay open."""
        self._server.end_watches()
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

    Every request but /version and the health checks needs the bearer `token`. Without `tls` kubectl, which sends no
    credentials in clear text, cannot be used. Raises OSError where the address cannot be had.
    """
    face = HttpFace(server, token)
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

    low_level = web.Server(
        face.handle,
        request_factory=request_of,
        handler_cancellation=True,
        access_log=None,
        max_line_size=_LINE_BYTES,
        max_field_size=_LINE_BYTES,
    )
    runner = web.ServerRunner(low_level, handle_signals=False, shutdown_timeout=_SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, ssl_context=tls, reuse_address=True)
        await site.start()
    except BaseException:
        await runner.cleanup()
        raise
    shown = f"[{host}]" if ":" in host else host
    url = f"{'https' if tls is not None else 'http'}://{shown}:{_bound_port(runner)}"
    if ready is not None:
        ready(url)
    return Listener(server, runner, url)


def _bound_port(runner: web.ServerRunner) -> int:
    port: int = runner.addresses[0][1]
    return port
