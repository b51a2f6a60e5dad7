"""Every operation of the table is encoded and decoded; whatever a peer sends gives a value or MalformedData."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from volplane_nfs.nfs4 import operations as nfs
from volplane_nfs.nfs4.attributes import ATTRIBUTES
from volplane_nfs.nfs4.compound import pack_compound, pack_reply, unpack_compound, unpack_reply
from volplane_nfs.nfs4.operations import (
    OPERATIONS,
    Reply,
    Request,
    Result,
)
from volplane_nfs.nfs4.rpc import RecordParser, framed
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

SIMPLE: dict[int, st.SearchStrategy[Any]] = {
    id(UINT32): st.integers(0, 2**32 - 1),
    id(UINT64): st.integers(0, 2**64 - 1),
    id(INT64): st.integers(-(2**63), 2**63 - 1),
    id(BOOL): st.booleans(),
    id(VOID): st.none(),
    id(BITMAP): st.integers(0, 2**80),
}


def values_of_type(codec: Codec) -> st.SearchStrategy[Any]:
    """Any value of a type."""
    if id(codec) in SIMPLE:
        return SIMPLE[id(codec)]
    match codec:
        case Opaque():
            return st.binary(max_size=min(codec.maximum, 40))
        case Fixed():
            return st.binary(min_size=codec.size, max_size=codec.size)
        case Array():
            return st.lists(values_of_type(codec._item), max_size=min(codec.maximum, 3))
        case Union():
            arms = [st.tuples(st.just(number), values_of_type(arm)) for number, arm in codec.arms.items()]
            return st.one_of(*arms)
        case Struct():
            fields = [values_of_type(field) for _, field in codec.fields]
            return fields[0] if len(fields) == 1 else st.tuples(*fields) if fields else st.none()
    if codec is nfs.FATTR:
        return st.fixed_dictionaries({}, optional={number: values_of_type(each) for number, each in ATTRIBUTES.items()})
    entry = st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=20), values_of_type(nfs.FATTR))
    return st.lists(entry, max_size=3)


REQUESTS = st.one_of(
    *(
        st.tuples(*(values_of_type(codec) for _, codec in operation.arguments.fields)).map(
            lambda arguments, operation=operation: Request(operation, arguments)
        )
        for operation in OPERATIONS.values()
    )
)
RESULTS = st.one_of(
    *(
        values_of_type(operation.result).map(lambda value, operation=operation: Result(operation, 0, value))
        for operation in OPERATIONS.values()
    )
)


@settings(max_examples=60, deadline=None)
@given(requests=st.lists(REQUESTS, max_size=6), minor=st.integers(0, 1))
def test_what_is_encoded_as_a_call_is_decoded_to_the_same(requests: list[Request], minor: int) -> None:
    assert unpack_compound(Reader(pack_compound(requests, minor))) == (minor, requests)


@settings(max_examples=60, deadline=None)
@given(results=st.lists(RESULTS, max_size=6))
def test_what_is_encoded_as_an_answer_is_decoded_to_the_same(results: list[Result]) -> None:
    asked = [Request(result.operation, ()) for result in results]
    assert unpack_reply(Reader(pack_reply(Reply(0, results))), asked) == Reply(0, results)


@settings(max_examples=150, deadline=None)
@given(
    results=st.lists(RESULTS, min_size=1, max_size=4),
    cut=st.integers(0, 400),
    junk=st.binary(max_size=12),
    at=st.integers(0, 400),
)
def test_a_damaged_answer_is_refused_or_is_another_answer(
    results: list[Result], cut: int, junk: bytes, at: int
) -> None:
    asked = [Request(result.operation, ()) for result in results]
    content = bytearray(pack_reply(Reply(0, results)))[: cut or None]
    content[at : at + len(junk)] = junk
    try:
        reply = unpack_reply(Reader(bytes(content)), asked)
    except MalformedData:
        return
    assert len(reply.results) <= len(asked)


@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=300), requests=st.lists(REQUESTS, max_size=4))
def test_random_bytes_never_take_more_memory_than_an_answer_may(content: bytes, requests: list[Request]) -> None:
    tracemalloc.start()
    try:
        unpack_reply(Reader(content), requests)
    except MalformedData:
        pass
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 1 << 20


@given(sizes=st.lists(st.integers(0, 300), max_size=6), parts=st.integers(1, 50))
def test_records_come_out_as_they_went_in_however_they_are_cut(sizes: list[int], parts: int) -> None:
    records = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    stream = b"".join(framed(record) for record in records)
    parser = RecordParser(1000)
    found = [each for start in range(0, len(stream), parts) for each in parser.feed(stream[start : start + parts])]
    assert found == records


def test_a_record_of_several_fragments_is_put_together() -> None:
    stream = (3).to_bytes(4, "big") + b"abc" + (0x80000000 | 2).to_bytes(4, "big") + b"de"
    assert RecordParser(10).feed(stream) == [b"abcde"]


@pytest.mark.parametrize("sizes", [[11], [6, 6]])
def test_a_record_that_is_too_large_is_refused_before_it_is_stored(sizes: list[int]) -> None:
    parser = RecordParser(10)
    stream = b"".join(size.to_bytes(4, "big") + b"x" * min(size, 6) for size in sizes)
    with pytest.raises(MalformedData, match="where 10 are allowed"):
        parser.feed(stream)


def test_empty_fragments_without_end_are_refused() -> None:
    with pytest.raises(MalformedData, match="empty fragment"):
        RecordParser(10).feed(bytes(8))


def test_an_answer_to_another_operation_is_refused() -> None:
    answer = pack_reply(Reply(0, [Result(nfs.GETFH, 0, b"handle")]))
    with pytest.raises(MalformedData, match="a result of GETFH where one of READLINK is due"):
        unpack_reply(Reader(answer), [nfs.READLINK()])


def test_a_list_of_entries_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nfs, "_MAXIMUM_ENTRIES", 1000)
    page = b"\0\0\0\1" + bytes(8) + bytes(4) + bytes(8)
    with pytest.raises(MalformedData, match="more than 1000 entries"):
        nfs.READDIR.result.unpack(Reader(bytes(8) + page * 1001))
