"""Snapshots. CreateSnapshot has no client token, so a second one is made only when the first is proven absent."""

from __future__ import annotations

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
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import AwsRefusal, Call
from volplane_aws_ebs.ec2 import SETTLE_SECONDS, Ec2
from volplane_aws_ebs.errors import GONE, leaves_doubt
from volplane_aws_ebs.hook_calls import Later, Memory, Turn
from volplane_aws_ebs.resources import GIB, SnapshotSeen, tags_in, volume_of

__all__ = ["Snapshots"]

_BEGUN = "begun"
_LONGEST_BREAK = 5.0

Key = tuple[str, str]


class Snapshots:
    """The hooks `create_snapshot` and `delete_snapshot` of one driver. Safe for threads."""

    def __init__(self, ec2: Ec2) -> None:
        self._ec2 = ec2
        self._doubts: Memory[Key, float] = Memory()
        """Until when absence is no proof, for names that this process has begun."""

    def create(self, request: SnapshotRequest, turn: Turn) -> Snapshot | InProgress:
        """Raises Later, AwsRefusal and the errors of the contract."""
        volume = volume_of(request.volume)
        if request.parameters:
            raise InvalidArgument(
                f"unknown parameter {next(iter(request.parameters))!r}; snapshots of EBS have none here"
            )
        key = (request.context.cluster_id, request.name)
        found = self._ec2.snapshots(*key)
        if found:
            return self._existing(request, found, volume)
        if not request.context.state.get(_BEGUN):
            self._doubts.setdefault(key, 0.0)
            return InProgress(retry_after=0.0, state={_BEGUN: True})
        return self._make(request, volume, key, turn)

    def _existing(self, request: SnapshotRequest, found: tuple[SnapshotSeen, ...], volume: str) -> Snapshot:
        seen = found[0]
        if len(found) > 1:
            ids = ", ".join(each.id for each in found)
            request.context.log.warning("several snapshots are called %s: %s; the oldest is used", request.name, ids)
        if seen.volume != volume:
            raise AlreadyExists(
                f"snapshot {request.name} exists as {seen.id}, of volume {seen.volume} instead of {volume}"
            )
        if seen.state == "error":
            raise BackendError(
                f"snapshot {seen.id} has failed: {seen.message or 'EC2 does not say why'}; delete it", code="error"
            )
        return Snapshot(handle=seen.id, size_bytes=seen.size * GIB, ready=seen.state == "completed")

    def _make(self, request: SnapshotRequest, volume: str, key: Key, turn: Turn) -> Snapshot:
        now = self._ec2.clock()
        doubt = self._doubts.setdefault(key, self._ec2.born + SETTLE_SECONDS)
        if doubt > now:
            raise Later(min(doubt - now, _LONGEST_BREAK))
        tags = {**self._ec2.settings.tags, **ownership_tags.snapshot_tags(*key)}
        try:
            answer = self._ec2.change(
                Call.CREATE_SNAPSHOT,
                request.name,
                turn,
                VolumeId=volume,
                Description=f"volplane snapshot {request.name} of {request.volume.name}",
                TagSpecifications=[
                    {"ResourceType": "snapshot", "Tags": [{"Key": name, "Value": tags[name]} for name in tags]}
                ],
            )
        except AwsRefusal as refusal:
            self._ec2.lookups.snapshots.touched(key)
            if leaves_doubt(refusal):
                self._doubts.put(key, self._ec2.clock() + SETTLE_SECONDS)
            raise
        self._ec2.lookups.snapshots.touched(key)
        self._doubts.put(key, self._ec2.clock() + SETTLE_SECONDS)
        return self._existing(request, (SnapshotSeen.of(answer),), volume)

    def delete(self, request: DeleteSnapshotRequest, turn: Turn) -> Done:
        """Raises Later, AwsRefusal and the errors of the contract."""
        id_ = request.handle
        if not id_.startswith("snap-"):
            return Done()
        filters = [{"Name": "snapshot-id", "Values": [id_]}]
        shown = self._ec2.read(Call.DESCRIBE_SNAPSHOTS, OwnerIds=["self"], Filters=filters).get("Snapshots", ())
        if not shown:
            return Done()
        cluster = tags_in(shown[0]).get(ownership_tags.CLUSTER)
        if cluster != request.context.cluster_id:
            whose = f"to cluster {cluster!r}" if cluster else "to nobody that volplane knows"
            raise AlreadyExists(f"snapshot {id_} belongs {whose}: it is not touched")
        try:
            self._ec2.change(Call.DELETE_SNAPSHOT, id_, turn, SnapshotId=id_)
        except AwsRefusal as refusal:
            if refusal.code not in GONE:
                raise
        return Done()
