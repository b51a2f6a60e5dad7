"""The mocked EC2 behaves as EC2 does where other mocks do not."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError
from botocore.session import Session
from botocore.validate import ParamValidator

from volplane_aws_ebs.testing import EC2_LIMITS, Behaviour, FakeEC2, Fault, FaultKind, InProcess, InstanceType, Rate
from volplane_aws_ebs.testing.fake import ACTIONS

ZONE = "eu-test-1a"
KEY = "arn:aws:kms:eu-test-1:123456789012:key/0f0f0f0f"


class Account:
    """A fake, its clock, and a client."""

    def __init__(self, behaviour: Behaviour | None = None, **options: Any) -> None:
        self.now = 0.0
        self.fake = FakeEC2(behaviour or Behaviour(), clock=lambda: self.now)
        self.ec2 = InProcess(self.fake, **options).client()

    def create(self, **given: Any) -> str:
        made: str = self.ec2.create_volume(**{"AvailabilityZone": ZONE, "Size": 10, "VolumeType": "gp3", **given})[
            "VolumeId"
        ]
        return made

    def ready(self, **given: Any) -> str:
        id_ = self.create(**given)
        self.now += 10.0
        return id_

    def look(self, id_: str) -> Any:
        return self.ec2.describe_volumes(VolumeIds=[id_])["Volumes"][0]

    def attached(self, id_: str, instance: Any, device: str = "/dev/xvdba") -> str:
        self.ec2.attach_volume(VolumeId=id_, InstanceId=instance.id, Device=device)
        self.now += 10.0
        return id_


@pytest.fixture
def account() -> Account:
    return Account()


def refused(call: Callable[..., Any], code: str, message: str = "", **given: Any) -> None:
    with pytest.raises(ClientError) as raised:
        call(**given)
    assert raised.value.response["Error"]["Code"] == code
    assert message in raised.value.response["Error"]["Message"]


# --- tokens -----------------------------------------------------------------------------------------------------


def test_a_token_gives_the_same_volume_and_refuses_other_parameters(account: Account) -> None:
    first = account.create(ClientToken="t")
    assert account.create(ClientToken="t") == first
    refused(account.create, "IdempotentParameterMismatch", ClientToken="t", Size=11)
    refused(account.create, "IdempotentParameterMismatch", ClientToken="t", AvailabilityZone="eu-test-1b")
    assert account.create(ClientToken="T") != first
    assert len(account.fake.volumes) == 2


def test_a_token_is_burnt_by_deletion_and_forgotten_after_a_day(account: Account) -> None:
    gone = account.ready(ClientToken="t")
    account.ec2.delete_volume(VolumeId=gone)
    account.now += 10.0
    refused(account.create, "IdempotentParameterMismatch", ClientToken="t")
    account.now += 90_000.0
    assert account.create(ClientToken="t") != gone


def test_a_token_has_at_most_64_characters(account: Account) -> None:
    refused(account.create, "InvalidParameterValue", ClientToken="x" * 65)
    account.create(ClientToken="x" * 64)


# --- states -----------------------------------------------------------------------------------------------------


def test_states_take_their_time(account: Account) -> None:
    id_, instance = account.create(), account.fake.add_instance(ZONE)
    assert account.look(id_)["State"] == "creating"
    refused(account.ec2.attach_volume, "IncorrectState", VolumeId=id_, InstanceId=instance.id, Device="/dev/xvdba")
    refused(account.ec2.delete_volume, "IncorrectState", VolumeId=id_)
    account.now += 1.5
    assert account.look(id_)["State"] == "available"
    account.ec2.attach_volume(VolumeId=id_, InstanceId=instance.id, Device="/dev/xvdba")
    assert (account.look(id_)["State"], account.look(id_)["Attachments"][0]["State"]) == ("in-use", "attaching")
    account.now += 1.5
    assert account.look(id_)["Attachments"][0]["State"] == "attached"
    refused(account.ec2.delete_volume, "VolumeInUse", VolumeId=id_)
    account.ec2.detach_volume(VolumeId=id_)
    assert account.look(id_)["Attachments"][0]["State"] == "detaching"
    account.now += 1.5
    assert account.look(id_)["State"] == "available"
    account.ec2.delete_volume(VolumeId=id_)
    assert account.look(id_)["State"] == "deleting"
    account.now += 1.5
    refused(
        account.ec2.describe_volumes, "InvalidVolume.NotFound", f"The volume '{id_}' does not exist", VolumeIds=[id_]
    )


def test_states_of_a_waiter_of_boto3_are_the_expected_ones(account: Account) -> None:
    id_ = account.ready()
    account.ec2.get_waiter("volume_available").wait(VolumeIds=[id_], WaiterConfig={"Delay": 1, "MaxAttempts": 1})


def test_what_is_new_is_seen_late(account: Account) -> None:
    account.fake.behave(visible_after=5.0)
    tags = [{"ResourceType": "volume", "Tags": [{"Key": "k", "Value": "v"}]}]
    id_ = account.create(TagSpecifications=tags)
    by_tag = [{"Name": "tag:k", "Values": ["v", "w"]}]
    refused(account.ec2.describe_volumes, "InvalidVolume.NotFound", VolumeIds=[id_])
    assert account.ec2.describe_volumes(Filters=by_tag)["Volumes"] == []
    account.now += 5.0
    assert [each["VolumeId"] for each in account.ec2.describe_volumes(Filters=by_tag)["Volumes"]] == [id_]
    account.ec2.create_tags(Resources=[id_], Tags=[{"Key": "k", "Value": "w"}])
    assert account.look(id_)["Tags"] == [{"Key": "k", "Value": "v"}]
    account.now += 5.0
    assert account.look(id_)["Tags"] == [{"Key": "k", "Value": "w"}]


def test_a_volume_under_a_key_that_may_not_be_used_vanishes(account: Account) -> None:
    id_ = account.create(Encrypted=True, KmsKeyId=KEY, ClientToken="t")
    account.now += 1.0
    refused(account.ec2.describe_volumes, "InvalidVolume.NotFound", VolumeIds=[id_])
    refused(account.create, "IdempotentParameterMismatch", Encrypted=True, KmsKeyId=KEY, ClientToken="t")
    account.fake.behave(kms_keys={KEY: True})
    assert account.look(account.ready(Encrypted=True, KmsKeyId=KEY))["KmsKeyId"] == KEY


def test_encryption_by_default_is_applied(account: Account) -> None:
    account.fake.behave(encrypt_by_default=True)
    assert account.look(account.create())["Encrypted"]


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"AvailabilityZone": "us-east-1a"}, "InvalidZone.NotFound"),
        ({"AvailabilityZone": None}, "MissingParameter"),
        ({"VolumeType": "floppy"}, "UnknownVolumeType"),
        ({"Size": 0}, "InvalidParameterValue"),
        ({"Size": 999_999}, "InvalidParameterValue"),
        ({"Size": None}, "MissingParameter"),
        ({"VolumeType": "st1", "Size": 1}, "InvalidParameterValue"),
        ({"Iops": 99_999_999}, "InvalidParameterValue"),
        ({"VolumeType": "io1"}, "MissingParameter"),
        ({"VolumeType": "io1", "Iops": 64_000}, "InvalidParameterValue"),
        ({"VolumeType": "gp2", "Iops": 500}, "InvalidParameterCombination"),
        ({"Throughput": 5_000}, "InvalidParameterValue"),
        ({"VolumeType": "gp2", "Throughput": 200}, "InvalidParameterCombination"),
        ({"KmsKeyId": KEY}, "InvalidParameterDependency"),
        ({"MultiAttachEnabled": True}, "InvalidParameterCombination"),
        ({"SnapshotId": "snap-0123456789abcdef0"}, "InvalidSnapshot.NotFound"),
    ],
)
def test_bad_demands_are_refused(account: Account, given: Any, code: str) -> None:
    whole = {"AvailabilityZone": ZONE, "Size": 10, "VolumeType": "gp3", **given}
    refused(account.ec2.create_volume, code, **{key: value for key, value in whole.items() if value is not None})
    assert account.fake.volumes == {}


@pytest.mark.parametrize(
    ("tags", "code"),
    [
        ([("k", "a"), ("k", "b")], "InvalidParameterValue"),
        ([("aws:k", "a")], "InvalidParameterValue"),
        ([("", "a")], "InvalidParameterValue"),
        ([("k" * 129, "a")], "InvalidParameterValue"),
        ([("k", "a" * 257)], "InvalidParameterValue"),
        ([(f"k{n}", "a") for n in range(51)], "TagLimitExceeded"),
        ([], "InvalidParameterValue"),
    ],
)
def test_bad_tags_are_refused(account: Account, tags: Any, code: str) -> None:
    listed = [{"Key": key, "Value": value} for key, value in tags]
    refused(account.create, code, TagSpecifications=[{"ResourceType": "volume", "Tags": listed}])


def test_tags_for_another_kind_of_resource_are_refused(account: Account) -> None:
    tags = [{"Key": "k", "Value": "v"}]
    refused(account.create, "InvalidParameterValue", TagSpecifications=[{"ResourceType": "snapshot", "Tags": tags}])


def test_quotas(account: Account) -> None:
    account.fake.behave(volume_quota=1)
    account.create()
    refused(account.create, "VolumeLimitExceeded")
    account.fake.behave(volume_quota=9, storage_quota_gib=15)
    refused(account.create, "VolumeLimitExceeded", "gigabyte")


def test_a_dry_run_is_checked_and_does_nothing(account: Account) -> None:
    refused(account.create, "DryRunOperation", DryRun=True)
    refused(account.create, "InvalidParameterValue", DryRun=True, Size=0)
    refused(account.ec2.describe_availability_zones, "DryRunOperation", DryRun=True)
    assert account.fake.volumes == {}


# --- attachments ------------------------------------------------------------------------------------------------


def test_nobody_steals_a_volume(account: Account) -> None:
    one, two = account.fake.add_instance(ZONE), account.fake.add_instance(ZONE)
    id_ = account.attached(account.ready(), one)
    for instance in (one, two):
        refused(
            account.ec2.attach_volume,
            "VolumeInUse",
            f"{id_} is already attached",
            VolumeId=id_,
            InstanceId=instance.id,
            Device="/dev/xvdbb",
        )


def test_attachments_are_refused_for_reasons(account: Account) -> None:
    attach, id_ = account.ec2.attach_volume, account.ready()
    here, there = account.fake.add_instance(ZONE), account.fake.add_instance("eu-test-1b")
    refused(attach, "InvalidVolume.ZoneMismatch", VolumeId=id_, InstanceId=there.id, Device="/dev/xvdba")
    refused(attach, "InvalidParameterValue", "banana", VolumeId=id_, InstanceId=here.id, Device="banana")
    refused(attach, "InvalidParameterValue", VolumeId=id_, InstanceId=here.id, Device="/dev/xvdzz")
    refused(attach, "InvalidInstanceID.NotFound", VolumeId=id_, InstanceId="i-0123456789abcdef0", Device="/dev/xvdba")
    refused(attach, "InvalidInstanceID.Malformed", VolumeId=id_, InstanceId="node-a", Device="/dev/xvdba")
    refused(attach, "InvalidVolumeID.Malformed", VolumeId="disk", InstanceId=here.id, Device="/dev/xvdba")
    account.attached(id_, here)
    other = account.ready()
    refused(attach, "InvalidParameterValue", "already in use", VolumeId=other, InstanceId=here.id, Device="/dev/xvdba")
    account.fake.terminate(here)
    account.now += 10.0
    refused(attach, "IncorrectState", VolumeId=other, InstanceId=here.id, Device="/dev/xvdbb")


def test_limits_of_instance_types_count_root_and_interfaces(account: Account) -> None:
    instance = account.fake.add_instance(ZONE, instance_type="m5.large", interfaces=2)
    letters = "abcdefghijklmnopqrstuvwxyz"
    for letter in letters[:25]:
        account.attached(account.ready(), instance, f"/dev/xvdb{letter}")
    refused(
        account.ec2.attach_volume,
        "AttachmentLimitExceeded",
        VolumeId=account.ready(),
        InstanceId=instance.id,
        Device="/dev/xvdaa",
    )


def test_detaching_is_refused_for_reasons(account: Account) -> None:
    one, two = account.fake.add_instance(ZONE), account.fake.add_instance(ZONE)
    id_, detach = account.ready(), account.ec2.detach_volume
    refused(detach, "IncorrectState", "'available'", VolumeId=id_)
    account.attached(id_, one)
    refused(detach, "InvalidAttachment.NotFound", VolumeId=id_, InstanceId=two.id)
    refused(detach, "InvalidAttachment.NotFound", VolumeId=id_, InstanceId=one.id, Device="/dev/xvdbz")
    detach(VolumeId=id_)
    assert detach(VolumeId=id_, InstanceId=one.id)["State"] == "detaching"


def test_a_shared_volume_is_on_sixteen_instances(account: Account) -> None:
    id_ = account.ready(VolumeType="io2", Iops=500, MultiAttachEnabled=True)
    instances = [account.fake.add_instance(ZONE) for _ in range(17)]
    for instance in instances[:16]:
        account.attached(id_, instance)
    assert len(account.look(id_)["Attachments"]) == 16
    refused(
        account.ec2.attach_volume,
        "AttachmentLimitExceeded",
        VolumeId=id_,
        InstanceId=instances[16].id,
        Device="/dev/xvdba",
    )
    refused(account.ec2.detach_volume, "InvalidParameterCombination", VolumeId=id_)
    account.ec2.detach_volume(VolumeId=id_, InstanceId=instances[0].id)
    account.now += 10.0
    assert (account.look(id_)["State"], len(account.look(id_)["Attachments"])) == ("in-use", 15)


def test_a_terminated_instance_frees_its_volumes_and_takes_its_root_along(account: Account) -> None:
    instance = account.fake.add_instance(ZONE)
    id_ = account.attached(account.ready(), instance)
    mappings = account.ec2.describe_instances(InstanceIds=[instance.id])["Reservations"][0]["Instances"][0]
    assert {each["DeviceName"] for each in mappings["BlockDeviceMappings"]} == {"/dev/xvda", "/dev/xvdba"}
    account.fake.terminate(instance)
    account.now += 10.0
    assert account.look(id_)["State"] == "available"
    refused(account.ec2.describe_volumes, "InvalidVolume.NotFound", VolumeIds=[instance.root_volume])


# --- modifications and snapshots --------------------------------------------------------------------------------


def test_modifications_go_through_their_states_and_are_limited(account: Account) -> None:
    modify, id_ = account.ec2.modify_volume, account.ready()

    def state() -> Any:
        shown = account.ec2.describe_volumes_modifications(VolumeIds=[id_])["VolumesModifications"][0]
        return shown["ModificationState"], account.look(id_)["Size"]

    refused(modify, "InvalidParameterValue", "smaller", VolumeId=id_, Size=9)
    refused(account.ec2.describe_volumes_modifications, "InvalidVolumeModification.NotFound", VolumeIds=[id_])
    modify(VolumeId=id_, Size=20)
    assert state() == ("modifying", 10)
    refused(modify, "IncorrectModificationState", VolumeId=id_, Size=30)
    account.now += 2.0
    assert state() == ("optimizing", 20)
    refused(modify, "IncorrectModificationState", VolumeId=id_, Size=30)
    account.now += 60.0
    assert state() == ("completed", 20)
    for size in (30, 40, 50):
        modify(VolumeId=id_, Size=size)
        account.now += 60.0
    refused(modify, "VolumeModificationRateExceeded", "Wait at least", VolumeId=id_, Size=60)
    account.now += 86_400.0
    modify(VolumeId=id_, Size=60)


def test_changing_the_type_changes_what_belongs_to_it(account: Account) -> None:
    id_ = account.ready()
    refused(account.ec2.modify_volume, "MissingParameter", VolumeId=id_, VolumeType="io2")
    account.ec2.modify_volume(VolumeId=id_, VolumeType="io2", Iops=500)
    account.now += 60.0
    shown = account.look(id_)
    assert (shown["VolumeType"], shown["Iops"], shown.get("Throughput")) == ("io2", 500, None)


def test_snapshots_complete_and_are_restored(account: Account) -> None:
    account.fake.behave(snapshot_interval=0.0)
    id_ = account.ready()
    first = account.ec2.create_snapshot(VolumeId=id_)["SnapshotId"]
    assert account.ec2.create_snapshot(VolumeId=id_)["SnapshotId"] != first, "no token: every call makes another"
    refused(account.create, "IncorrectState", "pending", SnapshotId=first)
    account.now += 10.0
    refused(account.create, "InvalidParameterValue", SnapshotId=first, Size=9)
    assert account.look(account.ready(SnapshotId=first, Size=12))["SnapshotId"] == first
    account.ec2.delete_snapshot(SnapshotId=first)
    refused(account.ec2.delete_snapshot, "InvalidSnapshot.NotFound", SnapshotId=first)
    account.fake.behave(snapshot_quota=1)
    refused(account.ec2.create_snapshot, "SnapshotLimitExceeded", VolumeId=id_)


# --- describing -------------------------------------------------------------------------------------------------


def test_one_unknown_id_fails_the_call_and_is_named(account: Account) -> None:
    id_ = account.ready()
    gone = ["vol-0aaaaaaaaaaaaaaaa", "vol-0bbbbbbbbbbbbbbbb"]
    refused(account.ec2.describe_volumes, "InvalidVolume.NotFound", f"'{gone[0]}'", VolumeIds=[id_, gone[0]])
    refused(account.ec2.describe_volumes, "InvalidVolume.NotFound", f"'{gone[0]}, {gone[1]}'", VolumeIds=[id_, *gone])
    refused(account.ec2.describe_volumes, "InvalidParameterValue", VolumeIds=["banana"])
    by_id = [{"Name": "volume-id", "Values": [id_, *gone]}]
    assert len(account.ec2.describe_volumes(Filters=by_id)["Volumes"]) == 1


def test_pages_hold_everything_that_exists_all_the_time(account: Account) -> None:
    ids = [account.ready() for _ in range(23)]
    first = account.ec2.describe_volumes(MaxResults=10)
    account.ec2.delete_volume(VolumeId=ids[0])
    account.now += 10.0
    account.create()
    seen = [each["VolumeId"] for each in first["Volumes"]]
    while token := first.get("NextToken"):
        first = account.ec2.describe_volumes(MaxResults=10, NextToken=token)
        seen += [each["VolumeId"] for each in first["Volumes"]]
    assert len(seen) == len(set(seen))
    assert set(ids) <= set(seen)
    pages = account.ec2.get_paginator("describe_volumes").paginate(PaginationConfig={"PageSize": 7})
    assert [len(page["Volumes"]) for page in pages] == [7, 7, 7, 2]


def test_bad_pages_are_refused(account: Account) -> None:
    id_ = account.ready()
    refused(account.ec2.describe_volumes, "InvalidPaginationToken", NextToken="banana")
    refused(account.ec2.describe_volumes, "InvalidParameterCombination", MaxResults=10, VolumeIds=[id_])
    refused(account.ec2.describe_volumes, "InvalidParameterValue", MaxResults=1)


@pytest.mark.parametrize(
    ("name", "values", "found"),
    [
        ("tag:k", ["v1"], {1}),
        ("tag:k", ["v*"], {1, 2}),
        ("tag:k", ["v?"], {1, 2}),
        ("tag:K", ["v1"], set()),
        ("tag-key", ["k"], {1, 2}),
        ("tag-value", ["v2"], {2}),
        ("size", ["11"], {1}),
        ("status", ["in-use"], {0}),
        ("availability-zone", ["eu-test-1a"], {0, 1, 2}),
        ("encrypted", ["true"], set()),
        ("multi-attach-enabled", ["false"], {0, 1, 2}),
        ("attachment.device", ["/dev/xvdba"], {0}),
        ("attachment.status", ["attached"], {0}),
    ],
)
def test_filters(account: Account, name: str, values: list[str], found: set[int]) -> None:
    ids = []
    for number in range(3):
        tags = [{"ResourceType": "volume", "Tags": [{"Key": "k", "Value": f"v{number}"}]}] if number else []
        ids.append(account.ready(Size=10 + number, TagSpecifications=tags))
    account.attached(ids[0], account.fake.add_instance(ZONE))
    filters = [{"Name": name, "Values": values}, {"Name": "volume-id", "Values": ids}]
    shown = {each["VolumeId"] for each in account.ec2.describe_volumes(Filters=filters)["Volumes"]}
    assert shown == {ids[number] for number in found}


def test_a_filter_that_ec2_does_not_have_is_refused(account: Account) -> None:
    account.ready()
    refused(account.ec2.describe_volumes, "InvalidParameterValue", Filters=[{"Name": "colour", "Values": ["red"]}])
    many = [{"Name": "volume-id", "Values": [f"vol-{n:017x}" for n in range(201)]}]
    refused(account.ec2.describe_volumes, "FilterLimitExceeded", Filters=many)


def test_zones_and_instance_types(account: Account) -> None:
    zones = account.ec2.describe_availability_zones()["AvailabilityZones"]
    assert [zone["ZoneName"] for zone in zones] == ["eu-test-1a", "eu-test-1b", "eu-test-1c"]
    (kind,) = account.ec2.describe_instance_types(InstanceTypes=["m5.large"])["InstanceTypes"]
    assert (kind["EbsInfo"]["MaximumEbsAttachments"], kind["EbsInfo"]["AttachmentLimitType"]) == (27, "shared")
    refused(account.ec2.describe_instance_types, "InvalidInstanceType", InstanceTypes=["z9.huge"])


# --- troubles ---------------------------------------------------------------------------------------------------


def test_each_action_has_a_bucket_of_its_own() -> None:
    account = Account(Behaviour(throttle={"CreateVolume": Rate(burst=2, per_second=1)}))
    account.create()
    account.create()
    refused(account.create, "RequestLimitExceeded")
    account.ec2.describe_volumes()
    account.now += 1.0
    account.create()
    refused(account.create, "RequestLimitExceeded")
    assert set(EC2_LIMITS) >= {"CreateVolume", "AttachVolume", "DescribeVolumes"}


def test_scripted_faults(account: Account) -> None:
    add = account.fake.faults.add
    add(Fault(action="CreateVolume", kind=FaultKind.REFUSE, code="InsufficientVolumeCapacity", skip=1))
    account.create()
    refused(account.create, "InsufficientVolumeCapacity")
    add(Fault(action="CreateVolume", kind=FaultKind.LIE, code="VolumeLimitExceeded"))
    refused(account.create, "VolumeLimitExceeded")
    assert len(account.fake.volumes) == 2
    for kind, error, there in (
        (FaultKind.DROP, ConnectionClosedError, 2),
        (FaultKind.CLOSE, EndpointConnectionError, 2),
        (FaultKind.LOSE, ConnectionClosedError, 3),
        (FaultKind.LATE, ConnectionClosedError, 3),
    ):
        add(Fault(action="CreateVolume", kind=kind, seconds=5.0))
        with pytest.raises(error):
            account.create()
        assert len(account.fake.volumes) == there
    account.now += 5.0
    assert len(account.fake.volumes) == 4
    add(Fault(action="CreateVolume", kind=FaultKind.STALL, when=lambda given: given["Size"] == 77))
    stuck, other = account.create(Size=77), account.create()
    account.now += 1_000.0
    assert (account.look(stuck)["State"], account.look(other)["State"]) == ("creating", "available")
    assert account.fake.faults.left == ()


def test_credentials_and_rights_are_checked() -> None:
    account = Account(
        Behaviour(access_keys=frozenset({"AKIAGOOD"}), allowed=frozenset({"DescribeVolumes"})), access_key="AKIAGOOD"
    )
    account.ec2.describe_volumes()
    refused(account.create, "UnauthorizedOperation", "ec2:CreateVolume")
    refused(InProcess(account.fake, access_key="AKIABAD").client().describe_volumes, "AuthFailure")


def test_nothing_happens_by_itself_and_the_next_change_is_known(account: Account) -> None:
    assert account.fake.next_change() is None
    account.create()
    assert account.fake.next_change() == 1.5
    account.now = 2.0
    assert account.fake.next_change() is None


def test_two_runs_are_the_same() -> None:
    def run() -> list[Any]:
        account = Account()
        ids = [account.ready() for _ in range(3)]
        return [ids, [account.look(id_)["CreateTime"] for id_ in ids], account.fake.add_instance(ZONE).id]

    assert run() == run()


def test_threads_take_turns() -> None:
    account = Account(Behaviour())
    threads = [
        threading.Thread(target=lambda: [account.create(ClientToken=f"t{n}") for n in range(20)]) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(account.fake.volumes) == 20


@pytest.mark.parametrize("id_", ["vol-xyz", "vol-0123456789", "vol-0123456789ABCDEF0", "snap-01234567"])
def test_ids_have_eight_or_seventeen_digits(account: Account, id_: str) -> None:
    known = account.ready()
    refused(account.ec2.describe_volumes, "InvalidParameterValue", f"Value ({id_}) for", VolumeIds=[known, id_])
    refused(account.ec2.delete_volume, "InvalidVolumeID.Malformed", id_, VolumeId=id_)
    assert account.ec2.describe_volumes(Filters=[{"Name": "volume-id", "Values": [id_]}])["Volumes"] == []
    refused(account.ec2.describe_volumes, "InvalidVolume.NotFound", VolumeIds=["vol-01234567"])


def test_throughput_needs_iops(account: Account) -> None:
    """Amazon EBS User Guide, "General Purpose SSD volumes": 0.25 MiB/s for each of the provisioned IOPS of gp3."""
    refused(account.create, "InvalidParameterValue", "to iops ratio of 0.250333 is too high", Iops=3000, Throughput=751)
    id_ = account.ready(Iops=3000, Throughput=750)
    refused(account.ec2.modify_volume, "InvalidParameterValue", "iops ratio", VolumeId=id_, Throughput=800)


def test_zones_have_states(account: Account) -> None:
    account.fake.behave(zone_states={ZONE: "impaired"})
    zones = {each["ZoneName"]: each["State"] for each in account.ec2.describe_availability_zones()["AvailabilityZones"]}
    assert zones == {ZONE: "impaired", "eu-test-1b": "available", "eu-test-1c": "available"}


def test_snapshots_of_a_volume_keep_their_distance(account: Account) -> None:
    one, other = account.ready(), account.ready()
    account.ec2.create_snapshot(VolumeId=one)
    account.ec2.create_snapshot(VolumeId=other)
    account.now += 14.0
    refused(account.ec2.create_snapshot, "SnapshotCreationPerVolumeRateExceeded", "request rate", VolumeId=one)
    account.now += 1.0
    account.ec2.create_snapshot(VolumeId=one)
    assert len(account.fake.snapshots) == 3


def test_what_was_accepted_can_fail(account: Account) -> None:
    """States of DescribeVolumes, DescribeVolumesModifications and DescribeSnapshots (Amazon EC2 API reference)."""
    id_ = account.ready()
    for action in ("CreateVolume", "ModifyVolume", "CreateSnapshot"):
        account.fake.faults.add(Fault(action=action, kind=FaultKind.FAIL, message="Hardware."))
    assert account.look(account.ready())["State"] == "error"
    account.ec2.modify_volume(VolumeId=id_, Size=20)
    snapshot = account.ec2.create_snapshot(VolumeId=id_)["SnapshotId"]
    account.now += 30.0
    (change,) = account.ec2.describe_volumes_modifications(VolumeIds=[id_])["VolumesModifications"]
    assert (change["ModificationState"], change["StatusMessage"], account.look(id_)["Size"]) == (
        "failed",
        "Hardware.",
        10,
    )
    (made,) = account.ec2.describe_snapshots(SnapshotIds=[snapshot])["Snapshots"]
    assert (made["State"], made["StateMessage"]) == ("error", "Hardware.")


# --- what EC2 refuses -------------------------------------------------------------------------------------------


def documented(operation: str) -> list[str]:
    """The filters that botocore's model of EC2 documents for a Describe action."""
    model = Session().get_service_model("ec2").operation_model(operation)
    text = model.input_shape.members["Filters"].documentation
    return [name for name in re.findall(r"<li> <p> ?<code>([a-z.-]+)</code>", text) if not name.startswith("tag")]


