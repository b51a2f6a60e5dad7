"""Answers of the API server as structs: one object, or a page of a list."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from volplane.errors import ApiError, ApiUnavailable
from volplane.kube.envelopes import Page
from volplane.kube.flowcontrol import CircuitBreaker
from volplane.kube.kinds import Kind
from volplane.kube.nesting import decoded
from volplane.kube.objects import KubeObject
from volplane.kube.transport import ApiMetrics

__all__ = ["AnswerDecoder", "Listing"]

_LOG = logging.getLogger(__name__)
_ABOUT = msgspec.json.Decoder(KubeObject)

T = TypeVar("T", bound=KubeObject)


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
        """One object. Raises as `unreadable` says."""
        try:
            obj = decoded(self._of(kind).decode, body)
            _ = obj.version
        except ValueError as error:
            raise self.unreadable(f"an answer about {kind.plural}", error) from error
        self._breaker.record_success()
        return obj

    def page(self, kind: Kind[T], body: bytes, path: str) -> tuple[Listing[T], str]:
        """One page of the list at `path`, and the token of the next page ("": there is none).

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
        """The error for an answer that could not be read.

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
