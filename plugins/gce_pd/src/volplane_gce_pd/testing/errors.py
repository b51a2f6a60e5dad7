"""Errors that Compute Engine answers with."""

from __future__ import annotations

from volplane_testing.cloud import CloudFailure

_STATUS = {
    "notFound": 404,
    "alreadyExists": 409,
    "conditionNotMet": 412,
    "forbidden": 403,
    "quotaExceeded": 403,
    "rateLimitExceeded": 403,
    "resourceOperationRateExceeded": 403,
    "authError": 401,
    "backendError": 503,
    "internalError": 500,
    "zoneResourcePoolExhausted": 503,
}


class ComputeError(CloudFailure):
    """An error response: the reason in its body, its message, and the HTTP status, by default that of the reason."""

    def __init__(self, code: str, message: str = "", status: int | None = None) -> None:
        super().__init__(code, message, _STATUS.get(code, 400) if status is None else status)


def not_found(resource: str) -> ComputeError:
    """Return NotFound with Compute Engine's message."""
    return ComputeError("notFound", f"The resource '{resource}' was not found")


def unreachable(place: str) -> ComputeError:
    """Return the error of a call that needs a place which does not answer."""
    return ComputeError("backendError", f"{place} cannot be reached.")


def bad_request(field: str, value: object, why: str = "") -> ComputeError:
    """Return Invalid with Compute Engine's message."""
    return ComputeError("invalid", f"Invalid value for field '{field}': '{value}'. {why}".strip())


def in_use(disk: str, instance: str) -> ComputeError:
    """Return the error of a disk that is attached to another virtual machine."""
    return ComputeError(
        "resourceInUseByAnotherResource", f"The disk resource '{disk}' is already being used by '{instance}'"
    )
