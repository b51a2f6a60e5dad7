"""The transport to a real API server: HTTP/1.1 over aiohttp.

Where the server is and who we are to it comes from `volplane.kube.kubeconfig`, and is kept fresh by `Credentials`.
Requests go over a session of our own, because that of the `kubernetes` package (trust_env, json of dicts) costs twice
the time per call.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import yarl

from volplane.errors import ApiUnavailable
from volplane.kube.credentials import Credentials, Identity
from volplane.kube.transport import LineStream, Response
from volplane.kube.unreachable import silent, unreachable

if TYPE_CHECKING:
    from volplane.kube.kubeconfig import ServerSettings

__all__ = ["HttpTransport"]

_CONNECTIONS = 200
_CONNECT_SECONDS = 10.0
_LARGEST_READ = 2**20
_LOOK_SECONDS = 30.0
"""How long a watch that was refused waits for other credentials."""


class HttpTransport:
    """Talks to the API server that a kubeconfig, or the pod it runs in, names. Make it with `connect`."""

    def __init__(self, settings: ServerSettings, session: aiohttp.ClientSession, credentials: Credentials) -> None:
        self._base = yarl.URL(settings.url)
        self._prefix = self._base.path.rstrip("/")
        self._session = session
        self._credentials = credentials
        self._keeping = asyncio.create_task(credentials.keep(), name="credentials")
        self._extra: dict[str, Any] = {}
        if settings.proxy:
            self._extra["proxy"] = settings.proxy
        if settings.server_name:
            self._extra["server_hostname"] = settings.server_name

    @classmethod
    async def connect(cls, kubeconfig: Path | None = None, *, context: str | None = None) -> HttpTransport:
        """Read the configuration: `kubeconfig`, else $KUBECONFIG, else the pod's own account, else ~/.kube/config.

        Raises ConfigurationError. Nothing is sent yet.
        """
        from volplane.kube.kubeconfig import connection_settings  # noqa: PLC0415 -- 0.8 s, only where it is needed

        settings, identity, source = await connection_settings(kubeconfig, context=context)
        connector = aiohttp.TCPConnector(
            limit=_CONNECTIONS, keepalive_timeout=60.0, ttl_dns_cache=30, socket_factory=_socket
        )
        session = aiohttp.ClientSession(
            connector=connector,
            trust_env=False,
            read_bufsize=_LARGEST_READ,
            auto_decompress=True,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return cls(settings, session, Credentials(source, identity))

    @property
    def server(self) -> str:
        """The server's address, for people."""
        return str(self._base)

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
        url = self._url(path, query)
        ends = asyncio.get_running_loop().time() + seconds

        async def exchange(identity: Identity) -> Response:
            left = max(ends - asyncio.get_running_loop().time(), 0.001)
            answer = await self._session.request(
                method,
                url,
                headers=_complete(headers, identity),
                data=body,
                ssl=identity.tls,
                timeout=aiohttp.ClientTimeout(total=left, sock_connect=min(left, _CONNECT_SECONDS)),
                allow_redirects=False,
                **self._extra,
            )
            # Reading to the end gives the connection back, and a failure on the way closes it.
            return Response(answer.status, answer.headers, await answer.read())

        used = self._credentials.identity
        try:
            return await self._credentials.authorized(exchange, seconds=seconds)
        except aiohttp.ConnectionTimeoutError:
            raise self._no_answer(method, path, min(seconds, _CONNECT_SECONDS)) from None
        except TimeoutError:
            raise self._no_answer(method, path, seconds) from None
        except (aiohttp.ClientError, OSError) as error:
            await self._after_failure(used, error, seconds)
            raise unreachable(self.server, f"{method} {path}", error) from error

    async def _after_failure(self, used: Identity, error: BaseException, seconds: float) -> None:
        """Look for a new certificate if it may have been refused in the handshake: the next call finds it.

        With TLS 1.3 that can look like any connection that breaks off before the answer.
        """
        broken = isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError | BrokenPipeError)
        if isinstance(error, ssl.SSLError | aiohttp.ClientSSLError) or (broken and used.certificate):
            await self._credentials.renewed(used, seconds=seconds)

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], headers: Mapping[str, str], quiet: float
    ) -> AsyncIterator[LineStream]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=min(quiet, _CONNECT_SECONDS), sock_read=quiet)
        used = self._credentials.identity
        try:
            answer = await self._session.request(
                "GET",
                self._url(path, query),
                headers=_complete(headers, used),
                ssl=used.tls,
                timeout=timeout,
                allow_redirects=False,
                **self._extra,
            )
        except TimeoutError:
            raise self._no_answer("GET", path, quiet) from None
        except (aiohttp.ClientError, OSError) as error:
            await self._after_failure(used, error, _LOOK_SECONDS)
            raise unreachable(self.server, f"GET {path}", error) from error
        try:
            if answer.status == 401:
                await self._credentials.renewed(used, seconds=_LOOK_SECONDS)
            yield _Stream(answer, path)
        finally:
            answer.close()

    async def close(self) -> None:
        self._keeping.cancel()
        self._credentials.close()
        await self._session.close()

    def _no_answer(self, method: str, path: str, seconds: float) -> ApiUnavailable:
        why = silent(f"{seconds:.3g} s")
        return ApiUnavailable(f"the API server {self.server}: {method} {path}: {why}", status=0)

    def _url(self, path: str, query: Mapping[str, str]) -> yarl.URL:
        url = self._base.with_path(self._prefix + path)
        return url.with_query(query) if query else url


class _Stream:
    """An open answer, cut into lines."""

    def __init__(self, answer: aiohttp.ClientResponse, path: str) -> None:
        self._answer = answer
        self._path = path

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._answer.headers

    async def read(self) -> bytes:
        try:
            return await self._answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiUnavailable(f"the answer of {self._path} broke off: {_plain(error)}", status=0) from error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        rest = b""
        try:
            async for chunk in self._answer.content.iter_any():
                *lines, rest = (rest + chunk if rest else chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield line
        except TimeoutError:
            raise ApiUnavailable(f"GET {self._path} fell silent", status=0) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ApiUnavailable(f"GET {self._path} broke off: {_plain(error)}", status=0) from error
        if rest:
            yield rest


def _complete(headers: Mapping[str, str], identity: Identity) -> dict[str, str]:
    complete = dict(headers)
    if identity.authorization:
        complete["authorization"] = identity.authorization
    return complete


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices within two minutes that the other end is gone, even on a connection that waits."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def _plain(error: BaseException) -> str:
    return str(error) or type(error).__name__
