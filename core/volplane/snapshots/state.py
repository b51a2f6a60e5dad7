"""What decisions about snapshots see: the objects, what hooks returned, and whether a stock controller is at work.

The objects live in caches of this package, which stay empty where a cluster does not serve the kinds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from volplane.assets import GroupSnapshot, Snapshot, SnapshotOwnership
from volplane.kube import names
from volplane.kube.cache import Cache, IndexFunction
from volplane.kube.kinds import LEASES
from volplane.kube.objects import Claim, Lease, Volume, VolumeError
from volplane.snapshots.groups_objects import (
    GROUP_CLASSES,
    GROUP_CONTENTS,
    GROUPS,
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    group_of,
)
from volplane.snapshots.objects import (
    VOLUME_SNAPSHOT_CLASSES,
    VOLUME_SNAPSHOT_CONTENTS,
    VOLUME_SNAPSHOTS,
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
)
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import handle_in, handle_of, volume_source
from volplane.state.progress import LongCall, ProgressTable
from volplane.state.records import Intent, read_intent

STOCK_LEASE: Final = "snapshot-controller-leader"
"""Name of the Lease of a stock snapshot-controller, in the namespace where that runs."""
STOCK_SECONDS: Final = 60.0
"""Seconds without a renewal after which its holder counts as gone; the stock one renews it every five."""
CONTENT_PREFIX: Final = "snapcontent-"
SNAPSHOT_PREFIX: Final = "snapshot-"
TERMINAL: Final = "terminal: "
"""Begins an error that nothing here will end: no further call is made."""


class SnapshotIntent(Intent, frozen=True):
    """On a content, written before the hook may cut: what is asked for, and what finds and deletes it afterwards."""

    cluster: str
    """The cluster's id in the marks of the snapshot."""
    snapshot: str
    """Uid of the VolumeSnapshot in these marks. The content may be bound to another one later."""
    volume: str
    """Name of the PersistentVolume."""
    claim: str = ""
    """Uid of the claim to which that is bound: nothing is cut once it is another one's. "" = not compared."""
    parameters: dict[str, str] = msgspec.field(default_factory=dict)
    """Those of the class at that time: the class may change, or be deleted."""
    state: dict[str, Any] | None = None
    """What the last `InProgress` of `create_snapshot` returned; None = there was none."""
    deleting: dict[str, Any] | None = None
    """The same of `delete_snapshot`."""
    fence: str = ""
    """The term (`volplane.Fence`) in which it was written; "" = without an election."""


class GroupMember(msgspec.Struct, frozen=True):
    """A volume of a group."""

    handle: str
    """By which the content names it."""
    asset: str
    """By which the driver knows it."""
    volume: str
    """Name of the PersistentVolume."""
    claim: str
    """Uid of the claim to which that is bound: nothing is cut once it is another one's."""
    claim_name: str = ""
    mode: str = ""
    """Volume mode of what is cut, which may be gone before its content is made: a tenant can remove what holds it."""


class GroupIntent(Intent, frozen=True):
    """On the content of a group, written before the hook may cut; as `SnapshotIntent`."""

    cluster: str
    group: str
    """Uid of the VolumeGroupSnapshot in the marks."""
    members: tuple[GroupMember, ...]
    parameters: dict[str, str] = msgspec.field(default_factory=dict)
    state: dict[str, Any] | None = None
    deleting: dict[str, Any] | None = None
    fence: str = ""


class Cutting(LongCall, frozen=True):
    """`create_snapshot` goes on: the moment may lie ahead."""


class Cut(msgspec.Struct, frozen=True):
    """The snapshot exists. The status may not show it yet, or it is not ready."""

    snapshot: Snapshot
    created: int
    """Nanoseconds since 1970."""
    due: float
    """Loop time of the next look, while it is not ready."""


class GroupCut(msgspec.Struct, frozen=True):
    """The snapshots of a group exist; as `Cut`."""

    group: GroupSnapshot
    created: int
    due: float


class Lost(msgspec.Struct, frozen=True):
    """It is proven that there is no snapshot, and none will be cut."""


class Removing(LongCall, frozen=True):
    """`delete_snapshot` goes on."""


class Removed(msgspec.Struct, frozen=True):
    """It is proven that there is no snapshot any more."""


