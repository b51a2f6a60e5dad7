"""The objects of the benchmarks: small ones that are measured, realistic ones that fill a cluster."""

from __future__ import annotations

from typing import Any

from volplane.kube.kinds import CLAIMS, VOLUMES

__all__ = [
    "DRIVER",
    "NAMESPACE",
    "bound_claim",
    "bound_volume",
    "claim",
    "claim_name",
    "free_volume",
    "pod",
    "volume",
    "volume_name",
]

DRIVER = "memory.volplane.dev"
NAMESPACE = "default"
FILLED_CLASS = "filled"
"""Class of the objects that fill a server; measured claims have another, so they cannot bind them."""
TIME = "2026-01-01T00:00:00Z"


def claim_name(number: int) -> str:
    return f"claim-{number:06}"


def volume_name(number: int) -> str:
    return f"volume-{number:06}"


def claim(name: str, storage_class: str = "") -> dict[str, Any]:
    """A claim of 1 GiB. storage_class: "" = no class, for static volumes."""
    spec = {
        "storageClassName": storage_class,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return CLAIMS.body(metadata={"name": name, "namespace": NAMESPACE}, spec=spec)


def volume(name: str, policy: str = "Retain") -> dict[str, Any]:
    """A static volume of 1 GiB and no class."""
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": policy,
        "hostPath": {"path": f"/srv/{name}"},
    }
    return VOLUMES.body(metadata={"name": name}, spec=spec)


def free_volume(number: int) -> dict[str, Any]:
    """A static volume as a cluster holds it, available; without apiVersion and kind."""
    spec = volume(f"free-{number:06}")["spec"]
    return {
        "metadata": {
            "name": f"free-{number:06}",
            "uid": f"f5ee0000-1111-4222-8333-{number:012d}",
            "creationTimestamp": TIME,
            "finalizers": ["kubernetes.io/pv-protection"],
        },
        # Defaults are explicit: the store is filled without the admission that adds them.
        "spec": {**spec, "volumeMode": "Filesystem", "hostPath": {**spec["hostPath"], "type": ""}},
        "status": {"phase": "Available"},
    }


def pod(number: int) -> dict[str, Any]:
    """A running pod that uses `bound_claim` of this number; without apiVersion and kind."""
    mount = {"name": "data", "mountPath": "/data"}
    container = {"name": "main", "image": "registry.example.com/service:1.2.3", "volumeMounts": [mount]}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": TIME}
    state = {"name": "main", "ready": True, "state": {"running": {"startedAt": TIME}}}
    return {
        "metadata": {
            "name": f"pod-{number}",
            "namespace": _namespace_of(number),
            "uid": f"b0d1e500-1111-4222-8333-{number:012d}",
            "creationTimestamp": TIME,
            "labels": {"app": f"service-{number % 200}"},
            "managedFields": [_fields("kubelet", **{"f:status": {"f:conditions": {}, "f:phase": {}}})],
        },
        "spec": {
            "nodeName": f"node-{number % 9}",
            "containers": [container],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": f"data-{number}"}}],
        },
        "status": {"phase": "Running", "conditions": [ready], "containerStatuses": [state]},
    }


def _namespace_of(number: int) -> str:
    return f"team-{number % 50}"


def _fields(manager: str, **fields: Any) -> dict[str, Any]:
    """An entry of managedFields: no controller reads it, but every list and watch transports it."""
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": TIME,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }


def bound_volume(number: int) -> dict[str, Any]:
    """A dynamically provisioned local volume as a cluster holds it, bound; without apiVersion and kind."""
    marks: dict[str, Any] = {f"f:{name}": {} for name in ("pv.kubernetes.io/provisioned-by", "volplane.dev/handle")}
    written = {
        "f:metadata": {"f:annotations": {".": {}, **marks}, "f:finalizers": {".": {}, 'v:"volplane.dev/reclaim"': {}}},
        "f:spec": {
            "f:accessModes": {},
            "f:capacity": {".": {}, "f:storage": {}},
            "f:claimRef": {".": {}, "f:apiVersion": {}, "f:kind": {}, "f:name": {}, "f:namespace": {}, "f:uid": {}},
            "f:local": {".": {}, "f:path": {}},
            "f:nodeAffinity": {".": {}, "f:required": {}},
            "f:persistentVolumeReclaimPolicy": {},
            "f:storageClassName": {},
            "f:volumeMode": {},
        },
    }
    return {
        "metadata": {
            "name": filled_volume(number),
            "uid": f"c0ffee00-1111-4222-8333-{number:012d}",
            "creationTimestamp": TIME,
            "annotations": {
                "pv.kubernetes.io/provisioned-by": DRIVER,
                "pv.kubernetes.io/bound-by-controller": "yes",
                "volplane.dev/handle": f"handle-{number}",
                "volplane.dev/driver": DRIVER,
                "volplane.dev/generation": "1",
                "volplane.dev/schema-version": "1",
            },
            "finalizers": ["kubernetes.io/pv-protection", "volplane.dev/reclaim"],
            "managedFields": [_fields("volplane", **written), _fields("volplane", **{"f:status": {"f:phase": {}}})],
        },
        "spec": {
            "capacity": {"storage": f"{1 + number % 40}Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": FILLED_CLASS,
            "volumeMode": "Filesystem",
            "local": {"path": f"/var/lib/volplane/volumes/{filled_volume(number)}"},
            "claimRef": {
                "kind": "PersistentVolumeClaim",
                "apiVersion": "v1",
                "namespace": _namespace_of(number),
                "name": f"data-{number}",
                "uid": _claim_uid(number),
                "resourceVersion": str(900_000 + number),
            },
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [_on_node(number)]}]}},
        },
        "status": {"phase": "Bound"},
    }


def filled_volume(number: int) -> str:
    return f"pvc-{_claim_uid(number)}"


def _claim_uid(number: int) -> str:
    return f"deadbeef-1111-4222-8333-{number:012d}"


def _on_node(number: int) -> dict[str, Any]:
    return {"key": "kubernetes.io/hostname", "operator": "In", "values": [f"node-{number % 9}"]}


def bound_claim(number: int) -> dict[str, Any]:
    """The claim that belongs to `bound_volume` of this number."""
    capacity = {"storage": f"{1 + number % 40}Gi"}
    marks = ("pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller")
    asked = ("volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner")
    written = {
        "f:metadata": {"f:annotations": {".": {}, **{f"f:{name}": {} for name in (*marks, *asked)}}},
        "f:spec": {"f:volumeName": {}},
    }
    return {
        "metadata": {
            "name": f"data-{number}",
            "namespace": _namespace_of(number),
            "uid": _claim_uid(number),
            "creationTimestamp": TIME,
            "labels": {"app": f"service-{number % 200}", "app.kubernetes.io/managed-by": "Helm"},
            "annotations": {**dict.fromkeys(marks, "yes"), **dict.fromkeys(asked, DRIVER)},
            "finalizers": ["kubernetes.io/pvc-protection"],
            "managedFields": [
                _fields("helm", **{"f:spec": {"f:accessModes": {}, "f:resources": {}, "f:storageClassName": {}}}),
                _fields("volplane", **written),
                _fields("volplane", **{"f:status": {"f:accessModes": {}, "f:capacity": {}, "f:phase": {}}}),
            ],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": capacity},
            "storageClassName": FILLED_CLASS,
            "volumeMode": "Filesystem",
            "volumeName": filled_volume(number),
        },
        "status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": capacity},
    }
