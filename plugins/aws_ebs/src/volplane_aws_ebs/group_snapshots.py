"""The hooks about snapshots of several volumes at one moment: CreateSnapshots of the instance that has them.

EC2 cuts all volumes of an instance but those that are excluded, and knows no groups: the handle of a group is its name,
a tag of its snapshots. As CreateSnapshot it has no client token, and is repeated only when no snapshots are certain to
exist. Source: Amazon EC2 API reference, CreateSnapshots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from volplane import (
    Absent,
    AlreadyExists,
    Context,
    DeleteGroupSnapshotRequest,
    DeleteSnapshotRequest,
    Done,
    FindGroupSnapshotRequest,
    GroupSnapshot,
    GroupSnapshotRequest,
    InProgress,
    InvalidArgument,
    Unavailable,
    Unsupported,
    read_parameters,
)
from volplane.cloud import TAGS, BoundedCache, HookCall
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import Action
from volplane_aws_ebs.ec2 import Ec2
from volplane_aws_ebs.resources import Ec2Snapshot, Ec2Volume, volume_id
from volplane_aws_ebs.settings import check_tag_count
from volplane_aws_ebs.snapshot_parameters import SnapshotParameters
from volplane_aws_ebs.snapshots import STARTED, Snapshotter

_MOST_EXCLUDED = 40
_ATTACHED = ("attached", "busy")
_NOT_TOGETHER_RETRY = 30.0


class GroupSnapshotter:
    """The hooks about groups of one driver. Safe for threads; what it keeps in memory only saves calls."""

    def __init__(self, ec2: Ec2, snapshotter: Snapshotter) -> None:
        self._ec2 = ec2
        self._single = snapshotter
        self._made: BoundedCache[str, tuple[str, ...]] = BoundedCache()
        """By name of the group: the ids that CreateSnapshots answered. EC2 may not show them yet."""

    def create(self, request: GroupSnapshotRequest, call: HookCall) -> GroupSnapshot | InProgress:
        """Raises RetryLater, AwsError and the errors of the contract."""
        wanted = read_parameters(SnapshotParameters, request.parameters)
        check_tag_count(self._ec2.settings.tags, wanted.tags.keys())
        if wanted.steps:
            raise InvalidArgument(
                "locks and fast restore are not set on the snapshots of a group: take these parameters out of the "
                "VolumeGroupSnapshotClass"
            )
        key = (request.context.cluster_id, request.name)
        if found := self._ec2.snapshots_named(*key):
            return self._existing(request, found)
        if not request.context.state.get(STARTED):
            self._single.begin(key)
            return InProgress(retry_after=0.0, state={STARTED: True})
        volumes = [self._single.source(each, call.context) for each in request.volumes]
        instance = _instance_of(volumes)
        answer = self._single.make(
            Action.CREATE_SNAPSHOTS,
            key,
            call,
            resource=("snapshots", instance),
            InstanceSpecification={
                "InstanceId": instance,
                "ExcludeBootVolume": True,
                "ExcludeDataVolumeIds": self._others(instance, volumes),
            },
            Description=f"volplane group {request.name}",
            TagSpecifications=ownership_tags.tag_specifications("snapshot", self._tags(request, wanted)),
            **({"OutpostArn": wanted.outpost} if wanted.outpost else {}),
        )
        made = [self._single.remember(each) for each in answer.get("Snapshots", ())]
        self._made.put(request.name, tuple(each.id for each in made))
        ours = {each.id for each in volumes}
        for extra in (each for each in made if each.volume not in ours):
            # A volume was attached since its instance was looked at. Its snapshot is nobody's.
            self._ec2.change(Action.DELETE_SNAPSHOT, extra.id, call, SnapshotId=extra.id)
        return self._existing(request, [each for each in made if each.volume in ours])

    def _existing(self, request: GroupSnapshotRequest, found: Iterable[Ec2Snapshot]) -> GroupSnapshot:
        """Return the group, if it is of these volumes and this owner."""
        snapshots = _one_of_each(found)
        wanted = {volume_id(each) for each in request.volumes}
        if {each.volume for each in snapshots} != wanted:
            there = ", ".join(sorted(each.volume or "an unknown source" for each in snapshots))
            raise AlreadyExists(
                f"group {request.name} exists, of {there} instead of {', '.join(sorted(wanted))}: it is not touched"
            )
        for each in snapshots:
            if not self._single.belongs(each, request.owner, request.context):
                raise AlreadyExists(f"group {request.name} exists with the marks of another owner: it is not taken")
        return self._shown(request.name, snapshots, request.context)

    def _shown(self, handle: str, snapshots: Iterable[Ec2Snapshot], context: Context) -> GroupSnapshot:
        return GroupSnapshot(handle=handle, snapshots=tuple(self._single.shown(each, context) for each in snapshots))

    def _others(self, instance: str, volumes: Iterable[Ec2Volume]) -> list[str]:
        """Return the other data volumes of the instance, by a call that begins now."""
        answer = self._ec2.read(Action.DESCRIBE_INSTANCES, InstanceIds=[instance])
        found = [each for reservation in answer.get("Reservations", ()) for each in reservation.get("Instances", ())]
        ours, others = {each.id for each in volumes}, list[str]()
        for each in found:
            devices = each.get("BlockDeviceMappings", ())
            data = [device for device in devices if device.get("DeviceName") != each.get("RootDeviceName")]
            others += [device.get("Ebs", {}).get("VolumeId", "") for device in data]
        excluded = sorted({each for each in others if each} - ours)
        if len(excluded) > _MOST_EXCLUDED:
            raise Unsupported(
                f"instance {instance} has {len(excluded)} volumes that are not of the group, and EC2 leaves out at "
                f"most {_MOST_EXCLUDED}: move pods with volumes to other nodes",
                nothing_done=True,
            )
        return excluded

    def _tags(self, request: GroupSnapshotRequest, wanted: SnapshotParameters) -> Mapping[str, str]:
        return {
            "Name": request.name,
            **self._ec2.settings.tags,
            **wanted.rendered_tags(request.group),
            **ownership_tags.snapshot_tags(request.owner, request.name, request.group),
            **TAGS.of_term(request.context),
        }

    # --- find and delete ------------------------------------------------------------------------------------------

    def find(self, request: FindGroupSnapshotRequest) -> GroupSnapshot | Absent:
        """Raises AwsError."""
        handle = request.handle or request.name
        cluster = request.owner.cluster_id if request.owner is not None else request.context.cluster_id
        found = self._members(handle, cluster, request.snapshots)
        if request.owner is not None:
            found = [each for each in found if self._single.belongs(each, request.owner, request.context)]
        return self._shown(handle, found, request.context) if found else Absent()

    def _members(self, handle: str, cluster: str, known: Iterable[str]) -> list[Ec2Snapshot]:
        """Return the snapshots of a group: those with its name, and those of these ids."""
        found = {each.id: each for each in self._ec2.snapshots_named_now(cluster, handle)}
        for id_ in (*known, *(self._made.get(handle) or ())):
            if id_ not in found and (one := self._single.by_handle(id_)) is not None:
                found[id_] = one
        return _one_of_each(found.values())

    def delete(self, request: DeleteGroupSnapshotRequest, call: HookCall) -> Done:
        """Check that all are ours, then delete them. Raises RetryLater, AwsError and the errors of the contract."""
        cluster = request.owner.cluster_id if request.owner is not None else request.context.cluster_id
        found = self._members(request.handle, cluster, request.snapshots)
        ids = list(dict.fromkeys((*request.snapshots, *(each.id for each in found))))
        each_of = {id_: DeleteSnapshotRequest(context=request.context, handle=id_, owner=request.owner) for id_ in ids}
        for snapshot in found:
            TAGS.refuse_foreign_snapshot(f"snapshot {snapshot.id}", snapshot.tags, each_of[snapshot.id])
        for one in each_of.values():
            self._single.delete(one, call)
        return Done()


def _one_of_each(found: Iterable[Ec2Snapshot]) -> list[Ec2Snapshot]:
    """Return the oldest snapshot of each volume, in the order of volumes."""
    oldest: dict[str, Ec2Snapshot] = {}
    for each in sorted(found, key=lambda snapshot: (snapshot.started, snapshot.id)):
        oldest.setdefault(each.volume, each)
    return [oldest[volume] for volume in sorted(oldest)]


def _instance_of(volumes: Iterable[Ec2Volume]) -> str:
    """Return the instance to which all volumes are attached. Raises Unavailable if there is none."""
    where = {each.id: {at.instance for at in each.attachments if at.state in _ATTACHED} for each in volumes}
    common = set.intersection(*where.values())
    if common:
        return min(common)
    told = ", ".join(f"{id_} to {', '.join(sorted(at)) or 'none'}" for id_, at in sorted(where.items()))
    raise Unavailable(
        "EC2 cuts several volumes at one moment only while they are attached to one instance, and they are not "
        f"({told}): run the pods that use them on one node; it is tried again",
        nothing_done=True,
        retry_after=_NOT_TOGETHER_RETRY,
    )