@pytest.mark.parametrize(
    ("operation", "method"),
    [
        ("DescribeVolumes", "describe_volumes"),
        ("DescribeSnapshots", "describe_snapshots"),
        ("DescribeVolumesModifications", "describe_volumes_modifications"),
        ("DescribeVolumeStatus", "describe_volume_status"),
        ("DescribeAvailabilityZones", "describe_availability_zones"),
        ("DescribeFastSnapshotRestores", "describe_fast_snapshot_restores"),
        ("DescribeLockedSnapshots", "describe_locked_snapshots"),
    ],
)
def test_every_filter_that_ec2_documents_is_heeded(account: Account, operation: str, method: str) -> None:
    id_ = account.ready()
    account.ec2.create_snapshot(VolumeId=id_)
    account.ec2.modify_volume(VolumeId=id_, Size=12)
    names = documented(operation)
    assert names
    describe = getattr(account.ec2, method)
    for name in names:
        answer = describe(Filters=[{"Name": name, "Values": ["no such value"]}])
        assert not next(value for key, value in answer.items() if isinstance(value, list)), name
    refused(describe, "InvalidParameterValue", Filters=[{"Name": "colour", "Values": ["red"]}])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("original-size", "10"),
        ("target-size", "12"),
        ("original-iops", "3000"),
        ("target-volume-type", "gp3"),
        ("modification-state", "modifying"),
        ("start-time", "2026-01-01T00:00:10.000Z"),
    ],
)
def test_modifications_are_found_by_their_values(account: Account, name: str, value: str) -> None:
    id_ = account.ready()
    account.ec2.modify_volume(VolumeId=id_, Size=12)
    found = account.ec2.describe_volumes_modifications(Filters=[{"Name": name, "Values": [value]}])
    assert [each["VolumeId"] for each in found["VolumesModifications"]] == [id_]


