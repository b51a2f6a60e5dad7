"""Watches: replay, live events, bookmarks, bounded buffers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from volplane_embedded.apiserver.errors import gone
from volplane_embedded.apiserver.options import ListOptions
from volplane_embedded.apiserver.requests import Request
from volplane_embedded.apiserver.resources import Json, Resource
from volplane_embedded.apiserver.responses import Form, Renderer
from volplane_embedded.apiserver.selectors import Selection
from volplane_embedded.apiserver.storage import ObjectStorage, storage_of
from volplane_embedded.apiserver.store import Change, ChangeType, Compacted, Stored

INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
_BOOKMARK_SECONDS: Final = 60.0
_BEFORE_TIMEOUT_SECONDS: Final = 2.0
_TICK_SECONDS: Final = 0.001  # timers may fire a clock tick early, and must not be set again for the rest
_TIMEOUT_SECONDS: Final = 1800.0
_CHUNK_BYTES: Final = 64 * 1024
_PENDING_BYTES: Final = 64 * 1024 * 1024

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class _Event(msgspec.Struct, frozen=True):
    """One event to send. data: the object without kind and apiVersion."""

    type: str
    data: bytes
    version: int = 0
    """Of the change. 0: none, or it does not matter."""


class Watch:
    """The lines of one watch: an async iterator of encoded events, each with its newline.

    It ends at its timeout, on `close`, and when its reader is too slow: more than `limit` events or 64 MiB wait, or an
    event that the log of changes has dropped. Events are encoded when they are read. The constructor needs a running
    event loop.
    """

    def __init__(self, encode: Callable[[_Event, bool], bytes], *, limit: int, timeout: float) -> None:
        self._encode = encode
        self._limit = limit
        self._initial: Iterator[_Event] = iter(())
        self._pending: deque[_Event] = deque()
        self._bytes = 0
        self._first = True
        self._closed = False
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._cleanup: list[Callable[[], None]] = []
        self.dropped = False
        """Whether it was ended because its reader was too slow."""
        self._deadline = self._loop.time() + timeout
        self._timeout = self._loop.call_at(self._deadline, self.finish)
        self._timer: asyncio.TimerHandle | None = None

    # Writing

    def begin_with(self, events: Iterator[_Event]) -> None:
        """Set the events to send before pushed ones. They are made when they are read, so they need no buffer."""
        self._initial = events

    def push(self, event: _Event) -> None:
        if self._closed:
            return
        self._bytes += len(event.data)
        if len(self._pending) >= self._limit or self._bytes > _PENDING_BYTES:
            self.dropped = True
            self.close()
            return
        self._pending.append(event)
        self._wake.set()

    def drop_if_behind(self, oldest: int) -> None:
        """End if an event waits that is older than the log of changes, which has the same bytes.

        So slow readers hold no more memory together than the log does.
        """
        if self._pending and 0 < self._pending[0].version <= oldest:
            self.dropped = True
            self.close()

    def on_close(self, callback: Callable[[], None]) -> None:
        self._cleanup.append(callback)

    def every(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call `callback` periodically, and once shortly before the timeout."""
        now = self._loop.time()
        when = min(now + seconds, self._deadline - _BEFORE_TIMEOUT_SECONDS)
        if when - now < _TICK_SECONDS or self._closed:
            return

        def fire() -> None:
            callback()
            self.every(seconds, callback)

        self._timer = self._loop.call_at(when, fire)

    def finish(self) -> None:
        """End after the events that wait already."""
        self._closed = True
        self._timeout.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for callback in self._cleanup:
            callback()
        self._cleanup.clear()
        self._wake.set()

    # Reading

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> bytes:
        while True:
            event = self._next()
            if event is not None:
                first, self._first = self._first, False
                return self._encode(event, first)
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()

    async def chunk(self) -> bytes:
        """Return all lines that wait, up to about 64 KiB, joined; b"" at the end of the watch."""
        try:
            lines = [await anext(self)]
        except StopAsyncIteration:
            return b""
        size = len(lines[0])
        while size < _CHUNK_BYTES and (event := self._next()) is not None:
            lines.append(self._encode(event, False))
            size += len(lines[-1])
        return b"".join(lines)

    def close(self) -> None:
        """End now; waiting events are dropped. Idempotent."""
        self._initial = iter(())
        self._pending.clear()
        self.finish()

    def _next(self) -> _Event | None:
        event = next(self._initial, None)
        if event is None and self._pending:
            event = self._pending.popleft()
            self._bytes -= len(event.data)
        return event


