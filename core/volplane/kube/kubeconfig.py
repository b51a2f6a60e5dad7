"""The address of the API server and our credentials, from a kubeconfig file or from the service account of our pod.

The `kubernetes` package reads the files. Import this module only where it is needed: the package takes 0.8 s.
"""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config
from kubernetes.aio.config.kube_config import KubeConfigLoader, KubeConfigMerger

from volplane._messages import why_unusable
from volplane.errors import ConfigurationError
from volplane.kube.credentials import Credentials, ExecCredential, Identity, run_plugin
from volplane.kube.http.route import Address, Route, client_context, proxy_from_environment

_LOG = logging.getLogger(__name__)

V = TypeVar("V")

_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


async def route_and_credentials(kubeconfig: Path | None = None, context: str = "") -> tuple[Route, Credentials]:
    """Return the way to the server, and our credentials, which are read again from the same source.

    From `kubeconfig`, else $KUBECONFIG, else the pod's own account, else ~/.kube/config; context: which one of the
    file, "" = the current one. Raises ConfigurationError.
    """
    path, named = _chosen(kubeconfig)
    source = _Source(path, named, context)
    identity = await source.read(refused=False)
    server = Address.parse(source.url, what="the server of the kubeconfig")
    what = "the proxy-url of the kubeconfig" if source.proxy else f"{server.scheme.upper()}_PROXY"
    by = source.proxy or proxy_from_environment(server)
    proxy = Address.parse(by, what=what) if by else None
    return Route(server=server, server_name=source.server_name, proxy=proxy), Credentials(source, identity)


def context_namespaces(kubeconfig: Path | None = None) -> Mapping[str, str]:
    """Return the namespace of each context, that of the current one under "". Says nothing of what is wrong."""
    found: dict[str, str] = {}
    try:
        path, _ = _chosen(kubeconfig)
        if path is None:
            return {"": (_IN_CLUSTER / "namespace").read_text()}
        config = KubeConfigMerger(path).config
        for each in config.value["contexts"]:
            found[each.value["name"]] = str(each.value["context"].get("namespace") or "default")
        return {**found, "": found[config.value["current-context"]]}
    except (*_BROKEN, ConfigurationError):
        return found


def _chosen(kubeconfig: Path | None) -> tuple[str | None, str]:
    """Return (path or paths of kubeconfig files; None for in-cluster), and what to call it in a message."""
    if kubeconfig is not None:
        named = f"--kubeconfig {kubeconfig}"
        try:
            kubeconfig.stat()
        except FileNotFoundError:
            raise ConfigurationError(f"{named}: no such file; check its spelling") from None
        except OSError as error:
            raise ConfigurationError(f"{named} cannot be read: {why_unusable(error)}") from None
        return str(kubeconfig), named
    if value := os.environ.get("KUBECONFIG"):
        return value, f"KUBECONFIG={value}"
    if (_IN_CLUSTER / "token").exists():
        return None, "the service account of this pod"
    home = Path.home() / ".kube" / "config"  # not looked for before: in a container there may be none
    if not home.exists():
        raise ConfigurationError(f"no API server to talk to: give --kubeconfig, set KUBECONFIG, or create {home}")
    return str(home), str(home)


_BROKEN = (ConfigException, OSError, yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError)
"""What the package raises for files that are absent, unreadable or of another shape."""


