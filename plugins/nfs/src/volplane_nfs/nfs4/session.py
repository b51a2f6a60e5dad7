"""A channel to a server: a connection, and on it a session of NFSv4.2 or 4.1, or NFSv4.0 where the server has no more.

A call of a session has a slot and a sequence number. If the connection is lost, it is sent again with both, and the
server either does it or repeats its answer: it is done once. Only a server that was restarted has forgotten; then the
outcome of a call that changes something is unknown, and everything else is simply called again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from volplane_nfs.nfs4.compound import pack_compound, unpack_reply
from volplane_nfs.nfs4.connection import Address, Call, Connection, Dial
from volplane_nfs.nfs4.errors import NfsError, NoAnswer, NotAnNfsServer, OutcomeUnknown, ServerUnavailable
from volplane_nfs.nfs4.operations import (
    CREATE_SESSION,
    DESTROY_CLIENTID,
    DESTROY_SESSION,
    EXCHANGE_ID,
    RECLAIM_COMPLETE,
    SEQUENCE,
    Reply,
    Request,
)
from volplane_nfs.nfs4.slots import LARGEST_CALL, MINIMUM_DATA, MOST_OPERATIONS, SLOTS, Session, Slot
from volplane_nfs.nfs4.status import Status, name_of_status
from volplane_nfs.nfs4.xdr import MalformedData, Reader

LARGEST_ANSWER: Final = (1 << 18) + 4096
"""Bytes of the largest record that is taken from a server."""
_CONNECT_WAIT: Final = 0.5
"""Seconds a caller waits while another one connects: a server that does not answer takes one thread, not all."""
_HEADER_BYTES: Final = 512
"""Of a call's header, at most: credentials have up to 400."""
_OPERATIONS_OF_40: Final = 16
"""In one COMPOUND: servers of 4.0 do not tell how many they take, and Linux before 6.0 took no more."""
_USE_NON_PNFS: Final = 0x00010000
_LOST: Final = frozenset(
    {
        Status.BADSESSION,
        Status.DEADSESSION,
        Status.STALE_CLIENTID,
        Status.CONN_NOT_BOUND_TO_SESSION,
        Status.BADSLOT,
        Status.SEQ_MISORDERED,
        Status.SEQ_FALSE_RETRY,
        Status.EXPIRED,
    }
)
"""Results of SEQUENCE after which the session is replaced. The operations behind it were not done by this call."""


_Channel = tuple[int, int, int, int, int, int, list[int]]


class _Item(Call):
    """A COMPOUND on its way. changes: it may change something. sent: how often it was sent in this session.
    on_the_wire: its requests as they were sent last, with SEQUENCE.
    """

    __slots__ = ("changes", "on_the_wire", "reply", "requests", "sent", "session", "slot")

    def __init__(self, requests: Sequence[Request]) -> None:
        super().__init__()
        self.requests = requests
        self.changes = any(operation.changes for operation, _ in requests)
        self.session: Session | None = None
        self.slot: Slot = (0, 1)
        self.sent = 0
        self.on_the_wire = requests
        self.reply: Reply | None = None