def test_zones_and_types_are_found_by_their_fields(account: Account) -> None:
    account.fake.behave(local_zones=("eu-test-1-ham-1a",), zone_states={"eu-test-1b": "impaired"})

    def zones(name: str, value: str) -> list[str]:
        found = account.ec2.describe_availability_zones(Filters=[{"Name": name, "Values": [value]}])
        return [each["ZoneName"] for each in found["AvailabilityZones"]]

    assert zones("zone-type", "local-zone") == ["eu-test-1-ham-1a"]
    assert zones("state", "impaired") == zones("zone-id", "tst1-az2") == ["eu-test-1b"]
    shared = [{"Name": "ebs-info.attachment-limit-type", "Values": ["shared"]}]
    kinds = account.ec2.describe_instance_types(Filters=shared)["InstanceTypes"]
    assert [kind["InstanceType"] for kind in kinds] == ["i7i.metal-48xl", "m4.large", "m5.large", "t3.micro"]


def test_a_card_that_an_instance_does_not_have_is_refused_and_each_takes_its_part(account: Account) -> None:
    account.fake.behave(instance_types={"c8gn.48xlarge": InstanceType(attachments=4, shared=False, cards=2)})
    instance = account.fake.add_instance(instance_type="c8gn.48xlarge").id

    def attach(letter: str, **card: int) -> Any:
        return {"VolumeId": account.ready(), "InstanceId": instance, "Device": f"/dev/xvd{letter}", **card}

    refused(account.ec2.attach_volume, "InvalidParameterValue", "has 2 EBS cards", **attach("b", EbsCardIndex=2))
    account.ec2.attach_volume(**attach("c"))
    refused(account.ec2.attach_volume, "AttachmentLimitExceeded", "card 0 takes 2", **attach("d"))
    assert account.ec2.attach_volume(**attach("e", EbsCardIndex=1))["EbsCardIndex"] == 1
    (kind,) = account.ec2.describe_instance_types(InstanceTypes=["c8gn.48xlarge"])["InstanceTypes"]
    assert kind["EbsInfo"]["MaximumEbsCards"] == 2


