"""Finds out which volumes a pod wants, and whether it may have them.

A claim and its volume are read live. Source: pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, Volume
from volplane.state.cluster_state import unique_name
from volplane_embedded.kubelet.mounts import MountError
from volplane_embedded.objects import Pod, PodVolume, claim_names

_ONE_POD: Final = "ReadWriteOncePod"


@dataclass(frozen=True, slots=True)
class DesiredVolume:
    """A volume that a container of the pod uses. block: as a device. claim, volume: None if the pod describes it
    itself.
    """

    source: PodVolume
    block: bool = False
    claim: Claim | None = None
    volume: Volume | None = None

    @property
    def name(self) -> str:
        """Its name in the pod."""
        return self.source.name

    @property
    def spec_name(self) -> str:
        """Its name in events."""
        return self.volume.name if self.volume is not None else self.source.name

    @property
    def unique(self) -> str:
        """Driver and handle, "" for a volume that is not attached."""
        return unique_name(self.volume) if self.volume is not None and self.volume.spec.csi is not None else ""


@dataclass(slots=True)
class Desired:
    """What a pod wants. failed: name of a volume that it may not have -> why."""

    volumes: list[DesiredVolume] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


class ClaimUse:
    """Which pods of this process use a claim. Refuses a second pod for ReadWriteOncePod."""

    def __init__(self) -> None:
        self._users: dict[str, set[str]] = {}

    def take(self, claim: Claim, pod_uid: str) -> None:
        """Record a user of the claim. Raises MountError if only one pod may use it and another does."""
        if _ONE_POD in (claim.spec.access_modes or ()) and self._users.get(claim.uid, set()) - {pod_uid}:
            raise MountError(
                f"volume uses the {_ONE_POD} access mode and is already in use by another pod (claim {claim.key})"
            )
        self.restore(claim.uid, pod_uid)

    def restore(self, claim_uid: str, pod_uid: str) -> None:
        """Record a user from before this process."""
        self._users.setdefault(claim_uid, set()).add(pod_uid)

    def release(self, pod_uid: str) -> None:
        for uid in [uid for uid, users in self._users.items() if pod_uid in users]:
            self._users[uid].discard(pod_uid)
            if not self._users[uid]:
                del self._users[uid]


def claim_error(claim: Claim, volume: Volume | None, *, ran: bool) -> str:
    """Explain why the pod may not use the claim, or "". ran: its containers ran before a restart of the kubelet.

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


async def populate(client: Client, pod: Pod, *, ran: bool) -> Desired:
    """Return the volumes that containers of the pod use. ran: see `claim_error`. Raises ApiError."""
    mounted, devices = _used(pod)
    desired = Desired()
    for volume in pod.spec.volumes or ():
        if volume.name not in mounted | devices:
            continue
        block = volume.name in devices
        try:
            found = await _resolve(client, pod, DesiredVolume(volume, block), ran=ran)
        except MountError as error:
            desired.failed[volume.name] = str(error)
        else:
            desired.volumes.append(found)
    return desired


async def _resolve(client: Client, pod: Pod, wanted: DesiredVolume, *, ran: bool) -> DesiredVolume:
    source = wanted.source
    if source.persistent_volume_claim is None and source.ephemeral is None:
        if wanted.block:
            raise MountError("only claims can be used as devices")
        return wanted
    owned = source.persistent_volume_claim is None
    name = (
        f"{pod.name}-{source.name}"
        if source.persistent_volume_claim is None
        else source.persistent_volume_claim.claim_name
    )
    claim = await client.find(CLAIMS, f"{pod.namespace}/{name}")
    if claim is None:
        raise MountError(f'persistentvolumeclaim "{name}" not found')
    if owned and all(owner.uid != pod.uid for owner in claim.metadata.owner_references or ()):
        raise MountError(f"PVC {claim.key} was not created for pod {pod.key} (pod is not owner)")
    volume: Volume | None = None
    if claim.spec.volume_name:
        volume = await client.find(VOLUMES, claim.spec.volume_name)
    if (reason := claim_error(claim, volume, ran=ran)) or volume is None:
        raise MountError(f"error processing PVC {claim.key}: {reason}")
    _check_mode(volume, block=wanted.block)
    return DesiredVolume(source, wanted.block, claim, volume)


def _used(pod: Pod) -> tuple[set[str], set[str]]:
    """Return the names of the volumes that containers mount, and of the volumes that they use as devices."""
    containers = [*(pod.spec.init_containers or ()), *pod.spec.containers]
    mounted = {mount.name for container in containers for mount in container.volume_mounts or ()}
    return mounted, {device.name for container in containers for device in container.volume_devices or ()}


def _check_mode(volume: Volume, *, block: bool) -> None:
    is_block = volume.spec.volume_mode == "Block"
    if is_block != block:
        field_name = "volumeDevices" if block else "volumeMounts"
        mode = "Block" if is_block else "Filesystem"
        raise MountError(f"volume {volume.name} has volumeMode {mode}, but is specified in {field_name}")


def attached_volumes(
    pod: Pod, claims: Callable[[str], Claim | None], volumes: Callable[[str], Volume | None]
) -> Iterable[str]:
    """Unique names of the attached volumes of a pod's claims, as caches know them."""
    for name in claim_names(pod):
        claim = claims(f"{pod.namespace}/{name}")
        volume = volumes(claim.spec.volume_name) if claim is not None and claim.spec.volume_name else None
        if volume is not None and volume.spec.csi is not None:
            yield unique_name(volume)
