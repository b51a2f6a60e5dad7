"""Events on objects, written in the background.

`record` never waits. Equal notifications are one Event with a count, which is written again ever less often, at last
every 5 minutes. Events wait while the API server has other work or is away, and are dropped only above 100,000.
Source: client-go tools/record/events_cache.go, EventCorrelator: from the tenth text for one reason within ten minutes
on, further texts are one Event, and one object gets 25 writes and then one per 5 minutes. client-go drops what is above
that rate; here it waits.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from volplane._delays import EVENT_NOT_WRITTEN, EVENT_REFUSED
from volplane._messages import sanitize
from volplane.errors import ApiError, ApiForbidden, ApiNotFound, ApiUnavailable
from volplane.kube.client import UNCOUNTED, ApiMetrics, Client
from volplane.kube.kinds import Kind
from volplane.kube.objects import KubeObject, Metadata, ObjectReference, timestamp

_LOG = logging.getLogger(__name__)

MOST_WAITING = 100_000
_MOST_CHARACTERS = 64 * 2**20
"""Of the texts of waiting events: tenants choose many of them."""
_FIRST_REWRITE = 2.0
_LAST_REWRITE = 300.0
"""Seconds until a count is written again: at first, doubled by each write, and at most."""
_WRITERS = 2
_BURST = 25.0
_REFILL_SECONDS = 300.0
"""Writes for one object at once, and seconds until it gets another one."""
_WHOLE = 1.0 - 1e-6
"""A timer may ring a clock tick early."""
_SIMILAR = 10
"""Texts for one reason, the last of which stands for all further ones."""
_SIMILAR_SECONDS = 600.0
_COMBINED = "(combined from similar events): "
_REMEMBERED = 4096
_LONGEST_MESSAGE = 1024
_LONGEST_NAME = 253

_Key = tuple[str, ...]
K = TypeVar("K")
V = TypeVar("V")


class Event(KubeObject):
    """core/v1 Event, as far as it is read."""

    involved_object: ObjectReference = msgspec.field(default_factory=ObjectReference)
    type: str = "Normal"
    reason: str = ""
    message: str = ""
    count: int | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: dict[str, Any] | None = None


EVENTS: Kind[Event] = Kind("v1", "Event", "events", True, Event)


class EventRecord(msgspec.Struct, frozen=True):
    kind: Kind[Any]
    about: KubeObject
    type: str
    """Normal or Warning."""
    reason: str
    message: str
    same_as: str = ""
    """The part of the message by which it is the same event as an earlier one, without what changes from try to try,
    such as the time of the next; "" = the whole message.
    """


@dataclass(eq=False)
class EventRecorder:
    """Writes events as `component`. Its owner keeps `run` running and calls `close` at the end."""

    client: Client
    component: str = "volplane"
    _: KW_ONLY
    instance: str
    """Which process this is, for `reportingInstance`."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    metrics: ApiMetrics = UNCOUNTED
    dropped: int = field(default=0, init=False)
    """Events that were neither written nor counted in a written one."""

    def __post_init__(self) -> None:
        self._correlator = _Correlator()
        self._ready: asyncio.Queue[_Series] = asyncio.Queue()
        self._timers: dict[_Series, asyncio.TimerHandle] = {}
        self._writing = 0
        self._closing = False
        self._closed = asyncio.Event()

    def record(self, event: EventRecord) -> None:
        """Write an Event on an object, soon. Never waits, and never raises for what the API server does."""
        if self._closed.is_set():
            return
        now = asyncio.get_running_loop().time()
        series = self._correlator.take(event, timestamp(self.now()), now)
        waiting = self._correlator.waiting
        if series.key in waiting:
            return
        if len(waiting) >= MOST_WAITING or self._correlator.characters >= _MOST_CHARACTERS:
            self._drop("queue")
            return
        self._correlator.settled.pop(series.key, None)
        waiting[series.key] = series
        self._correlator.characters += series.characters
        self._schedule(series, max(0.0, series.due_at - now))

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be written now."""
        return self._ready.empty() and not self._writing

    async def run(self) -> None:
        """Write events until `close`."""
        async with asyncio.TaskGroup() as group:
            writers = [group.create_task(self._write_all(), name=f"events-{n}") for n in range(_WRITERS)]
            await self._closed.wait()
            for writer in writers:
                writer.cancel()

    async def close(self, seconds: float = 3.0) -> None:
        """Write what is not written yet, counts included, within `seconds`; then `run` returns."""
        self._closing = True
        for series in list(self._timers):
            self._schedule(series, 0.0)
        try:
            async with asyncio.timeout(seconds):
                await self._ready.join()
        except TimeoutError:
            _LOG.warning("%d events were not written in time", len(self._correlator.waiting))
        finally:
            self._closed.set()

    def _schedule(self, series: _Series, seconds: float) -> None:
        """Write it after so many seconds; never later than `close`."""
        if (timer := self._timers.pop(series, None)) is not None:
            timer.cancel()
        if seconds > 0 and not self._closing:
            self._timers[series] = asyncio.get_running_loop().call_later(seconds, self._schedule, series, 0.0)
            return
        self._ready.put_nowait(series)

    async def _write_all(self) -> None:
        while True:
            series = await self._ready.get()
            self._writing += 1
            try:
                await self._attempt(series)
            except Exception:  # noqa: BLE001 -- no event is worth the end of the writer, and with it of the process
                self._give_up(series, "refused")
                _LOG.exception("an event on %s could not be written", series.event.about.key)
            finally:
                self._writing -= 1
                self._ready.task_done()

    async def _attempt(self, series: _Series) -> None:
        """Try to write it. A failure puts it behind the others, which may succeed."""
        clock = asyncio.get_running_loop().time
        if not series.tries and not self._closing:
            about = series.event.about
            if pause := self._correlator.pause(about.uid or about.key, clock()):
                self._schedule(series, pause)
                return
        count = series.count
        try:
            await self._write(series)
        except ApiUnavailable as error:
            series.tries += 1
            if self._closing:
                self._give_up(series, "unavailable")
            else:
                self._schedule(series, EVENT_NOT_WRITTEN.delay(series.tries, asked=error.retry_after))
        except ApiError as error:
            series.tries += 1
            # A refusal may be temporary: rights that spread, or a webhook that restarts.
            may_pass = isinstance(error, ApiForbidden) and "being terminated" not in error.message
            if not self._closing and may_pass and series.tries < (EVENT_REFUSED.tries or 0):
                self._schedule(series, EVENT_REFUSED.delay(series.tries))
            else:
                self._give_up(series, "refused")
                _LOG.info("an event on %s was refused: %s", series.event.about.key, error)
        else:
            pause = min(_LAST_REWRITE, _FIRST_REWRITE * 2.0 ** min(series.writes, 10))
            series.written, series.tries = count, 0
            series.writes += 1
            series.due_at = clock() + pause
            if series.count > count:  # It happened again while it was written.
                self._schedule(series, pause)
            else:
                self._correlator.settle(series)

    def _give_up(self, series: _Series, why: str) -> None:
        self._correlator.settle(series)
        series.tries = 0
        self._drop(why)

    async def _write(self, series: _Series) -> None:
        about = series.event.about
        # A digest of what is equal, so that another process continues the count.
        digest = hashlib.sha256("\0".join((self.component, *series.key)).encode()).hexdigest()[:16]
        name = f"{about.name[: _LONGEST_NAME - 17].rstrip('-.')}.{digest}"
        namespace = about.namespace or "default"
        key = f"{namespace}/{name}"
        if series.written:
            try:
                await self._write_count(series, key)
            except ApiNotFound:  # events live an hour
                series.earlier = 0
            else:
                return
        involved = {
            "apiVersion": series.event.kind.api_version,
            "kind": series.event.kind.kind,
            "name": about.name,
            "namespace": about.namespace,
            "uid": about.uid,
            "resourceVersion": about.metadata.resource_version,
        }
        body = EVENTS.body(
            metadata={"name": name, "namespace": namespace},
            involvedObject={each: value for each, value in involved.items() if value},
            type=series.event.type,
            reason=series.event.reason,
            message=series.message,
            count=series.count,
            firstTimestamp=series.first,
            lastTimestamp=series.last,
            source={"component": self.component},
            reportingComponent=self.component,
            reportingInstance=self.instance,
        )
        try:
            await self.client.create(EVENTS, body, low_priority=True)
        except ApiError as error:
            if not error.already_exists:
                raise
            series.earlier = (await self.client.get(EVENTS, key)).count or 0
            await self._write_count(series, key)

    async def _write_count(self, series: _Series, key: str) -> None:
        body = {"count": series.earlier + series.count, "lastTimestamp": series.last, "message": series.message}
        await self.client.patch(EVENTS, key, body, low_priority=True)

    def _drop(self, why: str) -> None:
        self.dropped += 1
        self.metrics.count("event dropped", why)


@dataclass(slots=True, eq=False)
class _Series:
    """Equal events about one object: one Event. Times are the server's texts; `due_at` is loop time."""

    key: _Key
    event: EventRecord
    """The first of them."""
    message: str
    first: str
    last: str
    count: int = 0
    earlier: int = 0
    """The count of the Event when this process found it."""
    written: int = 0
    """The count that was written last, without `earlier`."""
    writes: int = 0
    due_at: float = float("-inf")
    """When it may be written again."""
    tries: int = 0

    @property
    def characters(self) -> int:
        """Characters of what tells it from others; the message has at most about as many as the last part."""
        return sum(map(len, self.key)) + len(self.key[-1])


