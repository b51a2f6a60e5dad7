"""Commands in containers, over a WebSocket (pods/exec).

The first byte of a message is the number of its channel: 0 to 2 are the streams, 3 has the `Status` at the end, 4 the
size of the terminal; in protocol v5 a message on 255 closes the channel that it names.
Source: `k8s.io/apimachinery/pkg/util/remotecommand`, `k8s.io/kubelet/pkg/cri/streaming/remotecommand/websocket.go`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
from aiohttp import WSMsgType, web

from volplane_embedded.apiserver.errors import StatusError, bad_request
from volplane_embedded.apiserver.pod_subresources import container_named
from volplane_embedded.apiserver.requests import Request
from volplane_embedded.apiserver.resources import Json
from volplane_embedded.apiserver.storage import ObjectStorage

PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDIN: Final = 0
_STDOUT: Final = 1
_ERROR: Final = 3
_RESIZE: Final = 4
_CLOSE: Final = 255


class Execution(Protocol):
    """A command that was started."""

    async def read(self) -> tuple[int, bytes]:
        """Return the next piece of output and its channel, 1 or 2; b"" at the end of one."""

    async def write(self, data: bytes) -> None: ...

    def end_input(self) -> None: ...

    def resize(self, width: int, height: int) -> None: ...

    async def wait(self) -> tuple[int, str]:
        """Return its exit code and, if it could not be started, why."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """Which command to run, where. container: None = the only one. streams: those of stdin, stdout, stderr wanted."""

    namespace: str
    pod: str
    container: str | None
    command: Sequence[str]
    streams: frozenset[str]
    tty: bool


ExecSource = Callable[[ExecRequest], Awaitable[Execution]]
"""Starts a command. Raises StatusError if the container does not run, OSError."""


def exec_request(
    objects: ObjectStorage, request: Request, source: ExecSource | None, asked: Sequence[tuple[str, str]]
) -> ExecRequest:
    """Read the request of a pods/exec. Raises StatusError (400, 404, 501)."""
    container = container_named(request, objects.find(request).decode())
    if request.subresource == "attach":
        why = "containers have no input to attach to here: kubectl exec runs another command in one"
        raise StatusError(501, "NotImplemented", f"{why}, kubectl logs -f shows its output")
    if source is None:
        why = "no node agent runs beside this API server, so nothing can be executed"
        raise StatusError(501, "NotImplemented", why)
    command = [value for key, value in asked if key == "command"]
    if not command:
        raise bad_request("you must specify at least one command for the container")
    streams = frozenset(name for name in ("stdin", "stdout", "stderr") if request.query.flag(name))
    if not streams:
        raise bad_request("you must specify at least one of stdin, stdout, stderr")
    if set(request.headers.get("sec-websocket-protocol", "").replace(" ", "").split(",")).isdisjoint(PROTOCOLS):
        why = f"unable to upgrade: WebSockets with one of the subprotocols {', '.join(PROTOCOLS)} are served"
        raise bad_request(f"{why}, as kubectl 1.31 and later speak them")
    return ExecRequest(request.namespace, request.name, container, command, streams, request.query.flag("tty"))


async def run_execution(request: web.BaseRequest, asked: ExecRequest, command: Execution) -> web.WebSocketResponse:
    """Carry the streams until the command has ended, or the client goes."""
    socket = web.WebSocketResponse(protocols=PROTOCOLS)
    await socket.prepare(request)
    taking = asyncio.create_task(_take(socket, asked, command))
    ending = asyncio.create_task(_end(socket, asked, command))
    try:
        await asyncio.wait({taking, ending}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (taking, ending):
            task.cancel()
        await asyncio.gather(taking, ending, return_exceptions=True)
        command.close()
        with contextlib.suppress(ConnectionError):
            await socket.close()
    return socket


async def _take(socket: web.WebSocketResponse, asked: ExecRequest, command: Execution) -> None:
    """Hand on what the client sends, until it goes."""
    if "stdin" not in asked.streams:
        command.end_input()
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == _STDIN and "stdin" in asked.streams:
            await command.write(data)
        elif channel == _CLOSE and data[:1] == bytes([_STDIN]):
            command.end_input()
        elif channel == _RESIZE:
            with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError):
                size = msgspec.json.decode(data)
                command.resize(min(int(size["Width"]), 0xFFFF), min(int(size["Height"]), 0xFFFF))


async def _end(socket: web.WebSocketResponse, asked: ExecRequest, command: Execution) -> None:
    """Send the output, and at the end how the command ended."""
    ended = asyncio.create_task(command.wait())
    left = {_STDOUT} if asked.tty else {_STDOUT, 2}
    names = {_STDOUT: "stdout", 2: "stderr"}
    try:
        with contextlib.suppress(ConnectionError):
            while left:
                channel, piece = await command.read()
                if not piece:
                    left.discard(channel)
                elif names[channel] in asked.streams:
                    await socket.send_bytes(bytes([channel]) + piece)
            code, message = await ended
            await socket.send_bytes(bytes([_ERROR]) + msgspec.json.encode(_status(asked, code, message)))
    finally:
        ended.cancel()


def _status(asked: ExecRequest, code: int, message: str) -> Json:
    if message:
        why = f"failed to start the command: {message}"
        return {"metadata": {}, "status": "Failure", "message": why, "reason": "InternalError", "code": 500}
    if not code:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: {' '.join(asked.command)}: exit code {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
