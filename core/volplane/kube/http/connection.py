"""Connections to a server that speaks HTTP/1.1 (RFC 9112): exchanges on each, one after the other, and their pool.

llhttp, the parser of Node.js, parses the answers (package `httptools`). This module keeps the state of the exchange:
whether its answer is complete, and whether the connection can be used again; and of the pool: which are in use, which
are idle, and when another one is opened.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

import httptools

T = TypeVar("T")

Tls = ssl.SSLContext | bool
"""How to speak TLS, for https; a truth value for http, which has none."""

_MOST_BUFFERED: Final = 2**20
"""Bytes of a streamed answer that nobody has read yet, above which no more are taken from the socket."""
_FRAMED: Final = frozenset({"content-length", "transfer-encoding"})
"""Headers one of which says where a body ends; without either it ends with the connection."""
_MAX_OPEN: Final = 200
_AT_ONCE: Final = 8
"""So many are opened at once, and without waiting for others to be given back. A handshake costs as much as ten
requests."""
_OPEN_MORE_AFTER: Final = 0.1
"""Seconds for which a request waits until a connection is given back, where so many are open; then more are opened."""
_TRY_AGAIN_AFTER: Final = 1.0
"""Seconds between attempts to open more where one failed, while others are open."""
_PROVEN: Final = 1.0
"""An answer so many seconds ago proves that a connection leads to the server."""
_LONGEST_IDLE: Final = 60.0
"""Seconds after which a connection is not used again; kube-apiserver closes its end after 90."""


class BrokenOff(ConnectionError):
    """The connection ended before the answer did."""


class NotHttp(ConnectionError):
    """What came is no answer of HTTP/1.1."""


@dataclass(slots=True, eq=False)
class Answer:
    """What a server answers to one request. One task waits for it; at the loop time `ends` that raises TimeoutError."""

    loop: asyncio.AbstractEventLoop
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    """Found under their names in lower case."""
    begun: bool = False
    """Whether status and headers are here."""
    whole: bool = False
    chunks: list[bytes] = field(default_factory=list)
    unread: int = 0
    """Parts and bytes of the body that nobody has asked for yet."""
    taken: Callable[[], None] | None = None
    """Called once when they have been asked for."""
    error: BaseException | None = None
    waiter: asyncio.Future[None] | None = None

    async def head(self, ends: float | None = None) -> None:
        """Wait for status and headers. Raises OSError if the connection ends before."""
        while not self.begun:
            await self._progress(ends)

    async def body(self, ends: float | None = None) -> bytes:
        """Return the body of an answer that is not streamed. Raises OSError if the connection ends before."""
        while not self.whole:
            await self._progress(ends)
        return await self.chunk(ends)

    async def chunk(self, ends: float | None = None) -> bytes:
        """Return the part of the body since the last call; b"" at its end. Raises OSError as `body`."""
        while not self.chunks and not self.whole:
            await self._progress(ends)
        data = b"".join(self.chunks)
        self.chunks.clear()
        self.unread = 0
        self.resume()
        return data

    def resume(self) -> None:
        """Let the connection read on, which stopped because too much was unread."""
        taken, self.taken = self.taken, None
        if taken is not None:
            taken()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def fail(self, error: BaseException) -> None:
        """End the answer: nothing more will come."""
        self.error = error
        self.wake()

    async def _progress(self, ends: float | None) -> None:
        if self.error is not None:
            raise self.error
        self.waiter = self.loop.create_future()
        await _until(ends, self.waiter)


class Connection(asyncio.Protocol):
    """Sends requests and takes in their answers. Callbacks named `on_…` are those of the parser."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lost: Callable[[Connection], None]) -> None:
        """lost: called once, when the connection is closed, by whichever side."""
        self.idle_since = 0.0
        """For the owner: loop time at which it was put aside."""
        self.answered = 0
        """How many answers came whole."""
        self._loop = loop
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None
        self._streamed = False
        self._interim = False
        self._tunnel = False

    @property
    def usable(self) -> bool:
        """Whether a request can be sent now."""
        return self._answer is None and self._transport is not None and not self._transport.is_closing()

    @property
    def swallows(self) -> bool:
        """Whether it was kept, and the request that is under way on it has no answer."""
        return self.answered > 0 and self._answer is not None and not self._answer.begun

    def send(self, request: bytes, *, streamed: bool = False, tunnel: bool = False) -> Answer:
        """Begin an exchange; the connection must have no other. streamed: the answer is read with `chunk`. tunnel: it
        is a CONNECT. Raises BrokenOff if the connection is closed.
        """
        if not self.usable:
            raise BrokenOff("the connection is closed")
        assert self._transport is not None  # noqa: S101 -- `usable` says so
        self._answer, self._streamed, self._tunnel = Answer(self._loop), streamed, tunnel
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        """Close it at once; an answer that is not whole fails."""
        if self._transport is not None:
            self._transport.abort()

    async def into_tunnel(self, tls: ssl.SSLContext | None, server_name: str) -> None:
        """Speak to the server behind the proxy, by TLS unless `tls` is None. Raises OSError if TLS fails."""
        self._parser = httptools.HttpResponseParser(self)
        self._answer, self._tunnel = None, False
        if tls is None or self._transport is None:
            return
        try:
            secured = await self._loop.start_tls(self._transport, self, tls, server_hostname=server_name)
        except BaseException:
            self.close()
            raise
        self._transport = cast("asyncio.Transport", secured)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # that of uvloop's TLS is none by its classes

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            self.close()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            answer.fail(NotHttp(str(error)))
            self.close()
            return
        answer.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        answer, self._answer = self._answer, None
        if answer is not None:
            if exc is None and answer.begun and not _FRAMED & answer.headers.keys():
                answer.whole = True
                answer.wake()
            else:
                answer.fail(exc if isinstance(exc, OSError) else BrokenOff("the connection was closed"))
        self._lost(self)

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.begun:
            raise NotHttp("more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        answer = self._answer
        if answer is None or answer.begun:
            return  # a trailer
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        held = answer.headers.get(key)
        answer.headers[key] = text if held is None else f"{held}, {text}"

    def on_headers_complete(self) -> None:
        if (answer := self._answer) is None:
            return
        status = self._parser.get_status_code()
        self._interim = status < 200
        if self._interim:
            answer.headers.clear()
        else:
            answer.status, answer.begun = status, True

    def on_body(self, data: bytes) -> None:
        if (answer := self._answer) is None:
            return
        answer.chunks.append(data)
        answer.unread += len(data)
        if self._streamed and answer.unread > _MOST_BUFFERED and answer.taken is None and self._transport is not None:
            self._transport.pause_reading()
            answer.taken = self._transport.resume_reading

    def on_message_complete(self) -> None:
        # An answer to CONNECT has no body, and its connection stays, whatever its headers say (RFC 9110, 9.3.6).
        if self._interim or self._tunnel or (answer := self._answer) is None:
            return
        answer.whole, self._answer = True, None
        self.answered += 1
        answer.resume()  # Its reader may leave it unread, and the next answer would never be read.
        if self._transport is not None and not self._parser.should_keep_alive():
            self._transport.close()


Connect = Callable[[Tls, Callable[[Connection], None]], Awaitable[Connection]]


@dataclass(eq=False)
class ConnectionPool:
    """Each connection has one user at a time. Those of a former TLS context, so of a former certificate, are closed.

    A waiter gets the first connection that is free, given back or new, so that a burst of requests opens few.
    Belongs to one event loop.
    """

    connect: Connect
    lent_for_long: bool = False
    """Whether nobody waits until a connection is given back, because that takes minutes, as with watches."""
    swallowed: Callable[[], None] = lambda: None
    """Called when a kept connection is given back that had no answer."""
    _tls: Tls = True
    _open: dict[Connection, Tls] = field(default_factory=dict)
    _idle: list[Connection] = field(default_factory=list)
    _waiters: dict[asyncio.Future[Connection], float] = field(default_factory=dict)
    """First in, first out, with the loop time since which they wait."""
    _making: set[asyncio.Task[None]] = field(default_factory=set)
    _timer: asyncio.TimerHandle | None = None
    _not_before: float = 0.0
    """Loop time before which none is opened, and then one; 0: the last attempt succeeded."""
    _closed: bool = False

    async def take(self, tls: Tls, ends: float | None = None) -> Connection:
        """Return a connection of the caller's own, until `give_back`.

        Raises what `connect` raises, and TimeoutError at the loop time `ends` (None: never).
        """
        if tls is not self._tls:
            self._tls = tls
            idle, self._idle = self._idle, []
            for connection in idle:
                connection.close()
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
            return await _until(ends, waiter)
        except BaseException:
            self._waiters.pop(waiter, None)
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give_back(waiter.result())
            raise

    def give_back(self, connection: Connection) -> None:
        """End the use of a connection. It is closed if its last answer is not whole."""
        if not connection.usable or self._open.get(connection) is not self._tls:
            if connection.swallows:
                self.swallowed()
            connection.close()
        elif (waiter := self._next_waiter()) is not None:
            waiter.set_result(connection)
        else:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)

    def drop_idle(self) -> None:
        """Close what is idle, but for what has just answered: the way to the server may have gone without a word."""
        proven = asyncio.get_running_loop().time() - _PROVEN
        for each in [each for each in self._idle if each.idle_since < proven]:
            self._idle.remove(each)
            each.close()

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

    def _make_more(self, most: int = _AT_ONCE) -> None:
        """Open connections until there are `most`, but no more than there are waiters, and only a few at once."""
        if not self._waiters or self._closed:
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= self._not_before:
            most = _MAX_OPEN if self.lent_for_long else most
            wanted = min(most - len(self._open), len(self._waiters), 1 if self._not_before else _AT_ONCE)
            for _ in range(wanted - len(self._making)):
                task = asyncio.create_task(self._make(self._tls), name="connection to the API server")
                self._making.add(task)
                task.add_done_callback(self._made)
        if self._timer is None:
            self._timer = loop.call_later(_OPEN_MORE_AFTER, self._check_waiters)

    def _check_waiters(self) -> None:
        """Open some more if the first in the queue has waited for long. All at once would burden a slow server."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        late = self._waiters and now - next(iter(self._waiters.values())) >= _OPEN_MORE_AFTER
        self._make_more(_MAX_OPEN if late else _AT_ONCE)

    async def _make(self, tls: Tls) -> None:
        try:
            connection = await self.connect(tls, self._lost)
        except Exception as error:  # noqa: BLE001 -- whoever waits raises it
            if self._open and not self.lent_for_long:
                # They wait for those that are open: perhaps only so many are let through.
                self._not_before = asyncio.get_running_loop().time() + _TRY_AGAIN_AFTER
            else:
                # All at once: the next attempt would fail the same way, perhaps after ten seconds more.
                self._fail_waiters(error)
        else:
            self._open[connection], self._not_before = tls, 0.0
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


async def _until(ends: float | None, waiter: asyncio.Future[T]) -> T:
    """Wait for the result until the loop time `ends` (TimeoutError; None: never), for a sixth of `asyncio.timeout`."""
    if ends is None:
        return await waiter
    timer = waiter.get_loop().call_at(ends, _expire, waiter)
    try:
        return await waiter
    finally:
        timer.cancel()


def _expire(waiter: asyncio.Future[Any]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
        waiter.exception()  # Whoever waits may be cancelled in this very turn: then nobody asks for it.