class ContentProgress(msgspec.Struct):
    step: Cutting | Cut | GroupCut | Lost | Removing | Removed | None = None
    failure: str = ""
    """The last failure, which the status may not show yet; "" = none."""
    attempted: float | None = None
    """Loop time of the end of the last call that may have cut, or of the first look since."""

    def reached(self, step: Cutting | Cut | GroupCut | Lost | Removing | Removed) -> None:
        self.step, self.failure = step, ""

    def failed(self, failure: str) -> None:
        """Note that a call failed. What an earlier one showed is on the object, or is looked up again."""
        self.failure = failure
        if isinstance(self.step, Cut | GroupCut):
            self.step = None

    def error_seen(self, message: str) -> None:
        """Note that the status shows this error. A failure is shown once: another leader may have others to show."""
        if self.failure == message:
            self.failure = ""

    def absence_seen(self, now: float, settle_seconds: float) -> float:
        """Note that the backend showed none. Return the seconds until that is proof."""
        if self.attempted is None:
            self.attempted = now
        return self.attempted + settle_seconds - now


SNAPSHOT_INDEXES: Final[Mapping[str, IndexFunction[VolumeSnapshot]]] = {
    "claim": lambda snapshot: (
        [f"{snapshot.namespace}/{claim}"] if (claim := snapshot.spec.source.persistent_volume_claim_name) else []
    ),
    "group": lambda snapshot: (
        [f"{snapshot.namespace}/{owner.uid}"] if (owner := group_of(snapshot)) is not None else []
    ),
}
"""claim: by the claim of which it is a snapshot. group: by namespace and uid of the group of which it is a member."""
CONTENT_INDEXES: Final[Mapping[str, IndexFunction[VolumeSnapshotContent]]] = {
    "handle": lambda content: sorted({content.status.snapshot_handle, content.spec.source.snapshot_handle} - {""})
}
"""handle: by the snapshots to which it leads."""


GROUP_INDEXES: Final[Mapping[str, IndexFunction[VolumeGroupSnapshot]]] = {
    "claims": lambda group: [group.namespace] if group.terminating or group.status.creation_time is None else []
}
"""claims: by the namespace whose claims matter to it now: they are chosen, or may be made from its members."""
GROUP_CONTENT_INDEXES: Final[Mapping[str, IndexFunction[VolumeGroupSnapshotContent]]] = {
    "handle": lambda content: [content.handle] if content.handle else []
}


def _of_the_system(namespace: str, ours: str) -> bool:
    """Return whether only administrators write in this namespace: it is ours, or has a prefix that is reserved."""
    return namespace == ours or namespace.startswith(("kube-", "openshift-"))


