"""The rights that a run needs: of the controllers, of `volplane drain`, and of the sections themselves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import yaml

from volplane.errors import VolplaneError

__all__ = ["manifest"]

NAME = "volplane-check"
GROUP = "rbac.authorization.k8s.io"
SUITE = (
    ("", "namespaces", ("create", "get", "delete")),
    ("", "nodes", ("list",)),
    ("", "events", ("list",)),
    ("", "persistentvolumes", ("create", "get", "list", "patch", "delete")),
    ("", "persistentvolumeclaims", ("create", "get", "list", "patch", "delete")),
    ("", "pods", ("create", "get", "list", "delete")),
    ("storage.k8s.io", "storageclasses", ("create", "list", "delete")),
    ("storage.k8s.io", "volumeattachments", ("create", "get", "list", "patch", "delete")),
    ("storage.k8s.io", "csinodes", ("get",)),
    ("snapshot.storage.k8s.io", "volumesnapshots", ("create", "get", "list", "patch", "delete")),
    ("snapshot.storage.k8s.io", "volumesnapshotcontents", ("create", "get", "list", "patch", "delete")),
    ("snapshot.storage.k8s.io", "volumesnapshotclasses", ("create", "list", "delete")),
)
"""(group, resource, verbs) of what the sections do. Names are made for each run, so no rule can be bound to them."""

Json = dict[str, Any]


def manifest(controllers: str) -> str:
    """Write an account in a namespace of its own, and its rights, as YAML. Raises VolplaneError."""
    metadata = {"name": NAME}
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": NAME}
    documents = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**metadata, "namespace": NAME}},
        {"apiVersion": f"{GROUP}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules(controllers)},
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": NAME},
            "subjects": [subject],
        },
    ]
    return yaml.safe_dump_all(documents, sort_keys=False, explicit_start=True, default_flow_style=None, width=120)


def rules(controllers: str) -> list[Json]:
    """Rules of rbac.authorization.k8s.io/v1, one per resource and names."""
    verbs: dict[tuple[str, str, tuple[str, ...]], dict[str, None]] = {}
    for group, resource, more in SUITE:
        verbs.setdefault((group, resource, ()), {}).update(dict.fromkeys(more))
    for rule in _of_controllers(controllers):
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                key = (group, resource, tuple(rule.get("resourceNames") or ()))
                verbs.setdefault(key, {}).update(dict.fromkeys(rule["verbs"]))
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": list(given)}
        | ({"resourceNames": list(names)} if names else {})
        for (group, resource, names), given in verbs.items()
    ]


def _of_controllers(controllers: str) -> Iterator[Json]:
    """Return the rights of `volplane manifests`. Those of their own namespace are needed before it has a name."""
    command = [sys.executable, "-m", "volplane", "manifests", "--controllers", controllers]
    ended = subprocess.run(  # noqa: S603 - no shell, and parsed by the option's own rules
        command, capture_output=True, text=True, check=False, timeout=60
    )
    if ended.returncode != 0:
        raise VolplaneError(ended.stderr.strip().removeprefix("error: "))
    for document in yaml.safe_load_all(ended.stdout):
        if document["kind"] in ("ClusterRole", "Role"):
            yield from document["rules"]
