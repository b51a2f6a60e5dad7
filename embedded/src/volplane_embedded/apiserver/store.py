"""The versioned object store: what etcd and the watch cache are to a stock API server.

One global, monotonic resourceVersion. Objects are kept as the JSON they are served with, without `kind` and
`apiVersion`, so that lists and watch events are joined from stored bytes. Every write is kept in a bounded log per
storage key, from which watches replay and older snapshots (pages of a list) are rebuilt.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import msgspec
from sortedcontainers import SortedDict

from volplane_embedded.apiserver.group_commit import Commits, Committing
from volplane_embedded.apiserver.resources import Json
from volplane_embedded.apiserver.subscribers import Route, Subscriber, Subscribers

ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]

_LOG_BYTES: Final = 128 * 1024 * 1024
_TOLD_EVERY: Final = 256
"""Dropped changes after which subscribers are told."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def key_of(namespace: str, name: str) -> str:
    """Return the key of an object: sorts as etcd sorts."""
    return f"{namespace}/{name}" if namespace else name


class Compacted(Exception):
    """The log does not reach back to `asked`; `oldest` is the oldest version that can still be served."""

    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {asked} ({oldest})")
        self.asked = asked
        self.oldest = oldest


class Stored(msgspec.Struct, frozen=True):
    """One object at one version; `data` is its JSON without kind and apiVersion."""

    key: str
    version: int
    data: bytes

    def decode(self) -> Json:
        """Return a fresh, own copy of the object."""
        obj: Json = _decode(self.data)
        return obj


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All objects at one version, by storage key."""

    version: int
    rows: Mapping[str, tuple[Stored, ...]]


@dataclass(slots=True)
class Change:
    """One write. For DELETED `data` is the last state, carrying the version of the deletion."""

    version: int
    type: ChangeType
    key: str
    data: bytes
    before: bytes | None
    _new: Json | None = field(default=None, repr=False)
    _old: Json | None = field(default=None, repr=False)

    def new(self) -> Json:
        """Return the decoded `data`. It is shared: callers must not change it."""
        if self._new is None:
            self._new = _decode(self.data)
        return self._new

    def old(self) -> Json | None:
        """Return the decoded `before`, shared in the same way."""
        if self._old is None and self.before is not None:
            self._old = _decode(self.before)
        return self._old

    def forget_decoded(self) -> None:
        """Free the decoded objects: the log has thousands of changes."""
        self._new = self._old = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list. rows: in key order. last: the key to continue after, "" at the end."""

    rows: list[bytes]
    last: str
    remaining: int


