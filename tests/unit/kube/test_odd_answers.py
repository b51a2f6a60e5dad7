"""Whatever a server, or a proxy before it, sends instead of what it should: nothing breaks, and what follows is
read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from volplane.errors import ApiError, ApiUnavailable, VolplaneError
from volplane.kube.cache import Cache
from volplane.kube.client import Client
from volplane.kube.kinds import VOLUMES
from volplane.kube.reflector import Reflector
from volplane.kube.transport import LineStream, Request, Response
from volplane_testing.clock import run

GOOD = msgspec.json.encode({"metadata": {"name": "good", "uid": "u", "resourceVersion": "50"}})
LIST = msgspec.json.encode({"metadata": {"resourceVersion": "40"}, "items": []})


class Lines:
    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self.status = 200
        self.headers: Mapping[str, str] = {}

    async def read(self) -> bytes:
        return b"".join(self._lines)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for line in self._lines:
            yield line
        await asyncio.sleep(60)


class OddServer:
    """Answers with what it is given, then with an empty list and one good object."""

    def __init__(self, answers: list[bytes] = (), lines: list[bytes] = ()) -> None:  # type: ignore[assignment]
        self._answers = list(answers)
        self._lines = list(lines)

    async def send(self, _request: Request) -> Response:
        await asyncio.sleep(0.01)
        return Response(200, {}, self._answers.pop(0) if self._answers else LIST)

    @asynccontextmanager
    async def stream(self, _request: Request) -> AsyncIterator[LineStream]:
        await asyncio.sleep(0.01)
        lines, self._lines = self._lines, []
        good = b'{"type":"ADDED","object":' + GOOD + b"}"
        yield Lines(lines or [good])

    async def close(self) -> None:
        pass


async def comes_to_know_the_good_one(server: OddServer) -> bool:
    """Whether it does within 300 s."""
    cache = Cache(VOLUMES)
    task = asyncio.create_task(Reflector(Client(server), cache, random=Random(1)).run())
    for _ in range(300):
        await asyncio.sleep(1)
        if task.done() or "good" in cache:
            break
    alive = not task.done()
    task.cancel()
    await asyncio.wait([task])
    return alive and "good" in cache


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
metadata = st.fixed_dictionaries(
    {}, optional={"name": json_values, "uid": json_values, "resourceVersion": st.sampled_from(["x", "-1", "", 7, "41"])}
)
objects = st.fixed_dictionaries({}, optional={"metadata": metadata | json_values, "spec": json_values}) | json_values
events = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", "ELSE", 7]),
        "object": objects,
    },
)
lists = st.fixed_dictionaries(
    {}, optional={"metadata": metadata | json_values, "items": st.lists(objects, max_size=3) | json_values}
)


def cut(value: Any, at: int) -> bytes:
    whole = msgspec.json.encode(value)
    return whole[: at % (len(whole) + 1)] if at else whole


odd_lines = st.lists(
    st.builds(cut, events, st.integers(0, 60))
    | st.binary(min_size=1, max_size=12).map(lambda b: b.replace(b"\n", b"")),
    max_size=4,
)
SETTINGS = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@SETTINGS
@given(odd_lines)
@example([b'{"type":"BOOKMARK","object":7}'])
@example([b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"x"}}}'])
@example([b'{"type":"ADDED","object":{"metadata":{"name":"a\xff"}}}'])
@example([b'{"type":"ERROR","object":"gone"}'])
@example([b"\xff\xfe"])
def test_no_line_of_a_watch_ends_the_following(lines: list[bytes]) -> None:
    assert run(comes_to_know_the_good_one(OddServer(lines=[line for line in lines if line])))


@SETTINGS
@given(st.lists(st.builds(cut, lists, st.integers(0, 60)) | st.binary(max_size=12), max_size=3))
@example([b'{"metadata":{"resourceVersion":"many"},"items":[]}'])
@example([b"<html>"])
@example([b'{"items":[{"metadata":{"name":"\xff"}}]}'])
def test_no_answer_to_a_list_ends_the_following(answers: list[bytes]) -> None:
    assert run(comes_to_know_the_good_one(OddServer(answers)))


@pytest.mark.parametrize("answer", [b"", b"{", GOOD[:20], b"<html>", b"\xff", b'{"kind":"Status'])
async def test_half_an_answer_to_a_call_leaves_open_whether_it_took_effect(answer: bytes) -> None:
    for call in (
        lambda client: client.get(VOLUMES, "v"),
        lambda client: client.create(VOLUMES, {"metadata": {"name": "v"}}),
        lambda client: client.patch(VOLUMES, "v", {}),
        lambda client: client.delete(VOLUMES, "v"),
    ):
        with pytest.raises((ApiUnavailable, ApiError)) as caught:
            await call(Client(OddServer([answer])))
        assert caught.value.status == 200
        if answer != b"\xff":
            assert type(caught.value) is ApiUnavailable


@pytest.mark.parametrize(
    "answer", [b"7", b'{"metadata":7}', b'{"metadata":{"resourceVersion":"x"}}', b'{"spec":{"capacity":1}}']
)
async def test_an_object_of_another_shape_is_an_error_that_says_so(answer: bytes) -> None:
    for call in (
        lambda client: client.get(VOLUMES, "v"),
        lambda client: client.patch(VOLUMES, "v", {}),
        lambda client: client.delete(VOLUMES, "v"),
    ):
        with pytest.raises(VolplaneError, match="persistentvolumes could not be read") as caught:
            await call(Client(OddServer([answer])))
        assert not isinstance(caught.value, ApiUnavailable)
