"""The event handlers of groups of snapshots: which keys a change of a cache queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from volplane.controller.actions import Queue
from volplane.kube import names
from volplane.kube.objects import Claim, Lease
from volplane.snapshots.groups_objects import (
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    group_content_name_of,
    group_of,
)
from volplane.snapshots.objects import VolumeSnapshot, VolumeSnapshotContent
from volplane.snapshots.state import SnapshotState


@dataclass(slots=True)
class GroupHandlers:
    state: SnapshotState
    groups: Queue
    contents: Queue
    snapshots: Queue
    sources: Queue
    _follows: bool = field(default=False, init=False)

    def subscribe(self) -> None:
        self.state.groups.subscribe(self.group_changed)
        self.state.group_contents.subscribe(self.content_changed)
        self.state.group_classes.subscribe(self.class_changed)
        self.state.leases.subscribe(self.lease_changed)

    def _follow_members(self) -> None:
        """Follow members and claims from the first group on, as `SnapshotHandlers` does."""
        if not self._follows:
            self._follows = True
            self.state.snapshots.subscribe(self.member_changed)
            self.state.contents.subscribe(self.member_content_changed)
            self.state.cluster.claims.subscribe(self.claim_changed)

    def group_changed(self, old: VolumeGroupSnapshot | None, new: VolumeGroupSnapshot | None) -> None:
        self._follow_members()
        known = new or old or VolumeGroupSnapshot()
        self.groups.enqueue(known.key)
        self._look_at_sources(known.namespace)
        if old is None or new is None or old.terminating != new.terminating:
            self.contents.enqueue(group_content_name_of(known))
            for member in self.state.members_of(known):
                self.snapshots.enqueue(member.key)

    def content_changed(self, old: VolumeGroupSnapshotContent | None, new: VolumeGroupSnapshotContent | None) -> None:
        known = new or old or VolumeGroupSnapshotContent()
        self.state.progress_seen(self.state.grouped, known, gone=new is None)
        self.contents.enqueue(known.key)
        self.groups.enqueue(known.spec.volume_group_snapshot_ref.key)
        self._look_at_sources(known.spec.volume_group_snapshot_ref.namespace)

    def _look_at_sources(self, namespace: str) -> None:
        for key in self.state.held_claims(namespace):
            self.sources.enqueue(key)

    def class_changed(self, _old: VolumeGroupSnapshotClass | None, _new: VolumeGroupSnapshotClass | None) -> None:
        """Look at what waits for a class."""
        self._enqueue(self.waiting(), (each.key for each in self.state.group_contents.values() if not each.handle))

    def lease_changed(self, _old: Lease | None, _new: Lease | None) -> None:
        """Look at everything: another controller may have begun or ceased to bind groups."""
        self._enqueue(self.state.groups.keys(), self.state.group_contents.keys())

    def _enqueue(self, groups: Iterable[str], contents: Iterable[str]) -> None:
        for key in groups:
            self.groups.enqueue(key)
        for key in contents:
            self.contents.enqueue(key)

    def member_changed(self, old: VolumeSnapshot | None, new: VolumeSnapshot | None) -> None:
        known = new or old or VolumeSnapshot()
        if (owner := group_of(known)) is not None:
            self.groups.enqueue(f"{known.namespace}/{owner.name}")

    def member_content_changed(self, old: VolumeSnapshotContent | None, new: VolumeSnapshotContent | None) -> None:
        reference = (new or old or VolumeSnapshotContent()).spec.volume_snapshot_ref
        snapshot = self.state.snapshots.get(reference.key)
        if snapshot is not None:
            self.member_changed(None, snapshot)

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        """Look at groups that have no content yet; and a claim that restores a member holds its group."""
        known = new or old or Claim()
        for group in self.state.groups.by_index("claims", known.namespace):
            self.groups.enqueue(group.key)
        if known.has_finalizer(names.CLAIM_AS_SOURCE):
            self.sources.enqueue(known.key)

    def waiting(self) -> Iterator[str]:
        """Yield the keys of groups that are not ready."""
        return (each.key for each in self.state.groups.values() if not each.status.ready_to_use)

    def contents_of_driver(self, name: str) -> Iterator[str]:
        """Yield the keys of the contents that the driver of this name serves, and "" for the others."""
        return (each.key if each.spec.driver == name else "" for each in self.state.group_contents.values())
