"""What the decisions of claims and volumes see: caches, indexes, drivers, settings and what hooks returned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeVar

from volplane.assets import Asset, VolumeSource
from volplane.binding.index import FreeVolumes, WaitingClaims
from volplane.binding.matching import Demand
from volplane.controller.actions import Notice
from volplane.controller.config import ScrubberSettings
from volplane.drivers.driver import Driver
from volplane.drivers.owners import SourceOwner
from volplane.drivers.registry import HookRequest
from volplane.drivers.view import DriverView
from volplane.kube import names
from volplane.kube.cache import Cache
from volplane.kube.objects import Claim, Node, Pod, StorageClass, Volume
from volplane.lifecycle.intents import ClaimIntent, Sealer

__all__ = [
    "Drivers",
    "Outcomes",
    "Pending",
    "Reschedule",
    "ScrubPlan",
    "Settings",
    "World",
    "on_release",
    "source_of",
    "warning",
]


Q = TypeVar("Q", bound=HookRequest)
T = TypeVar("T")


class Drivers(Protocol):
    """The configured drivers."""

    def get(self, name: str) -> DriverView | None:
        """The working driver of this name."""

    def broken(self, name: str) -> str:
        """Why the configured driver of this name does not work, or ""."""

    def owner_of(self, source: VolumeSource) -> SourceOwner:
        """The one driver that owns a static volume's source, as far as it is known. Calls no hook."""

    async def identify(self, source: VolumeSource) -> None:
        """Ask the drivers for the owner of the source; `owner_of` knows it afterwards."""

    def forget_source(self, source: VolumeSource) -> None:
        """Drop what is known about the owner of the source."""

    async def call(self, driver: DriverView, hook: Callable[[Driver, Q], T], request: Q) -> T:
        """Call a hook in the driver's own threads, within its deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Which duties this process has, and where it lives.

    binder: we are the binder (else a stock controller-manager is); provisioner, reclaimer: for our drivers.
    namespace: ours, where scrubber pods and the sealing key live. cluster_id: the mark on assets.
    """

    cluster_id: str
    namespace: str = "volplane-system"
    binder: bool = True
    provisioner: bool = True
    reclaimer: bool = True
    scrub: ScrubberSettings = field(default_factory=ScrubberSettings)

    @classmethod
    def of(cls, controllers: Collection[str], *, cluster_id: str, namespace: str, scrub: ScrubberSettings) -> Settings:
        """Of a process that runs these controllers."""
        return cls(
            cluster_id=cluster_id,
            namespace=namespace,
            binder="binder" in controllers,
            provisioner="provisioner" in controllers,
            reclaimer="reclaimer" in controllers,
            scrub=scrub,
        )


@dataclass(frozen=True, slots=True)
class Pending:
    """A hook answered `InProgress`: call it again at `due` (loop time) with `state`."""

    state: Mapping[str, Any]
    due: float


@dataclass(frozen=True, slots=True)
class Reschedule:
    """The backend has no room in the segment and left nothing there: another node may be chosen."""


@dataclass(frozen=True, slots=True)
class ScrubPlan:
    """The backend wants a scrubber pod; volume: the pod volume to mount instead of the usual one."""

    volume: Mapping[str, Any] | None


