"""The versioned cache: of each object the newest version that a watch, a list, a live read or a write of ours returned.

Objects in it are shared and read-only. An object that is not in it may exist: only a live read proves absence.
"""

from __future__ import annotations

import asyncio
import bisect
import functools
import logging
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from volplane.kube.kinds import Kind
from volplane.kube.objects import Claim, KubeObject, Volume

_LOG = logging.getLogger(__name__)
_MOST_SHARED = 4096
_LONGEST_SHARED = 64

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
        self.listed = asyncio.Event()
        """Set once a whole list has been taken in."""
        self.followed = False
        """Whether it was filled while another process led: its watch may lag behind the last writes of that one."""
        self._objects: dict[str, T] = {}
        self._indexes = {name: _Index(function) for name, function in (indexes or {}).items()}
        self._remember = remember
        self._tombstones: dict[str, tuple[int, bool, float]] = {}
        """Of deleted uids: the version up to which it is known to be gone, whether for good, and until when to know."""
        self._expiry: deque[tuple[float, str]] = deque()
        self._doubted_until = -math.inf
        self._listeners: list[Listener[T]] = []

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
        return sorted(self._objects)

    def values(self) -> Iterator[T]:
        """Return all objects of now in the order in which they appeared; the cache may change during the iteration."""
        return iter(list(self._objects.values()))

    def by_index(self, name: str, value: str) -> list[T]:
        """Objects that the index `name` lists under `value`, ordered by key."""
        keys = self._indexes[name].by_value.get(value, ())
        return [self._objects[key] for key in ((keys,) if isinstance(keys, str) else keys)]

    def observe(self, obj: T) -> None:
        """Take in a version of an object.

        Per uid the highest resourceVersion wins. Another uid under the same key, if newer, is a deletion and a new
        object: listeners are called for both.
        """
        key, version = obj.key, obj.version
        current = self._objects.get(key)
        if current is not None and version <= current.version:
            return
        # A late answer must not bring back what is gone.
        known, for_good, _ = self._tombstone(obj.uid)
        if for_good or version <= known:
            return
        if current is not None and current.uid != obj.uid:
            self._remove(key, current)
            self._bury(current.uid, None, for_good=True)
            current = None
        if not obj.terminating:  # What is deleted is not kept for long.
            _share(obj)
        self._objects[key] = obj
        for index in self._indexes.values():
            index.replace(key, current, obj)
        self._notify(current, obj)

    def observe_deleted(self, key: str, uid: str, version: int | None = None, *, may_return: bool = False) -> None:
        """Take in that an object is gone.

        version: resourceVersion of the deletion, from a watch or list; None: a live read, or a delete of ours.
        may_return: a newer version may come back, because the object may only have left the selector.
        """
        current = self._objects.get(key)
        if current is not None and current.uid != uid:
            current = None  # Another object has its key.
        # What is cached was written after this deletion: the object only left the selector of a watch, and came back.
        newer = current is not None and version is not None and current.version > version
        self._bury(uid, version, for_good=not may_return and not newer)
        if current is not None and not newer:
            self._remove(key, current)

    def prune(self, seen: Container[str], version: int) -> None:
        """Remove what a whole list of `version` did not contain, unless it is newer than the list."""
        for key, obj in [(key, obj) for key, obj in self._objects.items() if key not in seen]:
            self.observe_deleted(key, obj.uid, version, may_return=True)
        self.reached = max(self.reached, version)
        self.listed.set()

    def contradicts(self, listed: T, version: int, *, begun: float) -> bool:
        """Tell whether a list of `version`, asked for at loop time `begun`, is outdated about the object."""
        cached = self._objects.get(listed.key)
        if cached is not None and listed.version < cached.version <= version:
            return True
        known, for_good, until = self._tombstone(listed.uid)
        return listed.version <= known <= version or (for_good and until - self._remember < begun)

    def gone(self, uid: str) -> bool:
        """Tell whether the server has confirmed that this object is gone. False proves nothing.

        Confirmations are answers to live reads and writes, and deletions in a watch without selector. They are kept for
        some minutes. A uid is never used again, but by the backup of a server: see `doubt`.
        """
        return _now() >= self._doubted_until and self._tombstone(uid)[1]

    def doubt(self) -> None:
        """Let nothing count as gone for a while: the server may be one of a backup, which the next lists will show."""
        self._doubted_until = _now() + _DOUBTED

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

    def _tombstone(self, uid: str) -> tuple[int, bool, float]:
        found = self._tombstones.get(uid)
        return _NO_TOMBSTONE if found is None or found[2] <= _now() else found

    def _bury(self, uid: str, version: int | None, *, for_good: bool) -> None:
        now = _now()
        while self._expiry and self._expiry[0][0] <= now:
            until, expired = self._expiry.popleft()
            if self._tombstones.get(expired, _NO_TOMBSTONE)[2] == until:
                del self._tombstones[expired]
        known, before, _ = self._tombstones.get(uid, _NO_TOMBSTONE)
        until = now + self._remember
        self._tombstones[uid] = (max(known, version or -1), before or for_good, until)
        self._expiry.append((until, uid))