@dataclass(slots=True)
class _Correlator:
    """Finds the series of a notification, and limits the writes for each object."""

    waiting: dict[_Key, _Series] = field(default_factory=dict)
    """Series with something to write, now or later."""
    settled: OrderedDict[_Key, _Series] = field(default_factory=OrderedDict)
    """Of the others the newest."""
    characters: int = 0
    """Those of the waiting ones."""
    _similar: OrderedDict[_Key, tuple[set[int], float]] = field(default_factory=OrderedDict)
    """Hashes of texts for one reason about one object, and when the last one came."""
    _budgets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)
    """Writes that each object had left, and when."""

    def take(self, event: EventRecord, stamp: str, now: float) -> _Series:
        """Count a notification in its series. stamp: the time as the server writes it. now: loop time."""
        about = event.about
        group = (event.kind.plural, about.key, about.uid, event.type, event.reason)
        text = sanitize(event.message)
        same = sanitize(event.same_as) if event.same_as else text
        texts, last = self._similar.get(group, (set[int](), now))
        if now > last + _SIMILAR_SECONDS:
            texts = set()
        _remember(self._similar, group, (texts, now))
        if hash(same) not in texts:
            if len(texts) < _SIMILAR - 1:
                texts.add(hash(same))
            else:
                same, text = _COMBINED, _COMBINED + text
        key = (*group, _shortened(same))
        series = self.waiting.get(key) or self.settled.get(key)
        if series is None:
            # Labels and annotations are left out: they can be large, and are a tenant's.
            version = about.metadata.resource_version
            named = Metadata(name=about.name, namespace=about.namespace, uid=about.uid, resource_version=version)
            kept = msgspec.structs.replace(event, about=KubeObject(metadata=named), message="", same_as="")
            series = _Series(key, kept, "", stamp, stamp)
        series.message = _shortened(text)
        series.count += 1
        series.last = stamp
        return series

    def settle(self, series: _Series) -> None:
        """Note that the series has nothing more to write."""
        if self.waiting.pop(series.key, None) is not None:
            self.characters -= series.characters
        _remember(self.settled, series.key, series)

    def pause(self, uid: str, now: float) -> float:
        """Take one write of an object's budget; 0, or the seconds to wait until there is one."""
        left, filled = self._budgets.get(uid, (_BURST, now))
        left = min(_BURST, left + (now - filled) / _REFILL_SECONDS)
        missing = 1.0 - left if left < _WHOLE else 0.0
        _remember(self._budgets, uid, (left - 1.0 if not missing else left, now))
        return missing * _REFILL_SECONDS


def _remember(known: OrderedDict[K, V], key: K, value: V) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > _REMEMBERED:
        known.popitem(last=False)


def _shortened(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= _LONGEST_MESSAGE:
        return message
    return encoded[: _LONGEST_MESSAGE - 3].decode(errors="ignore") + "…"
