"""Parameters of VolumeSnapshotClasses, as the official driver has them: tags, fast restore, locks, Outposts."""

from __future__ import annotations

from typing import Any

import pytest

from volplane import InvalidArgument
from volplane.drivers.parameters import check
from volplane_aws_ebs.snapshot_parameters import PARAMETERS, SnapshotParameters
from volplane_aws_ebs.testing import Behaviour, FaultKind

A, B = "eu-test-1a", "eu-test-1b"
FAST = {"fastSnapshotRestoreAvailabilityZones": f"{A}, {B}"}
LOCK = {"lockMode": "governance", "lockDuration": "3"}
OUTPOST = "arn:aws:outposts:eu-test-1:123456789012:outpost/op-1"


def test_tags_and_the_outpost_reach_ec2(region: Any) -> None:
    parameters = {
        "tagSpecification_1": "backup-of={{ .VolumeSnapshotNamespace }}/{{ .VolumeSnapshotName | toUpper }}",
        "tagSpecification_2": "content={{ .VolumeSnapshotContentName }}",
        "OutpostArn": OUTPOST,
    }
    handle = region.snapshot(region.provision(), parameters=parameters).handle
    record = region.fake.snapshots[handle]
    assert record.tags["backup-of"] == "team-a/BEFORE"
    assert record.tags["content"] == "snapcontent-snap-a"
    assert record.outpost == OUTPOST


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"tagSpecification_1": "claim={{ .PVCName }}"}, r"there is no \.PVCName, but \.VolumeSnapshotNamespace"),
        ({"tagSpecification_1": "volplane.dev/cluster=x"}, "reserved"),
        ({"tagSpecification_1": "nothing"}, "tagSpecification_1 is 'nothing'"),
        ({"lockDuration": "3"}, "lockDuration is 3: it needs lockMode"),
        ({"lockMode": "governance"}, "lockMode is 'governance': it needs lockDuration"),
        ({**LOCK, "lockCoolOffPeriod": "2"}, "lockCoolOffPeriod is 2: only locks of mode compliance"),
        ({"lockMode": "compliance", "lockExpirationDate": "tomorrow"}, "lockExpirationDate is 'tomorrow'"),
        ({"lockMode": "compliance", "lockExpirationDate": "2030-01-01T00:00:00"}, "date, time and zone"),
    ],
)
def test_what_cannot_be_is_refused_before_a_call(region: Any, parameters: Any, told: str) -> None:
    asset = region.provision()
    with pytest.raises(InvalidArgument, match=told):
        region.snapshot(asset, parameters=parameters)
    assert region.fake.snapshots == {}


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"lockMode": "forever"}, "'forever'"),
        ({"lockDuration": "0"}, "'0'"),
        ({"lockCoolOffPeriod": "73"}, "'73'"),
        ({"outpostArn": "op-1"}, "'op-1'"),
        ({**LOCK, "lockExpirationDate": "2030-01-01T00:00:00Z"}, "lockExpirationDate"),
        ({"colour": "red"}, "'colour'"),
    ],
)
def test_a_wrong_value_is_named(parameters: Any, told: str) -> None:
    _, flaws = check(PARAMETERS, parameters, "parameter")
    assert told in flaws[0]


def test_the_driver_declares_them(region: Any) -> None:
    assert region.describe().snapshot_parameters == PARAMETERS
    assert SnapshotParameters().steps is False


# --- locks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parameters",
    [
        LOCK,
        {"lockMode": "compliance", "lockDuration": "3", "lockCoolOffPeriod": "2"},
        {"lockMode": "compliance", "lockExpirationDate": "2026-02-01T00:00:00Z"},
    ],
)
def test_a_snapshot_is_ready_when_it_is_locked(region: Any, parameters: Any) -> None:
    made = region.snapshot(region.provision(), parameters=parameters)
    first = region.find_snapshot(made.handle, parameters=parameters)
    assert "being locked" in first.state
    ready = region.ready(made.handle, parameters=parameters)
    assert (ready.ready, ready.state) == (True, "")
    lock = region.fake.snapshots[made.handle].lock
    assert lock.mode == parameters["lockMode"]
    assert region.fake.calls["LockSnapshot"] == 1
    again = region.snapshot(region.provision(), parameters=parameters)
    assert not again.ready, "find_snapshot looks at the lock"


