"""OpenAPI documents: /openapi/v3 (kubectl validates, explains and patches by it) and /openapi/v2."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from volplane_embedded.apiserver.definitions import Field, Type, definition, name_of
from volplane_embedded.apiserver.descriptions import descriptions_of
from volplane_embedded.apiserver.discovery import KUBERNETES_MINOR
from volplane_embedded.apiserver.errors import StatusError
from volplane_embedded.apiserver.openapi_protobuf import PROTOBUF, encode_document, wants_protobuf
from volplane_embedded.apiserver.resources import Json, Resource

_PATCHES: Final = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)
_WRITING: Final[Mapping[str, str]] = {
    "dryRun": "All: everything is done but the write itself.",
    "fieldManager": "A name for who makes the change.",
    "fieldValidation": "Ignore, Warn or Strict: what becomes of unknown and duplicate fields.",
}
_LISTING: Final[Mapping[str, str]] = {
    "allowWatchBookmarks": "Whether a watch may send bookmarks.",
    "continue": "Where the list goes on, from the answer before.",
    "fieldSelector": "Restricts the objects by their fields.",
    "labelSelector": "Restricts the objects by their labels.",
    "limit": "The most objects of one answer.",
    "resourceVersion": "The version to list at or to watch from.",
    "resourceVersionMatch": "How resourceVersion is meant: Exact or NotOlderThan.",
    "sendInitialEvents": "Whether a watch begins with the objects there are.",
    "timeoutSeconds": "How long a watch lasts.",
    "watch": "Whether changes are sent as they happen.",
}
_DELETING: Final[Mapping[str, str]] = {
    "dryRun": _WRITING["dryRun"],
    "gracePeriodSeconds": "Seconds until the object is removed.",
    "propagationPolicy": "What becomes of dependents.",
}
_STATUS: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.Status"


def _paths(resources: Iterable[Resource], prefix: str) -> Json:
    """Return the path items of the resources.

    prefix: of references to schemas; it determines the version of OpenAPI.
    """
    found: Json = {}
    for resource in resources:
        found.update(_paths_of(resource, prefix))
    return found


def _paths_of(resource: Resource, prefix: str) -> Iterator[tuple[str, Json]]:
    scope = "/namespaces/{namespace}" if resource.namespaced else ""
    collection = f"{resource.prefix}{scope}/{resource.plural}"
    inside = ("namespace",) if resource.namespaced else ()
    reference = {"$ref": prefix + name_of(resource)}
    if resource.namespaced:
        yield f"{resource.prefix}/{resource.plural}", {"get": _operation(resource, "list", _LISTING, (), prefix)}
    yield (
        collection,
        {
            "get": _operation(resource, "list", _LISTING, inside, prefix),
            "post": _operation(resource, "post", _WRITING, inside, prefix, body=reference, answer=reference),
            "delete": _operation(resource, "deletecollection", {**_LISTING, **_DELETING}, inside, prefix),
        },
    )
    named = (*inside, "name")
    changing = {
        "get": _operation(resource, "get", {}, named, prefix, answer=reference),
        "put": _operation(resource, "put", _WRITING, named, prefix, body=reference, answer=reference),
        "patch": _operation(
            resource, "patch", {**_WRITING, "force": "Unused."}, named, prefix, body={}, answer=reference
        ),
    }
    deleting = _operation(resource, "delete", _DELETING, named, prefix, answer={"$ref": prefix + _STATUS})
    yield f"{collection}/{{name}}", {**changing, "delete": deleting}
    if "status" in resource.subresources:
        yield f"{collection}/{{name}}/status", changing


def _operation(
    resource: Resource,
    action: str,
    query: Mapping[str, str],
    within: Iterable[str],
    prefix: str,
    *,
    body: Json | None = None,
    answer: Json | None = None,
) -> Json:
    third = prefix.startswith("#/components")
    parameters = [_parameter(name, "path", f"{name} of the object", third=third) for name in within]
    parameters.extend(_parameter(name, "query", text, third=third) for name, text in query.items())
    operation: Json = {
        "parameters": parameters,
        "responses": {"200": _response(answer, third=third)},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {
            "group": resource.group,
            "kind": resource.kind,
            "version": resource.version,
        },
    }
    if body is None:
        return operation
    patches = _PATCHES if resource.schema is None else _PATCHES[:2]
    types = patches if action == "patch" else ("application/json",)
    schema = body or {"type": "object"}
    if third:
        operation["requestBody"] = {"required": True, "content": {kind: {"schema": schema} for kind in types}}
    else:
        operation["consumes"] = list(types)
        operation["parameters"].append({"name": "body", "in": "body", "required": True, "schema": schema})
    return operation


def _parameter(name: str, place: str, text: str, *, third: bool) -> Json:
    kind: Json = {"type": "string", "uniqueItems": True}
    parameter: Json = {"name": name, "in": place, "description": text}
    if place == "path":
        parameter["required"] = True
    return {**parameter, "schema": kind} if third else {**parameter, **kind}


def _response(answer: Json | None, *, third: bool) -> Json:
    response: Json = {"description": "OK"}
    if answer is not None:
        if third:
            response["content"] = {"application/json": {"schema": answer}}
        else:
            response["schema"] = answer
    return response


_JSON: Final = "application/json"
_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
_SHARED: Final = (f"{_META}.DeleteOptions", f"{_META}.Status", f"{_META}.ListMeta")
_V3: Final = "#/components/schemas/"
_V2: Final = "#/definitions/"
_INFO: Final = {"title": "Kubernetes", "version": f"v1.{KUBERNETES_MINOR}.0"}

_INLINE: Final[Mapping[str, Json]] = {
    "bool": {"type": "boolean"},
    "bytes": {"type": "string", "format": "byte"},
    "i32": {"type": "integer", "format": "int32"},
    "i64": {"type": "integer", "format": "int64"},
    "str": {"type": "string"},
}
_NAMED: Final[Mapping[str, tuple[str, Json, Json]]] = {
    "any": (f"{_META}.FieldsV1", {"type": "object"}, {"type": "object"}),
    "int-or-str": (
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
        {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
        {"format": "int-or-string", "type": "string"},
    ),
    "micro-time": (
        f"{_META}.MicroTime",
        {"format": "date-time", "type": "string"},
        {"format": "date-time", "type": "string"},
    ),
    "quantity": (
        "io.k8s.apimachinery.pkg.api.resource.Quantity",
        {"oneOf": [{"type": "string"}, {"type": "number"}]},
        {"type": "string"},
    ),
    "time": (
        f"{_META}.Time",
        {"format": "date-time", "type": "string"},
        {"format": "date-time", "type": "string"},
    ),
}
"""Scalar to the definition that represents it, in version 3 and in version 2."""


class OpenApi:
    """The documents about the given resources. Each is made at its first request."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._versions: dict[str, list[Resource]] = {}
        for resource in resources:
            self._versions.setdefault(resource.prefix.strip("/"), []).append(resource)
        self._made: dict[str, bytes] = {}

    def document(self, path: str, accept: str = "") -> tuple[bytes, str] | None:
        """Return the text at a path and its content type; None for other paths.

        It is JSON; version 2 is also served in protocol buffers.

        Raises StatusError (406) for clients that accept neither.
        """
        path = path.rstrip("/")
        if not path.startswith("/openapi/"):
            return None
        if path == "/openapi/v2" and wants_protobuf(accept):
            return self._cached("v2 in protocol buffers", self._version2, encode_document), PROTOBUF
        if accept and not any(kind in accept for kind in ("json", "*/*", "application/*")):
            raise StatusError(406, "NotAcceptable", f"only the following media types are accepted: {_JSON}")
        if path == "/openapi/v3":
            index = {version: {"serverRelativeURL": self._address(version)} for version in self._versions}
            return msgspec.json.encode({"paths": index}), _JSON
        if path == "/openapi/v2":
            return self._cached("v2", self._version2), _JSON
        version = path.removeprefix("/openapi/v3/")
        return (self._version3(version), _JSON) if version in self._versions else None

    def _address(self, version: str) -> str:
        shown = ",".join(f"{resource.kind}{resource.schema or ''}" for resource in self._versions[version])
        digest = hashlib.sha256(shown.encode()).hexdigest()
        return f"/openapi/v3/{version}?hash={digest[:32].upper()}"

    def _cached(
        self, key: str, make: Callable[[], Json], encode: Callable[[Json], bytes] = msgspec.json.encode
    ) -> bytes:
        if key not in self._made:
            self._made[key] = encode(make())
        return self._made[key]

    def _version3(self, version: str) -> bytes:
        return self._cached(version, functools.partial(_document3, self._versions[version]))

    def _version2(self) -> Json:
        served = [resource for resources in self._versions.values() for resource in resources]
        return {
            "swagger": "2.0",
            "info": _INFO,
            "paths": _paths(served, _V2),
            "definitions": _schemas(served, _V2),
        }


