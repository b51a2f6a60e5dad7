"""The server of the model: connections, calls, sessions and faults."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from volplane_nfs.nfs4.compound import pack_reply, unpack_compound
from volplane_nfs.nfs4.connection import Address, Stream
from volplane_nfs.nfs4.operations import SEQUENCE, Reply, Request, Result
from volplane_nfs.nfs4.rpc import RecordParser, framed, success_header
from volplane_nfs.nfs4.status import Status
from volplane_nfs.nfs4.xdr import MalformedData, Reader
from volplane_nfs.testing.model.execution import Execution, failed
from volplane_nfs.testing.model.state import SLOTS, State

LARGEST_CALL: Final = 1 << 20

Fault = Callable[[list[Request]], Status | str | None]
"""Asked about every COMPOUND: a status with which its first operation (in 4.1: SEQUENCE) fails, "lost before" or
"lost after" to cut the connection before or after it is done, "silent" to never answer; None = no fault."""


class ModelServer(State):
    """A server with one share, `/vol`. now: the clock of file times, seconds. minor: the highest version it speaks."""

    def __init__(self, *, minor: int = 2, now: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(now)
        self.minor = minor
        self.fault: Fault = lambda _requests: None
        self.reachable = True
        self.calls = 0
        self._lock = threading.RLock()
        self._streams: list[_ModelStream] = []

    # --- the outside ----------------------------------------------------------------------------------------------

    def dial(self, address: Address, seconds: float) -> Stream:
        """Return a connection in process."""
        if not self.reachable:
            raise ConnectionRefusedError(111, "Connection refused")
        stream = _ModelStream(self)
        self._streams.append(stream)
        return stream

    def restart(self) -> None:
        """Forget sessions, open files and what was not committed, cut connections; files stay."""
        with self._lock:
            self.sessions.clear()
            self.lose()
            for stream in self._streams:
                stream.cut = True
            self._streams.clear()

    @contextmanager
    def serve(self) -> Iterator[int]:
        """Serve on a TCP port of loopback while the block runs; which port."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=self._accept, args=(listener,), daemon=True)
            thread.start()
            yield listener.getsockname()[1]
            listener.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        parser = RecordParser(LARGEST_CALL)
        with connection, suppress(OSError, MalformedData):
            while data := connection.recv(1 << 16):
                for record in parser.feed(data):
                    answer = self.answer(record)
                    if answer is None:
                        return
                    if answer:
                        connection.sendall(framed(answer))

    # --- calls ----------------------------------------------------------------------------------------------------

    def answer(self, record: bytes) -> bytes | None:
        """Return the reply to a call; None = the connection is cut, empty = there is no answer."""
        if len(record) > self.largest_call:
            return None  # as a small Linux server
        reader = Reader(record)
        xid = reader.uint32()
        for _ in range(4):
            reader.uint32()
        procedure = reader.uint32()
        for _ in range(2):
            reader.uint32()
            reader.opaque(400)
        if procedure == 0:
            return success_header(xid)
        with self._lock:
            self.calls += 1
            minor, requests = unpack_compound(reader)
            fault = self.fault(requests)
            if fault == "silent":
                return b""
            if fault == "lost before":
                return None
            if isinstance(fault, Status):
                body = pack_reply(Reply(fault, [failed(requests[0].operation, fault)]))
            else:
                body = self._compound(minor, requests)
            return None if fault == "lost after" else success_header(xid) + body

    def _compound(self, minor: int, requests: list[Request]) -> bytes:
        if len(requests) > self.operations:
            status = Status.TOO_MANY_OPS if minor else Status.RESOURCE
            return pack_reply(Reply(status, [failed(requests[0].operation, status)]))
        if minor > self.minor:
            return pack_reply(Reply(Status.MINOR_VERS_MISMATCH, []))
        if minor and requests[0].operation is SEQUENCE:
            return self._sequenced(requests, minor)
        return pack_reply(Execution(self, minor).run(requests))

    def _sequenced(self, requests: list[Request], minor: int) -> bytes:
        session, sequence, slot, _, _ = requests[0].arguments
        slots = self.sessions.get(session)
        if slots is None:
            return pack_reply(Reply(Status.BADSESSION, [failed(SEQUENCE, Status.BADSESSION)]))
        last, kept = slots.get(slot, (0, b""))
        if sequence == last:
            return kept
        if sequence != last + 1:
            return pack_reply(Reply(Status.SEQ_MISORDERED, [failed(SEQUENCE, Status.SEQ_MISORDERED)]))
        reply = Execution(self, minor).run(requests[1:])
        head = Result(SEQUENCE, 0, (session, sequence, slot, SLOTS - 1, SLOTS - 1, 0))
        body = pack_reply(Reply(reply.status, [head, *reply.results]))
        slots[slot] = (sequence, body)
        return body


class _ModelStream:
    """The client's end of a connection in process: sending computes the answer, receiving takes it."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._parser = RecordParser(LARGEST_CALL)
        self._answers = bytearray()
        self.cut = False

    def send(self, data: bytes | memoryview) -> int:
        if self.cut:
            raise BrokenPipeError(32, "Broken pipe")
        for record in self._parser.feed(bytes(data)):
            answer = None if self.cut or not self._server.reachable else self._server.answer(record)
            if answer is None:
                self.cut = True
                break
            if answer:
                self._answers += framed(answer)
        return len(data)

    def recv(self, size: int, flags: int = 0) -> bytes:
        if flags and not self._answers and not self.cut:
            raise BlockingIOError
        if not self._answers:
            if self.cut:
                return b""
            raise TimeoutError("timed out")
        data = bytes(self._answers[:size])
        if not flags:
            del self._answers[:size]
        return data

    def close(self) -> None:
        self.cut = True
