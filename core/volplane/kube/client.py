"""Typed calls of the Kubernetes API over any transport.

Reads decode to the structs of `volplane.kube.objects`; writes send dicts and answer with the struct of what the server
stored. Nothing is retried here: the caller knows whether the call still makes sense.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Self, TypeVar

import msgspec

from volplane.errors import ApiGone, ApiNotFound, ApiUnavailable
from volplane.kube.decoding import AnswerDecoder, Listing, decoded
from volplane.kube.flowcontrol import CircuitBreaker, PriorityGate
from volplane.kube.kinds import Kind
from volplane.kube.objects import KubeObject
from volplane.kube.status import error_from
from volplane.kube.transport import ApiMetrics, Request, Transport
from volplane.kube.watch import Watch

__all__ = ["JSON_PATCH", "MERGE_PATCH", "Client", "Listing", "full_list_if_expired"]

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
_PAGE: Final = 500
"""Objects in one answer to a list."""
_FULL: Final = 0
"""The limit that asks for all objects in one answer."""

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


class Client:
    """One user of the Kubernetes API.

    deadline: seconds after which any call is given up (ApiUnavailable). All methods raise the Api errors of
    `volplane.errors`; ApiError.already_exists distinguishes the 409 of a create from a conflict. A `low_priority` call
    waits while writes are many, so that events never delay what matters. While the server gives no usable answers,
    calls go one by one (see `CircuitBreaker`); calls with a time limit of their own (`seconds`) do not wait for that.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        metrics: ApiMetrics | None = None,
        deadline: float = 30.0,
        user_agent: str = "volplane",
    ) -> None:
        self._transport = transport
        self._metrics = metrics
        self._deadline = deadline
        self._headers = {"accept": "application/json", "user-agent": user_agent}
        self._typed_headers: dict[str, dict[str, str]] = {"": self._headers}
        self._encoder = msgspec.json.Encoder()
        self._gate = PriorityGate()
        self._breaker = CircuitBreaker()
        self._decoder = AnswerDecoder(self._breaker, metrics)
        self._may_write: Callable[[], bool] = lambda: True

    def writing_while(self, may_write: Callable[[], bool]) -> Self:
        """Return the same client for somebody who may write for a time only, as the holder of a Lease.

        may_write: asked when a write has waited for a server that gave no usable answers; if it is false, the write is
        not sent (ApiUnavailable).
        """
        bounded = copy.copy(self)
        bounded._may_write = may_write  # noqa: SLF001 -- another object of this class
        return bounded

    @property
    def server(self) -> str:
        """The address of the API server, for people; "" in this process."""
        return getattr(self._transport, "server", "")

    @property
    def deadline(self) -> float:
        """Seconds that the longest call can take."""
        return self._deadline

    async def get(self, kind: Kind[T], key: str, *, seconds: float | None = None) -> T:
        """Read one object from the server. Raises ApiNotFound."""
        body = await self._send("get", kind.plural, "GET", kind.path_of(key), seconds=seconds)
        return self._decoder.object(kind, body)

    async def find(self, kind: Kind[T], key: str, *, seconds: float | None = None) -> T | None:
        """Read one object from the server; None if it is absent."""
        try:
            return await self.get(kind, key, seconds=seconds)
        except ApiNotFound:
            return None

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
        """Yield the same as `list`, page by page of at most `limit` objects; 0: all in one page.

        Raises ApiGone if the snapshot grew too old between two pages (see `full_list_if_expired`).
        """
        query = _selection(label_selector, field_selector)
        if limit:
            query["limit"] = str(limit)
        path = kind.path(namespace)
        while True:
            body = await self._send("list", kind.plural, "GET", path, query=query)
            listing, rest = self._decoder.page(kind, body, path)
            yield listing
            if not rest:
                return
            query["continue"] = rest

    async def newest_version(self, kind: Kind[Any], *, namespace: str = "") -> int:
        """Return the server's resourceVersion of now, read with a list of at most one object of a kind."""
        path = kind.path(namespace)
        body = await self._send("list", kind.plural, "GET", path, query={"limit": "1"})
        return self._decoder.page(kind, body, path)[0].version

    async def create(
        self, kind: Kind[T], body: Mapping[str, Any], *, low_priority: bool = False, seconds: float | None = None
    ) -> T:
        """Create the object that `body` describes (see `Kind.body`); its namespace is that of its metadata."""
        metadata = body.get("metadata") or {}
        path = kind.path(metadata.get("namespace", "") if kind.namespaced else "")
        answer = await self._write(
            "create", kind.plural, "POST", path, body, low_priority=low_priority, seconds=seconds
        )
        return self._decoder.object(kind, answer)

    async def post(self, kind: Kind[Any], key: str, subresource: str, body: Mapping[str, Any]) -> bytes:
        """POST to a subresource (the `binding` of a pod); the raw answer."""
        path = kind.path_of(key, subresource)
        answer = await self._write("create", f"{kind.plural}/{subresource}", "POST", path, body)
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
        answer = await self._write(
            "patch",
            resource,
            "PATCH",
            kind.path_of(key, subresource),
            body,
            content_type=content_type,
            low_priority=low_priority,
            seconds=seconds,
        )
        return self._decoder.object(kind, answer)

    async def delete(
        self,
        kind: Kind[T],
        key: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
        background: bool = False,
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
        if background:
            body["propagationPolicy"] = "Background"
        answer = await self._write("delete", kind.plural, "DELETE", kind.path_of(key), body)
        try:
            gone = decoded(_TAGGED.decode, answer).kind == "Status"
        except ValueError as error:
            raise self._decoder.unreadable(f"the answer to a deletion of {kind.plural}", error) from error
        if gone:
            self._breaker.record_success()
            return None
        left = self._decoder.object(kind, answer)
        return left if left.metadata.finalizers or left.metadata.deletion_grace_period_seconds else None

    async def raw(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """GET any path (`/version`, the log of a pod); the answer's bytes."""
        answer = await self._send("get", path.rpartition("/")[2], "GET", path, query=query)
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
    ) -> AsyncIterator[Watch[T]]:
        """Follow changes after `version` for about `seconds`, with bookmarks.

        A connection that brings nothing, not even a bookmark, for `quiet` seconds counts as lost. Raises ApiGone if
        the server no longer knows `version`, here or while following.
        """
        query = _selection(label_selector, field_selector)
        query |= {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(version),
            "timeoutSeconds": str(seconds),
        }
        path = kind.path(namespace)
        request = Request(path=path, query=query, headers=self._headers, seconds=quiet)
        async with self._transport.stream(request) as stream:
            self._count("watch", kind.plural, stream.status, 0.0)
            if stream.status != 200:
                raise error_from(stream.status, stream.headers, await stream.read(), call=f"GET {path}")
            self._breaker.record_success()
            yield Watch(kind, stream, report=self._decoder.report)

    async def close(self) -> None:
        """Close the transport."""
        await self._transport.close()

    async def _write(
        self,
        verb: str,
        resource: str,
        method: str,
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
                return await self._send(
                    verb, resource, method, path, body=encoded, content_type=content_type, seconds=seconds
                )
        self._gate.enter()
        try:
            return await self._send(
                verb, resource, method, path, body=encoded, content_type=content_type, seconds=seconds
            )
        finally:
            self._gate.leave()

    async def _send(
        self,
        verb: str,
        resource: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "",
        seconds: float | None = None,
    ) -> bytes:
        headers = self._typed_headers.get(content_type)
        if headers is None:
            headers = self._typed_headers[content_type] = {**self._headers, "content-type": content_type}
        limit = self._deadline if seconds is None else min(seconds, self._deadline)
        if self._breaker.open and seconds is None:
            limit = await self._breaker.wait(limit, f"{method} {path}")
            if body is not None and not self._may_write():
                raise ApiUnavailable(f"{method} {path} was not sent: the lease was over while it waited", status=0)
        clock = asyncio.get_running_loop().time
        begun = clock()
        code = 0
        try:
            answer = await self._transport.send(
                Request(method=method, path=path, query=query or {}, headers=headers, body=body, seconds=limit)
            )
            code = answer.status
        except ApiUnavailable:
            self._breaker.record_failure()
            raise
        finally:
            self._count(verb, resource, code, clock() - begun)
        if 200 <= code < 300:
            return answer.body
        refused = error_from(code, answer.headers, answer.body, call=f"{method} {path}")
        if isinstance(refused, ApiUnavailable):
            self._breaker.record_failure(refused.retry_after)
        elif refused.reason:  # an answer without a reason may come from a proxy, or be cut off
            self._breaker.record_success()
        raise refused

    def _count(self, verb: str, resource: str, code: int, seconds: float) -> None:
        if self._metrics is not None:
            self._metrics.api_request(verb, resource, code, seconds)


class _Tagged(msgspec.Struct, gc=False):
    kind: str = ""


_TAGGED = msgspec.json.Decoder(_Tagged)


def _selection(label_selector: str, field_selector: str) -> dict[str, str]:
    query = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in query.items() if value}
