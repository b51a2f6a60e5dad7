"""Group commit: writes of the same turn of the event loop share one sync to disk."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

_log = logging.getLogger(__name__)


class Committing(Protocol):
    """The part of a journal that group commit needs."""

    @property
    def pending(self) -> bool:
        """Whether recorded writes are not on disk yet."""
        ...

    def commit(self) -> None:
        """Write all recorded writes to disk. Raises OSError; then none is on disk, and the next call tries again."""
        ...


class Commits:
    """Commits once per turn of the event loop, after all requests of that turn.

    While the disk is busy requests queue at the sockets, so the next turn and its commit contain more of them.
    """

    def __init__(self, journal: Committing) -> None:
        self._journal = journal
        self._waiting: list[asyncio.Future[None]] = []
        self._due = False

    def recorded(self) -> None:
        """Schedule a commit of what was just recorded. Without a running event loop the caller must call `flush`."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._schedule(loop)

    def flush(self) -> None:
        """Commit now. Raises OSError as the journal's `commit`."""
        self._journal.commit()

    async def settled(self) -> None:
        """Return when all writes recorded so far are on disk. Raises OSError if they cannot be written."""
        if not self._journal.pending:
            return
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiting.append(waiter)
        self._schedule(loop)
        await waiter

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._due:
            self._due = True
            loop.call_soon(self._commit)

    def _commit(self) -> None:
        self._due = False
        waiting, self._waiting = self._waiting, []
        failure: OSError | None = None
        try:
            self._journal.commit()
        except OSError as why:
            _log.error("the store cannot be written; nothing is answered until it can: %s", why)
            failure = why
        for waiter in waiting:
            if waiter.done():
                continue
            if failure is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(OSError(str(failure)))
