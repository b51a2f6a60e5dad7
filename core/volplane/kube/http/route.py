"""How to reach a server: its address, a proxy before it, and the way from there to an open connection.

Where that fails, or the server refuses our credentials, `why_unreachable` and `refused` say what to check.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import aiohappyeyeballs

from volplane.errors import ApiError, ConfigurationError
from volplane.kube.http.connection import BrokenOff, Connection, NotHttp, Tls

CONNECT_SECONDS: Final = 10.0
_NEXT_ADDRESS_SECONDS: Final = 0.25
"""After this without a connection the next address of a name is tried beside it (RFC 8305)."""
_PORTS: Final = {"http": 80, "https": 443}


def client_context(authority: str | None = None) -> ssl.SSLContext:
    """Return TLS settings that trust `authority` (PEM), or the system's. Raises ssl.SSLError and ValueError."""
    context = ssl.create_default_context(cadata=authority)
    # Python 3.13 refuses authorities without a key identifier, which private ones often are; Go's TLS does not.
    # An authority may be an intermediate alone: Go trusts it too, and Python from 3.13 on.
    context.verify_flags = context.verify_flags & ~ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


class ProxyError(OSError):
    """The proxy cannot be reached, or opens no way to the server."""


class ConnectTimeoutError(TimeoutError):
    """No connection within `CONNECT_SECONDS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server listens. authority: host and port as the header Host has them. name: what a certificate calls the
    host. user: of the URL, `name:password`.
    """

    url: str
    scheme: str
    host: str
    port: int
    authority: str
    name: str
    path: str
    user: str = ""

    @classmethod
    def parse(cls, url: str, *, what: str) -> Address:
        """Parse an http or https URL. what: its option, for the message. Raises ConfigurationError."""
        shown = re.sub("^([a-z0-9]+://)?.*@", r"\1", url)  # without a password, which may have slashes
        try:
            parts = urlsplit(url)
            # The zone of an IPv6 address, after %25 (RFC 6874), is for this machine alone.
            host, percent, zone = (parts.hostname or "").encode("idna").decode().partition("%")
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError:
            host, port, percent, zone = "", 0, "", ""
        if not host or not port or parts.scheme not in _PORTS:
            text = f"{what} is {shown!r}, which is no address of a server; give one such as https://example.com:6443"
            raise ConfigurationError(f"{text} (only http:// and https:// are supported)")
        named = f"[{host}]" if ":" in host else host
        return cls(
            url=shown,
            scheme=parts.scheme,
            host=f"{host}{percent}{unquote(zone.removeprefix('25'))}",
            port=port,
            name=host.removesuffix("."),
            authority=named if parts.port is None else f"{named}:{port}",
            path=parts.path.rstrip("/"),
            user="" if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}",
        )