def test_a_root_volume_stays_while_its_instance_runs(account: Account) -> None:
    instance = account.fake.add_instance(ZONE)
    root = instance.root_volume
    message = f"Unable to detach root volume '{root}' from instance '{instance.id}'"
    refused(account.ec2.detach_volume, "IncorrectState", message, VolumeId=root, InstanceId=instance.id)
    instance.state = "stopped"
    account.ec2.detach_volume(VolumeId=root, InstanceId=instance.id)


def test_nothing_is_unencrypted_where_encryption_is_the_default(account: Account) -> None:
    account.fake.behave(encrypt_by_default=True)
    assert account.look(account.ready(Encrypted=False))["Encrypted"]


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ({"VolumeType": "io1"}, "MissingParameter", "The parameter iops must be specified for io1 volumes"),
        ({"VolumeType": "gp2", "Iops": 500}, "InvalidParameterCombination", "iops is not supported for gp2 volumes"),
        ({"VolumeType": "gp2", "Throughput": 200}, "InvalidParameterCombination", "throughput is not supported"),
        ({"Iops": 90_000}, "InvalidParameterValue", "Volume iops of 90000 is too high; maximum is 80000."),
        ({"Iops": 100}, "InvalidParameterValue", "Volume iops of 100 is too low; minimum is 3000."),
        ({"VolumeType": "io1", "Iops": 501}, "InvalidParameterValue", "ratio of 50.1"),
        ({"VolumeType": "io2", "Iops": 300_000}, "InvalidParameterCombination", "256K IOPS or 1000:1 IOPS:GB ratio"),
        ({"Throughput": 1000}, "InvalidParameterValue", "Throughput (MiBps) to iops ratio"),
        ({"AvailabilityZoneId": "tst1-az1"}, "InvalidParameterCombination", "cannot be used together"),
        ({"VolumeInitializationRate": 200}, "InvalidParameterCombination", "volumes created from snapshots"),
        ({"OutpostArn": "arn:aws:outposts:r:1:outpost/op-1"}, "UnknownParameter", "OutpostArn"),
    ],
)
def test_demands_are_refused_with_the_codes_of_ec2(account: Account, given: Any, code: str, message: str) -> None:
    refused(account.create, code, message, **given)
    assert account.fake.volumes == {}


