"""The page of delays: the table of `volplane._delays`, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from volplane import _delays
from volplane._delays import RETRIES_PER_SUCCESS, RETRY_BURST, RETRY_RATE, Backoff

__all__ = ["delays_page"]

WORDS: Final = {
    "RECONCILE_FAILED": (
        "a pass over an object: conflicts, no end of steps, an internal error",
        "a pass without an error",
    ),
    "API_UNAVAILABLE": (
        "a pass over an object: the API server gave no usable answer",
        "a pass without an error",
    ),
    "API_REFUSED": (
        "a pass over an object: the API server refused a call",
        "a pass without an error",
    ),
    "REGISTRY_CLOSED": (
        "a pass over an object: its driver takes no operations any more",
        "a pass without an error",
    ),
    "HOOK_FAILED": (
        "an operation: a hook or one of its live checks failed",
        "a success; the claim's class or node changed; another operation on the asset",
    ),
    "HOOK_FAILED_SLOW": (
        "an operation: the error is one that only a change elsewhere ends (retry policy slow)",
        "a success; the claim's class or node changed; another operation on the asset",
    ),
    "LONG_CALL": (
        "no failure: a hook answered `InProgress`",
        "-",
    ),
    "LIVE_STATE_FORBIDS": (
        "an operation: the live state forbids it for now",
        "-",
    ),
    "SOURCE_AWAITED": (
        "the data source of a claim: it cannot be used yet",
        "-",
    ),
    "SCRUB_FAILED": (
        "an attempt to erase a volume failed",
        "the volume is released again; the count and the time are on the volume, by the wall clock",
    ),
    "RECORD_OVERWRITTEN": (
        "a record of ours on a claim or volume was written over by somebody else",
        "a record of ours stood for 30 s; the record has ended",
    ),
    "RECORD_OF_OTHERS": (
        "the record on a claim is sealed by another installation, and does not change",
        "the record has ended; it becomes ours",
    ),
    "WATCH_ENDED": (
        "a list or a watch ended with an error, or at once and without an event",
        "an event, or a watch that lasted a second",
    ),
    "CIRCUIT_OPEN": (
        "calls of the API server had no usable answer",
        "a usable answer",
    ),
    "EVENT_NOT_WRITTEN": (
        "an Event was not written: the API server gave no usable answer",
        "it is written",
    ),
    "EVENT_REFUSED": (
        "an Event was refused (403), in a namespace that stays",
        "it is written",
    ),
    "LEASE_NOT_HELD": (
        "the lease is another's, or can be neither read nor taken",
        "-",
    ),
    "LEASE_NOT_RENEWED": (
        "the lease was not renewed",
        "-",
    ),
    "PREPARE_FAILED": (
        "at the start of a process: the API server gave no usable answer",
        "-",
    ),
    "NODE_GROWTH_REFUSED": (
        "a kubelet cannot grow a file system, and gave up",
        "-",
    ),
    "DRIVER_NOT_STARTED": (
        "a driver did not start",
        "the driver is ready",
    ),
    "LEAK_CHECK_FAILED": (
        "a leak check failed",
        "-",
    ),
    "LEAK_CHECK_WITHOUT_DRIVER": (
        "a leak check is due and its driver is not ready",
        "-",
    ),
}
"""Name of a row -> what failed, and what resets the count; "-": each failure counts as the first."""

_INTRODUCTION = """\
# Who waits, and how long

Everything that is tried again takes its delay from one table, `volplane._delays`; the table below is that
table. A delay is `first` after the first failure in a row. Each further
failure multiplies it, up to the ceiling.

"Asked for" is what the other side says: `retry_after` of a backend's error, `Retry-After` or `retryAfterSeconds` of the
API server. As a floor it makes a delay longer, never shorter.
"""


_TOGETHER = f"""
## Together

The retries of one driver and storage class have a budget together: {RETRY_RATE:g} a second, at most
{RETRY_BURST:g} saved up, and {RETRIES_PER_SUCCESS:g} more for each success. An operation whose delay is
over waits until the budget allows it; those that failed least often go first. First tries are not counted.

The four rows of passes share one count of failures per object.

## Delays that somebody else decides

- `InProgress(retry_after)` of a hook: the operation goes on after exactly that time.
- `Absent` of a `find`: it counts only `settle_seconds` (of `describe`) after the last attempt to provision.

Periods are not delays and are not in the table: a driver is probed every 30 s and checked for leaks every 10 min, and
an Event is rewritten at most every 5 min.
"""


def delays_page() -> Iterator[str]:
    """Lines of docs/explanation/delays.md."""
    yield from _INTRODUCTION.splitlines()
    yield ""
    yield "| what failed | first | growth | ceiling | jitter | asked for | reset by |"
    yield "|---|---|---|---|---|---|---|"
    table = {name: row for name, row in vars(_delays).items() if isinstance(row, Backoff)}
    yield from (_row(row, *WORDS[name]) for name, row in table.items())
    yield ""
    yield "What the columns do not say:"
    yield ""
    yield from (f"- {WORDS[name][0]}: {extra}." for name, row in table.items() if (extra := _extra(row)))
    yield from _TOGETHER.splitlines()


def _row(row: Backoff, failed: str, reset: str) -> str:
    growth = f"times {row.factor:g}" if row.factor != 1.0 else "-"
    ceiling = _time(row.ceiling) if math.isfinite(row.ceiling) else "-"
    low, high = row.jitter
    jitter = f"times {low:g} to {high:g}" if row.jitter != (1.0, 1.0) else "-"
    cells = (failed, _time(row.first), growth, ceiling, jitter, _asked(row), reset)
    return f"| {' | '.join(cells)} |"


def _asked(row: Backoff) -> str:
    shortest, longest = row.asked_within
    match row.asked:
        case "floor":
            return f"a floor, at most {_time(longest)}"
        case "instead":
            return f"instead, {_time(shortest)} to {_time(longest)}"
    return "-"


def _extra(row: Backoff) -> str:
    parts = []
    if row.threshold > 1:
        parts.append(f"there is no delay before failure {row.threshold} in a row")
    if row.tries is not None:
        parts.append(f"given up after {row.tries} tries")
    if math.isfinite(row.forget_after):
        parts.append(f"the count is dropped when no try follows within {_time(row.forget_after)} after the delay")
    return "; ".join(parts)


def _time(seconds: float) -> str:
    return f"{seconds * 1000:g} ms" if seconds < 0.1 else f"{seconds:g} s"