def _document3(resources: list[Resource]) -> Json:
    return {
        "openapi": "3.0.0",
        "info": _INFO,
        "paths": _paths(resources, _V3),
        "components": {"schemas": _schemas(resources, _V3)},
    }


def _schemas(resources: Iterable[Resource], prefix: str) -> Json:
    kinds = {name_of(resource): resource for resource in resources}
    schemas: Json = {}
    waiting = [*kinds, *_SHARED]
    while waiting:
        name = waiting.pop()
        if name in schemas:
            continue
        resource = kinds.get(name)
        if resource is not None and resource.schema is not None:
            schemas[name] = _custom(resource.schema, prefix)
            waiting.append(f"{_META}.ObjectMeta")
        else:
            schemas[name] = _schema(name, prefix)
            for field in definition(name).fields.values():
                waiting.extend(_referred(field.type))
        if resource is not None:
            group_version_kind = {"group": resource.group, "kind": resource.kind, "version": resource.version}
            schemas[name]["x-kubernetes-group-version-kind"] = [group_version_kind]
    for name, version3, version2 in _NAMED.values():
        schemas[name] = version3 if prefix == _V3 else version2
    return dict(sorted(schemas.items()))


def _referred(kind: Type) -> Iterator[str]:
    if kind.refers:
        yield kind.refers
    if kind.element is not None:
        yield from _referred(kind.element)


