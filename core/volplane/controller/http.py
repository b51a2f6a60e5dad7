"""The HTTP endpoints of a controller process: health, metrics, and answers for the commands.

/healthz answers while the event loop runs. /readyz answers 200 if work can be done, else 503 with the reasons. /metrics
is in the text format of Prometheus. These are for every client that reaches the address. Everything else is JSON from a
function that was passed in: GET for clients on this machine, POST, which changes something, for those among them that
have the token.

The token is in a file that only the user of the process can read. A loopback address is no credential: every user of
the machine reaches it, and so do pods that share the host's network. The process that listens writes the file, and a
command of the same user on the same machine reads it. The directory is the first usable one of $VOLPLANE_RUNTIME_DIR
(alone, if it is set), /run/volplane for user 0, /tmp/volplane-<uid>.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import logging
import os
import secrets
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from volplane.errors import ConfigurationError, VolplaneError

DIRECTORY_VARIABLE: Final = "VOLPLANE_RUNTIME_DIR"
_FILE: Final = "http-{}.token"
_LONGEST: Final = 256
"""Bytes of a token file that are read."""

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
        if not colon or not host or not port.isdecimal() or len(port) > 5 or int(port) > 65535:
            raise ConfigurationError(f'{option} is "{text}"; it must be ADDRESS:PORT, such as 127.0.0.1:9809')
        return cls(host.strip("[]"), int(port))


Answer = Callable[[Mapping[str, str]], Awaitable[Any]]
"""Query parameters -> what is sent as JSON. A VolplaneError becomes a 400 with its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """What is served."""

    unready: Callable[[], Sequence[str]]
    """Reasons why the process is not ready."""
    metrics: Callable[[], bytes]
    """The exposition."""
    details: Callable[[], Sequence[str]] = tuple
    """What /readyz adds in either case, a line each."""
    answers: Mapping[str, Answer] = field(default_factory=dict)
    """Path -> function, for GET, from this machine only."""
    actions: Mapping[str, Answer] = field(default_factory=dict)
    """The same for POST, with the token."""


@asynccontextmanager
async def serve_pages(address: HttpAddress, pages: Pages) -> AsyncIterator[str]:
    """Serve until the block ends; yields the URL. Raises ConfigurationError if the address cannot be had."""
    app = web.Application()
    app.router.add_get("/healthz", _healthy)
    app.router.add_get("/livez", _healthy)
    app.router.add_get("/readyz", partial(_ready, pages))
    app.router.add_get("/metrics", partial(_metrics, pages))
    tokens: list[ActionToken] = []
    for path, answer in pages.answers.items():
        app.router.add_get(path, partial(_answer, answer, None))
    for path, action in pages.actions.items():
        app.router.add_post(path, partial(_answer, action, tokens))
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
            why = f"cannot be used: {error.strerror or error}; choose another address"
            raise ConfigurationError(f"--http {address.host}:{address.port} {why}") from error
        host, port = runner.addresses[0][:2]
        if pages.actions:
            tokens.append(token := ActionToken(port))
            if token.path is None:
                text = "commands cannot change anything here: no file can be made for their token (%s)"
                _LOG.warning(text, token.why)
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        with contextlib.suppress(TimeoutError):
            await runner.cleanup()
        for token in tokens:
            token.remove()


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _ready(pages: Pages, _: web.Request) -> web.Response:
    reasons = pages.unready()
    lines = [*(reasons or ("ok",)), *pages.details()]
    return web.Response(status=503 if reasons else 200, text="".join(f"{line}\n" for line in lines))


async def _metrics(pages: Pages, _: web.Request) -> web.Response:
    return web.Response(body=pages.metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def _answer(answer: Answer, tokens: Sequence[ActionToken] | None, request: web.Request) -> web.Response:
    """Answer clients on this machine, and refuse others; in a pod, those who may exec or port-forward are on it.

    tokens: the one of this address, once it listens, where clients need it; None where they do not.
    """
    sent = request.headers.get("Authorization", "")
    if tokens is not None and not any(token.allows(sent) for token in tokens):
        why = "this changes something: it needs the token that the controller keeps in a file of its user"
        return _refused(401, why)
    # The name counts too: a web page in a browser can have this address under a name of its own.
    if not _is_loopback(request.remote) or not _is_loopback(request.url.host):
        why = "only processes on the machine of the controller may ask for this, by its loopback address"
        return _refused(403, why)
    try:
        content = await answer(request.query)
    except VolplaneError as error:
        return _refused(400, str(error))
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")


def _is_loopback(host: str | None) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host or "").is_loopback
    return host == "localhost"


def _refused(status: int, why: str) -> web.Response:
    body = msgspec.json.encode({"error": why})
    return web.Response(status=status, body=body, content_type="application/json")


class ActionToken:
    """A token in its file, until `remove`."""

    def __init__(self, port: int) -> None:
        """Make a new token for the endpoints on this port."""
        self._token = secrets.token_hex(32)
        self.path: Path | None = None
        """None if no file could be made."""
        self.why = ""
        """Why none could be made in the last directory that was tried."""
        for directory in _directories():
            path = directory / _FILE.format(port)
            fresh = path.with_suffix(".new")
            try:
                directory.mkdir(mode=0o700, exist_ok=True)
                _check(directory)
                fresh.unlink(missing_ok=True)
                # O_EXCL, O_NOFOLLOW: a file or link that another user put there is not written through.
                fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                with os.fdopen(fd, "w") as file:
                    file.write(self._token)
                self.path = fresh.replace(path)
            except OSError as error:
                self.why = f"{directory}: {error.strerror or error}"
            else:
                return

    def allows(self, authorization: str) -> bool:
        """Return whether this value of the header Authorization is the token."""
        expected = f"Bearer {self._token}"
        return self.path is not None and hmac.compare_digest(authorization.encode(errors="replace"), expected.encode())

    def remove(self) -> None:
        """Remove the file, unless another process has replaced it."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                if self.path.read_text() == self._token:
                    self.path.unlink()


def read_token(port: int) -> str:
    """Return the token for the endpoints on this port of this machine. Raises VolplaneError with what to do."""
    tried = []
    for directory in _directories():
        path = directory / _FILE.format(port)
        try:
            _check(directory)
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
                return file.read(_LONGEST).strip()
        except OSError as error:
            tried.append(f"{path}: {error.strerror or error}")
    raise VolplaneError(
        f"the controller's token cannot be read ({'; '.join(tried)}): run the command on the machine (or in the pod) "
        f"of the controller, as the user that it runs as, with the same {DIRECTORY_VARIABLE}"
    )


def _directories() -> Iterator[Path]:
    if given := os.environ.get(DIRECTORY_VARIABLE):
        yield Path(given)
        return
    if os.geteuid() == 0:
        yield Path("/run/volplane")
    yield Path(f"/tmp/volplane-{os.geteuid()}")  # noqa: S108 -- `_check` refuses one that another user made


def _check(directory: Path) -> None:
    """Raise PermissionError for a directory that others own or can write."""
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{directory} is not a directory that this user owns and nobody else can write")