def test_a_magnetic_volume_is_not_modified(account: Account) -> None:
    id_ = account.ready(VolumeType="standard")
    message = "Volume type EBS Magnetic is not supported."
    refused(account.ec2.modify_volume, "InvalidParameterValue", message, VolumeId=id_, Size=20)
    id_ = account.ready(VolumeType="gp3")
    refused(account.ec2.modify_volume, "InvalidParameterValue", message, VolumeId=id_, VolumeType="standard")


@pytest.mark.parametrize(("size", "iops"), [(10, 100), (1000, 3000), (10_000, 16_000)])
def test_a_gp2_volume_shows_the_iops_of_its_size(account: Account, size: int, iops: int) -> None:
    """Their baseline (Amazon EC2 API reference, Volume)."""
    id_ = account.ready(VolumeType="gp2", Size=size)
    assert account.fake.volumes[id_].iops == iops


def test_each_type_has_quotas(account: Account) -> None:
    account.fake.behave(type_quotas_gib={"gp3": 25, "io2": 1000}, iops_quotas={"io2": 1000})
    id_ = account.ready()
    account.ready()
    refused(account.create, "VolumeLimitExceeded")
    refused(account.ec2.modify_volume, "VolumeModificationSizeLimitExceeded", VolumeId=id_, Size=16)
    account.ready(VolumeType="io2", Iops=600)
    refused(account.create, "MaxIOPSLimitExceeded", VolumeType="io2", Iops=600)
    refused(account.ec2.modify_volume, "MaxIOPSLimitExceeded", VolumeId=id_, VolumeType="io2", Iops=600)


