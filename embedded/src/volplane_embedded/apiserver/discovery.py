"""Discovery documents, plain and aggregated, and /version."""

from __future__ import annotations

import base64
import hashlib
import platform
import sys
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from volplane_embedded.apiserver.resources import Json, Resource

KUBERNETES_MINOR: Final = "36"
"""Minor version of Kubernetes 1 whose API is served."""
AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
"""Media type of aggregated discovery. Clients check the Content-Type of the response for it."""

_JSON: Final = "application/json"
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_CUSTOM_VERBS: Final = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
"""The same, in the order in which a stock server tells them of custom kinds."""
_STATUS_VERBS: Final = ("get", "patch", "update")
_SUBRESOURCE_VERBS: Final = {
    "binding": ("create",),
    "eviction": ("create",),
    "exec": ("create", "get"),
    "finalize": ("update",),
    "log": ("get",),
    "portforward": ("create", "get"),
    "scale": ("get", "patch", "update"),
    "token": ("create",),
}
_KINDS: Final = {
    "binding": ("Binding", "", ""),
    "eviction": ("Eviction", "policy", "v1"),
    "exec": ("PodExecOptions", "", ""),
    "portforward": ("PodPortForwardOptions", "", ""),
    "scale": ("Scale", "autoscaling", "v1"),
    "token": ("TokenRequest", "authentication.k8s.io", "v1"),
}
"""By subresource its kind, with group and version where they are not those of the document."""


class _Served(NamedTuple):
    """One entry of discovery: a resource or a subresource."""

    name: str
    singular: str
    kind: str
    namespaced: bool
    verbs: Sequence[str]
    short_names: Sequence[str] = ()
    categories: Sequence[str] = ()
    hashed: str = ""
    foreign: tuple[str, str] = ("", "")
    """Group and version of the kind, if they are not those of the document."""


_REVIEWS: Final = (
    ("authentication.k8s.io", "v1", "SelfSubjectReview"),
    ("authentication.k8s.io", "v1", "TokenReview"),
    ("authorization.k8s.io", "v1", "SelfSubjectAccessReview"),
    ("authorization.k8s.io", "v1", "SelfSubjectRulesReview"),
    ("authorization.k8s.io", "v1", "SubjectAccessReview"),
)


class Discovery:
    """The documents about the given resources. address: the server's host:port, for old clients."""

    def __init__(self, resources: Iterable[Resource], address: str = "") -> None:
        self._versions: dict[tuple[str, str], list[_Served]] = {}
        for resource in resources:
            served = self._versions.setdefault((resource.group, resource.version), [])
            served.extend(_lines(resource))
        for group, version, kind in _REVIEWS:
            singular = kind.lower()
            line = _Served(f"{singular}s", singular, kind, namespaced=False, verbs=("create",))
            self._versions.setdefault((group, version), []).append(line)
        for served in self._versions.values():
            served.sort()
        self._address = address

    def document(self, path: str, accept: str = "") -> tuple[Json, str] | None:
        """Return the document at a path and its content type, None for an unknown path."""
        parts = path.strip("/").split("/")
        if path.rstrip("/") in {"/api", "/apis"} and (version := _aggregated_version(accept)):
            return self._aggregated(core=parts[0] == "api", version=version), AGGREGATED.format(version=version)
        match parts:
            case ["version"]:
                return _version(), _JSON
            case ["api"]:
                return self._core_versions(), _JSON
            case ["apis"]:
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": self._groups()}, _JSON
            case ["apis", group]:
                found = next((entry for entry in self._groups() if entry["name"] == group), None)
                return ({"kind": "APIGroup", "apiVersion": "v1", **found}, _JSON) if found else None
            case ["api", version]:
                return self._resources("", version)
            case ["apis", group, version]:
                return self._resources(group, version)
        return None

    def _core_versions(self) -> Json:
        return {
            "kind": "APIVersions",
            "versions": [version for group, version in self._versions if not group],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": self._address}],
        }

    def _groups(self) -> list[Json]:
        groups: dict[str, Json] = {}
        for group, version in self._versions:
            if group:
                shown = {"groupVersion": f"{group}/{version}", "version": version}
                known = groups.setdefault(group, {"name": group, "versions": [], "preferredVersion": shown})
                known["versions"].append(shown)
        return list(groups.values())

    def _resources(self, group: str, version: str) -> tuple[Json, str] | None:
        served = self._versions.get((group, version))
        if served is None:
            return None
        document: Json = {"kind": "APIResourceList"}
        if group:
            document["apiVersion"] = "v1"
        document["groupVersion"] = f"{group}/{version}" if group else version
        document["resources"] = [_plain(line) for line in served]
        return document, _JSON

    def _aggregated(self, *, core: bool, version: str) -> Json:
        items: dict[str, Json] = {}
        for (group, served), lines in self._versions.items():
            if bool(group) != core:
                item = items.setdefault(group, {"metadata": {"name": group} if group else {}, "versions": []})
                shown = {"version": served, "resources": _nested(lines), "freshness": "Current"}
                item["versions"].append(shown)
        api_version = f"apidiscovery.k8s.io/{version}"
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": api_version,
            "metadata": {},
            "items": list(items.values()),
        }


