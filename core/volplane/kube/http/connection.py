"""One connection to a server that speaks HTTP/1.1: exchanges, one after the other (RFC 9112).

llhttp, the parser of Node.js, parses the answers (package `httptools`). This module keeps the state of the exchange:
whether its answer is complete, and whether the connection can be used again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import httptools

__all__ = ["Answer", "BrokenOff", "Connection", "NotHttp", "until"]

T = TypeVar("T")

_MOST_BUFFERED: Final = 2**20
"""Bytes of a streamed answer that nobody has read yet, above which no more are taken from the socket."""


class BrokenOff(ConnectionError):
    """The connection ended before the answer did."""


class NotHttp(ConnectionError):
    """What came is no answer of HTTP/1.1."""


async def until(ends: float | None, waiter: asyncio.Future[T]) -> T:
    """Wait for the result of `waiter`. Raises TimeoutError at the loop time `ends`; None: never.

    It costs a sixth of `asyncio.timeout`.
    """
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


class Answer:
    """What a server answers to one request. One task waits for it.

    What waits raises TimeoutError at the loop time `ends`; None: never.

    headers: found under their names in lower case. begun: status and headers are here. whole: nothing is missing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.begun = False
        self.whole = False
        self.unread = 0
        """Bytes of the body that nobody has asked for yet."""
        self.taken: Callable[[], None] | None = None
        """Called once when they have been asked for."""
        self._loop = loop
        self._chunks: list[bytes] = []
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def head(self, ends: float | None = None) -> None:
        """Wait for status and headers. Raises OSError if the connection ends before."""
        while not self.begun:
            await self._progress(ends)

    async def body(self, ends: float | None = None) -> bytes:
        """Return the body, or the rest of it. Raises OSError if the connection ends before."""
        while not self.whole:
            self._on_taken()
            await self._progress(ends)
        return self._take()

    async def chunk(self, ends: float | None = None) -> bytes:
        """Return the part of the body since the last call; b"" at its end. Raises OSError as `body`."""
        while not self._chunks and not self.whole:
            await self._progress(ends)
        return self._take()

    def add(self, data: bytes) -> None:
        """Add a part of the body."""
        self._chunks.append(data)
        self.unread += len(data)

    def wake(self) -> None:
        """Let whoever waits look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: BaseException) -> None:
        """End the answer: nothing more will come."""
        self._error = error
        self.wake()

    async def _progress(self, ends: float | None) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        await until(ends, self._waiter)

    def _take(self) -> bytes:
        body = b"".join(self._chunks)
        self._chunks.clear()
        self._on_taken()
        return body

    def _on_taken(self) -> None:
        self.unread = 0
        if self.taken is not None:
            taken, self.taken = self.taken, None
            taken()


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

    @property
    def usable(self) -> bool:
        """Whether a request can be sent now."""
        return self._answer is None and self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes, *, streamed: bool = False) -> Answer:
        """Begin an exchange; the connection must have no other. streamed: the answer is read with `chunk`.

        Raises BrokenOff if the connection is closed.
        """
        if not self.usable:
            raise BrokenOff("the connection is closed")
        assert self._transport is not None  # noqa: S101 -- `usable` says so
        self._answer, self._streamed = Answer(self._loop), streamed
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        """Close it at once; an answer that is not whole fails."""
        if self._transport is not None:
            self._transport.abort()

    async def into_tunnel(self, tls: ssl.SSLContext | None, server_name: str) -> Connection:
        """Speak to the server behind the proxy, which has just answered CONNECT; by TLS, unless `tls` is None.

        Raises OSError if TLS fails.
        """
        self._parser = httptools.HttpResponseParser(self)
        self._answer = None
        if tls is not None and self._transport is not None:
            try:
                secured = await self._loop.start_tls(self._transport, self, tls, server_hostname=server_name)
            except BaseException:
                self.close()
                raise
            self._transport = cast("asyncio.Transport", secured)
        return self

    # --- of the transport

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

    # --- of the parser

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
        answer.add(data)
        if self._streamed and answer.unread > _MOST_BUFFERED and answer.taken is None and self._transport is not None:
            self._transport.pause_reading()
            answer.taken = self._transport.resume_reading

    def on_message_complete(self) -> None:
        if self._interim or self._answer is None:
            return
        self._answer.whole = True
        self._answer = None
        self.answered += 1
        if self._transport is not None and not self._parser.should_keep_alive():
            self._transport.close()


_FRAMED: Final = frozenset({"content-length", "transfer-encoding"})
"""Headers one of which says where a body ends; without either it ends with the connection."""
