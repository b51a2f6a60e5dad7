"""Methods of snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volplane_gce_pd.testing.disks import NAME, checked_labels, place_of
from volplane_gce_pd.testing.errors import ComputeError, bad_request
from volplane_gce_pd.testing.project import Effect, Project
from volplane_gce_pd.testing.records import OperationRecord, SnapshotRecord

Params = Mapping[str, Any]


def create_snapshot(project: Project, method: str, params: Params) -> OperationRecord:
    """disks.createSnapshot: the name is taken at once, the snapshot is CREATING at first."""
    place, body = place_of(params), params["body"]
    disk = project.disk(place, params["disk"])
    name = body.get("name", "")
    if not NAME.fullmatch(name):
        raise bad_request("resource.name", name, "Must be a match of regex '[a-z]([-a-z0-9]*[a-z0-9])?'")
    path = f"projects/{project.behaviour.project}/global/snapshots/{name}"
    if name in project.snapshots:
        raise ComputeError("alreadyExists", f"The resource '{path}' already exists")
    last = project.last_snapshot.get(disk.id)
    if last is not None and project.now < last + project.behaviour.snapshot_interval:
        message = f"Operation rate exceeded for resource '{disk.path(project.behaviour.project)}'."
        raise ComputeError(
            "resourceOperationRateExceeded", f"{message} Too frequent operations from the source resource."
        )
    project.last_snapshot[disk.id] = project.now
    snapshot = SnapshotRecord(
        name=name,
        id=project.number(),
        size=disk.size,
        disk=disk.path(project.behaviour.project),
        disk_id=disk.id,
        created=project.stamp(),
        description=body.get("description", ""),
        labels=checked_labels(body.get("labels", {})),
    )
    project.snapshots[name] = snapshot

    def uploaded() -> None:
        snapshot.status = "READY" if snapshot.status == "UPLOADING" else snapshot.status

    def end() -> None:
        snapshot.status = "UPLOADING"
        project.timeline.after(project.behaviour.upload_seconds, uploaded)

    def undo() -> None:
        snapshot.status = "FAILED"

    return project.operate(method, params, place, path, Effect(end=end, undo=undo))


def delete(project: Project, method: str, params: Params) -> OperationRecord:
    """snapshots.delete."""
    snapshot = project.snapshot(params["snapshot"])

    def begin() -> None:
        snapshot.status = "DELETING"

    def end() -> None:
        project.snapshots.pop(snapshot.name, None)

    path = f"projects/{project.behaviour.project}/global/snapshots/{snapshot.name}"
    return project.operate(method, params, "global", path, Effect(begin=begin, end=end))