_NO_TOMBSTONE = (-1, False, 0.0)
_DOUBTED = 60.0
"""Seconds within which all kinds are listed again if a restore has ended their watches."""


def _now() -> float:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:  # tables of decisions build caches too, outside of a loop
        return time.monotonic()


@dataclass(slots=True)
class _Index(Generic[T]):
    """Sorted keys by value. A value with a single key, the usual case, costs no list."""

    function: IndexFunction[T]
    by_value: dict[str, str | list[str]] = field(default_factory=dict)

    def replace(self, key: str, old: T | None, new: T | None) -> None:
        before = [] if old is None else self.function(old)
        after = [] if new is None else self.function(new)
        if before == after:
            return
        index = self.by_value
        for value in dict.fromkeys(before):
            keys = index[value]
            if isinstance(keys, str):
                del index[value]
                continue
            del keys[bisect.bisect_left(keys, key)]
            if len(keys) == 1:
                index[value] = keys[0]
        for value in dict.fromkeys(after):
            held = index.get(value)
            if held is None:
                index[value] = key
            elif isinstance(held, str):
                index[value] = sorted((held, key))
            else:
                bisect.insort(held, key)


def _share(obj: KubeObject) -> None:
    """Replace, in place, parts of a read-only object that are equal to parts of objects seen before.

    A volume or claim takes at most 3.5 KB. What is Pending is left as it is: it is soon replaced by another version,
    and most of the work is for nothing.
    """
    if isinstance(obj, Volume | Claim) and obj.status.phase in ("", "Pending"):
        return
    meta = obj.metadata
    meta.namespace = sys.intern(meta.namespace)
    meta.finalizers = _list(meta.finalizers)
    meta.labels = meta.labels and _interned(meta.labels)
    meta.annotations = meta.annotations and _interned(meta.annotations)
    if isinstance(obj, Volume):
        volume = obj.spec
        volume.capacity = _map(volume.capacity)
        volume.access_modes = _list(volume.access_modes)
        volume.mount_options = _list(volume.mount_options)
        volume.storage_class_name = sys.intern(volume.storage_class_name)
        volume.volume_mode = sys.intern(volume.volume_mode)
        volume.persistent_volume_reclaim_policy = sys.intern(volume.persistent_volume_reclaim_policy)
        if (ref := volume.claim_ref) is not None:
            ref.kind, ref.api_version = sys.intern(ref.kind), sys.intern(ref.api_version)
            ref.namespace = sys.intern(ref.namespace)
        obj.status.phase = sys.intern(obj.status.phase)
    elif isinstance(obj, Claim):
        claim, status = obj.spec, obj.status
        claim.access_modes = _list(claim.access_modes)
        status.access_modes = _list(status.access_modes)
        status.capacity = _map(status.capacity)
        status.phase = sys.intern(status.phase)
        if claim.resources is not None:
            claim.resources.requests = _map(claim.resources.requests)
        if claim.storage_class_name is not None:
            claim.storage_class_name = sys.intern(claim.storage_class_name)
        if claim.volume_mode is not None:
            claim.volume_mode = sys.intern(claim.volume_mode)


def _list(items: list[str] | None) -> list[str] | None:
    return items and _shared_list(tuple(items))


def _map(items: dict[str, str] | None) -> dict[str, str] | None:
    return items and _shared_map(tuple(items.items()))


@functools.lru_cache(_MOST_SHARED)
def _shared_list(items: tuple[str, ...]) -> list[str]:
    return [sys.intern(item) for item in items]


@functools.lru_cache(_MOST_SHARED)
def _shared_map(items: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return _interned(dict(items))


def _interned(items: dict[str, str]) -> dict[str, str]:
    """Return the same map with shared keys and short values (`yes`, a driver's name)."""
    return {
        sys.intern(key): sys.intern(value) if len(value) <= _LONGEST_SHARED else value for key, value in items.items()
    }
