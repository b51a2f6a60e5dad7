"""Errors that EC2 answers with."""

from __future__ import annotations

from volplane_testing.cloud import CloudFailure

_STATUS = {
    "RequestLimitExceeded": 503,
    "InsufficientVolumeCapacity": 503,
    "Unavailable": 503,
    "ServiceUnavailable": 503,
    "InternalError": 500,
    "UnauthorizedOperation": 403,
    "AuthFailure": 401,
    "DryRunOperation": 412,
}


class EC2Error(CloudFailure):
    """An error response: EC2's code, its message, and the HTTP status, by default the one that belongs to the code."""

    def __init__(self, code: str, message: str = "", status: int | None = None) -> None:
        super().__init__(code, message, _STATUS.get(code, 400) if status is None else status)


def invalid(parameter: str, value: object, why: str = "") -> EC2Error:
    """Return InvalidParameterValue with EC2's message."""
    end = f" {why}" if why else ""
    return EC2Error("InvalidParameterValue", f"Value ({value}) for parameter {parameter} is invalid.{end}")
