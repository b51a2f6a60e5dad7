"""Whether objects have only fields of the Kubernetes API, after the models of the official client."""

from __future__ import annotations

import re
from typing import Any

import kubernetes.client

__all__ = ["unknown_fields", "unknown_fields_of_object"]


def unknown_fields_of_object(body: dict[str, Any]) -> list[str]:
    """As `unknown_fields`, of an object of a kind that Kubernetes itself has."""
    group, _, version = body["apiVersion"].rpartition("/")
    return unknown_fields(body, f"{version.title()}{body['kind']}", f"{group}/{body['kind']}")


def unknown_fields(value: Any, kind: str, where: str) -> list[str]:
    """Fields that a type of the Kubernetes API does not have, or whose value is of another type."""
    if (of := re.fullmatch(r"[Ll]ist\[(.+)\]", kind)) is not None:
        if not isinstance(value, list):
            return [f"{where}: no list"]
        return [found for n, each in enumerate(value) for found in unknown_fields(each, of[1], f"{where}[{n}]")]
    if (of := re.fullmatch(r"[Dd]ict\[str, (.+)\]", kind)) is not None:
        if not isinstance(value, dict):
            return [f"{where}: no map"]
        return [found for key, each in value.items() for found in unknown_fields(each, of[1], f"{where}.{key}")]
    if kind in (plain := {"str": str, "int": int, "bool": bool}):
        return [] if type(value) is plain[kind] else [f"{where}: {value!r} is no {kind}"]
    if kind == "object":  # IntOrString
        return [] if isinstance(value, int | str) else [f"{where}: {value!r}"]
    model = getattr(kubernetes.client, kind)
    fields = {name: model.openapi_types[attribute] for attribute, name in model.attribute_map.items()}
    found = [f"{where}.{name}: unknown" for name in value if name not in fields]
    for name, each in value.items():
        if name in fields:
            found += unknown_fields(each, fields[name], f"{where}.{name}")
    return found