def proxy_from_environment(server: Address) -> str:
    """Return the URL of the proxy for a server, or "", as client-go finds it (golang.org/x/net/http/httpproxy)."""
    proxy, address = _variable(f"{server.scheme}_proxy"), _network(server.host)
    if not proxy or server.name == "localhost" or (address is not None and address.is_loopback):
        return ""
    if any(_covers(entry.strip(), server) for entry in _variable("no_proxy").lower().split(",")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(name: str) -> str:
    return os.environ.get(name.upper()) or os.environ.get(name) or ""


def _covers(entry: str, server: Address) -> bool:
    """Tell whether an entry of NO_PROXY is about the server: `*`, a network, or a host, perhaps with a port."""
    host, _, port = entry.rpartition(":")
    if not host or _network(entry) is not None:
        host, port = entry, ""
    if port not in ("", str(server.port)):
        return False
    if (network := _network(host.strip("[]"))) is not None:
        address = _network(server.host)
        return address is not None and address.network_address in network
    # example.com is about its subdomains too, .example.com and *.example.com are about them alone.
    domain = host.removeprefix("*")
    if domain.startswith("."):
        return server.name.endswith(domain)
    return entry == "*" or (bool(domain) and f".{server.name}".endswith(f".{domain}"))


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


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
        expected = self.server_name or self.server.name
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if self.proxy is not None:
                    return await self._tunnelled(self.proxy, tls, expected, lost)
                return await _opened(self.server, tls, expected, lost)
        except TimeoutError:
            raise ConnectTimeoutError from None

    async def _tunnelled(
        self, proxy: Address, tls: Tls, expected: str, lost: Callable[[Connection], None]
    ) -> Connection:
        """Return a tunnel (RFC 9110, 9.3.6) with TLS in it, if the server has TLS."""
        target = f"{self.server.authority.removesuffix(f':{self.server.port}')}:{self.server.port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"host: {target}"]
        if proxy.user:
            lines.append(f"proxy-authorization: Basic {base64.b64encode(proxy.user.encode()).decode()}")
        to_proxy = client_context() if proxy.scheme == "https" else True
        try:
            connection = await _opened(proxy, to_proxy, proxy.name, lost)
            answer = connection.send("\r\n".join((*lines, "", "")).encode(), tunnel=True)
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
        await connection.into_tunnel(tls if isinstance(tls, ssl.SSLContext) else None, expected)
        return connection


async def _opened(to: Address, tls: Tls, expected: str, lost: Callable[[Connection], None]) -> Connection:
    """Connect. expected: the name that the certificate must have."""
    secured: dict[str, Any] = {"ssl": tls, "server_hostname": expected} if to.scheme == "https" else {}
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
    """Return a socket that notices within 45 s that the other end is gone, whether it waits or sends."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Nothing is probed while what was sent is not acknowledged: that the last one is for, in milliseconds.
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000)):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def refused(server: str, error: ApiError) -> ApiError:
    """Return the error with the server's address and what to check, for a 401 or 403."""
    match error.status:
        case 401:
            advice = (
                "check the user of the kubeconfig (token, client certificate, exec plugin), whether it is of this "
                "cluster, and whether it has expired"
            )
            text = f"the API server {server} does not accept these credentials (401): {error}; {advice}"
        case 403:
            advice = "grant it that right, or take another user in the kubeconfig; `volplane manifests` has the rights"
            text = f"the API server {server} forbids it (403): {error}; {advice}"
        case _:
            return error
    return type(error)(text, status=error.status, reason=error.reason)


def why_unreachable(error: BaseException) -> str:
    told = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        told = error.strerror
    match error:
        case ProxyError():
            return f"the proxy gives no way to it ({told}); check proxy-url in the kubeconfig, HTTPS_PROXY and NO_PROXY"
        case socket.gaierror():
            return f"its name is not known ({told}); check the name in the kubeconfig, and the DNS of this machine"
        case BrokenOff():
            return "it broke the connection off before it answered; check whether it is starting or overloaded"
        case NotHttp():
            return f"what it answers is not HTTP ({told}); check that this is its port"
        case ssl.SSLCertVerificationError():
            advice = "check certificate-authority-data and the name in the kubeconfig"
            return f"its certificate is not trusted ({getattr(error, 'verify_message', '') or told}); {advice}"
        case ssl.SSLError():
            return f"TLS fails ({told}); check that this is its https port, and the client certificate"
    number = error.errno if isinstance(error, OSError) else None
    return _BY_NUMBER.get(number or 0, "{}; check its address in the kubeconfig").format(told)


def silent(within: str) -> str:
    return f"it had no answer within {within}; check its address, firewalls, VPN or proxy, and whether it is overloaded"


_NO_WAY: Final = "no way leads there ({}); check its address, the network, VPN or proxy"
_BROKEN_OFF: Final = "it broke the connection off ({}); check that this is its port, and TLS on both sides"
_BY_NUMBER: Final = {
    errno.ECONNREFUSED: "nothing listens there (connection refused); check that it runs, and its port",
    errno.EHOSTUNREACH: _NO_WAY,
    errno.ENETUNREACH: _NO_WAY,
    errno.ETIMEDOUT: silent("the time that the network allows"),
    errno.ECONNRESET: _BROKEN_OFF,
    errno.EPIPE: _BROKEN_OFF,
}
