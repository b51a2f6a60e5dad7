"""Strategic merge patches (`k8s.io/apimachinery/pkg/util/strategicpatch`)."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any, Final

from volplane_embedded.apiserver.definitions import Definition, Field, definition, definition_of
from volplane_embedded.apiserver.errors import StatusError, bad_request
from volplane_embedded.apiserver.resources import Json, Resource

_PATCH: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_ORDER: Final = "$setElementOrder/"
_DELETE: Final = "$deleteFromPrimitiveList/"


def strategic_merge(resource: Resource, original: Json, patch: Json) -> Json:
    """Return `original` with `patch` merged in; neither is changed.

    Raises StatusError: 400 for a malformed directive, 422 for one that cannot be applied to the object.
    """
    shape = definition_of(resource.group, resource.kind) if resource.schema is None else None
    return _merge_map(copy.deepcopy(original), copy.deepcopy(patch), shape)


def _unprocessable(why: str) -> StatusError:
    return StatusError(422, "Invalid", f"the patch cannot be applied: {why}")


def _merge_map(original: Json, patch: Json, shape: Definition | None) -> Json:
    if _PATCH in patch:
        return _directed(patch)
    _retain_keys(original, patch)
    _merge_ordered(original, patch, shape)
    for key, value in patch.items():
        deletes = key.startswith(_DELETE)
        name = key.removeprefix(_DELETE) if deletes else key
        if value is None:
            original.pop(name, None)
            continue
        if name not in original or type(original[name]) is not type(value):
            if not deletes:
                original[name] = _plain(value)
            continue
        field = shape.fields.get(name) if shape is not None else None
        original[name] = _merge_value(original[name], value, field, deletes=deletes, name=name)
    return original


def _directed(patch: Json) -> Json:
    directive = patch.pop(_PATCH)
    if directive == "replace":
        replaced: Json = _plain(patch)
        return replaced
    if directive == "delete":
        return {}
    raise StatusError(500, "", f"unknown patch type: {directive} in map")


def _retain_keys(original: Json, patch: Json) -> None:
    kept = patch.pop(_RETAIN, None)
    if kept is None:
        return
    if not isinstance(kept, list):
        raise bad_request("invalid patch format of retainKeys: it is no list")
    surplus = [key for key in patch if not key.startswith("$") and patch[key] is not None and key not in kept]
    if surplus:
        raise bad_request(f"invalid patch format of retainKeys: {surplus} is not in it")
    for key in [key for key in original if key not in kept]:
        del original[key]


def _merge_value(original: Any, patch: Any, field: Field | None, *, deletes: bool, name: str) -> Any:
    if isinstance(patch, dict):
        return _merge_map(original, patch, _inner(field))
    if isinstance(patch, list):
        if deletes:
            gone = {_identity(item, "") for item in patch}
            return [item for item in original if _identity(item, "") not in gone]
        if field is None or field.merge_key is None:
            return _plain(patch)
        return _merge_list(original, patch, field, name)
    return patch


def _inner(field: Field | None) -> Definition | None:
    """Return the definition of an object field, or of a list's elements."""
    if field is None:
        return None
    kind = field.type.element if field.type.shape == "list" else field.type
    return definition(kind.refers) if kind is not None and kind.refers else None


def _merge_list(original: list[Any], patch: list[Any], field: Field, name: str) -> list[Any]:
    key = field.merge_key or ""
    if not key:
        had = _places(original, key)
        merged = [*original, *{place: item for item in patch if (place := _identity(item, key)) not in had}.values()]
        return _arranged(merged, patch, original, key)
    original, patch = _apply_specials(original, patch, key, name)
    merged = list(original)
    places = _places(merged, key)
    shape = _inner(field)
    for item in patch:
        wanted = _hashable(_key_of(item, key, name))
        index = places.get(wanted)
        if index is None:
            places[wanted] = len(merged)
            merged.append(_plain(item))
        else:
            merged[index] = _merge_map(merged[index], item, shape)
    return _arranged(merged, patch, original, key)


def _key_of(item: Any, key: str, name: str) -> Any:
    if not isinstance(item, dict) or item.get(key) is None:
        raise _unprocessable(f"map: {item} does not contain declared merge key: {key} (in {name})")
    return item[key]


def _apply_specials(original: list[Any], patch: list[Any], key: str, name: str) -> tuple[list[Any], list[Any]]:
    """Apply `$patch: delete` and `$patch: replace` elements. Returns the rest of both lists."""
    plain, deleted, replaces = [], set(), False
    for item in patch:
        directive = item.get(_PATCH) if isinstance(item, dict) else None
        if directive is None:
            plain.append(item)
        elif directive == "delete":
            deleted.add(_hashable(_key_of(item, key, name)))
        elif directive == "replace":
            replaces = True
        else:
            raise _unprocessable(f"unknown patch type [{directive}] in list {name}")
    if replaces:
        return _plain(plain), []
    return [other for other in original if _identity(other, key) not in deleted], plain


def _merge_ordered(original: Json, patch: Json, shape: Definition | None) -> None:
    """Merge the lists that have a $setElementOrder in the patch, and remove them from it."""
    for directive in [key for key in patch if key.startswith(_ORDER)]:
        order, name = patch.pop(directive), directive.removeprefix(_ORDER)
        before, change = original.get(name), patch.get(name)
        if not isinstance(order, list) or not isinstance(before or [], list) or not isinstance(change or [], list):
            raise bad_request("invalid patch format of setElementOrder list")
        if before is None and change is None:
            continue
        field = shape.fields.get(name) if shape is not None else None
        key = (field.merge_key if field is not None else None) or ""
        patch.pop(name, None)
        if change is None:
            merged = before or []
        elif before is None:
            merged = _without_specials(_plain(change))
        else:
            merged = _merge_value(before, change, field, deletes=False, name=name)
        original[name] = _arranged(merged, order, before or [], key)


def _without_specials(items: list[Any]) -> list[Any]:
    return [item for item in items if not isinstance(item, dict) or item]


def _arranged(merged: list[Any], order: list[Any], before: list[Any], key: str) -> list[Any]:
    """Order a merged list: elements of the patch in its order, merged with the others by their former positions."""
    wanted, had = _places(order, key), _places(before, key)
    named = sorted((item for item in merged if _identity(item, key) in wanted), key=lambda e: wanted[_identity(e, key)])
    others = [item for item in merged if _identity(item, key) not in wanted]
    others.sort(key=lambda item: had.get(_identity(item, key), len(had)))
    woven: list[Any] = []
    rest, next_named = deque(others), deque(named)
    while next_named and rest:
        left, right = had.get(_identity(rest[0], key)), had.get(_identity(next_named[0], key))
        first = rest if left is not None and right is not None and left < right else next_named
        woven.append(first.popleft())
    return [*woven, *next_named, *rest]


def _identity(item: Any, key: str) -> Any:
    return _hashable(item.get(key) if key and isinstance(item, dict) else item)


def _hashable(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool)) else repr(value)


def _places(items: list[Any], key: str) -> dict[Any, int]:
    places: dict[Any, int] = {}
    for index, item in enumerate(items):
        places.setdefault(_identity(item, key), index)
    return places


def _plain(value: Any) -> Any:
    """Return the value of a patch without its directives and nulls."""
    if isinstance(value, dict):
        if value.get(_PATCH) == "delete":
            return {}
        return {key: _plain(item) for key, item in value.items() if item is not None and not key.startswith("$")}
    if isinstance(value, list):
        return [
            _plain(item) for item in value if not (isinstance(item, dict) and item.get(_PATCH) in ("delete", "replace"))
        ]
    return value
