"""The versioned cache: of each object the newest version that a watch, a list, a live read or a write of ours returned.

Objects in it are shared and read-only. An object that is not in it may exist: only a live read proves absence.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from volplane.kube.interning import Interner
from volplane.kube.kinds import Kind
from volplane.kube.objects import KubeObject

__all__ = ["Cache", "IndexFunction", "Listener"]

_LOG = logging.getLogger(__name__)

T = TypeVar("T", bound=KubeObject)

IndexFunction = Callable[[T], list[str]]
"""The values under which one index lists an object. Pure: it is called again when the object changes or goes."""

Listener = Callable[[T | None, T | None], None]
"""Called with (old, new) after a change of the cache. old is None for a new object, new for one that is gone."""


class Cache(Generic[T]):
    """Objects of one kind by key (`namespace/name`, or `name`), with indexes.

    A deletion is remembered for `remember` seconds (longer than any call can take), so that a late answer cannot bring
    the object back. Not thread-safe: one event loop.
    """

    def __init__(
        self, kind: Kind[T], indexes: Mapping[str, IndexFunction[T]] | None = None, *, remember: float = 300.0
    ) -> None:
        self.kind = kind
        self.reached = 0
        """The newest resourceVersion of a list or a watch event."""
        self._objects: dict[str, T] = {}
        self._indexes = {name: _Index(function) for name, function in (indexes or {}).items()}
        self._tombstones = _Tombstones(remember)
        self._interner = Interner()
        self._listeners: list[Listener[T]] = []
        self._synced = asyncio.Event()

    def add_indexes(self, indexes: Mapping[str, IndexFunction[T]]) -> None:
        """Add indexes to a cache that is still empty."""
        self._indexes.update((name, _Index(function)) for name, function in indexes.items())

    def get(self, key: str) -> T | None:
        return self._objects.get(key)

    def __contains__(self, key: str) -> bool:
        return key in self._objects

    def __len__(self) -> int:
        return len(self._objects)

    def keys(self) -> list[str]:
        """Return all keys, sorted."""
        return sorted(self._objects)

    def values(self) -> Iterator[T]:
        """Return all objects in the order in which they appeared. The cache may not change during the iteration."""
        return iter(self._objects.values())

    def by_index(self, name: str, value: str) -> list[T]:
        """Objects that the index `name` lists under `value`, ordered by key."""
        return [self._objects[key] for key in self._indexes[name].keys(value)]

    def observe(self, obj: T) -> bool:
        """Take in a version of an object; returns whether it changed the cache.

        Per uid the highest resourceVersion wins. Another uid under the same key, if newer, is a deletion and a new
        object: listeners are called for both.
        """
        key, version = obj.key, obj.version
        current = self._objects.get(key)
        if (current is not None and version <= current.version) or self._tombstones.covers(obj.uid, version):
            return False
        if current is not None and current.uid != obj.uid:
            self._remove(key, current)
            self._tombstones.add(current.uid, None, for_good=True)
            current = None
        if not obj.terminating:  # What is deleted is not kept for long.
            self._interner.share(obj)
        self._objects[key] = obj
        for index in self._indexes.values():
            index.replace(key, current, obj)
        self._notify(current, obj)
        return True

    def observe_deleted(self, key: str, uid: str, version: int | None = None, *, may_return: bool = False) -> bool:
        """Take in that an object is gone; returns whether it changed the cache.

        version: resourceVersion of the deletion, from a watch or list; None: a live read, or a delete of ours.
        may_return: a newer version may come back, because the object may only have left the selector.
        """
        current = self._objects.get(key)
        held = current is not None and current.uid == uid
        newer = held and current is not None and version is not None and current.version > version
        self._tombstones.add(uid, version, for_good=not may_return and not newer)
        if current is None or not held or newer:
            return False
        self._remove(key, current)
        return True

    def replace(self, objects: Iterable[T], version: int, *, keep: Iterable[str] = ()) -> None:
        """Take in a whole list of `version`. keep: keys of objects in it that did not decode."""
        seen = set(keep)
        for obj in objects:
            seen.add(obj.key)
            self.observe(obj)
        self.prune(seen, version)

    def prune(self, seen: Container[str], version: int) -> None:
        """Remove what a list of `version` did not contain, unless it is newer than the list."""
        for key in [key for key, obj in self._objects.items() if key not in seen and obj.version <= version]:
            obj = self._objects[key]
            self.observe_deleted(key, obj.uid, version, may_return=True)
        self.reached = max(self.reached, version)

    def contradicts(self, listed: T, version: int, *, begun: float) -> bool:
        """Tell whether a list of `version` is wrong about the object: it was already newer, replaced or deleted.

        begun: loop time at which the list was asked for.
        """
        known = self._objects.get(listed.key)
        if known is not None and listed.version < known.version <= version:
            return True
        return self._tombstones.contradict(listed.uid, listed.version, version, begun)

    def gone(self, uid: str) -> bool:
        """Tell whether the server has confirmed that this object is gone. False proves nothing.

        Confirmations are answers to live reads and writes, and deletions in a watch without selector. They are kept for
        some minutes. A uid is never used again.
        """
        return self._tombstones.for_good(uid)

    def clear(self) -> None:
        """Empty the cache: the server was replaced or restored. Listeners are called with a deletion of each object."""
        for key, obj in list(self._objects.items()):
            self._remove(key, obj)
        self._tombstones.clear()
        self.reached = 0

    def subscribe(self, listener: Listener[T]) -> Callable[[], None]:
        """Call `listener` after every change, synchronously and in order; the function that is returned ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    @property
    def synced(self) -> bool:
        """Whether a whole list has been taken in."""
        return self._synced.is_set()

    def mark_synced(self) -> None:
        self._synced.set()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    def _remove(self, key: str, current: T) -> None:
        del self._objects[key]
        for index in self._indexes.values():
            index.replace(key, current, None)
        self._notify(current, None)

    def _notify(self, old: T | None, new: T | None) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(old, new)
            except Exception:  # noqa: BLE001 -- an error of one listener must not keep a change from the others
                _LOG.exception("a listener of %s failed on %s", self.kind.plural, (new or old or KubeObject()).key)


