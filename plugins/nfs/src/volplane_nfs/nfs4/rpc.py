"""ONC RPC (RFC 5531): calls with AUTH_SYS credentials, replies, and record marking for TCP."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from volplane_nfs.nfs4.errors import NotAnNfsServer, ServerUnavailable
from volplane_nfs.nfs4.xdr import UINT32, Array, MalformedData, Opaque, Reader, Struct

NFS_PROGRAM: Final = 100003
NFS_VERSION: Final = 4
NULL, COMPOUND = 0, 1
AUTH_NONE, AUTH_SYS = 0, 1
_CALL, _REPLY = 0, 1
USUAL_REPLY: Final = struct.pack(">IIIII", _REPLY, 0, AUTH_NONE, 0, 0)
"""The header of a reply to an accepted call, behind the xid, as servers that check no more than AUTH_SYS send it."""
_LAST_FRAGMENT: Final = 0x80000000
_HEADER: Final = struct.Struct(">I")
_CALL_START: Final = struct.Struct(">II")
"""Header of the record, and xid."""
_AUTH_BODY: Final = Opaque(400)
_AUTH_SYS: Final = Struct(
    "AuthSys",
    ("stamp", UINT32),
    ("machine", Opaque(255)),
    ("uid", UINT32),
    ("gid", UINT32),
    ("groups", Array(UINT32, 16)),
)
_ACCEPT_ERRORS: Final = {
    1: "it does not serve NFS",
    2: "it does not serve NFS version 4",
    3: "it does not know the procedure",
    4: "it could not decode the call",
    5: "it had an internal error",
}


@dataclass(frozen=True, slots=True)
class Credentials:
    """AUTH_SYS: user, group and up to 16 more groups; the server believes them."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    machine: str = ""

    def encode(self) -> bytes:
        body = bytearray()
        _AUTH_SYS.pack(body, (0, self.machine.encode()[:255], self.uid, self.gid, self.groups))
        out = bytearray()
        UINT32.pack(out, AUTH_SYS)
        _AUTH_BODY.pack(out, bytes(body))
        return bytes(out)


def call_header(procedure: int, credentials: bytes) -> bytes:
    """Return what stands between the xid and the arguments. credentials: encoded."""
    head = struct.pack(">IIIII", _CALL, 2, NFS_PROGRAM, NFS_VERSION, procedure)
    return head + credentials + struct.pack(">II", AUTH_NONE, 0)


def call_record(xid: int, header: bytes, arguments: bytes) -> bytes:
    """Return a call as it is sent. header: of `call_header`."""
    size = 4 + len(header) + len(arguments)
    return _CALL_START.pack(_LAST_FRAGMENT | size, xid) + header + arguments


def success_header(xid: int) -> bytes:
    """Return what stands before the results of an accepted call."""
    return struct.pack(">IIIIII", xid, _REPLY, 0, AUTH_NONE, 0, 0)


def check_reply_header(reader: Reader) -> None:
    """Read the rest of a reply's header, behind the xid. Raises NotAnNfsServer, ServerUnavailable, MalformedData."""
    if reader.uint32() != _REPLY:
        raise NotAnNfsServer("the server sent a call where an answer is due")
    if reader.uint32() != 0:
        if reader.uint32() == 0:
            raise NotAnNfsServer("the server does not speak version 2 of ONC RPC")
        raise ServerUnavailable(
            f"the server refuses the credentials of AUTH_SYS (auth_stat {reader.uint32()}): it may want Kerberos or TLS"
        )
    reader.uint32()
    _AUTH_BODY.unpack(reader)
    accepted = reader.uint32()
    if accepted == 5:
        raise ServerUnavailable("the server had an internal error (SYSTEM_ERR)")
    if accepted:
        raise NotAnNfsServer(f"the server refused the call: {_ACCEPT_ERRORS.get(accepted, f'accept_stat {accepted}')}")


def framed(message: bytes) -> bytes:
    """Return a record of one fragment."""
    return _HEADER.pack(_LAST_FRAGMENT | len(message)) + message


class RecordParser:
    """Takes bytes as they come, gives records. maximum: bytes of the largest record; more raises MalformedData before
    they are stored.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._buffer = bytearray()
        self._record = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the records that are complete with this data."""
        if not self._buffer:
            size = len(data) - 4
            if not self._record and 0 <= size <= self._maximum and data[:4] == _HEADER.pack(_LAST_FRAGMENT | size):
                return [data[4:]]  # one whole record, as it nearly always comes
            records, at = self._taken(data)
            self._buffer += data[at:]
            return records
        self._buffer += data
        records, at = self._taken(self._buffer)
        del self._buffer[:at]
        return records

    def _taken(self, buffer: bytes | bytearray) -> tuple[list[bytes], int]:
        """Return the records that are complete, and how many bytes these are."""
        records: list[bytes] = []
        at = 0
        while len(buffer) - at >= 4:
            (header,) = _HEADER.unpack_from(buffer, at)
            size = header & ~_LAST_FRAGMENT
            if len(self._record) + size > self._maximum:
                raise MalformedData(f"a record of {len(self._record) + size} bytes, where {self._maximum} are allowed")
            if len(buffer) - at < 4 + size:
                break
            fragment = buffer[at + 4 : at + 4 + size]
            at += 4 + size
            if not header & _LAST_FRAGMENT:
                if size == 0:
                    raise MalformedData("an empty fragment that is not the last")
                self._record += fragment
            elif self._record:
                records.append(bytes(self._record + fragment))
                self._record.clear()
            else:
                records.append(bytes(fragment))
        return records, at
