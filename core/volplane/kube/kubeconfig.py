"""The address of the API server and our credentials, from a kubeconfig file or from the service account of our pod.

The `kubernetes` package reads the files; a program of the user (exec plugin) is run by `volplane.kube.exec_plugin`.
Import this module only where it is needed: the package takes 0.8 s.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config
from kubernetes.aio.config.kube_config import KubeConfigLoader, KubeConfigMerger

from volplane._messages import why_unusable
from volplane.errors import ConfigurationError
from volplane.kube.credentials import Identity
from volplane.kube.exec_plugin import ExecCredential, run_plugin
from volplane.kube.http.route import client_context
from volplane.kube.kubeconfig_shape import flaw

__all__ = ["ServerSettings", "connection_settings"]

_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What stays as it was read first. url: without a slash at its end. Empty: not given."""

    url: str
    proxy: str = ""
    server_name: str = ""


async def connection_settings(
    kubeconfig: Path | None = None, *, context: str | None = None
) -> tuple[ServerSettings, Identity, _File | _Pod]:
    """The server, our identity, and the source to read that again from.

    From `kubeconfig`, else $KUBECONFIG, else the pod's own account, else ~/.kube/config. Raises ConfigurationError.
    """
    path, named = _chosen(kubeconfig)
    source: _File | _Pod = _Pod(named) if path is None else _File(path, context, named)
    identity = await source.read(refused=False)
    settings = source.server
    if settings.proxy and not settings.proxy.startswith(("http://", "https://")):
        raise ConfigurationError(f"{named}: proxy-url is {settings.proxy!r}; only http:// and https:// are supported")
    return settings, identity, source


def _chosen(kubeconfig: Path | None) -> tuple[str | None, str]:
    """(path or paths of kubeconfig files; None for in-cluster), and what to call it in a message."""
    if kubeconfig is not None:
        try:
            kubeconfig.stat()
        except FileNotFoundError:
            raise ConfigurationError(f"--kubeconfig {kubeconfig}: no such file; check its spelling") from None
        except OSError as error:
            raise ConfigurationError(f"--kubeconfig {kubeconfig} cannot be read: {why_unusable(error)}") from None
        return str(kubeconfig), f"--kubeconfig {kubeconfig}"
    if value := os.environ.get("KUBECONFIG"):
        return value, f"KUBECONFIG={value}"
    if (_IN_CLUSTER / "token").exists():
        return None, "the service account of this pod"
    home = Path.home() / ".kube" / "config"
    if not home.exists():
        raise ConfigurationError(f"no API server to talk to: give --kubeconfig, set KUBECONFIG, or create {home}")
    return str(home), str(home)


class _Reader:
    """What the two sources share: from a configuration of the kubernetes package to an identity."""

    def __init__(self, named: str) -> None:
        self.server = ServerSettings(url="")
        self._named = named
        self._identity: Identity | None = None

    def _taken(self, configuration: Any, plugin: ExecCredential | None = None) -> Identity:
        """The identity, the former one if nothing changed. Raises ConfigurationError."""
        url = str(configuration.host).rstrip("/")
        self.server = ServerSettings(
            url=url, proxy=configuration.proxy or "", server_name=configuration.tls_server_name or ""
        )
        given = configuration.api_key.get("BearerToken") or ""
        authorization = self._header(f"Bearer {plugin.token}" if plugin is not None and plugin.token else given)
        pair = (plugin.certificate.encode(), plugin.key.encode()) if plugin is not None else _pair(configuration)
        authority = _content(configuration.ssl_ca_cert)
        verify = b"verify" if configuration.verify_ssl else b""
        expires = str(plugin.expires).encode() if plugin is not None else b""
        parts = (authorization.encode(), authority, *pair, verify, expires)
        mark = hashlib.sha256(b"\0".join(parts)).digest()
        expires_in = plugin.expires_in() if plugin is not None else None
        if self._identity is None or self._identity.mark != mark:
            tls: ssl.SSLContext | bool = True
            if url.startswith("https"):
                tls = self._context(authority, pair, verify=bool(configuration.verify_ssl))
            self._identity = Identity(
                authorization=authorization, tls=tls, certificate=bool(pair[0]), mark=mark, expires_in=expires_in
            )
        return self._identity

    def _header(self, text: str) -> str:
        """The value of the header. Files often end with a newline."""
        kind, _, token = text.partition(" ")
        token = token.strip()
        if text and not token:
            raise ConfigurationError(f"{self._named}: the token is empty; its file may not be written yet")
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigurationError(
                f"{self._named}: the token has characters that none can have, such as a line break in its middle;"
                " give the token alone"
            )
        return f"{kind} {token}" if token else ""

    def _context(self, authority: bytes, pair: tuple[bytes, bytes], *, verify: bool) -> ssl.SSLContext:
        try:
            context = client_context(authority.decode() if authority else None)
            if not verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if pair[0]:
                _load(context, pair)
        except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
            raise ConfigurationError(
                f"{self._named}: the certificates for {self.server.url} cannot be used: {_plain(error)};"
                " certificate and key must belong together, both in PEM"
            ) from None
        return context