class Journal(Committing, Protocol):
    """Makes recorded writes durable when `commit` returns."""

    def load(self) -> tuple[int, Iterable[tuple[str, Stored]]]: ...

    def record(self, storage: str, key: str, version: int, data: bytes | None) -> None:
        """Record a write for the next commit. Raises OSError; then it is not recorded."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Collection:
    """The objects under one storage key and their log."""

    objects: SortedDict[str, Stored] = field(default_factory=SortedDict)
    log: deque[Change] = field(default_factory=deque)
    log_bytes: int = 0
    compacted: int = 0
    told: int = 0
    """The value of `compacted` of which subscribers were told last."""
    subscribers: Subscribers[Change] = field(default_factory=Subscribers)

    def span(self, namespace: str, after: str = "") -> tuple[int, int]:
        """Indexes of the keys of a namespace ("" = all) that come after `after`."""
        keys = self.objects
        low = keys.bisect_left(f"{namespace}/") if namespace else 0
        high = keys.bisect_left(f"{namespace}0") if namespace else len(keys)  # "0" follows "/"
        if after:
            low = max(low, keys.bisect_right(after))
        return low, max(low, high)


class Store:
    """Objects by storage key and object key. Not thread-safe: one event loop owns it."""

    def __init__(self, journal: Journal | None = None, *, history: int = 16_384) -> None:
        """`history` is the number of changes kept per storage key (and at most 128 MiB of them)."""
        self._journal = journal
        self._commits = Commits(journal) if journal is not None else None
        self._history = history
        self._collections: dict[str, _Collection] = {}
        self._version = 0
        self._start = 0
        if journal is not None:
            self._version, rows = journal.load()
            self._start = self._version
            for storage, stored in rows:
                self._collection(storage).objects[stored.key] = stored

    @property
    def version(self) -> int:
        """The version of the newest write."""
        return self._version

    def _collection(self, storage: str) -> _Collection:
        collection = self._collections.get(storage)
        if collection is None:
            collection = self._collections[storage] = _Collection(compacted=self._start)
        return collection

    # Reading

    def get(self, storage: str, key: str) -> Stored | None:
        found: Stored | None = self._collection(storage).objects.get(key)
        return found

    def all(self, storage: str, namespace: str = "") -> list[Stored]:
        """Return every object of a namespace ("" = all) in key order."""
        collection = self._collection(storage)
        low, high = collection.span(namespace)
        values = collection.objects.values()
        return list(values) if high - low == len(values) else list(values[low:high])

    def count(self, storage: str, namespace: str = "") -> int:
        low, high = self._collection(storage).span(namespace)
        return high - low

    def storages(self) -> Sequence[str]:
        """Return the storage keys in use."""
        return tuple(self._collections)

    def page(
        self,
        storage: str,
        namespace: str = "",
        *,
        version: int = 0,
        after: str = "",
        limit: int = 0,
        keep: Callable[[bytes], bool] | None = None,
    ) -> Page:
        """Return at most `limit` (0 = all) objects that `keep` accepts, in their states at `version` (0 = now).

        `remaining` is the number of objects after the page; 0 with `keep`, where it is unknown. Raises Compacted.
        """
        collection = self._collection(storage)
        undone = self._undone(collection, version, namespace, after) if version and version < self._version else {}
        low, high = collection.span(namespace, after)
        objects = collection.objects
        keys: Iterator[str] = objects.islice(low, high)
        count = high - low
        if undone:
            restored = sorted(key for key, data in undone.items() if data is not None)
            count += len(restored) - sum(key in objects for key in undone)
            keys = heapq.merge((key for key in keys if key not in undone), restored)
        found: list[bytes] = []
        last = ""
        for key in keys:
            data = undone.get(key) or objects[key].data
            if keep is not None and not keep(data):
                continue
            if limit and len(found) == limit:
                return Page(found, last, count - limit if keep is None else 0)
            found.append(data)
            last = key
        return Page(found, "", 0)

    def _undone(self, collection: _Collection, version: int, namespace: str, after: str) -> dict[str, bytes | None]:
        """Return the states at an older version (None: absent) of the keys that changed since."""
        if version < collection.compacted:
            raise Compacted(version, collection.compacted)
        prefix = f"{namespace}/" if namespace else ""
        undone: dict[str, bytes | None] = {}
        for change in reversed(collection.log):
            if change.version <= version:
                break
            if change.key > after and change.key.startswith(prefix):
                undone[change.key] = change.before
        return undone

    def oldest(self, storage: str) -> int:
        """Return the version after which all changes are kept."""
        return self._collection(storage).compacted

    def changes_since(self, storage: str, version: int) -> list[Change]:
        """Return all changes after `version`, oldest first. Raises Compacted if some are not kept any more."""
        collection = self._collection(storage)
        if version < collection.compacted:
            raise Compacted(version, collection.compacted)
        found: list[Change] = []
        for change in reversed(collection.log):
            if change.version <= version:
                break
            found.append(change)
        found.reverse()
        return found

    # Writing

    def put(self, storage: str, key: str, obj: Json) -> Stored:
        """Write an object (without kind and apiVersion); sets its metadata.resourceVersion. OSError: not written."""
        collection = self._collection(storage)
        version = self._version + 1
        obj["metadata"]["resourceVersion"] = str(version)
        data = _encode(obj)
        self._record(storage, key, version, data)
        before = collection.objects.get(key)
        stored = collection.objects[key] = Stored(key, version, data)
        kind: ChangeType = "MODIFIED" if before else "ADDED"
        self._publish(collection, Change(version, kind, key, data, before.data if before else None))
        return stored

    def delete(self, storage: str, key: str) -> Stored:
        """Remove an object. Returns its last state, with the version of the removal. OSError: not removed."""
        collection = self._collection(storage)
        before: Stored = collection.objects[key]
        version = self._version + 1
        last = before.decode()
        last["metadata"]["resourceVersion"] = str(version)
        data = _encode(last)
        self._record(storage, key, version, None)
        del collection.objects[key]
        self._publish(collection, Change(version, "DELETED", key, data, before.data))
        return Stored(key, version, data)

    def _record(self, storage: str, key: str, version: int, data: bytes | None) -> None:
        if self._journal is not None:
            self._journal.record(storage, key, version, data)
        if self._commits is not None:
            self._commits.recorded()
        self._version = version

    def _publish(self, collection: _Collection, change: Change) -> None:
        collection.log.append(change)
        collection.log_bytes += len(change.data)
        while len(collection.log) > self._history or collection.log_bytes > _LOG_BYTES:
            dropped = collection.log.popleft()
            collection.log_bytes -= len(dropped.data)
            collection.compacted = dropped.version
        for subscriber in collection.subscribers.concerned_by(change):
            subscriber.sink(change)
        change.forget_decoded()
        if collection.compacted >= collection.told + _TOLD_EVERY:
            collection.told = collection.compacted
            for subscriber in collection.subscribers:
                subscriber.trimmed(collection.compacted)

    def flush(self) -> None:
        """Return when all writes so far are on disk. Raises OSError if they cannot be written."""
        if self._commits is not None:
            self._commits.flush()

    async def settled(self) -> None:
        """Wait as `flush` does, but share one sync to disk with other writers.

        What was read before can be sent to clients afterwards: no crash undoes it.
        """
        if self._commits is not None:
            await self._commits.settled()

    # Watching and upkeep

    def subscribe(
        self,
        storage: str,
        sink: Callable[[Change], None],
        *,
        route: Route | None = None,
        trimmed: Callable[[int], None] = lambda _version: None,
    ) -> Callable[[], None]:
        """Call `sink` synchronously for every later write, or for those of objects on the route.

        trimmed: called from time to time with the version up to which the log has dropped changes. Returns the
        function that ends the subscription.
        """
        subscribers = self._collection(storage).subscribers
        subscriber = Subscriber(sink, trimmed, route)
        subscribers.add(subscriber)
        return lambda: subscribers.remove(subscriber)

    def snapshot(self) -> Snapshot:
        """Return a backup: everything as it is now."""
        rows = {name: tuple(collection.objects.values()) for name, collection in self._collections.items()}
        return Snapshot(self._version, rows)

    def restore(self, snapshot: Snapshot, *, version: int = 0) -> None:
        """Go back to a backup, as etcd does. Subscribers are told nothing.

        version: where versions go on, as after `etcdutl snapshot restore --bump-revision --mark-compacted`; 0: at that
        of the backup. Objects keep theirs. Raises ValueError for a store with a journal: restore its files.
        """
        if self._journal is not None:
            raise ValueError("a durable store is restored by its files, while no server uses them")
        self._version = self._start = version or snapshot.version
        for name, collection in self._collections.items():
            collection.objects = SortedDict((stored.key, stored) for stored in snapshot.rows.get(name, ()))
        self.compact()

    def compact(self, storage: str | None = None) -> None:
        """Drop the log of a storage key, or of all: older versions are gone, as after a compaction of etcd."""
        for name, collection in self._collections.items():
            if storage in (None, name):
                collection.log.clear()
                collection.log_bytes = 0
                collection.compacted = self._version

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