@dataclass(slots=True)
class Outcomes:
    """Results of hooks that no object holds yet. Losing them costs a repeated, idempotent call, never correctness."""

    made: dict[str, Asset | Pending | Reschedule] = field(default_factory=dict)
    """By claim uid: what `provision` returned."""
    intents: dict[str, ClaimIntent] = field(default_factory=dict)
    """By claim uid: the last sealed record that was seen, whatever a tenant does to it since."""
    attempted: dict[str, float] = field(default_factory=dict)
    """By claim uid: loop time of the end of the last `provision`, or of the first look since: `Absent` proves nothing for
    a while after that."""
    discarding: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By claim uid: the state of a long `delete` of an unwanted asset."""
    discarded: set[str] = field(default_factory=set)
    """Claim uids whose unwanted asset is proven absent."""
    deleted: dict[str, Pending | None] = field(default_factory=dict)
    """By volume uid: None = the asset is gone; `Pending` = deletion goes on."""
    scrubs: dict[str, ScrubPlan | Pending | None] = field(default_factory=dict)
    """By volume uid: how to scrub; None = the backend erased it itself."""
    failed: dict[str, str] = field(default_factory=dict)
    """By volume uid: why the last `delete` or `recycle` failed."""
    unsaid: set[str] = field(default_factory=set)
    """Volume uids whose last failure no write has told yet. Each is told once: another leader may have others to tell."""

    def forget_claim(self, uid: str) -> None:
        self.made.pop(uid, None)
        self.intents.pop(uid, None)
        self.attempted.pop(uid, None)
        self.discarding.pop(uid, None)
        self.discarded.discard(uid)

    def forget_volume(self, uid: str) -> None:
        self.deleted.pop(uid, None)
        self.scrubs.pop(uid, None)
        self.failed.pop(uid, None)
        self.unsaid.discard(uid)

    def succeeded(self, volume_uid: str) -> None:
        self.failed.pop(volume_uid, None)
        self.unsaid.discard(volume_uid)

    def untold(self, volume_uid: str) -> str:
        """Why the last `delete` or `recycle` failed, if that is still to be written; else ""."""
        return self.failed.get(volume_uid, "") if volume_uid in self.unsaid else ""


@dataclass(slots=True, kw_only=True)
class World:
    """Everything a decision may look at. Decisions read it; only the caches' listeners and operations change it."""

    settings: Settings
    claims: Cache[Claim]
    volumes: Cache[Volume]
    classes: Cache[StorageClass]
    pods: Cache[Pod]
    nodes: Cache[Node]
    drivers: Drivers
    sealer: Sealer
    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    fence: Callable[[], str] = lambda: ""
    outcomes: Outcomes = field(default_factory=Outcomes)
    free: FreeVolumes = field(default_factory=FreeVolumes)
    waiting: WaitingClaims = field(default_factory=WaitingClaims)

    # The binder's view of volumes.

    def get(self, key: str) -> Volume | None:
        return self.volumes.get(key)

    def reserved_for(self, claim_key: str) -> list[str]:
        return self.free.reserved_for(claim_key)

    def best(self, demand: Demand, *, claim_key: str = "") -> Volume | None:
        return self.free.best(demand, claim_key=claim_key)

    def intent_of(self, claim: Claim) -> ClaimIntent | None:
        """What is being made for the claim: its sealed record, or, where that is damaged, what this process last began."""
        written = self.sealer.open(claim.uid, claim.annotation(names.INTENT))
        return written if written is not None else self.outcomes.intents.get(claim.uid)

    def default_class(self) -> StorageClass | None:
        """The newest class marked as default; of equally new ones the smallest name."""
        marked = [
            item
            for item in self.classes.values()
            if "true" in (item.annotation(names.DEFAULT_CLASS), item.annotation(names.DEFAULT_CLASS_BETA))
        ]
        if not marked:
            return None
        newest = max(item.metadata.creation_timestamp or "" for item in marked)
        return min(
            (item for item in marked if (item.metadata.creation_timestamp or "") == newest), key=lambda item: item.name
        )


def on_release(volume: Volume) -> str:
    """What happens with a dynamic volume when its claim goes: "recycle" offers it again, else ""."""
    return volume.annotation(names.ON_RELEASE) or ""


def source_of(volume: Volume) -> VolumeSource | None:
    """The volume's source under the API's key, or None if it has none that we know."""
    spec = volume.spec
    for attribute, key in _SOURCES:
        fields = getattr(spec, attribute)
        if fields is not None:
            return VolumeSource(kind=key, fields=fields)
    return None


_SOURCES = (
    ("csi", "csi"),
    ("local", "local"),
    ("host_path", "hostPath"),
    ("nfs", "nfs"),
    ("aws_elastic_block_store", "awsElasticBlockStore"),
    ("gce_persistent_disk", "gcePersistentDisk"),
    ("azure_disk", "azureDisk"),
    ("azure_file", "azureFile"),
    ("cephfs", "cephfs"),
    ("cinder", "cinder"),
    ("fc", "fc"),
    ("flex_volume", "flexVolume"),
    ("flocker", "flocker"),
    ("glusterfs", "glusterfs"),
    ("iscsi", "iscsi"),
    ("photon_persistent_disk", "photonPersistentDisk"),
    ("portworx_volume", "portworxVolume"),
    ("quobyte", "quobyte"),
    ("rbd", "rbd"),
    ("scale_io", "scaleIO"),
    ("storageos", "storageos"),
    ("vsphere_volume", "vsphereVolume"),
)


def warning(kind: Any, about: Claim | Volume, reason: str, message: str) -> Notice:
    return Notice(kind, about, "Warning", reason, message)
