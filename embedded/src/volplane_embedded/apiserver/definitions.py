"""The typed schemas of the served kinds, read from the data file that `tools/generate_schemas.py` writes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import msgspec

from volplane_embedded.apiserver.resources import Resource

_PACKAGES: Final[Mapping[str, str]] = {
    "": "io.k8s.api.core.v1",
    "apps": "io.k8s.api.apps.v1",
    "autoscaling": "io.k8s.api.autoscaling.v1",
    "coordination.k8s.io": "io.k8s.api.coordination.v1",
    "events.k8s.io": "io.k8s.api.events.v1",
    "policy": "io.k8s.api.policy.v1",
    "storage.k8s.io": "io.k8s.api.storage.v1",
}
_ZERO: Final[Mapping[str, Any]] = {
    "bool": False,
    "i32": 0,
    "i64": 0,
    "int-or-str": 0,
    "micro-time": None,
    "str": "",
}
_GO_SCALARS: Final[Mapping[str, str]] = {
    "any": "interface {}",
    "bool": "bool",
    "bytes": "[]uint8",
    "i32": "int32",
    "i64": "int64",
    "int-or-str": "intstr.IntOrString",
    "micro-time": "v1.MicroTime",
    "quantity": "resource.Quantity",
    "str": "string",
    "time": "v1.Time",
}


@dataclass(frozen=True, slots=True)
class Type:
    """A JSON type: a scalar, a list or map of `element`, or an object of the definition `refers`."""

    shape: str
    """One of scalar, list, map, object."""
    scalar: str = ""
    element: Type | None = None
    refers: str = ""

    def go(self) -> str:
        """Return the name of the Go type, for messages about wrong types."""
        if self.shape == "object":
            return f"v1.{self.refers.rpartition('.')[2]}"
        if self.element is not None:
            return f"{'[]' if self.shape == 'list' else 'map[string]'}{self.element.go()}"
        return _GO_SCALARS[self.scalar]


@dataclass(frozen=True, slots=True)
class Field:
    type: Type
    keeps_empty: bool
    """Whether an empty text, list or map is stored, not treated as absent."""
    drops_zero: bool
    """Whether 0 and false are treated as absent."""
    merge_key: str | None
    """Merge key of a list in strategic merge patches ("" = a list of scalars). None: patches replace the list."""
    retain_keys: bool
    required: bool
    nullable: bool
    """Whether an absent value is sent as null."""

    @property
    def absent(self) -> tuple[Any, ...]:
        """What stands for an absent value, if it is sent at all: (value,) or ()."""
        if self.nullable or (self.required and self.type.shape in {"list", "map"}):
            return (None,)
        if not self.required or self.type.shape == "object" or self.type.scalar == "any":
            return ()
        return (_ZERO[self.type.scalar],)


@dataclass(frozen=True, slots=True)
class Definition:
    name: str
    fields: Mapping[str, Field]

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]


@functools.cache
def _schemas() -> Mapping[str, Any]:
    data = resources.files("volplane_embedded.apiserver").joinpath("data", "schemas.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, Any])


def names() -> tuple[str, ...]:
    """Full names of all definitions."""
    return tuple(_schemas())


@functools.cache
def definition(name: str) -> Definition:
    """Return the definition of that full name. Raises KeyError."""
    stored = _schemas()[name]
    required = frozenset(stored.get("required", ()))
    fields = {key: _field(notation, required=key in required) for key, notation in stored["fields"].items()}
    return Definition(name, fields)


@functools.cache
def definition_of(group: str, kind: str) -> Definition:
    """Return the definition of a served kind. Raises KeyError."""
    return definition(f"{_PACKAGES[group]}.{kind}")


def name_of(resource: Resource) -> str:
    """Full name of the definition of a resource's objects."""
    if resource.schema is not None:
        return ".".join((*reversed(resource.group.split(".")), resource.version, resource.kind))
    return f"{_PACKAGES[resource.group]}.{resource.kind}"


def _field(notation: str, *, required: bool) -> Field:
    kind, *marks = notation.split(" ")
    merge_key = next((mark.removeprefix("merge=") for mark in marks if mark.startswith("merge=")), None)
    return Field(
        _type(kind), "keep" in marks, "drop" in marks, merge_key, "retain-keys" in marks, required, "null" in marks
    )


@functools.cache
def _type(notation: str) -> Type:
    if notation[0] == "#":
        return Type("object", refers=notation[1:])
    if notation[0] in "[{":
        return Type("list" if notation[0] == "[" else "map", element=_type(notation[1:]))
    return Type("scalar", notation)
