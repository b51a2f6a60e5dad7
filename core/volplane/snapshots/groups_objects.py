"""Groups of snapshots as the API has them, and the names that follow from them.

Source: client/apis/volumegroupsnapshot/v1 of kubernetes-csi/external-snapshotter.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from volplane.kube.kinds import Kind
from volplane.kube.objects import Fields, KubeObject, LabelSelector, ObjectReference, OwnerReference, VolumeError
from volplane.snapshots.objects import VolumeSnapshot, VolumeSnapshotClass

GROUP_CONTENT_PREFIX: Final = "groupsnapcontent-"
GROUP_PREFIX: Final = "groupsnapshot-"


class GroupSource(Fields):
    """Of a VolumeGroupSnapshot: one of the two."""

    selector: LabelSelector | None = None
    volume_group_snapshot_content_name: str = ""


class GroupSpec(Fields):
    source: GroupSource = msgspec.field(default_factory=GroupSource)
    volume_group_snapshot_class_name: str | None = None


class GroupStatus(Fields):
    bound_volume_group_snapshot_content_name: str = ""
    creation_time: str | None = None
    ready_to_use: bool = False
    error: VolumeError | None = None


class VolumeGroupSnapshot(KubeObject):
    spec: GroupSpec = msgspec.field(default_factory=GroupSpec)
    status: GroupStatus = msgspec.field(default_factory=GroupStatus)


class GroupHandles(Fields):
    volume_group_snapshot_handle: str = ""
    volume_snapshot_handles: list[str] | None = None


class GroupContentSource(Fields):
    """Of a content: one of the two."""

    volume_handles: list[str] | None = None
    group_snapshot_handles: GroupHandles | None = None


class GroupContentSpec(Fields):
    volume_group_snapshot_ref: ObjectReference = msgspec.field(default_factory=ObjectReference)
    volume_group_snapshot_class_name: str | None = None
    deletion_policy: str = ""
    driver: str = ""
    source: GroupContentSource = msgspec.field(default_factory=GroupContentSource)


class MemberInfo(Fields):
    """A member in the status of a content. creation_time: nanoseconds since 1970. restore_size: bytes."""

    volume_handle: str = ""
    snapshot_handle: str = ""
    creation_time: int | None = None
    ready_to_use: bool = False
    restore_size: int | None = None


class GroupContentStatus(Fields):
    volume_group_snapshot_handle: str = ""
    creation_time: str | None = None
    ready_to_use: bool = False
    error: VolumeError | None = None
    volume_snapshot_info_list: list[MemberInfo] | None = None


class VolumeGroupSnapshotContent(KubeObject):
    spec: GroupContentSpec = msgspec.field(default_factory=GroupContentSpec)
    status: GroupContentStatus = msgspec.field(default_factory=GroupContentStatus)

    @property
    def handle(self) -> str:
        """The backend's id of the group; "" if there is none yet."""
        given = self.spec.source.group_snapshot_handles
        return self.status.volume_group_snapshot_handle or (given.volume_group_snapshot_handle if given else "")

    @property
    def members(self) -> list[MemberInfo]:
        return self.status.volume_snapshot_info_list or []

    @property
    def snapshot_handles(self) -> tuple[str, ...]:
        """The handles of the members that are known."""
        given = self.spec.source.group_snapshot_handles
        listed = [each.snapshot_handle for each in self.members]
        return tuple(listed or (given.volume_snapshot_handles if given else None) or ())


class VolumeGroupSnapshotClass(VolumeSnapshotClass):
    """It has the fields of a VolumeSnapshotClass."""


GROUP_API: Final = "groupsnapshot.storage.k8s.io"
_V1: Final = f"{GROUP_API}/v1"
GROUPS: Final = Kind(_V1, "VolumeGroupSnapshot", "volumegroupsnapshots", True, VolumeGroupSnapshot, optional=True)
GROUP_CONTENTS: Final = Kind(
    _V1, "VolumeGroupSnapshotContent", "volumegroupsnapshotcontents", False, VolumeGroupSnapshotContent, optional=True
)
GROUP_CLASSES: Final = Kind(
    _V1, "VolumeGroupSnapshotClass", "volumegroupsnapshotclasses", False, VolumeGroupSnapshotClass, optional=True
)


def group_content_name_of(group: VolumeGroupSnapshot) -> str:
    """Return the name of the content that a group has or will have."""
    return group.spec.source.volume_group_snapshot_content_name or f"{GROUP_CONTENT_PREFIX}{group.uid}"


def group_name(uid: str) -> str:
    """Return the name under which the backend makes the snapshots of the group with this uid."""
    return GROUP_PREFIX + uid


def member_digest(group_uid: str, volume_handle: str) -> str:
    """Return what the names of a member's VolumeSnapshot and content end with."""
    return hashlib.sha256(f"{group_uid}{volume_handle}".encode()).hexdigest()


def group_of(snapshot: VolumeSnapshot) -> OwnerReference | None:
    """Return the reference to the group of which the VolumeSnapshot is a member; None if it is of none."""
    owners = snapshot.metadata.owner_references or ()
    return next((each for each in owners if each.kind == GROUPS.kind and each.uid), None)


def names_group(content: VolumeGroupSnapshotContent, group: VolumeGroupSnapshot) -> bool:
    """Return whether the content names this group; one without uid names whatever has that name."""
    reference = content.spec.volume_group_snapshot_ref
    return reference.key == group.key and reference.uid in ("", group.uid)
