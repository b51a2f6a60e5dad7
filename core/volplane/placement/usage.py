"""What is promised on each node: volumes that are there, claims assigned to it, and writes on their way."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["UNPUBLISHED_SECONDS", "Promise", "Usage"]

UNPUBLISHED_SECONDS = 60.0
"""How long a new volume counts against the published room of its node at most: the room is measured as often."""


class Promise(NamedTuple):
    """Something on a node, or about to be. node: the hash of its name. size: bytes that its published room may not know
    of. made: there is a volume.
    """

    driver: str
    node: str
    size: int
    made: bool


class Usage:
    """Promises by the name of their volume: of a claim that is assigned, then of the volume that is made for it."""

    def __init__(self, touched: Callable[[str, str], None] = lambda _driver, _node: None) -> None:
        """touched: called with driver and node when what is promised there has changed."""
        self._touched = touched
        self._claims: dict[str, Promise] = {}
        self._volumes: dict[str, Promise] = {}
        self._held: dict[str, Promise] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._reserved: Counter[tuple[str, str]] = Counter()
        self._unpublished: dict[tuple[str, str], dict[str, int]] = {}
        """Volumes that still count, by driver and node, with their version."""
        self._published: dict[tuple[str, str], int] = {}
        """The latest version of published room."""
        self._expiry: deque[tuple[float, str, tuple[str, str]]] = deque()

    def count(self, driver: str, node: str) -> int:
        """How many volumes of the driver are on the node, or assigned to it."""
        return self._counts[driver, node]

    def reserved(self, driver: str, node: str) -> int:
        """Bytes promised on the node of which its published room may not know yet."""
        return self._reserved[driver, node]

    def claim(self, name: str, promise: Promise | None) -> None:
        """The claim for which the volume `name` is made is assigned to a node, or is not any more."""
        self._set(self._claims, name, promise)

    def volume(self, name: str, promise: Promise | None) -> None:
        """The volume exists, or does not any more."""
        self._set(self._volumes, name, promise)

    def made(self, name: str, promise: Promise, version: int, now: float) -> None:
        """The volume exists, and has just been made: it counts until the room of its node is published anew."""
        place = (promise.driver, promise.node)
        if version < self._published.get(place, 0):
            self.volume(name, promise._replace(size=0))  # The watch of volumes is behind that of published room.
            return
        self._unpublished.setdefault(place, {})[name] = version
        self._expiry.append((now + UNPUBLISHED_SECONDS, name, place))
        self.volume(name, promise)

    def knows(self, name: str) -> bool:
        """Whether there is a volume of this name."""
        return name in self._volumes

    def hold(self, name: str, promise: Promise | None) -> None:
        """The claim is being assigned; None: the write is answered."""
        self._set(self._held, name, promise)

    def published(self, driver: str, node: str, version: int) -> None:
        """The room of the node was published, after all volumes of an older version were made."""
        place = (driver, node)
        self._published[place] = max(version, self._published.get(place, 0))
        for name, made in list(self._unpublished.get(place, {}).items()):
            if made < version:
                self._forget(name, place)

    def expire(self, now: float) -> None:
        """Volumes that are old enough are in what is published."""
        while self._expiry and self._expiry[0][0] <= now:
            _, name, place = self._expiry.popleft()
            self._forget(name, place)

    def _forget(self, name: str, place: tuple[str, str]) -> None:
        if self._unpublished.get(place, {}).pop(name, None) is not None and (known := self._volumes.get(name)):
            self.volume(name, known._replace(size=0))

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
        if promise is not None:
            self._counts[promise.driver, promise.node] += sign
            self._reserved[promise.driver, promise.node] += sign * promise.size
            self._touched(promise.driver, promise.node)