@dataclass(frozen=True, slots=True)
class _Filter:
    """Which changes a watch sends. An object that does not match any more is sent as DELETED."""

    resource: Resource
    prefix: str
    selection: Selection | None
    after: int

    def apply(self, change: Change) -> _Event | None:
        if change.version <= self.after or not change.key.startswith(self.prefix):
            return None
        if self.selection is None:
            return _Event(change.type, change.data, change.version)
        old = change.old()
        before = old is not None and self._matches(old)
        now = change.type != "DELETED" and self._matches(change.new())
        if now:
            return _Event("MODIFIED" if before else "ADDED", change.data, change.version)
        return _Event("DELETED", _last_state(change), change.version) if before else None

    def _matches(self, obj: Json) -> bool:
        return self.selection is None or self.selection.matches(obj)

    def initial(self, rows: list[Stored]) -> Iterator[_Event]:
        """Synthetic ADDED events for the existing objects."""
        added: ChangeType = "ADDED"
        for stored in rows:
            if self.selection is None or self.selection.keeps(stored.data):
                yield _Event(added, stored.data)


def _last_state(change: Change) -> bytes:
    """Return the last state that matched, with the version of the change."""
    if change.type == "DELETED" or change.before is None:
        return change.data
    obj: Json = _decode(change.before)
    obj["metadata"]["resourceVersion"] = str(change.version)
    return _encode(obj)


@dataclass(frozen=True, slots=True)
class Watches:
    """Opens watches. limit: number of events that may wait for a reader. without_bookmarks: plurals of kinds that get
    none.
    """

    objects: ObjectStorage
    renderer: Renderer
    limit: int
    without_bookmarks: frozenset[str]

    def open(self, request: Request, selection: Selection | None, form: Form) -> Watch:
        """Open a watch. Raises StatusError (400, 422). A version that is too old becomes an ERROR event, as on a stock
        server.
        """
        query, resource = request.query, request.resource
        options = ListOptions.read(query, watch=True)
        include = query.text("includeObject")

        def encode(event: _Event, first: bool) -> bytes:
            if event.type == "ERROR":
                return b'{"type":"ERROR","object":%b}\n' % event.data
            return self.renderer.event(resource, event.type, event.data, form, include, first=first)

        timeout = query.number("timeoutSeconds")
        watch = Watch(encode, limit=self.limit, timeout=timeout or self._default_timeout())
        try:
            self._start(watch, request, selection, options)
        except Compacted as why:
            watch.push(_Event("ERROR", _encode(gone(str(why)).body())))
            watch.finish()
        return watch

    def _default_timeout(self) -> float:
        return _TIMEOUT_SECONDS * (1 + self.objects.random.random())

    def _start(self, watch: Watch, request: Request, selection: Selection | None, options: ListOptions) -> None:
        resource, store = request.resource, self.objects.store
        storage = storage_of(resource)
        prefix = f"{request.namespace}/" if request.namespace else ""
        bookmarks = request.query.flag("allowWatchBookmarks")
        whole = options.send_initial_events or not options.version
        after = store.version if whole else options.version or 0
        seen = _Filter(resource, prefix, selection, after)
        if whole:
            watch.begin_with(self._beginning(seen, store.all(storage, request.namespace), options, bookmarks))
        else:
            changes = store.changes_since(storage, after)
            watch.begin_with(event for change in changes if (event := self._replay(seen, change)) is not None)

        def sink(change: Change) -> None:
            event = seen.apply(change)
            if event is not None:
                watch.push(event)
            watch.drop_if_behind(store.oldest(storage))

        route = selection.route if selection is not None else None
        watch.on_close(store.subscribe(storage, sink, route=route, trimmed=watch.drop_if_behind))

        def bookmark() -> None:
            if store.version >= after:  # a watch from the future hears nothing until the server gets there
                watch.push(self._bookmark(resource, store.version))

        if bookmarks and resource.plural not in self.without_bookmarks:
            watch.every(_BOOKMARK_SECONDS, bookmark)

    def _beginning(self, seen: _Filter, rows: list[Stored], options: ListOptions, bookmarks: bool) -> Iterator[_Event]:
        yield from seen.initial(rows)
        if options.send_initial_events and bookmarks:
            yield self._bookmark(seen.resource, seen.after, {INITIAL_EVENTS_END: "true"})

    def _replay(self, seen: _Filter, change: Change) -> _Event | None:
        event = seen.apply(change)
        change.forget_decoded()
        return event

    def _bookmark(self, resource: Resource, version: int, annotations: Json | None = None) -> _Event:
        metadata: Json = {"resourceVersion": str(version)}
        if annotations:
            metadata["annotations"] = annotations
        # The typed zero value of a stock server has both fields in every kind with a status.
        typed = not resource.custom and "status" in resource.subresources
        rest: Json = {"spec": {}, "status": {}} if typed else {}
        return _Event("BOOKMARK", _encode({"metadata": metadata, **rest}))
