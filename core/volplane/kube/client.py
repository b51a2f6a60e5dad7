"""Typed calls of the Kubernetes API over any transport.

Reads decode to the structs of `volplane.kube.objects`; writes send dicts and answer with the struct of what the server
stored. Nothing is retried here: who calls knows whether to decide anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from volplane.errors import ApiError, ApiUnavailable
from volplane.kube.answers import refusal
from volplane.kube.courtesy import Courtesy
from volplane.kube.kinds import Kind
from volplane.kube.objects import KubeObject, Page
from volplane.kube.patience import Patience
from volplane.kube.transport import Transport
from volplane.kube.watching import Watching

__all__ = ["JSON_PATCH", "MERGE_PATCH", "Client", "ClientMetrics", "Listing"]

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"

_LOG = logging.getLogger(__name__)

T = TypeVar("T", bound=KubeObject)


class ClientMetrics(Protocol):
    """Where a client counts."""

    def api_request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """One exchange ended with this HTTP code; 0: no answer."""
        ...

    def undecodable(self, resource: str) -> None:
        """An object could not be read and was skipped."""
        ...


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """Objects of a list, in the server's order.

    version: the resourceVersion the list is of. unreadable: keys of objects that exist but did not decode.
    """

    items: list[T]
    version: int
    unreadable: list[str] = field(default_factory=list)


class Client:
    """One user of the Kubernetes API.

    deadline: seconds after which any call is given up (ApiUnavailable). All methods raise the Api errors of
    `volplane.errors`; ApiError.already_exists tells the 409 of a create from a conflict. A `low_priority` call waits
    while writes are many, so that events never delay what matters. While the server gives no usable answers, calls go
    one by one (see `Patience`); those with a time limit of their own (`seconds`) do not wait for that.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        metrics: ClientMetrics | None = None,
        deadline: float = 30.0,
        user_agent: str = "volplane",
    ) -> None:
        self._transport = transport
        self._metrics = metrics
        self._deadline = deadline
        self._headers = {"accept": "application/json", "user-agent": user_agent}
        self._typed_headers: dict[str, dict[str, str]] = {"": self._headers}
        self._decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}
        self._page = msgspec.json.Decoder(Page)
        self._encoder = msgspec.json.Encoder()
        self._courtesy = Courtesy()
        self._patience = Patience()

    @property
    def deadline(self) -> float:
        """Seconds that the longest call can take."""
        return self._deadline

    async def get(self, kind: Kind[T], key: str, *, seconds: float | None = None) -> T:
        """Read one object from the server. Raises ApiNotFound."""
        body = await self._send("get", kind.plural, "GET", kind.path_of(key), seconds=seconds)
        return self._decode(kind, body)

    async def list(
        self, kind: Kind[T], *, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> Listing[T]:
        """All objects of a kind (of one namespace, if given), as one consistent snapshot.

        Raises ApiGone if the snapshot grew too old between two pages.
        """
        items: list[T] = []
        unreadable: list[str] = []
        version = 0
        async for page in self.pages(
            kind, namespace=namespace, label_selector=label_selector, field_selector=field_selector
        ):
            items += page.items
            unreadable += page.unreadable
            version = page.version
        return Listing(items, version, unreadable)

    async def pages(
        self,
        kind: Kind[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 500,
    ) -> AsyncIterator[Listing[T]]:
        """The same as `list`, page by page of at most `limit` objects (0: all at once)."""
        query = _selection(label_selector, field_selector)
        if limit:
            query["limit"] = str(limit)
        path = kind.path(namespace)
        while True:
            page = self._read_page(await self._send("list", kind.plural, "GET", path, query=query), path)
            yield self._decode_items(kind, page)
            if not page.metadata.continue_:
                return
            query["continue"] = page.metadata.continue_

    async def create(
        self,
        kind: Kind[T],
        body: Mapping[str, Any],
        *,
        low_priority: bool = False,
        seconds: float | None = None,
    ) -> T:
        """Create the object that `body` describes (see `Kind.body`); its namespace is that of its metadata."""
        metadata = body.get("metadata") or {}
        path = kind.path(metadata.get("namespace", "") if kind.namespaced else "")
        answer = await self._write(
            "create", kind.plural, "POST", path, body, low_priority=low_priority, seconds=seconds
        )
        return self._decode(kind, answer)

    async def post(self, kind: Kind[Any], key: str, subresource: str, body: Mapping[str, Any]) -> bytes:
        """POST to a subresource (the `binding` of a pod); the raw answer."""
        path = kind.path_of(key, subresource)
        answer = await self._write("create", f"{kind.plural}/{subresource}", "POST", path, body)
        self._patience.answered()
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
        return self._decode(kind, answer)

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
            gone = msgspec.json.decode(answer, type=_Tagged).kind == "Status"
        except ValueError as error:
            raise self._unreadable(f"the answer to a deletion of {kind.plural}", error) from error
        if gone:
            self._patience.answered()
            return None
        left = self._decode(kind, answer)
        return left if left.metadata.finalizers or left.metadata.deletion_grace_period_seconds else None

    async def raw(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """GET any path (`/version`, the log of a pod); the answer's bytes."""
        answer = await self._send("get", path.rpartition("/")[2], "GET", path, query=query)
        self._patience.answered()
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
    ) -> AsyncIterator[Watching[T]]:
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
        async with self._transport.stream(path, query=query, headers=self._headers, quiet=quiet) as stream:
            self._count("watch", kind.plural, stream.status, 0.0)
            if stream.status != 200:
                raise refusal(stream.status, stream.headers, await stream.read(), call=f"GET {path}")
            self._patience.answered()
            yield Watching(kind, stream, report=self._report)

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
            async with self._courtesy.after_others():
                return await self._send(
                    verb, resource, method, path, body=encoded, content_type=content_type, seconds=seconds
                )
        self._courtesy.enter()
        try:
            return await self._send(
                verb, resource, method, path, body=encoded, content_type=content_type, seconds=seconds
            )
        finally:
            self._courtesy.leave()

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
        if self._patience.troubled and seconds is None:
            limit = await self._patience.turn(limit, f"{method} {path}")
        clock = asyncio.get_running_loop().time
        begun = clock()
        code = 0
        try:
            answer = await self._transport.request(
                method, path, query=query or {}, headers=headers, body=body, seconds=limit
            )
            code = answer.status
        except ApiUnavailable:
            self._patience.failed()
            raise
        finally:
            self._count(verb, resource, code, clock() - begun)
        if 200 <= code < 300:
            return answer.body
        refused = refusal(code, answer.headers, answer.body, call=f"{method} {path}")
        if isinstance(refused, ApiUnavailable):
            self._patience.failed(refused.retry_after)
        elif refused.reason:  # else nobody knows who answered, or how much of the answer is left
            self._patience.answered()
        raise refused

    def _count(self, verb: str, resource: str, code: int, seconds: float) -> None:
        if self._metrics is not None:
            self._metrics.api_request(verb, resource, code, seconds)

    def _decoder(self, kind: Kind[T]) -> msgspec.json.Decoder[T]:
        decoder = self._decoders.get(kind.struct)
        if decoder is None:
            decoder = self._decoders[kind.struct] = msgspec.json.Decoder(kind.struct)
        return decoder

    def _decode(self, kind: Kind[T], body: bytes) -> T:
        try:
            obj = self._decoder(kind).decode(body)
            _ = obj.version
        except ValueError as error:
            raise self._unreadable(f"an answer about {kind.plural}", error) from error
        self._patience.answered()
        return obj

    def _unreadable(self, what: str, error: Exception) -> ApiError:
        """What is no JSON broke off on its way; what is JSON of another shape will be so the next time too."""
        if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
            self._patience.failed()
            return ApiUnavailable(f"{what} broke off: {error}", status=200)
        self._patience.answered()
        return ApiError(f"{what} could not be read: {error}", status=200, reason="Unreadable")

    def _read_page(self, body: bytes, path: str) -> Page[Any]:
        try:
            page = self._page.decode(body)
            _ = int(page.metadata.resource_version or 0)
        except ValueError as error:
            self._patience.failed()
            raise ApiUnavailable(f"the list of {path} could not be read: {error}", status=200) from error
        self._patience.answered()
        return page

    def _decode_items(self, kind: Kind[T], page: Page[Any]) -> Listing[T]:
        decode = self._decoder(kind).decode
        listing: Listing[T] = Listing([], int(page.metadata.resource_version or 0))
        for raw in page.items:
            try:
                obj = decode(raw)
                _ = obj.version
            except ValueError as error:
                listing.unreadable.append(self._report(kind, raw, error).key)
            else:
                listing.items.append(obj)
        return listing

    def _report(self, kind: Kind[Any], raw: msgspec.Raw, error: Exception) -> KubeObject:
        """Log one object that does not decode; what can be told of it (nothing: an empty object)."""
        try:
            about = msgspec.json.decode(raw, type=KubeObject)
        except ValueError:
            about = KubeObject()
        _LOG.error("%s %s could not be read and is skipped: %s", kind.kind, about.key or "(no name)", error)
        if self._metrics is not None:
            self._metrics.undecodable(kind.plural)
        return about


class _Tagged(msgspec.Struct, gc=False):
    kind: str = ""


def _selection(label_selector: str, field_selector: str) -> dict[str, str]:
    query = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in query.items() if value}
