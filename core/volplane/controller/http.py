"""What a controller process shows of itself over HTTP: health, metrics, and answers for the commands.

/healthz says that the loop turns; /readyz that work can be done, else 503 with the reasons; /metrics speaks Prometheus;
everything else is an answer as JSON from a function that was handed in.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from volplane.errors import ConfigurationError, VolplaneError

__all__ = ["HttpAddress", "Pages", "serve_pages"]


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where to listen."""

    host: str
    port: int

    @classmethod
    def parse(cls, option: str, text: str) -> HttpAddress:
        """Read "127.0.0.1:9809" or "[::1]:0" (a free port). Raises ConfigurationError naming the option."""
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigurationError(f'{option} is "{text}"; it must be ADDRESS:PORT, such as 127.0.0.1:9809')
        return cls(host.strip("[]"), int(port))


Answer = Callable[[Mapping[str, str]], Awaitable[Any]]
"""Query parameters -> what is sent as JSON. A VolplaneError becomes a 400 with its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """unready: reasons why not ready. metrics: the exposition. answers: path -> function."""

    unready: Callable[[], Sequence[str]]
    metrics: Callable[[], bytes]
    answers: Mapping[str, Answer] = field(default_factory=dict)


@asynccontextmanager
async def serve_pages(address: HttpAddress, pages: Pages) -> AsyncIterator[str]:
    """Serve until the block ends; yields the URL. Raises ConfigurationError if the address cannot be had."""
    app = web.Application()
    app.router.add_get("/healthz", _healthy)
    app.router.add_get("/livez", _healthy)
    app.router.add_get("/readyz", _ready(pages))
    app.router.add_get("/metrics", _metrics(pages))
    for path, answer in pages.answers.items():
        app.router.add_get(path, _answering(answer))
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address.host, address.port)
        try:
            await site.start()
        except OSError as error:
            raise ConfigurationError(
                f"--http {address.host}:{address.port} cannot be used: {error.strerror or error}; choose another address"
            ) from error
        host, port = runner.addresses[0][:2]
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        with contextlib.suppress(TimeoutError):
            await runner.cleanup()


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _ready(pages: Pages) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def ready(_: web.Request) -> web.Response:
        reasons = pages.unready()
        if reasons:
            return web.Response(status=503, text="".join(f"{reason}\n" for reason in reasons))
        return web.Response(text="ok\n")

    return ready


def _metrics(pages: Pages) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=pages.metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    return metrics


def _answering(answer: Answer) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def respond(request: web.Request) -> web.Response:
        try:
            content = await answer(request.query)
        except VolplaneError as error:
            body = msgspec.json.encode({"error": str(error)})
            return web.Response(status=400, body=body, content_type="application/json")
        return web.Response(body=msgspec.json.encode(content), content_type="application/json")

    return respond
