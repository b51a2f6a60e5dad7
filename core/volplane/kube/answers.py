"""What the API server answers, as structs: objects, pages of lists, the changes of a watch, and errors.

Source: `Status`, `ListMeta` and `WatchEvent` of apimachinery meta/v1, and the HTTP codes of the Kubernetes API
conventions.
"""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec

from volplane._delays import LONGEST_ASKED_BY_SERVER
from volplane.errors import ApiConflict, ApiError, ApiForbidden, ApiGone, ApiNotFound, ApiUnavailable
from volplane.kube.kinds import Kind
from volplane.kube.objects import Fields, KubeObject
from volplane.kube.transport import LineStream

_DEEPEST: Final = 100
"""Levels of lists and objects that `flattened` keeps."""
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)

R = TypeVar("R")
T = TypeVar("T", bound=KubeObject)

Report = Callable[[Kind[Any], msgspec.Raw, Exception], KubeObject]
"""Called for an object that does not decode; returns what can be read of it."""


class ListMetadata(Fields):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(Fields):
    """One page of a list. `items` are left encoded, so that one bad object is skipped alone."""

    metadata: ListMetadata = msgspec.field(default_factory=ListMetadata)
    items: list[msgspec.Raw] = msgspec.field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """Objects of a list in the order of the server, the version it is of, and keys of objects that did not decode."""

    items: list[T]
    version: int
    unreadable: list[str] = field(default_factory=list)


class Change(msgspec.Struct, Generic[T], frozen=True):
    """One change. type: ADDED, MODIFIED, DELETED, BOOKMARK.

    object: None for a BOOKMARK and for what did not decode. about: metadata, if nothing else; version: where to resume.
    """

    type: str
    object: T | None
    about: KubeObject
    version: int


class _Typed(msgspec.Struct, Generic[R], gc=False):
    type: str
    object: R


class _Cause(Fields):
    reason: str = ""


class _Details(Fields):
    kind: str = ""
    name: str = ""
    causes: list[_Cause] | None = None
    retry_after_seconds: float | None = None


class _Status(Fields):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


_STATUS: Final = msgspec.json.Decoder(_Status)
_PLAIN_EVENT: Final = msgspec.json.Decoder(_Typed[msgspec.Raw])
_CLASSES: Final[Mapping[int, type[ApiError]]] = {
    401: ApiUnavailable,  # credentials rotate, or what checks them restarts: the same call is accepted a moment later
    403: ApiForbidden,
    404: ApiUnavailable,  # unless it is a Status: see `error_from`
    409: ApiConflict,
    410: ApiGone,
    429: ApiUnavailable,
    500: ApiUnavailable,
}


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


@functools.cache
def decoder_of(struct: type[R]) -> msgspec.json.Decoder[R]:
    return msgspec.json.Decoder(struct)


def read_object(kind: Kind[T], body: bytes | msgspec.Raw) -> T:
    """Return the object. Raises ValueError if it does not decode or has no usable resourceVersion."""
    obj: T = decoded(decoder_of(kind.struct).decode, body)
    _ = obj.version
    return obj


async def changes(kind: Kind[T], stream: LineStream, *, report: Report) -> AsyncIterator[Change[T]]:
    """Yield the changes of a watch until the server ends it. Raises ApiGone if the version is too old."""
    # One pass for the normal line; a line that it cannot read is looked at again in two steps.
    decode = decoder_of(_Typed[kind.struct]).decode  # type: ignore[name-defined]
    async for line in stream:
        try:
            event = decoded(decode, line)
            obj, version = event.object, event.object.version
        except ValueError:
            yield _read_odd(kind, line, report)
            continue
        if event.type in {"ADDED", "MODIFIED", "DELETED"}:
            yield Change(event.type, obj, obj, version)
        else:
            yield _read_odd(kind, line, report)


def _read_odd(kind: Kind[T], line: bytes, report: Report) -> Change[T]:
    """Read a bookmark, an object that does not decode, or the error that ends a watch, which is raised."""
    try:
        event = decoded(_PLAIN_EVENT.decode, line)
    except ValueError as error:
        raise ApiUnavailable(f"a watch of {kind.plural} sent what is not an event: {error}", status=200) from error
    if event.type == "ERROR":
        body = bytes(event.object)
        try:
            code = _STATUS.decode(body).code
        except ValueError:
            code = 0
        raise error_from(code or 500, {}, body, call=f"the watch of {kind.plural}")
    try:
        if event.type != "BOOKMARK":
            obj = read_object(kind, event.object)
            return Change(event.type, obj, obj, obj.version)
        about = msgspec.json.decode(event.object, type=KubeObject)
    except ValueError as error:
        # A bookmark that cannot be read does no harm: an empty one moves nothing.
        about = KubeObject() if event.type == "BOOKMARK" else report(kind, event.object, error)
    try:
        version = about.version
    except ValueError:
        version = 0
    return Change(event.type, None, about, version)


def error_from(code: int, headers: Mapping[str, str], body: bytes, *, call: str) -> ApiError:
    """Return the error for an answer that is not a success. call: method and path.

    A 404 is ApiNotFound only where the Status names an object of the path: that one, or its namespace. Another Status
    is a refusal, as of a webhook; what is none may be of a proxy before the server, and says nothing of the object.
    """
    try:
        status = _STATUS.decode(body)
    except ValueError:
        text = body[:200].decode(errors="replace").strip()
        status = _Status(message=f"{call} was answered {code}{': ' if text else ''}{text}")
    message = status.message or f"{call} was answered {code} {status.reason}".rstrip()
    details = status.details or _Details()
    if code == 404 and details.kind and details.name and f"/{details.kind}/{details.name}/" in f"{call}/":
        return ApiNotFound(message, status=code, reason=status.reason)
    meaning = min(500, code)
    if (code == 409 and status.reason == "AlreadyExists") or (code == 404 and status.reason):
        meaning = 0
    elif any(cause.reason == "ResourceVersionTooLarge" for cause in details.causes or ()):
        meaning = 410  # a version that the server has not reached or never had: it needs a new list too
    # Seconds in the body or the header (RFC 9110, 10.2.3, no dates).
    asked = details.retry_after_seconds
    if not asked:
        try:
            asked = float(headers["retry-after"])
        except (KeyError, ValueError):
            asked = None
    retry_after = min(asked, LONGEST_ASKED_BY_SERVER) if asked is not None and asked > 0 else None
    error = _CLASSES.get(meaning, ApiError)
    return error(message, status=code, reason=status.reason, retry_after=retry_after)
