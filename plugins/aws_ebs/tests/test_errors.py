"""The table of errors, row by row, as hooks raise them; and that every message says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from botocore.retries.standard import ThrottledRetryableChecker

from volplane import (
    AttachedElsewhere,
    BackendError,
    Done,
    InvalidArgument,
    ModifyRequest,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Throttled,
    Unavailable,
    VolumeInUse,
)
from volplane_aws_ebs import errors
from volplane_aws_ebs.api import NO_ANSWER, NO_CREDENTIALS, NOT_SENT, Action, AwsError
from volplane_aws_ebs.errors import outcome_unknown, to_backend_error
from volplane_aws_ebs.ownership_tags import client_token
from volplane_aws_ebs.testing import Behaviour, FaultKind

GIB = 1 << 30
ZONES = ("eu-test-1a", "eu-test-1b", "eu-test-1c")
KEY = "arn:aws:kms:eu-test-1:123456789012:key/0f0f0f0f"


def error_of(code: str, call: Action = Action.CREATE_VOLUME, message: str = "Because.") -> BackendError:
    return to_backend_error(AwsError(call, code, message), "make a volume for pvc-1")


# --- rows that hooks answer themselves --------------------------------------------------------------------------


def test_a_volume_that_is_gone_is_deleted(region: Any) -> None:
    asset = region.provision()
    region.refuse("DeleteVolume", "InvalidVolume.NotFound")
    assert region.delete(asset) == Done()


def test_a_volume_that_is_gone_is_detached(region: Any) -> None:
    asset, node = region.provision(), region.node(region.fake.add_instance())
    region.attach(asset, node)
    region.fake.remove_volume(asset.handle)
    assert region.detach(asset, node) == Done()


@pytest.mark.parametrize("code", ["IncorrectState", "InvalidAttachment.NotFound"])
def test_what_cannot_be_detached_because_it_is_not_attached_is_detached(region: Any, code: str) -> None:
    asset, node = region.provision(), region.node(region.fake.add_instance())
    region.attach(asset, node)
    region.refuse("DetachVolume", code)
    volume = region.fake.volumes[asset.handle]
    first = region.backend.detach(region.detachment(asset, node))
    volume.attachments.clear()
    volume.state = "available"
    region.clock.advance(first.retry_after)
    assert region.detach(asset, node) == Done()


def test_deleting_an_attached_volume_says_who_holds_it(region: Any) -> None:
    asset, node = region.provision(), region.node(region.fake.add_instance(), "worker-7")
    region.attach(asset, node)
    with pytest.raises(VolumeInUse, match=r"attached to worker-7 \(/dev/xvdaa, attached\)"):
        region.delete(asset)
    assert region.fake.volumes[asset.handle].state == "in-use"


@pytest.mark.parametrize("code", ["VolumeInUse", "IncorrectState"])
def test_a_refused_deletion_is_tried_again_later(region: Any, code: str) -> None:
    asset = region.provision()
    region.refuse("DeleteVolume", code)
    with pytest.raises(VolumeInUse, match="tried again") as raised:
        region.delete(asset)
    assert raised.value.code == code
    assert region.delete(asset) == Done()


def test_attaching_what_is_attached_elsewhere_names_the_other_node(region: Any) -> None:
    asset = region.provision()
    one, two = (region.node(region.fake.add_instance(), name) for name in ("worker-1", "worker-2"))
    region.attach(asset, one)
    with pytest.raises(AttachedElsewhere, match="attached to worker-1") as raised:
        region.attach(asset, two)
    assert raised.value.node == "worker-1"
    assert list(region.fake.volumes[asset.handle].attachments) == [one.instance_id.rpartition("/")[2]]


def test_a_burnt_token_leads_to_another_one_after_a_lookup(region: Any) -> None:
    burnt = client_token(region.owner(), 0)
    region.refuse(
        "CreateVolume", "IdempotentParameterMismatch", times=99, when=lambda given: given["ClientToken"] == burnt
    )
    begun = region.clock.now
    region.provision()
    assert region.clock.now - begun > 60, "only once a volume made with the token would have to be visible"
    assert len(region.fake.volumes) == 1


@pytest.mark.parametrize("code", ["VolumeLimitExceeded", "MaxIOPSLimitExceeded", "ResourceLimitExceeded"])
def test_a_quota_is_exhausted_not_final(region: Any, code: str) -> None:
    region.refuse("CreateVolume", code)
    with pytest.raises(ResourceExhausted, match="higher quota") as raised:
        region.provision()
    assert (raised.value.scope, raised.value.nothing_done, raised.value.reschedule) == ("account", False, False)
    assert raised.value.retry_after is not None
    assert raised.value.retry_after >= 30


def test_a_volume_that_was_made_although_the_quota_was_refused_is_found(region: Any) -> None:
    region.fault("CreateVolume", FaultKind.LIE, code="VolumeLimitExceeded", message="Too many.")
    with pytest.raises(ResourceExhausted):
        region.provision()
    region.fake.behave(volume_quota=0)
    asset = region.provision()
    assert list(region.fake.volumes) == [asset.handle]


def test_a_node_that_is_full_is_exhausted(region: Any) -> None:
    asset, node = region.provision(), region.node(region.fake.add_instance())
    region.refuse("AttachVolume", "AttachmentLimitExceeded")
    with pytest.raises(ResourceExhausted, match="another node") as raised:
        region.attach(asset, node)
    assert raised.value.scope == "node"


def test_a_zone_without_room_asks_for_another_one_and_proves_that_nothing_was_made(region: Any) -> None:
    region.clock.advance(120.0)
    region.refuse("CreateVolume", "InsufficientVolumeCapacity", "There is not enough capacity to create the volume")
    with pytest.raises(ResourceExhausted, match="no room") as raised:
        region.provision()
    assert (raised.value.scope, raised.value.reschedule, raised.value.nothing_done) == ("zone", True, True)


@pytest.mark.parametrize("earlier", [False, True])
def test_a_refused_volume_proves_that_none_was_made_unless_an_earlier_attempt_is_in_doubt(
    region: Any, *, earlier: bool
) -> None:
    region.clock.advance(120.0)
    if earlier:
        region.fault("CreateVolume", FaultKind.DROP)
        with pytest.raises(Unavailable):
            region.provision()
    region.refuse("CreateVolume", "InvalidParameterCombination", "The parameter iops is not supported for it")
    with pytest.raises(InvalidArgument) as raised:
        region.provision()
    assert raised.value.nothing_left is not earlier


@pytest.mark.parametrize("code", ["InsufficientVolumeCapacity", "VolumeTypeNotAvailableInZone"])
def test_a_volume_that_a_zone_cannot_make_is_made_in_another_one_that_it_may_be_in(region: Any, code: str) -> None:
    region.clock.advance(120.0)
    first: list[str] = []

    def in_the_first_zone(given: Any) -> bool:
        first.append(given["AvailabilityZone"])
        return bool(given["AvailabilityZone"] == first[0])

    region.refuse("CreateVolume", code, "The specified Availability Zone does not support it", when=in_the_first_zone)
    asset = region.provision(segment=None)
    assert region.fake.volumes[asset.handle].zone != first[0]


def test_a_zone_without_room_proves_nothing_while_an_earlier_attempt_is_in_doubt(region: Any) -> None:
    region.clock.advance(120.0)
    region.fault("CreateVolume", FaultKind.DROP)
    with pytest.raises(Unavailable):
        region.provision()
    region.refuse("CreateVolume", "InsufficientVolumeCapacity")
    with pytest.raises(ResourceExhausted) as raised:
        region.provision()
    assert not raised.value.nothing_done


@pytest.mark.parametrize(
    "code",
    [
        "InvalidParameterValue",
        "InvalidParameterCombination",
        "InvalidParameterDependency",
        "UnknownParameter",
        "UnknownVolumeType",
        "UnsupportedOperation",
        "ValidationError",
        "MissingParameter",
        "TagLimitExceeded",
        "InvalidZone.NotFound",
    ],
)
def test_what_ec2_does_not_understand_is_final(region: Any, code: str) -> None:
    region.refuse("CreateVolume", code, "Iops of 5 is too low.")
    with pytest.raises(
        InvalidArgument, match="cannot make a volume for pvc-u1 in zone eu-test-1a: Iops of 5 is too low"
    ) as raised:
        region.provision()
    assert raised.value.code == code


def test_a_snapshot_that_does_not_exist_is_not_found(region: Any) -> None:
    with pytest.raises(NotFound, match="snap-0123456789abcdef0"):
        region.provision(source_snapshot="snap-0123456789abcdef0")


@pytest.mark.parametrize(
    "code",
    [
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
    ],
)
def test_throttling_is_not_final_and_says_when(region: Any, code: str) -> None:
    region.refuse("CreateVolume", code)
    with pytest.raises(Throttled, match="fewer calls") as raised:
        region.provision()
    assert raised.value.retry_after is not None
    assert not raised.value.nothing_done


def test_the_codes_of_throttling_are_those_of_the_sdk() -> None:
    assert set(ThrottledRetryableChecker._THROTTLED_ERROR_CODES) - errors.THROTTLED == {
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "TransactionInProgressException",
    }


def test_two_snapshots_of_a_volume_keep_their_distance_and_slow_nobody_else_down(region: Any) -> None:
    one, other = region.provision("u1"), region.provision("u2")
    region.snapshot(one, "snap-a", "u1")
    with pytest.raises(Throttled, match="15 seconds between two snapshots") as raised:
        region.snapshot(one, "snap-b", "u1")
    assert (raised.value.code, raised.value.retry_after) == ("SnapshotCreationPerVolumeRateExceeded", 15.0)
    begun = region.clock.now
    region.snapshot(other, "snap-c", "u2")
    assert region.clock.now - begun < 2
    region.clock.advance(raised.value.retry_after)
    begun = region.clock.now
    region.snapshot(one, "snap-b", "u1")
    assert region.clock.now - begun < 2, "nothing was in doubt"
    assert len(region.fake.snapshots) == 3


@pytest.mark.parametrize("code", ["InternalError", "Unavailable", "ServiceUnavailable"])
def test_a_server_error_leaves_the_outcome_open(region: Any, code: str) -> None:
    region.fault("CreateVolume", FaultKind.LIE, code=code)
    with pytest.raises(Unavailable, match="may have been done") as raised:
        region.provision()
    assert not raised.value.nothing_done
    asset = region.provision()
    assert list(region.fake.volumes) == [asset.handle]


def test_a_missing_permission_names_the_action(region: Any) -> None:
    region.fake.behave(allowed=frozenset({"DescribeVolumes", "DescribeAvailabilityZones"}))
    with pytest.raises(PermissionDenied, match=r"allow ec2:CreateVolume to the driver's role") as raised:
        region.provision()
    assert raised.value.code == "UnauthorizedOperation"


def test_an_encoded_refusal_is_decoded(region: Any) -> None:
    message = (
        "You are not authorized to perform this operation. Encoded authorization failure message: ec2:CreateVolume"
    )
    region.refuse("CreateVolume", "UnauthorizedOperation", message)
    with pytest.raises(PermissionDenied, match="user/test may not ec2:CreateVolume") as raised:
        region.provision()
    assert "Encoded" not in str(raised.value)


@pytest.mark.parametrize("code", ["AuthFailure", "ExpiredToken", "RequestExpired", "InvalidClientTokenId"])
def test_credentials_that_are_not_accepted_are_retried_slowly(region: Any, code: str) -> None:
    region.refuse("CreateVolume", code)
    with pytest.raises(PermissionDenied, match="credentials") as raised:
        region.provision()
    assert raised.value.retry_after is not None


def test_a_volume_that_vanishes_says_that_it_is_the_key(region: Any) -> None:
    with pytest.raises(PermissionDenied, match="vanished") as raised:
        region.provision(parameters={"kmsKeyId": KEY})
    told = str(raised.value)
    for part in (KEY, "kms:CreateGrant", "kms:GenerateDataKeyWithoutPlaintext", "kms:Decrypt", "VolumeVanished"):
        assert part in told
    assert raised.value.retry_after == 60


def test_a_volume_in_state_error_is_not_called_a_key_that_may_not_be_used(region: Any) -> None:
    """Amazon EBS User Guide, "Amazon EBS volume lifecycle": the hardware has failed."""
    region.fault("CreateVolume", FaultKind.FAIL)
    with pytest.raises(Unavailable, match="its state became `error`") as raised:
        region.provision()
    assert "KMS" not in str(raised.value)
    (failed,) = region.fake.volumes.values()
    assert failed.state == "deleting"
    region.clock.advance(raised.value.retry_after)
    asset = region.provision()
    assert list(region.fake.volumes) == [asset.handle] != [failed.id]


def test_a_failed_volume_under_a_key_of_the_class_names_the_key_as_well(new_region: Any) -> None:
    region = new_region(Behaviour(kms_keys={KEY: True}))
    region.fault("CreateVolume", FaultKind.FAIL)
    with pytest.raises(Unavailable, match=f"look also at KMS key {KEY}"):
        region.provision(parameters={"kmsKeyId": KEY})


def test_a_volume_that_stays_creating_is_told(region: Any) -> None:
    region.fault("CreateVolume", FaultKind.STALL)
    begun = region.clock.now
    with pytest.raises(Unavailable, match=r"creating vol-\w+ in eu-test-1a for 10 minutes") as raised:
        region.provision()
    assert 600 < region.clock.now - begun < 630
    (volume,) = region.fake.volumes.values()
    with pytest.raises(Unavailable, match="has been creating"):
        region.delete(volume.id)
    volume.state = "available"
    region.clock.advance(raised.value.retry_after)
    assert region.provision().handle == volume.id


def test_a_volume_is_made_once_the_key_may_be_used(region: Any) -> None:
    for attempt in range(3):
        with pytest.raises(PermissionDenied, match="vanished") as raised:
            region.provision(parameters={"kmsKeyId": KEY})
        assert raised.value.retry_after == 60 * 2**attempt
        region.clock.advance(raised.value.retry_after)
    region.fake.behave(kms_keys={KEY: True})
    asset = region.provision(parameters={"kmsKeyId": KEY})
    assert list(region.fake.volumes) == [asset.handle]
    assert region.fake.volumes[asset.handle].kms_key == KEY


def test_the_vanished_volume_is_told_by_the_next_process_too(region: Any) -> None:
    first = region.backend.provision(region.demand(parameters={"kmsKeyId": KEY}))
    region.clock.advance(first.retry_after)
    region.again()
    region.clock.advance(1.0)
    region.fake.behave(kms_keys={KEY: True})
    asset = region.provision(parameters={"kmsKeyId": KEY})
    assert list(region.fake.volumes) == [asset.handle]


@pytest.mark.parametrize(
    ("code", "told"),
    [("VolumeModificationRateExceeded", "four changes in 24 hours"), ("IncorrectModificationState", "not complete")],
)
def test_a_cool_down_keeps_the_wish(region: Any, code: str, told: str) -> None:
    asset = region.provision()
    region.refuse("ModifyVolume", code)
    with pytest.raises(Throttled, match=told) as raised:
        region.expand(asset, 2 * GIB)
    assert raised.value.retry_after is not None
    assert region.expand(asset, 2 * GIB).capacity_bytes == 2 * GIB


def test_a_volume_in_another_zone_than_the_node_is_refused_with_both_zones(region: Any) -> None:
    asset, node = region.provision(), region.node(region.fake.add_instance(ZONES[1]))
    with pytest.raises(InvalidArgument, match=r"in zone eu-test-1a, node node-a in eu-test-1b"):
        region.attach(asset, node)


def test_an_instance_that_is_gone_is_not_found(region: Any) -> None:
    asset, instance = region.provision(), region.fake.add_instance()
    region.fake.terminate(instance)
    region.clock.advance(5.0)
    with pytest.raises(NotFound, match="is terminated"):
        region.attach(asset, region.node(instance))


# --- the table itself -------------------------------------------------------------------------------------------

EVERY = [
    ("SnapshotLimitExceeded", ResourceExhausted),
    ("VolumeModificationSizeLimitExceeded", ResourceExhausted),
    ("ConcurrentTagAccess", Throttled),
    ("OptInRequired", PermissionDenied),
    ("NoAnswer", Unavailable),
    ("NotSent", Unavailable),
    ("NoCredentials", PermissionDenied),
    ("500", Unavailable),
    ("InvalidPaginationToken", InvalidArgument),
    ("InvalidVolumeID.Malformed", InvalidArgument),
    ("InvalidSnapshotID.Malformed", InvalidArgument),
    ("InvalidInstanceID.Malformed", InvalidArgument),
    ("IdempotentParameterMismatch", InvalidArgument),
    ("InvalidVolume.ZoneMismatch", InvalidArgument),
    ("InvalidInstanceID.NotFound", NotFound),
    ("InvalidSnapshot.NotFound", NotFound),
    ("ConcurrentSnapshotLimitExceeded", ResourceExhausted),
    ("TooManyRequestsException", Throttled),
    ("InternalFailure", Unavailable),
    ("503", Unavailable),
    ("AccessDenied", PermissionDenied),
    ("AccessDeniedException", PermissionDenied),
    ("OperationNotPermitted", PermissionDenied),
    ("ExpiredTokenException", PermissionDenied),
    ("SignatureDoesNotMatch", PermissionDenied),
    ("PendingVerification", PermissionDenied),
    ("Blocked", PermissionDenied),
    ("PendingSnapshotLimitExceeded", ResourceExhausted),
    ("InsufficientCapacity", ResourceExhausted),
    ("VolumeTypeNotAvailableInZone", ResourceExhausted),
    ("InvalidSnapshot.InUse", VolumeInUse),
    ("IncorrectInstanceState", Unavailable),
    ("RequestTimeout", Unavailable),
    ("RequestTimeoutException", Unavailable),
    ("ServerInternal", Unavailable),
    ("IncompleteSignature", PermissionDenied),
    ("MissingAuthenticationToken", PermissionDenied),
    ("UnrecognizedClientException", PermissionDenied),
    ("EncryptedVolumesNotSupported", InvalidArgument),
    ("InvalidAction", InvalidArgument),
    ("InvalidCharacter", InvalidArgument),
    ("InvalidInput", InvalidArgument),
    ("InvalidQueryParameter", InvalidArgument),
    ("InvalidRequest", InvalidArgument),
    ("InvalidTagKey.Malformed", InvalidArgument),
    ("InvalidVolumeID.ZoneMismatch", InvalidArgument),
    ("MalformedQueryString", InvalidArgument),
    ("MissingAction", InvalidArgument),
    ("TagPolicyViolation", InvalidArgument),
    ("UnsupportedHostConfiguration", InvalidArgument),
    ("VolumeIOPSLimit", InvalidArgument),
]


@pytest.mark.parametrize(("code", "kind"), EVERY)
def test_the_rest_of_the_table(code: str, kind: type[BackendError]) -> None:
    error = error_of(code)
    assert type(error) is kind
    assert error.code == code
    assert str(error).startswith("cannot make a volume for pvc-1: Because")


def test_every_code_of_the_table_stands_in_this_file() -> None:
    """A row without a test would be a guess."""
    tests = Path(__file__).read_text("utf-8")
    codes = {code for row in errors._TABLE.rows for code in row.codes} - {NO_ANSWER, NOT_SENT, NO_CREDENTIALS}
    assert [code for code in sorted(codes) if f'"{code.rstrip("*")}' not in tests] == []


def test_an_unknown_code_is_an_unknown_outcome() -> None:
    error = error_of("SomethingNew")
    assert type(error) is BackendError
    assert not error.nothing_done
    assert "CreateVolume" in str(error)


@pytest.mark.parametrize("code", [NO_ANSWER, "InternalError", "VolumeLimitExceeded", "SomethingNew"])
def test_these_leave_a_doubt(code: str) -> None:
    assert outcome_unknown(AwsError(Action.CREATE_VOLUME, code, ""))


@pytest.mark.parametrize(
    "code",
    ["RequestLimitExceeded", "NotSent", "UnauthorizedOperation", "InvalidParameterValue", "InsufficientVolumeCapacity"],
)
def test_these_leave_none(code: str) -> None:
    assert not outcome_unknown(AwsError(Action.CREATE_VOLUME, code, ""))


def test_no_message_ends_with_a_dot_or_names_python(region: Any) -> None:
    codes = [code for code, _ in EVERY] + ["VolumeInUse", "UnauthorizedOperation", "RequestLimitExceeded", "Odd"]
    for code in codes:
        text: Any = error_of(code).message
        assert not text.endswith(".")
        assert "botocore" not in text
        assert "Traceback" not in text


def test_a_quota_is_told_in_the_words_of_ec2(new_region: Any) -> None:
    region = new_region(Behaviour(storage_quota_gib=3))
    with pytest.raises(ResourceExhausted, match="gigabyte limit"):
        region.provision(size=4 * GIB)


@pytest.mark.parametrize(
    ("behaviour", "code", "advice"),
    [
        ({"callers_clock": 301.0}, "RequestExpired", "and at the clock"),
        ({"account_refused": "OptInRequired"}, "OptInRequired", "may not use EC2 here"),
        ({"account_refused": "Blocked"}, "Blocked", "may not use EC2 here"),
    ],
)
def test_an_account_that_may_do_nothing_for_a_while_makes_its_volume_afterwards(
    region: Any, behaviour: Any, code: str, advice: str
) -> None:
    right = {"callers_clock": 0.0, "account_refused": ""}
    region.fake.behave(**behaviour)
    with pytest.raises(PermissionDenied, match=advice) as refused:
        region.provision()
    assert (refused.value.code, region.fake.volumes) == (code, {})
    region.fake.behave(**right)
    asset = region.provision()
    assert list(region.fake.volumes) == [asset.handle]


def test_tags_that_another_call_changes_are_written_afterwards_and_slow_no_other_volume_down(new_region: Any) -> None:
    region = new_region(Behaviour(tag_seconds=3.0))
    busy, other = region.provision("u1"), region.provision("u2")
    client = region.connect.client()
    client.create_tags(Resources=[busy.handle], Tags=[{"Key": "by", "Value": "hand"}])
    with pytest.raises(Throttled, match="another call changes its tags now"):
        region.modify(busy, tagSpecification_1="team=storage")
    begun = region.clock.now
    region.finish(
        region.backend.modify,
        ModifyRequest(
            context=region.context(),
            volume=region.identity(other, "u2"),
            parameters={"tagSpecification_1": "team=storage"},
        ),
    )
    assert region.clock.now - begun < 1.0
    region.clock.advance(3.0)
    region.modify(busy, tagSpecification_1="team=storage")
    assert [each.tags.get("team") for each in region.fake.volumes.values()] == ["storage", "storage"]
