"""HTTP/1.1 exchanges: what arrives in which pieces, and what becomes of connections."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from volplane.kube.connections import AnswerReader, BadAnswer, Connections
from volplane.kube.transport import Response

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Play = Callable[[Coroutine[Any, Any, None]], None]

CREATED = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n{'a': 1}"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nRetry-After:  3 \r\n\r\n"
    b"4;name=value\r\nabcd\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\nOther: y\r\n\r\n"
)
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> Play:
    def run(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main)

    return run


class Listening:
    """A server that does what the test says, and connections to it."""

    def __init__(self, connections: Connections, opened: list[int]) -> None:
        self.connections = connections
        self.opened = opened

    async def ask(
        self, method: str = "GET", path: str = "/a", *, seconds: float = 10.0, body: bytes | None = None, **more: Any
    ) -> Response:
        headers = {"accept": "application/json", **more.get("headers", {})}
        return await self.connections.request(
            method, path, query=more.get("query", {}), headers=headers, body=body, seconds=seconds
        )


@asynccontextmanager
async def listening(handle: Handler, **options: Any) -> AsyncIterator[Listening]:
    opened: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    connections = Connections(
        host, port, authority=f"{host}:{port}", tls=None, opened=lambda _: opened.append(1), **options
    )
    try:
        yield Listening(connections, opened)
    finally:
        connections.close()
        server.close()


async def request_of(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """The head and the body of the next request."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next((int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
    return head, await reader.readexactly(length)