class _Source:
    """Kubeconfig files (separated as in KUBECONFIG), or None: the service account of the pod that we run in."""

    def __init__(self, path: str | None, named: str, context: str) -> None:
        self.url = ""
        """Without a slash at its end."""
        self.proxy = ""
        self.server_name = ""
        self._path = path
        self._named = named
        self._context_name = context
        self._identity: Identity | None = None
        self._loader: _Loader | None = None
        self._plugin: ExecCredential | None = None

    async def read(self, *, refused: bool) -> Identity:
        configuration = Configuration()
        if self._path is None:
            try:
                load_incluster_config(client_configuration=configuration, try_refresh_token=False)
                return self._taken(configuration)
            except _BROKEN as error:
                raise ConfigurationError(
                    f"{self._named} cannot be used: {_plain(error)}; {_IN_CLUSTER} must be mounted"
                    " (automountServiceAccountToken) and readable by the user of the container"
                ) from error
        try:
            if self._loader is None or self._loader.provider is None:
                self._loader = _Loader(
                    KubeConfigMerger(self._path).config,
                    config_base_path=None,
                    active_context=self._context_name or None,
                )
            # Else the loader keeps what an identity provider gave; the file does not have it.
            user = self._loader.user()
            # As in client-go, who we are is told over TLS alone, and nobody is asked for it otherwise.
            secure = _is_secure(str(self._loader.cluster().get("server")))
            plugin = user.get("exec") if self._loader.provider is None and secure else None
            if plugin is None:
                self._plugin = None
            elif self._plugin is None or refused:
                self._plugin = await run_plugin(plugin, self._loader.cluster(), where=self._named)
            await self._loader.load_and_set(configuration)
            file = "" if plugin is not None or "token" in user else str(user.get("tokenFile") or "")
            if file and not configuration.api_key.get("BearerToken"):
                raise ConfigurationError(f"{self._named}: tokenFile {file} is empty; it may not be written yet")
            return self._taken(configuration, self._plugin, _impersonation(user))
        except OSError as error:
            raise ConfigurationError(f"no API server to talk to: {self._named}: {why_unusable(error)}") from error
        except _BROKEN as error:
            why = _shape_flaw(self._path) or _plain(error)
            raise ConfigurationError(f"no API server to talk to: {self._named}: {why}") from error

    def _taken(self, configuration: Any, plugin: ExecCredential | None = None, impersonation: str = "") -> Identity:
        """Return the identity, the former one if nothing changed. Raises ConfigurationError."""
        self.url = str(configuration.host).rstrip("/")
        self.proxy, self.server_name = configuration.proxy or "", configuration.tls_server_name or ""
        given = configuration.api_key.get("BearerToken") or ""
        authorization = self._header(f"Bearer {plugin.token}" if plugin is not None and plugin.token else given)
        if plugin is not None:
            pair = plugin.client_certificate_data.encode(), plugin.client_key_data.encode()
            expires = plugin.expiration_timestamp
        else:
            pair, expires = (_content(configuration.cert_file), _content(configuration.key_file)), None
        expires_in = (expires - datetime.now(UTC)).total_seconds() if expires is not None else None
        authority = _content(configuration.ssl_ca_cert)
        verify, secure = bool(configuration.verify_ssl), _is_secure(self.url)
        told = f"{verify} {expires} {impersonation}"
        parts = (authorization.encode(), authority, *pair, told.encode())
        mark = hashlib.sha256(b"\0".join(parts)).digest()
        if self._identity is None or self._identity.mark != mark:
            if authorization and not secure:
                _LOG.warning("%s: the server has no TLS: the token is not sent there", self._named)
            self._identity = Identity(
                authorization=authorization if secure else "",
                impersonation=impersonation,
                tls=self._context(authority, pair, verify=verify) if secure else True,
                certificate=bool(pair[0]),
                mark=mark,
                expires_in=expires_in,
            )
        return self._identity

    def _header(self, text: str) -> str:
        """Return the value of the header. Files often end with a newline."""
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
                with tempfile.TemporaryDirectory(prefix="volplane-") as directory:  # `ssl` reads them from files alone
                    certificate, key = Path(directory) / "tls.crt", Path(directory) / "tls.key"
                    certificate.write_bytes(pair[0])
                    key.write_bytes(pair[1])
                    context.load_cert_chain(certificate, key, password=lambda: "")  # never asks at the terminal
        except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
            raise ConfigurationError(
                f"{self._named}: the certificates for {self.url} cannot be used: {_plain(error)};"
                " certificate and key must belong together, both in PEM"
            ) from None
        return context


class _Loader(KubeConfigLoader):  # type: ignore[misc]  # the package has no types
    """The package's loader, which leaves exec plugins to us: its own wait for ever and hide errors."""

    def user(self) -> dict[str, Any]:
        return self._user.value if self._user is not None else {}

    def cluster(self) -> dict[str, Any]:
        """Return what a plugin may know of the cluster."""
        known = ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url")
        return {name: value for name, value in self._cluster.value.items() if name in known}

    async def load_from_exec_plugin(self) -> bool:
        return True


def _is_secure(url: str) -> bool:
    return url.lower().startswith("https:")


