"""The pool of connections to one server: which are in use, which are idle, and when another one is opened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from volplane.kube.http.connection import BrokenOff, Connection, until
from volplane.kube.http.route import Tls

__all__ = ["ConnectionPool"]

_MAX_OPEN: Final = 200
_AT_ONCE: Final = 8
"""So many are opened at once, and without waiting for others to be given back. A handshake costs as much as ten
requests."""
_OPEN_MORE_AFTER: Final = 0.1
"""Seconds for which a request waits until a connection is given back, where so many are open; then more are opened."""
_LONGEST_IDLE: Final = 60.0
"""Seconds after which a connection is not used again; kube-apiserver closes its end after 90."""

Connect = Callable[[Tls, Callable[[Connection], None]], Awaitable[Connection]]


class ConnectionPool:
    """Each connection has one user at a time. Those of a former TLS context, so of a former certificate, are closed.

    A waiter gets the first connection that is free, given back or new, so that a burst of requests opens few.
    Belongs to one event loop.
    """

    def __init__(self, connect: Connect) -> None:
        """connect: see `Route.connect`."""
        self._connect = connect
        self._tls: Tls = True
        self._open: dict[Connection, Tls] = {}
        self._idle: list[Connection] = []
        self._waiters: dict[asyncio.Future[Connection], float] = {}
        """First in, first out, with the loop time since which they wait."""
        self._making: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        """Calls `_check_waiters`."""
        self._closed = False

    async def take(self, tls: Tls, ends: float | None = None) -> Connection:
        """Return a connection of the caller's own, until `give_back`.

        Raises what `connect` raises, and TimeoutError at the loop time `ends` (None: never).
        """
        if tls is not self._tls:
            self._tls = tls
            self._close_idle()
        loop = asyncio.get_running_loop()
        while self._idle:
            connection = self._idle.pop()
            if loop.time() - connection.idle_since < _LONGEST_IDLE:
                return connection
            connection.close()
        waiter: asyncio.Future[Connection] = loop.create_future()
        self._waiters[waiter] = loop.time()
        self._make_more()
        try:
            return await until(ends, waiter)
        except TimeoutError:
            self._waiters.pop(waiter, None)
            raise
        except asyncio.CancelledError:
            self._waiters.pop(waiter, None)
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give_back(waiter.result())
            raise

    def give_back(self, connection: Connection) -> None:
        """End the use of a connection. It is closed if its last answer is not whole."""
        if not connection.usable or self._open.get(connection) is not self._tls:
            connection.close()
        elif (waiter := self._next_waiter()) is not None:
            waiter.set_result(connection)
        else:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)

    async def close(self) -> None:
        """Close all connections, those too that are being made. Requests in flight fail."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._making:
            task.cancel()
        self._fail_waiters(BrokenOff("the transport is closed"))
        for connection in tuple(self._open):
            connection.close()
        await asyncio.gather(*self._making, return_exceptions=True)
        await asyncio.sleep(0)  # what was closed tells so in the next turn

    def _make_more(self) -> None:
        """Begin connections if there are few; others only after somebody has waited for long."""
        if not self._waiters or self._closed:
            return
        self._begin(_AT_ONCE - len(self._open))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_OPEN_MORE_AFTER, self._check_waiters)

    def _check_waiters(self) -> None:
        """Begin some more if the first in the queue has waited for long. All at once would burden a slow server."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        if self._waiters and now - next(iter(self._waiters.values())) >= _OPEN_MORE_AFTER:
            self._begin(_MAX_OPEN - len(self._open))
        self._make_more()

    def _begin(self, wanted: int) -> None:
        """Begin so many, but no more than somebody waits for, and only a few at once."""
        for _ in range(min(wanted, len(self._waiters), _AT_ONCE) - len(self._making)):
            task = asyncio.create_task(self._make(self._tls), name="connection to the API server")
            self._making.add(task)
            task.add_done_callback(self._made)

    async def _make(self, tls: Tls) -> None:
        try:
            connection = await self._connect(tls, self._lost)
        except Exception as error:  # noqa: BLE001 -- whoever waits raises it
            # All at once: the next attempt would fail the same way, perhaps after ten seconds more.
            self._fail_waiters(error)
        else:
            self._open[connection] = tls
            self.give_back(connection)

    def _made(self, task: asyncio.Task[None]) -> None:
        self._making.discard(task)
        self._make_more()

    def _lost(self, connection: Connection) -> None:
        self._open.pop(connection, None)
        if connection in self._idle:
            self._idle.remove(connection)
        self._make_more()

    def _next_waiter(self) -> asyncio.Future[Connection] | None:
        """Return the first in the queue. One that was cancelled is still there until its task runs."""
        while self._waiters:
            waiter = next(iter(self._waiters))
            del self._waiters[waiter]
            if not waiter.done():
                return waiter
        return None

    def _fail_waiters(self, error: Exception) -> None:
        while (waiter := self._next_waiter()) is not None:
            waiter.set_exception(error)

    def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
