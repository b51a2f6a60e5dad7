"""The hooks `delete` and `recycle`: check that the volume is ours and not attached; delete it or let a pod erase it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from volplane import DeleteRequest, Done, InProgress, Ownership, PodScrub, RecycleRequest, VolumeInUse
from volplane.cloud import BoundedCache, Fences, HookCall, RetryLater, pod_scrub
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import Action, AwsError
from volplane_aws_ebs.ec2 import Ec2
from volplane_aws_ebs.errors import NOT_FOUND
from volplane_aws_ebs.resources import Ec2Volume, existing, volume_id, volume_id_from
from volplane_aws_ebs.state_waits import StateWaits

_FIRST_POLL = 1.25
_SECOND_LOOK = 1.0
_MISSED = "missed"
"""Key of the state: EC2 did not show the volume once, though this process has not deleted it."""
_LONGEST_DELETING = 60.0
"""EC2 can show a volume as `deleting` long after it is certain to go: it is reported as deleted after this time."""
_REPEAT_AFTER = 10.0
"""DeleteVolume is repeated if EC2 still shows the volume as usable after this time."""

NodeName = Callable[[str], str]
"""From the id of an instance to the name of its node."""


@dataclass(frozen=True, slots=True)
class _Deletion:
    """EC2 accepted DeleteVolume."""

    since: float
    """When, or when this process first saw it."""
    owner: Ownership | None
    """By the volume's tags."""


class Deleter:
    """The hooks `delete` and `recycle` of one driver. Safe for threads; what it keeps in memory only saves calls."""

    def __init__(
        self,
        ec2: Ec2,
        fences: Fences,
        waits: StateWaits,
        node_name: NodeName,
        on_deleted: Callable[[Ownership], None],
    ) -> None:
        """on_deleted: called with the owner of each volume whose deletion this process has seen to its end."""
        self._ec2 = ec2
        self._fences = fences
        self._waits = waits
        self._node_name = node_name
        self._on_deleted = on_deleted
        self._deletions: BoundedCache[str, _Deletion] = BoundedCache()

    def delete(self, request: DeleteRequest, call: HookCall) -> Done | InProgress:
        """Raises RetryLater, AwsError and the errors of the contract."""
        id_ = volume_id_from(request.volume.handle)
        if id_ is None:
            request.context.log.warning(
                "handle %r is no volume of EBS: there is nothing to delete", request.volume.handle
            )
            return Done()
        recent = self._ec2.recent_volume(id_)
        volume = recent if recent is not None and recent.available else self._ec2.volume(id_)
        now, deletion = self._ec2.clock(), self._deletions.get(id_)
        if volume is None:
            return self._not_shown(id_, request, deletion)
        ownership_tags.refuse_foreign(id_, volume.tags, request.volume.owner)
        if volume.being_deleted:
            since = self._deletions.setdefault(id_, _Deletion(now, ownership_tags.owner_of(volume.tags))).since
            if now - since > _LONGEST_DELETING:
                return self._deleted(id_)
            raise RetryLater(self._ec2.batches.volumes.next_poll(id_, after=min((now - since) / 2, 10.0)))
        self._refuse_attached(volume)
        if volume.state == "creating":
            self._waits.creating(volume, after=0.5)
        if deletion is not None and now - deletion.since < _REPEAT_AFTER:
            raise RetryLater(self._ec2.batches.volumes.next_poll(id_, after=0.5))
        self._fences.refuse_former_leader(id_, volume.tags, call.context)
        return self._delete(volume, call)

    def scrub(self, request: RecycleRequest) -> PodScrub:
        """Return how a pod erases the volume, if it is ours and not attached. Raises as `delete`."""
        id_ = volume_id(request.volume)
        volume = existing(self._ec2.volume(id_), request.volume)
        ownership_tags.refuse_foreign(id_, volume.tags, request.volume.owner)
        where = [f"{self._node_name(each.instance)} ({each.state})" for each in volume.attachments]
        return pod_scrub(request, id_, where, "VolumeInUse")

    def _not_shown(self, id_: str, request: DeleteRequest, deletion: _Deletion | None) -> Done | InProgress:
        """Return Done if this process has deleted it; else a second look must agree, since EC2 may not show it yet."""
        if deletion is None and not request.context.state.get(_MISSED):
            return self._look_again(id_)
        return self._deleted(id_)

    def _look_again(self, id_: str) -> InProgress:
        seconds = self._ec2.batches.volumes.next_poll(id_, after=_SECOND_LOOK)
        return InProgress(retry_after=seconds, state={_MISSED: True})

    def _deleted(self, id_: str) -> Done:
        deletion = self._deletions.drop(id_)
        if deletion is not None and deletion.owner is not None:
            self._on_deleted(deletion.owner)
        self._ec2.batches.volumes.forget(id_)
        return Done()

    def _refuse_attached(self, volume: Ec2Volume) -> None:
        attachments = [each for each in volume.attachments if each.state != "detached"]
        if not attachments:
            return
        if all(each.state == "detaching" for each in attachments):
            self._waits.detaching(volume, attachments[0], after=1.0)
        where = ", ".join(f"{self._node_name(each.instance)} ({each.device}, {each.state})" for each in attachments)
        raise VolumeInUse(f"{volume.id} cannot be deleted while it is attached to {where}", code="VolumeInUse")

    def _delete(self, volume: Ec2Volume, call: HookCall) -> Done | InProgress:
        id_ = volume.id
        try:
            self._ec2.change(Action.DELETE_VOLUME, id_, call, VolumeId=id_)
        except AwsError as error:
            self._ec2.batches.volumes.invalidate(id_)
            if error.code in NOT_FOUND:
                # It was shown a moment ago: another server of EC2 may not know it yet.
                return self._look_again(id_)
            raise
        self._deletions.put(id_, _Deletion(self._ec2.clock(), ownership_tags.owner_of(volume.tags)))
        self._ec2.batches.volumes.invalidate(id_)
        self._ec2.batches.expect_missing(id_)
        raise RetryLater(self._ec2.batches.volumes.next_poll(id_, after=_FIRST_POLL))
