"""Typed calls of the Kubernetes API over any transport.

Reads decode to the structs of `volplane.kube.objects`; writes send dicts and answer with the struct of what the server
stored. Nothing is retried here: the caller knows whether the call still makes sense.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, Self, TypeVar

import msgspec

from volplane._delays import CIRCUIT_OPEN
from volplane.errors import ApiError, ApiGone, ApiNotFound, ApiUnavailable
from volplane.kube.answers import Change, Listing, Page, changes, decoded, decoder_of, error_from, read_object
from volplane.kube.cache import Cache
from volplane.kube.kinds import Kind
from volplane.kube.objects import KubeObject
from volplane.kube.transport import Request, Transport

_LOG = logging.getLogger(__name__)

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
_PAGE: Final = 500
"""Objects in one answer to a list."""
_FULL: Final = 0
"""The limit that asks for all objects in one answer."""
_METHODS: Final = {"create": "POST", "patch": "PATCH", "delete": "DELETE"}
"""By verb; the others are a GET."""
_BUSY: Final = 4
"""Writes in flight from which on calls of low priority wait."""
_LOW_PRIORITY_AT_ONCE: Final = 2
_LONGEST_LOW_PRIORITY_WAIT: Final = 5.0
_OF_ONE_CALL: Final = frozenset({"InternalError", "TooManyRequests"})
"""Reasons of a Status that say nothing of other calls: a webhook failed, or EventRateLimit refuses an event. A server
that is overloaded answers with a text alone (source: `tooManyRequests` of apiserver's filters)."""
_HTTP_DATE: Final = "%a, %d %b %Y %H:%M:%S GMT"
_TICK: Final = 0.001
_LATE: Final = 2.0
"""Seconds by which a timer rings late only where the process was stopped: then what was decided before may be over."""

_SEGMENT: Final = re.compile(r"(?!\.{1,2}\Z)[^/%]{1,253}")
"""A namespace, or a name of an object. Source: `IsValidPathSegmentName` of apimachinery."""

T = TypeVar("T", bound=KubeObject)
R = TypeVar("R")


async def full_list_if_expired(read: Callable[[int], Awaitable[R]]) -> R:
    """Return the result of `read(limit)`, which reads `Client.pages` with this limit.

    If the server compacts the snapshot away between two pages (ApiGone), it is called again, to read all objects in one
    answer: a list too large to be read page by page in time would otherwise never end. Source:
    `ListPager.FullListIfExpired` of client-go.
    """
    try:
        return await read(_PAGE)
    except ApiGone:
        return await read(_FULL)


Counted = Literal["undecodable", "listed", "watch ended", "event dropped", "pass ended"]
"""Objects that could not be read and were skipped (of a kind), whole lists taken into a cache (of a kind), watches that
ended (of a kind, because of end, gone or error), events that were not written (because of queue, when that is full,
refused, or unavailable, when the process ended), and passes of a controller (its name; done, wait, operation, conflict,
unavailable, refused, error, unsettled, stopped)."""


class ApiMetrics:
    """Where clients, reflectors and event recorders count. This one counts nothing."""

    def api_request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Count an exchange that ended with this HTTP code; 0: no answer."""

    def count(self, what: Counted, *labels: str) -> None:
        """Count one more. labels: the plural of the kind, and why, as far as `what` has them."""


UNCOUNTED: Final = ApiMetrics()


class Client:
    """One user of the Kubernetes API.

    deadline: seconds after which any call is given up (ApiUnavailable). All methods raise the Api errors of
    `volplane.errors`; ApiError.already_exists distinguishes the 409 of a create from a conflict. A `low_priority` call
    waits while writes are many, so that events never delay what matters. While the server gives no usable answers,
    calls go one by one (see `CircuitBreaker`). Calls with a time limit of their own (`seconds`), those about a Lease,
    wait neither for that nor for connections that other calls use.
    """

    def __init__(self, transport: Transport, *, metrics: ApiMetrics = UNCOUNTED, deadline: float = 30.0) -> None:
        self.server = str(getattr(transport, "server", ""))
        """The address of the API server, for people; "" in this process."""
        self._transport = transport
        self._metrics = metrics
        self._deadline = deadline
        self._headers = {"accept": "application/json", "user-agent": "volplane"}
        self._typed_headers: dict[str, dict[str, str]] = {"": self._headers}
        self._encoder = msgspec.json.Encoder()
        self._gate = _PriorityGate()
        self._breaker = CircuitBreaker()
        self.served: set[str] = set()
        """Kinds that the server has served: a 404 without a Status about them is not its own."""
        self._date: list[Any] = ["", 0.0]
        """The header `Date` of the last answer, and the loop time at which it came; shared by the copies."""
        self._may_write: Callable[[], bool] = lambda: True

    def writing_while(self, may_write: Callable[[], bool]) -> Self:
        """Return the same client for somebody who may write for a time only, as the holder of a Lease.

        may_write: asked when a write has waited for a server that gave no usable answers; if it is false, the write is
        not sent (ApiUnavailable).
        """
        bounded = copy.copy(self)
        bounded._may_write = may_write  # noqa: SLF001 -- another object of this class
        return bounded

    async def get(self, kind: Kind[T], key: str, *, seconds: float | None = None) -> T:
        """Read one object from the server. Raises ApiNotFound."""
        # Tenants write names of what is read. To one that none can have a proxy may answer as if the server were gone.
        parts = key.removesuffix("/" if kind.whole else "").split("/")
        if key.count("/") != kind.namespaced or not all(map(_SEGMENT.fullmatch, parts)):
            raise ApiNotFound(f"{kind.plural} {key[:80]!r}: no object can have this name", status=404)
        return self._object(kind, await self._send("get", kind.plural, kind.path_of(key), seconds=seconds))

    async def find(self, kind: Kind[T], key: str, *, seconds: float | None = None) -> T | None:
        try:
            return await self.get(kind, key, seconds=seconds)
        except ApiNotFound:
            return None

    async def refresh(self, cache: Cache[T], key: str) -> T | None:
        """Read an object from the server into the cache; None if it is gone.

        Of an object that the watch still has one answer does not prove that: it may be that of another server. A list
        has to agree. Raises ApiUnavailable if that knows less than the watch.
        """
        try:
            live = await self.get(cache.kind, key)
        except ApiNotFound:
            if (cached := cache.get(key)) is None:
                return None
            namespace, _, name = key.rpartition("/")
            listing = await self.list(cache.kind, namespace=namespace, field_selector=f"metadata.name={name}")
            if listing.unreadable or listing.version < cached.version:
                text = f"{cache.kind.plural} {key}: the server's answers contradict each other; is it always the same?"
                raise ApiUnavailable(text, status=404) from None
            if not listing.items:
                cache.observe_deleted(key, cached.uid, listing.version)
                return None
            live = listing.items[0]
        cache.observe(live)
        return live

    async def list(
        self, kind: Kind[T], *, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> Listing[T]:
        """Return all objects of a kind (of one namespace, if given), as one consistent snapshot."""

        async def read(limit: int) -> Listing[T]:
            items: list[T] = []
            unreadable: list[str] = []
            version = 0
            selectors = {"label_selector": label_selector, "field_selector": field_selector}
            async for page in self.pages(kind, namespace=namespace, limit=limit, **selectors):
                items += page.items
                unreadable += page.unreadable
                version = page.version
            return Listing(items, version, unreadable)

        return await full_list_if_expired(read)

    async def pages(
        self,
        kind: Kind[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        limit: int = _PAGE,
    ) -> AsyncIterator[Listing[T]]:
        """Yield what `list` returns, in pages of `limit` objects (0: in one). Raises ApiGone if it grew too old."""
        query = _given(labelSelector=label_selector, fieldSelector=field_selector, limit=str(limit or ""))
        path = kind.path(namespace)
        while True:
            listing, rest = await self._page(kind, path, query)
            yield listing
            if not rest:
                return
            query["continue"] = rest

    async def newest_version(self, kind: Kind[Any], *, namespace: str = "") -> int:
        """Return the server's resourceVersion of now, read with a list of at most one object of a kind."""
        listing, _ = await self._page(kind, kind.path(namespace), {"limit": "1"})
        return listing.version

    async def create(
        self, kind: Kind[T], body: Mapping[str, Any], *, low_priority: bool = False, seconds: float | None = None
    ) -> T:
        """Create the object that `body` describes (see `Kind.body`); its namespace is that of its metadata."""
        metadata = body.get("metadata") or {}
        path = kind.path(metadata.get("namespace", "") if kind.namespaced else "")
        answer = await self._write("create", kind.plural, path, body, low_priority=low_priority, seconds=seconds)
        return self._object(kind, answer)

    async def post(self, kind: Kind[Any], key: str, subresource: str, body: Mapping[str, Any]) -> bytes:
        """POST to a subresource (the `binding` of a pod); the raw answer."""
        path = kind.path_of(key, subresource)
        answer = await self._write("create", f"{kind.plural}/{subresource}", path, body)
        self._breaker.record_success()
        return answer

    async def patch(
        self,
        kind: Kind[T],
        key: str,
        body: Any,
        *,
        subresource: str = "",
        content_type: str = MERGE_PATCH,
        low_priority: bool = False,
        seconds: float | None = None,
    ) -> T:
        """Change an object. A `metadata.resourceVersion` in a merge patch makes it conditional (ApiConflict)."""
        resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
        path = kind.path_of(key, subresource)
        answer = await self._write(
            "patch", resource, path, body, content_type=content_type, low_priority=low_priority, seconds=seconds
        )
        return self._object(kind, answer)

    async def delete(
        self,
        kind: Kind[T],
        key: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
    ) -> T | None:
        """Delete an object, if it still has this uid and resourceVersion (ApiConflict).

        Returns the object if it stays for now (finalizers, a grace period), None if it is gone. Raises ApiNotFound.
        """
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        if held := {name: value for name, value in preconditions.items() if value is not None}:
            body["preconditions"] = held
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        answer = await self._write("delete", kind.plural, kind.path_of(key), body)
        try:
            gone = decoded(decoder_of(_Tagged).decode, answer).kind == "Status"
        except ValueError as error:
            raise self._unreadable(f"the answer to a deletion of {kind.plural}", error) from error
        if gone:
            self._breaker.record_success()
            return None
        left = self._object(kind, answer)
        return left if left.metadata.finalizers or left.metadata.deletion_grace_period_seconds else None

    async def raw(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """GET any path (`/version`, the log of a pod); the answer's bytes."""
        answer = await self._send("get", path.rpartition("/")[2], path, query=query)
        self._breaker.record_success()
        return answer

    @asynccontextmanager
    async def watch(
        self,
        kind: Kind[T],
        *,
        version: int,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        seconds: int = 300,
        quiet: float = 90.0,
    ) -> AsyncIterator[AsyncIterator[Change[T]]]:
        """Follow changes after `version` for about `seconds`, with bookmarks.

        A connection that brings nothing, not even a bookmark, for `quiet` seconds counts as lost. Raises ApiGone if
        the server no longer knows `version`, here or while following.
        """
        query = _given(
            labelSelector=label_selector,
            fieldSelector=field_selector,
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=str(version),
            timeoutSeconds=str(seconds),
        )
        path = kind.path(namespace)
        request = Request(path=path, query=query, headers=self._headers, seconds=quiet)
        async with self._transport.stream(request) as stream:
            self._metrics.api_request("watch", kind.plural, stream.status, 0.0)
            if stream.status != 200:
                raise error_from(stream.status, stream.headers, await stream.read(), call=f"GET {path}")
            self._breaker.record_success()
            yield changes(kind, stream, report=self._report)

    def server_time(self) -> datetime | None:
        """Return the time by the server's clock, at most a second behind; None if its last answer had none."""
        text, at = self._date
        try:
            shown = datetime.strptime(text, _HTTP_DATE).replace(tzinfo=UTC)
        except ValueError:
            return None
        return shown + timedelta(seconds=asyncio.get_running_loop().time() - at)

    async def close(self) -> None:
        await self._transport.close()

    async def _write(
        self,
        verb: str,
        resource: str,
        path: str,
        body: Any,
        *,
        content_type: str = "application/json",
        low_priority: bool = False,
        seconds: float | None = None,
    ) -> bytes:
        encoded = self._encoder.encode(body)
        if low_priority:
            async with self._gate.low_priority():
                return await self._send(verb, resource, path, body=encoded, content_type=content_type, seconds=seconds)
        with self._gate:
            return await self._send(verb, resource, path, body=encoded, content_type=content_type, seconds=seconds)

    async def _send(
        self,
        verb: str,
        resource: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "",
        seconds: float | None = None,
    ) -> bytes:
        method = _METHODS.get(verb, "GET")
        headers = self._typed_headers.get(content_type)
        if headers is None:
            headers = self._typed_headers[content_type] = {**self._headers, "content-type": content_type}
        limit = self._deadline if seconds is None else min(seconds, self._deadline)
        if self._breaker.open and seconds is None:
            limit = await self._breaker.wait(limit, f"{method} {path}")
            # Another leader may have written meanwhile: what was decided under this lease must not be sent after it.
            if body is not None and not self._may_write():
                raise ApiUnavailable(f"{method} {path} was not sent: the lease was over while it waited", status=0)
        clock = asyncio.get_running_loop().time
        begun = clock()
        code = 0
        request = Request(
            method=method,
            path=path,
            query=query or {},
            headers=headers,
            body=body,
            seconds=limit,
            urgent=seconds is not None,
        )
        try:
            answer = await self._transport.send(request)
            code = answer.status
        except ApiUnavailable:
            self._breaker.record_failure()
            raise
        finally:
            self._metrics.api_request(verb, resource, code, clock() - begun)
        if 200 <= code < 300:
            self.served.add(resource)
            self._date[:] = answer.headers.get("date", ""), clock()
            return answer.body
        refused = error_from(code, answer.headers, answer.body, call=f"{method} {path}")
        if isinstance(refused, ApiUnavailable) and refused.reason not in _OF_ONE_CALL:
            # For a kind that it does not serve a server answers 404 without a Status, too.
            if code != 404 or resource in self.served:
                self._breaker.record_failure(refused.retry_after)
        elif refused.reason:  # an answer without a reason may come from a proxy, or be cut off
            self._breaker.record_success()
        raise refused

    def _object(self, kind: Kind[T], body: bytes) -> T:
        """Decode an object. Raises as `_unreadable` says."""
        try:
            obj = read_object(kind, body)
        except ValueError as error:
            raise self._unreadable(f"an answer about {kind.plural}", error) from error
        self._breaker.record_success()
        return obj

    async def _page(self, kind: Kind[T], path: str, query: Mapping[str, str]) -> tuple[Listing[T], str]:
        """Return one page of the list at `path`, and the token of the next page ("": there is none)."""
        body = await self._send("list", kind.plural, path, query=query)
        try:
            page = decoded(decoder_of(Page).decode, body)
            version = int(page.metadata.resource_version)
        except ValueError as error:
            self._breaker.record_failure()
            raise ApiUnavailable(f"the list of {path} could not be read: {error}", status=200) from error
        self._breaker.record_success()
        listing: Listing[T] = Listing([], version)
        for raw in page.items:
            try:
                listing.items.append(read_object(kind, raw))
            except ValueError as error:  # One object that does not decode must not hide the others.
                listing.unreadable.append(self._report(kind, raw, error).key)
        return listing, page.metadata.continue_

    def _unreadable(self, what: str, error: Exception) -> ApiError:
        # What is not JSON was cut off on its way: ApiUnavailable. JSON of another shape will be the same the next time.
        if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
            self._breaker.record_failure()
            return ApiUnavailable(f"{what} broke off: {error}", status=200)
        self._breaker.record_success()
        return ApiError(f"{what} could not be read: {error}", status=200, reason="Unreadable")

    def _report(self, kind: Kind[Any], raw: msgspec.Raw, error: Exception) -> KubeObject:
        """Log and count an object that does not decode; its metadata, as far as that can be read (else empty)."""
        try:
            about: KubeObject = decoded(decoder_of(KubeObject).decode, raw)
        except ValueError:
            about = KubeObject()
        _LOG.error("%s %s could not be read and is skipped: %s", kind.kind, about.key or "(no name)", error)
        self._metrics.count("undecodable", kind.plural)
        return about


class _Tagged(msgspec.Struct, gc=False):
    kind: str = ""


def _given(**query: str) -> dict[str, str]:
    return {name: value for name, value in query.items() if value}


class _PriorityGate:
    """Delays calls of low priority (Events) while many others are in flight.

    The gate itself is entered for a call of normal priority, which is counted and never waits; `low_priority` for any
    other: few run at a time, and each waits until fewer others are in flight, but not for ever, so that it is not lost.
    """

    def __init__(self) -> None:
        self._width = asyncio.Semaphore(_LOW_PRIORITY_AT_ONCE)
        self._in_flight = 0
        self._calm = asyncio.Event()
        self._calm.set()

    @asynccontextmanager
    async def low_priority(self) -> AsyncIterator[None]:
        async with self._width:
            if not self._calm.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LONGEST_LOW_PRIORITY_WAIT):
                        await self._calm.wait()
            yield

    def __enter__(self) -> None:
        self._in_flight += 1
        if self._in_flight == _BUSY:
            self._calm.clear()

    def __exit__(self, *_: object) -> None:
        self._in_flight -= 1
        if self._in_flight == _BUSY - 1:
            self._calm.set()


@dataclass(slots=True)
class CircuitBreaker:
    """Lets calls pass one by one while the API server gives no usable answers.

    Many objects that each retry for themselves would keep an overloaded server overloaded. The circuit opens at the
    tenth failure in a row; then one call at a time passes, at intervals of 0.15 to 1 s (`backoff.CIRCUIT_OPEN`). The
    next usable answer closes it. The owner records how each call ended, and awaits `wait` while the circuit is `open`.
    Belongs to one event loop.
    """

    open: bool = False
    _failures: int = 0
    _interval: float = 0.0
    _next: float = 0.0
    _closed: asyncio.Event = field(default_factory=asyncio.Event)

    def record_success(self) -> None:
        """Record a call with a usable answer. A refusal is one."""
        self._failures = 0
        if self.open:
            self.open = False
            self._closed.set()

    def record_failure(self, retry_after: float | None = None) -> None:
        """Record a call without one: no connection, 404 of a proxy, 429 or 5xx, but for what is `_OF_ONE_CALL`.

        retry_after: the seconds the server asked for.
        """
        self._failures += 1
        if self._failures < CIRCUIT_OPEN.threshold:
            return
        now = asyncio.get_running_loop().time()
        if not self.open:
            self.open = True
            self._closed.clear()
        self._interval = CIRCUIT_OPEN.delay(self._failures)
        self._next = now + CIRCUIT_OPEN.delay(self._failures, asked=retry_after)

    async def wait(self, seconds: float, call: str) -> float:
        """Wait until the call may be sent; returns what is left of its `seconds`.

        Raises ApiUnavailable if its time would be over before, or if the process was stopped meanwhile. call: method
        and path, for the error.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self.open:
            # A timer may ring a clock tick early.
            if loop.time() >= self._next - _TICK:
                self._next = loop.time() + self._interval
                break
            due = self._next
            if due >= end:
                raise ApiUnavailable(f"{call} was not sent: the API server gives no usable answers", status=0)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._closed.wait()
            if loop.time() > due + _LATE:
                raise ApiUnavailable(f"{call} was not sent: the process was stopped while it waited", status=0)
        return end - loop.time()
