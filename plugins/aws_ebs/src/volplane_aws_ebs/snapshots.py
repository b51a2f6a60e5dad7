"""The hooks `create_snapshot` and `delete_snapshot`.

CreateSnapshot has no client token. It is therefore repeated only when a first snapshot is certain not to exist.
"""

from __future__ import annotations

import math

from volplane import (
    AlreadyExists,
    BackendError,
    DeleteSnapshotRequest,
    Done,
    InProgress,
    InvalidArgument,
    Snapshot,
    SnapshotRequest,
)
from volplane.cloud import GIB, BoundedCache, HookCall, RetryLater
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import Action, AwsError
from volplane_aws_ebs.ec2 import SETTLE_SECONDS, Ec2
from volplane_aws_ebs.errors import NOT_FOUND, outcome_unknown
from volplane_aws_ebs.resources import Ec2Snapshot, tags_from, volume_id

_STARTED = "begun"
_LONGEST_PAUSE = 5.0

Key = tuple[str, str]


class Snapshotter:
    """The hooks `create_snapshot` and `delete_snapshot` of one driver. Safe for threads."""

    def __init__(self, ec2: Ec2) -> None:
        self._ec2 = ec2
        self._uncertain_until: BoundedCache[Key, float] = BoundedCache()
        """By name: until when an empty Describe does not prove that there is no snapshot."""
        self._missing_since: BoundedCache[str, float] = BoundedCache()
        """By id: since when EC2 has not shown a snapshot that is to be deleted. -inf = this process has deleted it."""

    def create(self, request: SnapshotRequest, call: HookCall) -> Snapshot | InProgress:
        """Raises RetryLater, AwsError and the errors of the contract."""
        volume = volume_id(request.volume)
        if request.parameters:
            raise InvalidArgument(
                f"unknown parameter {next(iter(request.parameters))!r}; snapshots of EBS have none here"
            )
        key = (request.context.cluster_id, request.name)
        found = self._ec2.snapshots(*key)
        if found:
            return self._existing(request, found, volume)
        if not request.context.state.get(_STARTED):
            self._uncertain_until.setdefault(key, 0.0)
            return InProgress(retry_after=0.0, state={_STARTED: True})
        return self._create(request, volume, key, call)

    def _existing(self, request: SnapshotRequest, found: tuple[Ec2Snapshot, ...], volume: str) -> Snapshot:
        snapshot = found[0]
        if len(found) > 1:
            ids = ", ".join(each.id for each in found)
            request.context.log.warning("several snapshots are called %s: %s; the oldest is used", request.name, ids)
        if snapshot.volume != volume:
            raise AlreadyExists(
                f"snapshot {request.name} exists as {snapshot.id}, of volume {snapshot.volume} instead of {volume}"
            )
        if snapshot.state == "error":
            raise BackendError(
                f"snapshot {snapshot.id} has failed: {snapshot.message or 'EC2 does not say why'}; delete it",
                code="error",
            )
        return Snapshot(handle=snapshot.id, size_bytes=snapshot.size * GIB, ready=snapshot.state == "completed")

    def _create(self, request: SnapshotRequest, volume: str, key: Key, call: HookCall) -> Snapshot:
        now = self._ec2.clock()
        uncertain_until = self._uncertain_until.setdefault(key, self._ec2.started_at + SETTLE_SECONDS)
        if uncertain_until > now:
            raise RetryLater(min(uncertain_until - now, _LONGEST_PAUSE))
        tags = {**self._ec2.settings.tags, **ownership_tags.snapshot_tags(*key)}
        try:
            answer = self._ec2.change(
                Action.CREATE_SNAPSHOT,
                request.name,
                call,
                resource=("snapshots", volume),
                VolumeId=volume,
                Description=f"volplane snapshot {request.name} of {request.volume.name}",
                TagSpecifications=ownership_tags.tag_specifications("snapshot", tags),
            )
        except AwsError as error:
            self._ec2.batches.snapshots.invalidate(key)
            if outcome_unknown(error):
                self._uncertain_until.put(key, self._ec2.clock() + SETTLE_SECONDS)
            raise
        self._ec2.batches.snapshots.invalidate(key)
        self._uncertain_until.put(key, self._ec2.clock() + SETTLE_SECONDS)
        return self._existing(request, (Ec2Snapshot.of(answer),), volume)

    def delete(self, request: DeleteSnapshotRequest, call: HookCall) -> Done:
        """Raises RetryLater, AwsError and the errors of the contract."""
        id_ = request.handle
        if not id_.startswith("snap-"):
            return Done()
        filters = [{"Name": "snapshot-id", "Values": [id_]}]
        response = self._ec2.read(Action.DESCRIBE_SNAPSHOTS, OwnerIds=["self"], Filters=filters).get("Snapshots", ())
        if not response:
            self._require_gone(id_)
            return Done()
        cluster = tags_from(response[0]).get(ownership_tags.CLUSTER)
        if cluster != request.context.cluster_id:
            whose = f"to cluster {cluster!r}" if cluster else "to no owner that volplane knows"
            raise AlreadyExists(f"snapshot {id_} belongs {whose}: it is not touched")
        try:
            self._ec2.change(Action.DELETE_SNAPSHOT, id_, call, SnapshotId=id_)
        except AwsError as error:
            if error.code not in NOT_FOUND:
                raise
        self._missing_since.put(id_, -math.inf)
        return Done()

    def _require_gone(self, id_: str) -> None:
        """Raise RetryLater while EC2 may not show the snapshot yet: only its long absence proves that it is gone.

        `create_snapshot` returns as soon as EC2 has accepted the snapshot, which Describe calls show later.
        """
        now = self._ec2.clock()
        elapsed = now - self._missing_since.setdefault(id_, now)
        if elapsed < SETTLE_SECONDS:
            raise RetryLater(min(max(elapsed, 1.0), SETTLE_SECONDS - elapsed))
