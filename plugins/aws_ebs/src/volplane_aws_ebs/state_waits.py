"""States of volumes that should pass: how long this process has seen them, and an error for one that does not end."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from volplane import Unavailable, VolumeInUse
from volplane.cloud import RetryLater, StateAges
from volplane_aws_ebs.ec2 import Ec2
from volplane_aws_ebs.resources import Ec2Attachment, Ec2Volume

STUCK_DETACHING_SECONDS = 120.0
_STUCK_CREATING_SECONDS = 600.0
_STUCK_CREATING_RETRY = 60.0

Pair = tuple[str, str]
"""Id of a volume, and of an instance or ""."""


class StateWaits:
    """How long pairs of volume and instance are in a state. Safe for threads."""

    def __init__(self, ec2: Ec2, node_name: Callable[[str], str]) -> None:
        self._ec2 = ec2
        self._node_name = node_name
        self._ages: StateAges = StateAges(ec2.clock)

    def seconds(self, pair: Pair, state: str) -> float:
        """Return the seconds since the first call for this pair and state after the last `reset`."""
        return self._ages.seconds(pair, state)

    def reset(self, pair: Pair, *states: str) -> None:
        """Forget these states: they are over."""
        self._ages.reset(pair, *states)

    def creating(self, volume: Ec2Volume, after: float) -> NoReturn:
        """Raise RetryLater for a volume in state `creating`, and Unavailable once that lasts ten minutes."""
        seconds = self.seconds((volume.id, ""), "creating")
        if seconds > _STUCK_CREATING_SECONDS:
            raise Unavailable(
                f"EC2 has been creating {volume.id} in {volume.zone} for {seconds / 60:.0f} minutes, which usually "
                "takes seconds: look at the AWS Health Dashboard; volplane waits for it",
                code="creating",
                retry_after=_STUCK_CREATING_RETRY,
            )
        raise RetryLater(self._ec2.batches.volumes.next_poll(volume.id, after=after))

    def detaching(self, volume: Ec2Volume, attachment: Ec2Attachment, after: float) -> NoReturn:
        """Raise RetryLater for an attachment in state `detaching` or `busy`, and VolumeInUse after two minutes."""
        seconds = self.seconds((volume.id, attachment.instance), "detaching")
        if seconds > STUCK_DETACHING_SECONDS:
            raise VolumeInUse(
                f"{volume.id} has been detaching from {self._node_name(attachment.instance)} for {seconds:.0f} s: the "
                "instance still uses it (mounted, or hung); unmount it there, or stop the instance"
            )
        raise RetryLater(self._ec2.batches.volumes.next_poll(volume.id, after=after))
