"""What EC2 answers when it does not do what it was asked."""

from __future__ import annotations

__all__ = ["Refusal", "invalid"]

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


class Refusal(Exception):
    """An error answer: EC2's code, its text, the HTTP status that goes with the code."""

    def __init__(self, code: str, message: str = "", status: int | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = _STATUS.get(code, 400) if status is None else status


def invalid(parameter: str, value: object, why: str = "") -> Refusal:
    """InvalidParameterValue in EC2's words."""
    end = f" {why}" if why else ""
    return Refusal("InvalidParameterValue", f"Value ({value}) for parameter {parameter} is invalid.{end}")
