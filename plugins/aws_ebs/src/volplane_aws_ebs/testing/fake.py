"""FakeEC2: one mocked account in one region."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from volplane_aws_ebs.testing import instances, modifications, places, snapshot_uses, snapshots, tags, volumes
from volplane_aws_ebs.testing.behaviour import Behaviour
from volplane_aws_ebs.testing.faults import EC2Error
from volplane_aws_ebs.testing.state import AccountState, Instance, Snapshot, Volume
from volplane_testing.cloud import DiskContents, FakeCloud, Fault

Handler = Callable[[AccountState, Mapping[str, Any]], dict[str, Any]]

_CREATE_VOLUME = (
    "AvailabilityZone AvailabilityZoneId ClientToken Encrypted Iops KmsKeyId MultiAttachEnabled Size SnapshotId "
    "TagSpecifications Throughput VolumeInitializationRate VolumeType"
)
_COPY_VOLUMES = (
    "ClientToken Encrypted Iops KmsKeyId MultiAttachEnabled Size SourceVolumeId TagSpecifications Throughput VolumeType"
)
_PAGES = "Filters MaxResults NextToken"
ACTIONS: Mapping[str, tuple[Handler, frozenset[str]]] = {
    name: (handler, frozenset({"DryRun", *parameters.split()}))
    for name, handler, parameters in (
        ("AttachVolume", instances.attach_volume, "Device EbsCardIndex InstanceId VolumeId"),
        ("CopyVolumes", volumes.copy_volumes, _COPY_VOLUMES),
        ("CreateSnapshot", snapshots.create_snapshot, "Description Location OutpostArn TagSpecifications VolumeId"),
        (
            "CreateSnapshots",
            snapshots.create_snapshots,
            "CopyTagsFromSource Description InstanceSpecification Location OutpostArn TagSpecifications",
        ),
        ("CreateTags", tags.create_tags, "Resources Tags"),
        ("CreateVolume", volumes.create_volume, _CREATE_VOLUME),
        ("DeleteSnapshot", snapshots.delete_snapshot, "SnapshotId"),
        ("DeleteTags", tags.delete_tags, "Resources Tags"),
        ("DeleteVolume", volumes.delete_volume, "VolumeId"),
        ("DescribeAvailabilityZones", places.describe_availability_zones, "Filters ZoneIds ZoneNames"),
        (
            "DescribeFastSnapshotRestores",
            snapshot_uses.describe_fast_snapshot_restores,
            _PAGES,
        ),
        ("DescribeImages", snapshot_uses.describe_images, "Filters Owners"),
        ("DescribeInstanceTypes", places.describe_instance_types, "Filters InstanceTypes"),
        ("DescribeInstances", instances.describe_instances, f"{_PAGES} InstanceIds"),
        ("DescribeLockedSnapshots", snapshot_uses.describe_locked_snapshots, f"{_PAGES} SnapshotIds"),
        ("DescribeSnapshots", snapshots.describe_snapshots, f"{_PAGES} OwnerIds SnapshotIds"),
        ("DescribeVolumeStatus", places.describe_volume_status, f"{_PAGES} VolumeIds"),
        ("DescribeVolumes", volumes.describe_volumes, f"{_PAGES} VolumeIds"),
        ("DescribeVolumesModifications", modifications.describe_volumes_modifications, f"{_PAGES} VolumeIds"),
        ("DetachVolume", instances.detach_volume, "Device Force InstanceId VolumeId"),
        (
            "EnableFastSnapshotRestores",
            snapshot_uses.enable_fast_snapshot_restores,
            "AvailabilityZones SourceSnapshotIds",
        ),
        (
            "LockSnapshot",
            snapshot_uses.lock_snapshot,
            "CoolOffPeriod ExpirationDate LockDuration LockMode SnapshotId",
        ),
        ("ModifyVolume", modifications.modify_volume, "Iops Size Throughput VolumeId VolumeType"),
    )
}
"""Action -> what does it, and the parameters that it heeds. Another one is refused, never ignored."""
_OWN_DRY_RUN = frozenset({"CopyVolumes", "CreateVolume"})
"""Actions that check their parameters before they answer a dry run."""
_OLDEST_REQUEST = 300.0
_USABLE = frozenset({"attached", "detaching", "busy"})
"""States of an attachment in which the instance has the device."""


class FakeEC2(FakeCloud):
    """One account in one region, as far as volumes are concerned.

    clock: seconds from any start. States change when the clock has moved. `faults` is the script of faults: STALL
    leaves a volume `creating`, `attaching` or `busy` for ever; FAIL ends in a volume or snapshot in state `error`, or a
    modification in state `failed` with the message.
    """

    def __init__(self, behaviour: Behaviour | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock=clock)
        self._cloud = AccountState(behaviour or Behaviour(), self.timeline)

    @property
    def behaviour(self) -> Behaviour:
        """Return the current behaviour."""
        return self._cloud.behaviour

    def behave(self, **changes: Any) -> None:
        """Change fields of the behaviour from now on, as in `behave(volume_quota=3)`."""
        with self.settled():
            self._cloud.behaviour = replace(self._cloud.behaviour, **changes)

    # --- requests -----------------------------------------------------------------------------------------------

    def admit(self, action: str, params: Mapping[str, Any], caller: str) -> None:
        """Check the access key, that there is such an action, its rate, and that the caller may use it."""
        behaviour = self._cloud.behaviour
        if behaviour.access_keys is not None and caller not in behaviour.access_keys:
            raise EC2Error("AuthFailure", "AWS was not able to validate the provided access credentials")
        if abs(behaviour.callers_clock) > _OLDEST_REQUEST:
            raise EC2Error("RequestExpired", "Request has expired.")
        if behaviour.account_refused:
            raise EC2Error(behaviour.account_refused, "This account may not use this service at this time.")
        if action not in ACTIONS:
            raise EC2Error("InvalidAction", f"The action {action} is not valid for this web service.")
        if not self.throttle.admits(action, behaviour.throttle.get(action), self._cloud.now):
            raise EC2Error("RequestLimitExceeded", "Request limit exceeded.")
        if behaviour.allowed is not None and action not in behaviour.allowed:
            who = f"arn:aws:iam::{behaviour.account}:user/test"
            message = (
                "You are not authorized to perform this operation. "
                f"User: {who} is not authorized to perform: ec2:{action}"
            )
            raise EC2Error("UnauthorizedOperation", message)

    def perform(self, action: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Do it. Raises EC2Error."""
        handler, heeded = ACTIONS[action]
        unknown = sorted(params.keys() - heeded)
        if unknown:
            raise EC2Error("UnknownParameter", f"The parameter {unknown[0]} is not recognized by this mock of {action}")
        if params.get("DryRun") and action not in _OWN_DRY_RUN:
            raise EC2Error("DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
        self._cloud.answers += 1
        self._cloud.stalled = self.stalled
        self._cloud.failure = self.failing.message if self.failing is not None else None
        return handler(self._cloud, params)

    def failure(self, fault: Fault) -> EC2Error:
        """Return the error response of a scripted fault."""
        return EC2Error(fault.code, fault.message, fault.status)

    # --- for tests ----------------------------------------------------------------------------------------------

    @contextmanager
    def locked_state(self) -> Iterator[AccountState]:
        """Yield the current state; requests of other threads wait until the block ends."""
        with self.settled():
            yield self._cloud

    @property
    def volumes(self) -> dict[str, Volume]:
        """Return the volumes by id, without root volumes of instances. The records are live: a test may change them."""
        with self.locked_state() as account:
            return {id_: volume for id_, volume in account.volumes.items() if not volume.root}

    @property
    def snapshots(self) -> dict[str, Snapshot]:
        """Return the snapshots by id. The records are live."""
        with self.locked_state() as account:
            return dict(account.snapshots)

    def attached(self) -> dict[str, tuple[str, ...]]:
        """Return the id of every volume that can be used, but root volumes -> ids of the instances that have it now."""
        with self.locked_state() as account:
            return {
                volume.id: tuple(one.instance for one in volume.attachments.values() if one.state in _USABLE)
                for volume in account.volumes.values()
                if volume.state in ("available", "in-use") and not volume.root
            }

    @property
    def contents(self) -> DiskContents:
        """What is in volumes and snapshots, by their ids; in memory unless a server shows them to pods."""
        with self.locked_state() as account:
            return account.contents

    @contents.setter
    def contents(self, contents: DiskContents) -> None:
        with self.locked_state() as account:
            account.contents = contents

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

    def unix_time(self) -> float:
        """Return the Unix time that the clock stands for, as in answers."""
        with self.locked_state() as account:
            return account.unix_time(account.now)

    def add_image(self, snapshot: str) -> str:
        """Make an AMI of a snapshot, as another client does; returns its id."""
        with self.locked_state() as account:
            image = account.id("ami", account.number())
            account.snapshots[snapshot].images += (image,)
            return image

    def remove_volume(self, id_: str) -> None:
        """Remove a volume at once, as if another client had deleted it."""
        with self.locked_state() as account:
            if id_ in account.volumes:
                account.remove(account.volumes[id_])
