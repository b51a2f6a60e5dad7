"""Which snapshots on a backend no object of the cluster leads to, for the leak check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from volplane.assets import Snapshot
from volplane.snapshots.groups_objects import GROUP_CONTENT_PREFIX, GROUP_CONTENTS, VolumeGroupSnapshotContent
from volplane.snapshots.objects import VOLUME_SNAPSHOT_CONTENTS, VOLUME_SNAPSHOTS, VolumeSnapshot, VolumeSnapshotContent

LED_TO_BY: Final = (GROUP_CONTENTS, VOLUME_SNAPSHOTS, VOLUME_SNAPSHOT_CONTENTS)
"""The kinds whose objects lead to snapshots, in the order in which they are read."""
MAY_LACK: Final = (GROUP_CONTENTS,)
"""The one of them that a cluster may lack while it has the others."""


@dataclass(slots=True, eq=False)
class ListedSnapshots:
    """A complete listing of one driver, and what leads to its snapshots.

    Add every snapshot of the listing first, then every VolumeSnapshot, then every content, each kind read after the one
    before: a content exists before its snapshot is cut and goes after it, so that what is cut meanwhile is never taken
    for lost.
    """

    cluster_id: str
    _listed: list[Snapshot] = field(default_factory=list)
    _wanted: set[str] = field(default_factory=set)
    """Uids of VolumeSnapshots: one whose content was lost gets its snapshot again, by the marks."""
    _contents: set[str] = field(default_factory=set)
    """Names of contents, and the handles in them."""
    _blind: bool = False
    """Groups are not shown: what was cut for one may be led to."""

    def add_listed(self, snapshot: Snapshot) -> None:
        self._listed.append(snapshot)

    def add_snapshot(self, snapshot: VolumeSnapshot) -> None:
        self._wanted.add(snapshot.uid)

    def add_content(self, content: VolumeSnapshotContent) -> None:
        self._contents.update((content.name, content.status.snapshot_handle, content.spec.source.snapshot_handle))

    def add_group_content(self, content: VolumeGroupSnapshotContent | None) -> None:
        """Add the content of a group. None: the cluster lacks the kind, or does not show it to this process."""
        if content is None:
            self._blind = True
        else:
            self._contents.update((content.name, *content.snapshot_handles))

    def forget_objects(self) -> None:
        """Keep the snapshots, and compare them with other objects."""
        self._wanted.clear()
        self._contents.clear()
        self._blind = False

    def foreign(self) -> Iterator[tuple[Snapshot, str]]:
        """Yield each snapshot that another cluster has made, or nobody knows who, and why it is none of ours."""
        for each in self._listed:
            if each.owner is None:
                yield each, "carries no marks"
            elif each.owner.cluster_id != self.cluster_id:
                yield each, f"carries the marks of cluster {each.owner.cluster_id}"

    def lost(self) -> Iterator[tuple[Snapshot, str]]:
        """Yield each snapshot of this cluster to which no object leads, and what is missing."""
        for each in self._listed:
            owner = each.owner
            if owner is None or owner.cluster_id != self.cluster_id or owner.snapshot_uid in self._wanted:
                continue
            if self._blind and owner.content_name.startswith(GROUP_CONTENT_PREFIX):
                continue
            if self._contents.isdisjoint((owner.content_name, each.handle)):
                yield each, f"no VolumeSnapshotContent leads to it, {owner.content_name} does not exist"
