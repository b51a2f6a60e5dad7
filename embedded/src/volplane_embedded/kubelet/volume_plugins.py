"""Makes a volume of a pod usable on this machine, by the kind of its source.

Source: pkg/volume: host_path, local, nfs, emptydir, configmap, secret, downwardapi, projected, csi.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from volplane.kube import names
from volplane.kube.objects import Volume
from volplane_embedded.kubelet.attached_disks import AttachedDisks
from volplane_embedded.kubelet.container_config import MountedVolume
from volplane_embedded.kubelet.environment import ConfigObjects
from volplane_embedded.kubelet.local_exports import LocalExport, local_directory
from volplane_embedded.kubelet.mounts import MountError, check_host_path, check_local, mount_nfs, set_volume_ownership
from volplane_embedded.kubelet.populator import DesiredVolume
from volplane_embedded.kubelet.projected_volumes import is_projection, projected_files, referenced_objects, write_files
from volplane_embedded.objects import Pod, PodVolume

_LARGEST_GID: Final = 2**32 - 2

Configure = Callable[[Pod, Sequence[str], Sequence[str]], Awaitable[ConfigObjects]]


@dataclass(frozen=True, slots=True)
class VolumePlugins:
    """root: the pods' directories. disks: of volumes with a csi source. exports: NFS exports of this machine.

    configure: reads ConfigMaps and Secrets of a pod's namespace, by name.
    """

    root: Path
    disks: AttachedDisks
    exports: Sequence[LocalExport]
    configure: Configure

    async def set_up(self, pod: Pod, wanted: DesiredVolume) -> MountedVolume:
        """Make it usable. Idempotent. Raises MountError, Missing, ApiError, OSError."""
        if wanted.volume is None or wanted.claim is None:
            return await self._inline(pod, wanted.source)
        made = await self._persistent(pod, wanted.name, wanted.volume, block=wanted.block)
        source = wanted.source.persistent_volume_claim
        read_only = made.read_only or (source is not None and source.read_only)
        return MountedVolume(made.path, read_only=read_only, block=wanted.block, gid=volume_gid(wanted.volume))

    async def _inline(self, pod: Pod, volume: PodVolume) -> MountedVolume:
        directory = self.root / pod.uid / "volumes" / volume.name
        group = pod.spec.security_context.fs_group
        if volume.host_path is not None:
            return await self._host_path(volume.host_path)
        if volume.nfs is not None:
            return await self._nfs(volume.nfs, directory, [])
        if is_projection(volume):
            maps, secrets = referenced_objects(volume)
            configuration = await self.configure(pod, sorted(maps), sorted(secrets))
            await asyncio.to_thread(write_files, directory, projected_files(pod, volume, configuration), group)
            return MountedVolume(str(directory), read_only=True, projection=True)
        if volume.empty_dir is not None:
            await asyncio.to_thread(_make_empty, directory, group)
            return MountedVolume(str(directory))
        raise MountError("this node agent does not know the volume's source")

    async def _persistent(self, pod: Pod, name: str, volume: Volume, *, block: bool) -> MountedVolume:
        spec = volume.spec
        if spec.csi is not None:
            read_only = bool(spec.csi.get("readOnly"))
            disk = await self.disks.find(volume, pod.spec.node_name, block=block)
            if not block and not read_only:
                await self._apply_group(pod, disk)
            return MountedVolume(str(disk), read_only=read_only)
        if spec.local is not None:
            path = str(spec.local.get("path", ""))
            await asyncio.to_thread(check_local, path, block=block)
            if not block:
                await self._apply_group(pod, Path(path))
            return MountedVolume(path)
        if block:
            raise MountError(
                f"volume {volume.name} has volumeMode Block; only local volumes and the disks of mocked clouds can be "
                "used as devices here"
            )
        if spec.host_path is not None:
            return await self._host_path(spec.host_path)
        if spec.nfs is not None:
            return await self._nfs(spec.nfs, self.root / pod.uid / "volumes" / name, list(spec.mount_options or ()))
        raise MountError(
            f"volume {volume.name} has a source that this node agent does not know: it mounts local, "
            "hostPath, nfs, and the disks of mocked clouds"
        )

    async def _apply_group(self, pod: Pod, path: Path) -> None:
        context = pod.spec.security_context
        if context.fs_group is not None:
            only = context.fs_group_change_policy == "OnRootMismatch"
            await asyncio.to_thread(set_volume_ownership, path, context.fs_group, on_root_mismatch=only)

    async def _host_path(self, source: dict[str, Any]) -> MountedVolume:
        path = str(source.get("path", ""))
        await asyncio.to_thread(check_host_path, path, str(source.get("type") or ""))
        return MountedVolume(path)

    async def _nfs(self, source: dict[str, Any], target: Path, options: list[str]) -> MountedVolume:
        read_only = bool(source.get("readOnly"))
        server, path = str(source.get("server", "")), str(source.get("path", ""))
        local = await asyncio.to_thread(local_directory, self.exports, server, path)
        if local is not None:
            return MountedVolume(str(local), read_only=read_only)
        await asyncio.to_thread(mount_nfs, server, path, target, [*options, *(["ro"] if read_only else [])])
        return MountedVolume(str(target), read_only=read_only)


def volume_gid(volume: Volume) -> int | None:
    """Return the group of a volume's files, in addition to the container's; None without a valid annotation.

    Source: pkg/kubelet/volumemanager (getExtraSupplementalGid).
    """
    text = volume.annotation(names.GID) or ""
    if not text.isascii() or not text.isdigit():
        return None
    gid = int(text)
    return gid if gid <= _LARGEST_GID else None


def _make_empty(directory: Path, group: int | None) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o777)
    if group is not None:
        set_volume_ownership(directory, group, on_root_mismatch=True)