def test_a_zone_in_trouble_makes_no_volumes(account: Account) -> None:
    account.fake.behave(zone_states={"eu-test-1a": "constrained", "eu-test-1b": "unavailable"})
    refused(account.create, "InsufficientVolumeCapacity")
    refused(account.create, "Unavailable", AvailabilityZone="eu-test-1b")
    account.create(AvailabilityZone="eu-test-1c")


def test_what_cannot_be_seen_yet_cannot_be_changed_either(account: Account) -> None:
    account.fake.behave(visible_after=5.0)
    id_ = account.create(ClientToken="t")
    for call, given in (
        (account.ec2.delete_volume, {"VolumeId": id_}),
        (account.ec2.modify_volume, {"VolumeId": id_, "Size": 20}),
        (account.ec2.create_snapshot, {"VolumeId": id_}),
        (account.ec2.create_tags, {"Resources": [id_], "Tags": [{"Key": "a", "Value": "b"}]}),
    ):
        refused(call, "InvalidVolume.NotFound", **given)
    assert account.create(ClientToken="t") == id_
    account.now += 6.0
    account.ec2.delete_volume(VolumeId=id_)


@pytest.mark.parametrize(
    ("method", "given", "code"),
    [
        ("delete_snapshot", {"SnapshotId": "snap-1"}, "InvalidSnapshotID.Malformed"),
        ("describe_snapshots", {"SnapshotIds": ["snap-xyz"]}, "InvalidSnapshotID.Malformed"),
        ("describe_volume_status", {"VolumeIds": ["vol-1"]}, "InvalidParameterValue"),
        ("describe_instances", {"InstanceIds": ["i-123"]}, "InvalidInstanceID.Malformed"),
        ("delete_volume", {"VolumeId": "vol-1"}, "InvalidVolumeID.Malformed"),
    ],
)
def test_malformed_ids_are_told_from_unknown_ones(account: Account, method: str, given: Any, code: str) -> None:
    refused(getattr(account.ec2, method), code, **given)


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("describe_images", {"ImageIds": ["ami-1"]}),
        ("modify_volume", {"VolumeId": "vol-12345678", "MultiAttachEnabled": True}),
        ("describe_availability_zones", {"AllAvailabilityZones": True}),
        ("describe_snapshots", {"RestorableByUserIds": ["self"]}),
    ],
)
def test_what_the_mock_does_not_heed_is_refused(account: Account, method: str, given: Any) -> None:
    refused(getattr(account.ec2, method), "UnknownParameter", "is not recognized by this mock", **given)


