"""The page of delays: the table of `volplane._delays`, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator

from volplane._delays import RETRIES_PER_SUCCESS, RETRY_BURST, RETRY_RATE, TABLE, Backoff

__all__ = ["delays_page"]

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
    yield from map(_row, TABLE)
    yield ""
    yield "What the columns do not say:"
    yield ""
    yield from (f"- {row.reason}: {extra}." for row in TABLE if (extra := _extra(row)))
    yield from _TOGETHER.splitlines()


def _row(row: Backoff) -> str:
    growth = f"times {row.factor:g}" if row.factor != 1.0 else "-"
    ceiling = _time(row.ceiling) if math.isfinite(row.ceiling) else "-"
    low, high = row.jitter
    jitter = f"times {low:g} to {high:g}" if row.jitter != (1.0, 1.0) else "-"
    cells = (row.reason, _time(row.first), growth, ceiling, jitter, _asked(row), row.reset)
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
