"""Responses made from stored bytes: objects, lists, watch events, `Table` and `PartialObjectMetadata`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from volplane_embedded.apiserver.errors import StatusError, bad_request
from volplane_embedded.apiserver.requests import Answer, parse_media_type
from volplane_embedded.apiserver.resources import Json, Resource

_MOST_OF_WARNINGS: Final = 4096
_MOST_OF_A_WARNING: Final = 256
_META_GROUP: Final = "meta.k8s.io"
_INCLUDED: Final = ("", "Metadata", "Object", "None")
_KINDS: Final = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
_MEDIA_TYPES: Final = frozenset({"application/json", "application/*", "*/*", ""})


@dataclass(frozen=True, slots=True)
class Form:
    """The form of objects in a response. version: of group meta.k8s.io."""

    shape: Literal["object", "table", "metadata"]
    version: str = "v1"


PLAIN: Final = Form("object")


@functools.lru_cache(maxsize=256)
def negotiate(accept: str) -> Form:
    """Return the first supported choice of an Accept header. Raises StatusError (406) if none is supported."""
    if not accept:
        return PLAIN
    for choice in accept.split(","):
        media_type, wanted = parse_media_type(choice)
        if media_type not in _MEDIA_TYPES:
            continue
        kind = wanted.get("as")
        if kind is None:
            return PLAIN
        version = wanted.get("v", "v1")
        if kind in _KINDS and wanted.get("g", _META_GROUP) == _META_GROUP and version in ("v1", "v1beta1"):
            return Form("table" if kind == "Table" else "metadata", version)
    offered = "application/json, application/json;as=Table, application/json;as=PartialObjectMetadata"
    message = f"only the following media types are accepted: {offered}"
    raise StatusError(406, "NotAcceptable", message)


JSON_TYPE: Final = "application/json"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_metadata_only = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

Tabulate = Callable[[Resource, Sequence[Json], Json, str], Json]
"""Makes a Table: resource, objects, metadata of the list, includeObject (None, Metadata or Object)."""


def json_answer(status: int, value: object, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status, {"Content-Type": JSON_TYPE, **(headers or {})}, _encode(value))


def text_answer(status: int, text: str) -> Answer:
    return Answer(status, {"Content-Type": "text/plain; charset=utf-8"}, text.encode())


def error_answer(failure: StatusError) -> Answer:
    """Return the Status response of a refused request."""
    headers = {}
    if "retryAfterSeconds" in failure.details:
        headers["Retry-After"] = str(failure.details["retryAfterSeconds"])
    return json_answer(failure.code, failure.body(), headers)


@functools.lru_cache(maxsize=256)
def _prefix(kind: str, api_version: str) -> bytes:
    return b'{"kind":%b,"apiVersion":%b' % (_encode(kind), _encode(api_version))


def plain(resource: Resource, data: bytes) -> bytes:
    """Return the response bytes of a stored object: kind and apiVersion are inserted."""
    if resource.from_stored is not None:
        data = _encode(resource.from_stored(_decode(data)))
    return _prefix(resource.kind, resource.api_version) + b"," + data[1:]


def served(resource: Resource, obj: Json) -> Json:
    """Return a decoded stored object in the form of the resource, without kind and apiVersion."""
    return obj if resource.from_stored is None else resource.from_stored(obj)


class Renderer:
    """Encodes objects in the form that the client asks for. tabulate: makes Tables."""

    def __init__(self, tabulate: Tabulate) -> None:
        self._tabulate = tabulate

    def one(self, resource: Resource, data: bytes, form: Form, include: str = "") -> bytes:
        """Return a single object."""
        if form.shape == "object":
            return plain(resource, data)
        if form.shape == "metadata":
            return self._partial(data, form)
        obj = self._whole(resource, data)
        version = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
        return _encode(self._table(resource, [obj], version, form, include))

    def many(self, resource: Resource, rows: Iterable[bytes], metadata: Json, form: Form, include: str = "") -> bytes:
        """Return a list; `metadata` is its ListMeta."""
        if form.shape == "table":
            objects = [self._whole(resource, row) for row in rows]
            return _encode(self._table(resource, objects, metadata, form, include))
        if form.shape == "metadata":
            head = _prefix("PartialObjectMetadataList", f"meta.k8s.io/{form.version}")
            items = [self._partial(row, form) for row in rows]
        else:
            head = _prefix(f"{resource.kind}List", resource.api_version)
            convert = resource.from_stored
            if resource.custom:  # As its server has no types for them, each item says what it is.
                metadata, rows = {"continue": "", **metadata}, [plain(resource, row) for row in rows]
            items = [_encode(convert(_decode(row))) for row in rows] if convert is not None else list(rows)
        return b'%b,"metadata":%b,"items":[%b]}' % (head, _encode(metadata), b",".join(items))

    def event(self, resource: Resource, kind: str, data: bytes, form: Form, include: str, *, first: bool) -> bytes:
        """Return a line of a watch. Only the first Table of a watch has column definitions."""
        if form.shape == "table":
            obj = self._whole(resource, data)
            version = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
            table = self._table(resource, [obj], version, form, include)
            if not first:
                table["columnDefinitions"] = None
            body = _encode(table)
        else:
            body = self.one(resource, data, form)
        return b'{"type":"%b","object":%b}\n' % (kind.encode(), body)

    def _whole(self, resource: Resource, data: bytes) -> Json:
        obj: Json = _decode(data)
        return {"kind": resource.kind, "apiVersion": resource.api_version, **served(resource, obj)}

    def _partial(self, data: bytes, form: Form) -> bytes:
        metadata: Any = _metadata_only(data)["metadata"]
        return b'%b,"metadata":%b}' % (_prefix("PartialObjectMetadata", f"meta.k8s.io/{form.version}"), bytes(metadata))

    def _table(self, resource: Resource, objects: list[Json], metadata: Json, form: Form, include: str) -> Json:
        if include not in _INCLUDED:
            why = f"includeObject: Invalid value: \"{include}\": must be 'Metadata', 'Object', 'None', or empty"
            raise bad_request(f"Unable to convert to Table as requested: {why}")
        table = self._tabulate(resource, objects, metadata, include or "Metadata")
        table["apiVersion"] = f"meta.k8s.io/{form.version}"
        return table


def warning_header(texts: Sequence[str]) -> str:
    """Return the Warning header (RFC 7234): 4096 characters of the texts at most, 256 of each if they are longer.

    Source: KEP-1693. A client refuses headers that are much longer.
    """
    if sum(map(len, texts)) > _MOST_OF_WARNINGS:
        texts = [text[:_MOST_OF_A_WARNING] for text in texts]
    told: list[str] = []
    left = _MOST_OF_WARNINGS
    for text in texts:
        left -= len(text)
        if left < 0:
            break
        told.append(f'299 - "{_quoted(text)}"')
    return ", ".join(told)


def _quoted(text: str) -> str:
    """Return a quoted-string of RFC 7234, without control characters, which no header may have."""
    shown = "".join(each for each in text if each.isprintable())
    return shown.replace("\\", "\\\\").replace('"', '\\"')
