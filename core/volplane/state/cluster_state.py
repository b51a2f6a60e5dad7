"""What decisions see: caches, their indexes, drivers and what hooks returned; and the places of nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import product, starmap
from typing import Any

from msgspec.structs import replace

from volplane.assets import Segment
from volplane.drivers.registry import DriverRegistry
from volplane.kube import names
from volplane.kube.cache import Cache, IndexFunction
from volplane.kube.kinds import ATTACHMENTS, CAPACITIES, CSI_DRIVERS
from volplane.kube.objects import (
    Claim,
    CsiDriver,
    CsiStorageCapacity,
    Node,
    Pod,
    PodVolume,
    StorageClass,
    Volume,
    VolumeAttachment,
)
from volplane.state.matching import FreeVolumes, WaitingClaims, class_of_claim, refers_to, source_key
from volplane.state.naming import Overlaps, csi_source, handle_in, volume_name_of, volume_source
from volplane.state.progress import Progress
from volplane.state.records import (
    ClaimIntent,
    RecordConflict,
    RecycleIntent,
    Sealer,
    attachment_intent_of,
    named_in_record,
    read_intent,
)

_LOG = logging.getLogger(__name__)
_MOST_NAMED = 10
"""Other installations that are named in the log; tenants may write their names on claims."""
CSI_PREFIX = "kubernetes.io/csi/"
"""Begins the names of volumes of CSI drivers, as nodes report them."""


@dataclass(slots=True, kw_only=True)
class ClusterState:
    """Everything that a decision may look at: objects, indexes, views of drivers, progress. It reaches nothing else."""

    cluster_id: str
    """The mark on assets."""
    claims: Cache[Claim]
    volumes: Cache[Volume]
    classes: Cache[StorageClass]
    pods: Cache[Pod]
    nodes: Cache[Node]
    drivers: DriverRegistry
    """Decisions only look drivers up."""
    sealer: Sealer
    now: Callable[[], datetime]
    """The wall clock."""
    monotonic: Callable[[], float]
    """Loop time."""
    server_time: Callable[[], datetime | None] = lambda: None
    """The clock of the API server, as far as its answers show it."""
    namespace: str = "volplane-system"
    """Our namespace, with the scrubber pods."""
    lease: str = ""
    """Key of the Lease under which this process leads; "" = without an election."""
    node_name: str = ""
    """The node whose storage this process serves; "" = the cluster."""
    fence: Callable[[], str] = lambda: ""
    """Text of our term's `Fence`; "" = without an election."""
    attachments: Cache[VolumeAttachment] = field(default_factory=lambda: Cache(ATTACHMENTS, ATTACHMENT_INDEXES))
    """Empty, as the next two, unless a controller of this process uses it."""
    csi_drivers: Cache[CsiDriver] = field(default_factory=lambda: Cache(CSI_DRIVERS))
    capacities: Cache[CsiStorageCapacity] = field(default_factory=lambda: Cache(CAPACITIES))
    """Published room, in our namespace."""
    progress: Progress = field(default_factory=Progress)
    free: FreeVolumes = field(default_factory=FreeVolumes)
    waiting: WaitingClaims = field(default_factory=WaitingClaims)
    overlaps: Overlaps = field(default_factory=Overlaps)
    record_conflicts: RecordConflicts = field(init=False)
    places: NodePlaces = field(init=False)

    def __post_init__(self) -> None:
        self.places = NodePlaces(self.nodes)
        self.record_conflicts = RecordConflicts(self)

    def follow(self, *followers: object) -> None:
        """Subscribe methods to the caches by their names: `claim_changed` gets (old, new) of each changed claim."""
        caches: Mapping[str, Cache[Any]] = {
            "claim": self.claims,
            "volume": self.volumes,
            "class": self.classes,
            "pod": self.pods,
            "node": self.nodes,
            "attachment": self.attachments,
            "csi_driver": self.csi_drivers,
            "capacity": self.capacities,
        }
        for each in followers:
            for name in dir(each):
                if name.endswith("_changed") and not name.startswith("_"):
                    caches[name.removesuffix("_changed")].subscribe(getattr(each, name))

    @property
    def own_node(self) -> Node | None:
        """The Node that this process serves; None if it serves the cluster, or the Node does not exist."""
        return self.nodes.get(self.node_name) if self.node_name else None

    def epoch(self) -> float:
        """Return what the wall clock shows at loop time 0, in seconds."""
        return self.now().timestamp() - self.monotonic()

    def intent_of(self, claim: Claim) -> ClaimIntent | None:
        """Return the claim's sealed record; if that is damaged, what this process started last."""
        written = self.sealer.open(claim.uid, claim.annotation(names.INTENT))
        if written is not None:
            return written
        progress = self.progress.claims.get(claim.uid)
        return progress.intent if claim.has_finalizer(names.PROVISIONING_FINALIZER) else progress.last_intent()

    def begun(self, claim_uid: str) -> bool:
        """Return whether this process has begun to make an asset for the claim that no volume holds."""
        return self.progress.claims.get(claim_uid).begun and f"pvc-{claim_uid}" not in self.volumes

    def sealed(self, claim: Claim, intent: ClaimIntent) -> str:
        """Return the record of an intent that is worked on in our term, as an annotation of the claim."""
        return self.sealer.seal(claim.uid, replace(intent, fence=self.fence()))

    def volume_of(self, claim: Claim) -> Volume | None:
        """Return the volume of a bound claim, if that refers to this claim."""
        volume = self.volumes.get(claim.spec.volume_name) if claim.status.phase == "Bound" else None
        return volume if volume is not None and refers_to(volume, claim) else None

    def claim_of(self, volume: Volume) -> Claim | None:
        """Return the claim that the volume refers to by name and uid."""
        reference = volume.spec.claim_ref
        claim = self.claims.get(reference.key) if reference is not None else None
        return claim if claim is not None and refers_to(volume, claim) else None

    def attachments_of(self, volume: Volume) -> list[VolumeAttachment]:
        """Return the attachments of the volume's asset, through whatever PersistentVolume: that may be gone."""
        if not len(self.attachments):
            return []
        volumes = {volume.name, *self.overlaps.same_asset(volume)}
        named = (each for name in volumes for each in self.attachments.by_index("volume", name))
        found = {each.name: each for each in named if not self.of_former_volume(each)}
        driver, handle = csi_source(volume)
        attachers = sorted({driver, *(each.spec.attacher for each in found.values())})
        # The record of a volume with an in-tree source has the handle of that source.
        for asset in starmap(asset_name, product(attachers, sorted({handle, handle_in(volume_source(volume))}))):
            found.update((each.name, each) for each in self.attachments.by_index("asset", asset))
        return list(found.values())

    def of_former_volume(self, attachment: VolumeAttachment) -> bool:
        """Return whether its volume was made again since, for another asset: as a backup is restored."""
        record = attachment_intent_of(attachment)
        volume = self.volumes.get(attachment.spec.source.persistent_volume_name or "")
        if record is None or volume is None or record.uid == volume.uid:
            return False
        return record.handle not in (volume.annotation(names.HANDLE), handle_in(volume_source(volume)))

    def attached_to(self, volume: Volume) -> list[str]:
        """Return the names of the nodes for which an attachment of the volume's asset exists; sorted."""
        return sorted({each.spec.node_name for each in self.attachments_of(volume)})

    def has_driver(self, name: str) -> bool:
        """Return whether a driver of this name is configured here, working or not."""
        return self.drivers.get(name) is not None or bool(self.drivers.broken(name))

    def surely_now(self) -> datetime:
        """Return the time up to which all is past by our clock and by the server's."""
        return min(each for each in (self.now(), self.server_time()) if each is not None)

    def schedule_of(self, claim: Claim) -> str | None:
        """Return what is written of snapshots at regular times, on the claim or else on its class."""
        if (text := claim.annotation(names.SNAPSHOT_SCHEDULE)) is not None:
            return text
        storage_class = self.classes.get(class_of_claim(claim) or "")
        return storage_class.annotation(names.SNAPSHOT_SCHEDULE) if storage_class is not None else None

    def seconds_since(self, time: str | None) -> float:
        """Return how long ago a time of the server was, as far as its clock and ours agree; 0 if that is not known."""
        try:
            return max(0.0, (self.now() - datetime.fromisoformat(time or "").astimezone(UTC)).total_seconds())
        except ValueError:
            return 0.0

    def flow_of(self, key: str) -> str:
        """Return the flow of a claim's or volume's key in its queue, its class: failing ones do not delay others."""
        item = self.claims.get(key) or self.volumes.get(key)
        return class_of_claim(item) or "" if item is not None else ""

    def flow_of_attachment(self, key: str) -> str:
        """Return the flow of the attachment's key in its queue: many detaches delay no attach."""
        attachment = self.attachments.get(key)
        return "detach" if attachment is None or attachment.terminating else "attach"

    def default_class(self) -> StorageClass | None:
        """Return the newest class marked as default; of equally new ones that with the smallest name."""
        marks = (names.DEFAULT_CLASS, names.DEFAULT_CLASS_BETA)
        marked = [item for item in self.classes.values() if "true" in map(item.annotation, marks)]
        marked.sort(key=lambda item: item.name)
        return max(marked, key=lambda item: item.metadata.creation_timestamp or "", default=None)


