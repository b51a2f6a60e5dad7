"""Errors that EC2 answers with, and a script of faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = ["Fault", "FaultKind", "Refusal", "Script", "invalid"]

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


class FaultKind(Enum):
    """What goes wrong."""

    REFUSE = "refuse"
    """Answered with an error, nothing is done."""
    LIE = "lie"
    """Done, and answered with an error all the same."""
    DROP = "drop"
    """The request is lost: nothing is done, no answer comes."""
    LOSE = "lose"
    """Done, but the answer is lost."""
    LATE = "late"
    """No answer comes, and it is done `seconds` later."""
    STALL = "stall"
    """Done, but what it started never ends: a volume stays `creating`, an attachment `attaching` or `busy`."""
    CLOSE = "close"
    """The connection is closed before the request is read."""


@dataclass(slots=True, kw_only=True)
class Fault:
    """One entry of a script.

    action: as "CreateVolume". times: how many calls it hits. skip: so many calls go through before.
    when: only calls whose parameters it says True to. code, message: of the error of REFUSE and LIE.
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
    def refusal(self) -> Refusal:
        """The error to answer with."""
        return Refusal(self.code, self.message, self.status)


class Script:
    """Faults that are still to come, in the order they were added; a call meets at most one."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        """Let it happen from now on."""
        self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Let nothing go wrong any more."""
        self._faults.clear()

    @property
    def left(self) -> tuple[Fault, ...]:
        """What has not happened yet."""
        return tuple(self._faults)

    def meet(self, action: str, given: Mapping[str, Any]) -> Fault | None:
        """The fault that hits this call, counted down."""
        for fault in self._faults:
            if fault.action != action or not fault.when(given):
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            fault.times -= 1
            if fault.times <= 0:
                self._faults.remove(fault)
            return fault
        return None
