"""The transport to a real API server: HTTP/1.1 over aiohttp.

Addresses, TLS, client certificates, exec plugins, tokens and their refresh come from the `kubernetes` package. Requests
go over a session of our own, because the package's (trust_env, json of dicts) costs twice the time per call.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml
import yarl

from volplane.errors import ApiUnavailable, ConfigurationError
from volplane.kube.transport import LineStream, Response

__all__ = ["HttpTransport"]

_LOG = logging.getLogger(__name__)

_CONNECTIONS = 200
_LARGEST_READ = 2**20
_RELOAD_SECONDS = 10.0
_REFRESH_SECONDS = 60.0
_IN_CLUSTER_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


class HttpTransport:
    """Talks to the API server that a kubeconfig, or the pod it runs in, names. Make it with `connect`."""

    def __init__(self, configuration: Any, session: aiohttp.ClientSession, credentials: _Credentials) -> None:
        self._base = yarl.URL(configuration.host.rstrip("/"))
        self._prefix = self._base.path.rstrip("/")
        self._session = session
        self._credentials = credentials
        self._extra: dict[str, Any] = {}
        if configuration.proxy:
            self._extra["proxy"] = configuration.proxy
            self._extra["proxy_headers"] = configuration.proxy_headers
        if configuration.tls_server_name:
            self._extra["server_hostname"] = configuration.tls_server_name

    @classmethod
    async def connect(cls, kubeconfig: Path | None = None, *, context: str | None = None) -> HttpTransport:
        """Read the configuration: `kubeconfig`, else $KUBECONFIG, else the pod's own account, else ~/.kube/config.

        Raises ConfigurationError. Nothing is sent yet.
        """
        configuration, loader = await _load(kubeconfig, context)
        try:
            tls = _tls(configuration)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"the certificates of {configuration.host} cannot be used: {error}") from error
        connector = aiohttp.TCPConnector(
            ssl=tls, limit=_CONNECTIONS, keepalive_timeout=60.0, ttl_dns_cache=30, socket_factory=_socket
        )
        session = aiohttp.ClientSession(
            connector=connector,
            trust_env=False,
            read_bufsize=_LARGEST_READ,
            auto_decompress=True,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return cls(configuration, session, _Credentials(configuration, loader))

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
        limit = aiohttp.ClientTimeout(total=max(seconds, 0.001))
        try:
            response = await self._exchange(method, url, headers, body, limit)
            if response.status == 401 and await self._credentials.renew():
                response = await self._exchange(method, url, headers, body, limit)
        except TimeoutError:
            raise ApiUnavailable(f"{method} {path} had no answer within {seconds:.3g} s", status=0) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ApiUnavailable(f"{method} {path} failed: {_plain(error)}", status=0) from error
        return response

    async def _exchange(
        self, method: str, url: yarl.URL, headers: Mapping[str, str], body: bytes | None, limit: aiohttp.ClientTimeout
    ) -> Response:
        complete = await self._credentials.add_to(headers)
        answer = await self._session.request(
            method, url, headers=complete, data=body, timeout=limit, allow_redirects=False, **self._extra
        )
        # Reading to the end gives the connection back, and a failure on the way closes it.
        return Response(answer.status, answer.headers, await answer.read())

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], headers: Mapping[str, str], quiet: float
    ) -> AsyncIterator[LineStream]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=min(quiet, 30.0), sock_read=quiet)
        complete = await self._credentials.add_to(headers)
        try:
            answer = await self._session.request(
                "GET", self._url(path, query), headers=complete, timeout=timeout, allow_redirects=False, **self._extra
            )
        except TimeoutError:
            raise ApiUnavailable(f"GET {path} had no answer within {quiet:.3g} s", status=0) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ApiUnavailable(f"GET {path} failed: {_plain(error)}", status=0) from error
        try:
            if answer.status == 401:
                await self._credentials.renew()
            yield _Stream(answer, path)
        finally:
            answer.close()

    async def close(self) -> None:
        await self._credentials.close()
        await self._session.close()

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


class _Credentials:
    """The authorization header, kept fresh."""

    def __init__(self, configuration: Any, loader: Any) -> None:
        self._configuration = configuration
        self._loader = loader
        self._renewed = -_RELOAD_SECONDS
        self._refresher: asyncio.Task[None] | None = None
        if loader is not None:
            self._refresher = asyncio.create_task(self._refresh(), name="token-refresh")

    async def add_to(self, headers: Mapping[str, str]) -> dict[str, str]:
        complete = dict(headers)
        token = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if token:
            complete["authorization"] = token
        return complete

    async def renew(self) -> bool:
        """Read token file or exec plugin again after a 401; whether another try makes sense."""
        now = asyncio.get_running_loop().time()
        if self._loader is None or now - self._renewed < _RELOAD_SECONDS:
            return False
        self._renewed = now
        before = dict(self._configuration.api_key)
        await self._reload()
        return bool(before != self._configuration.api_key)

    async def _refresh(self) -> None:
        """Token files are rotated, tokens of exec plugins expire: look every minute."""
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            await self._reload()

    async def _reload(self) -> None:
        try:
            await self._loader.load_and_set(self._configuration)
        except Exception:  # noqa: BLE001 -- whatever a plugin raises, the old token may still do
            _LOG.exception("the credentials for %s could not be read again", self._configuration.host)

    async def close(self) -> None:
        if self._refresher is not None:
            self._refresher.cancel()
            await asyncio.wait([self._refresher])


async def _load(kubeconfig: Path | None, context: str | None) -> tuple[Any, Any]:
    """(configuration of the kubernetes package, its loader or None in a cluster)."""
    from kubernetes.aio import config  # noqa: PLC0415 -- 0.8 s, only where it is needed
    from kubernetes.aio.client.configuration import Configuration  # noqa: PLC0415

    configuration = Configuration()
    chosen, named = _chosen(kubeconfig)
    try:
        if chosen is None:
            config.load_incluster_config(client_configuration=configuration)
            return configuration, None
        loader = await config.load_kube_config(
            config_file=str(chosen), context=context, client_configuration=configuration, persist_config=False
        )
    except (config.ConfigException, OSError, yaml.YAMLError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"no API server to talk to: {named}: {_plain(error)}") from error
    return configuration, loader


def _chosen(kubeconfig: Path | None) -> tuple[str | None, str]:
    """(path or paths of kubeconfig files; None for in-cluster), and what to call it in a message."""
    if kubeconfig is not None:
        if not kubeconfig.exists():
            raise ConfigurationError(f"--kubeconfig {kubeconfig}: no such file")
        return str(kubeconfig), f"--kubeconfig {kubeconfig}"
    if value := os.environ.get("KUBECONFIG"):
        return value, f"KUBECONFIG={value}"
    if _IN_CLUSTER_TOKEN.exists():
        return None, "the service account of this pod"
    home = Path.home() / ".kube" / "config"
    if not home.exists():
        raise ConfigurationError(f"no API server to talk to: give --kubeconfig, set KUBECONFIG, or create {home}")
    return str(home), str(home)


def _tls(configuration: Any) -> ssl.SSLContext | bool:
    """The context the kubernetes package would use; it builds one for its own client."""
    if not configuration.host.startswith("https"):
        return True
    from kubernetes.aio.client.rest import RESTClientObject  # noqa: PLC0415

    context: ssl.SSLContext = RESTClientObject(configuration).ssl_context
    return context


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