SCRUB_VOLUME = "volplane.dev/scrub-volume"
"""Annotation of a scrubber pod: name of the volume that it scrubs."""


def claim_of_volume(pod: Pod, volume: PodVolume) -> str:
    """Return the key of the claim that the pod's volume stands for; "" if it is no claim."""
    if volume.persistent_volume_claim is not None:
        return f"{pod.namespace}/{volume.persistent_volume_claim.claim_name}"
    # The claim of a generic ephemeral volume is named after pod and volume.
    return f"{pod.namespace}/{pod.name}-{volume.name}" if volume.ephemeral is not None else ""


def claims_of_pod(pod: Pod) -> list[str]:
    return [key for volume in pod.spec.volumes or () if (key := claim_of_volume(pod, volume))]


def mounts(pod: Pod, claim: Claim, *, ephemeral: bool = True) -> bool:
    """Return whether the pod uses the claim; that of a volume made with a pod, if `ephemeral`, of this one only."""
    owners = claim.metadata.owner_references or () if ephemeral else ()
    owned = any(owner.controller and owner.uid == pod.uid for owner in owners)
    used = (each for each in pod.spec.volumes or () if claim_of_volume(pod, each) == claim.key)
    return any(owned or each.ephemeral is None for each in used)


def finished(pod: Pod) -> bool:
    """Return whether the pod has succeeded or failed, or is terminating without a running container."""
    if pod.status.phase in ("Succeeded", "Failed"):
        return True
    status = pod.status
    kinds = (status.init_container_statuses, status.container_statuses, status.ephemeral_container_statuses)
    running = any(each.state is not None and each.state.running is not None for kind in kinds for each in kind or ())
    return pod.terminating and not running


