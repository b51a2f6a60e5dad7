"""CustomResourceDefinitions that other projects ship, with as much of their schema as volplane's tests need."""

from __future__ import annotations

import json
from typing import Any

from volplane_testing import Cluster


def definition(group: str, version: str, kind: str, *, namespaced: bool, spec: bool = True) -> dict[str, Any]:
    """A CustomResourceDefinition whose objects may have any fields."""
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    fields = {"spec": schema} if spec else {"sourceKind": schema}
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": fields}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "scope": "Namespaced" if namespaced else "Cluster",
            "versions": [served],
        },
    }


VOLUME_POPULATORS = definition("populator.storage.k8s.io", "v1beta1", "VolumePopulator", namespaced=False, spec=False)


def send(cluster: Cluster, method: str, path: str, body: Any = None) -> Any:
    """The answer of the server to a request of a user."""
    given = json.dumps(body).encode() if body is not None else b""
    answer = cluster.server.handle(method, path, {}, {"content-type": "application/json"}, given)
    assert answer.status < 300, answer
    return json.loads(answer.body)


def install(cluster: Cluster, defined: dict[str, Any]) -> None:
    send(cluster, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", defined)