def test_contents_of_a_volume_from_a_snapshot_come_later(account: Account) -> None:
    account.fake.behave(initialize_seconds=60.0)
    snapshot = account.ec2.create_snapshot(VolumeId=account.ready())["SnapshotId"]
    account.now += 10.0
    id_ = account.ready(SnapshotId=snapshot, VolumeInitializationRate=200)

    def state() -> str:
        (status,) = account.ec2.describe_volume_status(VolumeIds=[id_])["VolumeStatuses"]
        details = {each["Name"]: each["Status"] for each in status["VolumeStatus"]["Details"]}
        return details["initialization-state"]

    assert state() == "initializing"
    account.now += 60.0
    assert state() == "completed"


# --- answers ----------------------------------------------------------------------------------------------------


def live(account: Account) -> None:
    """Call every action of the mock, so that its answer has something in it."""
    ec2, instance = account.ec2, account.fake.add_instance()
    tags = [{"ResourceType": "volume", "Tags": [{"Key": "team", "Value": "a"}]}]
    volume = account.ready(VolumeType="io2", Iops=500, Encrypted=True, TagSpecifications=tags)
    ec2.create_tags(Resources=[volume], Tags=[{"Key": "k", "Value": "v"}])
    account.attached(volume, instance)
    ec2.describe_instances()
    ec2.modify_volume(VolumeId=volume, Size=20)
    ec2.describe_volumes_modifications()
    account.now += 100.0
    ec2.delete_tags(Resources=[volume], Tags=[{"Key": "k"}])
    snapshot = ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
    ec2.describe_snapshots(OwnerIds=["self"])
    account.now += 100.0
    ec2.create_snapshots(InstanceSpecification={"InstanceId": instance.id, "ExcludeBootVolume": True})
    account.now += 100.0
    used = ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
    account.fake.add_image(used)
    ec2.describe_images(Owners=["self"])
    ec2.enable_fast_snapshot_restores(AvailabilityZones=["eu-test-1a", "elsewhere"], SourceSnapshotIds=[used])
    ec2.describe_fast_snapshot_restores()
    ec2.lock_snapshot(SnapshotId=used, LockMode="compliance", LockDuration=3, CoolOffPeriod=2)
    ec2.describe_locked_snapshots()
    ec2.copy_volumes(SourceVolumeId=volume, VolumeType="gp3")
    ec2.describe_volumes()
    ec2.describe_volume_status(VolumeIds=[account.ready(SnapshotId=snapshot, Size=30, VolumeInitializationRate=200)])
    ec2.describe_availability_zones()
    ec2.describe_instance_types()
    ec2.detach_volume(VolumeId=volume, InstanceId=instance.id)
    account.now += 100.0
    ec2.delete_volume(VolumeId=volume)
    ec2.delete_snapshot(SnapshotId=snapshot)


