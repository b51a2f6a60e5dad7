"""From error codes of AWS to the errors of the contract, with messages that say what to do.

Codes are those of the Amazon EC2 API reference, "Error codes for the Amazon EC2 API". One table maps them; the
machinery of the table knows nothing of EBS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from volplane import (
    BackendError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Throttled,
    Unavailable,
    VolumeInUse,
)
from volplane_aws_ebs.api import NO_ANSWER, NO_CREDENTIALS, NOT_SENT, AwsError

__all__ = [
    "MODIFICATION_RETRY_SECONDS",
    "NOT_ATTACHED",
    "NOT_FOUND",
    "QUOTA",
    "THROTTLED",
    "outcome_unknown",
    "to_backend_error",
    "volume_failed",
    "volume_vanished",
]

NOT_FOUND = frozenset({"InvalidVolume.NotFound", "InvalidSnapshot.NotFound"})
"""The resource does not exist: success for delete and detach."""
NOT_ATTACHED = frozenset({"IncorrectState", "InvalidAttachment.NotFound"})
"""Of DetachVolume: the volume is not attached."""
THROTTLED = frozenset(
    {
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
        "TooManyRequestsException",
    }
)
"""Codes by which AWS refuses a call because there are too many (botocore, `retries/standard.py`).

Without LimitExceededException and two codes of DynamoDB, which name limits of other kinds.
"""
PER_VOLUME_RATE = "SnapshotCreationPerVolumeRateExceeded"
"""Of CreateSnapshot: too soon after another snapshot of this volume. It says nothing about calls for other volumes."""
QUOTA = frozenset(
    {
        "VolumeLimitExceeded",
        "MaxIOPSLimitExceeded",
        "SnapshotLimitExceeded",
        "ConcurrentSnapshotLimitExceeded",
        "VolumeModificationSizeLimitExceeded",
        "ResourceLimitExceeded",
    }
)
MODIFICATION_RETRY_SECONDS = 900.0
_QUOTA_RETRY = 60.0
_DENIED_RETRY = 60.0
_THROTTLED_RETRY = 2.0
_CREDENTIALS_RETRY = 15.0
_VANISHED_RETRY = 60.0
_FAILED_RETRY = 15.0
_SNAPSHOT_RETRY = 15.0
"""EC2's own advice for SnapshotCreationPerVolumeRateExceeded (Amazon EC2 API reference, "Error codes")."""

Maker = Callable[[AwsError, str], BackendError]


@dataclass(frozen=True, slots=True)
class _Rule:
    """codes: of AWS; one that ends with * stands for every code with this prefix. make: from the error and its text."""

    codes: tuple[str, ...]
    make: Maker

    def covers(self, code: str) -> bool:
        return any(code == each or (each[-1] == "*" and code.startswith(each[:-1])) for each in self.codes)


def _exhausted(advice: str, *, scope: str = "", reschedule: bool = False, wait: float | None = _QUOTA_RETRY) -> Maker:
    def make(error: AwsError, text: str) -> BackendError:
        return ResourceExhausted(
            f"{text}: {advice}", scope=scope or error.code, reschedule=reschedule, code=error.code, retry_after=wait
        )

    return make


def _simple(kind: type[BackendError], advice: str = "", *, wait: float | None = None) -> Maker:
    def make(error: AwsError, text: str) -> BackendError:
        return kind(f"{text}: {advice}" if advice else text, code=error.code, retry_after=wait)

    return make


def _denied(error: AwsError, text: str) -> BackendError:
    advice = f"allow ec2:{error.action} to the driver's role (docs/reference/aws-ebs-iam.json has the whole policy)"
    return PermissionDenied(f"{text}: {advice}", code=error.code, retry_after=_DENIED_RETRY)


def _no_answer(error: AwsError, text: str) -> BackendError:
    return Unavailable(
        f"{text}: no answer came, so it may have been done; volplane looks before it goes on", code=error.code
    )


