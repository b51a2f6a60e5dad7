"""COMPOUND: coding of its arguments, a list of requests, and of its reply, a list of results.

Source: RFC 7530 section 15.2, RFC 8881 section 16.2.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from volplane_nfs.nfs4.operations import ILLEGAL, OPERATIONS, Operation, Reply, Request, Result, result_of
from volplane_nfs.nfs4.xdr import UINT32, MalformedData, Opaque, Reader

MAXIMUM_OPERATIONS: Final = 128
"""In one COMPOUND. Servers have limits of their own; sessions announce them."""
_TAG_LENGTH_BYTES: Final = 4
_SUCCESS_BYTES: Final = 8
"""Of a result, before its value: number and status."""
_TAG: Final = Opaque(1024)
_HEAD: Final = struct.Struct(">III")
"""Length of the tag, which is empty in our calls, minor version and number of operations."""


def pack_compound(requests: Sequence[Request], minor: int) -> bytes:
    """Return the arguments of a COMPOUND."""
    encoded = [operation.encode(arguments) for operation, arguments in requests]
    return _HEAD.pack(0, minor, len(requests)) + b"".join(encoded)


def unpack_compound(reader: Reader) -> tuple[int, list[Request]]:
    """Return the minor version and the requests of a COMPOUND."""
    _TAG.unpack(reader)
    minor = reader.uint32()
    count = reader.uint32()
    if count > MAXIMUM_OPERATIONS:
        raise MalformedData(f"{count} operations in one COMPOUND")
    requests = []
    for _ in range(count):
        operation = _known(reader.uint32())
        requests.append(Request(operation, operation.unpack_arguments(reader)))
    _end(reader)
    return minor, requests


def pack_reply(reply: Reply, tag: bytes = b"") -> bytes:
    """Return the result of a COMPOUND."""
    out = bytearray()
    UINT32.pack(out, reply.status)
    _TAG.pack(out, tag)
    UINT32.pack(out, len(reply.results))
    for operation, status, value in reply.results:
        UINT32.pack(out, operation.number)
        UINT32.pack(out, status)
        operation.arm(status).pack(out, value)
    return bytes(out)


def unpack_reply(reader: Reader, requests: Sequence[Request]) -> Reply:
    """Return the answer to these requests; raises MalformedData if it is none to them."""
    status, tag_bytes = reader.two()
    if tag_bytes:
        reader.position -= _TAG_LENGTH_BYTES
        _TAG.unpack(reader)
    count = reader.uint32()
    if count > len(requests):
        raise MalformedData(f"{count} results for {len(requests)} operations")
    results: list[Result] = []
    data = reader.data
    for operation, _ in requests[:count]:
        if not data.startswith(operation.success, reader.position):
            results.append(_failed(reader, operation))
            break
        reader.position += _SUCCESS_BYTES
        results.append(operation.done or result_of((operation, 0, operation.result.unpack(reader))))
    if len(results) < count:
        raise MalformedData(f"results behind one with status {results[-1].status}")
    _end(reader)
    if results and results[-1].status != status:
        raise MalformedData(f"status {status} does not go with the last result's {results[-1].status}")
    if not status and count != len(requests):
        raise MalformedData(f"{count} results for {len(requests)} operations, and no error")
    return Reply(status, results)


def _failed(reader: Reader, due: Operation) -> Result:
    """Return the result of an operation that failed: the last of its COMPOUND."""
    number, status = reader.two()
    operation = due if number == due.number else _known(number)
    if operation is not due and operation is not ILLEGAL:
        raise MalformedData(f"a result of {operation.name} where one of {due.name} is due")
    if not status:
        raise MalformedData(f"{operation.name} without an error where {due.name} is due")
    return Result(operation, status, operation.arm(status).unpack(reader))


def _known(number: int) -> Operation:
    operation = OPERATIONS.get(number)
    if operation is None:
        raise MalformedData(f"unknown operation {number}")
    return operation


def _end(reader: Reader) -> None:
    if reader.left:
        raise MalformedData(f"{reader.left} bytes too many")