@dataclass(slots=True, kw_only=True)
class SnapshotState:
    cluster: ClusterState
    common: bool
    """Whether this process runs the half that binds VolumeSnapshots and contents."""
    snapshots: Cache[VolumeSnapshot] = field(default_factory=lambda: Cache(VOLUME_SNAPSHOTS, SNAPSHOT_INDEXES))
    contents: Cache[VolumeSnapshotContent] = field(
        default_factory=lambda: Cache(VOLUME_SNAPSHOT_CONTENTS, CONTENT_INDEXES)
    )
    classes: Cache[VolumeSnapshotClass] = field(default_factory=lambda: Cache(VOLUME_SNAPSHOT_CLASSES))
    leases: Cache[Lease] = field(default_factory=lambda: Cache(LEASES))
    """Those of stock snapshot-controllers."""
    progress: ProgressTable[str, ContentProgress] = field(default_factory=lambda: ProgressTable(ContentProgress))
    """By uid of the content."""
    groups: Cache[VolumeGroupSnapshot] = field(default_factory=lambda: Cache(GROUPS, GROUP_INDEXES))
    group_contents: Cache[VolumeGroupSnapshotContent] = field(
        default_factory=lambda: Cache(GROUP_CONTENTS, GROUP_CONTENT_INDEXES)
    )
    group_classes: Cache[VolumeGroupSnapshotClass] = field(default_factory=lambda: Cache(GROUP_CLASSES))
    grouped: ProgressTable[str, ContentProgress] = field(default_factory=lambda: ProgressTable(ContentProgress))
    """By uid of the content of a group."""
    sought: ProgressTable[str, ContentProgress] = field(default_factory=lambda: ProgressTable(ContentProgress))
    """By uid of the VolumeSnapshot: what was found of one whose content is gone."""
    _renewed: dict[str, float] = field(default_factory=dict)

    # --- who works on them ----------------------------------------------------------------------------------------

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """Listen to the Leases of stock controllers, but not in namespaces of tenants, who may write them."""
        if not _of_the_system((new or old or Lease()).namespace, self.cluster.namespace):
            return
        if new is not None and new.spec.holder_identity:
            self._renewed[new.key] = self.cluster.monotonic()
        elif (lease := new or old) is not None:
            self._renewed.pop(lease.key, None)

    def stock_for(self) -> tuple[str, float]:
        """Return the Lease that a stock snapshot-controller holds, and the seconds for which that is certain."""
        now = self.cluster.monotonic()
        held = {key: at + STOCK_SECONDS - now for key, at in self._renewed.items()}
        key = max(held, key=held.__getitem__, default="")
        return (key, held[key]) if key and held[key] > 0 else ("", 0.0)

    def binds(self) -> bool:
        """Return whether both halves are ours: no stock controller binds snapshots and contents."""
        return self.common and not self.stock_for()[0]

    def serves(self, driver: str) -> bool:
        """Return whether a driver of this name is ours, working or not."""
        return self.cluster.has_driver(driver) or self.cluster.drivers.starting(driver)

    # --- what belongs together ------------------------------------------------------------------------------------

    def snapshot_of(self, content: VolumeSnapshotContent) -> VolumeSnapshot | None:
        """Return the VolumeSnapshot that the content names, if it is this very one."""
        reference = content.spec.volume_snapshot_ref
        snapshot = self.snapshots.get(reference.key)
        return snapshot if snapshot is not None and snapshot.uid == reference.uid else None

    def content_of(self, snapshot: VolumeSnapshot) -> VolumeSnapshotContent | None:
        """Return the content of this name that a VolumeSnapshot has or will have, whomever it names."""
        return self.contents.get(content_name_of(snapshot))

    def claim_of(self, snapshot: VolumeSnapshot) -> Claim | None:
        """Return the claim of which it is a snapshot."""
        return self.cluster.claims.get(claim_key_of(snapshot))

    def source_of(self, content: VolumeSnapshotContent) -> Volume | None:
        """Return the volume of which the snapshot is cut: by the record, else by the claim of the VolumeSnapshot.

        None also if it is not that claim's any more: a tenant can remove what holds the claim, and the volume may hold
        another one's data by now.
        """
        intent, volume, owner = intent_of(content), None, ""
        if intent is not None and intent.volume:
            volume, owner = self.cluster.volumes.get(intent.volume), intent.claim
        elif (snapshot := self.snapshot_of(content)) is not None and (claim := self.claim_of(snapshot)) is not None:
            volume, owner = self.cluster.volumes.get(claim.spec.volume_name), claim.uid
        if volume is None or content.spec.source.volume_handle not in (handle_of(volume), handle_in_source(volume)):
            return None
        return volume if not owner or claim_uid_of(volume) == owner else None

    def shared_with(self, content: VolumeSnapshotContent | VolumeGroupSnapshotContent, handle: str) -> str:
        """Return the name of another content that leads to the same snapshot and stays; "" if there is none."""
        others = (each for each in self.contents.by_index("handle", handle) if each.spec.driver == content.spec.driver)
        return next((each.name for each in others if each.uid != content.uid and not each.terminating), "")

    @staticmethod
    def progress_seen(
        table: ProgressTable[str, ContentProgress],
        content: VolumeSnapshotContent | VolumeGroupSnapshotContent,
        *,
        gone: bool,
    ) -> None:
        """Note what a content shows, or forget it."""
        if gone:
            table.forget(content.uid)
        elif content.status.error is not None:
            table.get(content.uid).error_seen(content.status.error.message)

    def count(self) -> Counter[tuple[str, str]]:
        """Count the VolumeSnapshots of our drivers by driver and state."""
        found: Counter[tuple[str, str]] = Counter()
        for snapshot in self.snapshots.values():
            content, status = self.content_of(snapshot), snapshot.status
            of_class = self.classes.get(snapshot.spec.volume_snapshot_class_name or "")
            driver = content.spec.driver if content is not None else of_class.driver if of_class is not None else ""
            if self.cluster.has_driver(driver):
                found[driver, "ready" if status.ready_to_use else state_of_error(status.error)] += 1
        return found

    def members_of(self, group: VolumeGroupSnapshot) -> list[VolumeSnapshot]:
        """Return the VolumeSnapshots of the group's namespace that name it as their owner."""
        return self.snapshots.by_index("group", f"{group.namespace}/{group.uid}")

    def unfinished_of(self, claim_key: str) -> Iterator[VolumeSnapshot]:
        """Yield the VolumeSnapshots that still need the volume of this claim."""
        return (each for each in self.snapshots.by_index("claim", claim_key) if needs_source(each))

    def held_claims(self, namespace: str = "") -> Iterator[str]:
        """Yield the keys of claims that are held for a snapshot, of one namespace or ("") of all."""
        return (each.key for each in self.cluster.claims.by_index("held", namespace))

    def claims_in(self, namespace: str) -> list[Claim]:
        """Return the claims of a namespace by name: what a tenant has done costs as much as its own claims."""
        return self.cluster.claims.by_index("namespace", namespace)


