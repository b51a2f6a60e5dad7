"""Events on objects, written in the background.

`record` never waits. What is equal is one Event with a count (see `volplane.kube.event_series`), which is written again
ever less often, at last every 5 minutes. Events wait while the API server has other work or is away, and are dropped
only above 100,000.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any

from volplane._delays import EVENT_NOT_WRITTEN, EVENT_REFUSED
from volplane.errors import ApiError, ApiNotFound, ApiUnavailable
from volplane.kube.client import Client
from volplane.kube.event_series import Budgets, Correlator, Notification, Series
from volplane.kube.kinds import Kind
from volplane.kube.objects import KubeObject
from volplane.kube.transport import ApiMetrics

__all__ = ["EVENTS", "MOST_WAITING", "Event", "EventRecorder", "Notification"]

_LOG = logging.getLogger(__name__)

MOST_WAITING = 100_000
_FIRST_REWRITE = 2.0
_LAST_REWRITE = 300.0
"""Seconds until a count is written again: at first, doubled by each write, and at most."""
_WRITERS = 2


class Event(KubeObject):
    """core/v1 Event, as far as it is read."""

    count: int | None = None


EVENTS: Kind[Event] = Kind("v1", "Event", "events", True, Event)


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
        self._correlator = Correlator()
        self._budgets = Budgets()
        self._ready: deque[Series] = deque()
        self._arrived = asyncio.Event()
        self._timers: dict[Series, asyncio.TimerHandle] = {}
        self._writing = 0
        self._calm = asyncio.Event()
        self._calm.set()
        self._closing = False
        self._closed = asyncio.Event()
        self.dropped = 0
        """Events that were neither written nor counted in a written one."""

    def record(self, event: Notification) -> None:
        """Write an Event on an object, soon. Never waits, and never raises for what the API server does."""
        if self._closed.is_set():
            return
        now = asyncio.get_running_loop().time()
        series = self._correlator.take(event, self._timestamp(), now)
        if series.waiting:
            return
        if len(self._correlator) >= MOST_WAITING:
            self._drop("queue")
            return
        self._correlator.begin(series)
        self._schedule(series, max(0.0, series.due_at - now))

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be written now."""
        return not self._ready and not self._writing

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
                await self._calm.wait()
        except TimeoutError:
            _LOG.warning("%d events were not written in time", len(self._correlator))
        finally:
            self._closed.set()

    def _schedule(self, series: Series, seconds: float) -> None:
        """Write it after so many seconds; never later than `close`."""
        if (timer := self._timers.pop(series, None)) is not None:
            timer.cancel()
        if seconds > 0 and not self._closing:
            self._timers[series] = asyncio.get_running_loop().call_later(seconds, self._schedule, series, 0.0)
            return
        self._calm.clear()
        self._ready.append(series)
        self._arrived.set()

    async def _write_all(self) -> None:
        while True:
            while not self._ready:
                self._arrived.clear()
                await self._arrived.wait()
            series = self._ready.popleft()
            self._writing += 1
            try:
                await self._attempt(series)
            except Exception:  # noqa: BLE001 -- no event is worth the end of the writer, and with it of the process
                self._give_up(series, "refused")
                _LOG.exception("an event on %s could not be written", series.about.key)
            finally:
                self._writing -= 1
                if self.idle:
                    self._calm.set()

    async def _attempt(self, series: Series) -> None:
        """Try to write it. A failure puts it behind the others, which may succeed."""
        clock = asyncio.get_running_loop().time
        if not series.tries and not self._closing:
            pause = self._budgets.take(series.about.uid or series.about.key, clock())
            if pause:
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
            if not self._closing and _may_pass(error) and series.tries < (EVENT_REFUSED.tries or 0):
                self._schedule(series, EVENT_REFUSED.delay(series.tries))
            else:
                self._give_up(series, "refused")
                _LOG.info("an event on %s was refused: %s", series.about.key, error)
        else:
            self._wrote(series, count)

    def _wrote(self, series: Series, count: int) -> None:
        series.written, series.tries = count, 0
        pause = min(_LAST_REWRITE, _FIRST_REWRITE * 2.0 ** min(series.writes, 10))
        series.writes += 1
        series.due_at = asyncio.get_running_loop().time() + pause
        if series.count > count:
            self._schedule(series, pause)
        else:
            self._correlator.end(series)

    def _give_up(self, series: Series, why: str) -> None:
        self._correlator.end(series)
        series.tries = 0
        self._drop(why)

    async def _write(self, series: Series) -> None:
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
            found = await self._client.get(EVENTS, f"{series.namespace}/{series.name(self._component)}")
            series.earlier = found.count or 0
            await self._count(series)

    async def _count(self, series: Series) -> None:
        body = {"count": series.earlier + series.count, "lastTimestamp": series.last, "message": series.message}
        key = f"{series.namespace}/{series.name(self._component)}"
        await self._client.patch(EVENTS, key, body, low_priority=True)

    def _body(self, series: Series) -> dict[str, Any]:
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
            metadata={"name": series.name(self._component), "namespace": series.namespace},
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


def _may_pass(error: ApiError) -> bool:
    """Tell whether a refusal may be temporary: rights that spread, or a webhook that restarts."""
    return error.status == 403 and "being terminated" not in error.message
