"""Parses paths and queries: which resource, object and subresource a request is for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import msgspec

from volplane_embedded.apiserver.errors import StatusError, bad_request, not_found
from volplane_embedded.apiserver.resources import Resource


@dataclass(slots=True)
class Answer:
    """A response. headers: at least Content-Type."""

    status: int
    headers: dict[str, str]
    body: bytes


class Query:
    """Query parameters. The first of repeated parameters counts, as in the stock server."""

    __slots__ = ("_values",)

    def __init__(self, query: Sequence[tuple[str, str]] | Mapping[str, str]) -> None:
        pairs = query.items() if isinstance(query, Mapping) else query
        self._values: dict[str, str] = {}
        for name, value in pairs:
            self._values.setdefault(name, value)

    def text(self, name: str) -> str:
        return self._values.get(name, "")

    def flag(self, name: str) -> bool:
        """Return True unless the parameter is absent, "false" or "0", as in Go's query conversion."""
        value = self._values.get(name)
        return value is not None and value.lower() not in ("false", "0")

    def number(self, name: str) -> int | None:
        """None if it is absent. Raises StatusError (400) if it is not an integer."""
        value = self._values.get(name, "")
        if not value:
            return None
        try:
            return int(value)
        except ValueError:
            raise bad_request(f'strconv.ParseInt: parsing "{value}": invalid syntax') from None


class Request(msgspec.Struct, frozen=True):
    """A request for objects of a resource. name: "" for a collection. namespace: "" for all namespaces."""

    resource: Resource
    namespace: str
    name: str
    subresource: str
    query: Query
    headers: Mapping[str, str]
    """With lower-case names."""


def parse_media_type(choice: str) -> tuple[str, dict[str, str]]:
    """Media type (lower case) and parameters of a Content-Type header, or of one choice of an Accept header."""
    media_type, *rest = (part.strip() for part in choice.split(";"))
    pairs = (part.partition("=") for part in rest)
    return media_type.lower(), {name.strip(): value.strip() for name, _, value in pairs}


def not_served() -> StatusError:
    """404 for a path below a served group version."""
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def wrong_method() -> StatusError:
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def misused(method: str, request: Request) -> StatusError:
    """Return the answer to a method that the path of a request does not have."""
    resource = request.resource
    if not resource.custom:
        return wrong_method()
    if not request.name and not request.subresource:
        return bad_request("name must be provided")
    message = f'{method} is not supported on resources of kind "{resource.plural}.{resource.group}"'
    return StatusError(405, "MethodNotAllowed", message, {"group": resource.group, "kind": resource.plural})


def is_watch(path: str, query: Query) -> bool:
    """Tell whether a GET opens a watch: by the query, or by an old path (/apis/GROUP/V/watch/...)."""
    parts = path.split("/", 5)
    return query.flag("watch") or "watch" in (parts[3:4] if parts[1:2] == ["api"] else parts[4:5])


class Routes:
    """Finds the resource of a path."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._by_version: dict[tuple[str, str], dict[str, Resource]] = {}
        for resource in resources:
            self._by_version.setdefault((resource.group, resource.version), {})[resource.plural] = resource

    def find(self, path: str, query: Query, headers: Mapping[str, str]) -> Request | None:
        """Parse a path. None if it is not below a served group version, or below one of custom kinds and of none of
        them. Raises StatusError (404) for another unknown resource.
        """
        served, rest = self._below(path)
        if served is None:
            return None
        custom = next(iter(served.values())).custom
        if rest[0] == "watch" and len(rest) > 1:
            rest = rest[1:]
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and (rest[2] in served or len(rest) > 3):
            namespace, rest = rest[1], rest[2:]
        resource = served.get(rest[0])
        name, subresource = [*rest[1:], "", ""][:2]
        if resource is None or len(rest) > 3 or "" in rest or not _is_there(resource, namespace, name):
            if custom:
                return None
            raise not_served()
        if subresource and subresource not in resource.subresources:
            raise not_found(resource.plural, resource.group, name) if custom else not_served()
        return Request(resource, namespace, name, subresource, query, headers)

    def _below(self, path: str) -> tuple[Mapping[str, Resource] | None, list[str]]:
        """Return the resources of the group version of a path by their plurals, and the rest of the path."""
        parts = path.strip("/").split("/")
        if "%" in path:
            parts = [unquote(part) for part in parts]
        if parts[0] == "api" and len(parts) > 2:
            return self._by_version.get(("", parts[1])), parts[2:]
        if parts[0] == "apis" and len(parts) > 3:
            return self._by_version.get((parts[1], parts[2])), parts[3:]
        return None, []


def _is_there(resource: Resource, namespace: str, name: str) -> bool:
    """Tell whether the resource has paths with, or without, a namespace and a name."""
    return not namespace if not resource.namespaced else bool(namespace or not name)
