"""Brings what pods have mounted to what they want, and remembers it over a restart.

A pod's volumes are reported in use, then waited for and mounted one by one; one that has to wait holds up no other.
What a former process mounted is found on disk. Source: pkg/kubelet/volumemanager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from volplane.attach.desired import attachment_name
from volplane.errors import ApiError
from volplane.kube.client import Client
from volplane.kube.kinds import SECRETS
from volplane.kube.objects import Claim, Node, Volume
from volplane.state.cluster_state import csi_parts, unique_name
from volplane_embedded.kubelet.attached_disks import AttachedDisks, NodeFull, NotAttached
from volplane_embedded.kubelet.container_config import MountedVolume
from volplane_embedded.kubelet.environment import ConfigObjects, Missing
from volplane_embedded.kubelet.expansion import finish_expansion
from volplane_embedded.kubelet.local_exports import LocalExport
from volplane_embedded.kubelet.mounts import MountError
from volplane_embedded.kubelet.pod_directory import PodDirectory
from volplane_embedded.kubelet.populator import ClaimUse, DesiredVolume, populate
from volplane_embedded.kubelet.volume_data import VolumeData, read_volume_data, write_volume_data
from volplane_embedded.kubelet.volume_operations import VolumeOperations
from volplane_embedded.kubelet.volume_plugins import VolumePlugins
from volplane_embedded.kubelet.volumes_in_use import VolumesInUse
from volplane_embedded.node_affinity import volume_allows
from volplane_embedded.objects import CONFIG_MAPS, Pod


@dataclass(frozen=True, slots=True)
class FailedOperation:
    """One volume that could not be mounted: reason and message of the pod's event."""

    reason: str
    message: str


@dataclass(slots=True)
class VolumesNotReady(Exception):
    """The pod cannot start yet. Names are those of volumes in the pod.

    unmounted: all that it lacks. unattached: those that are waited for. unprocessed: those that it may not have. cause:
    of the last two, for people. full: the node can have no more volumes, so the pod must go elsewhere.
    """

    unmounted: list[str]
    unattached: list[str] = field(default_factory=list)
    unprocessed: list[str] = field(default_factory=list)
    cause: str = ""
    failed: list[FailedOperation] = field(default_factory=list)
    full: bool = False

    def __str__(self) -> str:
        return self.text(self.cause or "; ".join(each.message for each in self.failed))

    def text(self, cause: str) -> str:
        """Return the text of the kubelet's event."""
        lists = (
            ("unmounted volumes", self.unmounted),
            ("unattached volumes", self.unattached),
            ("failed to process volumes", self.unprocessed),
        )
        said = ", ".join(f"{what}=[{' '.join(sorted(names))}]" for what, names in lists)
        return f"Unable to attach or mount volumes: {said}: {cause}"