def claim_uid_of(volume: Volume) -> str:
    """Return the uid of the claim to which the volume is bound; "" if it is bound to none."""
    return volume.spec.claim_ref.uid if volume.spec.claim_ref is not None else ""


def handle_in_source(volume: Volume) -> str:
    """Return the handle that stands in the volume's source, by which others name it."""
    return handle_in(volume_source(volume))


def claim_key_of(snapshot: VolumeSnapshot) -> str:
    return f"{snapshot.namespace}/{snapshot.spec.source.persistent_volume_claim_name}"


def content_name_of(snapshot: VolumeSnapshot) -> str:
    """Return the name of the content that a VolumeSnapshot has or will have."""
    source = snapshot.spec.source
    suffix = snapshot.uid if group_of(snapshot) is None else snapshot.name.removeprefix(SNAPSHOT_PREFIX)
    return source.volume_snapshot_content_name or f"{CONTENT_PREFIX}{suffix}"


def names_snapshot(content: VolumeSnapshotContent, snapshot: VolumeSnapshot) -> bool:
    """Return whether the content names this VolumeSnapshot; one without uid names whatever has that name."""
    reference = content.spec.volume_snapshot_ref
    return reference.key == snapshot.key and reference.uid in ("", snapshot.uid)


def needs_source(snapshot: VolumeSnapshot) -> bool:
    """Return whether the volume of its claim is still needed: it was accepted, and its moment has not passed."""
    done = snapshot.status.creation_time is not None or is_terminal(snapshot.status.error)
    return snapshot.has_finalizer(names.SNAPSHOT_AS_SOURCE) and not done


def is_terminal(error: VolumeError | None) -> bool:
    """Return whether nothing here will end this error."""
    return error is not None and error.message.startswith(TERMINAL)


def state_of_error(error: VolumeError | None) -> str:
    """Return what metrics call the state of what is not ready and shows this error."""
    return "failed" if is_terminal(error) else "error" if error is not None else "pending"


def intent_of(content: VolumeSnapshotContent) -> SnapshotIntent | None:
    """Return the record of what may have been cut; None where a person or another controller wrote the content."""
    return read_intent(SnapshotIntent, content.annotation(names.INTENT))


def snapshot_name(uid: str) -> str:
    """Return the name under which the backend makes the snapshot of the VolumeSnapshot with this uid."""
    return SNAPSHOT_PREFIX + uid


def marks_of(uid: str, cluster_id: str) -> SnapshotOwnership:
    """Return the marks of the snapshot of the VolumeSnapshot with this uid."""
    return SnapshotOwnership(cluster_id=cluster_id, snapshot_uid=uid, content_name=f"{CONTENT_PREFIX}{uid}")


def marked_uid(content: VolumeSnapshotContent) -> str:
    """Return the uid in name and marks of the snapshot of a dynamic content, which may be bound to another one now."""
    intent = intent_of(content)
    return intent.snapshot if intent is not None else content.spec.volume_snapshot_ref.uid


def owner_of_snapshot(content: VolumeSnapshotContent, cluster_id: str) -> SnapshotOwnership:
    """Return the marks of the snapshot of a dynamic content."""
    intent = intent_of(content)
    return marks_of(marked_uid(content), intent.cluster if intent is not None else cluster_id)
