"""Methods of snapshots and images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volplane_gce_pd.testing.disks import NAME, checked_labels
from volplane_gce_pd.testing.errors import ComputeError, bad_request
from volplane_gce_pd.testing.project import Effect, Project
from volplane_gce_pd.testing.records import OperationRecord, SnapshotRecord

Params = Mapping[str, Any]


def insert(project: Project, method: str, params: Params) -> OperationRecord:
    """snapshots.insert and images.insert: the name is taken at once.

    A snapshot is CREATING, then UPLOADING, an image PENDING; the operation ends when it is READY, or later.
    """
    kind, body = method.partition(".")[0], params["body"]
    disk = project.disk_at(str(body.get("sourceDisk", "")), "resource.sourceDisk")
    name, table = body.get("name", ""), project.images if kind == "images" else project.snapshots
    if not NAME.fullmatch(name):
        raise bad_request("resource.name", name, "Must be a match of regex '[a-z]([-a-z0-9]*[a-z0-9])?'")
    if kind == "images":
        _check_image(disk.place, params)
    snapshot = SnapshotRecord(
        kind=kind,
        name=name,
        id=project.number(),
        size=disk.size,
        disk=disk.path(project.behaviour.project),
        disk_id=disk.id,
        created=project.stamp(),
        status="PENDING" if kind == "images" else "CREATING",
        description=body.get("description", ""),
        labels=checked_labels(body.get("labels", {})),
        wanted=dict(body),
    )
    path = snapshot.path(project.behaviour.project)
    if name in table:
        raise ComputeError("alreadyExists", f"The resource '{path}' already exists")
    if disk.status != "READY":
        raise ComputeError("resourceNotReady", f"The resource '{snapshot.disk}' is not ready")
    _refuse_soon_after(project, disk.id, snapshot.disk)
    table[name] = snapshot

    if not project.stalled and project.failing is None:
        _cut_and_upload(project, snapshot)

    def undo() -> None:
        snapshot.status = "FAILED"

    behaviour = project.behaviour
    whole = behaviour.cut_seconds + behaviour.upload_seconds + behaviour.ready_early_seconds
    seconds = behaviour.cut_seconds if project.failing is not None else whole
    return project.operate(method, params, "global", path, Effect(undo=undo), seconds=seconds)


def _cut_and_upload(project: Project, snapshot: SnapshotRecord) -> None:
    """Plan its changes of state. What is in the disk when it is cut is in it; an image is cut when it is ready."""
    cut, upload = project.behaviour.cut_seconds, project.behaviour.upload_seconds

    def become(before: str, after: str) -> None:
        if snapshot.status == before:
            if before in ("CREATING", "PENDING"):
                project.contents.begin(snapshot.path(project.behaviour.project), snapshot.disk)
            snapshot.status = after

    if snapshot.kind == "snapshots":
        project.timeline.after(cut, lambda: become("CREATING", "UPLOADING"))
    before = "PENDING" if snapshot.kind == "images" else "UPLOADING"
    project.timeline.after(cut + upload, lambda: become(before, "READY"))


def _check_image(place: str, params: Params) -> None:
    """Compute Engine documentation, "Create custom images": of zonal disks, by force where they are in use."""
    if place.startswith("regions/"):
        raise bad_request("resource.sourceDisk", place, "Images cannot be made of regional disks.")
    if params.get("forceCreate") not in ("true", "True", True):
        raise bad_request("resource.sourceDisk", place, "The disk may be in use; use forceCreate.")


def _refuse_soon_after(project: Project, disk: int, path: str) -> None:
    """Compute Engine documentation, "Snapshot frequency limits"; images count as snapshots."""
    last = project.last_snapshot.get(disk)
    if last is not None and project.now < last + project.behaviour.snapshot_interval:
        raise ComputeError(
            "resourceOperationRateExceeded",
            f"Operation rate exceeded for resource '{path}'. Too frequent operations from the source resource.",
        )
    project.last_snapshot[disk] = project.now


def delete(project: Project, method: str, params: Params) -> OperationRecord:
    """snapshots.delete and images.delete."""
    kind = method.partition(".")[0]
    snapshot = project.snapshot(params[kind.removesuffix("s")], kind)
    table = project.images if kind == "images" else project.snapshots
    path = snapshot.path(project.behaviour.project)
    if snapshot.status in ("CREATING", "PENDING", "DELETING"):
        raise ComputeError("resourceNotReady", f"The resource '{path}' is not ready")

    def begin() -> None:
        snapshot.status = "DELETING"

    def end() -> None:
        if table.get(snapshot.name) is snapshot:
            del table[snapshot.name]

    return project.operate(method, params, "global", path, Effect(begin=begin, end=end))
