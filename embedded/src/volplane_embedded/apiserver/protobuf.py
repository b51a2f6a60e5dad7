"""Decodes bodies in the Kubernetes protobuf envelope, which kubectl uses for kinds that it creates from flags.

Only requests are decoded. Responses are JSON, which every client accepts. Field numbers are those of the
`generated.proto` files of k8s.io/api and k8s.io/apimachinery.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from volplane_embedded.apiserver.errors import bad_request
from volplane_embedded.apiserver.resources import Json

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"

_Value = bytes | int
_Read = Callable[[_Value], Any]


class _Field(NamedTuple):
    name: str
    read: _Read
    kind: str = "one"
    """one, list or map; a map's `read` is that of its values."""


_Message = Mapping[int, _Field]


def _fields(data: bytes) -> Iterator[tuple[int, _Value]]:
    """Number and raw value of each field. Raises ValueError if the data is not protobuf."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        if tag & 7 == 0:
            value, position = _varint(data, position)
            yield tag >> 3, value
            continue
        if tag & 7 == 2:
            size, position = _varint(data, position)
        elif tag & 7 in (1, 5):
            size = 8 if tag & 7 == 1 else 4
        else:
            raise ValueError(f"wire type {tag & 7}")
        if position + size > len(data):
            raise ValueError("unexpected end")
        yield tag >> 3, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("unexpected end of a number")


def _raw(value: _Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where bytes belong")  # noqa: TRY004 - the input is wrong, not the caller
    return value


def _text(value: _Value) -> str:
    return _raw(value).decode()


def _binary(value: _Value) -> str:
    return base64.b64encode(_raw(value)).decode()


def _number(value: _Value) -> int:
    if isinstance(value, bytes):
        raise ValueError("bytes where a number belongs")  # noqa: TRY004
    return value - (1 << 64) if value >> 63 else value


def _flag(value: _Value) -> bool:
    return _number(value) != 0


def _time(value: _Value) -> str | None:
    """Return a `Time` as RFC 3339, None for its zero value."""
    parts = dict(_fields(_raw(value)))
    seconds = _number(parts.get(1, 0))
    if not parts:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _quantity(value: _Value) -> str:
    return _text(dict(_fields(_raw(value))).get(1, b""))


def _message(fields: _Message) -> _Read:
    return lambda value: _object(_raw(value), fields)


def _object(data: bytes, fields: _Message) -> Json:
    """Return the JSON form of a message. Unknown fields are ignored, as by an older server."""
    found: Json = {}
    for number, value in _fields(data):
        field = fields.get(number)
        if field is None:
            continue
        if field.kind == "list":
            found.setdefault(field.name, []).append(field.read(value))
        elif field.kind == "map":
            entry = dict(_fields(_raw(value)))
            found.setdefault(field.name, {})[_text(entry.get(1, b""))] = field.read(entry.get(2, b""))
        elif (read := field.read(value)) not in (None, ""):  # empty texts are sent for absent ones
            found[field.name] = read
    return found


def _texts(*names: str) -> _Message:
    """Number text fields from 1."""
    return {number: _Field(name, _text) for number, name in enumerate(names, 1)}


_OWNER: Final[_Message] = {
    1: _Field("kind", _text),
    3: _Field("name", _text),
    4: _Field("uid", _text),
    5: _Field("apiVersion", _text),
    6: _Field("controller", _flag),
    7: _Field("blockOwnerDeletion", _flag),
}
_METADATA: Final[_Message] = {
    1: _Field("name", _text),
    2: _Field("generateName", _text),
    3: _Field("namespace", _text),
    5: _Field("uid", _text),
    6: _Field("resourceVersion", _text),
    7: _Field("generation", _number),
    8: _Field("creationTimestamp", _time),
    9: _Field("deletionTimestamp", _time),
    10: _Field("deletionGracePeriodSeconds", _number),
    11: _Field("labels", _text, "map"),
    12: _Field("annotations", _text, "map"),
    13: _Field("ownerReferences", _message(_OWNER), "list"),
    14: _Field("finalizers", _text, "list"),
}
_META: Final = _Field("metadata", _message(_METADATA))
_REFERENCE: Final = _texts("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_ATTRIBUTES: Final = _texts("namespace", "verb", "group", "version", "resource", "subresource", "name")
_ACCESS: Final[_Message] = {
    1: _Field("resourceAttributes", _message(_ATTRIBUTES)),
    2: _Field("nonResourceAttributes", _message(_texts("path", "verb"))),
}
_SCOPE: Final[_Message] = {
    1: _Field("scopeName", _text),
    2: _Field("operator", _text),
    3: _Field("values", _text, "list"),
}
_QUOTA: Final[_Message] = {
    1: _Field("hard", _quantity, "map"),
    2: _Field("scopes", _text, "list"),
    3: _Field("scopeSelector", _message({1: _Field("matchExpressions", _message(_SCOPE), "list")})),
}
_QUOTA_STATUS: Final[_Message] = {1: _Field("hard", _quantity, "map"), 2: _Field("used", _quantity, "map")}
_PORT: Final[_Message] = {
    1: _Field("name", _text),
    3: _Field("containerPort", _number),
    4: _Field("protocol", _text),
}
_CONTAINER: Final[_Message] = {
    1: _Field("name", _text),
    2: _Field("image", _text),
    3: _Field("command", _text, "list"),
    4: _Field("args", _text, "list"),
    6: _Field("ports", _message(_PORT), "list"),
}
_TEMPLATE: Final[_Message] = {
    1: _META,
    2: _Field("spec", _message({2: _Field("containers", _message(_CONTAINER), "list")})),
}
_DEPLOYMENT: Final[_Message] = {
    1: _Field("replicas", _number),
    2: _Field("selector", _message({1: _Field("matchLabels", _text, "map")})),
    3: _Field("template", _message(_TEMPLATE)),
}
"""What `kubectl create deployment` can set."""
_KINDS: Final[Mapping[str, _Message]] = {
    "Deployment": {1: _META, 2: _Field("spec", _message(_DEPLOYMENT))},
    "Namespace": {1: _META, 2: _Field("spec", _message({1: _Field("finalizers", _text, "list")}))},
    "ConfigMap": {
        1: _META,
        2: _Field("data", _text, "map"),
        3: _Field("binaryData", _binary, "map"),
        4: _Field("immutable", _flag),
    },
    "Secret": {
        1: _META,
        2: _Field("data", _binary, "map"),
        3: _Field("type", _text),
        4: _Field("stringData", _text, "map"),
        5: _Field("immutable", _flag),
    },
    "ServiceAccount": {
        1: _META,
        2: _Field("secrets", _message(_REFERENCE), "list"),
        3: _Field("imagePullSecrets", _message(_texts("name")), "list"),
        4: _Field("automountServiceAccountToken", _flag),
    },
    "ResourceQuota": {1: _META, 2: _Field("spec", _message(_QUOTA)), 3: _Field("status", _message(_QUOTA_STATUS))},
    "SelfSubjectAccessReview": {1: _META, 2: _Field("spec", _message(_ACCESS))},
    "SelfSubjectRulesReview": {1: _META, 2: _Field("spec", _message(_texts("namespace")))},
    "SelfSubjectReview": {1: _META},
    "DeleteOptions": {
        1: _Field("gracePeriodSeconds", _number),
        2: _Field("preconditions", _message(_texts("uid", "resourceVersion"))),
        3: _Field("orphanDependents", _flag),
        4: _Field("propagationPolicy", _text),
        5: _Field("dryRun", _text, "list"),
    },
}
_TYPE: Final = _texts("apiVersion", "kind")


def decode_protobuf(body: bytes) -> Json | None:
    """Return the object in an envelope, with kind and apiVersion; None for a kind without this form.

    Raises StatusError (400) if the body is not such an envelope.
    """
    try:
        if not body.startswith(_MAGIC):
            raise ValueError("the magic number is missing")  # noqa: TRY301 - one answer for all that is wrong
        envelope = dict(_fields(body[len(_MAGIC) :]))
        head = _object(_raw(envelope.get(1, b"")), _TYPE)
        fields = _KINDS.get(head.get("kind", ""))
        return None if fields is None else {**head, **_object(_raw(envelope.get(2, b"")), fields)}
    except (ValueError, OverflowError, OSError) as why:
        raise bad_request(f"the object provided is no Kubernetes protobuf message: {why}") from None