def _aggregated_version(accept: str) -> str:
    """Return the version of aggregated discovery that the client prefers, "" if it prefers plain documents."""
    for choice in accept.split(","):
        media_type, *parameters = (part.strip() for part in choice.split(";"))
        named = dict(part.partition("=")[::2] for part in parameters)
        if named.get("as") == "APIGroupDiscoveryList" and named.get("v") in {"v2", "v2beta1"}:
            return named["v"]
        if media_type == _JSON and "as" not in named:
            return ""
    return ""


def _lines(resource: Resource) -> Iterable[_Served]:
    # The stock server does not offer deletecollection for namespaces.
    verbs: Sequence[str] = _CUSTOM_VERBS if resource.custom else _VERBS
    verbs = tuple(verb for verb in verbs if resource.kind != "Namespace" or verb != "deletecollection")
    yield _Served(
        resource.plural,
        resource.singular,
        resource.kind,
        resource.namespaced,
        verbs,
        resource.short_names,
        resource.categories,
        _storage_hash(resource),
    )
    for name in resource.subresources:
        if name == "attach":
            continue  # it is refused with advice
        kind, *foreign = _KINDS.get(name, (resource.kind, "", ""))
        allowed = _SUBRESOURCE_VERBS.get(name, _STATUS_VERBS)
        yield _Served(
            f"{resource.plural}/{name}", "", kind, resource.namespaced, allowed, foreign=(foreign[0], foreign[1])
        )


def _storage_hash(resource: Resource) -> str:
    """Return the storageVersionHash: equal for resources with the same storage."""
    group = "" if resource.storage and "." not in resource.storage else resource.group
    digest = hashlib.sha256(f"{group}/{resource.version}/{resource.kind}".encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def _plain(line: _Served) -> Json:
    shown: Json = {
        "name": line.name,
        "singularName": line.singular,
        "namespaced": line.namespaced,
        **({"group": line.foreign[0], "version": line.foreign[1]} if line.foreign[0] else {}),
        "kind": line.kind,
        "verbs": list(line.verbs),
    }
    return {**shown, **_extras(line), **({"storageVersionHash": line.hashed} if line.hashed else {})}


def _extras(line: _Served) -> Json:
    pairs = (("shortNames", line.short_names), ("categories", line.categories))
    return {key: list(values) for key, values in pairs if values}


def _nested(lines: Iterable[_Served]) -> list[Json]:
    found: dict[str, Json] = {}
    for line in lines:
        response = {"group": line.foreign[0], "version": line.foreign[1], "kind": line.kind}
        name, _, subresource = line.name.partition("/")
        if subresource:
            entry = {"subresource": subresource, "responseKind": response, "verbs": list(line.verbs)}
            found[name].setdefault("subresources", []).append(entry)
            continue
        found[name] = {
            "resource": name,
            "responseKind": response,
            "scope": "Namespaced" if line.namespaced else "Cluster",
            "singularResource": line.singular,
            "verbs": list(line.verbs),
            **_extras(line),
        }
    return list(found.values())


def _version() -> Json:
    return {
        "major": "1",
        "minor": KUBERNETES_MINOR,
        "emulationMajor": "1",
        "emulationMinor": KUBERNETES_MINOR,
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": str(int(KUBERNETES_MINOR) - 1),
        "gitVersion": f"v1.{KUBERNETES_MINOR}.0+volplane",
        "gitCommit": "volplane",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": f"python{platform.python_version()}",
        "compiler": sys.implementation.name,
        "platform": f"{sys.platform}/{_MACHINES.get(platform.machine(), platform.machine())}",
    }
