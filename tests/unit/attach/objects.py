"""Nodes, pods and attachments as the API writes them, with what a test does not say filled in."""

from __future__ import annotations

from typing import Any

import msgspec

from unit.binding.objects import claim, volume
from volplane.attach.desired import Pair, attachment_name
from volplane.kube import names
from volplane.kube.objects import Claim, KubeObject, Node, Pod, Volume, VolumeAttachment

CSI = "disk.example.com"
UNIQUE = f"kubernetes.io/csi/{CSI}^h-1"
PAIR = Pair("node-a", UNIQUE)
OTHER = Pair("node-b", UNIQUE)
FINALIZER = "external-attacher/disk-example-com"


def node(name: str = "node-a", *, ready: str = "True", managed: bool = True, **fields: Any) -> Node:
    """fields: uid, provider_id, taints, attached, in_use."""
    annotations = {names.ATTACH_BY_CONTROLLER: "true"} if managed else {}
    status: dict[str, Any] = {
        "conditions": [{"type": "Ready", "status": ready}],
        "volumesAttached": [{"name": each, "devicePath": ""} for each in fields.get("attached", ())],
        "volumesInUse": list(fields.get("in_use", ())),
    }
    body = {
        "metadata": {
            "name": name,
            "uid": fields.get("uid", f"uid-{name}"),
            "resourceVersion": "1",
            "annotations": annotations,
        },
        "spec": {
            "providerID": fields.get("provider_id", f"aws:///z/{name}"),
            "taints": [{"key": each, "effect": "NoExecute"} for each in fields.get("taints", ())],
        },
        "status": status,
    }
    return msgspec.convert(body, Node)


def pod(
    name: str = "p", node: str = "node-a", *, namespace: str = "default", phase: str = "Running", claim: str = "c"
) -> Pod:
    """A pod that uses this claim of its namespace."""
    body = {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}", "resourceVersion": "1"},
        "spec": {"nodeName": node, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]},
        "status": {"phase": phase},
    }
    return msgspec.convert(body, Pod)


def bound(*modes: str) -> tuple[Claim, Volume]:
    """A claim and its volume, whose handle is `h-1`."""
    used = claim("c", volumeName="v", status={"phase": "Bound"})
    csi = {"driver": CSI, "volumeHandle": "h-1"}
    made = volume("v", claim=used, csi=csi, hostPath=None, accessModes=list(modes) or ["ReadWriteOnce"])
    return used, made


def attachment(node: str = "node-a", *, attached: bool = False, deleted: bool = False, **more: Any) -> VolumeAttachment:
    """more: name, volume, attacher, annotations, finalizers, error, detach_error, metadata, created."""
    metadata: dict[str, Any] = {
        "name": more.get("name", attachment_name(CSI, "h-1", node)),
        "uid": more.get("uid", f"uid-va-{node}"),
        "resourceVersion": "1",
        "creationTimestamp": more.get("created", "2026-01-01T00:00:00Z"),
        "annotations": more.get("annotations", {names.NODE_UID: f"uid-{node}"}),
        "finalizers": more.get("finalizers", []),
    }
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    status: dict[str, Any] = {"attached": attached, "attachmentMetadata": more.get("metadata")}
    for key, field in (("error", "attachError"), ("detach_error", "detachError")):
        if key in more:
            status[field] = {"time": "2026-01-01T00:00:00Z", "message": more[key]}
    source = {"persistentVolumeName": more.get("volume", "v")}
    spec = {"attacher": more.get("attacher", CSI), "nodeName": node, "source": source}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, VolumeAttachment)


__all__ = ["CSI", "FINALIZER", "OTHER", "PAIR", "UNIQUE", "KubeObject", "attachment", "bound", "node", "pod"]
