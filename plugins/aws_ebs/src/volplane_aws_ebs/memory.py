"""What a process remembers to save calls: bounded, safe for threads, and never needed to be right."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Memory"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOST = 100_000


class Memory(Generic[K, V]):
    """A table that forgets what was put in first when it is full."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._table: dict[K, V] = {}
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """What is known, or None."""
        return self._table.get(key)

    def put(self, key: K, value: V) -> V:
        """Remember it instead of what was known."""
        with self._lock:
            self._table.pop(key, None)
            return self._add(key, value)

    def setdefault(self, key: K, value: V) -> V:
        """What is known; `value`, remembered, if nothing is."""
        with self._lock:
            return self._table[key] if key in self._table else self._add(key, value)

    def drop(self, key: K) -> V | None:
        """Forget it; what was known."""
        with self._lock:
            return self._table.pop(key, None)

    def __len__(self) -> int:
        return len(self._table)

    def _add(self, key: K, value: V) -> V:
        while len(self._table) >= self._most:
            del self._table[next(iter(self._table))]
        self._table[key] = value
        return value
