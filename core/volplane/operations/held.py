"""Which hook calls belong to the running operation: it is over only when all of them have returned.

The executor cannot be asked by the registry, and the code between them may catch anything, so the link is the context
of the operation's task.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

__all__ = ["hold_until", "holding"]

_HELD: ContextVar[list[asyncio.Future[None]]] = ContextVar("volplane_held")


def holding(calls: list[asyncio.Future[None]]) -> None:
    """From here on in this task (and its children), `hold_until` adds to `calls`."""
    _HELD.set(calls)


def hold_until(returned: asyncio.Future[None]) -> None:
    """Keep the current operation's asset taken until `returned` is done. Outside operations: nothing to keep."""
    held = _HELD.get(None)
    if held is not None:
        held.append(returned)
