"""Write the schemas of the embedded API server's kinds from the models of the `kubernetes` client package.

Run `python -m tools.generate_schemas` at the root of the repository after a new release of that package; the file it
writes is checked in. It holds names and types; texts are read from the package at run time.

A definition is `{"fields": {name: type}, "required": [...]}`. A type is one of str, bool, i32, i64, quantity, time,
micro-time, bytes, int-or-str, any; `#name` refers to a definition, `[T` is a list and `{T` a map of T. After a blank
follow marks: `keep` (an empty value is kept), `drop` (a zero is dropped), `null` (null where absent), `merge=<key>` and
`retain-keys` (strategic merge patch).
"""

from __future__ import annotations

import json
import re
import sys
import types
import typing
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from kubernetes.client import models
from pydantic import BaseModel
from tools.schema_facts import (
    ALWAYS_SENT,
    INT64,
    KEPT_WHEN_EMPTY,
    MERGE_KEYS,
    MICRO_TIMES,
    PACKAGES,
    QUANTITIES,
    RETAIN_KEYS,
    ZERO_DROPPED,
)

_TARGET: Final = Path(__file__).parent.parent / "embedded" / "src" / "volplane_embedded" / "apiserver" / "data"
_ROOTS: Final = (
    "V1ConfigMap",
    "CoreV1Event",
    "V1Namespace",
    "V1Node",
    "V1PersistentVolume",
    "V1PersistentVolumeClaim",
    "V1Pod",
    "V1ResourceQuota",
    "V1Secret",
    "V1ServiceAccount",
    "V1Lease",
    "EventsV1Event",
    "V1CSIDriver",
    "V1CSINode",
    "V1CSIStorageCapacity",
    "V1StorageClass",
    "V1VolumeAttachment",
    "V1VolumeAttributesClass",
    "V1ControllerRevision",
    "V1Deployment",
    "V1ReplicaSet",
    "V1StatefulSet",
    "V1Scale",
    "V1Binding",
    "V1Eviction",
    "V1DeleteOptions",
    "V1Status",
)
_PREFIX: Final = re.compile(r"^(CoreV1|EventsV1|StorageV1|V1)")


def definition_name(model: type[BaseModel]) -> tuple[str, str]:
    """Full and short name of a model's definition."""
    prefix = _PREFIX.match(model.__name__)
    assert prefix is not None, model
    short = model.__name__.removeprefix(prefix[0])
    package = PACKAGES.get(short, "io.k8s.api.core.v1")
    if prefix[0] == "EventsV1":
        package = "io.k8s.api.events.v1"
    return f"{package}.{short}", short


def referred(annotation: Any) -> typing.Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from referred(part)


def reachable() -> list[type[BaseModel]]:
    found: dict[type[BaseModel], None] = {}
    waiting = [getattr(models, name) for name in _ROOTS]
    while waiting:
        model = waiting.pop()
        if model in found:
            continue
        found[model] = None
        for field in model.model_fields.values():
            waiting.extend(referred(field.annotation))
    return sorted(found, key=definition_name)


def holds(facts: typing.Container[str], short: str, field: str) -> bool:
    return f"{short}.{field}" in facts or field in facts


def type_of(annotation: Any, short: str, field: str) -> str:
    """The compact notation of a field's type."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in {typing.Union, types.UnionType}:
        chosen = [part for part in parts if part is not types.NoneType]
        if len(chosen) == 1:
            return type_of(chosen[0], short, field)
        names = {str(part) for part in chosen}
        return "bytes" if any("bytes" in name for name in names) else "int-or-str"
    if origin is typing.Annotated:
        return type_of(parts[0], short, field)
    if origin is list:
        return "[" + type_of(parts[0], short, field)
    if origin is dict:
        return "any" if parts[1] is Any else "{" + type_of(parts[1], short, field)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "#" + definition_name(annotation)[0]
    return scalar(annotation, short, field)


def scalar(annotation: Any, short: str, field: str) -> str:
    if annotation is str:
        return "quantity" if holds(QUANTITIES, short, field) else "str"
    if annotation is bool:
        return "bool"
    if annotation is int:
        return "i64" if holds(INT64, short, field) else "i32"
    if annotation is datetime:
        return "micro-time" if holds(MICRO_TIMES, short, field) else "time"
    if annotation is Any or annotation is object:
        return "any"
    raise TypeError(f"{short}.{field}: {annotation!r} has no notation yet")


def marks(kind: str, short: str, field: str, *, required: bool) -> list[str]:
    found = []
    empty_text = kind == "str" and (required or holds(KEPT_WHEN_EMPTY, short, field))
    if empty_text or (required and kind[0] in "[{"):
        found.append("keep")
    zero = kind in {"bool", "i32", "i64"} and holds(ZERO_DROPPED, short, field)
    if zero and not required and not holds(KEPT_WHEN_EMPTY, short, field):
        found.append("drop")
    path = f"{short}.{field}"
    if path in ALWAYS_SENT:
        found.append("null")
    if path in MERGE_KEYS:
        found.append(f"merge={MERGE_KEYS[path]}")
    if path in RETAIN_KEYS:
        found.append("retain-keys")
    return found


def main() -> None:
    schemas: dict[str, Any] = {}
    for model in reachable():
        name, short = definition_name(model)
        fields, required = {}, []
        for python_name, field in model.model_fields.items():
            json_name = field.serialization_alias or python_name
            kind = type_of(field.annotation, short, json_name)
            fields[json_name] = " ".join([kind, *marks(kind, short, json_name, required=field.is_required())])
            if field.is_required():
                required.append(json_name)
        schemas[name] = {"fields": dict(sorted(fields.items()))}
        if required:
            schemas[name]["required"] = sorted(required)
    _TARGET.mkdir(exist_ok=True)
    # One definition a line: small, and a diff shows what changed.
    lines = [f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}" for key, value in schemas.items()]
    (_TARGET / "schemas.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"schemas.json: {len(schemas)} definitions", file=sys.stderr)


if __name__ == "__main__":
    main()
