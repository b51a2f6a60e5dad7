"""The embedded API server as commands start it: its store, certificate, token, socket and kubeconfig."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import shlex
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from volplane.errors import ConfigurationError
from volplane_embedded.apiserver.certificates import Certificate, ensure_certificate, server_context
from volplane_embedded.apiserver.http import serve
from volplane_embedded.apiserver.journal import DataDirInUse, SqliteJournal
from volplane_embedded.apiserver.kubeconfig import ensure_token, write_kubeconfig
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.apiserver.store import Store

__all__ = ["Embedded", "Place", "embedded_server", "is_loopback", "place_of"]

LOOPBACK = ("localhost", "127.0.0.1", "::1")
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - named in order to treat them with care


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an embedded server keeps its objects and where it is reached.

    data: directory, made where absent; None = in memory only. port: 0 = a free one. kubeconfig: file to write.
    """

    data: Path | None
    host: str
    port: int
    kubeconfig: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """A running server. url: what clients on this machine connect to; token and kubeconfig: how."""

    server: ApiServer
    url: str
    token: str
    kubeconfig: Path

    def kubectl(self, arguments: str) -> str:
        """A command line for a person to copy."""
        return f"kubectl --kubeconfig {shlex.quote(str(self.kubeconfig))} {arguments}"


def place_of(*, data: Path | None, memory: bool, host: str, port: int, kubeconfig_out: Path | None) -> Place:
    """What the options of a command mean. Raises ConfigurationError where they contradict each other."""
    if memory and data is not None:
        raise ConfigurationError("--memory and --data exclude each other: give one of them")
    beside = Path("volplane.kubeconfig") if data is None else data / "kubeconfig"
    return Place(data=data, host=host, port=port, kubeconfig=kubeconfig_out or beside)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


@asynccontextmanager
async def embedded_server(
    place: Place, *, disabled_admission: frozenset[str] = frozenset(), history: int = 16_384
) -> AsyncIterator[Embedded]:
    """Serve until the block ends, with the kubeconfig written once connections are accepted.

    Raises ConfigurationError for a directory, address, port or admission plugin that cannot be had.
    """
    with _opened(place, disabled_admission, history) as server, _files(place) as directory:
        token, certificate = _credentials(place, directory)
        try:
            tls = server_context(certificate, directory)
            listener = await serve(server, host=place.host, port=place.port, token=token, tls=tls)
        except OSError as refused:
            raise ConfigurationError(_why_not_listening(place, refused)) from refused
        try:
            url = listener.url
            for everywhere, here in EVERYWHERE.items():
                url = url.replace(f"//{_bracketed(everywhere)}:", f"//{_bracketed(here)}:")
            try:
                write_kubeconfig(place.kubeconfig, url, token, certificate.certificate)
            except OSError as refused:
                raise ConfigurationError(
                    f"--kubeconfig-out {place.kubeconfig} cannot be written: {refused.strerror}"
                ) from refused
            yield Embedded(server=server, url=url, token=token, kubeconfig=place.kubeconfig)
        finally:
            await listener.close()


@contextmanager
def _opened(place: Place, disabled_admission: frozenset[str], history: int) -> Iterator[ApiServer]:
    try:
        journal = None if place.data is None else SqliteJournal(place.data)
    except DataDirInUse as refused:
        raise ConfigurationError(f"--data: {refused}") from refused
    try:
        server = ApiServer(
            now=lambda: datetime.now(UTC),
            store=Store(journal, history=history),
            disabled_admission=disabled_admission,
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
def _files(place: Place) -> Iterator[Path]:
    """A directory of this user alone, for the certificate."""
    if place.data is not None:
        yield place.data
        return
    with tempfile.TemporaryDirectory(prefix="volplane-") as directory:
        yield Path(directory)


def _credentials(place: Place, directory: Path) -> tuple[str, Certificate]:
    names = {place.host, *LOOPBACK} | ({socket.gethostname()} if place.host in EVERYWHERE else set())
    try:
        token = ensure_token(place.data)
        return token, ensure_certificate(directory, sorted(names), datetime.now(UTC))
    except OSError as refused:
        raise ConfigurationError(f"--data {directory} cannot be used: {refused.strerror}") from refused


def _why_not_listening(place: Place, refused: OSError) -> str:
    if refused.errno == errno.EADDRINUSE:
        return (
            f"port {place.port} on {place.host} is in use: stop what listens there, or take another one with --port "
            "(--port 0 takes a free one)"
        )
    if refused.errno in (errno.EACCES, errno.EPERM):
        return f"port {place.port} needs rights this user does not have: take one above 1023 with --port"
    return f"--host {place.host} is no address of this machine: {refused.strerror or refused}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