class VolumeManager:
    """The volumes of the pods of this process. What a pod has is below `<root>/<pod uid>/volumes`."""

    def __init__(
        self,
        client: Client,
        root: Path,
        node: Callable[[str], Node | None],
        disks: AttachedDisks,
        *,
        exports: Sequence[LocalExport] = (),
    ) -> None:
        """node: the cached node of a name. disks: of volumes with a csi source. exports: of this machine."""
        self._client = client
        self._root = root
        self._node = node
        self._use = ClaimUse()
        self._operations = VolumeOperations()
        self._plugins = VolumePlugins(root, disks, exports, self.configuration)
        self.in_use = VolumesInUse(client)

    # --- of pods --------------------------------------------------------------------------------------------------

    async def mount(self, pod: Pod, *, ran: bool) -> dict[str, MountedVolume]:
        """Mount the volumes that containers of the pod use; gives them by name. Idempotent.

        Raises VolumesNotReady, ApiError.
        """
        desired = await populate(self._client, pod, ran=ran)
        await self.in_use.add(pod.spec.node_name, {each.unique for each in desired.volumes} - {""}, pod.uid)
        mounted: dict[str, MountedVolume] = {}
        waits: dict[str, str] = {}
        failed: list[FailedOperation] = []
        full = False
        for wanted in desired.volumes:
            try:
                mounted[wanted.name] = await self._mount(pod, wanted)
            except NotAttached as error:
                waits[wanted.name] = str(error)
                full = full or isinstance(error, NodeFull)
            except (MountError, Missing, ApiError, OSError) as error:
                failed.append(_failed(wanted, error))
        lacking = [each.name for each in desired.volumes if each.name not in mounted]
        if lacking or desired.failed:
            raise VolumesNotReady(
                unmounted=[*lacking, *desired.failed],
                unattached=list(waits),
                unprocessed=list(desired.failed),
                cause="; ".join([*desired.failed.values()] or [*waits.values()]),
                failed=failed,
                full=full,
            )
        return mounted

    async def unmount(self, pod_uid: str, node: str) -> None:
        """Unmount everything that the pod has, and say so. Raises MountError; ApiError if it could only not be said."""
        held = sorted(each.unique_name for each in await asyncio.to_thread(read_volume_data, self._root, pod_uid))
        async with AsyncExitStack() as operations:
            for unique in held:
                await operations.enter_async_context(self._operations.on(node, unique))
            await asyncio.to_thread(PodDirectory(self._root, pod_uid).tear_down)
        await self.release(pod_uid)

    async def release(self, pod_uid: str) -> None:
        """Record that the pod has nothing mounted any more, and wants nothing. Raises ApiError."""
        self._use.release(pod_uid)
        await self.in_use.release(pod_uid)

    async def expand(self, claim: Claim, volume: Volume, node: str) -> bool:
        """Do the node's half of a growth while pods use the volume; whether there was something to do.

        Raises MountError, ApiError.
        """
        async with self._operations.on(node, unique_name(volume)):
            await self._give_size(volume, node)
            return await finish_expansion(self._client, claim, volume)

    async def grow_device(self, volume: Volume, node: str) -> None:
        """Give a device that pods use the size of its volume. Drivers say of devices that a node has nothing to do for
        their growth. Raises MountError, ApiError.
        """
        async with self._operations.on(node, unique_name(volume)):
            await self._give_size(volume, node)

    async def _give_size(self, volume: Volume, node: str) -> None:
        """Grow the file that stands for a device. A real device grows by itself."""
        if volume.spec.csi is not None and volume.spec.volume_mode == "Block":
            await self._plugins.disks.find(volume, node, block=True)

    async def restore(self, nodes: Collection[str]) -> None:
        """Find what pods had mounted under former processes. Writes nothing."""
        for data in await asyncio.to_thread(read_volume_data, self._root):
            self._use.restore(data.claim_uid, data.pod_uid)
            if data.node_name in nodes:
                self.in_use.restore(data.node_name, (data.unique_name,), data.pod_uid)

    async def _mount(self, pod: Pod, wanted: DesiredVolume) -> MountedVolume:
        node, claim, volume = pod.spec.node_name, wanted.claim, wanted.volume
        if claim is None or volume is None:
            return await self._plugins.set_up(pod, wanted)
        async with self._operations.on(node, wanted.unique):
            self._check_node(node, volume)
            self._use.take(claim, pod.uid)
            made = await self._plugins.set_up(pod, wanted)
            if wanted.unique:
                files = PodDirectory(self._root, pod.uid)
                await asyncio.to_thread(write_volume_data, files.volumes, _data(pod, wanted, volume, claim))
            await finish_expansion(self._client, claim, volume)
            return made

    def _check_node(self, name: str, volume: Volume) -> None:
        node = self._node(name)
        if node is not None and not volume_allows(volume, node):
            raise MountError(f"NodeAffinity check failed: volume {volume.name} cannot be used on node {node.name}")

    # --- configuration --------------------------------------------------------------------------------------------

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


def _failed(wanted: DesiredVolume, error: Exception) -> FailedOperation:
    if wanted.block:
        text = f'MapVolume.SetUpDevice failed for volume "{wanted.spec_name}" : {error}'
        return FailedOperation("FailedMapVolume", text)
    return FailedOperation("FailedMount", f'MountVolume.SetUp failed for volume "{wanted.spec_name}" : {error}')


def _data(pod: Pod, wanted: DesiredVolume, volume: Volume, claim: Claim) -> VolumeData:
    driver, handle = csi_parts(wanted.unique)
    return VolumeData(
        pod_uid=pod.uid,
        node_name=pod.spec.node_name,
        spec_volume_id=volume.name,
        driver_name=driver,
        volume_handle=handle,
        attachment_id=attachment_name(driver, handle, pod.spec.node_name),
        claim_uid=claim.uid,
        unique_name=wanted.unique,
    )
