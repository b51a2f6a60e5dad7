"""How to reach a server: its address, a proxy before it, and the way from there to an open connection."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import aiohappyeyeballs

from volplane.errors import ConfigurationError
from volplane.kube.http.connection import Connection

__all__ = ["CONNECT_SECONDS", "Address", "ConnectTimeoutError", "ProxyError", "Route", "Tls", "client_context"]

CONNECT_SECONDS: Final = 10.0
_NEXT_ADDRESS_SECONDS: Final = 0.25
"""After this without a connection the next address of a name is tried beside it (RFC 8305)."""
_PORTS: Final = {"http": 80, "https": 443}


Tls = ssl.SSLContext | bool
"""How to speak TLS, for https; a truth value for http, which has none."""


def client_context(authority: str | None = None) -> ssl.SSLContext:
    """Return the TLS settings of a client that trusts `authority` (PEM), or the authorities of the system.

    Raises ssl.SSLError and ValueError for what is no certificate.
    """
    context = ssl.create_default_context(cadata=authority)
    # Python 3.13 refuses authorities without a key identifier, which private ones often are; Go's TLS does not.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


class ProxyError(OSError):
    """The proxy cannot be reached, or opens no way to the server."""


class ConnectTimeoutError(TimeoutError):
    """No connection within `CONNECT_SECONDS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server listens. authority: host and port as URLs have them. user: of the URL, `name:password`."""

    scheme: str
    host: str
    port: int
    authority: str
    path: str
    user: str = ""

    @classmethod
    def parse(cls, url: str, *, what: str) -> Address:
        """Parse an http or https URL. what: its option, for the message. Raises ConfigurationError."""
        try:
            parts = urlsplit(url)
            host = (parts.hostname or "").encode("idna").decode()
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError:
            host, port = "", 0
        if not host or not port:
            raise ConfigurationError(
                f"{what} is {url!r}, which is no address of a server; give one such as https://example.com:6443"
            )
        shown = f"[{host}]" if ":" in host else host
        return cls(
            scheme=parts.scheme,
            host=host,
            port=port,
            authority=shown if parts.port is None else f"{shown}:{port}",
            path=parts.path.rstrip("/"),
            user="" if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The way to a server. server_name: what its certificate says, where that is not the host of its address."""

    server: Address
    server_name: str = ""
    proxy: Address | None = None

    async def connect(self, tls: Tls, lost: Callable[[Connection], None]) -> Connection:
        """Return an open connection to the server, through the proxy if there is one.

        tls: for https. lost: see `Connection`. Raises OSError (ProxyError, ssl.SSLError, socket.gaierror among them)
        and ConnectTimeoutError.
        """
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await (self._direct(tls, lost) if self.proxy is None else self._tunnelled(self.proxy, tls, lost))
        except TimeoutError:
            raise ConnectTimeoutError from None

    async def _direct(self, tls: Tls, lost: Callable[[Connection], None]) -> Connection:
        secured = {"ssl": tls, "server_hostname": self._expected} if self.server.scheme == "https" else {}
        return await _opened(self.server, secured, lost)

    async def _tunnelled(self, proxy: Address, tls: Tls, lost: Callable[[Connection], None]) -> Connection:
        """Return a tunnel (RFC 9110, 9.3.6) with TLS in it, if the server has TLS."""
        secured = {"ssl": client_context(), "server_hostname": proxy.host} if proxy.scheme == "https" else {}
        target = f"{self.server.authority.removesuffix(f':{self.server.port}')}:{self.server.port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"host: {target}"]
        if proxy.user:
            lines.append(f"proxy-authorization: Basic {base64.b64encode(proxy.user.encode()).decode()}")
        try:
            connection = await _opened(proxy, secured, lost)
            answer = connection.send("\r\n".join((*lines, "", "")).encode())
            try:
                await answer.head()
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            raise ProxyError(f"{proxy.authority}: {error}") from error
        if not 200 <= answer.status < 300:
            connection.close()
            raise ProxyError(f"{proxy.authority} answered {answer.status} to CONNECT {target}")
        return await connection.into_tunnel(tls if isinstance(tls, ssl.SSLContext) else None, self._expected)

    @property
    def _expected(self) -> str:
        return self.server_name or self.server.host


async def _opened(to: Address, secured: dict[str, Any], lost: Callable[[Connection], None]) -> Connection:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(to.host, to.port, type=socket.SOCK_STREAM)
    made = await aiohappyeyeballs.start_connection(
        found, happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS, interleave=1, loop=loop, socket_factory=_socket
    )
    try:
        _, connection = await loop.create_connection(lambda: Connection(loop, lost), sock=made, **secured)
    except BaseException:
        made.close()
        raise
    return connection


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket that notices within two minutes that the other end is gone, even on a connection that waits."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
