"""Short HTTP/1.1 exchanges over connections that are kept, with nothing a client of one API server does not need.

A general HTTP client spends three times the CPU per request on redirects, cookies, encodings, forms and sessions. Streams
and proxies are left to it (`volplane.kube.http_transport`).
Source: RFC 9110, RFC 9112.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, cast
from urllib.parse import quote, urlencode

from volplane.kube.transport import Response

__all__ = ["AnswerReader", "BadAnswer", "Connections"]

_LONGEST_HEAD: Final = 2**16
_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?")
_SAFE: Final = "/:@!$&'()*+,;=~"
_BODILESS: Final = frozenset({204, 304})
_ONCE_MORE: Final = frozenset({"GET"})
"""Methods that may be repeated when a connection that was kept turns out to be closed."""


class BadAnswer(ConnectionError):
    """What arrived is no HTTP/1.1 answer."""


class AnswerReader:
    """Puts one answer together from what arrives."""

    __slots__ = ("_buffer", "_chunks", "_headers", "_left", "_status", "reusable")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._status = 0
        self._headers: dict[str, str] = {}
        self._left = _HEAD
        self._chunks: list[bytes] = []
        self.reusable = False
        """Whether the connection can carry another exchange after this answer."""

    @property
    def begun(self) -> bool:
        """Whether anything has arrived."""
        return bool(self._status or self._buffer)

    def feed(self, data: bytes) -> Response | None:
        """The answer, once it is whole. Raises BadAnswer."""
        self._buffer += data
        while self._left == _HEAD:
            if not self._read_head():
                return None
        if self._left >= 0:
            return self._sized()
        if self._left == _UNTIL_END:
            return None
        return self._chunked()

    def end(self) -> Response:
        """The connection ended. Raises BadAnswer unless that is what ends the answer."""
        if self._left != _UNTIL_END:
            raise BadAnswer("the connection was closed in the middle of an answer")
        return Response(self._status, self._headers, bytes(self._buffer))

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _LONGEST_HEAD:
                raise BadAnswer("the head of an answer is too long")
            return False
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if version not in ("HTTP/1.1", "HTTP/1.0") or len(code) != 3 or not code.isdecimal():
            raise BadAnswer(f"an answer begins with {first[:60]!r}")
        if code[0] == "1":
            return True  # Another head follows.
        self._status = int(code)
        self._headers = _headers_of(lines)
        self._left = self._body_length()
        kept = version == "HTTP/1.1" and "close" not in self._headers.get("connection", "").lower()
        self.reusable = kept and self._left != _UNTIL_END
        return True

    def _body_length(self) -> int:
        if self._status in _BODILESS:
            return 0
        coding = self._headers.get("transfer-encoding")
        if coding is not None:
            if coding.lower() != "chunked":
                raise BadAnswer(f"an answer has the transfer coding {coding!r}")
            return _CHUNKED
        length = self._headers.get("content-length")
        if length is None:
            return _UNTIL_END
        if not (length.isascii() and length.isdecimal()):
            raise BadAnswer(f"an answer has the length {length!r}")
        return int(length)

    def _sized(self) -> Response | None:
        surplus = len(self._buffer) - self._left
        if surplus < 0:
            return None
        if surplus:
            self.reusable = False
            del self._buffer[self._left :]
        return Response(self._status, self._headers, bytes(self._buffer))

    def _chunked(self) -> Response | None:
        while (end := self._buffer.find(b"\r\n")) >= 0:
            if self._left == _TRAILER:
                del self._buffer[: end + 2]
                if end == 0:
                    self.reusable = self.reusable and not self._buffer
                    return Response(self._status, self._headers, b"".join(self._chunks))
                continue
            size = _SIZE.fullmatch(self._buffer, 0, end)
            if size is None:
                raise BadAnswer("a chunk of an answer has no size")
            begin, length = end + 2, int(size[1], 16)
            if not length:
                self._left = _TRAILER
                del self._buffer[:begin]
                continue
            if len(self._buffer) < begin + length + 2:
                return None
            if self._buffer[begin + length : begin + length + 2] != b"\r\n":
                raise BadAnswer("a chunk of an answer is longer than its size")
            self._chunks.append(bytes(self._buffer[begin : begin + length]))
            del self._buffer[: begin + length + 2]
        if len(self._buffer) > _LONGEST_HEAD:
            raise BadAnswer("a chunk of an answer has no size")
        return None


_HEAD, _UNTIL_END, _CHUNKED, _TRAILER = -1, -2, -3, -4
"""What is expected next, where it is no number of bytes."""


def _headers_of(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name, value = name.lower(), value.strip()
        if not colon or not name or name != name.strip():
            raise BadAnswer(f"an answer has the header line {line[:60]!r}")
        if name == "content-length" and headers.get(name, value) != value:
            raise BadAnswer("an answer has two lengths")
        headers[name] = value
    return headers


class _Connection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._reader: AnswerReader | None = None
        self._answer: asyncio.Future[Response] | None = None
        self.since = 0.0
        """Loop time at which it was last put aside."""

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's only behaves like one

    def data_received(self, data: bytes) -> None:
        if self._reader is None:
            self.close()  # Nobody asked.
            return
        try:
            answer = self._reader.feed(data)
        except BadAnswer as error:
            self._fail(error)
        else:
            if answer is not None:
                self._finish(answer, reusable=self._reader.reusable)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._reader is None:
            return
        if not self._reader.begun:
            self._fail(_Unanswered(str(exc or "the server closed the connection without an answer")))
            return
        try:
            self._finish(self._reader.end(), reusable=False)
        except BadAnswer as error:
            self._fail(exc or error)

    async def exchange(self, request: bytes, until: float) -> Response:
        """Send and receive. until: loop time. Raises TimeoutError, else OSError."""
        if self._transport is None:
            raise _Unanswered("the server closed the connection")
        self._reader = AnswerReader()
        self._answer = self._loop.create_future()
        timer = self._loop.call_at(until, self._fail, TimeoutError())
        self._transport.write(request)
        try:
            return await self._answer
        except BaseException:
            self.close()
            raise
        finally:
            timer.cancel()

    def close(self) -> None:
        """End it at once, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, answer: Response, *, reusable: bool) -> None:
        self._reader = None
        if not reusable:
            self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def _fail(self, error: Exception) -> None:
        self._reader = None
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