class _Loader(KubeConfigLoader):  # type: ignore[misc]  # the package has no types
    """The package's loader, which leaves exec plugins to us: its own wait for ever and hide errors."""

    def plugin(self) -> dict[str, Any] | None:
        """The `exec` of the user, if it counts."""
        user = self._user.value if self._user is not None else {}
        return user.get("exec") if self.provider is None else None

    def cluster(self) -> dict[str, Any]:
        """What a plugin may be told about the cluster."""
        told = ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url")
        return {name: value for name, value in self._cluster.value.items() if name in told}

    def token_file(self) -> str:
        """The file that the user's token comes from."""
        user = self._user.value if self._user is not None else {}
        return "" if "token" in user else str(user.get("tokenFile") or "")

    async def load_from_exec_plugin(self) -> bool:
        return True


class _File(_Reader):
    """A kubeconfig file, or several."""

    def __init__(self, path: str, context: str | None, named: str) -> None:
        super().__init__(named)
        self._path = path
        self._context_name = context
        self._loader: _Loader | None = None
        self._plugin: ExecCredential | None = None

    async def read(self, *, refused: bool) -> Identity:
        configuration = Configuration()
        try:
            if self._loader is None or self._loader.provider is None:
                merged = KubeConfigMerger(self._path).config
                self._loader = _Loader(merged, active_context=self._context_name, config_base_path=None)
            # Else the loader keeps what an identity provider gave; the file does not have it.
            if (plugin := self._loader.plugin()) is None:
                self._plugin = None
            elif self._plugin is None or refused:
                self._plugin = await run_plugin(plugin, self._loader.cluster(), where=self._named)
            await self._loader.load_and_set(configuration)
            if (file := self._loader.token_file()) and plugin is None and not configuration.api_key.get("BearerToken"):
                raise ConfigurationError(f"{self._named}: tokenFile {file} is empty; it may not be written yet")
            return self._taken(configuration, self._plugin)
        except OSError as error:
            raise ConfigurationError(f"no API server to talk to: {self._named}: {why_unusable(error)}") from error
        except _BROKEN as error:
            why = flaw(self._path) or _plain(error)
            raise ConfigurationError(f"no API server to talk to: {self._named}: {why}") from error


class _Pod(_Reader):
    """The service account of the pod that we run in."""

    async def read(self, *, refused: bool) -> Identity:
        configuration = Configuration()
        try:
            load_incluster_config(client_configuration=configuration, try_refresh_token=False)
            return self._taken(configuration)
        except _BROKEN as error:
            raise ConfigurationError(
                f"{self._named} cannot be used: {_plain(error)}; {_IN_CLUSTER} must be mounted"
                " (automountServiceAccountToken) and readable by the user of the container"
            ) from error


_BROKEN = (ConfigException, OSError, yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError)
"""What the package raises for files that are absent, unreadable or of another shape."""


def _pair(configuration: Any) -> tuple[bytes, bytes]:
    """Client certificate and key, both empty if there are none."""
    return _content(configuration.cert_file), _content(configuration.key_file)


def _content(path: str | None) -> bytes:
    return Path(path).read_bytes() if path else b""


def _load(context: ssl.SSLContext, pair: tuple[bytes, bytes]) -> None:
    """Give the context its client certificate; `ssl` reads them from files alone."""
    with tempfile.TemporaryDirectory(prefix="volplane-") as directory:
        certificate, key = Path(directory) / "tls.crt", Path(directory) / "tls.key"
        certificate.write_bytes(pair[0])
        key.write_bytes(pair[1])
        context.load_cert_chain(certificate, key, password=lambda: "")  # never asks at the terminal


def _plain(error: BaseException) -> str:
    return str(error) or type(error).__name__
