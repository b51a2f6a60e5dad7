"""The transport to a real API server: HTTP/1.1 over connections that are kept open.

Address and credentials come from `volplane.kube.kubeconfig`; `Credentials` keeps them fresh. A call by aiohttp or by
the `kubernetes` package takes at least three times the CPU time.
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

from volplane.errors import ApiUnavailable
from volplane.kube.credentials import Credentials, Identity
from volplane.kube.http.connection import Answer, BrokenOff, ConnectionPool
from volplane.kube.http.route import CONNECT_SECONDS, ConnectTimeoutError, Route, silent, why_unreachable
from volplane.kube.transport import LineStream, Request, Response

_LOOK_SECONDS = 30.0
"""How long a watch that was refused waits for other credentials."""
_PLAIN = re.compile("[A-Za-z0-9/:._~-]*")
"""What needs no quoting."""


class HttpTransport:
    """Talks to the API server that a kubeconfig, or the pod it runs in, names. Make it with `connect`."""

    def __init__(self, route: Route, credentials: Credentials) -> None:
        self.server = route.server.url
        """The server's address, for people."""
        self.route = route
        self._prefix = route.server.path
        self._host = f"host: {route.server.authority}\r\naccept-encoding: identity\r\n"
        self._pool, self._urgent = (ConnectionPool(route.connect, swallowed=self._drop_idle) for _ in range(2))
        self._streams = ConnectionPool(route.connect, lent_for_long=True, swallowed=self._drop_idle)
        self.credentials = credentials
        self._keeping = asyncio.create_task(credentials.keep(), name="credentials")

    @classmethod
    async def connect(cls, kubeconfig: Path | None = None, context: str = "") -> HttpTransport:
        """Read the configuration, see `route_and_credentials`. Raises ConfigurationError. Sends nothing yet."""
        from volplane.kube.kubeconfig import route_and_credentials  # noqa: PLC0415 -- 0.8 s, only where it is needed

        return cls(*await route_and_credentials(kubeconfig, context))

    async def send(self, request: Request) -> Response:
        ends = asyncio.get_running_loop().time() + request.seconds
        pool = self._urgent if request.urgent else self._pool

        async def exchange(identity: Identity) -> Response:
            sent = self._bytes_of(request, identity)
            while True:
                connection = await pool.take(identity.tls, ends)
                kept = connection.answered > 0
                answer: Answer | None = None
                try:
                    answer = connection.send(sent)
                    body = await answer.body(ends)
                    return Response(answer.status, answer.headers, body)
                except (BrokenOff, ConnectionResetError, BrokenPipeError):
                    # Only a read is sent twice, and only if the server closed a kept connection before it answered.
                    if request.method != "GET" or not kept or (answer is not None and answer.begun):
                        raise
                finally:
                    pool.give_back(connection)

        used = self.credentials.identity
        try:
            return await self.credentials.authorized(exchange, seconds=request.seconds)
        except OSError as error:
            raise await self._failure(request, used, error, look=request.seconds) from error

    async def _failure(self, request: Request, used: Identity, error: OSError, *, look: float) -> ApiUnavailable:
        """Return the error for a call that had no answer. A certificate that may have been refused in the handshake is
        looked for anew, for `look` seconds: the next call finds it.
        """
        call = f"{request.method} {request.path}"
        if isinstance(error, TimeoutError):
            seconds = min(request.seconds, CONNECT_SECONDS if isinstance(error, ConnectTimeoutError) else math.inf)
            return ApiUnavailable(f"the API server {self.server}: {call}: {silent(f'{seconds:.3g} s')}", status=0)
        # With TLS 1.3 that can look like any connection that breaks off before the answer.
        broken = isinstance(error, BrokenOff | ConnectionResetError | BrokenPipeError)
        if isinstance(error, ssl.SSLError) or (broken and used.certificate):
            await self.credentials.renewed(used, seconds=look)
        why = why_unreachable(error)
        return ApiUnavailable(f"the API server {self.server} cannot be reached: {why} ({call} failed)", status=0)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[LineStream]:
        used = self.credentials.identity
        clock = asyncio.get_running_loop().time
        ends = clock() + request.seconds
        try:
            connection = await self._streams.take(used.tls, ends)
            try:
                answer = connection.send(self._bytes_of(request, used), streamed=True)
                await answer.head(ends)
            except BaseException:
                self._streams.give_back(connection)
                raise
        except OSError as error:
            raise await self._failure(request, used, error, look=_LOOK_SECONDS) from error
        try:
            if answer.status == 401:
                await self.credentials.renewed(used, seconds=_LOOK_SECONDS)
            yield _Stream(answer, request, clock)
        finally:
            self._streams.give_back(connection)

    async def close(self) -> None:
        self._keeping.cancel()
        self.credentials.close()
        await asyncio.gather(*(pool.close() for pool in (self._pool, self._urgent, self._streams)))

    def _drop_idle(self) -> None:
        for pool in (self._pool, self._urgent, self._streams):
            pool.drop_idle()

    def _bytes_of(self, request: Request, identity: Identity) -> bytes:
        path = self._prefix + request.path
        target = path if _PLAIN.fullmatch(path) else quote(path, safe="/:")
        if request.query:
            target = f"{target}?{urlencode(request.query)}"
        lines = [f"{request.method} {target} HTTP/1.1\r\n{self._host}"]
        lines += [f"{name}: {value}\r\n" for name, value in request.headers.items()]
        if identity.authorization:
            lines.append(f"authorization: {identity.authorization}\r\n")
        if identity.impersonation:
            lines.append(identity.impersonation)
        if request.body is not None:
            lines.append(f"content-length: {len(request.body)}\r\n")
        lines.append("\r\n")
        return "".join(lines).encode("latin-1") + (request.body or b"")


class _Stream:
    """An open answer, cut into lines."""

    def __init__(self, answer: Answer, request: Request, clock: Callable[[], float]) -> None:
        """clock: the loop's."""
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self._answer = answer
        self._clock = clock
        self._path = request.path
        self._quiet = request.seconds

    async def read(self) -> bytes:
        return b"\n".join([line async for line in self])

    async def __aiter__(self) -> AsyncIterator[bytes]:
        rest = b""
        try:
            while chunk := await self._answer.chunk(self._clock() + self._quiet):
                *lines, rest = (rest + chunk if rest else chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield line
        except TimeoutError:
            raise ApiUnavailable(f"GET {self._path} fell silent", status=0) from None
        except OSError as error:
            text = f"GET {self._path} broke off: {str(error) or type(error).__name__}"
            raise ApiUnavailable(text, status=0) from error
        if rest:
            yield rest
