"""Runs exec plugins of kubeconfig files: programs that print a token or a client certificate.

Source: client.authentication.k8s.io/v1 ExecCredential. No plugin is asked to talk to a person.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from volplane._messages import one_line, sanitize
from volplane.errors import ConfigurationError

__all__ = ["ExecCredential", "run_plugin"]

SECONDS = 30.0
"""How long a plugin may take."""
_FAREWELL_SECONDS = 5.0
_MOST_OUTPUT = 1 << 20
_LONGEST_COMPLAINT = 500


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _Answer(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    status: _Status


class ExecCredential(msgspec.Struct, frozen=True):
    """What a plugin printed. certificate, key: PEM. expires: UTC; None: not known."""

    token: str
    certificate: str
    key: str
    expires: datetime | None

    def expires_in(self) -> float | None:
        """Return the seconds from now; None: not known."""
        return None if self.expires is None else (self.expires - datetime.now(UTC)).total_seconds()


async def run_plugin(plugin: Mapping[str, Any], cluster: Mapping[str, Any], *, where: str) -> ExecCredential:
    """Run the plugin of a user, for at most 30 s. where: names the user, for messages. Raises ConfigurationError.

    cluster: what the plugin is told if it asks for it (`provideClusterInfo`).
    """
    command, version = plugin.get("command"), plugin.get("apiVersion")
    if not (isinstance(command, str) and isinstance(version, str) and command and version):
        raise ConfigurationError(f"{where}: exec needs `command` and `apiVersion`, both text")
    arguments = [str(each) for each in plugin.get("args") or ()]
    environment = {**os.environ, **{str(each["name"]): str(each["value"]) for each in plugin.get("env") or ()}}
    spec: dict[str, Any] = {"interactive": False}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = dict(cluster)
    environment["KUBERNETES_EXEC_INFO"] = json.dumps({"apiVersion": version, "kind": "ExecCredential", "spec": spec})
    what = f"{where}: exec plugin {command}"
    output = await _output([str(command), *arguments], environment, what, str(plugin.get("installHint") or ""))
    try:
        answer = msgspec.json.decode(output, type=_Answer)
    except ValueError as error:
        raise ConfigurationError(f"{what} printed no ExecCredential: {error}") from None
    if answer.api_version != version:
        raise ConfigurationError(f"{what} answers in {answer.api_version}; the kubeconfig asks for {version}")
    status = answer.status
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise ConfigurationError(f"{what} gave clientCertificateData or clientKeyData without the other")
    if not status.token and not status.client_certificate_data:
        raise ConfigurationError(f"{what} gave neither a token nor clientCertificateData")
    expires = status.expiration_timestamp
    if expires is not None and expires.tzinfo is None:
        expires = expires.replace(tzinfo=UTC)
    return ExecCredential(status.token, status.client_certificate_data, status.client_key_data, expires)


async def _output(command: list[str], environment: Mapping[str, str], what: str, hint: str) -> bytes:
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # a group of its own, so that what the plugin starts is killed with it
        )
    except OSError as error:
        advice = one_line(hint) or "install it, or choose another context (kubectl config use-context)"
        raise ConfigurationError(f"{what} cannot be run: {error.strerror or error}; {advice}") from None
    said = asyncio.create_task(_all_of(process.stdout, what)), asyncio.create_task(_last_of(process.stderr))
    try:
        async with asyncio.timeout(SECONDS):
            output, complaint = await asyncio.gather(*said)
            await process.wait()
    except TimeoutError:
        raise ConfigurationError(
            f"{what} did not end within {SECONDS:g} s and was killed; it may wait for a login: run it by hand"
        ) from None
    finally:
        if process.returncode is None:
            await asyncio.shield(_killed(process, said))
    if process.returncode:
        told = sanitize(one_line(complaint.decode(errors="replace"))) if complaint else "nothing"
        raise ConfigurationError(f"{what} failed with exit code {process.returncode} and said: {told}")
    return output


async def _killed(process: asyncio.subprocess.Process, readers: Iterable[asyncio.Task[bytes]]) -> None:
    """Kill it and all that it has started, and wait for its end.

    asyncio may tell of that only once its pipes are at their end too, and a pipe that is full has to be read for that.
    What left its group may hold them open: that is not waited for.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FAREWELL_SECONDS):
            await asyncio.gather(_last_of(process.stdout), _last_of(process.stderr), process.wait())


async def _all_of(stream: asyncio.StreamReader | None, what: str) -> bytes:
    """Read everything. Raises ConfigurationError if that is more than any credential."""
    read = bytearray()
    while stream is not None and (piece := await stream.read(65_536)):
        read += piece
        if len(read) > _MOST_OUTPUT:
            raise ConfigurationError(f"{what} printed no ExecCredential, but more than {_MOST_OUTPUT} bytes")
    return bytes(read)


async def _last_of(stream: asyncio.StreamReader | None) -> bytes:
    """Read everything and return the end of it."""
    read = b""
    while stream is not None and (piece := await stream.read(65_536)):
        read = (read + piece)[-_LONGEST_COMPLAINT:]
    return read
