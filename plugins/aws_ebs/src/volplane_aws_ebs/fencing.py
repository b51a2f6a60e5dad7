"""Keeps a former leader's late calls away from what its successor has attached.

The highest number seen is written on the volume before it is attached, as a tag, so that other processes see it too.
EC2 compares nothing itself: between a look and the call a small gap remains, which the device name closes for detach.
"""

from __future__ import annotations

from volplane import Unavailable
from volplane_aws_ebs import marks
from volplane_aws_ebs.calls import Call
from volplane_aws_ebs.ec2 import Ec2
from volplane_aws_ebs.memory import Memory
from volplane_aws_ebs.seen import VolumeSeen
from volplane_aws_ebs.turns import Turn, fence_of

__all__ = ["Fencing"]


class Fencing:
    """Compares fences per volume. Safe for threads."""

    def __init__(self, ec2: Ec2) -> None:
        self._ec2 = ec2
        self._highest: Memory[str, int] = Memory()

    def refuse_former(self, seen: VolumeSeen, turn: Turn) -> None:
        """Raise Unavailable if a newer leader has been at work on this volume."""
        fence = fence_of(turn.context)
        if fence is None:
            return
        written = seen.tags.get(marks.FENCE, "")
        highest = max(self._highest.get(seen.id) or 0, int(written) if written.isdigit() else 0, fence)
        self._highest.put(seen.id, highest)
        if highest > fence:
            raise Unavailable(
                f"{seen.id} is in the hands of leader {highest}; this call belongs to the former leader {fence} and does nothing"
            )

    def write(self, seen: VolumeSeen, turn: Turn) -> None:
        """Note the leader on one of our volumes, unless it stands there. Raises Later, AwsRefusal."""
        fence = fence_of(turn.context)
        if fence is None or marks.CLUSTER not in seen.tags or seen.tags.get(marks.FENCE) == str(fence):
            return
        tags = [{"Key": marks.FENCE, "Value": str(fence)}]
        self._ec2.change(Call.CREATE_TAGS, seen.id, turn, Resources=[seen.id], Tags=tags)
        self._ec2.lookups.volumes.touched(seen.id)
