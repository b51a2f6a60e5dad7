"""Mounts the volumes of a pod on this machine.

Source: pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go (checks of claim and volume);
pkg/volume: host_path, local, nfs, emptydir, configmap, secret, downwardapi, projected. A claim and its volume are read
live.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from volplane.errors import ApiError
from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, SECRETS, VOLUMES
from volplane.kube.objects import Claim, Node, Volume
from volplane_embedded.kubelet.attached_disks import AttachedDisks
from volplane_embedded.kubelet.container_config import MountedVolume
from volplane_embedded.kubelet.environment import ConfigObjects, Missing
from volplane_embedded.kubelet.expansion import finish_expansion
from volplane_embedded.kubelet.local_exports import LocalExport, local_directory
from volplane_embedded.kubelet.mounts import MountError, check_host_path, check_local, mount_nfs, set_volume_ownership
from volplane_embedded.kubelet.projected_volumes import is_projection, projected_files, referenced_objects, write_files
from volplane_embedded.node_affinity import volume_allows
from volplane_embedded.objects import CONFIG_MAPS, Pod, PodVolume

__all__ = ["ClaimUse", "VolumeManager", "claim_error"]

_ONE_POD: Final = "ReadWriteOncePod"


class ClaimUse:
    """Which pods of this process use a claim. Refuses a second pod for ReadWriteOncePod."""

    def __init__(self) -> None:
        self._users: dict[str, set[str]] = {}

    def take(self, claim: Claim, pod_uid: str) -> None:
        """Record a user of the claim. Raises MountError if only one pod may use it and another does."""
        users = self._users.setdefault(claim.uid, set())
        if _ONE_POD in (claim.spec.access_modes or ()) and users - {pod_uid}:
            raise MountError(
                f"volume uses the {_ONE_POD} access mode and is already in use by another pod (claim {claim.key})"
            )
        users.add(pod_uid)

    def release(self, pod_uid: str) -> None:
        for uid in [uid for uid, users in self._users.items() if pod_uid in users]:
            self._users[uid].discard(pod_uid)
            if not self._users[uid]:
                del self._users[uid]


def claim_error(claim: Claim, volume: Volume | None, *, ran: bool) -> str:
    """Why the pod may not use the claim, or "". ran: its containers ran before a restart of the kubelet.

    A claim or volume that is being deleted can be used only by pods that used it before.
    """
    if claim.terminating and not (ran and claim.has_finalizer(names.CLAIM_PROTECTION)):
        return "PVC is being deleted"
    if claim.status.phase != "Bound" or not claim.spec.volume_name:
        return "PVC is not bound"
    if volume is None:
        return f'persistentvolume "{claim.spec.volume_name}" not found'
    if volume.terminating and not ran:
        return f"PV {volume.name} is being deleted"
    if volume.spec.claim_ref is None:
        return f"PV {volume.name} is not bound to any claim"
    if volume.spec.claim_ref.uid != claim.uid:
        return f"PV {volume.name} is bound to another claim ({volume.spec.claim_ref.uid}, not {claim.uid})"
    return ""


class VolumeManager:
    """Mounts volumes below `<root>/<pod uid>/volumes`."""

    def __init__(
        self,
        client: Client,
        root: Path,
        use: ClaimUse,
        node: Callable[[str], Node | None],
        disks: AttachedDisks,
        *,
        exports: Sequence[LocalExport] = (),
    ) -> None:
        """node: the cached node of a name. disks: of volumes with a csi source. exports: of this machine."""
        self._client = client
        self._disks = disks
        self._root = root
        self._use = use
        self._node = node
        self._exports = exports

    async def mount(self, pod: Pod, *, ran: bool) -> dict[str, MountedVolume]:
        """Mount the volumes that containers of the pod use; gives them by name. Idempotent. Raises MountError."""
        mounted, devices = _used(pod)
        sources: dict[str, MountedVolume] = {}
        for volume in pod.spec.volumes or ():
            if volume.name in mounted | devices:
                sources[volume.name] = await self._mount(pod, volume, block=volume.name in devices, ran=ran)
        return sources

    async def release(self, pod_uid: str) -> None:
        """Record that the pod does not use its claims any more: all is unmounted. Raises ApiError."""
        self._use.release(pod_uid)
        await self._disks.in_use.release(pod_uid)

    async def configuration(self, pod: Pod, maps: Iterable[str], secrets: Iterable[str]) -> ConfigObjects:
        """Read ConfigMaps and Secrets of the pod's namespace. Raises ApiError; a missing object is None in the
        result.
        """
        found = ConfigObjects()
        for name in sorted(maps):
            found.config_maps[name] = await self._client.find(CONFIG_MAPS, f"{pod.namespace}/{name}")
        for name in sorted(secrets):
            found.secrets[name] = await self._client.find(SECRETS, f"{pod.namespace}/{name}")
        return found

    async def _mount(self, pod: Pod, volume: PodVolume, *, block: bool, ran: bool) -> MountedVolume:
        try:
            if volume.persistent_volume_claim is not None or volume.ephemeral is not None:
                return await self._claim(pod, volume, block=block, ran=ran)
            return await self._inline(pod, volume, block=block)
        except (MountError, Missing, ApiError, OSError) as error:
            raise MountError(f'MountVolume.SetUp failed for volume "{volume.name}" : {error}') from error

    async def _inline(self, pod: Pod, volume: PodVolume, *, block: bool) -> MountedVolume:
        if block:
            raise MountError("only claims can be used as devices")
        directory = self._root / pod.uid / "volumes" / volume.name
        group = pod.spec.security_context.fs_group
        if volume.host_path is not None:
            return await self._host_path(volume.host_path)
        if volume.nfs is not None:
            return await self._nfs(volume.nfs, directory, [])
        if is_projection(volume):
            configuration = await self.configuration(pod, *referenced_objects(volume))
            await asyncio.to_thread(write_files, directory, projected_files(pod, volume, configuration), group)
            return MountedVolume(str(directory), read_only=True)
        if volume.empty_dir is not None:
            await asyncio.to_thread(_make_empty, directory, group)
            return MountedVolume(str(directory))
        raise MountError("this node agent does not know the volume's source")

    async def _claim(self, pod: Pod, volume: PodVolume, *, block: bool, ran: bool) -> MountedVolume:
        source = volume.persistent_volume_claim
        name = source.claim_name if source is not None else f"{pod.name}-{volume.name}"
        claim = await self._client.find(CLAIMS, f"{pod.namespace}/{name}")
        if claim is None:
            raise MountError(f'persistentvolumeclaim "{name}" not found')
        found: Volume | None = None
        if claim.spec.volume_name:
            found = await self._client.find(VOLUMES, claim.spec.volume_name)
        if reason := claim_error(claim, found, ran=ran):
            raise MountError(f"error processing PVC {claim.key}: {reason}")
        if found is None:
            raise MountError(f"error processing PVC {claim.key}: its volume is gone")
        self._check_node(pod, found)
        _check_mode(found, block=block)
        self._use.take(claim, pod.uid)
        made = await self._persistent(pod, volume.name, found, block=block)
        await finish_expansion(self._client, claim, found)
        read_only = source is not None and source.read_only
        return MountedVolume(made.path, read_only=made.read_only or read_only, block=block)

    def _check_node(self, pod: Pod, volume: Volume) -> None:
        node = self._node(pod.spec.node_name)
        if node is not None and not volume_allows(volume, node):
            raise MountError(f"NodeAffinity check failed: volume {volume.name} cannot be used on node {node.name}")

    async def _persistent(self, pod: Pod, name: str, volume: Volume, *, block: bool) -> MountedVolume:
        spec = volume.spec
        if spec.local is not None:
            path = str(spec.local.get("path", ""))
            await asyncio.to_thread(check_local, path, block=block)
            if not block:
                await self._apply_group(pod, Path(path))
            return MountedVolume(path)
        if block:
            raise MountError(
                f"volume {volume.name} has volumeMode Block; only local volumes can be used as devices here"
            )
        if spec.host_path is not None:
            return await self._host_path(spec.host_path)
        if spec.nfs is not None:
            return await self._nfs(spec.nfs, self._root / pod.uid / "volumes" / name, list(spec.mount_options or ()))
        if spec.csi is not None:
            disk = await self._disks.find(volume, pod.spec.node_name, pod.uid)
            await self._apply_group(pod, disk)
            return MountedVolume(str(disk), read_only=bool(spec.csi.get("readOnly")))
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
        local = await asyncio.to_thread(local_directory, self._exports, server, path)
        if local is not None:
            return MountedVolume(str(local), read_only=read_only)
        await asyncio.to_thread(mount_nfs, server, path, target, [*options, *(["ro"] if read_only else [])])
        return MountedVolume(str(target), read_only=read_only)


def _used(pod: Pod) -> tuple[set[str], set[str]]:
    """Names of the volumes that containers mount, and of the volumes that they use as devices."""
    containers = [*(pod.spec.init_containers or ()), *pod.spec.containers]
    mounted = {mount.name for container in containers for mount in container.volume_mounts or ()}
    return mounted, {device.name for container in containers for device in container.volume_devices or ()}


def _check_mode(volume: Volume, *, block: bool) -> None:
    is_block = volume.spec.volume_mode == "Block"
    if is_block != block:
        field = "volumeDevices" if block else "volumeMounts"
        mode = "Block" if is_block else "Filesystem"
        raise MountError(f"volume {volume.name} has volumeMode {mode}, but is specified in {field}")


def _make_empty(directory: Path, group: int | None) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o777)
    if group is not None:
        set_volume_ownership(directory, group, on_root_mismatch=True)
