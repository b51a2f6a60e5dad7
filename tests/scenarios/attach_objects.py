"""Rows of attach-detach made by tests, in the form of those that lie beside the checkout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scenarios.attaching import DRIVER
from scenarios.harness import Json
from volplane.attach.desired import attachment_name
from volplane.kube import names

__all__ = ["UNIQUE", "attached_to", "bound_claim", "event", "listed", "node", "pod", "pod_at", "row"]

UNIQUE = f"kubernetes.io/csi/{DRIVER}^vol-1"


def node(name: str = "node-a", *, ready: str = "True", in_use: Sequence[str] = (), **more: Any) -> Json:
    """more: attached, taints, annotations."""
    conditions = [{"type": "Ready", "status": ready, "reason": "Row", "lastTransitionTime": "2024-01-01T00:00:00Z"}]
    attached = [{"name": each, "devicePath": ""} for each in more.get("attached", ())]
    status = {"conditions": conditions, "volumesAttached": attached, "volumesInUse": list(in_use)}
    taints = [{"key": key, "effect": "NoExecute"} for key in more.get("taints", ())]
    annotations = more.get("annotations", {names.ATTACH_BY_CONTROLLER: "true"})
    return {"metadata": {"name": name, "annotations": annotations}, "spec": {"taints": taints}, "status": status}


def bound_claim(number: int = 1, *modes: str, handle: str = "vol-1", **more: Any) -> tuple[Json, Json]:
    """A claim and its volume. more: uid that the volume refers to, phase, name and metadata of the claim."""
    name, shown = more.get("name", f"pvc-{number}"), list(modes) or ["ReadWriteOnce"]
    size = {"storage": "1Gi"}
    claim = {
        "metadata": {"name": name, "namespace": "default", **more.get("metadata", {})},
        "spec": {
            "accessModes": shown,
            "resources": {"requests": size},
            "storageClassName": "",
            "volumeName": f"pv-{number}",
        },
        "status": {"phase": more.get("phase", "Bound"), "accessModes": shown, "capacity": size},
    }
    uid = more.get("uid", f"$(uid:persistentvolumeclaims/default/{name})")
    volume = {
        "metadata": {"name": f"pv-{number}"},
        "spec": {
            "capacity": size,
            "accessModes": shown,
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "csi": {"driver": DRIVER, "volumeHandle": handle},
            "claimRef": {"namespace": "default", "name": name, "uid": uid},
        },
        "status": {"phase": "Bound"},
    }
    return claim, volume


def pod(name: str = "pod1", at: str = "node-a", claim: str = "pvc-1", **more: Any) -> Json:
    """more: volumes, status, metadata."""
    volumes = more.get("volumes", [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}])
    container = {"name": "c", "image": "i", "volumeMounts": [{"name": v["name"], "mountPath": "/d"} for v in volumes]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **more.get("metadata", {})},
        "spec": {"nodeName": at, "containers": [container], "volumes": volumes},
        "status": {"phase": "Pending", **more.get("status", {})},
    }


def row(*objects: Json | tuple[Json, Json], steps: Sequence[Json] = (), then: Json | None = None, **more: Any) -> Json:
    """objects: nodes, pods, and pairs of `bound_claim`. more: inject."""
    given: Json = {"nodes": [], "pods": [], "claims": [], "volumes": []}
    for each in objects:
        if isinstance(each, tuple):
            given["claims"].append(each[0])
            given["volumes"].append(each[1])
        else:
            given["pods" if each.get("kind") == "Pod" else "nodes"].append(each)
    begin = [{"op": "start"}, {"op": "settle", "within": "10s"}]
    return {"given": given, "steps": [*begin, *steps], "then": then or {}, "inject": more.get("inject")}


def pod_at(name: str, at: str, **more: Any) -> Json:
    """The step that creates a pod."""
    return {"op": "create", "object": pod(name, at, **more)}


def attached_to(at: str = "node-a", *, handle: str = "vol-1", **fact: Any) -> Json:
    """What an attachment is expected to be; fact: exists, attached, terminating."""
    return {"name": attachment_name(DRIVER, handle, at), **fact}


def listed(at: str, *volumes: str, without: Sequence[str] = ()) -> Json:
    return {"node": at, "volumesAttachedInclude": list(volumes), "volumesAttachedExclude": list(without)}


def event(name: str, text: str, **more: Any) -> Json:
    """What the pod is expected to be told of a failed attach."""
    told = {"involved": f"pods/default/{name}", "type": "Warning", "reason": "FailedAttachVolume"}
    return {**told, "messageContains": text, **more}