class Channel:
    """One connection at a time to one server; it connects when it is needed, and again when it was lost.

    connecting: held by the thread that connects, of all channels to the server. moves: of `Compounds`.
    """

    def __init__(
        self,
        address: Address,
        credentials: bytes,
        owner: bytes,
        *,
        dial: Dial,
        timeout: float,
        connecting: threading.Lock,
        moves: Callable[[], int] = lambda: 0,
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._owner = owner
        self._dial = dial
        self._timeout = timeout
        self._connecting = connecting
        self._moves = moves
        self._connection: Connection | None = None
        self._session: Session | None = None
        self._minor = 2

    @property
    def minor(self) -> int:
        """Return the minor version in use, the last one tried if there is no connection."""
        return self._minor

    @property
    def operations(self) -> int:
        """Return how many operations a COMPOUND may have, besides SEQUENCE."""
        session = self._session
        return (session.operations if session is not None else MOST_OPERATIONS) - 1

    @property
    def data_bytes(self) -> int:
        """Return how many bytes of a file a COMPOUND may carry, in its call or in its answer."""
        session = self._session
        least = LARGEST_CALL if session is None else min(session.request_bytes, session.response_bytes)
        return max(MINIMUM_DATA, (least - MINIMUM_DATA) & -MINIMUM_DATA)

    @property
    def load(self) -> int:
        connection = self._connection
        return connection.load if connection is not None else 0

    @property
    def last_heard(self) -> float:
        """Return when the server answered here last, monotonic; 0 if it never did."""
        connection = self._connection
        return connection.last_heard if connection is not None else 0.0

    @property
    def answered(self) -> float:
        """Return when the server answered a call here last, monotonic; 0 if it never did."""
        connection = self._connection
        return connection.answered if connection is not None else 0.0

    def run(self, compounds: Sequence[Sequence[Request]], deadline: float) -> list[Reply]:
        """Send them all, as many at once as there are slots, and wait for the answers, in the same order.

        Raises ServerUnavailable (nothing was done), NoAnswer, OutcomeUnknown, NotAnNfsServer.
        """
        waiting = [_Item(requests) for requests in compounds]
        todo, moves = waiting, self._moves()
        started = interrupted = False
        while todo:
            if time.monotonic() >= deadline:
                raise NoAnswer("no answer in time")
            try:
                connection, session = self._ready(deadline)
                if self._moves() != moves:
                    self._drop(todo)
                    raise OutcomeUnknown("another address of the server was turned to")
                part = self._take_slots(todo, session, deadline)
            except ServerUnavailable as error:
                if isinstance(error.__cause__, NoAnswer) and not interrupted:
                    interrupted = True  # the connection broke while the session began
                    continue
                if started and any(item.sent and item.changes for item in todo):
                    raise NoAnswer("the connection was lost, and the server cannot be reached again") from None
                raise
            started = True
            self._round(part, connection, deadline)
            todo = [item for item in todo if item.reply is None]
        return [item.reply for item in waiting if item.reply is not None]

    def close(self) -> None:
        """End the session on the server, if it answers, and close the connection."""
        connection, session = self._connection, self._session
        self._connection = self._session = None
        if connection is None:
            return
        if session is not None and session.minor and connection.broken is None:
            deadline = time.monotonic() + min(1.0, self._timeout)
            with contextlib.suppress(Exception):
                self._plain(connection, [DESTROY_SESSION(session.id)], session.minor, deadline)
                self._plain(connection, [DESTROY_CLIENTID(session.clientid)], session.minor, deadline)
        connection.close()

    def cut(self) -> None:
        """Break the connection; calls without an answer end. The session stays for the next one."""
        connection = self._connection
        if connection is not None:
            connection.close()

    # --- calls --------------------------------------------------------------------------------------------------

    def _round(self, items: list[_Item], connection: Connection, deadline: float) -> None:
        """Send each once and wait for the answers. Items without a reply afterwards shall be sent again."""
        try:
            self._send(items, connection, deadline)
            for item in items:
                self._take_answer(item, connection.wait(item, deadline), connection, deadline)
        except (NoAnswer, ServerUnavailable):
            # A session is kept over connections, so that calls can be repeated. Time that is up ends that.
            if time.monotonic() >= deadline:
                self._drop(items)
                raise
            for item in items:
                if item.reply is None and item.session is not None and item.session.minor == 0:
                    self._release(item, item.session)
                    self._again(item, unknown=item.sent > 0)
        except BaseException:
            self._drop(items)
            raise

    def _send(self, items: list[_Item], connection: Connection, deadline: float) -> None:
        for item in items:
            self._pack(item)
            item.sent += 1
        try:
            connection.send(items, deadline)
        except ServerUnavailable:
            for item in items:
                item.sent -= 1  # the connection was known to be lost: nothing was sent
            raise

    def _pack(self, item: _Item) -> None:
        session = item.session
        if session is None or session.minor == 0:
            item.on_the_wire = item.requests
            item.compound = pack_compound(item.requests, 0)
            return
        slot, sequence = item.slot
        first = SEQUENCE(session.id, sequence, slot, session.highest, item.changes)
        item.on_the_wire = [first, *item.requests]
        item.compound = pack_compound(item.on_the_wire, session.minor)
        if len(item.compound) + _HEADER_BYTES > session.request_bytes:
            raise NfsError(Status.REQ_TOO_BIG, "SEQUENCE", 0)

    def _take_answer(self, item: _Item, answer: Reader, connection: Connection, deadline: float) -> None:
        session = item.session
        if session is None:
            return
        try:
            reply = unpack_reply(answer, item.on_the_wire)
        except MalformedData as error:
            connection.close()
            raise NotAnNfsServer(f"the answer cannot be decoded: {error}") from error
        if session.minor:
            if not reply.results or reply.results[0].status:
                status = reply.results[0].status if reply.results else reply.status
                self._sequence_failed(item, session, status, deadline)
                return
            reply = Reply(reply.status, reply.results[1:])
        self._release(item, session)
        item.reply = reply

    def _sequence_failed(self, item: _Item, session: Session, status: int, deadline: float) -> None:
        if status == Status.RETRY_UNCACHED_REP:
            self._release(item, session)  # done, without its answer kept: it changes nothing, so it is called again
            item.session = None
        elif status == Status.DELAY:
            time.sleep(min(0.02, max(0.0, deadline - time.monotonic())))
        elif status in _LOST:
            session.lose()
            self._again(item, unknown=item.sent > 1)
        else:
            self._release(item, session)
            raise NfsError(status, "SEQUENCE", 0)

    def _again(self, item: _Item, *, unknown: bool) -> None:
        """Call it again, in another session. unknown: it may have been done already."""
        item.session = None
        if unknown and item.changes:
            raise OutcomeUnknown("the server has forgotten the session, and with it the call")
        item.sent = 0

    # --- slots --------------------------------------------------------------------------------------------------

    def _take_slots(self, items: list[_Item], session: Session, deadline: float) -> list[_Item]:
        """Return those that have a slot of the session, or get one: at least one item, waiting for it if need be."""
        taken: list[_Item] = []
        for item in items:
            if item.session is session:
                taken.append(item)
            elif item.session is not None:
                self._again(item, unknown=item.sent > 0)
        for item in items:
            if item.session is None:
                slot = session.take_slot(0.0 if taken else max(0.0, deadline - time.monotonic()))
                if slot is None:
                    if not taken and not session.lost:
                        raise ServerUnavailable("all slots of the session are taken by calls without an answer")
                    break
                item.slot, item.session = slot, session
                taken.append(item)
        return taken

    def _release(self, item: _Item, session: Session) -> None:
        slot, sequence = item.slot
        session.free.put((slot, (sequence + 1) & 0xFFFFFFFF))

    def _drop(self, items: list[_Item]) -> None:
        """Give the session up: the state of some of its slots is not known."""
        for item in items:
            if item.reply is None and item.session is not None and item.session.minor:
                item.session.lose()
            elif item.reply is None and item.session is not None:
                item.session.free.put(item.slot)

    # --- connecting ---------------------------------------------------------------------------------------------

    def _ready(self, deadline: float) -> tuple[Connection, Session]:
        """Return a connection that is not broken and a session that is not lost."""
        connection, session = self._connection, self._session
        if connection is not None and connection.broken is None and session is not None and not session.lost:
            return connection, session
        if not self._connecting.acquire(timeout=min(_CONNECT_WAIT, max(0.0, deadline - time.monotonic()))):
            raise ServerUnavailable("it is being connected to and does not answer")
        try:
            connection, session = self._connection, self._session
            if connection is None or connection.broken is not None:
                connection = self._connected(deadline)
                self._connection = connection
            if session is None or session.lost or session.minor == 0:
                session = self._begun(connection, session, deadline)
                self._session = session
        finally:
            self._connecting.release()
        return connection, session

    def _connected(self, deadline: float) -> Connection:
        try:
            stream = self._dial(self._address, max(0.001, deadline - time.monotonic()))
        except OSError as error:
            raise ServerUnavailable(f"cannot connect: {error.strerror or error}") from error
        return Connection(stream, self._credentials, LARGEST_ANSWER)

    def _begun(self, connection: Connection, old: Session | None, deadline: float) -> Session:
        """Return a new session. Its new verifier lets the server forget the one before."""
        try:
            while self._minor:
                session = self._session_of_41(connection, deadline)
                if session is not None:
                    return session
                self._minor -= 1
        except NoAnswer as error:
            raise ServerUnavailable(str(error)) from error
        if old is not None and old.minor == 0:
            return old
        session = Session(minor=0, operations=_OPERATIONS_OF_40 + 1)
        session.add_slots(range(SLOTS), 0)
        return session

    def _session_of_41(self, connection: Connection, deadline: float) -> Session | None:
        """Return a session of the version that is tried; None = the server does not speak it."""
        exchange = EXCHANGE_ID((os.urandom(8), self._owner), _USE_NON_PNFS, (0, None), [])
        status, exchanged = self._plain(connection, [exchange], self._minor, deadline)
        if status == Status.MINOR_VERS_MISMATCH:
            return None
        self._check(status, "EXCHANGE_ID")
        channel: _Channel = (0, LARGEST_CALL, LARGEST_CALL, 8192, MOST_OPERATIONS, SLOTS, [])
        back: _Channel = (0, 4096, 4096, 0, 2, 1, [])
        create = CREATE_SESSION(exchanged.clientid, exchanged.sequence, 0, channel, back, 0, [(0, None)])
        status, made = self._plain(connection, [create], self._minor, deadline)
        self._check(status, "CREATE_SESSION")
        slots = max(1, min(SLOTS, made.fore.slots))
        session = Session(
            minor=self._minor,
            id=made.id,
            clientid=exchanged.clientid,
            operations=max(8, min(MOST_OPERATIONS, made.fore.operations)),
            request_bytes=min(LARGEST_CALL, made.fore.request_bytes),
            response_bytes=min(LARGEST_CALL, made.fore.response_bytes),
            highest=slots - 1,
        )
        session.add_slots(range(1, slots), 1)
        first = [SEQUENCE(session.id, 1, 0, session.highest, True), RECLAIM_COMPLETE(False)]
        self._plain(connection, first, self._minor, deadline)
        session.add_slots(range(1), 2)
        return session

    def _plain(self, connection: Connection, requests: list[Request], minor: int, deadline: float) -> tuple[int, Any]:
        """Return a call outside of any session: its status and the value of its last result."""
        call = Call()
        call.compound = pack_compound(requests, minor)
        connection.send([call], deadline)
        try:
            reply = unpack_reply(connection.wait(call, deadline), requests)
        except MalformedData as error:
            connection.close()
            raise NotAnNfsServer(f"the answer cannot be decoded: {error}") from error
        return reply.status, reply.results[-1].value if reply.results else None

    def _check(self, status: int, operation: str) -> None:
        if status:
            raise ServerUnavailable(f"{operation} is refused with {name_of_status(status)}")
