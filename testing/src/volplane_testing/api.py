"""Direct access to the API server of a test cluster: JSON in, JSON out, without delay and without faults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from volplane.errors import ApiNotFound
from volplane.kube import kinds
from volplane.kube.answers import error_from
from volplane.kube.events import EVENTS
from volplane.kube.kinds import Kind
from volplane.snapshots import groups_objects, objects
from volplane_embedded.apiserver.server import ApiServer

__all__ = ["Api", "Json"]

Json = dict[str, Any]
"""A Kubernetes object as in its JSON: `object["metadata"]["name"]`."""

_KINDS: Final[Mapping[str, Kind[Any]]] = {
    kind.plural: kind
    for kind in (*vars(kinds).values(), *vars(objects).values(), *vars(groups_objects).values(), EVENTS)
    if isinstance(kind, Kind)
}


class Api:
    """Objects as `kubectl get -o json` shows them. Resources are named by their plural: `persistentvolumeclaims`.

    All methods raise the Api errors of `volplane.errors` for what the server refuses. namespace: of namespaced
    resources.
    """

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    def get(self, resource: str, name: str, namespace: str = "default") -> Json | None:
        """Return one object, None if there is none."""
        try:
            return self._send("GET", _path(resource, name, namespace))
        except ApiNotFound:
            return None

    def all(self, resource: str, namespace: str = "", *, labels: str = "", fields: str = "") -> list[Json]:
        """Return all objects of a resource, of one namespace or of all. labels, fields: selectors."""
        kind = _kind(resource)
        query = {"labelSelector": labels, "fieldSelector": fields}
        answer = self._send("GET", kind.path(namespace), query={key: value for key, value in query.items() if value})
        return [{"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in answer["items"]]

    def create(self, resource: str, body: Mapping[str, Any], namespace: str = "default") -> Json:
        """Create an object; apiVersion, kind and namespace are filled in, a missing namespace is created."""
        kind = _kind(resource)
        metadata = dict(body.get("metadata") or {})
        if kind.namespaced:
            namespace = metadata.setdefault("namespace", namespace)
            self._need_namespace(namespace)
        return self._send("POST", kind.path(namespace), {**kind.body(**body), "metadata": metadata})

    def patch(
        self, resource: str, name: str, body: Mapping[str, Any], namespace: str = "default", *, subresource: str = ""
    ) -> Json:
        """Change an object by a merge patch (RFC 7386)."""
        path = _path(resource, name, namespace, subresource)
        return self._send("PATCH", path, body, content_type="application/merge-patch+json")

    def delete(self, resource: str, name: str, namespace: str = "default", *, grace_seconds: int | None = None) -> None:
        """Delete an object; finalizers may delay its removal."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        self._send("DELETE", _path(resource, name, namespace), options)

    def events(self, about: Mapping[str, Any]) -> list[Json]:
        """Events on an object, oldest first."""
        uid = about["metadata"]["uid"]
        found = [event for event in self.all("events") if event["involvedObject"].get("uid") == uid]
        return sorted(found, key=lambda event: int(event["metadata"]["resourceVersion"]))

    def __contains__(self, about: Mapping[str, Any]) -> bool:
        """Tell whether the object with this kind, name and uid exists."""
        kind = next(kind for kind in _KINDS.values() if kind.kind == about["kind"])
        metadata = about["metadata"]
        there = self.get(kind.plural, metadata["name"], metadata.get("namespace", ""))
        return there is not None and there["metadata"]["uid"] == metadata["uid"]

    def _need_namespace(self, name: str) -> None:
        if self.get("namespaces", name) is None:
            self.create("namespaces", {"metadata": {"name": name}})

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        encoded = b"" if body is None else json.dumps(body).encode()
        answer = self._server.handle(method, path, query or {}, {"content-type": content_type}, encoded)
        if answer.status >= 300:
            raise error_from(answer.status, answer.headers, answer.body, call=f"{method} {path}")
        decoded: Json = json.loads(answer.body)
        return decoded


def _kind(resource: str) -> Kind[Any]:
    if resource not in _KINDS:
        raise KeyError(f"resource {resource!r} is none of {', '.join(sorted(_KINDS))}")
    return _KINDS[resource]


def _path(resource: str, name: str, namespace: str, subresource: str = "") -> str:
    kind = _kind(resource)
    return kind.path(namespace if kind.namespaced else "", name, subresource)
