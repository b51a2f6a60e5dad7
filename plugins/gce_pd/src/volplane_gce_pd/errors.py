"""From error codes of Compute Engine to the errors of the contract, with messages that say what to do.

Compute Engine reports an error in two shapes: the reason in the body of an HTTP error (such as `quotaExceeded`), and
the code of an error of an operation (such as `QUOTA_EXCEEDED`). One table has both spellings.
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
from volplane_gce_pd.api import Method

NOT_FOUND = frozenset({"notFound", "RESOURCE_NOT_FOUND", "HTTP 404"})
"""The resource does not exist: success for delete and detach."""
ALREADY_EXISTS = frozenset({"alreadyExists", "RESOURCE_ALREADY_EXISTS", "HTTP 409"})
"""There is one of this name already: it is read, compared, and taken if it is ours."""
IN_USE = frozenset({"resourceInUseByAnotherResource", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"})
"""The disk is attached."""
THROTTLED = frozenset(
    {
        "rateLimitExceeded",
        "userRateLimitExceeded",
        "RATE_LIMIT_EXCEEDED",
        "HTTP 429",
    }
)
"""Compute Engine refuses a call because there are too many (Compute Engine documentation, "Rate quotas")."""
_OF_RESOURCE = ("resourceOperationRateExceeded", "RESOURCE_OPERATION_RATE_EXCEEDED")
"""There are too many changes of one resource: a virtual machine whose queue is full, a disk with a young snapshot."""
_CHANGED_DISK = "resourceOperationRateExceeded of a change"
"""Code of the table: a hyperdisk was changed less than four hours ago (Compute Engine documentation)."""
_YOUNG_SNAPSHOT = "resourceOperationRateExceeded of a snapshot"
"""Code of the table: the disk was cut less than ten minutes ago (there, "Snapshot frequency limits")."""
_CUTS = (Method.SNAPSHOTS_INSERT, Method.IMAGES_INSERT)
_CHANGES = (Method.DISKS_UPDATE, Method.REGION_DISKS_UPDATE, Method.DISKS_RESIZE, Method.REGION_DISKS_RESIZE)
_FULL_QUEUE = "pending operations on a resource"
"""In the message of a `rateLimitExceeded` that means one resource (gcp-compute-persistent-disk-csi-driver, issue 1129).
"""
_LIMITS = ("limitExceeded", "LIMIT_EXCEEDED")
"""A limit of the resource that is changed, or of the project."""
_FULL_MACHINE = "limitExceeded of attachDisk"
"""Code of the table: the limit is that of the virtual machine."""
_CONDITION = ("conditionNotMet", "CONDITION_NOT_MET", "HTTP 412")
"""Of setLabels: the fingerprint is an old one. Of other calls: a constraint of the organization."""
_POLICY = "conditionNotMet of other calls than setLabels"
"""Code of the table (gcp-compute-persistent-disk-csi-driver, pkg/gce-pd-csi-driver/controller.go)."""
_QUOTA_RETRY = 60.0
_DENIED_RETRY = 60.0
_CREDENTIALS_RETRY = 15.0
_THROTTLED_RETRY = 5.0
_CHANGED_RETRY = 600.0
_YOUNG_RETRY = 60.0
_CONFLICT_RETRY = 1.0

_TABLE = ErrorTable(
    (
        ErrorRow(codes=tuple(sorted(NOT_FOUND)), error=NotFound),
        ErrorRow(
            codes=tuple(sorted(ALREADY_EXISTS)),
            error=Unavailable,
            advice="it is read, and taken if it was made for this",
            doubt=True,
            retry_after=_CONFLICT_RETRY,
        ),
        ErrorRow(
            codes=tuple(sorted(IN_USE)),
            error=VolumeInUse,
            advice="detach it there, or stop what uses it; it is tried again",
            doubt=False,
        ),
        ErrorRow(
            codes=(_FULL_MACHINE,),
            error=ResourceExhausted,
            advice="the machine holds as many disks as its type can; move a pod to another node",
            scope="node",
            retry_after=_QUOTA_RETRY,
        ),
        ErrorRow(
            codes=("QUOTA_EXCEEDED", "REGION_QUOTA_EXCEEDED", "quotaExceeded", "regionQuotaExceeded", *_LIMITS),
            error=ResourceExhausted,
            advice="ask Google for a higher quota of the region, or delete what is not used",
            scope="project",
            retry_after=_QUOTA_RETRY,
        ),
        ErrorRow(
            codes=tuple(sorted(THROTTLED)),
            error=Throttled,
            advice="Compute Engine asks for fewer calls",
            doubt=False,
            retry_after=_THROTTLED_RETRY,
        ),
        ErrorRow(
            codes=_OF_RESOURCE,
            error=Throttled,
            advice="others change the same resource; only what changes it waits",
            doubt=False,
            retry_after=_THROTTLED_RETRY,
        ),
        ErrorRow(
            codes=(_YOUNG_SNAPSHOT,),
            error=Throttled,
            advice="a disk can be cut once in ten minutes; it is tried again, and no other disk waits",
            doubt=False,
            retry_after=_YOUNG_RETRY,
        ),
        ErrorRow(
            codes=(_CHANGED_DISK,),
            error=Throttled,
            advice="a hyperdisk can be changed every four hours; the wish is kept",
            doubt=False,
            retry_after=_CHANGED_RETRY,
        ),
        ErrorRow(
            codes=("ZONE_RESOURCE_POOL_EXHAUSTED*", "zoneResourcePoolExhausted*", "STOCKOUT", "stockout"),
            error=ResourceExhausted,
            advice="the zone has no room for such a disk now; it is tried again, and with volumeBindingMode "
            "WaitForFirstConsumer in another zone",
            scope="zone",
            reschedule=True,
        ),
        ErrorRow(
            codes=("resourceNotReady", "RESOURCE_NOT_READY"),
            error=Unavailable,
            advice="another operation works on it; it is tried again",
            doubt=False,
            retry_after=_CONFLICT_RETRY,
        ),
        ErrorRow(
            codes=("OPERATION_CANCELED_BY_USER",),
            error=Unavailable,
            advice="the operation was cancelled; it is tried again",
        ),
        ErrorRow(
            codes=("invalidFingerprint", *_CONDITION),
            error=Unavailable,
            advice="it was changed meanwhile; it is read and tried again",
            doubt=False,
            retry_after=_CONFLICT_RETRY,
        ),
        ErrorRow(
            codes=(_POLICY,),
            error=PermissionDenied,
            advice="a policy of the organization forbids this; change the class, or let the policy allow it",
            retry_after=_DENIED_RETRY,
        ),
        ErrorRow(
            codes=("forbidden", "PERMISSIONS_ERROR", "accessNotConfigured", "HTTP 403"),
            error=PermissionDenied,
            advice="{call} needs a permission that the driver's service account lacks, or the Compute Engine API is "
            "off (docs/reference/gce-pd-roles.json has the whole role)",
            retry_after=_DENIED_RETRY,
        ),
        ErrorRow(
            codes=("authError", "required", "HTTP 401"),
            error=PermissionDenied,
            advice="Google does not accept the driver's credentials; look at where they come from, and at the clock",
            retry_after=_CREDENTIALS_RETRY,
        ),
        ErrorRow(
            codes=(NO_CREDENTIALS,),
            error=PermissionDenied,
            advice="give the driver credentials (workload identity, the option credentials, or the environment), let "
            "it create tokens for the account of the option impersonate_service_account, and look at the clock",
            retry_after=_CREDENTIALS_RETRY,
        ),
        ErrorRow(
            codes=(NOT_SENT,),
            error=Unavailable,
            advice="look at the option endpoint, at DNS and at the network",
            doubt=False,
        ),
        ErrorRow(
            codes=(NO_ANSWER, "INTERNAL_ERROR", "internalError", "backendError", "SERVICE_UNAVAILABLE", "HTTP 5*"),
            error=Unavailable,
            advice="no usable answer came, so it may have been done; volplane looks before it goes on",
        ),
        ErrorRow(
            codes=(
                "INVALID_USAGE",
                "INVALID_FIELD_VALUE",
                "UNSUPPORTED_OPERATION",
                "invalid",
                "invalidParameter",
                "badRequest",
                "unsupportedOperation",
                "parseError",
                "HTTP 400",
            ),
            error=InvalidArgument,
        ),
    )
)


def code_of(error: CloudError) -> str:
    """Return the code by which the table has the error: its own, else the one of its HTTP status."""
    status = getattr(error, "status", 0)
    if error.code in THROTTLED and _FULL_QUEUE in error.message:
        return _OF_RESOURCE[0]
    if error.code in _OF_RESOURCE and error.call in _CHANGES:
        return _CHANGED_DISK
    if error.code in _OF_RESOURCE and error.call in _CUTS:
        return _YOUNG_SNAPSHOT
    if error.code in _LIMITS and error.call == Method.INSTANCES_ATTACH_DISK:
        return _FULL_MACHINE
    code = error.code if _TABLE.knows(error.code) or not status else f"HTTP {status}"
    return _POLICY if code in _CONDITION and not error.call.endswith("setLabels") else code


def is_throttled(error: CloudError) -> bool:
    """Return whether Compute Engine refuses the call because there are too many."""
    return code_of(error) in THROTTLED


def refusal(error: CloudError) -> Refusal | None:
    """Return of what there are too many changes, if Compute Engine refuses the call for that."""
    code = code_of(error)
    of_resource = (*_OF_RESOURCE, _CHANGED_DISK, _YOUNG_SNAPSHOT)
    return Refusal(of_resource=code in of_resource) if code in (*THROTTLED, *of_resource) else None


def to_backend_error(error: CloudError, doing: str) -> BackendError:
    """Return the error of the contract. doing: as in "make a disk for pvc-1"."""
    failure = _TABLE.translated(CloudError(error.call, code_of(error), error.message), doing)
    failure.code = error.code
    return failure


def outcome_unknown(error: CloudError) -> bool:
    """Return whether the call may have taken effect all the same."""
    return _TABLE.in_doubt(CloudError(error.call, code_of(error), error.message))
