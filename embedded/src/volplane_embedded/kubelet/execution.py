"""A command in a container that runs, for `kubectl exec` (pkg/kubelet/kuberuntime, ExecSync and Exec).

Its streams are pipes, or one pseudo-terminal; both ends are carried by the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import socket
import struct
import termios
from collections.abc import Sequence
from typing import Final

from volplane_embedded.kubelet.sandboxes import Sandbox
from volplane_embedded.sandbox.spec import decode_exec_end

_PIECE: Final = 32_768
STDOUT: Final = 1
STDERR: Final = 2


class RunningCommand:
    """A command that was started. It implements `volplane_embedded.apiserver.execution.Execution`."""

    def __init__(self, connection: socket.socket, stdin: int, outputs: dict[int, int], *, tty: bool) -> None:
        self._connection = connection
        self._stdin = stdin
        self._outputs = outputs
        self._tty = tty
        self._writer: asyncio.WriteTransport | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._read: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(maxsize=8)
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Connect its streams to the event loop."""
        loop = asyncio.get_running_loop()
        file = os.fdopen(self._stdin, "wb", buffering=0)
        self._writer, _ = await loop.connect_write_pipe(lambda: _Input(self._room), file)
        for channel, descriptor in self._outputs.items():
            reader = asyncio.StreamReader()
            source = os.fdopen(descriptor, "rb", buffering=0)
            await loop.connect_read_pipe(lambda reader=reader: asyncio.StreamReaderProtocol(reader), source)  # type: ignore[misc]
            self._tasks.append(asyncio.create_task(self._copy(channel, reader), name="exec-output"))

    async def _copy(self, channel: int, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):  # EIO: nobody has the terminal open any more
            while piece := await reader.read(_PIECE):
                await self._read.put((channel, piece))
        await self._read.put((channel, b""))

    async def read(self) -> tuple[int, bytes]:
        """Return the next piece of output and its channel; b"" at the end of one."""
        return await self._read.get()

    async def write(self, data: bytes) -> None:
        """Write to stdin; what nobody reads any more is dropped."""
        await self._room.wait()
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(data)

    def end_input(self) -> None:
        """Close stdin; at a terminal, type the character that says so."""
        if self._writer is None or self._writer.is_closing():
            return
        if self._tty:
            self._writer.write(b"\x04")
        else:
            self._writer.close()

    def resize(self, width: int, height: int) -> None:
        """Set the size of the terminal."""
        if self._tty and self._writer is not None and not self._writer.is_closing():
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._stdin, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    async def wait(self) -> tuple[int, str]:
        """Return its exit code and, if it could not be started, why."""
        reader, writer = await asyncio.open_connection(sock=self._connection)
        line = b""
        try:
            with contextlib.suppress(ConnectionError):
                line = await reader.readline()
        finally:
            writer.close()
        if not line:
            return 137, "the container ended"
        end = decode_exec_end(line)
        return end.code, end.message

    def close(self) -> None:
        """Let go of its streams. The command goes on, unless it minds."""
        if self._writer is not None:
            self._writer.abort()
        for task in self._tasks:
            task.cancel()
        self._connection.close()


class _Input(asyncio.BaseProtocol):
    """Says when the command takes input. room: set while it does."""

    def __init__(self, room: asyncio.Event) -> None:
        self._room = room

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.set()


async def run_command(sandbox: Sandbox, argv: Sequence[str], *, tty: bool) -> RunningCommand:
    """Start a command in a sandbox. Raises OSError."""
    theirs: list[int]
    if tty:
        master, slave = pty.openpty()
        ours, theirs = [master, os.dup(master)], [slave]
        outputs = {STDOUT: ours[1]}
    else:
        (read_in, write_in), (read_out, write_out), (read_err, write_err) = os.pipe(), os.pipe(), os.pipe()
        ours, theirs = [write_in, read_out, read_err], [read_in, write_out, write_err]
        outputs = {STDOUT: read_out, STDERR: read_err}
    try:
        connection = sandbox.execute(argv, theirs, tty=tty)
    except OSError:
        for descriptor in ours:
            os.close(descriptor)
        raise
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    command = RunningCommand(connection, ours[0], outputs, tty=tty)
    await command.begin()
    return command
