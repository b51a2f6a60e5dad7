"""Reading a watch: lines of JSON into typed changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, TypeVar

import msgspec

from volplane.errors import ApiError, ApiUnavailable
from volplane.kube.decoding import WatchEvent, decoded
from volplane.kube.kinds import Kind
from volplane.kube.objects import KubeObject
from volplane.kube.status import Status, error_from
from volplane.kube.transport import LineStream

__all__ = ["Change", "Report", "Watch"]

T = TypeVar("T", bound=KubeObject)

Report = Callable[[Kind[Any], msgspec.Raw, Exception], KubeObject]
"""Called for an object that does not decode; returns what can be read of it."""


class Change(msgspec.Struct, Generic[T], frozen=True):
    """One change. type: ADDED, MODIFIED, DELETED, BOOKMARK.

    object: None for a BOOKMARK and for what did not decode. about: metadata, if nothing else; version: where to resume.
    """

    type: str
    object: T | None
    about: KubeObject
    version: int


class _Typed(msgspec.Struct, Generic[T], gc=False):
    type: str
    object: T


class Watch(Generic[T]):
    """An open watch, iterated over once."""

    def __init__(self, kind: Kind[T], stream: LineStream, *, report: Report) -> None:
        self._kind = kind
        self._stream = stream
        self._report = report
        # One pass for the normal line; a line that it cannot read is looked at again in two steps.
        self._decoder = msgspec.json.Decoder(_Typed[kind.struct])  # type: ignore[name-defined]
        self._plain = msgspec.json.Decoder(WatchEvent)
        self._object = msgspec.json.Decoder(kind.struct)

    async def __aiter__(self) -> AsyncIterator[Change[T]]:
        """Changes until the server ends the watch. Raises ApiGone if the version is too old, and other Api errors."""
        decode = self._decoder.decode
        async for line in self._stream:
            try:
                event = decoded(decode, line)
                obj, version = event.object, event.object.version
            except ValueError:
                yield self._read_odd(line)
                continue
            if event.type in {"ADDED", "MODIFIED", "DELETED"}:
                yield Change(event.type, obj, obj, version)
            else:
                yield self._read_odd(line)

    def _read_odd(self, line: bytes) -> Change[T]:
        try:
            event = decoded(self._plain.decode, line)
        except ValueError as error:
            raise ApiUnavailable(
                f"a watch of {self._kind.plural} sent what is not an event: {error}", status=200
            ) from error
        if event.type == "ERROR":
            raise self._error(event.object)
        if event.type == "BOOKMARK":
            about = self._about_bookmark(event.object)
            return Change("BOOKMARK", None, about, _version(about))
        try:
            obj = decoded(self._object.decode, event.object)
            return Change(event.type, obj, obj, obj.version)
        except ValueError as error:
            about = self._report(self._kind, event.object, error)
            return Change(event.type, None, about, _version(about))

    def _about_bookmark(self, raw: msgspec.Raw) -> KubeObject:
        """Return the object of a bookmark; an empty one if it cannot be read, which does no harm."""
        try:
            return msgspec.json.decode(raw, type=KubeObject)
        except ValueError:
            return KubeObject()

    def _error(self, raw: msgspec.Raw) -> ApiError:
        body = bytes(raw)
        try:
            code = msgspec.json.decode(body, type=Status).code
        except ValueError:
            code = 0
        return error_from(code or 500, {}, body, call=f"the watch of {self._kind.plural}")


def _version(about: KubeObject) -> int:
    try:
        return about.version
    except ValueError:
        return 0
