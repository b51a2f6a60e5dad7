"""Group commit: writes that arrive together share one wait for the disk."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

__all__ = ["Commits", "Committing"]

_log = logging.getLogger(__name__)


class Committing(Protocol):
    """What can commit: a journal."""

    @property
    def pending(self) -> bool:
        """Whether something that was recorded is not yet on disk."""
        ...

    def commit(self) -> None:
        """Return when all that was recorded is on disk. Raises OSError; then none of it is, and the next call tries
        again.
        """
        ...


class Commits:
    """Commits what was recorded once per turn of the event loop, after every request of that turn was dealt with.

    While the disk is busy requests pile up at the sockets, so the next turn, and with it the next commit, has more of
    them.
    """

    def __init__(self, journal: Committing) -> None:
        self._journal = journal
        self._waiting: list[asyncio.Future[None]] = []
        self._due = False

    def recorded(self) -> None:
        """Something was: it is committed soon, whoever waits for it. Without a running loop the caller has to
        `flush`.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._schedule(loop)

    def flush(self) -> None:
        """Commit now. Raises OSError as the journal's `commit`."""
        self._journal.commit()

    async def settled(self) -> None:
        """Return once all that is recorded now is on disk. Raises OSError if it cannot be."""
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
