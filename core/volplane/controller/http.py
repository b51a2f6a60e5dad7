"""The HTTP endpoints of a controller process: health, metrics, and answers for the commands.

/healthz answers while the event loop runs. /readyz answers 200 if work can be done, else 503 with the reasons. /metrics
is in the text format of Prometheus. These are for every client that reaches the address. Everything else is JSON from a
function that was passed in: GET for clients on this machine, POST, which changes something, for those among them that
have the token of `volplane.controller.action_token`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from volplane.controller.action_token import ActionToken
from volplane.errors import ConfigurationError, VolplaneError

__all__ = ["HttpAddress", "Pages", "serve_pages"]

_LOG = logging.getLogger(__name__)
_REQUESTS = logging.getLogger("volplane.http.requests")
"""What aiohttp reports of requests: mistakes of ours, and not those of clients, who could fill the log with them."""
_REQUESTS.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))


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
    """unready: reasons why not ready. details: what /readyz adds in either case, a line each. metrics: the exposition.

    answers: path -> function, for GET, from this machine only. actions: the same for POST, with the token.
    """

    unready: Callable[[], Sequence[str]]
    metrics: Callable[[], bytes]
    details: Callable[[], Sequence[str]] = tuple
    answers: Mapping[str, Answer] = field(default_factory=dict)
    actions: Mapping[str, Answer] = field(default_factory=dict)


@asynccontextmanager
async def serve_pages(address: HttpAddress, pages: Pages) -> AsyncIterator[str]:
    """Serve until the block ends; yields the URL. Raises ConfigurationError if the address cannot be had."""
    app = web.Application()
    app.router.add_get("/healthz", _healthy)
    app.router.add_get("/livez", _healthy)
    app.router.add_get("/readyz", _ready(pages))
    app.router.add_get("/metrics", _metrics(pages))
    tokens: list[ActionToken] = []
    for path, answer in pages.answers.items():
        app.router.add_get(path, _answering(answer))
    for path, action in pages.actions.items():
        app.router.add_post(path, _acting(action, tokens))
    # No body is read, so none is unpacked: a small one could keep the process busy.
    runner = web.AppRunner(
        app, access_log=None, handle_signals=False, shutdown_timeout=1.0, logger=_REQUESTS, auto_decompress=False
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, address.host, address.port)
        try:
            await site.start()
        except OSError as error:
            raise ConfigurationError(
                f"--http {address.host}:{address.port} cannot be used: {error.strerror or error}; choose "
                "another address"
            ) from error
        host, port = runner.addresses[0][:2]
        if pages.actions:
            tokens.append(_token(port))
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        with contextlib.suppress(TimeoutError):
            await runner.cleanup()
        for token in tokens:
            token.remove()


def _token(port: int) -> ActionToken:
    token = ActionToken(port)
    if token.path is None:
        _LOG.warning("commands cannot change anything here: no file can be made for their token (%s)", token.why)
    return token


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _ready(pages: Pages) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def ready(_: web.Request) -> web.Response:
        reasons = pages.unready()
        lines = [*(reasons or ("ok",)), *pages.details()]
        return web.Response(status=503 if reasons else 200, text="".join(f"{line}\n" for line in lines))

    return ready


def _metrics(pages: Pages) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=pages.metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    return metrics


def _answering(answer: Answer) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Refuse clients that are not on this machine; in a pod, those who may exec or port-forward are."""

    async def respond(request: web.Request) -> web.Response:
        # The name counts too: a web page in a browser can have this address under a name of its own.
        if not _is_loopback(request.remote) or not _is_loopback(request.url.host):
            return _refused(
                403, "only processes on the machine of the controller may ask for this, by its loopback address"
            )
        try:
            content = await answer(request.query)
        except VolplaneError as error:
            return _refused(400, str(error))
        return web.Response(body=msgspec.json.encode(content), content_type="application/json")

    return respond


def _acting(action: Answer, tokens: Sequence[ActionToken]) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Refuse also clients without the token. tokens: the one of this address, once it listens."""
    respond = _answering(action)

    async def act(request: web.Request) -> web.Response:
        if not any(token.allows(request.headers.get("Authorization", "")) for token in tokens):
            return _refused(
                401, "this changes something: it needs the token that the controller keeps in a file of its user"
            )
        return await respond(request)

    return act


def _is_loopback(host: str | None) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host or "").is_loopback
    return host == "localhost"


def _refused(status: int, why: str) -> web.Response:
    body = msgspec.json.encode({"error": why})
    return web.Response(status=status, body=body, content_type="application/json")
