"""The node agent's side of sandboxes: starts them through the spawner and hears what becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import volplane
from volplane.node.sandbox.monitor import KILL, TERMINATE
from volplane.node.sandbox.spec import Report, Spec, decode_report, encode

__all__ = ["Sandbox", "Sandboxes"]

_LOST: Final = "the process that ran this container was lost"


class Sandbox:
    """One command that was asked for. Dropping the connection (`close`) kills it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def reports(self) -> AsyncIterator[Report]:
        """What happens to it, until it has ended or could not be started; everything it used is then gone."""
        started = False
        while True:
            line = await self._reader.readline()
            if not line.endswith(b"\n"):
                break
            report = decode_report(line)
            yield report
            if report.event != "started":
                return
            started = True
        if started:
            yield Report(event="exited", code=137, signal=9, message=_LOST)
        else:
            yield Report(event="failed", stage="mounts", message=_LOST)

    def terminate(self) -> None:
        """Send SIGTERM to the command."""
        self._order(TERMINATE)

    def kill(self) -> None:
        """End the command and all its children at once."""
        self._order(KILL)

    def _order(self, order: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(order)

    def close(self) -> None:
        """Let go; a command that still runs is killed."""
        self._writer.close()


class Sandboxes:
    """Starts sandboxes. An asynchronous context: leaving it kills all that still run.

    A spawner that died is replaced at the next start.
    """

    def __init__(self) -> None:
        self._spawner: asyncio.subprocess.Process | None = None
        self._link: socket.socket | None = None
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def launch(self, spec: Spec) -> Sandbox:
        """Ask for one command. Raises OSError if not even the spawner can be started."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                await self._send(theirs)
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        writer.write(encode(spec))
        return Sandbox(reader, writer)

    async def _send(self, connection: socket.socket) -> None:
        async with self._starting:
            if self._link is None:
                await self._start()
            try:
                self._pass(connection)
            except OSError:
                await self._stop()
                await self._start()
                self._pass(connection)

    def _pass(self, connection: socket.socket) -> None:
        if self._link is None:
            raise ConnectionError("the process that starts containers is not running")
        socket.send_fds(self._link, [b"+"], [connection.fileno()])

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._spawner = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",
                    "-m",
                    "volplane.node.sandbox",
                    str(theirs.fileno()),
                    pass_fds=[theirs.fileno()],
                    stdin=asyncio.subprocess.DEVNULL,
                    env=_environment(),
                )
        except BaseException:
            ours.close()
            raise
        self._link = ours

    async def _stop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._spawner is not None:
            spawner, self._spawner = self._spawner, None
            with contextlib.suppress(ProcessLookupError):
                spawner.kill()
            await spawner.wait()


def _environment() -> dict[str, str]:
    """Ours, and where this very volplane is: the spawner must be of the same version."""
    root = str(Path(volplane.__file__).parent.parent)
    former = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{former}" if former else root}
