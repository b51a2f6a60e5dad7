"""The embedded API server as commands start it: its store, certificate, token, socket and kubeconfig."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import resource
import shlex
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

from typer import Option

from volplane._messages import why_unusable
from volplane.cli.framework.options import path_option
from volplane.errors import ConfigurationError
from volplane_embedded.apiserver.certificates import Certificate, ensure_certificate, server_context
from volplane_embedded.apiserver.http import serve
from volplane_embedded.apiserver.journal import DataDirInUse, SqliteJournal
from volplane_embedded.apiserver.kinds import CROSS_NAMESPACE
from volplane_embedded.apiserver.kubeconfig import ensure_token, write_kubeconfig
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.apiserver.store import Store

LOOPBACK = ("localhost", "127.0.0.1", "::1")
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not bound


DataDirectory = Annotated[
    Path | None, path_option("--data", "DIR", "Keep everything in this directory, safe against a crash.")
]
InMemory = Annotated[bool, Option("--memory", help="Keep everything in memory only. This is the default.")]
FeatureGates = Annotated[
    str,
    Option(
        "--feature-gates",
        metavar="NAME=BOOL,…",
        help="Feature gates of the API server that are off by default, as the stock flag: "
        "CrossNamespaceVolumeDataSource=true keeps the namespace of dataSourceRef, and serves ReferenceGrants.",
    ),
]
Host = Annotated[str, Option("--host", metavar="ADDRESS", help="Address to listen on.")]
Port = Annotated[int, Option("--port", metavar="PORT", min=0, max=65535, help="Port to listen on; 0 takes a free one.")]
KubeconfigOut = Annotated[
    Path | None, path_option("--kubeconfig-out", "FILE", "Where to write the kubeconfig with the token (mode 0600).")
]

_BOOLEANS: Final = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
MOST_FILES: Final = 65_536
"""Open files that are enough for all connections, also those that are still shaking hands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Where an embedded server keeps its objects and where it listens.

    data: directory, made if it is absent; None = in memory only. port: 0 = a free port. kubeconfig: file to write.
    feature_gates: that are on.
    """

    data: Path | None
    host: str
    port: int
    kubeconfig: Path
    feature_gates: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedServer:
    """A running server. url: the address for clients on this machine. token, kubeconfig: their credentials."""

    server: ApiServer
    url: str
    token: str
    kubeconfig: Path

    def kubectl(self, arguments: str) -> str:
        """Return a command line to print."""
        return f"kubectl --kubeconfig {shlex.quote(str(self.kubeconfig))} {arguments}"


def server_settings(
    *, data: Path | None, memory: bool, host: str, port: int, kubeconfig_out: Path | None, feature_gates: str = ""
) -> ServerSettings:
    """Return the settings from the options of a command.

    Raises ConfigurationError for options that exclude each other.
    """
    if memory and data is not None:
        raise ConfigurationError("--memory and --data exclude each other: give one of them")
    beside = Path("volplane.kubeconfig") if data is None else data / "kubeconfig"
    gates = _gates(feature_gates)
    return ServerSettings(data=data, host=host, port=port, kubeconfig=kubeconfig_out or beside, feature_gates=gates)


def _gates(text: str) -> frozenset[str]:
    """Return the gates that are on in a text as the stock flag takes it. Raises ConfigurationError."""
    known: dict[str, bool] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = pair.partition("=")
        if name != CROSS_NAMESPACE:
            raise ConfigurationError(f"--feature-gates: {name!r} is not known here; {CROSS_NAMESPACE} is")
        if value.lower() not in _BOOLEANS:
            raise ConfigurationError(f"--feature-gates: {pair!r} must be {name}=true or {name}=false")
        known[name] = _BOOLEANS[value.lower()]
    return frozenset(name for name, on in known.items() if on)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach the address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def make_directory(directory: Path, what: str) -> None:
    """Make it with mode 0700 if it is absent, and check that files can be made in it.

    what: the option, or what it is for. Raises ConfigurationError.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as refused:
        raise ConfigurationError(f"{what} {directory} cannot be used: {why_unusable(refused)}") from refused


