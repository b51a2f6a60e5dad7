"""One TCP connection: many calls at once, answers in any order, no thread of its own.

Whichever caller waits reads for all: it hands answers of others over, and leaves the reading to another one when its
own is there. So a single caller never waits for another thread, and each answer wakes one thread: its own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from volplane_nfs.nfs4.errors import NoAnswer, NotAnNfsServer, ServerUnavailable, TransportError
from volplane_nfs.nfs4.rpc import (
    COMPOUND,
    USUAL_REPLY,
    RecordParser,
    call_header,
    call_record,
    check_reply_header,
)
from volplane_nfs.nfs4.xdr import MalformedData, Reader

_CHUNK: Final = 1 << 16
_XID_BYTES: Final = 4
_TICK: Final = 0.25
"""Seconds after which the kernel gives a waiting thread back, so that it sees whether its time is up."""
_IDLE: Final = 0.05
"""Seconds since the last answer after which a connection may have been closed by the server."""
_EACH: Final = 1.5
"""Seconds of connecting to an address while there are others: a first SYN may be lost once."""
_RESOLVE_THREADS: Final = threading.BoundedSemaphore(8)
"""Look-ups of names that hang keep their thread; no more than these are given to them."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server."""

    host: str
    """A name or an IP address without brackets."""
    port: int = 2049

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 2049 else f"{host}:{self.port}"


class Stream(Protocol):
    """The part of a socket that a connection uses. Its calls wait for a moment and then raise BlockingIOError; or
    TimeoutError, if nothing will come.
    """

    def send(self, data: bytes | memoryview, /) -> int: ...

    def recv(self, size: int, flags: int = 0, /) -> bytes: ...

    def close(self) -> None: ...


Dial = Callable[[Address, float], Stream]
"""Connect within so many seconds; raises OSError."""


def dial_tcp(address: Address, seconds: float) -> Stream:
    """Return a TCP connection to the first address of the host that answers."""
    deadline = time.monotonic() + seconds
    last: OSError = OSError(f"{address.host} has no address")
    places = _resolve(address, seconds)
    for number, (family, kind, protocol, _, place) in enumerate(places):
        left = _share_of(deadline, last=number + 1 == len(places))
        stream = socket.socket(family, kind, protocol)
        try:
            stream.settimeout(left)
            stream.connect(place)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            _let_the_kernel_wait(stream)
        except OSError as error:
            stream.close()
            last = error
        else:
            return stream
    raise last


