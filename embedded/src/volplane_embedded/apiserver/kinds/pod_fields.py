"""References of a pod to its own fields: environment variables and downward API files (`pkg/apis/core/validation`)."""

from __future__ import annotations

import re
from typing import Final

from volplane_embedded.apiserver import names
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.validation import refused
from volplane_embedded.apiserver.kinds.volume_sources import check_local_path, check_mode
from volplane_embedded.apiserver.resources import Json

ENVIRONMENT_FIELDS: Final = frozenset(
    {
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    }
)
"""Fields that an environment variable may show."""
_FILE_FIELDS: Final = frozenset(
    {"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"}
)
_KNOWN: Final = ENVIRONMENT_FIELDS | _FILE_FIELDS | {"spec.restartPolicy", "spec.schedulerName", "status.phase"}
_SUBSCRIPT: Final = re.compile(r"(.*)\['(.*)'\]")
_RESOURCES: Final = frozenset(
    f"{kind}.{resource}" for kind in ("limits", "requests") for resource in ("cpu", "memory", "ephemeral-storage")
)


def check_field(reference: Json, allowed: frozenset[str], where: str, causes: list[Cause]) -> None:
    """Check an `ObjectFieldSelector`."""
    path = reference.get("fieldPath") or ""
    if not path:
        causes.append(Cause.required(f"{where}.fieldPath"))
        return
    subscript = _SUBSCRIPT.fullmatch(path)
    plain, key = subscript.groups() if subscript else (path, "")
    if reference.get("apiVersion") != "v1" or plain not in _KNOWN:
        what = f"unsupported pod version: {reference.get('apiVersion')}" if reference.get("apiVersion") != "v1" else ""
        why = f"error converting fieldPath: {what or f'field label not supported: {path}'}"
        causes.append(Cause.invalid(f"{where}.fieldPath", path, why))
    elif subscript and plain in {"metadata.annotations", "metadata.labels"}:
        key = key.lower() if plain == "metadata.annotations" else key
        refused(names.qualified_name(key), key, where, causes)
    elif subscript:
        causes.append(Cause.invalid(where, plain, "does not support subscript"))
    elif path not in allowed:
        causes.append(Cause.unsupported(f"{where}.fieldPath", path, list(allowed)))


def check_resource_field(reference: Json, where: str, causes: list[Cause], *, of_file: bool) -> None:
    """Check a `ResourceFieldSelector`. of_file: of a volume's file, which must name the container."""
    resource = reference.get("resource") or ""
    if of_file and not reference.get("containerName"):
        causes.append(Cause.required(f"{where}.containerName"))
    elif not resource:
        causes.append(Cause.required(f"{where}.resource"))
    elif resource not in _RESOURCES and not resource.startswith(("limits.hugepages-", "requests.hugepages-")):
        causes.append(Cause.unsupported(f"{where}.resource", resource, list(_RESOURCES)))


def check_downward_file(item: Json, where: str, causes: list[Cause]) -> None:
    """Check a `DownwardAPIVolumeFile`."""
    if not item.get("path"):
        causes.append(Cause.required(f"{where}.path"))
    check_local_path(item.get("path") or "", f"{where}.path", causes)
    field, resource = item.get("fieldRef"), item.get("resourceFieldRef")
    if field is not None:
        check_field(field, _FILE_FIELDS, f"{where}.fieldRef", causes)
        if resource is not None:
            why = "fieldRef and resourceFieldRef can not be specified simultaneously"
            causes.append(Cause.invalid(where, "resource", why))
    elif resource is not None:
        check_resource_field(resource, f"{where}.resourceFieldRef", causes, of_file=True)
    else:
        causes.append(Cause.required(where, "one of fieldRef and resourceFieldRef is required"))
    check_mode(item, "mode", where, causes)
