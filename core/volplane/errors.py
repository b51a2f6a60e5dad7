"""All exceptions of volplane. The class decides what happens next; the text is for people; `code` is the backend's.

The page of errors on the site has a table of the classes. Unless a class proves that nothing was made, an asset may
exist: volplane calls `find`, or repeats the call, before it gives the claim up. A backend that is certain passes
`nothing_done=True`. Codes: google.rpc.Code, as in the errors of the CSI specification.
"""

from __future__ import annotations

from enum import Enum


class VolplaneError(Exception):
    """Base class of all exceptions that volplane raises on purpose."""


class ConfigurationError(VolplaneError):
    """An option, flag or file cannot be used. The message names the key, the value and what is expected."""


class PluginError(VolplaneError):
    """A backend or extension breaks the contract. The message names the plugin, the hook and the argument."""


# --- errors of backends -----------------------------------------------------------------------------------------


class RetryPolicy(Enum):
    """When a failed hook is called again."""

    BACKOFF = "back-off"
    """After 0.5 s, doubling to 2 min."""
    SLOW = "slow"
    """Every 5 minutes, and at once when the claim, the class or the driver's options change."""


class BackendError(VolplaneError):
    """The base class of the errors that hooks raise.

    message: one sentence for people without a trailing dot; reaches the claim or volume as an event.
    code: the backend's own code, for example "VolumeLimitExceeded".
    retry_after: seconds until the next call; None leaves it to the policy of the class.
    nothing_done: the backend is certain that neither this nor an earlier call of the operation left anything behind.
    The attribute `nothing_done` is also true for classes that prove it for their own call, and may be set later.
    `nothing_left` says what is certain of earlier calls, too: only so the failure of a job proves that it made nothing.
    """

    retry: RetryPolicy = RetryPolicy.BACKOFF
    proves_nothing_done: bool = False
    grpc_code: str = "ABORTED"

    def __init__(
        self, message: str, *, code: str | None = None, retry_after: float | None = None, nothing_done: bool = False
    ) -> None:
        super().__init__(message)
        # File names may contain bytes that are not UTF-8, which events and logs cannot hold.
        self.message = str(message).encode("utf-8", "backslashreplace").decode()
        self.code = code
        self.retry_after = retry_after
        self.nothing_left = nothing_done

    @property
    def nothing_done(self) -> bool:
        return self.nothing_left or self.proves_nothing_done

    @nothing_done.setter
    def nothing_done(self, certain: bool) -> None:
        self.nothing_left = certain

    def __str__(self) -> str:
        return f"{self.message} ({self.code})" if self.code else self.message


class InvalidArgument(BackendError):
    """The request cannot succeed unchanged: a bad parameter, an impossible size."""

    retry = RetryPolicy.SLOW
    proves_nothing_done = True
    grpc_code = "INVALID_ARGUMENT"


class OutOfRange(InvalidArgument):
    """The size cannot be had: below or above what such an asset can have, or more than `limit_bytes` when rounded up.

    Whoever asked may ask for another size; `ResourceExhausted` says that it would fit another time.
    """

    grpc_code = "OUT_OF_RANGE"


class AlreadyExists(BackendError):
    """An asset of this name exists with other properties, or another owner."""

    retry = RetryPolicy.SLOW
    proves_nothing_done = True
    grpc_code = "ALREADY_EXISTS"


class AlreadyDeleted(BackendError):
    """The asset of this name and generation was deleted, and this storage makes no other one for them.

    `provision` raises it where a storage keeps client tokens: after a restore of the API server from a backup, a claim
    can ask for its asset again. The next attempt uses the next generation. For a claim that is being deleted the error
    proves that nothing is left.
    """

    def __init__(self, message: str, *, code: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, code=code, retry_after=retry_after, nothing_done=True)


class Unsupported(BackendError):
    """The backend does not implement this, for this kind of volume or at all."""

    retry = RetryPolicy.SLOW
    proves_nothing_done = True
    grpc_code = "UNIMPLEMENTED"


class NotFound(BackendError):
    """An object that the call needs does not exist. `delete` of an asset that is gone returns `Done` instead."""

    grpc_code = "NOT_FOUND"


class VolumeInUse(BackendError):
    """The asset is attached, mounted or open and cannot be deleted or scrubbed now."""

    grpc_code = "FAILED_PRECONDITION"


class AttachedElsewhere(BackendError):
    """The asset is attached to `node`, not to the node asked for."""

    grpc_code = "FAILED_PRECONDITION"

    def __init__(self, message: str, *, node: str, code: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, code=code, retry_after=retry_after)
        self.node = node


class ResourceExhausted(BackendError):
    """Quota, capacity or stock is used up. scope: the limit that is reached. reschedule: another node may do."""

    grpc_code = "RESOURCE_EXHAUSTED"

    def __init__(
        self,
        message: str,
        *,
        scope: str = "",
        reschedule: bool = False,
        code: str | None = None,
        retry_after: float | None = None,
        nothing_done: bool = False,
    ) -> None:
        super().__init__(message, code=code, retry_after=retry_after, nothing_done=nothing_done)
        self.scope = scope
        self.reschedule = reschedule


class Throttled(BackendError):
    """The backend limits the rate of calls."""

    grpc_code = "UNAVAILABLE"


class PermissionDenied(BackendError):
    """The driver's credentials do not allow the call."""

    retry = RetryPolicy.SLOW
    grpc_code = "PERMISSION_DENIED"


class Unavailable(BackendError):
    """The backend cannot be reached, or its storage is missing (an unmounted disk)."""

    grpc_code = "UNAVAILABLE"


class Fenced(Unavailable):
    """A later term of leadership has worked on this asset, so the call was not made (see `Context.fence`).

    fence: the text of that term. Either another process leads now, or the API server was restored from a backup, which
    sets the count of terms back. The holder of the Lease then counts on from that term.
    """

    def __init__(self, message: str, *, fence: str) -> None:
        super().__init__(message)
        self.fence = fence


class Declined(BackendError):
    """An extension refused the call before it reached the backend."""

    proves_nothing_done = True


class OutcomeUnknown(BackendError):
    """The call may have taken effect: a timeout, an unexpected exception, a bad result."""


# --- errors of operations ---------------------------------------------------------------------------------------


class OperationError(VolplaneError):
    """An operation was not started."""


class OperationInProgress(OperationError):
    """Another operation holds the same asset; the object is queued again when that one ends."""


class BackoffError(OperationError):
    """The last run failed. The registry queues the object again at `until` (loop time, seconds)."""

    def __init__(self, message: str, *, until: float) -> None:
        super().__init__(message)
        self.until = until


# --- errors of the Kubernetes API -------------------------------------------------------------------------------


class ApiError(VolplaneError):
    """The API server answered with an error. `status` is the HTTP code, `reason` the Status reason."""

    def __init__(self, message: str, *, status: int, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.reason = reason
        self.retry_after = retry_after

    @property
    def already_exists(self) -> bool:
        return self.status == 409 and self.reason == "AlreadyExists"


class ApiConflict(ApiError):
    """409 Conflict: the object changed since it was read, or a precondition failed."""


class ApiForbidden(ApiError):
    """403: this account may not do that."""


class ApiNotFound(ApiError):
    """404 with a Status that names the object, or its namespace: it does not exist."""


class ApiGone(ApiError):
    """410: the resourceVersion or continue token is too old; list again."""


class ApiUnavailable(ApiError):
    """No usable answer (401, 404 of a proxy, 429, 5xx, connection lost, deadline). A write may have happened or not."""
