"""Errors that a fake cloud answers with, and faults that a test scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any, Final

__all__ = ["CloudFailure", "Fault", "FaultKind", "RandomFaults", "Script"]


class CloudFailure(Exception):
    """An error response of a fake: the cloud's code, its message, and the HTTP status."""

    def __init__(self, code: str, message: str = "", status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


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
    """It is done, but the change of state that it starts never ends."""
    FAIL = "fail"
    """It is accepted, and the change of state that it starts ends in failure, with `code` and `message`."""
    CLOSE = "close"
    """The connection is closed before the request is read."""


@dataclass(slots=True, kw_only=True)
class Fault:
    """One entry of a script.

    action: name of the call, such as "CreateVolume". skip: number of calls that succeed first. times: number of calls
    that fail then. when: predicate over the parameters of the call. code, message: of the error of REFUSE and LIE, and
    of the failure of FAIL. status: of the HTTP response, None = as is usual for the code. seconds: of LATE.
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
        """Return the fault of this call, if any; counts it down."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFaults:
    """Which faults may be planned for a simulated run (`Subject.trouble`)."""

    changes: Sequence[str]
    """Calls that change something; one that is named twice is chosen twice as often."""
    reads: Sequence[str]
    """Calls that change nothing: none of them can be late, or fail later."""
    attachments: Sequence[str] = ()
    """Of the changes, those that are never late: no client could tell an attachment that begins half a minute later
    from one that somebody else has made."""
    kinds: Sequence[FaultKind]
    codes: Sequence[str]
    """Of REFUSE and LIE."""
    failures: Sequence[str] = ()
    """Codes of FAIL."""

    def plan(self, script: Script, random: Random) -> None:
        """Add up to a dozen faults to a script."""
        for _ in range(random.randrange(_MOST_RANDOM)):
            script.add(self._fault(random))

    def _fault(self, random: Random) -> Fault:
        action, kind = random.choice((*self.changes, *self.reads)), random.choice(self.kinds)
        if action in self.reads and kind in (FaultKind.LATE, FaultKind.FAIL):
            kind = FaultKind.DROP
        if kind is FaultKind.LATE and action in self.attachments:
            kind = FaultKind.LOSE
        code = random.choice(self.codes)
        return Fault(
            action=action,
            kind=kind,
            code=random.choice(self.failures) if kind is FaultKind.FAIL else code,
            times=random.choice((1, 1, 2, 5)),
            skip=random.randrange(6),
            seconds=random.uniform(0.1, 40.0),
        )


_MOST_RANDOM: Final = 12
