"""CustomResourceDefinitions, and the resources that they define.

Of several versions none is converted. What this server would not do of a schema is refused where its definition is
created. Sources: `pkg/registry/customresource` and `pkg/registry/customresourcedefinition` of
k8s.io/apiextensions-apiserver.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from volplane_embedded.apiserver import custom_schema, names, object_meta
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.printer_columns import NAME, path
from volplane_embedded.apiserver.resources import (
    DEFINITIONS_GROUP,
    Clock,
    Column,
    Json,
    Resource,
    Since,
    Strategy,
)
from volplane_embedded.apiserver.scalars import format_time

CLEANUP: Final = "customresourcecleanup.apiextensions.k8s.io"
"""The finalizer of a definition whose objects are not deleted yet."""
_FREE_FORM: Final[Json] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_VERSION: Final = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?", re.ASCII)
_DEFINITION: Final[Json] = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            **_FREE_FORM,
            "required": ["group", "names", "scope", "versions"],
            "properties": {
                "group": {"type": "string"},
                "scope": {"type": "string", "enum": ["Cluster", "Namespaced"]},
                "names": {
                    **_FREE_FORM,
                    "required": ["plural", "kind"],
                    "properties": {"plural": {"type": "string"}, "kind": {"type": "string"}},
                },
                "versions": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        **_FREE_FORM,
                        "required": ["name", "served", "storage"],
                        "properties": {
                            "name": {"type": "string"},
                            "served": {"type": "boolean"},
                            "schema": {**_FREE_FORM, "properties": {"openAPIV3Schema": _FREE_FORM}},
                        },
                    },
                },
            },
        },
        "status": _FREE_FORM,
    },
}


class CustomStrategy(Strategy):
    """The rules of a custom kind."""

    def __init__(self, schema: Json, *, has_status: bool) -> None:
        self._schema = schema
        self._has_status = has_status

    def default(self, obj: Json) -> None:
        custom_schema.default(obj, self._schema)

    def prepare_create(self, obj: Json) -> None:
        if self._has_status:
            obj.pop("status", None)
        obj["metadata"]["generation"] = 1

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes = list(object_meta.validate(obj["metadata"], names.subdomain))
        custom_schema.validate(self._schema, obj, None, "", causes)
        return causes

    def prepare_update(self, new: Json, old: Json, subresource: str) -> None:
        status = new.get("status") if subresource == "status" else old.get("status")
        if subresource == "status":
            meta = new["metadata"]
            new.clear()
            new.update(old, metadata=meta)
            meta.clear()
            meta.update(old["metadata"])
        if self._has_status:
            new.pop("status", None)
            if status is not None:
                new["status"] = status
        if not subresource and {**new, "metadata": None} != {**old, "metadata": None}:
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes = list(object_meta.validate_update(new["metadata"], old["metadata"]))
        custom_schema.validate(self._schema, new, old, subresource, causes)
        return causes


class DefinitionStrategy(CustomStrategy):
    """The rules of CustomResourceDefinition, as far as this server needs them."""

    def __init__(self, now: Clock) -> None:
        super().__init__(_DEFINITION, has_status=True)
        self._now = now

    def default(self, obj: Json) -> None:
        spec = obj.get("spec")
        if isinstance(spec, dict) and isinstance(named := spec.get("names"), dict) and named.get("kind"):
            named.setdefault("singular", str(named["kind"]).lower())
            named.setdefault("listKind", f"{named['kind']}List")
            spec.setdefault("conversion", {"strategy": "None"})

    def prepare_create(self, obj: Json) -> None:
        super().prepare_create(obj)
        meta, spec = obj["metadata"], obj.get("spec") or {}
        meta["finalizers"] = [*(each for each in meta.get("finalizers", ()) if each != CLEANUP), CLEANUP]
        said = {"NamesAccepted": ("NoConflicts", "no conflicts found"), "Established": ("InitialNamesAccepted", "")}
        since = format_time(self._now())
        obj["status"] = {
            "acceptedNames": spec.get("names"),
            "storedVersions": [each["name"] for each in spec.get("versions") or () if each.get("storage")],
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": since, "reason": reason, "message": message}
                for kind, (reason, message) in said.items()
            ],
        }

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        return list(super().validate_create(obj)) or _of_definition(obj)

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        return list(super().validate_update(new, old, subresource)) or _of_definition(new)


def _of_definition(obj: Json) -> list[Cause]:
    spec, name = obj["spec"], obj["metadata"]["name"]
    wanted = f"{spec['names']['plural']}.{spec['group']}"
    if name != wanted:
        return [Cause.invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group')]
    causes: list[Cause] = []
    for index, version in enumerate(spec["versions"]):
        where = f"spec.versions[{index}].schema.openAPIV3Schema"
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if not schema:
            causes.append(Cause.required(where, "schemas are required"))
        elif version.get("served"):
            causes += custom_schema.faults(schema, where)
    return causes


def resource(now: Clock) -> Resource:
    """Return the resource of CustomResourceDefinitions."""
    created = Column("Created At", "When it was created.", path("metadata", "creationTimestamp"), type="date")
    return Resource(
        group=DEFINITIONS_GROUP,
        version="v1",
        plural="customresourcedefinitions",
        kind="CustomResourceDefinition",
        singular="customresourcedefinition",
        namespaced=False,
        strategy=DefinitionStrategy(now),
        columns=(NAME, created),
        short_names=("crd", "crds"),
        categories=("api-extensions",),
        subresources=("status",),
        unconditional_update=False,
        schema=_DEFINITION,
    )


# --- what a definition defines ------------------------------------------------------------------------------------


def _rank(version: Json) -> tuple[int, int, int]:
    """Return what versions are sorted by: stable ones are above beta and alpha ones, others below all of them."""
    found = _VERSION.fullmatch(version["name"])
    if found is None:
        return (-1, 0, 0)
    return ({None: 2, "beta": 1, "alpha": 0}[found[2]], int(found[1]), int(found[3] or 0))


@functools.lru_cache(maxsize=64)
def defined(encoded: bytes) -> tuple[Resource, ...]:
    """Return the resources that the spec of a definition defines: one for each served version, the newest first."""
    spec: Json = msgspec.json.decode(encoded)
    served = [each for each in spec["versions"] if each.get("served")]
    return tuple(_resource(spec, version) for version in sorted(served, key=_rank, reverse=True))


def _resource(spec: Json, version: Json) -> Resource:
    named, schema = spec["names"], version["schema"]["openAPIV3Schema"]
    has_status = "status" in (version.get("subresources") or {})
    shown = version.get("additionalPrinterColumns") or [
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
    ]
    return Resource(
        group=spec["group"],
        version=version["name"],
        plural=named["plural"],
        kind=named["kind"],
        singular=named["singular"],
        namespaced=spec["scope"] == "Namespaced",
        strategy=CustomStrategy(schema, has_status=has_status),
        columns=(NAME, *map(_column, shown)),
        short_names=tuple(named.get("shortNames") or ()),
        categories=tuple(named.get("categories") or ()),
        subresources=("status",) if has_status else (),
        fields={
            each["jsonPath"].removeprefix("."): _selected(each["jsonPath"])
            for each in version.get("selectableFields") or ()
        },
        returns_deleted=False,
        unconditional_update=False,
        schema=schema,
    )


def _read(json_path: str) -> Callable[[Json], Any]:
    return path(*json_path.removeprefix(".").split("."), absent=None)


def _selected(json_path: str) -> Callable[[Json], str]:
    read = _read(json_path)
    return lambda obj: "" if (found := read(obj)) is None else _as_text(found)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _column(shown: Json) -> Column:
    read, kind = _read(shown["jsonPath"]), shown["type"]

    def cell(obj: Json) -> Any:
        found = read(obj)
        match kind:
            case "date":
                return Since(found.upper(), absent="<invalid>") if isinstance(found, str) else None
            case "string":
                return None if found is None else _as_text(found)
            case "boolean":
                return found if isinstance(found, bool) else None
        return found if isinstance(found, int | float) and not isinstance(found, bool) else None

    description = shown.get("description") or f"Custom resource definition column (in JSONPath format): {read}"
    return Column(
        shown["name"], description, cell, kind, format=shown.get("format", ""), priority=shown.get("priority", 0)
    )