def asset_name(attacher: str, handle: str) -> str:
    """Return the key that all attachments of one asset share, whatever PersistentVolume they name."""
    return f"{attacher}^{handle}"


def _text(value: str | None) -> list[str]:
    return [value] if value else []


ATTACHMENT_INDEXES: Mapping[str, IndexFunction[VolumeAttachment]] = {
    "volume": lambda attachment: _text(attachment.spec.source.persistent_volume_name),
    "node": lambda attachment: [attachment.spec.node_name],
    "asset": lambda attachment: (
        [asset_name(attachment.spec.attacher, record.handle)]
        if (record := attachment_intent_of(attachment)) is not None
        else []
    ),
}
"""volume: by the volume, node: by the node that an attachment names; asset: by CSI driver and recorded handle."""
POD_INDEXES: Mapping[str, IndexFunction[Pod]] = {
    "claim": claims_of_pod,
    "scrubs": lambda pod: _text(pod.annotation(SCRUB_VOLUME)),
}
"""claim: by the claims a pod mounts; scrubs: by the volume that a scrubber pod names."""
CLAIM_INDEXES: Mapping[str, IndexFunction[Claim]] = {
    "volume": lambda claim: _text(claim.spec.volume_name),
    "unbound": lambda claim: [] if claim.bound else [class_of_claim(claim) or ""],
    "node": lambda claim: [] if claim.bound else _text(claim.annotation(names.SELECTED_NODE)),
    "own": lambda claim: [] if claim.bound else [volume_name_of(claim)],
    "source": lambda claim: _text(source_key(claim)),
    "namespace": lambda claim: [claim.namespace],
    "held": lambda claim: ["", claim.namespace] if claim.has_finalizer(names.CLAIM_AS_SOURCE) else [],
}
"""volume: by the volume a claim names; source: by what it is made of (`source_key`). Of unbound claims, unbound: by
class ("" = none); node: by the selected node; own: by the name of the volume that is made for them. namespace: by
theirs. held: those that are held for a snapshot, by namespace, and all of them under ""."""


