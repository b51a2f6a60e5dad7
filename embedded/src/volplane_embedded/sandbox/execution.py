"""One more command in a sandbox that runs, for `kubectl exec`.

The kubelet sends a connection by way of the monitor and the first process of the sandbox. On it come one `Exec` as a
line of JSON, with the descriptors of the command's streams, and back one `ExecEnd`. A command outlives its connection,
as with a real container runtime; it ends with the container.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from typing import Final, NoReturn

from volplane_embedded.sandbox.spec import ExecEnd, Spec, decode_exec, encode

_MOST_BYTES: Final = 256 * 1024


def serve(spec: Spec, connection: socket.socket, execute: Callable[..., NoReturn]) -> NoReturn:
    """Run the command that comes on the connection, say how it ended, and exit."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        connection.setblocking(True)
        line, streams, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
        while not line.endswith(b"\n"):
            line += connection.recv(_MOST_BYTES) or b"\n"
        for descriptor in (connection.fileno(), *streams):
            os.set_inheritable(descriptor, False)  # the command gets its streams as 0 to 2, and nothing else
        end = _run(spec, line, streams, execute)
        connection.sendall(encode(end))
    except (OSError, ValueError):
        pass  # the kubelet has gone
    os._exit(0)


def _run(spec: Spec, line: bytes, streams: list[int], execute: Callable[..., NoReturn]) -> ExecEnd:
    asked = decode_exec(line)
    # A terminal is one descriptor for all.
    three = (streams * 3)[:3]
    failed, failed_end = os.pipe()
    try:
        command = os.fork()
    except OSError as failure:
        return ExecEnd(code=126, message=f"no process can be made: {failure.strerror}")
    if command == 0:
        os.close(failed)
        execute(spec, asked.argv, three, failed_end, terminal=asked.tty)
    for descriptor in (failed_end, *streams):
        os.close(descriptor)
    message = os.read(failed, 4096).decode(errors="replace")
    _, status = os.waitpid(command, 0)
    code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)
    return ExecEnd(code=code, message=message)
