"""Who we are to the API server, kept fresh while tokens, keys and certificates rotate.

`Credentials` decides when to look again: every minute, before what an exec plugin gave expires, and when the server
does not accept what we have. A `Source` reads them; `volplane.kube.kubeconfig` has the sources for kubeconfig files and
pods. An exec plugin of a kubeconfig file is a program that prints a token or a client certificate
(client.authentication.k8s.io/v1 ExecCredential); none is asked to talk to a person.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from volplane._messages import one_line, sanitize
from volplane.errors import ConfigurationError
from volplane.kube.transport import Response

_LOG = logging.getLogger(__name__)

_REFRESH_SECONDS = 60.0
_RENEW_SECONDS = 10.0
"""After a look that did not help, the shortest time until a refused request leads to another."""
_PLUGIN_SECONDS = 30.0
_FAREWELL_SECONDS = 5.0
"""How long a plugin may take, and how long its end is waited for after it was killed."""
_MOST_OUTPUT = 1 << 20
_LONGEST_COMPLAINT = 500


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection and its requests carry.

    authorization: of the header; "" = none. impersonation: header lines that name whom we act as. tls: the context
    with our certificate, if any; True: plain HTTP. certificate: whether it has one. mark: equal for equal credentials.
    expires_in: seconds after which it has to be read again; None: not known.
    """

    authorization: str = ""
    impersonation: str = ""
    tls: ssl.SSLContext | bool = True
    certificate: bool = False
    mark: object = None
    expires_in: float | None = None


class Source(Protocol):
    async def read(self, *, refused: bool) -> Identity:
        """Return the identity as it is now; the former one itself if nothing changed.

        refused: the server did not accept it: whatever is kept for later is to be asked for again. Raises
        ConfigurationError, which says what to do.
        """
        ...


class Credentials:
    """The identity to use now. Its owner awaits `keep` in a task. Belongs to one event loop."""

    def __init__(self, source: Source, identity: Identity) -> None:
        """identity: what `source` has just given."""
        self.identity = identity
        self._source = source
        self._looked = float("-inf")
        self._expires = self._expiry(identity)
        self._renewal: asyncio.Task[None] | None = None
        self._complained = ""

    async def authorized(self, exchange: Callable[[Identity], Awaitable[Response]], *, seconds: float) -> Response:
        """Make an exchange; once more if it is refused and other credentials are found, within so many seconds."""
        used = self.identity
        answer = await exchange(used)
        if answer.status == 401 and await self.renewed(used, seconds=seconds):
            answer = await exchange(self.identity)
        return answer

    async def renewed(self, refused: Identity, *, seconds: float) -> bool:
        """Look for other credentials than those refused; return whether any come in time. All callers share a look."""
        if self.identity is not refused:
            return True
        if self._renewal is None or self._renewal.done():
            if asyncio.get_running_loop().time() < self._looked + _RENEW_SECONDS:
                return False
            self._renewal = asyncio.create_task(self._look(refused=True), name="credentials")
        await asyncio.wait({self._renewal}, timeout=seconds)
        return self.identity is not refused

    async def keep(self) -> None:
        """Look again from time to time, until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            left = self._expires - clock()
            await asyncio.sleep(min(_REFRESH_SECONDS, max(_RENEW_SECONDS, left)))
            await self._look(refused=clock() >= self._expires)

    def close(self) -> None:
        """Give up a look that is under way."""
        if self._renewal is not None:
            self._renewal.cancel()

    async def _look(self, *, refused: bool) -> None:
        """Take over what the source gives; the old identity may still do if it cannot be read."""
        try:
            found = await self._source.read(refused=refused)
        except ConfigurationError as error:
            level = logging.DEBUG if str(error) == self._complained else logging.WARNING
            self._complained = str(error)
            _LOG.log(level, "the credentials could not be read again, trying on with the old ones: %s", error)
            self._expires = asyncio.get_running_loop().time() + _RENEW_SECONDS
        else:
            self._complained = ""
            if found is not self.identity:
                _LOG.info("new credentials for the API server are used from now on")
                self.identity = found
                self._expires = self._expiry(found)
            elif refused:
                self._expires = max(self._expires, asyncio.get_running_loop().time() + _REFRESH_SECONDS)
        finally:
            self._looked = asyncio.get_running_loop().time()

    def _expiry(self, identity: Identity) -> float:
        if identity.expires_in is None:
            return float("inf")
        return asyncio.get_running_loop().time() + 0.8 * max(0.0, identity.expires_in)


class ExecCredential(msgspec.Struct, rename="camel"):
    """What a plugin printed. Certificate and key are PEM; the timestamp is UTC, None: not known."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _Answer(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    status: ExecCredential


async def run_plugin(plugin: Mapping[str, Any], cluster: Mapping[str, Any], *, where: str) -> ExecCredential:
    """Run the plugin of a user, for at most 30 s. where: names the user, for messages. Raises ConfigurationError.

    cluster: what the plugin gets to know if it asks for it (`provideClusterInfo`).
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
    if (expires := status.expiration_timestamp) is not None and expires.tzinfo is None:
        status.expiration_timestamp = expires.replace(tzinfo=UTC)
    return status


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
    too_much = f"{what} printed no ExecCredential, but more than {_MOST_OUTPUT} bytes"
    printed = asyncio.create_task(_end_of(process.stdout, _MOST_OUTPUT, too_much=too_much))
    said = printed, asyncio.create_task(_end_of(process.stderr, _LONGEST_COMPLAINT))
    try:
        async with asyncio.timeout(_PLUGIN_SECONDS):
            output, complaint = await asyncio.gather(*said)
            await process.wait()
    except TimeoutError:
        raise ConfigurationError(
            f"{what} did not end within {_PLUGIN_SECONDS:g} s and was killed; it may wait for a login: run it by hand"
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
            await asyncio.gather(_end_of(process.stdout, 1), _end_of(process.stderr, 1), process.wait())


async def _end_of(stream: asyncio.StreamReader | None, most: int, *, too_much: str = "") -> bytes:
    """Read everything and return the end of it. Raises ConfigurationError of the text `too_much` if that is not all."""
    read = b""
    while stream is not None and (piece := await stream.read(65_536)):
        read += piece
        if too_much and len(read) > most:
            raise ConfigurationError(too_much)
        read = read[-most:]
    return read
