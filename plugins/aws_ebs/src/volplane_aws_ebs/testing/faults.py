"""Errors that EC2 answers with, and faults that a test scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = ["EC2Error", "Fault", "FaultKind", "Script", "invalid"]

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


class EC2Error(Exception):
    """An error response: EC2's code, its message, and the HTTP status, by default the one that belongs to the code."""

    def __init__(self, code: str, message: str = "", status: int | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = _STATUS.get(code, 400) if status is None else status


def invalid(parameter: str, value: object, why: str = "") -> EC2Error:
    """InvalidParameterValue with EC2's message."""
    end = f" {why}" if why else ""
    return EC2Error("InvalidParameterValue", f"Value ({value}) for parameter {parameter} is invalid.{end}")


class FaultKind(Enum):
    """What goes wrong."""

    REFUSE = "refuse"
    """An error is returned and nothing is done."""
    LIE = "lie"
    """It is done, but an error is returned."""
    DROP = "drop"
    """The request is lost: nothing is done and no response comes."""
    LOSE = "lose"
    """It is done, but the response is lost."""
    LATE = "late"
    """No response comes, and it is done `seconds` later."""
    STALL = "stall"
    """It is done, but the change of state never ends: `creating`, `attaching` or `busy` for ever."""
    FAIL = "fail"
    """It is accepted, and its change of state ends in failure: a volume or snapshot in state `error`, a modification in
    state `failed` with `message`."""
    CLOSE = "close"
    """The connection is closed before the request is read."""


@dataclass(slots=True, kw_only=True)
class Fault:
    """One entry of a script.

    action: such as "CreateVolume". skip: number of calls that succeed first. times: number of calls that fail then.
    when: predicate over the parameters of the call. code, message, status: of the error of REFUSE and LIE; the message
    also of FAIL.
    """

    action: str
    kind: FaultKind
    code: str = "InternalError"
    message: str = "An internal error has occurred"
    status: int | None = None
    times: int = 1
    skip: int = 0
    seconds: float = 10.0
    when: Callable[[Mapping[str, Any]], bool] = field(default=lambda _given: True)

    @property
    def error(self) -> EC2Error:
        """The error of REFUSE and LIE."""
        return EC2Error(self.code, self.message, self.status)


class Script:
    """The faults that have not happened yet, in the order they were added; a call gets at most one."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        """Add a fault; returns it."""
        self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    @property
    def left(self) -> tuple[Fault, ...]:
        """The faults that have not happened yet."""
        return tuple(self._faults)

    def match(self, action: str, params: Mapping[str, Any]) -> Fault | None:
        """The fault of this call, if any; counts it down."""
        for fault in self._faults:
            if fault.action != action or not fault.when(params):
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            fault.times -= 1
            if fault.times <= 0:
                self._faults.remove(fault)
            return fault
        return None
