"""A model of an NFSv4 server, in memory: what a real one does with the operations of the client, as far as tests need.

It speaks bytes: the client connects to it through `ModelServer.dial`, in process, or over TCP (`serve`). Its answers to
random sequences of operations are compared with those of NFS-Ganesha in tests/test_model.py.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from volplane_nfs.nfs4 import operations as nfs
from volplane_nfs.nfs4.attributes import (
    CHANGE,
    DIRECTORY,
    FILEHANDLE,
    FILEID,
    FSID,
    LINK,
    MODE,
    NUMLINKS,
    OWNER,
    OWNER_GROUP,
    RDATTR_ERROR,
    REGULAR,
    SIZE,
    SPACE_AVAIL,
    SPACE_TOTAL,
    TIME_METADATA,
    TYPE,
    mask_of,
)
from volplane_nfs.nfs4.connection import Address, Stream
from volplane_nfs.nfs4.operations import Entry, Operation, Reply, Request, Result
from volplane_nfs.nfs4.rpc import RecordParser, framed, success_header
from volplane_nfs.nfs4.status import Status
from volplane_nfs.nfs4.xdr import MalformedData, Reader

__all__ = ["Fault", "ModelServer", "Node"]

LARGEST_CALL: Final = 1 << 20
_NAME_BYTES: Final = 255
_SPACE: Final = 1 << 40
_SLOTS: Final = 16

Fault = Callable[[list[Request]], Status | str | None]
"""Asked about every COMPOUND: a status with which its first operation (in 4.1: SEQUENCE) fails, "lost before" or
"lost after" to cut the connection before or after it is done, "silent" to never answer; None = no fault."""


class Refused(Exception):
    """An operation failed."""

    def __init__(self, status: int) -> None:
        self.status = status


@dataclass(eq=False, slots=True)
class Node:
    """A directory (children), a symbolic link (target) or a file (data)."""

    kind: int
    fileid: int
    mode: int = 0o755
    owner: bytes = b"0"
    group: bytes = b"0"
    children: dict[bytes, Node] = field(default_factory=dict)
    data: bytes = b""
    parent: Node | None = None
    change: int = 1
    cookies: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    time: float = 0.0


class ModelServer:
    """A server with one share, `/vol`. now: the clock of file times, seconds. minor: the highest version it speaks."""

    def __init__(self, *, minor: int = 1, now: Callable[[], float] = lambda: 0.0) -> None:
        self.minor = minor
        self.now = now
        self.fault: Fault = lambda _requests: None
        self.reachable = True
        self.available = _SPACE
        self.calls = 0
        self.ids = itertools.count(2)
        self._cookies = itertools.count(3)
        self.sessions: dict[bytes, dict[int, tuple[int, bytes]]] = {}
        self.nodes: dict[int, Node] = {}
        self._lock = threading.RLock()
        self._streams: list[_ModelStream] = []
        self.root = self.make(DIRECTORY, None)
        self.share = self.make(DIRECTORY, self.root)
        self.enter(self.root, b"vol", self.share)

    # --- the outside ----------------------------------------------------------------------------------------------

    def dial(self, address: Address, seconds: float) -> Stream:
        """A connection in process."""
        if not self.reachable:
            raise ConnectionRefusedError(111, "Connection refused")
        stream = _ModelStream(self)
        self._streams.append(stream)
        return stream

    def restart(self) -> None:
        """Forget sessions, cut connections; files stay."""
        with self._lock:
            self.sessions.clear()
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
        """The reply to a call; None = the connection is cut, empty = there is no answer."""
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
            minor, requests = nfs.unpack_compound(reader)
            fault = self.fault(requests)
            if fault == "silent":
                return b""
            if fault == "lost before":
                return None
            if isinstance(fault, Status):
                body = nfs.pack_reply(Reply(fault, [_failed(requests[0].operation, fault)]))
            else:
                body = self._compound(minor, requests)
            return None if fault == "lost after" else success_header(xid) + body

    def _compound(self, minor: int, requests: list[Request]) -> bytes:
        if minor > self.minor:
            return nfs.pack_reply(Reply(Status.MINOR_VERS_MISMATCH, []))
        if minor == 1 and requests[0].operation is nfs.SEQUENCE:
            return self._sequenced(requests)
        return nfs.pack_reply(_Execution(self, minor).run(requests))

    def _sequenced(self, requests: list[Request]) -> bytes:
        session, sequence, slot, _, _ = requests[0].arguments
        slots = self.sessions.get(session)
        if slots is None:
            return nfs.pack_reply(Reply(Status.BADSESSION, [_failed(nfs.SEQUENCE, Status.BADSESSION)]))
        last, kept = slots.get(slot, (0, b""))
        if sequence == last:
            return kept
        if sequence != last + 1:
            return nfs.pack_reply(Reply(Status.SEQ_MISORDERED, [_failed(nfs.SEQUENCE, Status.SEQ_MISORDERED)]))
        reply = _Execution(self, 1).run(requests[1:])
        head = Result(nfs.SEQUENCE, 0, (session, sequence, slot, _SLOTS - 1, _SLOTS - 1, 0))
        body = nfs.pack_reply(Reply(reply.status, [head, *reply.results]))
        slots[slot] = (sequence, body)
        return body

    # --- the tree -------------------------------------------------------------------------------------------------

    def make(self, kind: int, parent: Node | None, **fields: Any) -> Node:
        node = Node(kind, next(self.ids), parent=parent, time=self.now(), **fields)
        self.nodes[node.fileid] = node
        return node

    def enter(self, directory: Node, name: bytes, node: Node) -> tuple[bool, int, int]:
        before = directory.change
        directory.children[name] = node
        directory.cookies[next(self._cookies)] = name
        node.parent = directory
        directory.change += 1
        return True, before, directory.change

    def leave(self, directory: Node, name: bytes) -> tuple[bool, int, int]:
        before = directory.change
        del directory.children[name]
        for cookie, known in list(directory.cookies.items()):
            if known == name:
                del directory.cookies[cookie]
        directory.change += 1
        return True, before, directory.change

    def session(self, session: bytes) -> None:
        self.sessions[session] = {}


def _failed(operation: Operation, status: int) -> Result:
    return Result(operation, status, 0 if operation is nfs.SETATTR else None)


class _Execution:
    """One COMPOUND."""

    def __init__(self, server: ModelServer, minor: int) -> None:
        self._server = server
        self._minor = minor
        self._current: Node | None = None
        self._saved: Node | None = None

    def run(self, requests: Sequence[Request]) -> Reply:
        results: list[Result] = []
        for operation, arguments in requests:
            try:
                value = self._method(operation)(*arguments)
            except Refused as refused:
                results.append(_failed(operation, refused.status))
                return Reply(refused.status, results)
            results.append(Result(operation, 0, value))
        return Reply(0, results)

    def _method(self, operation: Operation) -> Callable[..., Any]:
        if operation.minor > self._minor:
            raise Refused(Status.OP_ILLEGAL)
        method: Callable[..., Any] = getattr(self, f"_{operation.name.lower()}")
        return method

    def _here(self) -> Node:
        if self._current is None:
            raise Refused(Status.NOFILEHANDLE)
        if self._current.fileid not in self._server.nodes:
            raise Refused(Status.STALE)
        return self._current

    def _directory(self) -> Node:
        here = self._here()
        if here.kind == LINK:
            raise Refused(Status.SYMLINK)
        if here.kind != DIRECTORY:
            raise Refused(Status.NOTDIR)
        return here

    def _named(self, name: bytes) -> bytes:
        if not name:
            raise Refused(Status.INVAL)
        if len(name) > _NAME_BYTES:
            raise Refused(Status.NAMETOOLONG)
        if name in (b".", b".."):
            raise Refused(Status.BADNAME)
        if b"/" in name or b"\0" in name:
            raise Refused(Status.BADCHAR)
        return name

    def _child(self, name: bytes) -> Node:
        directory = self._directory()
        child = directory.children.get(self._named(name))
        if child is None:
            raise Refused(Status.NOENT)
        return child

    # --- operations -----------------------------------------------------------------------------------------------

    def _putrootfh(self) -> None:
        self._current = self._server.root

    def _putfh(self, handle: bytes) -> None:
        if len(handle) != 8:
            raise Refused(Status.BADHANDLE)
        node = self._server.nodes.get(int.from_bytes(handle, "big"))
        if node is None:
            raise Refused(Status.STALE)
        self._current = node

    def _savefh(self) -> None:
        self._saved = self._here()

    def _getfh(self) -> bytes:
        return self._here().fileid.to_bytes(8, "big")

    def _lookup(self, name: bytes) -> None:
        self._current = self._child(name)

    def _getattr(self, mask: int) -> dict[int, Any]:
        return self._attributes(self._here(), mask)

    def _attributes(self, node: Node, mask: int) -> dict[int, Any]:
        values = {
            TYPE: node.kind,
            CHANGE: node.change,
            SIZE: len(node.data),
            FSID: (1, 1),
            RDATTR_ERROR: 0,
            FILEHANDLE: node.fileid.to_bytes(8, "big"),
            FILEID: node.fileid,
            MODE: node.mode,
            NUMLINKS: 2 + sum(child.kind == DIRECTORY for child in node.children.values()),
            OWNER: node.owner,
            OWNER_GROUP: node.group,
            SPACE_AVAIL: self._server.available,
            SPACE_TOTAL: _SPACE,
            TIME_METADATA: (int(node.time), int(node.time % 1 * 1e9)),
        }
        return {number: value for number, value in values.items() if mask >> number & 1}

    def _verify(self, attributes: dict[int, Any]) -> None:
        if self._attributes(self._here(), mask_of(*attributes)) != attributes:
            raise Refused(Status.NOT_SAME)

    def _setattr(self, stateid: object, attributes: dict[int, Any]) -> int:
        node = self._here()
        node.mode = attributes.get(MODE, node.mode)
        node.owner = attributes.get(OWNER, node.owner)
        node.group = attributes.get(OWNER_GROUP, node.group)
        node.change += 1
        return mask_of(*attributes)

    def _create(self, kind: tuple[int, Any], name: bytes, attributes: dict[int, Any]) -> object:
        directory = self._directory()
        if self._named(name) in directory.children:
            raise Refused(Status.EXIST)
        if not self._server.available:
            raise Refused(Status.NOSPC)
        mode = attributes.get(MODE, 0o700) & (0o1777 if kind[0] == DIRECTORY else 0o777)
        data = kind[1] if kind[0] == LINK else b""
        node = self._server.make(kind[0], directory, mode=mode, data=data)
        change = self._server.enter(directory, name, node)
        self._current = node
        return change, mask_of(*attributes)

    def _readlink(self) -> bytes:
        here = self._here()
        if here.kind != LINK:
            raise Refused(Status.INVAL)
        return here.data

    def _remove(self, name: bytes) -> object:
        directory, child = self._directory(), self._child(name)
        if child.children:
            raise Refused(Status.NOTEMPTY)
        change = self._server.leave(directory, name)
        del self._server.nodes[child.fileid]
        return change

    def _rename(self, old: bytes, new: bytes) -> object:
        target, source = self._directory(), self._saved
        if source is None:
            raise Refused(Status.NOFILEHANDLE)
        if source.kind != DIRECTORY:
            raise Refused(Status.NOTDIR)
        self._named(old)
        self._named(new)
        moved = source.children.get(old)
        if moved is None:
            raise Refused(Status.NOENT)
        above: Node | None = target
        while above is not None:
            if above is moved:
                raise Refused(Status.INVAL)
            above = above.parent
        present = target.children.get(new)
        unchanged = ((True, source.change, source.change), (True, target.change, target.change))
        if present is moved:
            return unchanged
        if present is not None:
            if (present.kind == DIRECTORY) != (moved.kind == DIRECTORY):
                raise Refused(Status.EXIST)
            if present.children:
                raise Refused(Status.NOTEMPTY)
            self._server.leave(target, new)
            del self._server.nodes[present.fileid]
        left = self._server.leave(source, old)
        return left, self._server.enter(target, new, moved)

    def _readdir(self, cookie: int, verifier: bytes, name_bytes: int, maximum: int, mask: int) -> object:
        directory = self._directory()
        found: list[Entry] = []
        size, eof = 16, True
        for position, name in directory.cookies.items():
            if position <= cookie:
                continue
            size += 40 + len(name) + 24 * mask.bit_count()
            if size > maximum and found:
                eof = False
                break
            found.append(Entry(position, name, self._attributes(directory.children[name], mask)))
        return bytes(8), found, eof

    def _open(self, *arguments: Any) -> object:
        how, claim = arguments[-2:]
        directory, name = self._directory(), self._named(claim[1])
        node = directory.children.get(name)
        if node is None:
            if not how[0]:
                raise Refused(Status.NOENT)
            node = self._server.make(REGULAR, directory, mode=how[1][1].get(MODE, 0o600))
            self._server.enter(directory, name, node)
        elif node.kind != REGULAR:
            raise Refused(Status.ISDIR if node.kind == DIRECTORY else Status.SYMLINK)
        self._current = node
        confirm = 2 if self._minor == 0 else 0
        return (1, node.fileid.to_bytes(12, "big")), (True, 0, 0), confirm, 0, (0, None)

    def _open_confirm(self, stateid: Any, seqid: int) -> object:
        return stateid

    def _write(self, stateid: Any, offset: int, stable: int, data: bytes) -> object:
        node = self._here()
        if self._server.available < len(data):
            raise Refused(Status.NOSPC)
        node.data = node.data[:offset].ljust(offset, b"\0") + data + node.data[offset + len(data) :]
        return len(data), stable, bytes(8)

    def _read(self, stateid: Any, offset: int, count: int) -> object:
        node = self._here()
        if node.kind != REGULAR:
            raise Refused(Status.ISDIR if node.kind == DIRECTORY else Status.INVAL)
        return offset + count >= len(node.data), node.data[offset : offset + count]

    def _close(self, seqid: int, stateid: Any) -> object:
        return stateid

    def _setclientid(self, client: Any, callback: Any, ident: int) -> object:
        return 1, bytes(8)

    def _setclientid_confirm(self, clientid: int, verifier: bytes) -> None:
        return None

    def _exchange_id(self, client: Any, flags: int, protection: Any, implementation: Any) -> object:
        return next(self._server.ids), 1, 0, (0, None), (1, b"model"), b"model", []

    def _create_session(self, clientid: int, sequence: int, flags: int, fore: Any, back: Any, *_: Any) -> object:
        session = next(self._server.ids).to_bytes(16, "big")
        self._server.session(session)
        limits: tuple[int, int, int, int, int, int, list[int]] = (0, 1 << 18, 1 << 18, 8192, 64, _SLOTS, [])
        return session, sequence, 0, limits, back

    def _destroy_session(self, session: bytes) -> None:
        self._server.sessions.pop(session, None)

    def _destroy_clientid(self, clientid: int) -> None:
        return None

    def _reclaim_complete(self, one: bool) -> None:
        return None


class _ModelStream:
    """The client's end of a connection in process: sending computes the answer, receiving takes it."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._parser = RecordParser(LARGEST_CALL)
        self._answers = bytearray()
        self.cut = False

    def settimeout(self, seconds: float | None) -> None:
        """Nothing is waited for."""

    def sendall(self, data: bytes) -> None:
        if self.cut:
            raise BrokenPipeError(32, "Broken pipe")
        for record in self._parser.feed(data):
            answer = None if self.cut or not self._server.reachable else self._server.answer(record)
            if answer is None:
                self.cut = True
                return
            if answer:
                self._answers += framed(answer)

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
