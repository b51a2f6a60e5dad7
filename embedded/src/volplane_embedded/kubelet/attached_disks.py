"""Volumes with a csi source: the wait until one is attached to its node, and the disk that is there then.

The disks of mocked clouds are directories of this machine (`volplane_testing.disks` has the layout). A disk shows under
the nodes that it is attached to, and nowhere else, so that a pod never sees one that is attached elsewhere.

Source: pkg/kubelet/volumemanager (volumesInUse, VerifyControllerAttachedVolume), pkg/volume/csi/csi_attacher.go.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Final

from volplane.attach.identity import attachment_name, unique_name
from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.kinds import ATTACHMENTS, CSI_DRIVERS, NODES
from volplane.kube.objects import Volume, VolumeAttachment
from volplane_embedded.kubelet.mounts import MountError

__all__ = ["AttachedDisks", "VolumesInUse", "disk_path"]

_NODES: Final = "nodes"


def disk_path(disks: Path, node_id: str, handle: str) -> Path:
    """Where a disk shows while it is attached to the node that its cloud knows as `node_id`."""
    return disks / _NODES / _file_name(node_id) / _file_name(handle)


def _file_name(name: str) -> str:
    """A name that is no path, whatever the text: handles come from objects that people write."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


class VolumesInUse:
    """`status.volumesInUse` of the nodes: what pods want or have mounted. The attach-detach controller detaches nothing
    that stands there.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._users: dict[str, dict[str, set[str]]] = {}
        """Node -> unique name of a volume -> uids of pods."""
        self._reported: dict[str, list[str]] = {}
        self._writing = asyncio.Lock()

    async def start(self, node: str) -> None:
        """Report that nothing is in use: what a former process had mounted ended with it. Raises ApiError."""
        self._users.setdefault(node, {})
        await self._report(node)

    async def add(self, node: str, unique: str, pod_uid: str) -> None:
        """Report that the pod wants the volume. Raises ApiError."""
        self._users.setdefault(node, {}).setdefault(unique, set()).add(pod_uid)
        await self._report(node)

    async def release(self, pod_uid: str) -> None:
        """Report that the pod has unmounted everything. Raises ApiError."""
        for node, volumes in self._users.items():
            held = [unique for unique, users in volumes.items() if pod_uid in users]
            for unique in held:
                volumes[unique].discard(pod_uid)
                if not volumes[unique]:
                    del volumes[unique]
            if held:
                await self._report(node)

    async def _report(self, node: str) -> None:
        async with self._writing:
            now = sorted(self._users[node])
            if self._reported.get(node) == now:
                return
            await self._client.patch(NODES, node, {"status": {"volumesInUse": now or None}}, subresource="status")
            self._reported[node] = now


class AttachedDisks:
    """Finds the disks of csi volumes. disks: the directory in which mocked clouds show them, None if there is none."""

    def __init__(self, client: Client, disks: Path | None, in_use: VolumesInUse) -> None:
        self._client = client
        self._disks = disks
        self.in_use = in_use

    async def find(self, volume: Volume, node: str, pod_uid: str) -> Path:
        """The directory that is the disk, attached to the node.

        Reports it in use first. Raises MountError while it is not attached, or if no cloud shows it; ApiError.
        """
        source = volume.spec.csi or {}
        driver, handle = str(source.get("driver", "")), str(source.get("volumeHandle", ""))
        if self._disks is None:
            raise MountError(
                f"volume {volume.name} is csi (driver {driver}): its disk can be used here only where a mocked cloud "
                f"shows it; start volplane dev with --disks"
            )
        await self.in_use.add(node, unique_name(volume), pod_uid)
        node_id = await self._attached_to(volume, driver, handle, node)
        path = disk_path(self._disks, node_id, handle)
        try:
            return await asyncio.to_thread(path.resolve, strict=True)
        except OSError:
            raise MountError(
                f"disk {handle} is attached to node {node} ({node_id}), and does not show in {self._disks}: does its "
                f"mocked cloud run with the same --disks?"
            ) from None

    async def _attached_to(self, volume: Volume, driver: str, handle: str, node: str) -> str:
        """The node as the cloud knows it. Raises MountError while the volume is not attached to it."""
        known = await self._client.find(CSI_DRIVERS, driver)
        if known is not None and not known.spec.attach_required:
            return node
        attachment = await self._client.find(ATTACHMENTS, attachment_name(driver, handle, node))
        if attachment is None or not attachment.status.attached or attachment.terminating:
            raise MountError(f"volume {volume.name} is not attached to node {node} yet{_why(attachment)}")
        live = await self._client.find(NODES, node)
        attached = live.status.volumes_attached or [] if live is not None else []
        if unique_name(volume) not in [each.name for each in attached]:
            raise MountError(f"volume {volume.name} is not attached according to the status of node {node}")
        # The machine is the last part of a provider id: aws:///eu-central-1a/i-0123, gce://project/zone/name.
        return (attachment.annotation(names.NODE_ID) or node).rpartition("/")[2]


def _why(attachment: VolumeAttachment | None) -> str:
    error = attachment.status.attach_error if attachment is not None else None
    return f": {error.message}" if error is not None and error.message else ""