def test_a_crash_before_the_lock_leaves_no_snapshot_that_is_ready_without(region: Any) -> None:
    asset = region.provision()
    region.snapshot(asset, parameters=LOCK)
    region.clock.advance(100.0)
    region.again()
    made = region.snapshot(asset, parameters=LOCK)
    assert not made.ready
    assert region.ready(made.handle, parameters=LOCK).ready
    assert region.fake.snapshots[made.handle].lock is not None


def test_a_lock_that_is_refused_keeps_the_snapshot_and_is_told(region: Any) -> None:
    made = region.snapshot(region.provision(), parameters=LOCK)
    region.refuse("LockSnapshot", "UnauthorizedOperation", times=2)
    region.clock.advance(30.0)
    found = region.find_snapshot(made.handle, parameters=LOCK)
    assert (found.ready, found.failed) == (False, "")
    assert "it is not locked" in found.state
    assert "ec2:LockSnapshot" in found.state
    assert found.retry_after >= 60.0
    assert region.ready(made.handle, parameters=LOCK).ready
    assert list(region.fake.snapshots) == [made.handle]


def test_a_lost_answer_to_a_lock_makes_no_second_one(region: Any) -> None:
    made = region.snapshot(region.provision(), parameters=LOCK)
    region.fault("LockSnapshot", FaultKind.LOSE)
    assert region.ready(made.handle, parameters=LOCK).ready
    assert region.fake.calls["LockSnapshot"] == 1


# --- fast restore -----------------------------------------------------------------------------------------------


def test_a_snapshot_is_ready_when_its_fast_restores_are_accepted_and_their_states_are_told(region: Any) -> None:
    made = region.snapshot(region.provision(), parameters=FAST)
    ready = region.ready(made.handle, parameters=FAST)
    assert ready.state == f"fast restore: {A} optimizing, {B} optimizing"
    region.clock.advance(120.0)
    assert region.find_snapshot(made.handle, parameters=FAST).state == ""
    assert region.fake.snapshots[made.handle].fast_restores == {A: "enabled", B: "enabled"}
    assert region.fake.calls["EnableFastSnapshotRestores"] == 1


def test_a_used_up_quota_keeps_the_snapshot_and_is_waited_for(new_region: Any) -> None:
    """kubernetes-sigs/aws-ebs-csi-driver, issue 1608: there it is deleted and made again, in a loop."""
    region = new_region(Behaviour(fast_restore_quota=0))
    made = region.snapshot(region.provision(), parameters=FAST)
    region.clock.advance(30.0)
    found = region.find_snapshot(made.handle, parameters=FAST)
    assert (found.ready, found.failed) == (False, "")
    assert f"{A}: You have exceeded your limit of fast snapshot restores (FastSnapshotRestoreLimitE" in found.state
    assert found.retry_after >= 60.0
    region.fake.behave(fast_restore_quota=5)
    assert region.ready(made.handle, parameters=FAST).ready
    assert region.fake.calls["CreateSnapshot"] == 1


def test_a_zone_that_is_refused_for_good_is_told_and_not_waited_for(region: Any) -> None:
    parameters = {"fastSnapshotRestoreAvailabilityZones": f"{A},elsewhere"}
    made = region.snapshot(region.provision(), parameters=parameters)
    ready = region.ready(made.handle, parameters=parameters)
    assert "elsewhere: Invalid availability zone" in ready.state
    assert f"{A} optimizing" in ready.state
    assert region.fake.calls["EnableFastSnapshotRestores"] == 1


def test_a_crash_before_the_fast_restore_leaves_no_snapshot_that_is_ready_without(region: Any) -> None:
    asset = region.provision()
    region.snapshot(asset, parameters=FAST)
    region.clock.advance(100.0)
    made = region.again().snapshot(asset, parameters=FAST)
    assert not made.ready
    region.ready(made.handle, parameters=FAST)
    assert set(region.fake.snapshots[made.handle].fast_restores) == {A, B}


def test_the_snapshots_of_others_are_never_locked(region: Any) -> None:
    handle = region.snapshot(region.provision()).handle
    region.fake.snapshots[handle].tags = {}
    region.clock.advance(30.0)
    assert region.find_snapshot(handle, parameters={**LOCK, **FAST}).ready
    assert {"LockSnapshot", "EnableFastSnapshotRestores"}.isdisjoint(region.fake.calls)