def flaws(shape: Any, value: Any, where: str) -> list[str]:
    """Return in what a value of an answer is none of its shape, the values of enumerations included."""
    if shape.type_name == "structure":
        return [flaw for name, each in value.items() for flaw in flaws(shape.members[name], each, f"{where}.{name}")]
    if shape.type_name == "list":
        return [flaw for each in value for flaw in flaws(shape.member, each, f"{where}[]")]
    known = shape.metadata.get("enum")
    return [f"{where} is {value!r}"] if known and value not in known else []


def test_every_answer_of_every_action_is_one_of_the_model(account: Account) -> None:
    seen: dict[str, list[Any]] = {}

    def note(parsed: Any, model: Any, **_: Any) -> None:
        answer = {name: each for name, each in parsed.items() if name != "ResponseMetadata"}
        seen.setdefault(model.name, []).append(answer)
        if model.output_shape is not None:
            report = ParamValidator().validate(answer, model.output_shape)
            assert not report.has_errors(), report.generate_report()
            assert flaws(model.output_shape, answer, model.name) == []

    account.ec2.meta.events.register("after-call.ec2.*", note)
    live(account)
    assert set(seen) == set(ACTIONS)
    silent = {name for name, answers in seen.items() if not any(any(each.values()) for each in answers)}
    assert {name for name in silent if not name.startswith(("Delete", "CreateTags"))} == set()
