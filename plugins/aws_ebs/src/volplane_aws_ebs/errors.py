"""From what AWS answers to the errors of the contract, with a message that says what to do."""

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
from volplane_aws_ebs.api import NO_ANSWER, NO_CREDENTIALS, NOT_SENT, AwsRefusal

__all__ = [
    "GONE",
    "MODIFICATION_COOLDOWN",
    "NOT_ATTACHED",
    "QUOTA",
    "THROTTLED",
    "leaves_doubt",
    "translated",
    "vanished",
]

GONE = frozenset({"InvalidVolume.NotFound", "InvalidSnapshot.NotFound"})
"""What was asked to go is not there: success for delete and detach."""
NOT_ATTACHED = frozenset({"IncorrectState", "InvalidAttachment.NotFound"})
"""Of DetachVolume: there is nothing to detach any more."""
THROTTLED = frozenset({"RequestLimitExceeded", "Throttling", "ThrottlingException", "TooManyRequestsException"})
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
MODIFICATION_COOLDOWN = 900.0
_QUOTA_RETRY = 60.0
_DENIED_RETRY = 60.0
_THROTTLED_RETRY = 2.0
_CREDENTIALS_RETRY = 15.0
_VANISHED_RETRY = 60.0

Maker = Callable[[AwsRefusal, str], BackendError]


@dataclass(frozen=True, slots=True)
class _Row:
    """codes: of AWS; one that ends with * stands for all that begin so. make: the error, from refusal and text."""

    codes: tuple[str, ...]
    make: Maker

    def covers(self, code: str) -> bool:
        return any(code == each or (each[-1] == "*" and code.startswith(each[:-1])) for each in self.codes)


def _exhausted(advice: str, *, scope: str = "", reschedule: bool = False, wait: float | None = _QUOTA_RETRY) -> Maker:
    def make(refusal: AwsRefusal, said: str) -> BackendError:
        return ResourceExhausted(
            f"{said}: {advice}", scope=scope or refusal.code, reschedule=reschedule, code=refusal.code, retry_after=wait
        )

    return make


def _plain(kind: type[BackendError], advice: str = "", *, wait: float | None = None) -> Maker:
    def make(refusal: AwsRefusal, said: str) -> BackendError:
        return kind(f"{said}: {advice}" if advice else said, code=refusal.code, retry_after=wait)

    return make


def _denied(refusal: AwsRefusal, said: str) -> BackendError:
    advice = f"allow ec2:{refusal.call} to the driver's role (docs/reference/aws-ebs-iam.json has the whole policy)"
    return PermissionDenied(f"{said}: {advice}", code=refusal.code, retry_after=_DENIED_RETRY)


def _unanswered(refusal: AwsRefusal, said: str) -> BackendError:
    return Unavailable(
        f"{said}: no answer came, so it may have been done; volplane looks before it goes on", code=refusal.code
    )


