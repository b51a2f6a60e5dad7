"""The hooks `create_snapshot` and `delete_snapshot`. Names of snapshots are unique in a project."""

from __future__ import annotations

from volplane import (
    AlreadyExists,
    BackendError,
    DeleteSnapshotRequest,
    Done,
    InvalidArgument,
    NotFound,
    Snapshot,
    SnapshotRequest,
)
from volplane.cloud import GIB, LABELS, HookCall, RetryLater, label_text
from volplane_gce_pd.api import GceError, Method
from volplane_gce_pd.compute import Compute
from volplane_gce_pd.errors import ALREADY_EXISTS, NOT_FOUND, code_of
from volplane_gce_pd.operations import LongOperations, Outcome
from volplane_gce_pd.resources import DiskKey, DiskSnapshot, disk_key, resource_name, snapshot_name_from

_READY_POLL = 2.0


class Snapshotter:
    """The hooks `create_snapshot` and `delete_snapshot` of one driver. Safe for threads."""

    def __init__(self, compute: Compute, operations: LongOperations) -> None:
        self._compute = compute
        self._operations = operations

    def create(self, request: SnapshotRequest, call: HookCall) -> Snapshot:
        """Raises RetryLater, GceError and the errors of the contract."""
        if request.parameters:
            raise InvalidArgument(
                f"unknown parameter {next(iter(request.parameters))!r}; snapshots of disks have none here"
            )
        key = disk_key(request.volume, self._compute.settings)
        name = resource_name(request.name)
        outcome = self._operations.outcome(call, Method.DISKS_CREATE_SNAPSHOT)
        found = self._compute.snapshot(name)
        if found is not None:
            return self._existing(request, found, key, call)
        if outcome is not Outcome.NONE:
            raise RetryLater(0.0, self._operations.next_attempt(call.context))
        disk = self._compute.disk(key)
        if disk is None:
            raise NotFound(f"the disk {request.volume.handle} of {request.volume.name} does not exist (any more)")
        kind, _, where = key[0].partition("/")
        method = Method.REGION_DISKS_CREATE_SNAPSHOT if kind == "regions" else Method.DISKS_CREATE_SNAPSHOT
        labels = {**self._compute.settings.labels, LABELS.cluster: label_text(request.context.cluster_id)}
        message = {
            "name": name,
            "description": f"volplane snapshot {request.name} of {request.volume.name}",
            "labels": labels,
        }
        fields = {kind.removesuffix("s"): where, "disk": key[1], "snapshot_resource": message}
        try:
            identity = (request.context.cluster_id, name, disk.id)
            raise self._operations.begin(call, method, name, *identity, state={}, queue=("snapshots", key), **fields)
        except GceError as error:
            if code_of(error) in ALREADY_EXISTS:
                raise RetryLater(_READY_POLL) from None
            raise

    def _existing(self, request: SnapshotRequest, found: DiskSnapshot, key: DiskKey, call: HookCall) -> Snapshot:
        mark = label_text(request.context.cluster_id)
        if found.disk_key != key or found.labels.get(LABELS.cluster) != mark:
            raise AlreadyExists(f"snapshot {found.name} exists, of the disk {found.disk} or not made by this cluster")
        if found.state == "FAILED":
            raise BackendError(f"snapshot {found.name} has failed; delete it", code="FAILED")
        if found.state == "DELETING":
            raise RetryLater(_READY_POLL, self._operations.next_attempt(call.context))
        return Snapshot(
            handle=f"projects/{self._compute.settings.project}/global/snapshots/{found.name}",
            size_bytes=found.size * GIB,
            ready=found.state == "READY",
        )

    def delete(self, request: DeleteSnapshotRequest, call: HookCall) -> Done:
        """Raises RetryLater, GceError and the errors of the contract."""
        name = snapshot_name_from(request.handle, self._compute.settings.project)
        if name is None:
            return Done()
        outcome = self._operations.outcome(call, Method.SNAPSHOTS_DELETE)
        found = self._compute.snapshot(name)
        if found is None:
            return Done()
        mark = found.labels.get(LABELS.cluster)
        if mark != label_text(request.context.cluster_id):
            whose = f"to cluster {mark!r}" if mark else "to no owner that volplane knows"
            raise AlreadyExists(f"snapshot {name} belongs {whose}: it is not touched")
        if found.state == "DELETING":
            raise RetryLater(_READY_POLL)
        if outcome is not Outcome.NONE:
            raise RetryLater(0.0, self._operations.next_attempt(call.context))
        try:
            raise self._operations.begin(
                call, Method.SNAPSHOTS_DELETE, name, request.context.cluster_id, name, state={}, snapshot=name
            )
        except GceError as error:
            if code_of(error) not in NOT_FOUND:
                raise
            return Done()
