"""What was found wrong, first come."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from volplane_testing.simulation.trace import Trace

__all__ = ["Verdict", "Violation"]


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant. invariant: its name, the same for every schedule that breaks it. text: what broke it here."""

    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


class Verdict:
    """Takes the first violation and wakes whoever waits for one. Belongs to the running loop."""

    def __init__(self, trace: Trace) -> None:
        self.violation: Violation | None = None
        self.found = asyncio.Event()
        self._trace = trace

    def broke(self, invariant: str, text: str) -> None:
        if self.violation is None:
            self.violation = Violation(invariant, text)
            self._trace.note("VIOLATION", self.violation)
            self.found.set()