class NodePlaces:
    """Follows a cache of nodes. The places are computed again only after the labels of a node have changed."""

    def __init__(self, nodes: Cache[Node]) -> None:
        self.nodes = nodes
        self._known: dict[tuple[str, ...], tuple[Segment, ...]] = {}
        nodes.subscribe(self._changed)

    def segments(self, keys: Sequence[str]) -> tuple[Segment, ...]:
        """Return the places of nodes by labels with these keys, each once, in order. Nodes may have none."""
        if not keys:
            return ()
        asked = tuple(keys)
        if asked not in self._known:
            labels = [node.metadata.labels or {} for node in self.nodes.values()]
            places = {tuple(each[key] for key in asked) for each in labels if all(key in each for key in asked)}
            self._known[asked] = tuple(dict(zip(asked, place, strict=True)) for place in sorted(places))
        return self._known[asked]

    def _changed(self, old: Node | None, new: Node | None) -> None:
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            self._known.clear()


@dataclass(slots=True, eq=False)
class RecordConflicts:
    """Follows the caches of claims and volumes. The record of a scrub is not sealed, and names its installation."""

    cluster: ClusterState
    by_uid: dict[str, RecordConflict] = field(default_factory=dict)
    """Of the objects over whose record there is a conflict."""
    _named: set[str] = field(default_factory=set)

    def is_ours(self, uid: str, text: str | None) -> bool:
        """Return whether the record on the claim of this uid was sealed with our key, in our term."""
        intent = self.cluster.sealer.open(uid, text)
        return intent is not None and intent.fence == self.cluster.fence()

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            self.by_uid.pop(old.uid, None)
            old = None
        if new is None:
            return
        before = None if old is None else old.annotation(names.INTENT)
        now = new.annotation(names.INTENT)
        if now == before:
            return
        had, has = self.is_ours(new.uid, before), self.is_ours(new.uid, now)
        bound = (bool(new.spec.volume_name) or new.bound) and not self.cluster.begun(new.uid)
        worked_on = had or new.has_finalizer(names.PROVISIONING_FINALIZER)
        if now is None and (new.terminating or bound or not worked_on):
            self.by_uid.pop(new.uid, None)  # The record has ended: nothing more is made for the claim.
            return
        if had and not has:
            self.by_uid.setdefault(new.uid, RecordConflict()).overwritten(self.cluster.monotonic())
        elif has and not had and (known := self.by_uid.get(new.uid)) is not None:
            known.written(self.cluster.monotonic())
        if not has and (author := self.cluster.sealer.other_author(new.uid, now)):
            # The other installation is at work, so the delay starts again.
            known = self.by_uid.setdefault(new.uid, RecordConflict())
            known.other, known.since = author, self.cluster.monotonic()
            driver, cluster = named_in_record(now).driver, self.cluster
            served = cluster.has_driver(driver) or cluster.drivers.starting(driver)
            if served and author not in self._named and len(self._named) < _MOST_NAMED:
                self._named.add(author)
                _LOG.warning(
                    "the installation of volplane in namespace %s serves driver %s too: its record stands on claim %s; "
                    "give each installation driver names of its own, or stop one of them",
                    author,
                    driver,
                    new.key,
                )

    def volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        if new is None or old is None or new.uid != old.uid:
            if old is not None:
                self.by_uid.pop(old.uid, None)
            return
        before, now = old.annotation(names.INTENT), new.annotation(names.INTENT)
        if before == now:
            return
        had, has, fence = read_intent(RecycleIntent, before), read_intent(RecycleIntent, now), self.cluster.fence()
        if has is None:
            self.by_uid.pop(new.uid, None)
        elif had is not None and had.fence == fence != has.fence and has.same_scrub(had):
            self.by_uid.setdefault(new.uid, RecordConflict()).overwritten(self.cluster.monotonic())
        elif has.fence == fence and (known := self.by_uid.get(new.uid)) is not None:
            known.written(self.cluster.monotonic())


def unique_name(volume: Volume) -> str:
    """Return driver and handle as one name, by which nodes report the volume; "" if it needs no attaching."""
    driver, handle = csi_source(volume)
    return f"{CSI_PREFIX}{driver}^{handle}" if driver else ""


def csi_parts(unique: str) -> tuple[str, str]:
    """Return driver and handle of a unique name; two empty texts for the volume of another kind of plugin."""
    if not unique.startswith(CSI_PREFIX):
        return "", ""
    driver, _, handle = unique.removeprefix(CSI_PREFIX).partition("^")
    return driver, handle


def _unique_names(volume: Volume) -> list[str]:
    name = unique_name(volume)
    if not name:
        return []
    recorded = f"{CSI_PREFIX}{asset_name(csi_parts(name)[0], handle_in(volume_source(volume)))}"
    return [name] if recorded == name else [name, recorded]


VOLUME_INDEXES: Mapping[str, IndexFunction[Volume]] = {"unique": _unique_names}
"""unique: by driver and handle; a volume with an in-tree source also by the handle in that source."""
