"""FakeEC2."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from volplane_aws_ebs.testing import instances, modifications, snapshots, tags, volumes
from volplane_aws_ebs.testing.behaviour import Behaviour, Rate
from volplane_aws_ebs.testing.faults import Fault, FaultKind, Refusal, Script
from volplane_aws_ebs.testing.state import Cloud, Instance, Snapshot, Volume

__all__ = ["FakeEC2", "Reply", "Throttle"]


class Throttle:
    """Refuses what comes too fast. A refused call takes no token."""

    def __init__(self) -> None:
        self._levels: dict[str, tuple[float, float]] = {}

    def admit(self, action: str, rates: Mapping[str, Rate], now: float) -> None:
        """Take a token of the action's bucket. Raises RequestLimitExceeded when it is empty."""
        rate = rates.get(action)
        if rate is None:
            return
        level, filled = self._levels.get(action, (rate.burst, now))
        level = min(rate.burst, level + (now - filled) * rate.per_second)
        allowed = level >= 1.0 - 1e-9
        self._levels[action] = (level - 1.0 if allowed else level, now)
        if not allowed:
            raise Refusal("RequestLimitExceeded", "Request limit exceeded.")


Handler = Callable[[Cloud, Mapping[str, Any]], dict[str, Any]]

_ACTIONS: Mapping[str, Handler] = {
    "AttachVolume": instances.attach_volume,
    "CreateSnapshot": snapshots.create_snapshot,
    "CreateTags": tags.create_tags,
    "CreateVolume": volumes.create_volume,
    "DeleteSnapshot": snapshots.delete_snapshot,
    "DeleteTags": tags.delete_tags,
    "DeleteVolume": volumes.delete_volume,
    "DescribeAvailabilityZones": instances.describe_availability_zones,
    "DescribeInstanceTypes": instances.describe_instance_types,
    "DescribeInstances": instances.describe_instances,
    "DescribeSnapshots": snapshots.describe_snapshots,
    "DescribeVolumes": volumes.describe_volumes,
    "DescribeVolumesModifications": modifications.describe_volumes_modifications,
    "DetachVolume": instances.detach_volume,
    "ModifyVolume": modifications.modify_volume,
}
_OWN_DRY_RUN = frozenset({"CreateVolume"})
"""Actions that check their parameters before they answer a dry run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a request leads to: a result, or a refusal, or no answer at all (closed: not even a connection)."""

    result: Mapping[str, Any] | None = None
    refusal: Refusal | None = None
    lost: bool = False
    closed: bool = False


