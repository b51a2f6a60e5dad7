"""What is wrong with single entries of a file system, told once: a driver meets them again with every listing."""

from __future__ import annotations

import logging
import threading
from typing import Final

__all__ = ["Reports"]

_REMEMBERED: Final = 10_000


class Reports:
    """Warnings of one driver or share, each of which is logged once. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: set[tuple[str, str]] = set()

    def warn(self, log: logging.Logger, entry: str, problem: object) -> None:
        """Log a problem of an entry, unless it was logged before. entry: its path, for people."""
        with self._lock:
            if (entry, str(problem)) in self._told:
                return
            if len(self._told) >= _REMEMBERED:
                self._told.clear()
            self._told.add((entry, str(problem)))
        log.warning("%s is skipped: %s", entry, problem)
