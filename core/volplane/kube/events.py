"""Events on objects, written in the background.

`record` never waits. The same event again only raises a count, which is written at most every 5 minutes. One object
gets 25 event writes and then one per 5 minutes. A full queue drops events. The name of an Event is a digest of its
content, so that a controller that restarts, or another replica, continues its count.
Source: core/v1 Event; the limits are those of client-go's event correlator.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from volplane.backoff import EVENT_NOT_WRITTEN
from volplane.errors import ApiError, ApiNotFound, ApiUnavailable
from volplane.kube.client import Client
from volplane.kube.kinds import Kind
from volplane.kube.objects import KubeObject
from volplane.kube.transport import ApiMetrics
from volplane.messages import sanitize

__all__ = ["EVENTS", "Event", "EventRecorder", "Notification"]

_LOG = logging.getLogger(__name__)

_REWRITE_SECONDS = 300.0
_BURST = 25
_REFILL_SECONDS = 300.0
_REMEMBERED = 4096
_QUEUE = 1000
_WRITERS = 2
_LONGEST_MESSAGE = 1024
_LONGEST_NAME = 253


class Event(KubeObject):
    """core/v1 Event, as far as it is read."""

    count: int | None = None


EVENTS: Kind[Event] = Kind("v1", "Event", "events", True, Event)


class Notification(Protocol):
    """Something to tell about an object; `volplane.controller.actions.EventRecord` is one."""

    @property
    def kind(self) -> Kind[Any]: ...

    @property
    def about(self) -> KubeObject: ...

    @property
    def type(self) -> str:
        """Either "Normal" or "Warning"."""
        ...

    @property
    def reason(self) -> str: ...

    @property
    def message(self) -> str: ...


@dataclass(slots=True, eq=False)
class _Series:
    """Equal events about one object: one Event."""

    kind: Kind[Any]
    about: KubeObject
    type: str
    reason: str
    message: str
    name: str
    first: str
    last: str
    count: int = 0
    earlier: int = 0
    """The count of the Event when this process found it."""
    written: int = 0
    wrote_at: float = float("-inf")
    queued: bool = False
    timer: asyncio.TimerHandle | None = None

    @property
    def namespace(self) -> str:
        return self.about.namespace or "default"


class EventRecorder:
    """Writes events as `component`. Its owner keeps `run` running and calls `close` at the end."""

    def __init__(
        self,
        client: Client,
        component: str = "volplane",
        *,
        instance: str,
        now: Callable[[], datetime],
        metrics: ApiMetrics | None = None,
    ) -> None:
        """instance: which process this is, for `reportingInstance`."""
        self._client = client
        self._component = component
        self._instance = instance
        self._now = now
        self._metrics = metrics
        self._series: OrderedDict[tuple[str, ...], _Series] = OrderedDict()
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()
        self._queue: asyncio.Queue[_Series] = asyncio.Queue(_QUEUE)
        self._writing = 0
        self._closed = asyncio.Event()
        self.dropped = 0
        """Events that were neither written nor counted in a written one."""

    def record(self, event: Notification) -> None:
        """Write an Event on an object, soon. Never waits, and never raises for what the API server does."""
        if self._closed.is_set():
            return
        series = self._series_of(event)
        series.count += 1
        series.last = self._timestamp()
        if series.queued or series.timer is not None:
            return
        due = series.wrote_at + _REWRITE_SECONDS
        loop = asyncio.get_running_loop()
        if due > loop.time():
            series.timer = loop.call_at(due, self._enqueue, series)
        else:
            self._enqueue(series)

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be written now."""
        return self._queue.empty() and not self._writing

    async def run(self) -> None:
        """Write events until `close`."""
        async with asyncio.TaskGroup() as group:
            writers = [group.create_task(self._write_all(), name=f"events-{n}") for n in range(_WRITERS)]
            await self._closed.wait()
            for writer in writers:
                writer.cancel()

    async def close(self, seconds: float = 3.0) -> None:
        """Write what is not written yet, counts included, within `seconds`; then `run` returns."""
        for series in self._series.values():
            if series.timer is not None:
                series.timer.cancel()
                self._enqueue(series)
        try:
            async with asyncio.timeout(seconds):
                await self._queue.join()
        except TimeoutError:
            _LOG.warning("%d events were not written in time", self._queue.qsize() + self._writing)
        finally:
            self._closed.set()

    def _series_of(self, event: Notification) -> _Series:
        about = event.about
        message = _shortened(sanitize(event.message))
        key = (event.kind.plural, about.key, about.uid, event.type, event.reason, message)
        series = self._series.get(key)
        if series is None:
            when = self._timestamp()
            name = _name(about.name, (self._component, *key))
            series = _Series(event.kind, about, event.type, event.reason, message, name, when, when)
            self._series[key] = series
            if len(self._series) > _REMEMBERED:
                _, oldest = self._series.popitem(last=False)
                if oldest.timer is not None:
                    oldest.timer.cancel()
        else:
            self._series.move_to_end(key)
        return series

    def _enqueue(self, series: _Series) -> None:
        series.timer = None
        if not self._may_write(series.about.uid or series.about.key):
            self._drop("rate")
            return
        try:
            self._queue.put_nowait(series)
        except asyncio.QueueFull:
            self._drop("queue")
        else:
            series.queued = True

    def _may_write(self, uid: str) -> bool:
        now = asyncio.get_running_loop().time()
        budget = self._budgets.get(uid)
        if budget is None:
            budget = self._budgets[uid] = _Budget(now)
            if len(self._budgets) > _REMEMBERED:
                self._budgets.popitem(last=False)
        else:
            self._budgets.move_to_end(uid)
        return budget.take(now)

    async def _write_all(self) -> None:
        while True:
            series = await self._queue.get()
            self._writing += 1
            try:
                await self._write_patiently(series)
            except Exception:  # noqa: BLE001 -- no event is worth the end of the writer, and with it of the process
                self._drop("refused")
                _LOG.exception("an event on %s could not be written", series.about.key)
            finally:
                self._writing -= 1
                self._queue.task_done()

    async def _write_patiently(self, series: _Series) -> None:
        for attempt in itertools.count(1):
            series.queued = False
            count = series.count
            try:
                await self._write(series)
            except ApiUnavailable as error:
                if attempt == EVENT_NOT_WRITTEN.tries:
                    self._drop("unavailable")
                    _LOG.info("an event on %s was given up: %s", series.about.key, error)
                    return
                series.queued = True
                await asyncio.sleep(EVENT_NOT_WRITTEN.delay(attempt, asked=error.retry_after))
            except ApiError as error:
                self._drop("refused")
                _LOG.info("an event on %s was refused: %s", series.about.key, error)
                return
            else:
                self._wrote(series, count)
                return

    def _wrote(self, series: _Series, count: int) -> None:
        loop = asyncio.get_running_loop()
        series.written = count
        series.wrote_at = loop.time()
        if series.count > count and series.timer is None and not series.queued and not self._closed.is_set():
            series.timer = loop.call_at(series.wrote_at + _REWRITE_SECONDS, self._enqueue, series)

    async def _write(self, series: _Series) -> None:
        if series.written:
            try:
                await self._count(series)
            except ApiNotFound:  # events live an hour
                series.earlier = 0
            else:
                return
        try:
            await self._client.create(EVENTS, self._body(series), low_priority=True)
        except ApiError as error:
            if not error.already_exists:
                raise
            found = await self._client.get(EVENTS, f"{series.namespace}/{series.name}")
            series.earlier = found.count or 0
            await self._count(series)

    async def _count(self, series: _Series) -> None:
        body = {"count": series.earlier + series.count, "lastTimestamp": series.last}
        await self._client.patch(EVENTS, f"{series.namespace}/{series.name}", body, low_priority=True)

    def _body(self, series: _Series) -> dict[str, Any]:
        about = series.about
        involved = {
            "apiVersion": series.kind.api_version,
            "kind": series.kind.kind,
            "name": about.name,
            "namespace": about.namespace,
            "uid": about.uid,
            "resourceVersion": about.metadata.resource_version,
        }
        return EVENTS.body(
            metadata={"name": series.name, "namespace": series.namespace},
            involvedObject={name: value for name, value in involved.items() if value},
            type=series.type,
            reason=series.reason,
            message=series.message,
            count=series.count,
            firstTimestamp=series.first,
            lastTimestamp=series.last,
            source={"component": self._component},
            reportingComponent=self._component,
            reportingInstance=self._instance,
        )

    def _drop(self, why: str) -> None:
        self.dropped += 1
        if self._metrics is not None:
            self._metrics.event_dropped(why)

    def _timestamp(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%SZ")


class _Budget:
    """Event writes that one object has left."""

    __slots__ = ("_filled", "_left")

    def __init__(self, now: float) -> None:
        self._left = float(_BURST)
        self._filled = now

    def take(self, now: float) -> bool:
        self._left = min(_BURST, self._left + (now - self._filled) / _REFILL_SECONDS)
        self._filled = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


def _name(name: str, content: tuple[str, ...]) -> str:
    digest = hashlib.sha256("\0".join(content).encode()).hexdigest()[:16]
    return f"{name[: _LONGEST_NAME - 17].rstrip('-.')}.{digest}"


def _shortened(message: str) -> str:
    """At most so many bytes: the API server counts those."""
    encoded = message.encode()
    if len(encoded) <= _LONGEST_MESSAGE:
        return message
    return encoded[: _LONGEST_MESSAGE - 3].decode(errors="ignore") + "…"