class FakeEC2:
    """One account in one region, as far as volumes are concerned.

    clock: seconds, any start; states change when it has moved, never by themselves. `faults` is the script of what goes
    wrong. `calls` counts requests by action, refused ones included. Safe for threads: requests take turns.
    """

    def __init__(self, behaviour: Behaviour | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._cloud = Cloud(behaviour or Behaviour(), clock)
        self._throttle = Throttle()
        self._turn = threading.RLock()
        self.faults = Script()
        self.calls: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        """Refusals by code."""

    @property
    def behaviour(self) -> Behaviour:
        """How it behaves now."""
        return self._cloud.behaviour

    def behave(self, **changes: Any) -> None:
        """Change fields of the behaviour from now on, as in `behave(volume_quota=3)`."""
        with self._turn:
            self._cloud.behaviour = replace(self._cloud.behaviour, **changes)

    # --- requests -----------------------------------------------------------------------------------------------

    def request(self, action: str, given: Mapping[str, Any], *, access_key: str = "") -> Reply:
        """Answer one request. given: the parameters, as boto3 takes them. Never raises for what EC2 would refuse."""
        with self._turn:
            self._cloud.timeline.catch_up()
            self.calls[action] += 1
            fault = self.faults.meet(action, given)
            try:
                reply = self._answer(action, given, access_key, fault)
            except Refusal as refusal:
                reply = Reply(refusal=refusal)
            if fault is not None and fault.kind in (FaultKind.LOSE, FaultKind.LATE, FaultKind.DROP):
                reply = Reply(lost=True)
            if reply.refusal is not None:
                self.refused[reply.refusal.code] += 1
            return reply

    def _answer(self, action: str, given: Mapping[str, Any], access_key: str, fault: Fault | None) -> Reply:
        if fault is not None and fault.kind is FaultKind.CLOSE:
            return Reply(closed=True)
        self._admit(action, access_key)
        if fault is not None and fault.kind is FaultKind.REFUSE:
            return Reply(refusal=fault.refusal)
        if fault is not None and fault.kind is FaultKind.DROP:
            return Reply(lost=True)
        if fault is not None and fault.kind is FaultKind.LATE:
            self._cloud.timeline.after(fault.seconds, lambda: self._do_quietly(action, given))
            return Reply(lost=True)
        self._cloud.stalled = fault is not None and fault.kind is FaultKind.STALL
        try:
            result = self._do(action, given)
        finally:
            self._cloud.stalled = False
        if fault is not None and fault.kind is FaultKind.LIE:
            return Reply(refusal=fault.refusal)
        return Reply(result=result)

    def _admit(self, action: str, access_key: str) -> None:
        behaviour = self._cloud.behaviour
        if behaviour.access_keys is not None and access_key not in behaviour.access_keys:
            raise Refusal("AuthFailure", "AWS was not able to validate the provided access credentials")
        if action not in _ACTIONS:
            raise Refusal("InvalidAction", f"The action {action} is not valid for this web service.")
        self._throttle.admit(action, behaviour.throttle, self._cloud.now)
        if behaviour.allowed is not None and action not in behaviour.allowed:
            who = f"arn:aws:iam::{behaviour.account}:user/test"
            message = f"You are not authorized to perform this operation. User: {who} is not authorized to perform: ec2:{action}"
            raise Refusal("UnauthorizedOperation", message)

    def _do(self, action: str, given: Mapping[str, Any]) -> dict[str, Any]:
        if given.get("DryRun") and action not in _OWN_DRY_RUN:
            raise Refusal("DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
        return _ACTIONS[action](self._cloud, given)

    def _do_quietly(self, action: str, given: Mapping[str, Any]) -> None:
        try:
            self._do(action, given)
        except Refusal as refusal:
            self.refused[refusal.code] += 1

    # --- for tests ----------------------------------------------------------------------------------------------

    @contextmanager
    def looking(self) -> Iterator[Cloud]:
        """The state as it is now, while nobody else changes it."""
        with self._turn:
            self._cloud.timeline.catch_up()
            yield self._cloud

    @property
    def volumes(self) -> dict[str, Volume]:
        """What exists now by id, without the root volumes of instances. Records are live: change them to make trouble."""
        with self.looking() as cloud:
            return {id_: volume for id_, volume in cloud.volumes.items() if not volume.root}

    @property
    def snapshots(self) -> dict[str, Snapshot]:
        """What exists now by id."""
        with self.looking() as cloud:
            return dict(cloud.snapshots)

    def add_instance(self, zone: str = "", *, kind: str = "m5.large", interfaces: int = 1) -> Instance:
        """A running instance in the zone, by default the first; with a root volume, which counts as attached."""
        with self.looking() as cloud:
            return instances.add_instance(
                cloud, zone=zone or cloud.behaviour.zones[0], kind=kind, interfaces=interfaces
            )

    def terminate(self, instance: Instance) -> None:
        """End an instance: its volumes are freed after `detach_seconds`."""
        with self.looking() as cloud:
            instances.terminate_instance(cloud, instance)

    def remove_volume(self, id_: str) -> None:
        """Let a volume vanish, as if somebody had deleted it."""
        with self.looking() as cloud:
            if id_ in cloud.volumes:
                cloud.remove(cloud.volumes[id_])

    def next_change(self) -> float | None:
        """When something changes by itself (seconds of the clock), None if nothing will."""
        with self.looking() as cloud:
            return cloud.timeline.next_due