def _custom(schema: Json, prefix: str) -> Json:
    """Return the schema of a custom kind with the fields that all kinds have."""
    metadata: Json = {"$ref": f"{prefix}{_META}.ObjectMeta"}
    common = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"allOf": [metadata]} if prefix == _V3 else metadata,
    }
    return {**schema, "properties": {**schema.get("properties", {}), **common}}


def _schema(name: str, prefix: str) -> Json:
    shape, texts = definition(name), descriptions_of(name)
    schema: Json = {"type": "object"}
    if texts.get(""):
        schema["description"] = texts[""]
    properties = {key: _property(field, texts.get(key, ""), prefix) for key, field in shape.fields.items()}
    if properties:
        schema["properties"] = properties
    required = [key for key, field in shape.fields.items() if field.required]
    if required:
        schema["required"] = required
    return schema


def _property(field: Field, text: str, prefix: str) -> Json:
    schema = dict(_type(field.type, prefix))
    if "$ref" in schema:
        text = text or descriptions_of(field.type.refers).get("", "")
        if prefix == _V3:
            schema = {"allOf": [schema]}
    if text:
        schema["description"] = text
    if field.merge_key is not None:
        schema["x-kubernetes-patch-strategy"] = "merge,retainKeys" if field.retain_keys else "merge"
        if field.merge_key:
            schema["x-kubernetes-patch-merge-key"] = field.merge_key
    return schema


def _type(kind: Type, prefix: str) -> Json:
    if kind.refers:
        return {"$ref": prefix + kind.refers}
    if kind.element is None:
        inline = _INLINE.get(kind.scalar)
        return inline if inline is not None else {"$ref": prefix + _NAMED[kind.scalar][0]}
    element = _type(kind.element, prefix)
    if "$ref" in element and prefix == _V3:
        element = {"allOf": [element]}
    if kind.shape == "list":
        return {"type": "array", "items": element}
    return {"type": "object", "additionalProperties": element}
