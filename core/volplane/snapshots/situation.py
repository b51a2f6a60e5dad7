"""Where a VolumeSnapshot stands, in sentences for `volplane explain`. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from volplane.snapshots.groups_objects import VolumeGroupSnapshot, VolumeGroupSnapshotContent
from volplane.snapshots.objects import VolumeSnapshot, VolumeSnapshotContent


def situation_of(snapshot: VolumeSnapshot, content: VolumeSnapshotContent | None) -> Iterator[str]:
    status, source = snapshot.status, snapshot.spec.source
    going = ", and is being deleted" if snapshot.terminating else ""
    shown = "can be used" if status.ready_to_use else "is cut and not ready" if status.creation_time else "is not cut"
    yield f"snapshot {snapshot.key} {shown}{going}"
    if snapshot.terminating:
        yield f"its deletion waits for: {', '.join(snapshot.metadata.finalizers or ()) or 'nobody'}"
    if source.persistent_volume_claim_name:
        yield f"it is of claim {snapshot.namespace}/{source.persistent_volume_claim_name}"
    if status.creation_time is not None:
        yield f"its moment is {status.creation_time}"
    yield f"its class is {snapshot.spec.volume_snapshot_class_name or 'not chosen'}"
    if status.error is not None:
        yield f"its status says since {status.error.time}: {status.error.message}"
    if content is None:
        yield "it has no content"
        return
    handle = content.status.snapshot_handle or content.spec.source.snapshot_handle or "none yet"
    policy = content.spec.deletion_policy
    yield f"content {content.name} is of driver {content.spec.driver}, has policy {policy}, and its handle is {handle}"


def situation_of_group(group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent | None) -> Iterator[str]:
    status, going = group.status, ", and is being deleted" if group.terminating else ""
    shown = "can be used" if status.ready_to_use else "is cut and not ready" if status.creation_time else "is not cut"
    yield f"group {group.key} {shown}{going}"
    if group.terminating:
        yield f"its deletion waits for: {', '.join(group.metadata.finalizers or ()) or 'nobody'}"
    if status.creation_time is not None:
        yield f"its moment is {status.creation_time}"
    yield f"its class is {group.spec.volume_group_snapshot_class_name or 'not chosen'}"
    if status.error is not None:
        yield f"its status says since {status.error.time}: {status.error.message}"
    if content is None:
        yield "it has no content: its volumes are not chosen yet"
        return
    handles = content.spec.source.volume_handles or content.snapshot_handles
    yield f"content {content.name} is of driver {content.spec.driver}, and has policy {content.spec.deletion_policy}"
    yield f"it is of {len(handles)} volumes; {len(content.members)} of them have a snapshot"
