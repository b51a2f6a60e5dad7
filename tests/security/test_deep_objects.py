"""One object that is nested deep must not hide those of everybody else from the controllers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

import msgspec
import pytest

from volplane.kube.answers import changes, decoded, flattened
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, Kind
from volplane.kube.objects import KubeObject
from volplane.kube.transport import LineStream, Request, Response


def claim(name: str, depth: int) -> bytes:
    deep = b'{"f:a":' * depth + b"{}" + b"}" * depth
    head = b'{"metadata":{"name":"%s","namespace":"d","uid":"u","resourceVersion":"5",' % name.encode()
    return head + b'"managedFields":[{"fieldsV1":' + deep + b'}]},"spec":{"volumeName":"pv"}}'


class Server:
    """Answers every request with the same body."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def send(self, _request: Request) -> Response:
        return Response(200, {}, self._body)

    def stream(self, _request: Request) -> AbstractAsyncContextManager[LineStream]:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("depth", [1_500, 10_000])
async def test_a_list_and_a_watch_with_a_deep_object_are_read_whole(depth: int) -> None:
    body = b'{"metadata":{"resourceVersion":"9"},"items":[' + claim("good", 2) + b"," + claim("deep", depth) + b"]}"
    listing = await Client(Server(body)).list(CLAIMS)
    assert [(each.metadata.name, each.spec.volume_name) for each in listing.items] == [("good", "pv"), ("deep", "pv")]
    assert listing.unreadable == []
    assert (await Client(Server(claim("deep", depth))).get(CLAIMS, "d/deep")).metadata.name == "deep"


async def test_a_watch_reads_a_deep_object() -> None:
    class Lines:
        status = 200
        headers: ClassVar[dict[str, str]] = {}

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b'{"type":"ADDED","object":' + claim("deep", 5_000) + b"}"
            yield b'{"type":"BOOKMARK","object":' + claim("deep", 5_000) + b"}"

        async def read(self) -> bytes:
            raise NotImplementedError

    def report(_kind: Kind[Any], _raw: msgspec.Raw, error: Exception) -> KubeObject:
        raise error

    found = [change async for change in changes(CLAIMS, Lines(), report=report)]
    assert [(change.type, change.version) for change in found] == [("ADDED", 5), ("BOOKMARK", 5)]


def test_only_what_is_too_deep_is_cut_off() -> None:
    text = ']}"[{'
    body = json.dumps({"a": [1, {"b": text, "c": [[[]]]}], "d": {"e": {"f": {"g": 1}}}}).encode()
    assert flattened(body) == body
    assert json.loads(flattened(body, 3)) == {"a": [1, {"b": text, "c": None}], "d": {"e": {"f": None}}}
    with pytest.raises(msgspec.DecodeError):
        decoded(msgspec.json.Decoder().decode, b"[" * 5_000)
