"""The scaffold of a fake cloud: requests in, replies out; it has no sockets, threads or clock of its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from volplane_testing.cloud.faults import CloudFailure, Fault, FaultKind, Script
from volplane_testing.cloud.throttling import Throttle
from volplane_testing.cloud.timeline import Timeline

__all__ = ["FakeCloud", "Reply"]

_UNANSWERED = (FaultKind.LOSE, FaultKind.LATE, FaultKind.DROP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The outcome of a request: a result, an error, or no response. closed: not even a connection."""

    result: Mapping[str, Any] | None = None
    error: CloudFailure | None = None
    lost: bool = False
    closed: bool = False


class FakeCloud(ABC):
    """A fake cloud: subclasses say which calls there are, who may make them, and what they do.

    clock: seconds from any start. States change when the clock has moved. `faults` is the script of faults. `calls`
    counts requests by action, refused ones included; `refused` counts errors by code. Safe for threads: requests are
    served one at a time.
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self.timeline = Timeline(clock)
        self.throttle = Throttle()
        self.faults = Script()
        self.calls: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.fault: Fault | None = None
        """Of the call that is being performed; `perform` heeds those of the kinds STALL and FAIL."""
        self._lock = threading.RLock()
        self._down = False

    # --- what a cloud does --------------------------------------------------------------------------------------

    @abstractmethod
    def admit(self, action: str, params: Mapping[str, Any], caller: str) -> None:
        """Raise CloudFailure for calls that do not exist, that the caller may not make, or that are too many."""

    @abstractmethod
    def perform(self, action: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Do it. Raises CloudFailure."""

    def failure(self, fault: Fault) -> CloudFailure:
        """Return the error response of a scripted fault."""
        return CloudFailure(fault.code, fault.message, 500 if fault.status is None else fault.status)

    # --- requests -----------------------------------------------------------------------------------------------

    def request(self, action: str, params: Mapping[str, Any], *, caller: str = "") -> Reply:
        """Answer one request. An error of the cloud is in the reply and is not raised."""
        with self._lock:
            self.timeline.run_due_events()
            self.calls[action] += 1
            fault = self.faults.match(action, params)
            try:
                reply = self._answer(action, params, caller, fault)
            except CloudFailure as error:
                reply = Reply(error=error)
            if fault is not None and fault.kind in _UNANSWERED:
                reply = Reply(lost=True)
            if reply.error is not None:
                self.refused[reply.error.code] += 1
            return reply

    def _answer(self, action: str, params: Mapping[str, Any], caller: str, fault: Fault | None) -> Reply:
        kind = fault.kind if fault is not None else None
        if self._down or kind is FaultKind.CLOSE:
            return Reply(closed=True)
        self.admit(action, params, caller)
        if fault is not None and kind is FaultKind.REFUSE:
            return Reply(error=self.failure(fault))
        if kind is FaultKind.DROP:
            return Reply(lost=True)
        if fault is not None and kind is FaultKind.LATE:
            self.timeline.after(fault.seconds, lambda: self._perform_quietly(action, params))
            return Reply(lost=True)
        self.fault = fault
        try:
            result = self.perform(action, params)
        finally:
            self.fault = None
        return Reply(error=self.failure(fault)) if fault is not None and kind is FaultKind.LIE else Reply(result=result)

    def _perform_quietly(self, action: str, params: Mapping[str, Any]) -> None:
        try:
            self.perform(action, params)
        except CloudFailure as error:
            self.refused[error.code] += 1

    @property
    def stalled(self) -> bool:
        """Whether the change of state that the current call starts never ends."""
        return self.fault is not None and self.fault.kind is FaultKind.STALL

    @property
    def failing(self) -> Fault | None:
        """The fault by which the change of state that the current call starts fails; None if it succeeds."""
        return self.fault if self.fault is not None and self.fault.kind is FaultKind.FAIL else None

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Close every connection unread while the block runs."""
        self._down = True
        try:
            yield
        finally:
            self._down = False

    # --- for tests ----------------------------------------------------------------------------------------------

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Run every event that is due. Requests of other threads wait until the block ends."""
        with self._lock:
            self.timeline.run_due_events()
            yield

    def next_change(self) -> float | None:
        """Return the seconds of the clock at which the next state changes; None if none will."""
        with self.settled():
            return self.timeline.next_due
