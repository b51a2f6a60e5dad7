"""The event handlers of snapshots: which keys a change of a cache queues.

Claims and volumes are followed from the first VolumeSnapshot on: in a cluster without one nothing of this runs in the
life of a claim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from volplane.controller.actions import Queue
from volplane.kube import names
from volplane.kube.objects import Claim, Lease, Volume
from volplane.snapshots.objects import VOLUME_SNAPSHOTS, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent
from volplane.snapshots.source import unbound_of
from volplane.snapshots.state import SnapshotState, claim_key_of, content_name_of
from volplane.state.matching import source_of


@dataclass(slots=True)
class SnapshotHandlers:
    state: SnapshotState
    snapshots: Queue
    contents: Queue
    sources: Queue
    claims: Queue
    """Of all duties: claims that wait for a snapshot to be made from it."""
    _follows: bool = field(default=False, init=False)

    def subscribe(self) -> None:
        self.state.snapshots.subscribe(self.snapshot_changed)
        self.state.contents.subscribe(self.content_changed)
        self.state.classes.subscribe(self.class_changed)
        self.state.leases.subscribe(self.lease_changed)

    def _follow_sources(self) -> None:
        if not self._follows:
            self._follows = True
            self.state.cluster.claims.subscribe(self.claim_changed)
            self.state.cluster.volumes.subscribe(self.volume_changed)

    def snapshot_changed(self, old: VolumeSnapshot | None, new: VolumeSnapshot | None) -> None:
        self._follow_sources()
        known = new or old or VolumeSnapshot()
        self.snapshots.enqueue(known.key)
        if new is None:
            self.state.sought.forget(known.uid)
        self.sources.enqueue(claim_key_of(known))
        if known.status.ready_to_use and (old is None or not old.status.ready_to_use):
            for claim in unbound_of(VOLUME_SNAPSHOTS, known.key, self.state.cluster):
                self.claims.enqueue(claim.key)
        # Whether a snapshot may be cut, or deleted, depends on whether this one is there.
        if old is None or new is None or old.terminating != new.terminating:
            self.contents.enqueue(content_name_of(known))
            self.contents.enqueue(known.status.bound_volume_snapshot_content_name or content_name_of(known))

    def content_changed(self, old: VolumeSnapshotContent | None, new: VolumeSnapshotContent | None) -> None:
        known = new or old or VolumeSnapshotContent()
        self.state.progress_seen(self.state.progress, known, gone=new is None)
        self.contents.enqueue(known.key)
        self.snapshots.enqueue(known.spec.volume_snapshot_ref.key)

    def class_changed(self, _old: VolumeSnapshotClass | None, _new: VolumeSnapshotClass | None) -> None:
        for key in self.waiting():
            self.snapshots.enqueue(key)
        for content in self.state.contents.values():
            if not content.status.snapshot_handle:
                self.contents.enqueue(content.key)

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        before = self.state.binds()
        self.state.lease_changed(old, new)
        if before != self.state.binds():
            for snapshot in self.state.snapshots.values():
                self.snapshots.enqueue(snapshot.key)
            for content in self.state.contents.values():
                self.contents.enqueue(content.key)

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        claim = new or old or Claim()
        for each in self.state.snapshots.by_index("claim", claim.key):
            if each.status.creation_time is None:
                self.snapshots.enqueue(each.key)
        if claim.has_finalizer(names.CLAIM_AS_SOURCE):
            self.sources.enqueue(claim.key)
        source = source_of(claim)
        if source is not None and source.kind == VOLUME_SNAPSHOTS.kind:
            self.snapshots.enqueue(source.key_from(claim.namespace))

    def volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        reference = (new or old or Volume()).spec.claim_ref
        for each in self.state.snapshots.by_index("claim", reference.key) if reference is not None else ():
            if each.status.creation_time is None:
                self.snapshots.enqueue(each.key)

    def waiting(self) -> Iterator[str]:
        """Yield the keys of VolumeSnapshots that are not ready, or whose content is gone."""
        snapshots, content_of = self.state.snapshots.values(), self.state.content_of
        return (each.key for each in snapshots if not each.status.ready_to_use or content_of(each) is None)

    def contents_of_driver(self, name: str) -> Iterator[str]:
        """Yield the keys of the contents that the driver of this name serves, and "" for the others."""
        return (each.key if each.spec.driver == name else "" for each in self.state.contents.values())
