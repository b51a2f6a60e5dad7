"""Ports of servers that must be known before the server listens."""

import itertools
import os
import socket

_numbers = itertools.count()


def free_port() -> int:
    """A port of 127.0.0.1 where nobody listens.

    Another process gets others: they follow from the process id, and lie below those that Linux gives out by itself
    (from 32768), so that nobody is given one between this look and its use.
    """
    while True:
        port = 10_000 + os.getpid() % 200 * 100 + next(_numbers) % 100
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
