"""The OpenAPI document of version 2 as protocol buffers, which is how kubectl reads it: for lists of `kind: List`, and
where it finds nothing in version 3. Pure.

What is encoded is what our document has. Source: openapiv2/OpenAPIv2.proto of github.com/google/gnostic-models, whose
numbers of fields these are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

Json = Mapping[str, Any]

PROTOBUF: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_FORMER: Final = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
"""What clients ask for, though it is no media type; the answer has the other."""
_EXTENSION: Final = "x-"
_METHODS: Final = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}
_PLACES: Final = {"query": 3, "path": 4}


def wants_protobuf(accept: str) -> bool:
    """Tell whether a client asks for the document in this form."""
    return PROTOBUF in accept or _FORMER in accept


def encode_document(document: Json) -> bytes:
    """Return the message `Document` of a document of Swagger 2.0."""
    info = _text(1, document["info"]["title"]) + _text(2, document["info"]["version"])
    paths = _named(2, document["paths"], _path_item)
    definitions = _named(1, document["definitions"], _schema)
    return _text(1, document["swagger"]) + _field(2, info) + _field(8, paths) + _field(9, definitions)


def _path_item(item: Json) -> bytes:
    return b"".join(_field(_METHODS[method], _operation(operation)) for method, operation in item.items())


def _operation(operation: Json) -> bytes:
    consumes = b"".join(_text(7, kind) for kind in operation.get("consumes", ()))
    parameters = b"".join(_field(8, _field(1, _parameter(each))) for each in operation["parameters"])
    responses = _field(9, _named(2, operation["responses"], _response))
    return consumes + parameters + responses + _extensions(13, operation)


def _parameter(parameter: Json) -> bytes:
    required, place = parameter.get("required", False), parameter["in"]
    text, name = parameter.get("description", ""), parameter["name"]
    if place == "body":
        body = _text(1, text) + _text(2, name) + _text(3, place) + _bool(4, required)
        return _field(1, body + _field(5, _schema(parameter["schema"])))
    other = _bool(1, required) + _text(2, place) + _text(3, text) + _text(4, name)
    kind = _text(6 if place == "query" else 5, parameter["type"])
    return _field(2, _field(_PLACES[place], other + kind))


def _response(response: Json) -> bytes:
    schema = response.get("schema")
    shown = _field(2, _field(1, _schema(schema))) if schema is not None else b""
    return _field(1, _text(1, response["description"]) + shown)


def _schema(schema: Json) -> bytes:
    texts = {1: "$ref", 2: "format", 4: "description"}
    found = b"".join(_text(number, schema.get(key, "")) for number, key in texts.items())
    found += b"".join(_text(19, name) for name in schema.get("required", ()))
    if (more := schema.get("additionalProperties")) is not None:
        found += _field(21, _field(1, _schema(more)))
    if kind := schema.get("type"):
        found += _field(22, _text(1, kind))
    if (items := schema.get("items")) is not None:
        found += _field(23, _field(1, _schema(items)))
    if properties := schema.get("properties"):
        found += _field(25, _named(1, properties, _schema))
    return found + _extensions(31, schema)


# --- parts of messages --------------------------------------------------------------------------------------------


def _extensions(number: int, owner: Json) -> bytes:
    """Return the fields `x-…`, each as a text of YAML, which JSON is too."""
    found: Iterable[tuple[str, Any]] = ((key, value) for key, value in owner.items() if key.startswith(_EXTENSION))
    return b"".join(_field(number, _text(1, key) + _field(2, _text(2, json.dumps(value)))) for key, value in found)


def _named(number: int, items: Json, encode: Callable[[Any], bytes]) -> bytes:
    """Return a map, which is a repeated message of name and value."""
    return b"".join(_field(number, _text(1, name) + _field(2, encode(value))) for name, value in items.items())


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode()) if text else b""


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _bool(number: int, value: bool) -> bytes:
    return _varint(number << 3) + b"\x01" if value else b""


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
