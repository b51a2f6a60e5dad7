"""The trace of a run: writes, hook results and faults in order, and the first broken invariant."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

__all__ = ["Entry", "FirstViolation", "InvariantViolation", "Trace"]


class Entry(msgspec.Struct, frozen=True):
    """One line. at: virtual seconds. who: a process, `user`, `cluster` or `fault`. what: its text is made when read."""

    at: float
    who: str
    what: object

    def __str__(self) -> str:
        return f"{self.at:11.4f}  {self.who:<10} {self.what}"


class Trace:
    """The lines of one run."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.happened: Counter[str] = Counter()
        """How often each kind of fault or user action had an effect."""

    def note(self, who: str, what: object) -> None:
        self.entries.append(Entry(asyncio.get_running_loop().time(), who, what))

    def strike(self, kind: str, what: str) -> None:
        """Note a fault. kind: what `happened` counts it as."""
        self.happened[kind] += 1
        self.note("fault", what)

    def lines(self) -> Iterator[str]:
        return map(str, self.entries)

    def digest(self) -> str:
        """Return a hash of the trace, which is equal for equal schedules."""
        mark = blake2b(digest_size=8)
        for line in self.lines():
            mark.update(line.encode())
        return mark.hexdigest()


@dataclass(frozen=True, slots=True)
class InvariantViolation:
    """A broken invariant. invariant: its name, the same for every schedule that breaks it. text: what broke it here."""

    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


class FirstViolation:
    """Keeps the first violation. Belongs to the running loop."""

    def __init__(self, trace: Trace) -> None:
        self.violation: InvariantViolation | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._trace = trace

    def report(self, invariant: str, text: str) -> None:
        if self.violation is None:
            self.violation = InvariantViolation(invariant, text)
            self._trace.note("VIOLATION", self.violation)
            if self._waiting is not None:
                _end(self._waiting)

    async def until(self, when: float) -> None:
        """Return at this loop time, or once there is a violation. One task at a time may wait."""
        loop = asyncio.get_running_loop()
        timer = loop.call_at(when, _end, waiting := loop.create_future())
        self._waiting = waiting
        try:
            if self.violation is None:
                await waiting
        finally:
            timer.cancel()


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