_RULES = (
    _Rule(
        ("VolumeInUse",),
        _simple(VolumeInUse, "stop what uses it; it is tried again"),
    ),
    _Rule(
        ("IncorrectState",),
        _simple(VolumeInUse, "its state does not allow this now; it is tried again"),
    ),
    _Rule(
        ("InsufficientVolumeCapacity",),
        _exhausted(
            "the zone has no room for such a volume now; it is tried again, and with volumeBindingMode "
            "WaitForFirstConsumer in another zone",
            scope="zone",
            reschedule=True,
            wait=None,
        ),
    ),
    _Rule(
        ("AttachmentLimitExceeded",),
        _exhausted("the node holds as many volumes as it can; move a pod to another node", scope="node"),
    ),
    _Rule(tuple(QUOTA), _exhausted("ask AWS for a higher quota, or delete what is not used", scope="account")),
    _Rule(
        ("VolumeModificationRateExceeded",),
        _simple(
            Throttled,
            "EC2 lets a volume change four times in 24 hours; the wish is kept and tried again",
            wait=MODIFICATION_RETRY_SECONDS,
        ),
    ),
    _Rule(
        ("IncorrectModificationState",),
        _simple(Throttled, "an earlier change of the volume is not complete; the wish is kept", wait=60.0),
    ),
    _Rule(("InvalidVolume.ZoneMismatch",), _simple(InvalidArgument, "volume and node are in different zones")),
    _Rule(
        (
            "InvalidVolume.NotFound",
            "InvalidSnapshot.NotFound",
            "InvalidInstanceID.NotFound",
            "InvalidAttachment.NotFound",
        ),
        _simple(NotFound),
    ),
    _Rule(
        ("InvalidZone.NotFound",),
        _simple(InvalidArgument, "the region has no such zone; look at the node's zone label and the class's topology"),
    ),
    _Rule(
        (PER_VOLUME_RATE,),
        _simple(
            Throttled, "EC2 wants 15 seconds between two snapshots of a volume; it is tried again", wait=_SNAPSHOT_RETRY
        ),
    ),
    _Rule(tuple(sorted(THROTTLED)), _simple(Throttled, "EC2 asks for fewer calls", wait=_THROTTLED_RETRY)),
    _Rule(
        ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "OperationNotPermitted"),
        _denied,
    ),
    _Rule(
        (
            "AuthFailure",
            "ExpiredToken",
            "ExpiredTokenException",
            "RequestExpired",
            "InvalidClientTokenId",
            "SignatureDoesNotMatch",
        ),
        _simple(
            PermissionDenied,
            "AWS does not accept the driver's credentials; look at where they come from, and at the clock",
            wait=_CREDENTIALS_RETRY,
        ),
    ),
    _Rule(
        ("OptInRequired", "PendingVerification", "Blocked"),
        _simple(PermissionDenied, "the account may not use EC2 here", wait=_DENIED_RETRY),
    ),
    _Rule(
        (NO_CREDENTIALS,),
        _simple(
            PermissionDenied,
            "give the driver credentials (a role of its service account, an instance profile or the environment), and "
            "let its role be assumed if the option role_arn is set",
            wait=_CREDENTIALS_RETRY,
        ),
    ),
    _Rule((NOT_SENT,), _simple(Unavailable, "look at the options region and endpoint, at DNS and at the network")),
    _Rule((NO_ANSWER, "InternalError", "InternalFailure", "Unavailable", "ServiceUnavailable", "5*"), _no_answer),
    _Rule(
        (
            "InvalidParameter*",
            "InvalidPaginationToken",
            "UnknownParameter",
            "UnknownVolumeType",
            "UnsupportedOperation",
            "ValidationError",
            "MissingParameter",
            "TagLimitExceeded",
            "InvalidVolumeID.Malformed",
            "InvalidSnapshotID.Malformed",
            "InvalidInstanceID.Malformed",
            "IdempotentParameterMismatch",
        ),
        _simple(InvalidArgument),
    ),
)

_NOTHING_DONE = frozenset({NOT_SENT, NO_CREDENTIALS, PER_VOLUME_RATE}) | THROTTLED


def to_backend_error(error: AwsError, doing: str) -> BackendError:
    """The error of the contract. doing: as in "make a volume for pvc-1"."""
    reason = error.message.strip().rstrip(".") or error.code
    text = f"cannot {doing}: {reason}"
    for rule in _RULES:
        if rule.covers(error.code):
            return rule.make(error, text)
    return BackendError(f"{text} ({error.action})", code=error.code)


def outcome_unknown(error: AwsError) -> bool:
    """Whether the call may have taken effect all the same.

    True also for exceeded quotas: EC2 can create a volume and report the quota as exceeded.
    """
    if error.code in _NOTHING_DONE:
        return False
    if error.code in QUOTA or error.code == NO_ANSWER:
        return True
    failure = to_backend_error(error, "")
    return not isinstance(failure, InvalidArgument | PermissionDenied | ResourceExhausted | NotFound)


def volume_vanished(volume: str, kms_key: str | None, before: int) -> BackendError:
    """EC2 created the volume and deleted it again, as it does when it may not use the KMS key.

    before: how often that happened before, for the retry time.
    """
    key = f"KMS key {kms_key}" if kms_key else "the account's default KMS key for EBS"
    return PermissionDenied(
        f"volume {volume} vanished while it was being made: nearly always {key} does not exist, is disabled, or may "
        "not be used by the driver's role, which needs kms:Decrypt, kms:GenerateDataKeyWithoutPlaintext and "
        "kms:CreateGrant (with kms:GrantIsForAWSResource) on it, in its IAM policy and in the key's own; mend that or "
        "change kmsKeyId of the class; another volume is tried then",
        code="VolumeVanished",
        retry_after=_VANISHED_RETRY * 2 ** min(before, 3),
    )


def volume_failed(volume: str, kms_key: str | None, before: int) -> BackendError:
    """EC2 created the volume and reports the state `error`: it cannot be used, and was deleted.

    Amazon EBS User Guide, "Amazon EBS volume lifecycle". kms_key: None = it is not encrypted with a key of the class.
    before: how often that happened before, for the retry time.
    """
    key = f"; look also at KMS key {kms_key}, which the driver's role must be allowed to use" if kms_key else ""
    return Unavailable(
        f"EC2 could not make volume {volume}: its state became `error`, which EC2 does not explain; it is deleted, and "
        f"another volume is made{key}",
        code="error",
        retry_after=_FAILED_RETRY * 2 ** min(before, 3),
    )
