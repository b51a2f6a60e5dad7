"""Serves the page to browsers of this machine that have its token.

Whatever listens on loopback can be reached by every user of the machine, and by web pages under a name that leads
here. So the token, which is in the fragment of the address and never sent by a browser on its own, is needed for
everything but the files of the page, which hold nothing; and only the names of loopback are answered.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, Final

import msgspec
from aiohttp import web

from volplane.controller.http_access import HttpAddress, is_loopback
from volplane.errors import ConfigurationError, VolplaneError
from volplane.kube.client import Client
from volplane.ui.picture import picture_of
from volplane.ui.rows import COLUMNS, leader_of, shown
from volplane.ui.tables import Tables
from volplane.ui.told import Ask, keep_asking
from volplane.ui.watched import Watched

_LOG = logging.getLogger(__name__)

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_TICK: Final = 0.5
"""Seconds between two messages at least."""
_BEAT: Final = 3.0
"""Seconds after which one is sent although nothing changed: a browser to which none comes is cut off."""
_MOST_STREAMS: Final = 50
_EXPLAINED: Final = 1.0
"""Seconds for which an explanation is not asked for again, however often the cluster changes."""


@asynccontextmanager
async def serve_page(
    client: Client, ask: Ask, *, port: int = 0, namespace: str = "", home: str = "volplane-system"
) -> AsyncIterator[str]:
    """Serve the page until the block ends; yields its address with the token. Reads the cluster once somebody looks.

    ask: how the controller is asked. namespace: the only one that is shown. home: that of the controllers. Raises
    ConfigurationError if the port cannot be had.
    """
    page = _Page(Tables(Watched(client, namespace=namespace, home=home)), ask)
    runner = web.AppRunner(page.application(), handle_signals=False, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        except OSError as error:
            why = f"cannot be used: {error.strerror or error}; choose another one, or 0 for any"
            raise ConfigurationError(f"port {port} of 127.0.0.1 {why}") from error
        page.port = HttpAddress(*runner.addresses[0][:2]).port
        yield f"http://127.0.0.1:{page.port}/#token={page.token}"
    finally:
        page.stop()
        await runner.cleanup()


class _Page:
    def __init__(self, tables: Tables, ask: Ask) -> None:
        self.token = secrets.token_urlsafe(32)
        self.port = 0
        self._tables, self._ask = tables, ask
        self._reading: asyncio.Task[None] | None = None
        self._explained: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}
        self._streams: set[asyncio.Task[Any]] = set()
        place = files("volplane.ui") / "static"
        self._files = {
            each.name: each.read_bytes() for each in place.iterdir() if each.name.rpartition(".")[2] in TYPES
        }

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._guard])
        application.router.add_get("/", self._file)
        application.router.add_get("/{name}", self._file)
        application.router.add_get("/api/live", self._live)
        application.router.add_get("/api/rows", self._rows)
        application.router.add_get("/api/picture", self._picture)
        return application

    def stop(self) -> None:
        for task in (self._reading, *self._streams):
            if task is not None:
                task.cancel()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        # A name of somebody else may lead to this address; the browser then takes his page for one of ours.
        host, _, port = request.host.rpartition(":")
        if not is_loopback(host.strip("[]")) or port != str(self.port):
            return web.Response(status=403, text="ask by the address that the command printed\n", headers=HEADERS)
        if request.path.startswith("/api/"):
            given = request.headers.get("Authorization", "").encode(errors="replace")
            if not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
                return web.json_response({"error": "the token is missing or old"}, status=401, headers=HEADERS)
            if self._reading is None:
                self._reading = asyncio.create_task(self._read())
        try:
            response: web.StreamResponse = await handler(request)
        except web.HTTPException as error:
            response = web.Response(status=error.status, text=f"{error.reason}\n")
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    async def _read(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tables.watched.run())
                group.create_task(keep_asking(self._ask, self._tables.tell))
        except Exception:  # noqa: BLE001 - the page says it, and the cluster of `volplane dev` goes on
            _LOG.exception("the page has stopped to read the cluster: this is a bug")

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info.get("name", "") or "index.html"
        if (content := self._files.get(name)) is None:
            raise web.HTTPNotFound
        return web.Response(body=content, content_type=TYPES[name.rpartition(".")[2]], charset="utf-8")

    async def _rows(self, request: web.Request) -> web.Response:
        query, view = request.query, request.query.get("view", "")
        try:
            start, count = int(query.get("start", "0")), int(query.get("count", "100"))
        except ValueError as error:
            raise web.HTTPBadRequest from error
        if view not in COLUMNS:
            raise web.HTTPBadRequest
        await self._tables.settle()
        return _json(self._tables.window(view, query.get("q", ""), start, count))

    async def _picture(self, request: web.Request) -> web.Response:
        kind, key, told = request.query.get("kind", ""), request.query.get("key", ""), self._tables.told
        picture = msgspec.to_builtins(picture_of(kind, key, self._tables.watched, told))
        return _json({**picture, "explanation": await self._explanation(kind, key) if picture["found"] else None})

    async def _explanation(self, kind: str, key: str) -> dict[str, Any]:
        """Return what the controller says of the object, or why it says nothing."""
        silence, now = self._tables.told.silence, asyncio.get_running_loop().time()
        at, before = self._explained.get((kind, key), (0.0, None))
        if before is not None and not silence and now - at < _EXPLAINED:
            return before
        try:
            told = None if silence else await self._ask("/explain", {kind: key})
        except VolplaneError as error:
            told, silence = None, str(error)
        if told is None:
            return {"silence": shown(silence or "no controller answers")}
        explanation = {part: [shown(each) for each in told[part]] for part in ("situation", "tried", "next")}
        # The browsers of one user look at few.
        self._explained = {(kind, key): (now, explanation)}
        return explanation

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """Send what has changed as server-sent events: an event is small, and the page asks for what it shows."""
        if len(self._streams) >= _MOST_STREAMS:
            raise web.HTTPServiceUnavailable
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        task = asyncio.current_task()
        if task is not None:
            self._streams.add(task)
        try:
            await response.prepare(request)
            sent, at = b"", 0.0
            while True:
                await self._tables.settle()
                message = msgspec.json.encode(self._state())
                now = asyncio.get_running_loop().time()
                if message != sent or now - at >= _BEAT:
                    await response.write(b"data: " + message + b"\n\n")
                    sent, at = message, now
                await asyncio.sleep(_TICK)
        except (ConnectionResetError, asyncio.CancelledError):
            return response
        finally:
            if task is not None:
                self._streams.discard(task)

    def _state(self) -> dict[str, Any]:
        tables = self._tables
        watched, told = tables.watched, tables.told
        lease = next(iter(watched.leases.values()), None)
        gaps = [[kind, state, shown(why)] for kind, state, why in watched.gaps()]
        if self._reading is not None and self._reading.done():  # A bug, which the log shows.
            gaps.append(["everything", "stale", "the command has stopped to read; start it again"])
        return {
            "changes": tables.changes,
            "counts": tables.counts(),
            "gaps": gaps,
            "silence": shown(told.silence),
            "leader": "" if lease is None else leader_of(lease, time.time()),
            "server": shown(watched.client.server),
        }


def _json(content: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")