@asynccontextmanager
async def embedded_server(
    settings: ServerSettings, *, disabled_admission: frozenset[str] = frozenset(), history: int = 16_384
) -> AsyncIterator[EmbeddedServer]:
    """Serve until the block ends, with the kubeconfig written once connections are accepted.

    Raises ConfigurationError for a directory, address, port or admission plugin that cannot be used.
    """
    allow_open_files()
    with _opened(settings, disabled_admission, history) as server, _files(settings) as directory:
        token, certificate = _credentials(settings, directory)
        try:
            tls = server_context(certificate, directory)
            listener = await serve(server, host=settings.host, port=settings.port, token=token, tls=tls)
        except OSError as refused:
            raise ConfigurationError(_why_not_listening(settings, refused)) from refused
        try:
            url = listener.url
            for everywhere, here in EVERYWHERE.items():
                url = url.replace(f"//{_bracketed(everywhere)}:", f"//{_bracketed(here)}:")
            try:
                write_kubeconfig(settings.kubeconfig, url, token, certificate.certificate)
            except OSError as refused:
                raise ConfigurationError(
                    f"--kubeconfig-out {settings.kubeconfig} cannot be written: {why_unusable(refused)}"
                ) from refused
            yield EmbeddedServer(server=server, url=url, token=token, kubeconfig=settings.kubeconfig)
        finally:
            await listener.close()


def allow_open_files() -> None:
    """Raise this process's limit of open files as far as it may.

    The usual limit, 1024, is used up by whoever opens as many connections and says nothing: nobody else is served then.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextmanager
def _opened(settings: ServerSettings, disabled_admission: frozenset[str], history: int) -> Iterator[ApiServer]:
    try:
        journal = None if settings.data is None else SqliteJournal(settings.data)
    except DataDirInUse as refused:
        raise ConfigurationError(f"--data: {refused}") from refused
    except OSError as refused:
        why = why_unusable(refused)
        raise ConfigurationError(f"--data: data directory {settings.data} cannot be used: {why}") from refused
    try:
        server = ApiServer(
            now=lambda: datetime.now(UTC),
            store=Store(journal, history=history),
            disabled_admission=disabled_admission,
            feature_gates=settings.feature_gates,
        )
    except ValueError as refused:
        if journal is not None:
            journal.close()
        raise ConfigurationError(f"--disable-admission: {refused}") from refused
    try:
        yield server
    finally:
        server.close()


@contextmanager
def _files(settings: ServerSettings) -> Iterator[Path]:
    """Return a directory that only this user can read, for the certificate."""
    if settings.data is not None:
        yield settings.data
        return
    with tempfile.TemporaryDirectory(prefix="volplane-") as directory:
        yield Path(directory)


def _credentials(settings: ServerSettings, directory: Path) -> tuple[str, Certificate]:
    names = {settings.host, *LOOPBACK} | ({socket.gethostname()} if settings.host in EVERYWHERE else set())
    try:
        token = ensure_token(settings.data)
        return token, ensure_certificate(directory, sorted(names), datetime.now(UTC))
    except OSError as refused:
        raise ConfigurationError(f"--data {directory} cannot be used: {why_unusable(refused)}") from refused


def _why_not_listening(settings: ServerSettings, refused: OSError) -> str:
    if refused.errno == errno.EADDRINUSE:
        return (
            f"port {settings.port} on {settings.host} is in use: stop what listens there, or take another one "
            "with --port "
            "(--port 0 takes a free one)"
        )
    if refused.errno in (errno.EACCES, errno.EPERM):
        return f"port {settings.port} needs rights this user does not have: take one above 1023 with --port"
    return f"--host {settings.host} is no address of this machine: {refused.strerror or refused}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
