"""Claims and volumes as the API writes them, with what a test does not say filled in."""

from __future__ import annotations

from typing import Any

import msgspec

from volplane.kube.objects import Claim, StorageClass, Volume

Json = dict[str, Any]


def claim(name: str = "c", **fields: Any) -> Claim:
    """fields: of metadata (uid, annotations, …), spec (in the API's spelling) or `status`; `size` is the request."""
    meta, spec, status = _sorted(fields)
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1", **meta}
    size = spec.pop("size", "1Gi")
    base = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
        "storageClassName": "",
        "volumeMode": "Filesystem",
    }
    kept = {key: value for key, value in {**base, **spec}.items() if value is not None}
    return msgspec.convert({"metadata": metadata, "spec": kept, "status": status or {"phase": "Pending"}}, Claim)


def volume(name: str = "v", **fields: Any) -> Volume:
    """The same for a volume; `size` is its capacity, `claim` a claim that it is bound to, `reserved` one without
    uid.
    """
    meta, spec, status = _sorted(fields)
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", **meta}
    if (bound := spec.pop("claim", None)) is not None:
        spec["claimRef"] = {"namespace": bound.namespace, "name": bound.name, "uid": bound.uid}
    if (reserved := spec.pop("reserved", None)) is not None:
        spec["claimRef"] = {"namespace": "default", "name": reserved}
    base = {
        "capacity": {"storage": spec.pop("size", "1Gi")},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "volumeMode": "Filesystem",
        "hostPath": {"path": f"/{name}"},
    }
    body = {"metadata": metadata, "spec": {**base, **spec}, "status": status or {"phase": "Available"}}
    return msgspec.convert(body, Volume)


def storage_class(name: str = "fast", provisioner: str = "disk.example.com", **fields: Any) -> StorageClass:
    meta, rest, _ = _sorted(fields)
    body = {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", **meta}, **rest}
    return msgspec.convert({**body, "provisioner": provisioner}, StorageClass)


_META = frozenset(
    {
        "uid",
        "annotations",
        "labels",
        "finalizers",
        "deletionTimestamp",
        "creationTimestamp",
        "ownerReferences",
        "namespace",
        "resourceVersion",
    }
)


def _sorted(fields: Json) -> tuple[Json, Json, Json]:
    meta = {key: value for key, value in fields.items() if key in _META}
    spec = {key: value for key, value in fields.items() if key not in _META and key != "status"}
    return meta, spec, dict(fields.get("status", {}))