class _Index(Generic[T]):
    """Sorted keys by value. A value with a single key, the usual case, costs no list."""

    __slots__ = ("_function", "_keys")

    def __init__(self, function: IndexFunction[T]) -> None:
        self._function = function
        self._keys: dict[str, str | list[str]] = {}

    def keys(self, value: str) -> tuple[str, ...]:
        keys = self._keys.get(value)
        if keys is None:
            return ()
        return (keys,) if isinstance(keys, str) else tuple(keys)

    def replace(self, key: str, old: T | None, new: T | None) -> None:
        before = [] if old is None else self._function(old)
        after = [] if new is None else self._function(new)
        if before == after:
            return
        for value in dict.fromkeys(before):
            self._drop(value, key)
        for value in dict.fromkeys(after):
            self._add(value, key)

    def _add(self, value: str, key: str) -> None:
        keys = self._keys.get(value)
        if keys is None:
            self._keys[value] = key
        elif isinstance(keys, str):
            self._keys[value] = sorted((keys, key))
        else:
            bisect.insort(keys, key)

    def _drop(self, value: str, key: str) -> None:
        keys = self._keys[value]
        if isinstance(keys, str):
            del self._keys[value]
            return
        del keys[bisect.bisect_left(keys, key)]
        if len(keys) == 1:
            self._keys[value] = keys[0]


class _Tombstones:
    """Deleted uids, with the version up to which they are known to be gone, and whether they are gone for good."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._stones: dict[str, tuple[int, bool, float]] = {}
        self._expiry: deque[tuple[float, str]] = deque()

    def add(self, uid: str, version: int | None, *, for_good: bool) -> None:
        now = _monotonic()
        self._expire(now)
        known, before, _ = self._stones.get(uid, _NO_STONE)
        until = now + self._seconds
        self._stones[uid] = (max(known, version or -1), before or for_good, until)
        self._expiry.append((until, uid))

    def clear(self) -> None:
        self._stones.clear()
        self._expiry.clear()

    def covers(self, uid: str, version: int) -> bool:
        """Tell whether this version is known to be gone."""
        known, for_good, _ = self._stones.get(uid, _NO_STONE)
        return for_good or version <= known

    def for_good(self, uid: str) -> bool:
        return self._stones.get(uid, _NO_STONE)[1]

    def contradict(self, uid: str, version: int, listed: int, begun: float) -> bool:
        """Tell whether a list of version `listed`, asked for at `begun`, cannot show this version of it."""
        known, for_good, until = self._stones.get(uid, _NO_STONE)
        return version <= known <= listed or (for_good and until - self._seconds < begun)

    def _expire(self, now: float) -> None:
        while self._expiry and self._expiry[0][0] <= now:
            until, uid = self._expiry.popleft()
            if self._stones.get(uid, _NO_STONE)[2] == until:
                del self._stones[uid]


_NO_STONE = (-1, False, 0.0)


def _monotonic() -> float:
    """Return the loop time; outside of a loop (tables of decisions build caches too) the machine's."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()
