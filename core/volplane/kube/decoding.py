"""Answers of the API server as structs: one object, or a page of a list."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec

from volplane.errors import ApiError, ApiUnavailable
from volplane.kube.flowcontrol import CircuitBreaker
from volplane.kube.kinds import Kind
from volplane.kube.objects import Fields, KubeObject
from volplane.kube.transport import ApiMetrics

__all__ = ["AnswerDecoder", "Listing", "Page", "WatchEvent", "decoded", "flattened"]

_LOG = logging.getLogger(__name__)
_DEEPEST: Final = 100
"""Levels of lists and objects that `flattened` keeps."""
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)

R = TypeVar("R")
T = TypeVar("T", bound=KubeObject)


class ListMetadata(Fields):
    """meta/v1 ListMeta."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(Fields):
    """One page of a list. `items` are left encoded, so that one bad object is skipped alone."""

    metadata: ListMetadata = msgspec.field(default_factory=ListMetadata)
    items: list[msgspec.Raw] = msgspec.field(default_factory=list)


class WatchEvent(Fields):
    """One line of a watch; `object` is left encoded."""

    type: str
    object: msgspec.Raw


def decoded(decode: Callable[[bytes | msgspec.Raw], R], body: bytes | msgspec.Raw) -> R:
    """Decode the JSON; only its upper levels if it is nested too deep. Raises what `decode` raises.

    Anybody who writes an object can nest its `metadata.managedFields[].fieldsV1` as deep as the API server accepts
    (10,000). The decoder gives up at a thousand levels, also in fields that it skips, and one such object would make a
    whole list unreadable.
    """
    try:
        return decode(body)
    except RecursionError:
        return decode(flattened(bytes(body)))


def flattened(body: bytes, most: int = _DEEPEST) -> bytes:
    """Replace every list and object that lies within more than `most` others by null."""
    depth, kept, parts = 0, 0, []
    for token in _TOKEN.finditer(body):
        first = body[token.start() : token.start() + 1]
        if first in b"[{":
            depth += 1
            if depth == most + 1:
                parts.append(body[kept : token.start()])
        elif first in b"]}":
            if depth == most + 1:
                parts.append(b"null")
                kept = token.end()
            depth -= 1
    if depth <= most:
        parts.append(body[kept:])  # Otherwise the text breaks off, which the decoder reports.
    return b"".join(parts)


_ABOUT = msgspec.json.Decoder(KubeObject)


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """Objects of a list, in the server's order.

    version: the resourceVersion the list is of. unreadable: keys of objects that exist but did not decode.
    """

    items: list[T]
    version: int
    unreadable: list[str] = field(default_factory=list)


class AnswerDecoder:
    """Decodes answers, and records in the circuit breaker whether they were usable."""

    def __init__(self, breaker: CircuitBreaker, metrics: ApiMetrics | None) -> None:
        self._breaker = breaker
        self._metrics = metrics
        self._decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}
        self._page = msgspec.json.Decoder(Page)

    def object(self, kind: Kind[T], body: bytes) -> T:
        """Return one object. Raises as `unreadable` says."""
        try:
            obj = decoded(self._of(kind).decode, body)
            _ = obj.version
        except ValueError as error:
            raise self.unreadable(f"an answer about {kind.plural}", error) from error
        self._breaker.record_success()
        return obj

    def page(self, kind: Kind[T], body: bytes, path: str) -> tuple[Listing[T], str]:
        """Return one page of the list at `path`, and the token of the next page ("": there is none).

        An object that does not decode is reported and skipped. Raises ApiUnavailable if the page itself does not.
        """
        try:
            page = decoded(self._page.decode, body)
            version = int(page.metadata.resource_version or 0)
        except ValueError as error:
            self._breaker.record_failure()
            raise ApiUnavailable(f"the list of {path} could not be read: {error}", status=200) from error
        self._breaker.record_success()
        decode = self._of(kind).decode
        listing: Listing[T] = Listing([], version)
        for raw in page.items:
            try:
                obj = decoded(decode, raw)
                _ = obj.version
            except ValueError as error:
                listing.unreadable.append(self.report(kind, raw, error).key)
            else:
                listing.items.append(obj)
        return listing, page.metadata.continue_

    def unreadable(self, what: str, error: Exception) -> ApiError:
        """Return the error for an answer that could not be read.

        What is not JSON was cut off on its way: ApiUnavailable. JSON of another shape will be the same the next time.
        """
        if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
            self._breaker.record_failure()
            return ApiUnavailable(f"{what} broke off: {error}", status=200)
        self._breaker.record_success()
        return ApiError(f"{what} could not be read: {error}", status=200, reason="Unreadable")

    def report(self, kind: Kind[Any], raw: msgspec.Raw, error: Exception) -> KubeObject:
        """Log and count an object that does not decode; its metadata, as far as that can be read (else empty)."""
        try:
            about = decoded(_ABOUT.decode, raw)
        except ValueError:
            about = KubeObject()
        _LOG.error("%s %s could not be read and is skipped: %s", kind.kind, about.key or "(no name)", error)
        if self._metrics is not None:
            self._metrics.undecodable(kind.plural)
        return about

    def _of(self, kind: Kind[T]) -> msgspec.json.Decoder[T]:
        decoder = self._decoders.get(kind.struct)
        if decoder is None:
            decoder = self._decoders[kind.struct] = msgspec.json.Decoder(kind.struct)
        return decoder
