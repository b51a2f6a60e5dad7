"""Volumes with a csi source: the wait until one is attached to its node, and the disk that is there then.

The disks of mocked clouds are directories of this machine (`volplane_testing.disks` has the layout). A disk shows under
the nodes that it is attached to, and nowhere else, so that a pod never sees one that is attached elsewhere. One with
volumeMode Block is a sparse file beside its directory, where no pod that has the directory sees it.

Source: pkg/kubelet/volumemanager (VerifyControllerAttachedVolume), pkg/volume/csi/csi_attacher.go.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from pathlib import Path
from typing import Final

from volplane.attach.desired import attachment_name
from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.kinds import ATTACHMENTS, CSI_DRIVERS, NODES
from volplane.kube.objects import Volume, VolumeAttachment
from volplane.kube.quantity import parse
from volplane.state.cluster_state import unique_name
from volplane_embedded.kubelet.mounts import MountError

_NODES: Final = "nodes"
_EXHAUSTED: Final = 8
"""RESOURCE_EXHAUSTED of google.rpc.Code, in `attachError`."""


class NotAttached(MountError):
    """The volume is not attached to the node yet. No event says so before the wait has taken long."""


class NodeFull(NotAttached):
    """The storage can attach nothing more to the node, and its driver says that limits of nodes change."""


def disk_path(disks: Path, node_id: str, handle: str) -> Path:
    """Return where a disk shows while it is attached to the node that its cloud knows as `node_id`."""
    return disks / _NODES / _file_name(node_id) / _file_name(handle)


def device_path(contents: Path) -> Path:
    """Return the file that stands for the device of a disk. contents: the directory that is the disk."""
    return contents.with_name(f"{contents.name}.device")


def _file_name(name: str) -> str:
    """Return a name that is no path, whatever the text: handles come from objects that people write."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


class AttachedDisks:
    """Finds the disks of csi volumes. disks: the directory in which mocked clouds show them, None if there is none."""

    def __init__(self, client: Client, disks: Path | None) -> None:
        self._client = client
        self._disks = disks

    async def find(self, volume: Volume, node: str, *, block: bool) -> Path:
        """Return the directory that is the disk, or the file that stands for its device.

        The volume must have been reported as in use. Raises NotAttached, MountError if no cloud shows it, ApiError.
        """
        source = volume.spec.csi or {}
        driver, handle = str(source.get("driver", "")), str(source.get("volumeHandle", ""))
        if self._disks is None:
            raise MountError(
                f"volume {volume.name} is csi (driver {driver}): no node plugin runs here, and its disk can be "
                f"used only as a directory that its storage for tests shows (volplane fake BACKEND --disks DIR, or "
                f"volplane_testing.disks.DiskDirectory); start volplane dev with --disks DIR"
            )
        node_id = await self._attached_to(volume, driver, handle, node)
        path = disk_path(self._disks, node_id, handle)
        try:
            contents = await asyncio.to_thread(path.resolve, strict=True)
        except OSError:
            raise MountError(
                f"disk {handle} is attached to node {node} ({node_id}), and does not show in {self._disks}: does the "
                f"storage that shows it run with the same --disks?"
            ) from None
        if not block:
            return contents
        size = parse((volume.spec.capacity or {}).get("storage", "0")).as_bytes()
        return await asyncio.to_thread(_device, device_path(contents), size)

    async def _attached_to(self, volume: Volume, driver: str, handle: str, node: str) -> str:
        """Return the node as the cloud knows it. Raises NotAttached."""
        known = await self._client.find(CSI_DRIVERS, driver)
        if known is not None and not known.spec.attach_required:
            return node
        live = await self._client.find(NODES, node)
        attached = live.status.volumes_attached or [] if live is not None else []
        attachment = await self._client.find(ATTACHMENTS, attachment_name(driver, handle, node))
        if attachment is None or not attachment.status.attached or attachment.terminating:
            full = known is not None and known.spec.node_allocatable_update_period_seconds and _is_full(attachment)
            kind = NodeFull if full else NotAttached
            raise kind(f"volume {volume.name} is not attached to node {node} yet{_why(attachment)}")
        if unique_name(volume) not in [each.name for each in attached]:
            raise NotAttached(f"volume {volume.name} is not attached according to the status of node {node}")
        # The machine is the last part of a provider id: aws:///eu-central-1a/i-0123, gce://project/zone/name.
        return (attachment.annotation(names.NODE_ID) or node).rpartition("/")[2]


def _why(attachment: VolumeAttachment | None) -> str:
    error = attachment.status.attach_error if attachment is not None else None
    return f": {error.message}" if error is not None and error.message else ""


def _is_full(attachment: VolumeAttachment | None) -> bool:
    error = attachment.status.attach_error if attachment is not None else None
    return error is not None and error.error_code == _EXHAUSTED


def _device(path: Path, size: int) -> Path:
    """Return the file, of at least this many bytes. Raises MountError."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o660)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise MountError(f"{path} is no regular file")
            if found.st_size < size:
                os.ftruncate(fd, size)
        finally:
            os.close(fd)
    except OSError as error:
        raise MountError(f"the device {path} cannot be made: {error.strerror}") from error
    return path
