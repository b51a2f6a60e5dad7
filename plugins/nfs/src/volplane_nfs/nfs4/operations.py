"""The operations of NFSv4.0 to 4.2 that this client speaks: one table, from which both directions are coded.

`LOOKUP(b"name")` is a request; a list of them is a COMPOUND. Source: RFC 7530 section 16, RFC 8881 section 18, RFC 7862
section 15.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from volplane_nfs.nfs4.attributes import ACE, FATTR, FILEHANDLE_BYTES
from volplane_nfs.nfs4.status import Status, name_of_status
from volplane_nfs.nfs4.xdr import (
    BITMAP,
    BOOL,
    INT64,
    UINT32,
    UINT64,
    VOID,
    Array,
    Codec,
    Fixed,
    MalformedData,
    Opaque,
    Reader,
    Struct,
    Union,
)

MAXIMUM_NAME: Final = 1024
"""Bytes of a name that are sent or taken. A server that allows fewer says NAMETOOLONG."""
MAXIMUM_LINK: Final = 4096
MAXIMUM_DATA: Final = 1 << 20
_MAXIMUM_ENTRIES: Final = 1 << 16


class Request(NamedTuple):
    """An operation with its arguments."""

    operation: Operation
    arguments: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"{self.operation.name}{self.arguments!r}"


class Result(NamedTuple):
    """What a server answered to one operation."""

    operation: Operation
    status: int
    value: Any
    """None after an error, or if there is none."""

    def __repr__(self) -> str:
        return f"{self.operation.name}: {name_of_status(self.status)} {self.value!r}"


_request: Callable[[tuple[Operation, tuple[Any, ...]]], Request] = partial(tuple.__new__, Request)
result_of: Callable[[tuple[Operation, int, Any]], Result] = partial(tuple.__new__, Result)
"""A result of its three parts. Faster than `Result`, which is a function of Python around this one."""


class Reply(NamedTuple):
    """The answer to a COMPOUND: the results of all operations up to the first that failed."""

    status: int
    results: list[Result]


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """number: on the wire. minor: the first minor version that has it. changes: it may change something on the server.

    errors: status -> type of what comes with that error; others come with `failure`. repeats: it is sent with the same
    arguments again and again, so that their encoding is kept.
    """

    number: int
    name: str
    arguments: Struct
    result: Codec
    minor: int = 0
    changes: bool = False
    errors: tuple[tuple[int, Codec], ...] = ()
    failure: Codec = VOID
    repeats: bool = False
    count: int = field(init=False, repr=False)
    """How many arguments it takes."""
    encode: Callable[[tuple[Any, ...]], bytes | bytearray] = field(init=False, repr=False)
    """From its arguments to the bytes that are sent, its number first. Raises MalformedData."""
    success: bytes = field(init=False, repr=False)
    """What stands before the value of a result without error: its number and status 0."""
    done: Result | None = field(init=False, repr=False)
    """The result of its success if that has no value, else None."""

    def __post_init__(self) -> None:
        code = self.number.to_bytes(4, "big")
        encode = self.arguments.encoder(code)
        object.__setattr__(self, "count", len(self.arguments.fields))
        object.__setattr__(self, "encode", lru_cache(maxsize=1024)(encode) if self.repeats else encode)
        object.__setattr__(self, "success", code + bytes(4))
        object.__setattr__(self, "done", Result(self, 0, None) if self.result is _NONE else None)

    def __call__(self, *arguments: Any) -> Request:
        if len(arguments) != self.count:
            raise TypeError(f"{self.name} takes {self.count} arguments, not {len(arguments)}")
        return _request((self, arguments))

    def arm(self, status: int) -> Codec:
        """Return the type of what comes with a status."""
        return dict(self.errors).get(status, self.failure) if status else self.result

    def unpack_arguments(self, reader: Reader) -> tuple[Any, ...]:
        return tuple(codec.unpack(reader) for _, codec in self.arguments.fields)


class Entry(NamedTuple):
    """One entry of a directory."""

    cookie: int
    name: bytes
    attributes: dict[int, Any]


class _Entries:
    """The linked list of entries in the result of READDIR."""

    def pack(self, out: bytearray, value: Sequence[Entry]) -> None:
        for entry in value:
            BOOL.pack(out, True)
            UINT64.pack(out, entry[0])
            _COMPONENT.pack(out, entry[1])
            FATTR.pack(out, entry[2])
        BOOL.pack(out, False)

    def unpack(self, reader: Reader) -> list[Entry]:
        entries: list[Entry] = []
        while BOOL.unpack(reader):
            if len(entries) == _MAXIMUM_ENTRIES:
                raise MalformedData(f"more than {_MAXIMUM_ENTRIES} entries in one page")
            entries.append(Entry(reader.uint64(), reader.opaque(MAXIMUM_NAME), FATTR.unpack(reader)))
        return entries


_COMPONENT: Final = Opaque(MAXIMUM_NAME)
_HANDLE: Final = Opaque(FILEHANDLE_BYTES)
_VERIFIER: Final = Fixed(8)
_SESSION: Final = Fixed(16)
_SMALL: Final = Opaque(1024)
_XATTR: Final = Opaque(1 << 16)
_NONE: Final = Struct("Nothing")
_STATEID: Final = Struct("StateId", ("seqid", UINT32), ("other", Fixed(12)))
_CHANGE: Final = Struct("ChangeInfo", ("atomic", BOOL), ("before", UINT64), ("after", UINT64))
_DEVICE: Final = Struct("Device", ("major", UINT32), ("minor", UINT32))
_CREATE_TYPE: Final = Union({3: _DEVICE, 4: _DEVICE, 5: Opaque(MAXIMUM_LINK), 2: VOID, 6: VOID, 7: VOID})
_OPEN_OWNER: Final = Struct("OpenOwner", ("clientid", UINT64), ("owner", _SMALL))
_CREATE_HOW: Final = Union(
    {0: FATTR, 1: FATTR, 2: _VERIFIER, 3: Struct("Exclusive", ("verifier", _VERIFIER), ("attributes", FATTR))}
)
_SPACE_LIMIT: Final = Union({1: UINT64, 2: Struct("Blocks", ("count", UINT32), ("size", UINT32))})
_DELEGATION: Final = Union(
    {
        0: VOID,
        1: Struct("Read", ("stateid", _STATEID), ("recall", BOOL), ("permissions", ACE)),
        2: Struct("Write", ("stateid", _STATEID), ("recall", BOOL), ("limit", _SPACE_LIMIT), ("permissions", ACE)),
        3: Union({1: BOOL, 2: BOOL}, VOID),
    }
)
_TIME: Final = Struct("Time", ("seconds", INT64), ("nanoseconds", UINT32))
_IMPLEMENTATION: Final = Array(Struct("Implementation", ("domain", _SMALL), ("name", _SMALL), ("date", _TIME)), 1)
_CHANNEL: Final = Struct(
    "Channel",
    ("padding", UINT32),
    ("request_bytes", UINT32),
    ("response_bytes", UINT32),
    ("cached_bytes", UINT32),
    ("operations", UINT32),
    ("slots", UINT32),
    ("rdma", Array(UINT32, 1)),
)
_CALLBACK_SECURITY: Final = Array(Union({0: VOID}), 4)
_ADDRESS: Final = Struct("Address", ("network", _SMALL), ("address", _SMALL))
_SP4_NONE: Final = Union({0: VOID})

_TABLE: list[Operation] = []


def _operation(number: int, name: str, *arguments: tuple[str, Codec], result: Codec = _NONE, **more: Any) -> Operation:
    operation = Operation(number, name, Struct(name.title().replace("_", ""), *arguments), result, **more)
    _TABLE.append(operation)
    return operation


CLOSE = _operation(4, "CLOSE", ("seqid", UINT32), ("stateid", _STATEID), result=_STATEID, changes=True)
COMMIT = _operation(5, "COMMIT", ("offset", UINT64), ("count", UINT32), result=_VERIFIER, changes=True)
CREATE = _operation(
    6,
    "CREATE",
    ("type", _CREATE_TYPE),
    ("name", _COMPONENT),
    ("attributes", FATTR),
    result=Struct("Created", ("change", _CHANGE), ("attributes", BITMAP)),
    changes=True,
)
GETATTR = _operation(9, "GETATTR", ("mask", BITMAP), result=FATTR, repeats=True)
GETFH = _operation(10, "GETFH", result=_HANDLE)
LINK = _operation(11, "LINK", ("name", _COMPONENT), result=_CHANGE, changes=True)
LOOKUP = _operation(15, "LOOKUP", ("name", _COMPONENT), repeats=True)
OPEN = _operation(
    18,
    "OPEN",
    ("seqid", UINT32),
    ("access", UINT32),
    ("deny", UINT32),
    ("owner", _OPEN_OWNER),
    ("how", Union({0: VOID, 1: _CREATE_HOW})),
    ("claim", Union({0: _COMPONENT})),
    result=Struct(
        "Opened",
        ("stateid", _STATEID),
        ("change", _CHANGE),
        ("flags", UINT32),
        ("attributes", BITMAP),
        ("delegation", _DELEGATION),
    ),
    changes=True,
)
OPEN_CONFIRM = _operation(20, "OPEN_CONFIRM", ("stateid", _STATEID), ("seqid", UINT32), result=_STATEID, changes=True)
PUTFH = _operation(22, "PUTFH", ("handle", _HANDLE), repeats=True)
PUTROOTFH = _operation(24, "PUTROOTFH")
READ = _operation(
    25,
    "READ",
    ("stateid", _STATEID),
    ("offset", UINT64),
    ("count", UINT32),
    result=Struct("Data", ("eof", BOOL), ("data", Opaque(MAXIMUM_DATA))),
)
READDIR = _operation(
    26,
    "READDIR",
    ("cookie", UINT64),
    ("verifier", _VERIFIER),
    ("name_bytes", UINT32),
    ("maximum_bytes", UINT32),
    ("mask", BITMAP),
    result=Struct("Page", ("verifier", _VERIFIER), ("entries", _Entries()), ("eof", BOOL)),
)
READLINK = _operation(27, "READLINK", result=Opaque(MAXIMUM_LINK))
REMOVE = _operation(28, "REMOVE", ("name", _COMPONENT), result=_CHANGE, changes=True)
RENAME = _operation(
    29,
    "RENAME",
    ("old", _COMPONENT),
    ("new", _COMPONENT),
    result=Struct("Renamed", ("source", _CHANGE), ("target", _CHANGE)),
    changes=True,
)
SAVEFH = _operation(32, "SAVEFH")
SETATTR = _operation(
    34, "SETATTR", ("stateid", _STATEID), ("attributes", FATTR), result=BITMAP, failure=BITMAP, changes=True
)
SETCLIENTID = _operation(
    35,
    "SETCLIENTID",
    ("client", Struct("Client", ("verifier", _VERIFIER), ("id", _SMALL))),
    ("callback", Struct("Callback", ("program", UINT32), ("location", _ADDRESS))),
    ("callback_ident", UINT32),
    result=Struct("ClientId", ("clientid", UINT64), ("verifier", _VERIFIER)),
    errors=((Status.CLID_INUSE, _ADDRESS),),
)
SETCLIENTID_CONFIRM = _operation(36, "SETCLIENTID_CONFIRM", ("clientid", UINT64), ("verifier", _VERIFIER))
VERIFY = _operation(37, "VERIFY", ("attributes", FATTR))
WRITE = _operation(
    38,
    "WRITE",
    ("stateid", _STATEID),
    ("offset", UINT64),
    ("stable", UINT32),
    ("data", Opaque(MAXIMUM_DATA)),
    result=Struct("Written", ("count", UINT32), ("committed", UINT32), ("verifier", _VERIFIER)),
    changes=True,
)
EXCHANGE_ID = _operation(
    42,
    "EXCHANGE_ID",
    ("client", Struct("Owner", ("verifier", _VERIFIER), ("id", _SMALL))),
    ("flags", UINT32),
    ("protection", _SP4_NONE),
    ("implementation", _IMPLEMENTATION),
    result=Struct(
        "Exchanged",
        ("clientid", UINT64),
        ("sequence", UINT32),
        ("flags", UINT32),
        ("protection", _SP4_NONE),
        ("server", Struct("Server", ("minor", UINT64), ("major", _SMALL))),
        ("scope", _SMALL),
        ("implementation", _IMPLEMENTATION),
    ),
    minor=1,
)
CREATE_SESSION = _operation(
    43,
    "CREATE_SESSION",
    ("clientid", UINT64),
    ("sequence", UINT32),
    ("flags", UINT32),
    ("fore", _CHANNEL),
    ("back", _CHANNEL),
    ("callback_program", UINT32),
    ("callback_security", _CALLBACK_SECURITY),
    result=Struct(
        "Session", ("id", _SESSION), ("sequence", UINT32), ("flags", UINT32), ("fore", _CHANNEL), ("back", _CHANNEL)
    ),
    minor=1,
)
DESTROY_SESSION = _operation(44, "DESTROY_SESSION", ("session", _SESSION), minor=1)
SEQUENCE = _operation(
    53,
    "SEQUENCE",
    ("session", _SESSION),
    ("sequence", UINT32),
    ("slot", UINT32),
    ("highest_slot", UINT32),
    ("keep", BOOL),
    result=Struct(
        "Sequenced",
        ("session", _SESSION),
        ("sequence", UINT32),
        ("slot", UINT32),
        ("highest_slot", UINT32),
        ("target_highest_slot", UINT32),
        ("flags", UINT32),
    ),
    minor=1,
)
DESTROY_CLIENTID = _operation(57, "DESTROY_CLIENTID", ("clientid", UINT64), minor=1)
RECLAIM_COMPLETE = _operation(58, "RECLAIM_COMPLETE", ("one_file_system", BOOL), minor=1)
COPY = _operation(
    60,
    "COPY",
    ("source", _STATEID),
    ("target", _STATEID),
    ("source_offset", UINT64),
    ("target_offset", UINT64),
    ("count", UINT64),
    ("consecutive", BOOL),
    ("synchronous", BOOL),
    ("servers", Array(_VERIFIER, 0)),
    result=Struct(
        "Copied",
        ("callbacks", Array(_STATEID, 1)),
        ("count", UINT64),
        ("committed", UINT32),
        ("verifier", _VERIFIER),
        ("consecutive", BOOL),
        ("synchronous", BOOL),
    ),
    minor=2,
    changes=True,
    errors=((Status.OFFLOAD_NO_REQS, Struct("Requirements", ("consecutive", BOOL), ("synchronous", BOOL))),),
)
"""servers: none, which means that the source is on the same server. callbacks: not empty = it is done later."""
SEEK = _operation(
    69,
    "SEEK",
    ("stateid", _STATEID),
    ("offset", UINT64),
    ("what", UINT32),
    result=Struct("Found", ("eof", BOOL), ("offset", UINT64)),
    minor=2,
)
CLONE = _operation(
    71,
    "CLONE",
    ("source", _STATEID),
    ("target", _STATEID),
    ("source_offset", UINT64),
    ("target_offset", UINT64),
    ("count", UINT64),
    minor=2,
    changes=True,
)
GETXATTR = _operation(72, "GETXATTR", ("name", _COMPONENT), result=_XATTR, minor=2)
SETXATTR = _operation(
    73, "SETXATTR", ("option", UINT32), ("name", _COMPONENT), ("value", _XATTR), result=_CHANGE, minor=2, changes=True
)
LISTXATTRS = _operation(
    74,
    "LISTXATTRS",
    ("cookie", UINT64),
    ("maximum_bytes", UINT32),
    result=Struct("Names", ("cookie", UINT64), ("names", Array(_COMPONENT, 1024)), ("eof", BOOL)),
    minor=2,
)
ILLEGAL = _operation(10044, "ILLEGAL")

OPERATIONS: Final = {operation.number: operation for operation in _TABLE}
"""Number -> operation: the whole table."""