class _Unanswered(ConnectionError):
    """The connection ended before anything was answered; whether the request was read, nobody knows."""


class Connections:
    """Connections to one server: at most `limit`, each kept for `keep` seconds after its last exchange."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        authority: str,
        tls: ssl.SSLContext | None,
        server_name: str | None = None,
        limit: int = 200,
        keep: float = 60.0,
        opened: Callable[[asyncio.BaseTransport], None] = lambda _transport: None,
    ) -> None:
        """authority: the value of Host. server_name: what the certificate must be for, if not `host`.

        opened: told of every new connection.
        """
        self._server = (host, port)
        self._authority = authority
        self._tls = tls
        self._server_name = (server_name or host) if tls is not None else None
        self._keep = keep
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._free = asyncio.Semaphore(limit)
        self._kept: deque[_Connection] = deque()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | None,
        seconds: float,
    ) -> Response:
        """One exchange. path: not yet percent-encoded. Raises TimeoutError after `seconds`, else OSError."""
        request = _request(method, path, query, {"host": self._authority, **headers}, body)
        until = self._loop.time() + seconds
        await self._place(until)
        try:
            kept = self._take()
            if kept is not None:
                try:
                    return await self._exchange(kept, request, until)
                except _Unanswered:
                    if method not in _ONCE_MORE:
                        raise
            return await self._exchange(await self._open(until), request, until)
        finally:
            self._free.release()

    async def _place(self, until: float) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        async with asyncio.timeout_at(until):
            await self._free.acquire()

    async def _exchange(self, connection: _Connection, request: bytes, until: float) -> Response:
        answer = await connection.exchange(request, until)
        if connection.open:
            self._keep_open(connection)
        return answer

    def _take(self) -> _Connection | None:
        """The connection used last: the others may grow old."""
        while self._kept:
            connection = self._kept.pop()
            if connection.open:
                return connection
        return None

    def _keep_open(self, connection: _Connection) -> None:
        connection.since = now = self._loop.time()
        self._kept.append(connection)
        if self._kept[0].since < now - self._keep:
            self._kept.popleft().close()

    async def _open(self, until: float) -> _Connection:
        async with asyncio.timeout_at(until):
            transport, connection = await self._loop.create_connection(
                lambda: _Connection(self._loop), *self._server, ssl=self._tls, server_hostname=self._server_name
            )
        self._opened(transport)
        return connection

    def close(self) -> None:
        """Close what is kept; exchanges under way fail when they are cancelled."""
        while self._kept:
            self._kept.pop().close()


def _request(method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes | None) -> bytes:
    target = f"{quote(path, safe=_SAFE)}?{urlencode(query)}" if query else quote(path, safe=_SAFE)
    lines = [f"{method} {target} HTTP/1.1"]
    for name, value in headers.items():
        if "\r" in value or "\n" in value:
            raise ValueError(f"the value of header {name} has more than one line")
        lines.append(f"{name}: {value}")
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    head = "\r\n".join(lines).encode("latin-1")
    return b"%b\r\n\r\n%b" % (head, body or b"")
