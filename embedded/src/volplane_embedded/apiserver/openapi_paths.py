"""The paths of an OpenAPI document: what a client may do to each resource, and with which parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from volplane_embedded.apiserver.definitions import name_of
from volplane_embedded.apiserver.resources import Json, Resource

__all__ = ["paths"]

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


def paths(resources: Iterable[Resource], prefix: str) -> Json:
    """The path items of the resources; `prefix` begins references to schemas and tells the version of OpenAPI."""
    found: Json = {}
    for resource in resources:
        found.update(_of(resource, prefix))
    return found


def _of(resource: Resource, prefix: str) -> Iterator[tuple[str, Json]]:
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
    types = _PATCHES if action == "patch" else ("application/json",)
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
