"""`client: pynfs`: the same operations through nfs4client of a checkout of pynfs that the user has put on the path.

pynfs is GPL-2.0 and on no package index. It is imported only when the option asks for it; it is no dependency and no
part of volplane. It has no way back from a lost connection: the client is thrown away after any error, and the next
call makes a new one.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from volplane import InvalidArgument
from volplane_nfs.nfs4 import (
    Address,
    Credentials,
    NfsError,
    NoAnswer,
    OutcomeUnknown,
    ServerUnavailable,
    values_of,
)
from volplane_nfs.nfs4 import operations as nfs
from volplane_nfs.nfs4.attributes import FSID, TIME_METADATA, TIME_MODIFY
from volplane_nfs.nfs4.operations import Entry, Reply, Request, Result

_RESULTS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "GETFH": lambda answer: bytes(answer.object),
    "GETATTR": lambda answer: _attributes(answer.obj_attributes),
    "READLINK": lambda answer: bytes(answer.link),
    "READDIR": lambda answer: nfs.READDIR.result(  # type: ignore[operator]
        bytes(answer.cookieverf),
        [Entry(entry.cookie, bytes(entry.name), _attributes(entry.attrs)) for entry in answer.reply.entries],
        bool(answer.reply.eof),
    ),
}
"""What is taken from a result; of others nothing is used."""
_STRUCTS: Final[Mapping[int, Callable[[Any], Any]]] = {
    FSID: lambda value: (value.major, value.minor),
    TIME_METADATA: lambda value: (value.seconds, value.nseconds),
    TIME_MODIFY: lambda value: (value.seconds, value.nseconds),
}


class PynfsClient:
    """One client of NFSv4.0 without state on the server, made again after every error."""

    operations = 32
    data_bytes = 1 << 16
    minor = 0
    moves = 0

    def __init__(self, address: Address, *, credentials: Credentials, timeout: float) -> None:
        """Import pynfs; raises `InvalidArgument` if it cannot be."""
        try:
            self._client_module = importlib.import_module("nfs4client")
            self._operations_module = importlib.import_module("nfs_ops")
            self._types = importlib.import_module("xdrdef.nfs4_type")
            self._security = importlib.import_module("rpc.security")
        except ImportError as error:
            raise InvalidArgument(
                f"option client: 'pynfs' cannot be imported ({error}); put nfs4.1, xdr and the top of a built checkout "
                "of pynfs on PYTHONPATH, or use 'volplane'"
            ) from error
        self._address = address
        self._credentials = credentials
        self._timeout = timeout
        self._lock = threading.Lock()
        self._client: Any = None

    def compound(self, *requests: Request) -> list[Any]:
        (reply,) = self.pipeline([requests])
        return values_of(reply)

    def pipeline(self, compounds: Sequence[Sequence[Request]]) -> list[Reply]:
        """Return one after the other. Raises ServerUnavailable, NoAnswer, OutcomeUnknown."""
        with self._lock:
            return [self._one(requests) for requests in compounds]

    def close(self) -> None:
        with self._lock:
            self._client = None

    def _one(self, requests: Sequence[Request]) -> Reply:
        client = self._connected()
        operations = self._operations_module.NFS4ops()
        calls = [self._call(operations, request) for request in requests]
        try:
            xid = client.compound_async(calls, version=0, tag=b"")
            answer = client.listen(xid, timeout=self._timeout)
            status, answers = int(answer.status), list(answer.resarray)
        except Exception as error:  # its connection raises what it likes
            self._client = None
            if any(request.operation.changes for request in requests):
                raise OutcomeUnknown(
                    f"NFS server {self._address}: pynfs: {str(error) or type(error).__name__}"
                ) from error
            raise NoAnswer(f"NFS server {self._address}: pynfs: {str(error) or type(error).__name__}") from error
        return Reply(status, [self._result(*each) for each in zip(requests, answers, strict=False)])

    def _result(self, request: Request, answer: Any) -> Result:
        status = int(getattr(answer, "status", 0))
        take = _RESULTS.get(request.operation.name)
        inner = _inside(answer, request.operation.name)
        return Result(request.operation, status, take(inner) if take is not None and not status else None)

    def _call(self, operations: Any, request: Request) -> Any:
        name, arguments = request.operation.name.lower(), list(request.arguments)
        if name == "create":
            kind, data = arguments[0]
            link = {"linkdata": data} if data is not None else {}
            arguments[0] = self._types.createtype4(kind, **link)
        elif name == "setattr":
            arguments[0] = self._types.stateid4(*arguments[0])
        call = getattr(operations, name, None)
        if call is None:
            raise NfsError(10004, request.operation.name, 0)
        return call(*arguments)

    def _connected(self) -> Any:
        if self._client is None:
            try:
                flavour = self._security.AuthSys()
                credentials = flavour.init_cred(uid=self._credentials.uid, gid=self._credentials.gid)
                client = self._client_module.NFS4Client(self._address.host, self._address.port, minorversion=0)
                client.set_cred(credentials)
            except Exception as error:
                raise ServerUnavailable(
                    f"NFS server {self._address}: pynfs: {str(error) or type(error).__name__}"
                ) from error
            self._client = client
        return self._client


def _attributes(given: Mapping[int, Any]) -> dict[int, Any]:
    """Return the attributes of pynfs as those of the built-in client: its structs are objects, ours named tuples."""
    return {number: _STRUCTS[number](value) if number in _STRUCTS else value for number, value in given.items()}


def _inside(answer: Any, name: str) -> Any:
    """Take the result of READDIR and the like out of its union."""
    return getattr(answer, f"op{name.lower()}", answer)
