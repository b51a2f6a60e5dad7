"""What is promised on each node: volumes that are there, claims assigned to it, and writes on their way."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

__all__ = ["Promise", "Usage"]


class Promise(NamedTuple):
    """Something on a node, or about to be. node: the hash of its name. size: bytes. made: there is a volume."""

    driver: str
    node: str
    size: int
    made: bool


class Usage:
    """Promises by the name of their volume: of a claim that is assigned, then of the volume that is made for it."""

    def __init__(self) -> None:
        self._claims: dict[str, Promise] = {}
        self._volumes: dict[str, Promise] = {}
        self._held: dict[str, Promise] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._reserved: Counter[tuple[str, str]] = Counter()

    def count(self, driver: str, node: str) -> int:
        """How many volumes of the driver are on the node, or assigned to it."""
        return self._counts[driver, node]

    def reserved(self, driver: str, node: str) -> int:
        """Bytes assigned to the node of which its published capacity may not know yet."""
        return self._reserved[driver, node]

    def claim(self, name: str, promise: Promise | None) -> None:
        """The claim for which the volume `name` is made is assigned to a node, or is not any more."""
        self._set(self._claims, name, promise)

    def volume(self, name: str, promise: Promise | None) -> None:
        """The volume exists, or does not any more."""
        self._set(self._volumes, name, promise)

    def hold(self, name: str, promise: Promise | None) -> None:
        """The claim is being assigned; None: the write is answered."""
        self._set(self._held, name, promise)

    def _set(self, known: dict[str, Promise], name: str, promise: Promise | None) -> None:
        before = self._effective(name)
        if promise is None:
            known.pop(name, None)
        else:
            known[name] = promise
        after = self._effective(name)
        if before != after:
            self._count(before, -1)
            self._count(after, 1)

    def _effective(self, name: str) -> Promise | None:
        return self._volumes.get(name) or self._claims.get(name) or self._held.get(name)

    def _count(self, promise: Promise | None, sign: int) -> None:
        if promise is None:
            return
        self._counts[promise.driver, promise.node] += sign
        if not promise.made:
            self._reserved[promise.driver, promise.node] += sign * promise.size
