"""Snapshots as the API has them, where a cluster has their CustomResourceDefinitions.

Source: client/apis/volumesnapshot/v1 of kubernetes-csi/external-snapshotter.
"""

from __future__ import annotations

import msgspec

from volplane.kube.kinds import Kind
from volplane.kube.objects import Fields, KubeObject, ObjectReference, VolumeError


class SnapshotSource(Fields):
    """Of a VolumeSnapshot, one of the first two; of a content, one of the others."""

    persistent_volume_claim_name: str = ""
    volume_snapshot_content_name: str = ""
    volume_handle: str = ""
    snapshot_handle: str = ""


class SnapshotSpec(Fields):
    source: SnapshotSource = msgspec.field(default_factory=SnapshotSource)
    volume_snapshot_class_name: str | None = None


class SnapshotStatus(Fields):
    bound_volume_snapshot_content_name: str = ""
    creation_time: str | None = None
    ready_to_use: bool = False
    restore_size: str | int | None = None
    error: VolumeError | None = None
    volume_group_snapshot_name: str = ""


class VolumeSnapshot(KubeObject):
    spec: SnapshotSpec = msgspec.field(default_factory=SnapshotSpec)
    status: SnapshotStatus = msgspec.field(default_factory=SnapshotStatus)


class SnapshotContentSpec(SnapshotSpec):
    volume_snapshot_ref: ObjectReference = msgspec.field(default_factory=ObjectReference)
    deletion_policy: str = ""
    driver: str = ""
    source_volume_mode: str | None = None


class SnapshotContentStatus(Fields):
    """creation_time: nanoseconds since 1970. restore_size: bytes."""

    snapshot_handle: str = ""
    creation_time: int | None = None
    ready_to_use: bool = False
    restore_size: int | None = None
    error: VolumeError | None = None
    volume_group_snapshot_handle: str = ""


class VolumeSnapshotContent(KubeObject):
    spec: SnapshotContentSpec = msgspec.field(default_factory=SnapshotContentSpec)
    status: SnapshotContentStatus = msgspec.field(default_factory=SnapshotContentStatus)


class VolumeSnapshotClass(KubeObject):
    driver: str = ""
    deletion_policy: str = ""
    parameters: dict[str, str] | None = None


_API = "snapshot.storage.k8s.io/v1"
VOLUME_SNAPSHOTS = Kind(_API, "VolumeSnapshot", "volumesnapshots", True, VolumeSnapshot, optional=True)
VOLUME_SNAPSHOT_CONTENTS = Kind(
    _API, "VolumeSnapshotContent", "volumesnapshotcontents", False, VolumeSnapshotContent, optional=True
)
VOLUME_SNAPSHOT_CLASSES = Kind(
    _API, "VolumeSnapshotClass", "volumesnapshotclasses", False, VolumeSnapshotClass, optional=True
)
