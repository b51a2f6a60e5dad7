"""Notices that another `volplane dev` of this machine serves a driver on the same storage.

Each has an API server of its own, so no Lease tells them apart, and each takes what the other has made for foreign.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from volplane.controller.config import DriverSettings


@contextmanager
def served_twice(drivers: Iterable[DriverSettings]) -> Iterator[list[str]]:
    """Yield the names of the drivers that another process serves on the same storage; hold the others meanwhile."""
    taken: list[str] = []
    with ExitStack() as stack:
        for driver in drivers:
            held = stack.enter_context(socket.socket(socket.AF_UNIX))
            try:
                # A name that is no file, and that goes with the process, however that ends.
                held.bind(f"\0volplane dev {_place(driver)}")
            except OSError:
                taken.append(driver.name)
        yield taken


def _place(driver: DriverSettings) -> str:
    """Return the same for the same storage: its root, where there is one, whatever else the options say."""
    place = driver.options.get("root", driver.options)
    if isinstance(place, str):
        place = os.path.realpath(place)
    return hashlib.sha256(json.dumps([driver.name, place], sort_keys=True, default=str).encode()).hexdigest()[:32]
