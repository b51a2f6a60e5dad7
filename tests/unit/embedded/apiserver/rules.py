"""How tests of a kind ask its strategy: what is refused, what an object becomes."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

from volplane_embedded.apiserver.kinds import resources
from volplane_embedded.apiserver.resources import Resource
from volplane_embedded.apiserver.schema import check

Json = dict[str, Any]

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
STAMP = "2026-01-01T12:00:00Z"
_RESOURCES = resources(lambda: NOW)


def kind(name: str, group: str | None = None) -> Resource:
    """The resource of a kind, whose strategy thinks it is NOW."""
    return next(found for found in _RESOURCES if found.kind == name and group in {None, found.group})


def begun(resource: Resource, obj: Json) -> Json:
    """The object as it is before validation of a create."""
    new = {"metadata": {"name": "a"}, **copy.deepcopy(obj)}
    if resource.namespaced:
        new["metadata"] = {"namespace": "default", **new["metadata"]}
    assert check(resource, new).refusal(resource) == ""
    if resource.to_stored is not None:
        new = resource.to_stored(new)
    resource.strategy.default(new)
    resource.strategy.prepare_create(new)
    return new


def refused(resource: Resource, obj: Json) -> list[tuple[str, str]]:
    """Field and reason of every cause to refuse the creation of an object."""
    return [
        (cause.field, cause.reason.removeprefix("FieldValue"))
        for cause in resource.strategy.validate_create(begun(resource, obj))
    ]


def changed(resource: Resource, old: Json, new: Json, subresource: str = "") -> Json:
    """What is written when a stored object is replaced."""
    after = copy.deepcopy(new)
    assert check(resource, after).refusal(resource) == ""
    resource.strategy.default(after)
    resource.strategy.prepare_update(after, old, subresource)
    return after


def refused_change(resource: Resource, old: Json, new: Json, subresource: str = "") -> list[tuple[str, str]]:
    """Field and reason of every cause to refuse a change."""
    after = changed(resource, old, new, subresource)
    causes = resource.strategy.validate_update(after, old, subresource)
    return [(cause.field, cause.reason.removeprefix("FieldValue")) for cause in causes]


def merge(obj: Json, patch: Json) -> Json:
    """A copy of an object with some fields exchanged; None removes."""
    result = copy.deepcopy(obj)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merge(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result
