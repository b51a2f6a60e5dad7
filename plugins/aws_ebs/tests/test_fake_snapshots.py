"""What the mock of EC2 does with snapshots and copies: limits, locks, fast restores, images, keys, other accounts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from volplane_aws_ebs.testing import Behaviour, FakeEC2, Fault, FaultKind, InProcess

ZONE, OTHER = "eu-test-1a", "eu-test-1b"
KEY, SECOND = (f"arn:aws:kms:eu-test-1:123456789012:key/{n}" for n in ("1", "2"))
DAY = 86_400.0


class Account:
    def __init__(self, **behaviour: Any) -> None:
        self.now = 0.0
        self.fake = FakeEC2(Behaviour(**{"snapshot_interval": 0.0, **behaviour}), clock=lambda: self.now)
        self.ec2 = InProcess(self.fake).client()

    def volume(self, **given: Any) -> str:
        wanted = {"AvailabilityZone": ZONE, "Size": 10, "VolumeType": "gp3", **given}
        made: str = self.ec2.create_volume(**wanted)["VolumeId"]
        self.now += 5.0
        return made

    def cut(self, volume: str = "", **given: Any) -> str:
        made: str = self.ec2.create_snapshot(VolumeId=volume or self.volume(), **given)["SnapshotId"]
        return made

    def complete(self, volume: str = "", **given: Any) -> str:
        made = self.cut(volume, **given)
        self.now += 10.0
        return made

    def look(self, snapshot: str) -> Any:
        return self.ec2.describe_snapshots(SnapshotIds=[snapshot])["Snapshots"][0]


@pytest.fixture
def account() -> Account:
    return Account()


def refused(call: Callable[..., Any], code: str, message: str = "", **given: Any) -> None:
    with pytest.raises(ClientError) as raised:
        call(**given)
    assert raised.value.response["Error"]["Code"] == code
    assert message in raised.value.response["Error"]["Message"]


def test_progress_grows_until_the_snapshot_is_complete() -> None:
    account = Account(snapshot_seconds=100.0)
    snapshot = account.cut()
    seen = []
    for _ in range(5):
        seen.append((account.look(snapshot)["State"], account.look(snapshot)["Progress"]))
        account.now += 25.0
    assert seen == [*(("pending", f"{share}%") for share in (0, 25, 50, 75)), ("completed", "100%")]


@pytest.mark.parametrize(("kind", "most"), [("gp3", 5), ("st1", 1)])
def test_a_volume_has_so_many_pending_snapshots(account: Account, kind: str, most: int) -> None:
    volume = account.volume(VolumeType=kind, Size=200)
    for _ in range(most):
        account.cut(volume)
    refused(account.ec2.create_snapshot, "ConcurrentSnapshotLimitExceeded", VolumeId=volume)
    account.now += 10.0
    assert account.cut(volume)


def test_where_a_snapshot_is_kept() -> None:
    account = Account(local_zones=("eu-test-1-loc-1a",))
    local = account.volume(AvailabilityZone="eu-test-1-loc-1a")
    assert account.look(account.cut(local, Location="local"))["AvailabilityZone"] == "eu-test-1-loc-1a"
    assert account.look(account.cut(OutpostArn="arn:aws:outposts:r:1:outpost/op-1"))["OutpostArn"].endswith("op-1")
    refused(account.cut, "InvalidParameterValue", "Local Zone", Location="local")
    refused(account.cut, "InvalidParameterCombination", Location="regional", OutpostArn="arn:x")


def test_a_snapshot_that_an_image_uses_or_that_is_locked_stays(account: Account) -> None:
    used, locked = account.complete(), account.complete()
    image = account.fake.add_image(used)
    refused(account.ec2.delete_snapshot, "InvalidSnapshot.InUse", image, SnapshotId=used)
    filters = [{"Name": "block-device-mapping.snapshot-id", "Values": [used]}]
    (found,) = account.ec2.describe_images(Owners=["self"], Filters=filters)["Images"]
    assert found["ImageId"] == image
    assert account.ec2.describe_images(Owners=["amazon"], Filters=filters)["Images"] == []
    account.ec2.lock_snapshot(SnapshotId=locked, LockMode="governance", LockDuration=1)
    refused(account.ec2.delete_snapshot, "OperationNotPermitted", "locked", SnapshotId=locked)
    account.now += DAY
    account.ec2.delete_snapshot(SnapshotId=locked)


def test_a_lock_of_mode_compliance_can_be_changed_while_it_cools_off_then_only_extended(
    account: Account,
) -> None:
    snapshot, lock = account.complete(), account.ec2.lock_snapshot

    def state() -> str:
        return str(account.ec2.describe_locked_snapshots(SnapshotIds=[snapshot])["Snapshots"][0]["LockState"])

    assert account.ec2.describe_locked_snapshots(SnapshotIds=[snapshot])["Snapshots"] == []
    lock(SnapshotId=snapshot, LockMode="compliance", LockDuration=9, CoolOffPeriod=1)
    assert state() == "compliance-cooloff"
    lock(SnapshotId=snapshot, LockMode="compliance", LockDuration=5, CoolOffPeriod=1)
    account.now += 3_600.0
    assert state() == "compliance"
    refused(lock, "OperationNotPermitted", SnapshotId=snapshot, LockMode="compliance", LockDuration=2)
    refused(lock, "OperationNotPermitted", SnapshotId=snapshot, LockMode="governance", LockDuration=9)
    lock(SnapshotId=snapshot, LockMode="compliance", ExpirationDate=datetime(2026, 2, 1, tzinfo=UTC))
    account.now += 40 * DAY
    assert state() == "expired"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"LockMode": "governance"}, "InvalidParameterCombination"),
        ({"LockMode": "governance", "LockDuration": 36_501}, "InvalidParameterValue"),
        ({"LockMode": "governance", "LockDuration": 1, "CoolOffPeriod": 1}, "InvalidParameterValue"),
        ({"LockMode": "compliance", "LockDuration": 1, "CoolOffPeriod": 73}, "InvalidParameterValue"),
        ({"LockMode": "eternal", "LockDuration": 1}, "InvalidParameterValue"),
        ({"LockMode": "governance", "ExpirationDate": datetime(2026, 1, 1, tzinfo=UTC)}, "InvalidParameterValue"),
    ],
)
def test_a_lock_that_cannot_be_is_refused(account: Account, given: Any, code: str) -> None:
    refused(account.ec2.lock_snapshot, code, SnapshotId=account.complete(), **given)


def test_fast_restores_are_enabled_pair_by_pair_and_some_fail() -> None:
    account = Account(fast_restore_quota=1, optimize_restore_seconds=60.0)
    first, second = account.complete(), account.complete()
    enable = account.ec2.enable_fast_snapshot_restores
    answer = enable(AvailabilityZones=[ZONE, "elsewhere"], SourceSnapshotIds=[first])
    assert [(each["AvailabilityZone"], each["State"]) for each in answer["Successful"]] == [(ZONE, "enabling")]
    (failed,) = answer["Unsuccessful"][0]["FastSnapshotRestoreStateErrors"]
    assert (failed["AvailabilityZone"], failed["Error"]["Code"]) == ("elsewhere", "InvalidParameterValue")
    (over,) = enable(AvailabilityZones=[ZONE], SourceSnapshotIds=[second])["Unsuccessful"]
    assert over["FastSnapshotRestoreStateErrors"][0]["Error"]["Code"] == "FastSnapshotRestoreLimitExceeded"

    def states() -> list[str]:
        filters = [{"Name": "snapshot-id", "Values": [first]}]
        found = account.ec2.describe_fast_snapshot_restores(Filters=filters)["FastSnapshotRestores"]
        return [each["State"] for each in found]

    seen = [states()]
    for seconds in (2.0, 60.0):
        account.now += seconds
        seen.append(states())
    assert seen == [["enabling"], ["optimizing"], ["enabled"]]
    account.ec2.delete_snapshot(SnapshotId=first)
    assert states() == []
    refused(enable, "InvalidParameterValue", AvailabilityZones=[ZONE], SourceSnapshotIds=[second] * 11)
    refused(enable, "InvalidSnapshot.NotFound", AvailabilityZones=[ZONE], SourceSnapshotIds=[first])


def test_a_fast_restore_is_optimized_only_when_the_snapshot_is_complete() -> None:
    account = Account(snapshot_seconds=100.0)
    snapshot = account.cut()
    account.ec2.enable_fast_snapshot_restores(AvailabilityZones=[ZONE], SourceSnapshotIds=[snapshot])
    account.now += 50.0
    account.ec2.describe_snapshots()
    assert account.fake.snapshots[snapshot].fast_restores == {ZONE: "enabling"}


def test_keys_are_inherited_by_snapshots_volumes_and_copies() -> None:
    account = Account(kms_keys={KEY: True, SECOND: True})
    volume = account.volume(Encrypted=True, KmsKeyId=KEY)
    snapshot = account.complete(volume)
    assert (account.look(snapshot)["Encrypted"], account.look(snapshot)["KmsKeyId"]) == (True, KEY)
    made = {
        "restored": account.volume(SnapshotId=snapshot),
        "rekeyed": account.volume(SnapshotId=snapshot, Encrypted=True, KmsKeyId=SECOND),
        "copied": account.ec2.copy_volumes(SourceVolumeId=volume, VolumeType="gp3")["Volumes"][0]["VolumeId"],
    }
    keys = {name: account.fake.volumes[id_].kms_key for name, id_ in made.items()}
    assert keys == {"restored": KEY, "rekeyed": SECOND, "copied": KEY}
    refused(account.volume, "InvalidParameterCombination", SnapshotId=snapshot, Encrypted=False)
    account.fake.behave(kms_keys={SECOND: True})
    vanished = account.volume(SnapshotId=snapshot, Encrypted=True, KmsKeyId=SECOND)
    assert vanished not in account.fake.volumes, "the key of the snapshot is needed as well"


def test_snapshots_of_other_accounts_are_shown_but_not_as_own_and_are_not_deleted(account: Account) -> None:
    own, shared = account.complete(), account.complete()
    account.fake.snapshots[shared].owner = "210987654321"
    describe = account.ec2.describe_snapshots

    def ids(**given: Any) -> set[str]:
        return {each["SnapshotId"] for each in describe(**given)["Snapshots"]}

    assert (ids(), ids(OwnerIds=["self"]), ids(OwnerIds=["210987654321"])) == ({own, shared}, {own}, {shared})
    assert account.look(shared)["OwnerId"] == "210987654321"
    refused(account.ec2.delete_snapshot, "AuthFailure", SnapshotId=shared)
    assert account.volume(SnapshotId=shared)


@pytest.mark.parametrize("changes", [{"archived": True}, {"state": "error"}, {"state": "recoverable"}])
def test_what_is_no_whole_snapshot_makes_no_volume(account: Account, changes: Any) -> None:
    snapshot = account.complete()
    for name, value in changes.items():
        setattr(account.fake.snapshots[snapshot], name, value)
    refused(account.volume, "IncorrectState", "invalid state", SnapshotId=snapshot)


def test_a_copy_is_in_the_zone_of_its_source_gp2_by_default_and_made_once_for_a_token(account: Account) -> None:
    source = account.volume(AvailabilityZone=OTHER)
    copy = account.ec2.copy_volumes
    (made,) = copy(SourceVolumeId=source, ClientToken="t")["Volumes"]
    assert (made["AvailabilityZone"], made["VolumeType"], made["SourceVolumeId"]) == (OTHER, "gp2", source)
    (again,) = copy(SourceVolumeId=source, ClientToken="t")["Volumes"]
    assert again["VolumeId"] == made["VolumeId"]
    refused(copy, "IdempotentParameterMismatch", SourceVolumeId=source, ClientToken="t", Size=20)
    refused(copy, "InvalidParameterValue", "at least the 10 GiB", SourceVolumeId=source, Size=9)
    refused(copy, "InvalidVolume.NotFound", SourceVolumeId="vol-0123456789abcdef0")
    refused(copy, "DryRunOperation", SourceVolumeId=source, DryRun=True)
    account.fake.volumes[source].state = "error"
    refused(copy, "IncorrectState", SourceVolumeId=source)


def test_a_copy_is_filled_after_it_is_available_and_can_fail() -> None:
    account = Account(initialize_seconds=100.0)
    source = account.volume()
    made = account.ec2.copy_volumes(SourceVolumeId=source, VolumeType="gp3")["Volumes"][0]["VolumeId"]
    account.now += 5.0
    status = account.ec2.describe_volume_status(VolumeIds=[made])["VolumeStatuses"][0]
    assert status["VolumeStatus"]["Details"][1] == {"Name": "initialization-state", "Status": "initializing"}
    account.fake.faults.add(Fault(action="CopyVolumes", kind=FaultKind.FAIL))
    failed = account.ec2.copy_volumes(SourceVolumeId=source, VolumeType="gp3")["Volumes"][0]["VolumeId"]
    account.now += 5.0
    account.ec2.describe_volumes()
    assert account.fake.volumes[failed].state == "error"
