"""Connections to ports of pods, over a WebSocket (pods/portforward).

Of each port there are two channels, one of data and one for the text of an error; the first byte of a message is the
number of its channel. Each begins with the number of its port. Source:
`k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go`. kubectl speaks SPDY over it, which is not served.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from aiohttp import WSMsgType, web

from volplane_embedded.apiserver.errors import StatusError, bad_request
from volplane_embedded.apiserver.requests import Request
from volplane_embedded.apiserver.storage import ObjectStorage

ForwardSource = Callable[[str, str, int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Connects to a port of a pod: namespace, pod, port. Raises OSError."""

PROTOCOL: Final = "v4.channel.k8s.io"
_PIECE: Final = 32_768


def forwarded_ports(
    objects: ObjectStorage, request: Request, source: ForwardSource | None, asked: Sequence[tuple[str, str]]
) -> list[int]:
    """Return the ports that a GET of pods/portforward names. Raises StatusError (400, 404, 501)."""
    objects.find(request)
    if source is None:
        why = "nothing here leads to ports of pods: kubectl port-forward does not work with this API server"
        raise StatusError(501, "NotImplemented", why)
    if PROTOCOL not in request.headers.get("sec-websocket-protocol", "").replace(" ", "").split(","):
        raise bad_request(f"unable to upgrade: only the subprotocol {PROTOCOL} of WebSockets is served")
    named = [port for key, value in asked if key == "ports" for port in value.split(",")]
    if not named or not all(port.isdigit() and 0 < int(port) < 65536 for port in named):
        raise bad_request(f"query parameter 'ports' must have ports, and is {','.join(named)!r}")
    return [int(port) for port in named]


async def forward(
    request: web.BaseRequest, ports: Sequence[int], open_port: ForwardSource, pod: str
) -> web.WebSocketResponse:
    """Carry bytes until the other ends are closed, or the client goes. pod: `namespace/name`."""
    socket = web.WebSocketResponse(protocols=(PROTOCOL,))
    await socket.prepare(request)
    namespace, _, name = pod.partition("/")
    writers: dict[int, asyncio.StreamWriter] = {}
    reading: list[asyncio.Task[None]] = []
    try:
        for number, port in enumerate(ports):
            for channel in (2 * number, 2 * number + 1):
                await socket.send_bytes(bytes([channel]) + port.to_bytes(2, "little"))
            try:
                reader, writers[2 * number] = await open_port(namespace, name, port)
            except OSError as error:
                told = f"error forwarding port {port} to pod {name}: {error}"
                await socket.send_bytes(bytes([2 * number + 1]) + told.encode())
            else:
                reading.append(asyncio.create_task(_copy(reader, socket, 2 * number)))
        taking = asyncio.create_task(_take(socket, writers))
        reading_all = asyncio.create_task(_all(reading))
        await asyncio.wait({taking, reading_all}, return_when=asyncio.FIRST_COMPLETED)
        reading += [taking, reading_all]
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        for writer in writers.values():
            writer.close()
        with contextlib.suppress(ConnectionError):
            await socket.close()
    return socket


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)


async def _copy(reader: asyncio.StreamReader, socket: web.WebSocketResponse, channel: int) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(_PIECE):
            await socket.send_bytes(bytes([channel]) + piece)


async def _take(socket: web.WebSocketResponse, writers: dict[int, asyncio.StreamWriter]) -> None:
    async for message in socket:
        if message.type is WSMsgType.BINARY and message.data and (writer := writers.get(message.data[0])) is not None:
            writer.write(message.data[1:])
            with contextlib.suppress(ConnectionError):
                await writer.drain()
