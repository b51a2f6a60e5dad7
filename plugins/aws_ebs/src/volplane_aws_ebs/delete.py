"""Deleting a volume: prove that it is ours and free, delete, see it gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from volplane import DeleteRequest, Done, InProgress, Ownership, VolumeInUse
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import AwsRefusal, Call
from volplane_aws_ebs.ec2 import Ec2
from volplane_aws_ebs.errors import GONE
from volplane_aws_ebs.hook_calls import Later, Memory, Turn
from volplane_aws_ebs.ownership import Fencing
from volplane_aws_ebs.resources import VolumeSeen, volume_in

__all__ = ["Deleting"]

_FIRST_LOOK = 1.25
_SECOND_LOOK = 1.0
_MISSED = "missed"
"""In `state`: it was not shown, though nobody here had it deleted."""
_LONG_ENOUGH = 60.0
"""EC2 may show a volume as `deleting` for long after it was given up for good."""
_UNHEARD = 10.0
"""A volume that is still shown as usable so long after DeleteVolume is deleted once more."""

NodeName = Callable[[str], str]
"""What the node of an instance is called."""


@dataclass(frozen=True, slots=True)
class _Order:
    """EC2 has been told to delete a volume. at: since when, or since when we know. owner: by its tags."""

    at: float
    owner: Ownership | None


class Deleting:
    """The hook `delete` of one driver. Safe for threads: its memory only saves calls."""

    def __init__(self, ec2: Ec2, fencing: Fencing, node_name: NodeName, gone: Callable[[Ownership], None]) -> None:
        """gone: told whose volume is gone, when we had it deleted."""
        self._ec2 = ec2
        self._fencing = fencing
        self._node_name = node_name
        self._gone = gone
        self._asked: Memory[str, _Order] = Memory()
        """Volumes that are being deleted."""

    def delete(self, request: DeleteRequest, turn: Turn) -> Done | InProgress:
        """Raises Later, AwsRefusal and the errors of the contract."""
        id_ = volume_in(request.volume.handle)
        if id_ is None:
            request.context.log.warning(
                "handle %r is no volume of EBS: there is nothing to delete", request.volume.handle
            )
            return Done()
        recent = self._ec2.recent(id_)
        seen = recent if recent is not None and recent.free else self._ec2.volume(id_)
        now, asked = self._ec2.clock(), self._asked.get(id_)
        if seen is None:
            return self._absent(id_, request, asked)
        ownership_tags.refuse_foreign(id_, seen.tags, request.volume.owner)
        if seen.going:
            begun = self._asked.setdefault(id_, _Order(now, ownership_tags.owner_of(seen.tags))).at
            if now - begun > _LONG_ENOUGH:
                return self._finished(id_)
            raise Later(self._ec2.lookups.volumes.come_back(id_, after=min((now - begun) / 2, 10.0)))
        self._refuse_held(seen)
        if seen.state == "creating" or (asked is not None and now - asked.at < _UNHEARD):
            raise Later(self._ec2.lookups.volumes.come_back(id_, after=0.5))
        self._fencing.refuse_former(seen, turn)
        return self._order(seen, turn)

    def _absent(self, id_: str, request: DeleteRequest, asked: _Order | None) -> Done | InProgress:
        """Gone, if we had it deleted; else only if a second look says so too: EC2 may not show yet what is there."""
        if asked is None and not request.context.state.get(_MISSED):
            return InProgress(
                retry_after=self._ec2.lookups.volumes.come_back(id_, after=_SECOND_LOOK), state={_MISSED: True}
            )
        return self._finished(id_)

    def _finished(self, id_: str) -> Done:
        order = self._asked.drop(id_)
        if order is not None and order.owner is not None:
            self._gone(order.owner)
        self._ec2.lookups.volumes.forget(id_)
        return Done()

    def _refuse_held(self, seen: VolumeSeen) -> None:
        held = [each for each in seen.attachments if each.state != "detached"]
        if not held:
            return
        if all(each.state == "detaching" for each in held):
            raise Later(self._ec2.lookups.volumes.come_back(seen.id, after=1.0))
        where = ", ".join(f"{self._node_name(each.instance)} ({each.device}, {each.state})" for each in held)
        raise VolumeInUse(f"{seen.id} cannot be deleted while it is attached to {where}", code="VolumeInUse")

    def _order(self, seen: VolumeSeen, turn: Turn) -> Done:
        id_ = seen.id
        try:
            self._ec2.change(Call.DELETE_VOLUME, id_, turn, VolumeId=id_)
        except AwsRefusal as refusal:
            self._ec2.lookups.volumes.touched(id_)
            if refusal.code in GONE:
                return self._finished(id_)
            raise
        self._asked.put(id_, _Order(self._ec2.clock(), ownership_tags.owner_of(seen.tags)))
        self._ec2.lookups.volumes.touched(id_)
        self._ec2.lookups.expect_gone(id_)
        raise Later(self._ec2.lookups.volumes.come_back(id_, after=_FIRST_LOOK))
