"""Counts what the core does and asks: lines of code, requests, bytes, CPU, and how long one step of the loop lasts.

`lines_of_core` reads no clock, so it is the same on every machine and can be compared between sizes in tests.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import volplane
from volplane.kube.transport import LineStream, Request, Response, Transport
from volplane_testing.transport import WrappedLines

__all__ = [
    "Counting",
    "Lines",
    "LoopSteps",
    "Tally",
    "lines_of_callbacks",
    "lines_of_core",
    "percentile",
    "time_of_calls",
]

CORE = str(Path(volplane.__file__).parent)


@dataclass(slots=True)
class Lines:
    """How many lines of core have run, each turn of a loop again."""

    count: int = 0


@contextmanager
def lines_of_core() -> Iterator[Lines]:
    """Count the lines of core that this thread runs in the block. What C code does in one call counts as one line."""
    lines, ours = Lines(), dict[str, bool]()

    def count(_frame: FrameType, event: str, _value: Any) -> Any:
        if event == "line":
            lines.count += 1
        return count

    def enter(frame: FrameType, _event: str, _value: Any) -> Any:
        file = frame.f_code.co_filename
        if (known := ours.get(file)) is None:
            known = ours[file] = file.startswith(CORE)
        return count if known else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield lines
    finally:
        sys.settrace(before)


@contextmanager
def lines_of_callbacks() -> Iterator[list[int]]:
    """Count the lines of core that each callback of asyncio's loops runs in the block: no other task runs meanwhile."""
    run, counts = asyncio.Handle._run, list[int]()  # noqa: SLF001 -- there is no other place to count all
    with lines_of_core() as lines:

        def counted(handle: asyncio.Handle) -> None:
            before = lines.count
            run(handle)
            counts.append(lines.count - before)

        asyncio.Handle._run = counted  # type: ignore[method-assign, assignment] # noqa: SLF001
        try:
            yield counts
        finally:
            asyncio.Handle._run = run  # type: ignore[method-assign] # noqa: SLF001


@dataclass(slots=True)
class Tally:
    """What one process asked and got. conflicts: answers 409 to patches and deletes."""

    requests: Counter[str] = field(default_factory=Counter)
    conflicts: int = 0
    events: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    received: int = 0
    watched: int = 0
    """Of the bytes received, those of watches."""


class Counting:
    """A transport that counts. latency: seconds that a request takes to the server, and its answer back."""

    def __init__(self, inner: Transport, tally: Tally, latency: float = 0.0) -> None:
        self._inner = inner
        self._tally = tally
        self._latency = latency

    async def send(self, request: Request) -> Response:
        if self._latency:
            await asyncio.sleep(self._latency)
        answer = await self._inner.send(request)
        if self._latency:
            await asyncio.sleep(self._latency)
        self._tally.requests[request.method] += 1
        self._tally.conflicts += answer.status == 409 and request.method in ("PATCH", "DELETE")
        self._tally.sent += len(request.body or b"")
        self._tally.received += len(answer.body)
        return answer

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[LineStream]:
        async with self._inner.stream(request) as lines:
            yield _CountedLines(lines, request.path.rpartition("/")[2], self._tally)

    async def close(self) -> None:
        await self._inner.close()


class _CountedLines(WrappedLines):
    def __init__(self, lines: LineStream, plural: str, tally: Tally) -> None:
        super().__init__(lines)
        self._plural = plural
        self._tally = tally

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for line in self._lines:
            if not line.startswith(b'{"type":"BOOKMARK"'):
                self._tally.events[self._plural] += 1
            self._tally.received += len(line)
            self._tally.watched += len(line)
            yield line


class LoopSteps:
    """The CPU time of each callback of asyncio's loops, without that of what `time_of_calls` wraps.

    While one runs no other task does: the longest is the worst latency that a loop adds. Other processes do not count.
    """

    def __init__(self) -> None:
        self.milliseconds: list[float] = []
        self.elsewhere = 0.0
        """CPU seconds so far in wrapped calls."""
        self.inside = False

    @contextmanager
    def measured(self) -> Iterator[None]:
        run, clock = asyncio.Handle._run, time.thread_time  # noqa: SLF001 -- there is no other place to measure all

        def timed(handle: asyncio.Handle) -> None:
            began, before = clock(), self.elsewhere
            run(handle)
            self.milliseconds.append((clock() - began - (self.elsewhere - before)) * 1e3)

        asyncio.Handle._run = timed  # type: ignore[method-assign, assignment] # noqa: SLF001
        try:
            yield
        finally:
            asyncio.Handle._run = run  # type: ignore[method-assign] # noqa: SLF001


def time_of_calls(call: Callable[..., Any], steps: LoopSteps) -> Callable[..., Any]:
    """Return the function, whose CPU time counts as spent elsewhere."""

    def timed(*given: Any, **named: Any) -> Any:
        if steps.inside:
            return call(*given, **named)
        began, steps.inside = time.thread_time(), True
        try:
            return call(*given, **named)
        finally:
            steps.elsewhere += time.thread_time() - began
            steps.inside = False

    return timed


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which `part` per cent of them lie; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part / 100))] if ordered else 0.0
