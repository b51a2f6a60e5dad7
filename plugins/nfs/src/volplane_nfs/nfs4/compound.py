"""COMPOUND: coding of its arguments, a list of requests, and of its reply, a list of results.

Source: RFC 7530 section 15.2, RFC 8881 section 16.2.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from volplane_nfs.nfs4.operations import ILLEGAL, OPERATIONS, Operation, Reply, Request, Result
from volplane_nfs.nfs4.xdr import UINT32, MalformedData, Opaque, Reader

__all__ = ["MAXIMUM_OPERATIONS", "pack_compound", "pack_reply", "unpack_compound", "unpack_reply"]

MAXIMUM_OPERATIONS: Final = 128
"""In one COMPOUND. Servers have limits of their own; sessions announce them."""
_TAG: Final = Opaque(1024)
_TWO: Final = struct.Struct(">II")


def pack_compound(requests: Sequence[Request], minor: int, tag: bytes = b"") -> bytes:
    """The arguments of a COMPOUND."""
    out = bytearray()
    _TAG.pack(out, tag)
    out += _TWO.pack(minor, len(requests))
    for operation, arguments in requests:
        out += operation.code
        if operation.single is not None:
            operation.single.pack(out, arguments[0])
        elif arguments:
            operation.arguments.pack_fields(out, arguments)
    return bytes(out)


def unpack_compound(reader: Reader) -> tuple[int, list[Request]]:
    """The minor version and the requests of a COMPOUND."""
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
    """The result of a COMPOUND."""
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
    """The answer to these requests; raises MalformedData if it is none to them."""
    status = reader.uint32()
    _TAG.unpack(reader)
    count = reader.uint32()
    if count > len(requests):
        raise MalformedData(f"{count} results for {len(requests)} operations")
    results: list[Result] = []
    last = 0
    for request in requests[:count]:
        if last:
            raise MalformedData(f"results behind one with status {last}")
        number, last = reader.two()
        due = request.operation
        operation = due if number == due.number else _in_the_place_of(due, number)
        if last:
            results.append(Result(operation, last, operation.arm(last).unpack(reader)))
        else:
            results.append(operation.done or Result(operation, 0, operation.result.unpack(reader)))
    _end(reader)
    if last != status and results:
        raise MalformedData(f"status {status} does not go with the last result's {last}")
    if not status and count != len(requests):
        raise MalformedData(f"{count} results for {len(requests)} operations, and no error")
    return Reply(status, results)


def _in_the_place_of(due: Operation, number: int) -> Operation:
    operation = _known(number)
    if operation is not ILLEGAL:
        raise MalformedData(f"a result of {operation.name} where one of {due.name} is due")
    return operation


def _known(number: int) -> Operation:
    operation = OPERATIONS.get(number)
    if operation is None:
        raise MalformedData(f"unknown operation {number}")
    return operation


def _end(reader: Reader) -> None:
    if reader.left:
        raise MalformedData(f"{reader.left} bytes too many")
