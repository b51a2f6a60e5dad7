"""Starts sandboxes through the spawner process and receives their reports; the kubelet's container runtime
interface.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import volplane_embedded
from volplane_embedded.sandbox.monitor import EXECUTE, KILL, TERMINATE
from volplane_embedded.sandbox.spec import Exec, Report, Spec, decode_report, encode

_LOG = logging.getLogger(__name__)

_DEATH_SECONDS: Final = 5.0
_LOST: Final = "the process that ran this container was lost"


class Sandbox:
    """One sandboxed command. closed: is called when the connection to it is closed."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        control: socket.socket,
        closed: Callable[[Sandbox], None],
    ) -> None:
        self._control = control
        self._reader = reader
        self._writer = writer
        self._closed = closed

    async def reports(self) -> AsyncIterator[Report]:
        """Yield its reports until it has ended or could not be started. After the last one all its resources are
        free.
        """
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
        self._send(TERMINATE)

    def kill(self) -> None:
        """Send SIGKILL to the command and all its children."""
        self._send(KILL)

    def execute(self, argv: Sequence[str], streams: Sequence[int], *, tty: bool) -> socket.socket:
        """Start one more command in it, with these descriptors: stdin, stdout, stderr, or one terminal.

        Returns the connection on which its `ExecEnd` comes. Raises OSError if the sandbox is gone.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [EXECUTE], [theirs.fileno()])
            socket.send_fds(ours, [encode(Exec(argv=list(argv), tty=tty))], list(streams))
        return ours

    def _send(self, order: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(order)

    def close(self) -> None:
        """Close the connection. A command that still runs is killed."""
        self._writer.close()
        self._control.close()
        self._closed(self)

    async def finish(self) -> None:
        """Kill the command and wait until it has ended."""
        self.kill()
        try:
            async with asyncio.timeout(_DEATH_SECONDS):
                await self._reader.read()
        except (TimeoutError, ConnectionError) as error:
            _LOG.warning("a container did not end in time: %s", error or "it was killed, but does not go")
        finally:
            self.close()


class Sandboxes:
    """Starts sandboxes. An asynchronous context manager: its exit kills all that still run.

    If the spawner has died, the next start starts a new one.
    """

    def __init__(self) -> None:
        self._spawner: asyncio.subprocess.Process | None = None
        self._link: socket.socket | None = None
        self._starting = asyncio.Lock()
        self._live: set[Sandbox] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(sandbox.finish() for sandbox in tuple(self._live)))
        await self._stop()

    async def check(self, directory: Path) -> str:
        """Run a trivial command: why no container can run on this machine, or "". directory: an empty one to work
        in.
        """
        base = directory / "root"
        base.mkdir(parents=True)
        spec = Spec(
            argv=["/bin/sh", "-c", "exit 0"],
            env={},
            base=str(base),
            log=str(directory / "log"),
            result=str(directory / "result"),
        )
        message = ""
        try:
            sandbox = await self.launch(spec)
        except OSError as error:
            return f"the process that starts containers cannot be started: {error.strerror or error}"
        async for report in sandbox.reports():
            message = report.message
        sandbox.close()
        return message

    async def launch(self, spec: Spec) -> Sandbox:
        """Start one command. Raises OSError if the spawner cannot be started."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                await self._hand_over(theirs)
            control = ours.dup()
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        writer.write(encode(spec))
        sandbox = Sandbox(reader, writer, control, self._live.discard)
        self._live.add(sandbox)
        return sandbox

    async def _hand_over(self, connection: socket.socket) -> None:
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
                    "volplane_embedded.sandbox",
                    str(theirs.fileno()),
                    pass_fds=[theirs.fileno()],
                    stdin=asyncio.subprocess.DEVNULL,
                    env=_environment(),
                    # Ctrl-C at the terminal is for the node agent, from the first instant on.
                    start_new_session=True,
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
    """Return the environment of this process, with the path of this package first, for a spawner of this version."""
    root = str(Path(volplane_embedded.__file__).parent.parent)
    former = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{former}" if former else root}