def _share_of(deadline: float, *, last: bool) -> float:
    """Return the seconds that an attempt to connect may take. last: there is no other address. Raises TimeoutError."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left if last else min(left, _EACH)


class Failover:
    """A `Dial` to a server that has several addresses: to the one that answered last, else to the others in turn."""

    def __init__(self, addresses: Sequence[Address], dial: Dial) -> None:
        self._dial = dial
        self._order = tuple(addresses)
        self._last: Address | None = None
        self.moves = 0
        """How often a connection was made to another address than the one before."""

    def __call__(self, _address: Address, seconds: float) -> Stream:
        """Connect to the first address that answers; raises OSError."""
        deadline = time.monotonic() + seconds
        problem: OSError | None = None
        order = self._order
        for number, address in enumerate(order):
            try:
                stream = self._dial(address, _share_of(deadline, last=number + 1 == len(order)))
            except OSError as error:
                problem = problem or error
            else:
                self._order = (*order[number:], *order[:number])
                self.moves += self._last not in {None, address}
                self._last = address
                return stream
        raise problem or TimeoutError("timed out")

    def turn(self) -> None:
        """Begin with another address from now on: what is connected to the first one does not answer calls."""
        self._order = (*self._order[1:], *self._order[:1])


def _let_the_kernel_wait(stream: socket.socket) -> None:
    """Sending and receiving are one system call each. With a time limit of Python's they are three."""
    stream.settimeout(None)
    limit = struct.pack("@ll", 0, int(_TICK * 1e6))
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _resolve(
    address: Address, seconds: float
) -> list[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int]]]:
    """getaddrinfo(3) cannot be given a time limit, so it gets a thread of its own."""
    with contextlib.suppress(OSError):
        return socket.getaddrinfo(  # type: ignore[return-value]
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    if not _RESOLVE_THREADS.acquire(blocking=False):
        raise TimeoutError("too many look-ups of host names hang")
    answers: list[object] = []

    def look_up() -> None:
        try:
            answers.append(socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answers.append(error)
        finally:
            _RESOLVE_THREADS.release()

    thread = threading.Thread(target=look_up, name=f"resolve-{address.host}", daemon=True)
    thread.start()
    thread.join(seconds)
    if not answers:
        raise TimeoutError(f"the look-up of host {address.host} timed out")
    if isinstance(answers[0], Exception):
        raise OSError(f"host name {address.host} cannot be resolved: {answers[0]}")
    return answers[0]  # type: ignore[return-value]


class Call:
    """A call of COMPOUND. compound: its arguments, encoded. answer: set when it is there. gate: locked while a thread
    waits for it, opened when there is something to do: the answer is there, the connection broke, or it is the
    thread's turn to read.
    """

    __slots__ = ("answer", "compound", "gate", "reads", "xid")

    def __init__(self) -> None:
        self.compound = b""
        self.xid = 0
        self.answer: bytes | None = None
        self.gate: threading.Lock | None = None
        self.reads = False


class Connection:
    """An open connection. Once a call of it fails it is `broken` for ever."""

    def __init__(self, stream: Stream, credentials: bytes, largest_answer: int) -> None:
        self._stream = stream
        weakref.finalize(self, stream.close).atexit = False
        self._header = call_header(COMPOUND, credentials)
        self._parser = RecordParser(largest_answer)
        self._xids = itertools.count(int.from_bytes(os.urandom(3), "big"))
        self._state = threading.Lock()
        self._sending = threading.Lock()
        self._reading = False
        self._pending: dict[int, Call] = {}
        self.broken: TransportError | None = None
        self.last_heard = time.monotonic()
        self.answered = 0.0
        """When the server answered a call here, monotonic."""

    @property
    def load(self) -> int:
        """Return the number of calls without an answer."""
        return len(self._pending)

    def send(self, calls: Sequence[Call], deadline: float) -> None:
        """Send calls together, before `deadline` (monotonic).

        Raises ServerUnavailable if none was sent, NoAnswer if any may have arrived.
        """
        records: list[bytes] = []
        with self._state:
            if self.broken is not None:
                raise ServerUnavailable(str(self.broken))
            idle = not self._pending and not self._reading
            if idle and time.monotonic() - self.last_heard > _IDLE and self._is_closed():
                self.broken = NoAnswer("the server closed the connection")
                raise ServerUnavailable(str(self.broken))
            for call in calls:
                call.xid = next(self._xids) & 0xFFFFFFFF
                call.answer, call.reads = None, False
                self._pending[call.xid] = call
                records.append(call_record(call.xid, self._header, call.compound))
        try:
            with self._sending:
                self._send_all(b"".join(records), deadline)
        except OSError as error:
            raise self._break(NoAnswer(f"the connection broke: {error}")) from error

    def _send_all(self, data: bytes, deadline: float) -> None:
        left: bytes | memoryview = data
        while left:
            try:
                sent = self._stream.send(left)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError("timed out") from None
            else:
                left = memoryview(left)[sent:] if sent < len(left) else b""

    def _is_closed(self) -> bool:
        """Return whether the server closed an idle connection: then a call need not be sent to find out."""
        try:
            return not self._stream.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def wait(self, call: Call, deadline: float) -> Reader:
        """Return the results of a call, before `deadline` (monotonic).

        Raises NoAnswer, NotAnNfsServer, ServerUnavailable.
        """
        while not self._there_or_ours_to_read(call, deadline):
            self._read_until(call, deadline)
        answer = call.answer or b""
        if answer.startswith(USUAL_REPLY, _XID_BYTES):
            return Reader(answer, _XID_BYTES + len(USUAL_REPLY))
        reader = Reader(answer, _XID_BYTES)
        try:
            check_reply_header(reader)
        except MalformedData as error:
            raise self._break(NotAnNfsServer(f"the answer cannot be decoded: {error}")) from error
        except NotAnNfsServer as error:
            raise self._break(error) from None
        return reader

    def _there_or_ours_to_read(self, call: Call, deadline: float) -> bool:
        """Wait until the answer is there (True), or it is the caller's turn to read (False)."""
        while True:
            with self._state:
                if call.answer is not None:
                    return True
                if self.broken is not None:
                    raise type(self.broken)(str(self.broken))
                if call.reads or not self._reading:
                    self._reading = True
                    return False
                gate = call.gate = threading.Lock()
                gate.acquire()
            if not gate.acquire(timeout=max(0.0, deadline - time.monotonic())) and call.answer is None:
                raise self._break(NoAnswer("no answer in time"))

    def _read_until(self, call: Call, deadline: float) -> None:
        """Read for everybody until our own answer is there."""
        failure: TransportError | None = None
        try:
            while call.answer is None:
                try:
                    data = self._stream.recv(_CHUNK)
                except BlockingIOError:
                    if time.monotonic() < deadline:
                        continue
                    raise TimeoutError from None
                if not data:
                    failure = NoAnswer("the server closed the connection")
                    break
                self._deliver(self._parser.feed(data))
        except TimeoutError:
            failure = NoAnswer("no answer in time")
        except OSError as error:
            failure = NoAnswer(f"the connection broke: {error}")
        except MalformedData as error:
            failure = NotAnNfsServer(f"the answer cannot be decoded: {error}")
        finally:
            with self._state:
                self._reading = self._pass_the_reading_on()
        if failure is not None:
            raise self._break(failure)

    def _pass_the_reading_on(self) -> bool:
        """To a thread that waits for its answer; False if there is none."""
        for call in self._pending.values():
            if call.gate is not None:
                call.reads = True
                _open(call)
                return True
        return False

    def _deliver(self, records: list[bytes]) -> None:
        self.last_heard = self.answered = time.monotonic()
        with self._state:
            for record in records:
                call = self._pending.pop(int.from_bytes(record[:4], "big"), None) if len(record) >= 4 else None
                if call is None:
                    raise MalformedData("an answer to a call that was not made")
                call.answer = record
                _open(call)

    def _break(self, error: TransportError) -> TransportError:
        with self._state:
            if self.broken is None:
                self.broken = error
            for call in self._pending.values():
                _open(call)
            self._pending.clear()
        with contextlib.suppress(OSError):
            self._stream.close()
        return error

    def close(self) -> None:
        """Break it; calls without an answer raise NoAnswer."""
        self._break(NoAnswer("the connection was closed"))


def _open(call: Call) -> None:
    """Let the thread go on that waits for a call, if there is one. Under the connection's lock."""
    gate, call.gate = call.gate, None
    if gate is not None:
        gate.release()
