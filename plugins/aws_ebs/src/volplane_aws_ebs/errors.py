"""From error codes of AWS to the errors of the contract, with messages that say what to do.

Codes are those of the Amazon EC2 API reference, "Error codes for the Amazon EC2 API". One table maps
them (`volplane.cloud.ErrorTable`).
"""

from __future__ import annotations

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
from volplane.cloud import NO_ANSWER, NO_CREDENTIALS, NOT_SENT, CloudError, ErrorRow, ErrorTable, Refusal

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
TAGS_OF_RESOURCE = "ConcurrentTagAccess"
"""Of CreateTags and DeleteTags: another call changes the tags of this resource. It says nothing about others."""
PENDING_OF_VOLUME = "ConcurrentSnapshotLimitExceeded"
"""Of CreateSnapshot: as many snapshots of this volume are pending as can be. It says nothing about other volumes."""
QUOTA = frozenset(
    {
        "VolumeLimitExceeded",
        "MaxIOPSLimitExceeded",
        "SnapshotLimitExceeded",
        "PendingSnapshotLimitExceeded",
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
_TAGS_RETRY = 2.0
_SNAPSHOT_RETRY = 15.0
"""EC2's own advice for SnapshotCreationPerVolumeRateExceeded (Amazon EC2 API reference, "Error codes")."""

_TABLE = ErrorTable(
    (
        ErrorRow(codes=("VolumeInUse",), error=VolumeInUse, advice="stop what uses it; it is tried again"),
        ErrorRow(
            codes=("IncorrectState",),
            error=VolumeInUse,
            advice="its state does not allow this now; it is tried again",
        ),
        ErrorRow(
            codes=("InvalidSnapshot.InUse",),
            error=VolumeInUse,
            advice="an image (AMI) is made of the snapshot; deregister that first",
        ),
        ErrorRow(
            codes=("IncorrectInstanceState",),
            error=Unavailable,
            advice="the state of the instance does not allow this now; it is tried again",
            doubt=False,
        ),
        ErrorRow(
            codes=("InsufficientVolumeCapacity", "InsufficientCapacity"),
            error=ResourceExhausted,
            advice="the zone has no room for such a volume now; it is tried again, and with volumeBindingMode "
            "WaitForFirstConsumer in another zone",
            scope="zone",
            reschedule=True,
        ),
        ErrorRow(
            codes=("VolumeTypeNotAvailableInZone",),
            error=ResourceExhausted,
            advice="the zone has no volumes of this type; choose another type, or keep the class out of the zone by "
            "allowedTopologies; with volumeBindingMode WaitForFirstConsumer another zone is tried",
            scope="zone",
            reschedule=True,
        ),
        ErrorRow(
            codes=("AttachmentLimitExceeded",),
            error=ResourceExhausted,
            advice="the node holds as many volumes as it can; move a pod to another node",
            scope="node",
            retry_after=_QUOTA_RETRY,
        ),
        ErrorRow(
            codes=tuple(sorted(QUOTA)),
            error=ResourceExhausted,
            advice="ask AWS for a higher quota, or delete what is not used",
            doubt=True,  # EC2 can create a volume and report the quota as exceeded.
            scope="account",
            retry_after=_QUOTA_RETRY,
        ),
        ErrorRow(
            codes=("VolumeModificationRateExceeded",),
            error=Throttled,
            advice="EC2 lets a volume change four times in 24 hours; the wish is kept and tried again",
            retry_after=MODIFICATION_RETRY_SECONDS,
        ),
        ErrorRow(
            codes=(TAGS_OF_RESOURCE,),
            error=Throttled,
            advice="another call changes its tags now; it is tried again",
            doubt=False,
            retry_after=_TAGS_RETRY,
        ),
        ErrorRow(
            codes=("IncorrectModificationState",),
            error=Throttled,
            advice="an earlier change of the volume is not complete; the wish is kept",
            retry_after=60.0,
        ),
        ErrorRow(
            codes=("InvalidVolume.ZoneMismatch",),
            error=InvalidArgument,
            advice="volume and node are in different zones",
        ),
        ErrorRow(
            codes=(
                "InvalidVolume.NotFound",
                "InvalidSnapshot.NotFound",
                "InvalidInstanceID.NotFound",
                "InvalidAttachment.NotFound",
            ),
            error=NotFound,
        ),
        ErrorRow(
            codes=("InvalidZone.NotFound",),
            error=InvalidArgument,
            advice="the region has no such zone; look at the node's zone label and the class's topology",
        ),
        ErrorRow(
            codes=(PENDING_OF_VOLUME,),
            error=ResourceExhausted,
            advice="EC2 makes only some snapshots of a volume at once; it is tried again when one is complete",
            doubt=False,
            scope="volume",
            retry_after=_SNAPSHOT_RETRY,
        ),
        ErrorRow(
            codes=(PER_VOLUME_RATE,),
            error=Throttled,
            advice="EC2 wants 15 seconds between two snapshots of a volume; it is tried again",
            doubt=False,
            retry_after=_SNAPSHOT_RETRY,
        ),
        ErrorRow(
            codes=tuple(sorted(THROTTLED)),
            error=Throttled,
            advice="EC2 asks for fewer calls",
            doubt=False,
            retry_after=_THROTTLED_RETRY,
        ),
        ErrorRow(
            codes=("UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "OperationNotPermitted"),
            error=PermissionDenied,
            advice="allow ec2:{call} to the driver's role (docs/reference/aws-ebs-iam.json has the whole policy)",
            retry_after=_DENIED_RETRY,
        ),
        ErrorRow(
            codes=(
                "AuthFailure",
                "ExpiredToken",
                "ExpiredTokenException",
                "RequestExpired",
                "IncompleteSignature",
                "InvalidClientTokenId",
                "MissingAuthenticationToken",
                "SignatureDoesNotMatch",
                "UnrecognizedClientException",
            ),
            error=PermissionDenied,
            advice="AWS does not accept the driver's credentials; look at where they come from, and at the clock",
            retry_after=_CREDENTIALS_RETRY,
        ),
        ErrorRow(
            codes=("OptInRequired", "PendingVerification", "Blocked"),
            error=PermissionDenied,
            advice="the account may not use EC2 here",
            retry_after=_DENIED_RETRY,
        ),
        ErrorRow(
            codes=(NO_CREDENTIALS,),
            error=PermissionDenied,
            advice="give the driver credentials (a role of its service account, an instance profile or the "
            "environment), and let its role be assumed if the option role_arn is set",
            retry_after=_CREDENTIALS_RETRY,
        ),
        ErrorRow(
            codes=(NOT_SENT,),
            error=Unavailable,
            advice="look at the options region and endpoint, at DNS and at the network",
            doubt=False,
        ),
        ErrorRow(
            codes=(
                NO_ANSWER,
                "InternalError",
                "InternalFailure",
                "RequestTimeout*",
                "ServerInternal",
                "ServiceUnavailable",
                "Unavailable",
                "5*",
            ),
            error=Unavailable,
            advice="no answer came, so it may have been done; volplane looks before it goes on",
        ),
        ErrorRow(
            codes=(
                "EncryptedVolumesNotSupported",
                "InvalidAction",
                "InvalidCharacter",
                "InvalidInput",
                "InvalidParameter*",
                "InvalidPaginationToken",
                "InvalidQueryParameter",
                "InvalidRequest",
                "InvalidTagKey.Malformed",
                "InvalidVolumeID.ZoneMismatch",
                "MalformedQueryString",
                "MissingAction",
                "TagPolicyViolation",
                "UnknownParameter",
                "UnknownVolumeType",
                "UnsupportedHostConfiguration",
                "UnsupportedOperation",
                "VolumeIOPSLimit",
                "ValidationError",
                "MissingParameter",
                "TagLimitExceeded",
                "InvalidVolumeID.Malformed",
                "InvalidSnapshotID.Malformed",
                "InvalidInstanceID.Malformed",
                "IdempotentParameterMismatch",
            ),
            error=InvalidArgument,
        ),
    )
)


def is_throttled(error: CloudError) -> bool:
    """Return whether EC2 refuses the call because there are too many."""
    return error.code in THROTTLED


def refusal(error: CloudError) -> Refusal | None:
    """Return of what there are too many changes, if EC2 refuses the call for that."""
    if error.code == TAGS_OF_RESOURCE:
        return Refusal(of_resource=True, seconds=_TAGS_RETRY)
    if error.code in (PER_VOLUME_RATE, PENDING_OF_VOLUME):
        return Refusal(of_resource=True, seconds=_SNAPSHOT_RETRY)
    return Refusal() if is_throttled(error) else None


def to_backend_error(error: CloudError, doing: str) -> BackendError:
    """Return the error of the contract. doing: as in "make a volume for pvc-1"."""
    return _TABLE.translated(error, doing)


def outcome_unknown(error: CloudError) -> bool:
    """Return whether the call may have taken effect all the same."""
    return _TABLE.in_doubt(error)


def volume_vanished(volume: str, kms_key: str | None, before: int, *, source: str = "") -> BackendError:
    """Return the error of a volume that EC2 created and deleted again, as it does when it may not use the KMS key.

    before: how often that happened before, for the retry time. source: what it is made from, whose key is needed, too.
    """
    key = f"KMS key {kms_key}" if kms_key else "the account's default KMS key for EBS"
    key += f" (or that of {source}; another account that owns it must grant its use)" if source else ""
    return PermissionDenied(
        f"volume {volume} vanished while it was being made: nearly always {key} does not exist, is disabled, or may "
        "not be used by the driver's role, which needs kms:Decrypt, kms:GenerateDataKeyWithoutPlaintext and "
        "kms:CreateGrant (with kms:GrantIsForAWSResource) on it, in its IAM policy and in the key's own; mend that or "
        "change kmsKeyId of the class; another volume is tried then",
        code="VolumeVanished",
        retry_after=_VANISHED_RETRY * 2 ** min(before, 3),
    )


def volume_failed(volume: str, kms_key: str | None, before: int) -> BackendError:
    """Return the error of a volume that EC2 created and reports as `error`: it cannot be used, and was deleted.

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
