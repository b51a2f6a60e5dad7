"""One object that is nested deep must not hide those of everybody else from the controllers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import ClassVar

import msgspec
import pytest

from volplane.kube.decoding import AnswerDecoder, decoded, flattened
from volplane.kube.flowcontrol import CircuitBreaker
from volplane.kube.kinds import CLAIMS
from volplane.kube.watch import Watch


def claim(name: str, depth: int) -> bytes:
    deep = b'{"f:a":' * depth + b"{}" + b"}" * depth
    head = b'{"metadata":{"name":"%s","namespace":"d","uid":"u","resourceVersion":"5",' % name.encode()
    return head + b'"managedFields":[{"fieldsV1":' + deep + b'}]},"spec":{"volumeName":"pv"}}'


@pytest.mark.parametrize("depth", [1_500, 10_000])
def test_a_list_and_a_watch_with_a_deep_object_are_read_whole(depth: int) -> None:
    decoder = AnswerDecoder(CircuitBreaker(), None)
    body = b'{"metadata":{"resourceVersion":"9"},"items":[' + claim("good", 2) + b"," + claim("deep", depth) + b"]}"
    listing, _ = decoder.page(CLAIMS, body, "/claims")
    assert [(each.metadata.name, each.spec.volume_name) for each in listing.items] == [("good", "pv"), ("deep", "pv")]
    assert listing.unreadable == []
    assert decoder.object(CLAIMS, claim("deep", depth)).metadata.name == "deep"


async def test_a_watch_reads_a_deep_object() -> None:
    class Lines:
        status = 200
        headers: ClassVar[dict[str, str]] = {}

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b'{"type":"ADDED","object":' + claim("deep", 5_000) + b"}"
            yield b'{"type":"BOOKMARK","object":' + claim("deep", 5_000) + b"}"

    found = [change async for change in Watch(CLAIMS, Lines(), report=AnswerDecoder(CircuitBreaker(), None).report)]
    assert [(change.type, change.version) for change in found] == [("ADDED", 5), ("BOOKMARK", 5)]


def test_only_what_is_too_deep_is_cut_off() -> None:
    text = ']}"[{'
    body = json.dumps({"a": [1, {"b": text, "c": [[[]]]}], "d": {"e": {"f": {"g": 1}}}}).encode()
    assert flattened(body) == body
    assert json.loads(flattened(body, 3)) == {"a": [1, {"b": text, "c": None}], "d": {"e": {"f": None}}}
    with pytest.raises(msgspec.DecodeError):
        decoded(msgspec.json.Decoder().decode, b"[" * 5_000)