_TABLE = (
    _Row(
        ("VolumeInUse",),
        _plain(VolumeInUse, "stop what uses it; it is tried again"),
    ),
    _Row(
        ("IncorrectState",),
        _plain(VolumeInUse, "its state does not allow this now; it is tried again"),
    ),
    _Row(
        ("InsufficientVolumeCapacity",),
        _exhausted(
            "the zone has no room for such a volume now; it is tried again, and with volumeBindingMode "
            "WaitForFirstConsumer in another zone",
            scope="zone",
            reschedule=True,
            wait=None,
        ),
    ),
    _Row(
        ("AttachmentLimitExceeded",),
        _exhausted("the node holds as many volumes as it can; move a pod to another node", scope="node"),
    ),
    _Row(tuple(QUOTA), _exhausted("ask AWS for a higher quota, or delete what is not used", scope="account")),
    _Row(
        ("VolumeModificationRateExceeded",),
        _plain(
            Throttled,
            "EC2 lets a volume change four times in 24 hours; the wish is kept and tried again",
            wait=MODIFICATION_COOLDOWN,
        ),
    ),
    _Row(
        ("IncorrectModificationState",),
        _plain(Throttled, "an earlier change of the volume is not complete; the wish is kept", wait=60.0),
    ),
    _Row(("InvalidVolume.ZoneMismatch",), _plain(InvalidArgument, "volume and node are in different zones")),
    _Row(
        (
            "InvalidVolume.NotFound",
            "InvalidSnapshot.NotFound",
            "InvalidInstanceID.NotFound",
            "InvalidAttachment.NotFound",
        ),
        _plain(NotFound),
    ),
    _Row(
        ("InvalidZone.NotFound",),
        _plain(InvalidArgument, "the region has no such zone; look at the node's zone label and the class's topology"),
    ),
    _Row(tuple(THROTTLED), _plain(Throttled, "EC2 asks for fewer calls", wait=_THROTTLED_RETRY)),
    _Row(
        ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "OperationNotPermitted"),
        _denied,
    ),
    _Row(
        (
            "AuthFailure",
            "ExpiredToken",
            "ExpiredTokenException",
            "RequestExpired",
            "InvalidClientTokenId",
            "SignatureDoesNotMatch",
        ),
        _plain(
            PermissionDenied,
            "AWS does not accept the driver's credentials; look at where they come from, and at the clock",
            wait=_CREDENTIALS_RETRY,
        ),
    ),
    _Row(
        ("OptInRequired", "PendingVerification", "Blocked"),
        _plain(PermissionDenied, "the account may not use EC2 here", wait=_DENIED_RETRY),
    ),
    _Row(
        (NO_CREDENTIALS,),
        _plain(
            PermissionDenied,
            "give the driver credentials (a role of its service account, an instance profile or the environment), and "
            "let its role be assumed if the option role_arn is set",
            wait=_CREDENTIALS_RETRY,
        ),
    ),
    _Row((NOT_SENT,), _plain(Unavailable, "look at the options region and endpoint, at DNS and at the network")),
    _Row((NO_ANSWER, "InternalError", "InternalFailure", "Unavailable", "ServiceUnavailable", "5*"), _unanswered),
    _Row(
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
        _plain(InvalidArgument),
    ),
)

_DOUBTLESS = frozenset({NOT_SENT, NO_CREDENTIALS}) | THROTTLED


def translated(refusal: AwsRefusal, doing: str) -> BackendError:
    """The error of the contract. doing: what was tried, as in "make a volume for pvc-1"."""
    text = refusal.message.strip().rstrip(".") or refusal.code
    said = f"cannot {doing}: {text}"
    for row in _TABLE:
        if row.covers(refusal.code):
            return row.make(refusal, said)
    return BackendError(f"{said} ({refusal.call})", code=refusal.code)


def leaves_doubt(refusal: AwsRefusal) -> bool:
    """Whether the call may have taken effect all the same. While a quota is exceeded even a plain refusal may lie."""
    if refusal.code in _DOUBTLESS:
        return False
    if refusal.code in QUOTA or refusal.code == NO_ANSWER:
        return True
    error = translated(refusal, "")
    return not isinstance(error, InvalidArgument | PermissionDenied | ResourceExhausted | NotFound)


def vanished(volume: str, kms_key: str | None, before: int) -> BackendError:
    """The volume was made and is gone again: EC2 does so when it may not use the key. before: how often it did."""
    key = f"KMS key {kms_key}" if kms_key else "the account's default KMS key for EBS"
    return PermissionDenied(
        f"volume {volume} vanished while it was being made: nearly always {key} does not exist, is disabled, or may not be "
        "used by the driver's role, which needs kms:Decrypt, kms:GenerateDataKeyWithoutPlaintext and kms:CreateGrant (with "
        "kms:GrantIsForAWSResource) on it, in its IAM policy and in the key's own; mend that or change kmsKeyId of the "
        "class; another volume is tried then",
        code="VolumeVanished",
        retry_after=_VANISHED_RETRY * 2 ** min(before, 3),
    )
