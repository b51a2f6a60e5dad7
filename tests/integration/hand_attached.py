"""Disks that a test attaches by hand: volumes, what the attach-detach controller writes, and a cloud that is a
directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from integration.node_cluster import Cluster, pod
from volplane.attach.desired import attachment_name
from volplane.kube.kinds import ATTACHMENTS, CLAIMS, NODES, VOLUMES
from volplane.kube.objects import Claim
from volplane.state.cluster_state import CSI_PREFIX
from volplane_embedded.kubelet.attached_disks import disk_path
from volplane_embedded.objects import PODS
from volplane_testing.disks import DiskDirectory

__all__ = ["DRIVER", "HandAttached", "unique"]

DRIVER = "disks.sim"


def unique(disk: str) -> str:
    """As nodes report it."""
    return f"{CSI_PREFIX}{DRIVER}^{disk}"


class HandAttached:
    """Claims, disks and attachments of a cluster. The node's id at the cloud is its name."""

    def __init__(self, cluster: Cluster, disks: Path) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self.disks = disks
        self._cloud = DiskDirectory(disks)
        self._attached: dict[str, list[str]] = {}

    async def bound(self, claim: str, disk: str, *, modes: tuple[str, ...] = ("ReadWriteOnce",), **spec: Any) -> Claim:
        """A claim and the disk that it is bound to. spec: more of the volume."""
        annotations = spec.pop("annotations", {})
        asked = {"accessModes": list(modes), "resources": {"requests": {"storage": "1Mi"}}, "volumeName": disk}
        body = {**asked, "storageClassName": "", "volumeMode": spec.get("volumeMode", "Filesystem")}
        made = await self.client.create(CLAIMS, CLAIMS.body(metadata=_named(claim), spec=body))
        reference = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": claim, "uid": made.uid}
        volume = {
            "capacity": {"storage": "1Mi"},
            "accessModes": list(modes),
            "csi": {"driver": DRIVER, "volumeHandle": disk, **spec.pop("csi", {})},
            "claimRef": reference,
            **spec,
        }
        await self.client.create(
            VOLUMES, VOLUMES.body(metadata={"name": disk, "annotations": annotations}, spec=volume)
        )
        await self.client.patch(
            CLAIMS, made.key, {"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}}
        )
        self._attached.setdefault(disk, [])
        self._cloud.show(self._attached)
        return await self.client.patch(CLAIMS, made.key, {"status": {"phase": "Bound"}}, subresource="status")

    async def refuse(self, disk: str, code: int, message: str, node: str = "node-1") -> None:
        """What they do of a storage that refuses it. code: of google.rpc.Code."""
        error = {"errorCode": code, "message": message, "time": "2026-01-01T00:00:00Z"}
        name = await self._ask(disk, node)
        await self.client.patch(ATTACHMENTS, name, {"status": {"attachError": error}}, subresource="status")

    async def _ask(self, disk: str, node: str) -> str:
        spec = {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": disk}}
        name = attachment_name(DRIVER, disk, node)
        await self.client.create(ATTACHMENTS, ATTACHMENTS.body(metadata={"name": name}, spec=spec))
        return name

    async def attach(self, disk: str, node: str = "node-1") -> None:
        """What attacher and attach-detach controller do."""
        self._attached[disk].append(node)
        self._cloud.show(self._attached)
        name = await self._ask(disk, node)
        await self.client.patch(ATTACHMENTS, name, {"status": {"attached": True}}, subresource="status")
        there = [name for name, nodes in self._attached.items() if node in nodes]
        attached = [{"name": unique(each), "devicePath": ""} for each in sorted(there)]
        await self.client.patch(NODES, node, {"status": {"volumesAttached": attached}}, subresource="status")

    def delete_disk(self, disk: str) -> None:
        """The cloud has it no more."""
        del self._attached[disk]
        self._cloud.show(self._attached)

    async def run(
        self, name: str, script: str, claim: str, *, mount: dict[str, Any] | None = None, **spec: Any
    ) -> None:
        """A pod of a node with the claim at /data, or as the device /dev/data."""
        block = spec.pop("block", False)
        at = {"name": "data", **(mount or {})}
        container = (
            {"volumeDevices": [{**at, "devicePath": "/dev/data"}]}
            if block
            else {"volumeMounts": [{**at, "mountPath": "/data"}]}
        )
        if "env" in spec:
            container["env"] = spec.pop("env")
        source = {"claimName": claim, "readOnly": spec.pop("read_only", False)}
        fields = {"nodeName": "node-1", **spec}
        body = pod(
            name, script, container=container, volumes=[{"name": "data", "persistentVolumeClaim": source}], **fields
        )
        await self.client.create(PODS, body)

    async def in_use(self, node: str = "node-1") -> list[str]:
        """Disks that the node says it uses."""
        found = await self.client.get(NODES, node)
        return [name.rpartition("^")[2] for name in found.status.volumes_in_use or ()]

    def contents(self, disk: str, node: str = "node-1") -> Path:
        """The disk, as this machine shows it under the node."""
        return disk_path(self.disks, node, disk).resolve(strict=True)


def _named(name: str) -> dict[str, str]:
    return {"name": name, "namespace": "default"}
