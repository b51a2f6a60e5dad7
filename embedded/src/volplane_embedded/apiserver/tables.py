"""`meta.k8s.io/v1` Tables: what `kubectl get` prints."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from volplane_embedded.apiserver.resources import Column, Json, Resource, Since


def table(
    resource: Resource,
    objects: Sequence[Json],
    list_metadata: Json,
    include_object: str = "Metadata",
    *,
    now: datetime,
) -> Json:
    """Return the Table of some objects of a resource, which are in the shape the resource shows.

    `include_object` is the query parameter includeObject: each row carries "None" of its object, its "Metadata", or the
    "Object" itself.

    Ages are counted to `now`. The caller may add or drop `columnDefinitions` (watches send
    them once).
    """
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_metadata,
        "columnDefinitions": [_definition(column) for column in resource.columns],
        "rows": [_row(resource, obj, include_object, now) for obj in objects],
    }


def _definition(column: Column) -> Json:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    }


def _row(resource: Resource, obj: Json, include_object: str, now: datetime) -> Json:
    stored = obj if resource.to_stored is None else resource.to_stored(obj)
    row: Json = {"cells": [_cell(column.cell(stored), now) for column in resource.columns]}
    if resource.row_conditions is not None and (conditions := resource.row_conditions(stored)):
        row["conditions"] = conditions
    if include_object == "Object":
        row["object"] = {"kind": resource.kind, "apiVersion": resource.api_version, **obj}
    elif include_object != "None":
        row["object"] = {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": obj.get("metadata", {}),
        }
    return row


def _cell(value: Any, now: datetime) -> Any:
    if not isinstance(value, Since):
        return value
    if not value.time:
        return value.absent
    try:
        then = datetime.fromisoformat(value.time)
    except ValueError:
        return value.absent
    return value.layout.format(human_duration((now - then).total_seconds()))


def human_duration(seconds: float) -> str:
    """Return a duration in two units at most, as kubectl shows ages (`k8s.io/apimachinery/pkg/util/duration`)."""
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    if total < 0:
        return "0s"
    minutes, hours = total // 60, total // 3600
    if total < 120:
        return f"{total}s"
    if minutes < 10:
        return _two(minutes, "m", total % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    return _days(hours)


def _days(hours: int) -> str:
    days = hours // 24
    if hours < 192:
        return _two(days, "d", hours % 24, "h")
    if days < 365 * 2:
        return f"{days}d"
    if days < 365 * 8:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"
