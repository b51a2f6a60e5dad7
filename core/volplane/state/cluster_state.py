"""What decisions see: caches, indexes, drivers, settings and what hooks returned."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from itertools import product, starmap
from typing import Protocol

from msgspec.structs import replace

from volplane.assets import VolumeSource
from volplane.binding.index import FreeVolumes, WaitingClaims
from volplane.binding.matching import Demand, class_of_claim, class_of_volume
from volplane.controller.config import ScrubberSettings
from volplane.drivers.owners import SourceOwner
from volplane.drivers.view import DriverView
from volplane.kube import names
from volplane.kube.cache import Cache
from volplane.kube.kinds import ATTACHMENTS, CAPACITIES, CSI_DRIVERS
from volplane.kube.objects import (
    Claim,
    CsiDriver,
    CsiStorageCapacity,
    Node,
    Pod,
    StorageClass,
    Volume,
    VolumeAttachment,
)
from volplane.state.indexes import ATTACHMENT_INDEXES, asset_name
from volplane.state.naming import csi_source, handle_in, volume_source
from volplane.state.overlaps import Overlaps
from volplane.state.progress import Progress
from volplane.state.race import RaceTimes
from volplane.state.record_conflicts import RecordConflicts
from volplane.state.records import ClaimIntent, Sealer

__all__ = ["ClusterState", "Drivers", "Settings"]


class Drivers(Protocol):
    """The configured drivers, as decisions see them."""

    def get(self, name: str) -> DriverView | None:
        """The working driver of this name."""

    def distributed(self, name: str) -> DriverView | None:
        """The driver of this name, if it is `on_nodes` and made."""

    def on_nodes(self, name: str) -> bool:
        """Whether the processes of the nodes call the hooks of this driver, and this one does not."""

    def publishes(self, name: str) -> bool:
        """Whether the room of the driver of this name is published, by this process or by those of the nodes."""

    def starting(self, name: str) -> bool:
        """Whether the driver of this name will be ready, or be broken with a reason, in a moment."""

    def broken(self, name: str) -> str:
        """Why the configured driver of this name does not work, or ""."""

    def owner_of(self, source: VolumeSource) -> SourceOwner:
        """The one driver that owns a static volume's source, as far as it is known. Calls no hook."""

    def attachers(self, csi_driver: str) -> tuple[str, ...]:
        """Names of the configured drivers, usable or not, that serve the attachments of this CSI driver name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Which duties this process has, and where it lives.

    binder: we are the binder (else a stock controller-manager is); provisioner, reclaimer, expander: for our drivers.
    protection: we keep the in-use finalizers. attacher: we serve the attachments of our drivers. attach_detach: we
    decide what is attached where. force_detach: a volume that its unhealthy node never unmounts is detached after
    `force_detach_after` seconds.
    namespace: ours, where scrubber pods and the sealing key live. cluster_id: the mark on assets.
    assigner: we choose nodes for the claims of distributed drivers, and label what belongs to them. capacity: we
    publish the room there is. external_choice: somebody else selects the nodes of claims that bind immediately.
    node_name: the one node whose storage this process serves; "" = the cluster. race: processes of nodes
    compete for claims that have no node, with these base and longest delays; None = an assigner places them.
    lease: key of the Lease under which this process leads, "" if nobody is elected.
    """

    cluster_id: str
    namespace: str = "volplane-system"
    lease: str = ""
    binder: bool = True
    provisioner: bool = True
    reclaimer: bool = True
    expander: bool = True
    protection: bool = True
    attacher: bool = True
    attach_detach: bool = True
    assigner: bool = True
    capacity: bool = True
    external_choice: bool = False
    node_name: str = ""
    race: tuple[float, float] | None = None
    force_detach: bool = True
    force_detach_after: float = 360.0
    scrub: ScrubberSettings = field(default_factory=ScrubberSettings)

    @property
    def follows_pods(self) -> bool:
        """Whether decisions look at pods of all namespaces: of the binder, the protection, or attach-detach.

        The reclaimer alone needs its scrubber pods, and asks live who else uses a volume.
        """
        return self.binder or self.protection or self.attach_detach

    @classmethod
    def of(
        cls,
        controllers: Collection[str],
        *,
        cluster_id: str,
        namespace: str,
        scrub: ScrubberSettings,
        force_detach: bool = True,
        external_choice: bool = False,
        node_name: str = "",
        race: tuple[float, float] | None = None,
        lease: str = "",
    ) -> Settings:
        """Of a process that runs these controllers."""
        return cls(
            cluster_id=cluster_id,
            namespace=namespace,
            lease=lease,
            binder="binder" in controllers,
            provisioner="provisioner" in controllers,
            reclaimer="reclaimer" in controllers,
            expander="expander" in controllers,
            protection="protection" in controllers,
            attacher="attacher" in controllers,
            attach_detach="attach-detach" in controllers,
            assigner="assigner" in controllers and race is None,
            capacity="capacity" in controllers,
            external_choice=external_choice,
            node_name=node_name,
            race=race,
            force_detach=force_detach,
            scrub=scrub,
        )


