"""Ports of servers that must be known before the server listens."""

import random
import socket

_chance = random.SystemRandom()


def free_port() -> int:
    """A port of 127.0.0.1 where nobody listens, by chance, so that tests in other processes hardly get the same.

    It is below those that Linux gives out by itself (from 32768): nobody is given it between this look and its use.
    """
    while True:
        port = _chance.randrange(10_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