def _impersonation(user: Mapping[str, Any]) -> str:
    """Return the header lines with which the server takes us for the user that `as` names. Raises ValueError."""
    given: list[tuple[str, str, Any]] = [("User", "as", [user.get("as")]), ("Uid", "as-uid", [user.get("as-uid")])]
    given.append(("Group", "as-groups", user.get("as-groups")))
    for name, values in (_expect(dict, user.get("as-user-extra"), "as-user-extra") or {}).items():
        given.append((f"Extra-{quote(str(name), safe=_IN_NAMES)}", f"as-user-extra.{name}", values))
    lines = []
    for header, key, values in given:
        for value in _expect(list, values, key) or ():
            if (text := _expect(str, value, key)) and not text.isprintable():
                raise _Flaw(f"{key} is {text!r}, expected text without line breaks")
            lines += [f"impersonate-{header}: {text.encode().decode('latin-1')}\r\n"] if text else []
    if lines and not user.get("as"):
        raise _Flaw("as-uid, as-groups and as-user-extra need `as`, the user to act as")
    return "".join(lines)


def _content(path: str | None) -> bytes:
    return Path(path).read_bytes() if path else b""


def _plain(error: BaseException) -> str:
    return str(error) or type(error).__name__


# The shape of kubeconfig files: client-go clientcmd/api/v1 Config.
_TEXTS: Final = {
    "cluster": ("server", "certificate-authority", "certificate-authority-data", "tls-server-name", "proxy-url"),
    "context": ("cluster", "user", "namespace"),
    "user": ("token", "tokenFile", "client-certificate", "client-key", "client-certificate-data", "client-key-data"),
}
_IN_NAMES: Final = "!#$&'*+-.^_`|~"
"""What names of headers may have besides letters and digits; the rest is percent-encoded in those of as-user-extra."""
_KINDS: Final = {dict: "a mapping", list: "a list", str: "text", bool: "a boolean", type(None): "nothing"}


class _Flaw(ValueError):
    """The first part of a file that has another shape."""


def _shape_flaw(paths: str) -> str:
    """Describe the first part of these files (separated as in KUBECONFIG) that has another shape; "": there is none."""
    for path in filter(None, paths.split(os.pathsep)):
        try:
            _check_shape(yaml.safe_load(Path(path).read_text("utf-8")))
        except _Flaw as flaw:
            return f"{path} is no kubeconfig: {flaw}"
        except (OSError, ValueError, yaml.YAMLError):
            continue  # said by the package, with the place
    return ""


def _check_shape(config: object) -> None:
    if config is None:
        raise _Flaw("it is empty")
    if not isinstance(config, dict):
        raise _Flaw(f"it holds {_kind(config)}, expected a mapping with clusters, contexts, users and current-context")
    for part, texts in _TEXTS.items():
        for number, entry in enumerate(_expect(list, config.get(f"{part}s"), f"{part}s") or ()):
            where = f"{part}s[{number}]"
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                raise _Flaw(f"{where} has no name that is text")
            if (holder := _expect(dict, entry.get(part), f"{where}.{part}")) is None:
                raise _Flaw(f"{where}.{part} is nothing, expected a mapping")
            for name in texts:
                _expect(str, holder.get(name), f"{where}.{part}.{name}")
            if part == "user":
                _check_plugin(holder.get("exec"), f"{where}.user.exec")
    if not isinstance(config.get("current-context", ""), str):
        raise _Flaw(f"current-context is {_kind(config['current-context'])}, expected the name of a context")


def _check_plugin(found: object, where: str) -> None:
    plugin = _expect(dict, found, where) or {}
    for name in ("command", "apiVersion"):
        _expect(str, plugin.get(name), f"{where}.{name}")
    _expect(list, plugin.get("args") or None, f"{where}.args")
    env = plugin.get("env") or []
    if not isinstance(env, list) or not all(isinstance(each, dict) and {"name", "value"} <= {*each} for each in env):
        raise _Flaw(f"{where}.env is not a list of mappings with name and value")


def _expect(kind: type[V], value: object, where: str) -> V | None:
    """Return the value, None if it is absent. Raises _Flaw if it is of another kind."""
    if value is None or isinstance(value, kind):
        return value
    raise _Flaw(f"{where} is {_kind(value)}, expected {_KINDS[kind]}")


def _kind(value: object) -> str:
    """Name the kind of a value in the words of YAML. The value itself may be a secret."""
    return _KINDS.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")