@dataclass(slots=True, kw_only=True)
class ClusterState:
    """Everything that a decision may look at: objects, indexes, views of drivers, progress. It reaches nothing else.

    attachments, csi_drivers: empty where no controller of this process attaches, or says what a driver can do.
    capacities: published room, in our namespace; empty where no controller of this process publishes or uses it.
    race: where claims without a node are taken in a race.
    now: wall time; monotonic: loop time; fence: text of our term's `Fence`, "" if nobody is elected. Decisions read;
    event handlers and operations change the caches and the progress.
    """

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
    attachments: Cache[VolumeAttachment] = field(default_factory=lambda: Cache(ATTACHMENTS, ATTACHMENT_INDEXES))
    csi_drivers: Cache[CsiDriver] = field(default_factory=lambda: Cache(CSI_DRIVERS))
    capacities: Cache[CsiStorageCapacity] = field(default_factory=lambda: Cache(CAPACITIES))
    progress: Progress = field(default_factory=Progress)
    race: RaceTimes | None = None
    free: FreeVolumes = field(default_factory=FreeVolumes)
    waiting: WaitingClaims = field(default_factory=WaitingClaims)
    overlaps: Overlaps = field(default_factory=Overlaps)
    record_conflicts: RecordConflicts = field(init=False)

    def __post_init__(self) -> None:
        # Through this object: a test may give it another term.
        self.record_conflicts = RecordConflicts(
            self.sealer,
            serves=lambda name: self.has_driver(name) or self.drivers.starting(name),
            fence=lambda: self.fence(),  # noqa: PLW0108
            monotonic=lambda: self.monotonic(),  # noqa: PLW0108
        )

    # The binder's view of volumes.

    def get(self, key: str) -> Volume | None:
        return self.volumes.get(key)

    def reserved_for(self, claim_key: str) -> list[str]:
        return self.free.reserved_for(claim_key)

    def best(self, demand: Demand, *, claim_key: str = "") -> Volume | None:
        return self.free.best(demand, claim_key=claim_key)

    def intent_of(self, claim: Claim) -> ClaimIntent | None:
        """What is being made for the claim: its sealed record; if that is damaged, what this process last began."""
        written = self.sealer.open(claim.uid, claim.annotation(names.INTENT))
        return written if written is not None else self.progress.claims.get(claim.uid).intent

    def sealed(self, claim: Claim, intent: ClaimIntent) -> str:
        """The record of an intent that is worked on in our term, as an annotation of the claim."""
        return self.sealer.seal(claim.uid, replace(intent, fence=self.fence()))

    def attachments_of(self, volume: Volume) -> list[VolumeAttachment]:
        """The attachments of the volume's asset: those that name the volume, and those that name another
        PersistentVolume of the same driver and handle, which may be gone.
        """
        found = {each.name: each for each in self.attachments.by_index("volume", volume.name)}
        driver, handle = csi_source(volume)
        attachers = sorted({driver, *(each.spec.attacher for each in found.values())})
        # What is recorded of a volume with an in-tree source is the handle as that has it.
        for asset in starmap(asset_name, product(attachers, sorted({handle, handle_in(volume_source(volume))}))):
            found.update((each.name, each) for each in self.attachments.by_index("asset", asset))
        return list(found.values())

    def attached_to(self, volume: Volume) -> list[str]:
        """Names of the nodes for which an attachment of the volume's asset exists; sorted."""
        return sorted({each.spec.node_name for each in self.attachments_of(volume)})

    def has_driver(self, name: str) -> bool:
        """Whether a driver of this name is configured here, working or not."""
        return self.drivers.get(name) is not None or bool(self.drivers.broken(name))

    def removes_protection(self, volume: Volume) -> bool:
        """Whether this process deletes the volume's asset, and its last write then removes the protection too."""
        settings, maker = self.settings, volume.annotation(names.PROVISIONED_BY) or ""
        ours = settings.binder and settings.reclaimer and settings.protection and self.has_driver(maker)
        deletes = volume.has_finalizer(names.RECLAIM_FINALIZER)
        on_a_node = self.drivers.on_nodes(maker)
        return ours and deletes and not on_a_node and volume.status.phase != "Bound"

    def flow_of_claim(self, key: str) -> str:
        """The flow of the claim's key in its queue: its class. Failing claims of one class do not delay others."""
        claim = self.claims.get(key)
        return class_of_claim(claim) or "" if claim is not None else ""

    def flow_of_volume(self, key: str) -> str:
        """The flow of the volume's key in its queue: its class."""
        volume = self.volumes.get(key)
        return class_of_volume(volume) if volume is not None else ""

    def flow_of_attachment(self, key: str) -> str:
        """The flow of the attachment's key in its queue: many that are to be detached delay none that is to be
        attached.
        """
        attachment = self.attachments.get(key)
        return "detach" if attachment is None or attachment.terminating else "attach"

    def default_class(self) -> StorageClass | None:
        """The newest class marked as default; of equally new ones the smallest name."""
        marked = [
            item
            for item in self.classes.values()
            if "true" in (item.annotation(names.DEFAULT_CLASS), item.annotation(names.DEFAULT_CLASS_BETA))
        ]
        marked.sort(key=lambda item: item.name)
        return max(marked, key=lambda item: item.metadata.creation_timestamp or "", default=None)
