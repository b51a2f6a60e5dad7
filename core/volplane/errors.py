"""One tree of errors. The class decides what volplane does next; the text is for people; `code` is the backend's own.

| class | nothing was made | next try | CSI gRPC code |
|---|---|---|---|
| `InvalidArgument` | yes | slow, or when class or claim change | INVALID_ARGUMENT |
| `AlreadyExists` | yes | slow | ALREADY_EXISTS |
| `Unsupported` | yes | slow | UNIMPLEMENTED |
| `NotFound` | unknown | back-off | NOT_FOUND |
| `VolumeInUse` | unknown | back-off | FAILED_PRECONDITION |
| `AttachedElsewhere` | unknown | back-off | FAILED_PRECONDITION |
| `ResourceExhausted` | unknown | back-off, or another node | RESOURCE_EXHAUSTED |
| `Throttled` | unknown | after `retry_after` | UNAVAILABLE |
| `PermissionDenied` | unknown | slow | PERMISSION_DENIED |
| `Unavailable` | unknown | back-off | UNAVAILABLE |
| `Declined` | yes | after `retry_after` | ABORTED |
| anything else, a timeout | unknown | back-off | UNKNOWN |

"Unknown" means that an asset may exist: volplane looks (`find`) or repeats the same call before it forgets the claim.
A backend that is certain passes `nothing_done=True`.
"""

from __future__ import annotations

from enum import Enum

__all__ = [
    "AlreadyExists",
    "ApiConflict",
    "ApiError",
    "ApiGone",
    "ApiNotFound",
    "ApiUnavailable",
    "AttachedElsewhere",
    "BackendError",
    "BackoffError",
    "ConfigurationError",
    "Declined",
    "InvalidArgument",
    "NotFound",
    "OperationError",
    "OperationInProgress",
    "OutcomeUnknown",
    "PermissionDenied",
    "PluginError",
    "ResourceExhausted",
    "RetryPolicy",
    "Throttled",
    "Unavailable",
    "Unsupported",
    "VolplaneError",
    "VolumeInUse",
]


class VolplaneError(Exception):
    """Root of everything that volplane raises on purpose."""


class ConfigurationError(VolplaneError):
    """Options, flags or files that cannot be used; the message names key, value and what would be right."""


class PluginError(VolplaneError):
    """A backend or extension that cannot be loaded; the message names plugin, hook and argument."""


# --- errors of backends -----------------------------------------------------------------------------------------


class RetryPolicy(Enum):
    """When a failed hook is called again."""

    BACKOFF = "back-off"
    """Exponentially later: 0.5 s doubling to 2 min."""
    SLOW = "slow"
    """Every 5 minutes, and at once when the claim, the class or the driver's options change."""


class BackendError(VolplaneError):
    """What a hook raises.

    message: for people, as one sentence without a trailing dot; reaches the claim or volume as an event.
    code: the backend's own code, for example "VolumeLimitExceeded".
    retry_after: seconds until the next call; None leaves it to the policy of the class.
    nothing_done: the backend is certain that this and earlier calls of the operation left nothing behind. As an
    attribute it also holds for classes that prove it of their own call; `nothing_left` is the backend's word alone.
    """

    retry: RetryPolicy = RetryPolicy.BACKOFF
    proves_nothing_done: bool = False
    grpc_code: str = "UNKNOWN"

    def __init__(
        self, message: str, *, code: str | None = None, retry_after: float | None = None, nothing_done: bool = False
    ) -> None:
        super().__init__(message)
        # A file name may hold bytes that are no UTF-8: then no event and no log could be written.
        self.message = str(message).encode("utf-8", "backslashreplace").decode()
        self.code = code
        self.retry_after = retry_after
        self.nothing_left = nothing_done
        self.nothing_done = nothing_done or self.proves_nothing_done

    def __str__(self) -> str:
        return f"{self.message} ({self.code})" if self.code else self.message


class InvalidArgument(BackendError):
    """The request can never succeed as it stands: a bad parameter, an impossible size."""

    retry = RetryPolicy.SLOW
    proves_nothing_done = True
    grpc_code = "INVALID_ARGUMENT"


class AlreadyExists(BackendError):
    """An asset of this name exists and answers another demand, or belongs to somebody else."""

    retry = RetryPolicy.SLOW
    proves_nothing_done = True
    grpc_code = "ALREADY_EXISTS"


class Unsupported(BackendError):
    """This backend cannot do it, for this kind of volume or at all."""

    retry = RetryPolicy.SLOW
    proves_nothing_done = True
    grpc_code = "UNIMPLEMENTED"


class NotFound(BackendError):
    """Something the call needs is gone. `delete` of what is gone is not an error: return `Done`."""

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
    """No room: quota, capacity, stock. `scope` names what is full; `reschedule` asks for another node or zone."""

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
    """The backend asks for fewer calls."""

    grpc_code = "UNAVAILABLE"


class PermissionDenied(BackendError):
    """The driver's credentials do not allow the call."""

    retry = RetryPolicy.SLOW
    grpc_code = "PERMISSION_DENIED"


class Unavailable(BackendError):
    """The backend cannot be reached, or its storage is not there (an unmounted disk)."""

    grpc_code = "UNAVAILABLE"


class Declined(BackendError):
    """An extension prevented the call before it reached the backend."""

    proves_nothing_done = True
    grpc_code = "ABORTED"


class OutcomeUnknown(BackendError):
    """The call ended without telling whether it took effect: a timeout, an unexpected exception, a bad result."""


# --- errors of operations ---------------------------------------------------------------------------------------


class OperationError(VolplaneError):
    """An operation was not started."""


class OperationInProgress(OperationError):
    """Another operation holds the same asset; the object is queued again when that one ends."""


class BackoffError(OperationError):
    """The last run failed; `until` (loop time, seconds) is when the registry queues the object again."""

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


class ApiNotFound(ApiError):
    """404: the object, its namespace or the resource does not exist."""


class ApiGone(ApiError):
    """410: the resourceVersion or continue token is too old; list again."""


class ApiUnavailable(ApiError):
    """No usable answer (429, 5xx, connection lost, deadline). A write may or may not have happened."""