def answering(*answers: bytes) -> Handler:
    """Every connection answers one request after the other, then ends."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await request_of(reader)
            writer.write(answer)
        await writer.drain()

    return handle


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("sent", "status", "body", "headers"),
    [
        (CREATED, 201, b"{'a': 1}", {"content-type": "application/json", "content-length": "8"}),
        (CHUNKED, 200, b"abcd0123456789", {"transfer-encoding": "chunked", "retry-after": "3"}),
        (CONTINUED, 204, b"", {}),
    ],
)
def test_an_answer_is_put_together_from_any_pieces(
    sent: bytes, status: int, body: bytes, headers: dict[str, str], size: int
) -> None:
    reader = AnswerReader()
    pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
    told = [reader.feed(piece) for piece in pieces]
    assert told[:-1] == [None] * (len(pieces) - 1)
    assert told[-1] == Response(status, headers, body)
    assert reader.reusable


def test_an_answer_without_a_length_lasts_until_the_connection_ends() -> None:
    reader = AnswerReader()
    assert reader.feed(b"HTTP/1.0 200 OK\r\n\r\nab") is None
    assert reader.feed(b"cd") is None
    assert reader.end() == Response(200, {}, b"abcd")
    assert not reader.reusable


@pytest.mark.parametrize("sent", [CREATED[:-1], CHUNKED[:-2], CREATED[:20], b""])
def test_an_answer_that_breaks_off_is_none(sent: bytes) -> None:
    reader = AnswerReader()
    assert reader.feed(sent) is None
    with pytest.raises(BadAnswer, match="in the middle of an answer"):
        reader.end()


@pytest.mark.parametrize(
    "sent",
    [
        CREATED + b"HTTP/1.1 200 OK\r\n",
        CHUNKED + b"x",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_a_connection_is_kept_only_where_the_next_answer_is_sure_to_be_the_next(sent: bytes) -> None:
    reader = AnswerReader()
    assert reader.feed(sent) is not None
    assert not reader.reusable


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "begins with 'SSH-2.0-OpenSSH_9.2'"),
        (b"HTTP/1.1 OK\r\n\r\n", "begins with"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\n", "length '\\+3'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", "two lengths"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "transfer coding 'gzip'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length : 3\r\n\r\n", "header line"),
        (b"HTTP/1.1 200 OK\r\nno header\r\n\r\n", "header line"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "no size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", "longer than its size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 70_000, "no size"),
        (b"x" * 70_000, "too long"),
    ],
)
def test_what_is_no_answer_is_refused(sent: bytes, why: str) -> None:
    with pytest.raises(BadAnswer, match=why):
        AnswerReader().feed(sent)


def test_a_request_carries_path_query_headers_and_body(play: Play) -> None:
    seen: list[tuple[str, bytes]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await request_of(reader))
        writer.write(CREATED)
        await writer.drain()

    async def main() -> None:
        async with listening(handle) as server:
            answer = await server.ask("PATCH", "/apis/a b/c?d", query={"limit": "5", "x": "a=b,c"}, body=b"{}")
            assert (answer.status, answer.body) == (201, b"{'a': 1}")

    play(main())
    head, body = seen[0]
    assert head.split("\r\n")[0] == "PATCH /apis/a%20b/c%3Fd?limit=5&x=a%3Db%2Cc HTTP/1.1"
    assert {"accept: application/json", "content-length: 2"} <= set(head.split("\r\n"))
    assert "host: 127.0.0.1:" in head
    assert body == b"{}"


def test_a_connection_carries_many_exchanges(play: Play) -> None:
    async def main() -> None:
        async with listening(answering(*[CREATED, CHUNKED] * 10)) as server:
            assert [(await server.ask()).status for _ in range(20)] == [201, 200] * 10
            assert len(server.opened) == 1

    play(main())


def test_a_connection_that_is_old_is_not_kept_for_ever(play: Play) -> None:
    ended: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await request_of(reader)
                writer.write(CREATED)
        finally:
            ended.append(1)

    async def main() -> None:
        async with listening(handle, keep=0.0) as server:
            await asyncio.gather(server.ask(), server.ask(), server.ask())
            for _ in range(20):
                await server.ask()
                await asyncio.sleep(0)
            while len(ended) < 2:
                await asyncio.sleep(0.001)

    play(main())


def test_a_kept_connection_that_the_server_closed_costs_a_read_nothing_and_a_write_an_error(play: Play) -> None:
    asked: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(CREATED)
        asked.append((await request_of(reader))[0].split()[0])  # The next one is read and never answered.

    async def main() -> None:
        async with listening(handle) as server:
            await server.ask()
            assert (await server.ask()).status == 201
            with pytest.raises(ConnectionError, match="closed the connection"):
                await server.ask("PATCH", body=b"{}")
            assert asked == ["GET", "PATCH"]
            assert len(server.opened) == 2

    play(main())


def test_a_server_that_says_nothing_is_given_up_in_time(play: Play) -> None:
    async def handle(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async def main() -> None:
        async with listening(handle) as server:
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await server.ask(seconds=0.01)
            assert len(server.opened) == 2

    play(main())


def test_more_than_the_limit_wait_for_their_turn_no_longer_than_they_may(play: Play) -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await request_of(reader)
            await go.wait()
            writer.write(CREATED)
            await writer.drain()

        async with listening(handle, limit=1) as server:
            first = asyncio.create_task(server.ask())
            await asyncio.sleep(0)
            with pytest.raises(TimeoutError):
                await server.ask(seconds=0.01)
            last = asyncio.create_task(server.ask())
            go.set()
            assert [(await task).status for task in (first, last)] == [201, 201]

    play(main())


def test_who_is_cancelled_leaves_no_answer_behind_for_the_next(play: Play) -> None:
    async def main() -> None:
        numbers = iter(range(10))
        asked = asyncio.Event()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            number = next(numbers)
            await request_of(reader)
            asked.set()
            if number:
                writer.write(CREATED)
                await writer.drain()
            else:
                await reader.read()

        async with listening(handle) as server:
            first = asyncio.create_task(server.ask())
            await asked.wait()
            first.cancel()
            assert (await server.ask()).status == 201
            with pytest.raises(asyncio.CancelledError):
                await first
            assert len(server.opened) == 2

    play(main())


def test_a_server_that_is_not_there_is_an_error_of_the_system(play: Play) -> None:
    async def main() -> None:
        connections = Connections("127.0.0.1", 1, authority="127.0.0.1:1", tls=None)
        with pytest.raises(OSError, match=r"refused|failed"):
            await connections.request("GET", "/", query={}, headers={}, body=None, seconds=5.0)

    play(main())


def test_a_header_of_two_lines_is_refused(play: Play) -> None:
    async def main() -> None:
        async with listening(answering(CREATED)) as server:
            with pytest.raises(ValueError, match="authorization has more than one line"):
                await server.ask(headers={"authorization": "Bearer a\r\nevil: yes"})
            assert server.opened == []

    play(main())
