"""Merge patch (RFC 7386) and JSON patch (RFC 6902). Strategic merge patches need schemas: see `schema`."""

from __future__ import annotations

import copy
from typing import Any, Final

import msgspec

from volplane_embedded.apiserver.errors import StatusError, bad_request
from volplane_embedded.apiserver.resources import Json

_MAX_OPERATIONS = 10_000
_MAX_COPIED_BYTES = 3 * 1024 * 1024
"""What all copies of a patch together may add, as in the stock server."""

_encode = msgspec.json.Encoder().encode


def merge_patch(target: Any, patch: Any) -> Any:
    """Merge `patch` into `target`; null removes. Changes `target` in place where it is an object."""
    if not isinstance(patch, dict):
        return patch
    if not isinstance(target, dict):
        target = {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            target[key] = merge_patch(target.get(key), value)
        else:
            target[key] = value
    return target


def json_patch(target: Json, operations: object) -> Json:
    """Apply the operations to `target`, which is changed in place.

    Raises StatusError: 400 for what is no JSON patch, 422 when an operation cannot be done or a test fails.
    """
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise bad_request("error decoding JSON patch: a JSON patch is a list of operations")
    if len(operations) > _MAX_OPERATIONS:
        message = f"The allowed maximum operations in a JSON patch is {_MAX_OPERATIONS}, got {len(operations)}"
        raise StatusError(413, "RequestEntityTooLarge", message)
    document: Any = target
    copied = 0
    for operation in operations:
        if operation.get("op") == "copy":
            copied += len(_encode(_lookup(document, _pointer(operation.get("from")))))
            if copied > _MAX_COPIED_BYTES:
                why = f"the accumulated size increase of copy is {copied}, exceeding the limit {_MAX_COPIED_BYTES}"
                raise _refused(f"unable to complete the copy, {why}")
        document = _apply(document, operation)
    if not isinstance(document, dict):
        raise _refused("the patch replaces the object by something that is none")
    return document


def _refused(why: str) -> StatusError:
    return StatusError(422, "Invalid", f"the server rejected our request due to an error in our request: {why}")


def _apply(document: Any, operation: Json) -> Any:
    kind = operation.get("op")
    path = _pointer(operation.get("path"))
    match kind:
        case "add":
            return _add(document, path, copy.deepcopy(operation.get("value")))
        case "replace":
            return _set(document, path, copy.deepcopy(operation.get("value")))
        case "remove":
            return _remove(document, path)
        case "test":
            if not _same(_lookup(document, path, absent_is_null=True), operation.get("value")):
                raise _refused(f"testing value {operation['path']} failed")
            return document
        case "move":
            source = _pointer(operation.get("from"))
            value = _lookup(document, source)
            return _add(_remove(document, source), path, value)
        case "copy":
            return _add(document, path, copy.deepcopy(_lookup(document, _pointer(operation.get("from")))))
    raise _refused(f'unexpected kind: "{kind}"')


def _pointer(text: object) -> list[str]:
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise _refused(f"{text!r} is not a JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


_INDEX_DIGITS: Final = 9
"""More than any list has elements, and few enough to be read at once."""


def _index(part: str, length: int) -> int:
    """Position in a list; RFC 6902 knows no negative ones."""
    short = part.isascii() and part.isdigit() and len(part) <= _INDEX_DIGITS
    if not short or (len(part) > 1 and part[0] == "0") or int(part) >= length:
        raise _refused(f"invalid array index {part!r}")
    return int(part)


def _child(document: Any, part: str) -> Any:
    if isinstance(document, dict) and part in document:
        return document[part]
    if isinstance(document, list):
        return document[_index(part, len(document))]
    raise _refused(f"path element {part!r} does not exist")


def _lookup(document: Any, path: list[str], *, absent_is_null: bool = False) -> Any:
    for position, part in enumerate(path):
        last = position == len(path) - 1
        if absent_is_null and last and isinstance(document, dict) and part not in document:
            return None
        document = _child(document, part)
    return document


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _lookup(document, path[:-1])
    if isinstance(parent, list):
        position = len(parent) if path[-1] == "-" else _index(path[-1], len(parent) + 1)
        parent.insert(position, value)
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise _refused(f"nothing can be added to {'/'.join(path[:-1])!r}")
    return document


def _set(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _lookup(document, path[:-1])
    if isinstance(parent, list):
        parent[_index(path[-1], len(parent))] = value
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise _refused(f"nothing can be replaced in {'/'.join(path[:-1])!r}")
    return document


def _remove(document: Any, path: list[str]) -> Any:
    if not path:
        raise _refused("the whole object cannot be removed")
    parent = _lookup(document, path[:-1])
    _child(parent, path[-1])
    if isinstance(parent, list):
        del parent[_index(path[-1], len(parent))]
    else:
        del parent[path[-1]]
    return document


def _same(one: Any, other: Any) -> bool:
    """Equality of JSON values: Python's True is not 1 there."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
