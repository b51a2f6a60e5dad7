"""FakeEC2: one mocked account in one region.

Requests in, replies out; it has no sockets, threads or clock of its own.
"""

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
from volplane_aws_ebs.testing.faults import EC2Error, Fault, FaultKind, Script
from volplane_aws_ebs.testing.state import AccountState, Instance, Snapshot, Volume

__all__ = ["FakeEC2", "Reply", "Throttle"]


class Throttle:
    """Token buckets, one per action. A refused call takes no token."""

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
            raise EC2Error("RequestLimitExceeded", "Request limit exceeded.")


Handler = Callable[[AccountState, Mapping[str, Any]], dict[str, Any]]

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
    """The outcome of a request: a result, an error, or no response. closed: not even a connection."""

    result: Mapping[str, Any] | None = None
    error: EC2Error | None = None
    lost: bool = False
    closed: bool = False


class FakeEC2:
    """One account in one region, as far as volumes are concerned.

    clock: seconds from any start. States change when the clock has moved. `faults` is the script of faults.
    `calls` counts requests by action, refused ones included. Safe for threads: requests are served one at a time.
    """

    def __init__(self, behaviour: Behaviour | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._cloud = AccountState(behaviour or Behaviour(), clock)
        self._throttle = Throttle()
        self._lock = threading.RLock()
        self.faults = Script()
        self.calls: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        """Number of errors by code."""

    @property
    def behaviour(self) -> Behaviour:
        """The current behaviour."""
        return self._cloud.behaviour

    def behave(self, **changes: Any) -> None:
        """Change fields of the behaviour from now on, as in `behave(volume_quota=3)`."""
        with self._lock:
            self._cloud.behaviour = replace(self._cloud.behaviour, **changes)

    # --- requests -----------------------------------------------------------------------------------------------

    def request(self, action: str, params: Mapping[str, Any], *, access_key: str = "") -> Reply:
        """Answer one request. params: as boto3 takes them. An error of EC2 is in the reply and is not raised."""
        with self._lock:
            self._cloud.timeline.run_due_events()
            self.calls[action] += 1
            fault = self.faults.match(action, params)
            try:
                reply = self._answer(action, params, access_key, fault)
            except EC2Error as error:
                reply = Reply(error=error)
            if fault is not None and fault.kind in (FaultKind.LOSE, FaultKind.LATE, FaultKind.DROP):
                reply = Reply(lost=True)
            if reply.error is not None:
                self.refused[reply.error.code] += 1
            return reply

    def _answer(self, action: str, params: Mapping[str, Any], access_key: str, fault: Fault | None) -> Reply:
        if fault is not None and fault.kind is FaultKind.CLOSE:
            return Reply(closed=True)
        self._admit(action, access_key)
        if fault is not None and fault.kind is FaultKind.REFUSE:
            return Reply(error=fault.error)
        if fault is not None and fault.kind is FaultKind.DROP:
            return Reply(lost=True)
        if fault is not None and fault.kind is FaultKind.LATE:
            self._cloud.timeline.after(fault.seconds, lambda: self._do_quietly(action, params))
            return Reply(lost=True)
        self._cloud.stalled = fault is not None and fault.kind is FaultKind.STALL
        self._cloud.failure = fault.message if fault is not None and fault.kind is FaultKind.FAIL else None
        try:
            result = self._do(action, params)
        finally:
            self._cloud.stalled, self._cloud.failure = False, None
        if fault is not None and fault.kind is FaultKind.LIE:
            return Reply(error=fault.error)
        return Reply(result=result)

    def _admit(self, action: str, access_key: str) -> None:
        behaviour = self._cloud.behaviour
        if behaviour.access_keys is not None and access_key not in behaviour.access_keys:
            raise EC2Error("AuthFailure", "AWS was not able to validate the provided access credentials")
        if action not in _ACTIONS:
            raise EC2Error("InvalidAction", f"The action {action} is not valid for this web service.")
        self._throttle.admit(action, behaviour.throttle, self._cloud.now)
        if behaviour.allowed is not None and action not in behaviour.allowed:
            who = f"arn:aws:iam::{behaviour.account}:user/test"
            message = (
                "You are not authorized to perform this operation. "
                f"User: {who} is not authorized to perform: ec2:{action}"
            )
            raise EC2Error("UnauthorizedOperation", message)

    def _do(self, action: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if params.get("DryRun") and action not in _OWN_DRY_RUN:
            raise EC2Error("DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
        return _ACTIONS[action](self._cloud, params)

    def _do_quietly(self, action: str, params: Mapping[str, Any]) -> None:
        try:
            self._do(action, params)
        except EC2Error as error:
            self.refused[error.code] += 1

    # --- for tests ----------------------------------------------------------------------------------------------

    @contextmanager
    def locked_state(self) -> Iterator[AccountState]:
        """The current state; requests of other threads wait until the block ends."""
        with self._lock:
            self._cloud.timeline.run_due_events()
            yield self._cloud

    @property
    def volumes(self) -> dict[str, Volume]:
        """The volumes by id, without root volumes of instances. The records are live: a test may change them."""
        with self.locked_state() as account:
            return {id_: volume for id_, volume in account.volumes.items() if not volume.root}

    @property
    def snapshots(self) -> dict[str, Snapshot]:
        """The snapshots by id. The records are live."""
        with self.locked_state() as account:
            return dict(account.snapshots)

    def add_instance(self, zone: str = "", *, instance_type: str = "m5.large", interfaces: int = 1) -> Instance:
        """Add a running instance, by default in the first zone. Its root volume counts as attached."""
        with self.locked_state() as account:
            return instances.add_instance(
                account, zone=zone or account.behaviour.zones[0], instance_type=instance_type, interfaces=interfaces
            )

    def terminate(self, instance: Instance) -> None:
        """Terminate an instance: its volumes are detached after `detach_seconds`."""
        with self.locked_state() as account:
            instances.terminate_instance(account, instance)

    def remove_volume(self, id_: str) -> None:
        """Remove a volume at once, as if another client had deleted it."""
        with self.locked_state() as account:
            if id_ in account.volumes:
                account.remove(account.volumes[id_])

    def next_change(self) -> float | None:
        """Seconds of the clock at which the next state changes; None if none will."""
        with self.locked_state() as account:
            return account.timeline.next_due
