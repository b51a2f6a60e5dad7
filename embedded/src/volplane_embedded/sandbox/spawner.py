"""A small process that forks a monitor for each command: a start costs milliseconds, not an interpreter.

It talks to the agent over a socket: each message is one byte and one descriptor, the control connection of a new
command. When the agent is gone it ends; the monitors notice on their own connections.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys

from volplane_embedded.sandbox import monitor

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Serve until the agent closes the socket whose descriptor is the only argument; the exit code."""
    if len(arguments) != 2 or not arguments[1].isdigit():
        sys.stderr.write("usage: python -m volplane_embedded.sandbox FD (started by the node agent of volplane dev)\n")
        return 2
    # A terminal's Ctrl-C reaches the whole group; the agent decides what it means.
    os.setsid()
    agent = socket.socket(fileno=int(arguments[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(agent, 1, 1)
        if not message:
            return 0
        for descriptor in descriptors:
            if _fork() == 0:
                agent.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                monitor.run(socket.socket(fileno=descriptor))
            os.close(descriptor)


def _fork() -> int:
    """As os.fork; -1 where there can be no more processes: the agent notices that its connection was closed."""
    try:
        return os.fork()
    except OSError:
        return -1
