"""`python -m volplane_embedded.sandbox FD`: the spawner, a small process that forks a monitor for each command, so that
a start does not cost a new interpreter.

The kubelet sends it one byte and one descriptor for each command: the control connection of the command. The spawner
ends when the kubelet closes the socket; the monitors see the end of their own connections.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys

from volplane_embedded.sandbox import monitor


def main(arguments: list[str]) -> int:
    """Serve until the kubelet closes the socket whose descriptor is the only argument. Returns the exit code."""
    if len(arguments) != 2 or not arguments[1].isdigit():
        sys.stderr.write("usage: python -m volplane_embedded.sandbox FD (started by the node agent of volplane dev)\n")
        return 2
    kubelet = socket.socket(fileno=int(arguments[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(kubelet, 1, 1)
        if not message:
            return 0
        for descriptor in descriptors:
            if _fork() == 0:
                kubelet.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                monitor.run(socket.socket(fileno=descriptor))
            os.close(descriptor)


def _fork() -> int:
    """Fork; return -1 if no process can be made. The connection is then closed, which the kubelet sees."""
    try:
        return os.fork()
    except OSError:
        return -1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
