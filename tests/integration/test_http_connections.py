"""Connections to a server of HTTP/1.1: what it may answer, when they are used again, and the way through a proxy."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib.util
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from integration.certificates import Authority, guarded, verify_strictly
from integration.test_credentials import kubeconfig, trusting
from volplane.errors import ApiUnavailable, ConfigurationError
from volplane.kube.http import connection as http_connection
from volplane.kube.http.route import Address, Route
from volplane.kube.http.transport import HttpTransport
from volplane.kube.transport import Request, Response

pytestmark = pytest.mark.real_time

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server whose connections run `serve`; its URL."""

    serving: list[asyncio.Task[None]] = []
    open_still: list[asyncio.StreamWriter] = []

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_still.append(writer)
        serving.extend(filter(None, [asyncio.current_task()]))
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await serve(reader, writer)
        writer.close()

    listener = await asyncio.start_server(one, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)
        for writer in open_still:
            writer.transport.abort()
        for _ in range(3):
            await asyncio.sleep(0)


@asynccontextmanager
async def transport_to(directory: Path, url: str, **cluster: Any) -> AsyncIterator[HttpTransport]:
    transport = await HttpTransport.connect(kubeconfig(directory, {"token": "a"}, url, **cluster))
    try:
        yield transport
    finally:
        await transport.close()


async def ask(
    transport: HttpTransport, method: str = "GET", path: str = "/x", body: bytes | None = None, seconds: float = 5.0
) -> Response:
    return await transport.send(Request(method=method, path=path, body=body, seconds=seconds))


async def read_lines(transport: HttpTransport, into: list[bytes], quiet: float = 5.0) -> None:
    async with transport.stream(Request(path="/x", seconds=quiet)) as stream:
        async for line in stream:
            into.append(line)  # noqa: PERF401 -- what comes before an error counts too


class Server:
    """Answers every request the same way and counts: connections, and requests by their first lines."""

    def __init__(self, answer: bytes = OK, *, per_connection: int = 1_000_000) -> None:
        self.connections = 0
        self.requests: list[str] = []
        self._answer = answer
        self._left = per_connection

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        for _ in range(self._left):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = [line for line in head.lower().split("\r\n") if line.startswith("content-length")]
            if length:
                await reader.readexactly(int(length[0].partition(":")[2]))
            self.requests.append(head.partition("\r\n")[0])
            writer.write(self._answer)
            await writer.drain()


# --- answers ------------------------------------------------------------------------------------------------------

ANSWERS = {
    "a length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
    "a trailer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Status: 500\r\n\r\n",
    "an early hint before": b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "an empty header": b"HTTP/1.1 200 OK\r\nX-Empty:\r\nContent-Length: 5\r\n\r\nhello",
}


@pytest.mark.parametrize("told", ANSWERS.values(), ids=ANSWERS.keys())
async def test_an_answer_is_read_however_it_is_framed_and_cut(told: bytes, tmp_path: Path) -> None:
    async def byte_by_byte(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for cut in (1, len(told)):
            await reader.readuntil(b"\r\n\r\n")
            for start in range(0, len(told), cut):
                writer.write(told[start : start + cut])
                await writer.drain()
                await asyncio.sleep(0)

    async with listening(byte_by_byte) as url, transport_to(tmp_path, url) as transport:
        for _ in range(2):
            answer = await ask(transport)
            assert (answer.status, answer.body) == (200, b"hello")
            assert "x-status" not in answer.headers


async def test_an_answer_without_a_length_ends_with_its_connection(tmp_path: Path) -> None:
    server = Server(b"HTTP/1.1 200 OK\r\n\r\nhello", per_connection=1)
    async with listening(server) as url, transport_to(tmp_path, url) as transport:
        assert (await ask(transport)).body == b"hello"


async def test_headers_are_found_in_lower_case_and_repeated_ones_together(tmp_path: Path) -> None:
    server = Server(b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nVary: a\r\nVary: b\r\nContent-Length: 0\r\n\r\n")
    async with listening(server) as url, transport_to(tmp_path, url) as transport:
        answer = await ask(transport)
        assert (answer.status, answer.headers["retry-after"], answer.headers["vary"]) == (429, "7", "a, b")


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "what it answers is not HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhello", "broke the connection off before it answered"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel", "broke the connection off"),
        (b"HTTP/1.1 200", "broke the connection off"),
        (b"", "broke the connection off"),
    ],
)
async def test_an_answer_that_is_none_or_stops_is_no_answer(told: bytes, words: str, tmp_path: Path) -> None:
    async with listening(Server(told, per_connection=1)) as url, transport_to(tmp_path, url) as transport:
        with pytest.raises(ApiUnavailable, match=words):
            await ask(transport, "PATCH", body=b"{}")


async def test_a_path_is_sent_percent_encoded_below_that_of_the_server(tmp_path: Path) -> None:
    server = Server()
    async with listening(server) as url, transport_to(tmp_path, f"{url}/k8s/c1/") as transport:
        await transport.send(Request(path="/api/ä b", query={"labelSelector": "a in (b,c)"}, seconds=5))
        assert server.requests == ["GET /k8s/c1/api/%C3%A4%20b?labelSelector=a+in+%28b%2Cc%29 HTTP/1.1"]


# --- connections that are kept --------------------------------------------------------------------------------------


async def test_one_connection_serves_one_request_after_the_other(tmp_path: Path) -> None:
    server = Server()
    async with listening(server) as url, transport_to(tmp_path, url) as transport:
        for _ in range(5):
            await ask(transport, "PATCH", body=b"{}")
        assert (server.connections, len(server.requests)) == (1, 5)


async def test_a_burst_of_requests_makes_few_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "_OPEN_MORE_AFTER", 60.0)
    server = Server()
    async with listening(server) as url, transport_to(tmp_path, url) as transport:
        await asyncio.gather(*(ask(transport) for _ in range(200)))
        assert len(server.requests) == 200
        assert server.connections <= 8


async def test_requests_that_are_answered_late_get_as_many_connections_as_they_are(tmp_path: Path) -> None:
    everybody = asyncio.Barrier(30)

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await everybody.wait()
        writer.write(OK)
        await writer.drain()

    async with listening(late) as url, transport_to(tmp_path, url) as transport:
        answers = await asyncio.gather(*(ask(transport) for _ in range(30)))
        assert [answer.status for answer in answers] == [200] * 30


@pytest.mark.parametrize("told", [OK.replace(b"content", b"connection: close\r\ncontent"), OK + OK, OK + b"junk"])
async def test_a_connection_is_not_used_again_after_more_than_the_answer(told: bytes, tmp_path: Path) -> None:
    server = Server(told)
    async with listening(server) as url, transport_to(tmp_path, url) as transport:
        for _ in range(3):
            assert (await ask(transport)).body == b"{}"
        assert server.connections == 3


async def test_a_read_is_sent_again_if_the_server_closed_the_kept_connection_meanwhile(tmp_path: Path) -> None:
    seen: list[str] = []

    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            seen.append((await reader.readuntil(b"\r\n\r\n")).decode().partition(" ")[0])
            if len(seen) in (2, 4):
                return
            writer.write(OK)
            await writer.drain()

    async with listening(closing) as url, transport_to(tmp_path, url) as transport:
        await ask(transport)
        assert (await ask(transport)).status == 200
        with pytest.raises(ApiUnavailable, match="broke the connection off"):
            await ask(transport, "PATCH")  # it may have been done: the caller looks
        assert seen == ["GET", "GET", "GET", "PATCH"]


async def test_a_connection_that_lay_idle_for_long_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "_LONGEST_IDLE", 0.0)
    server = Server()
    async with listening(server) as url, transport_to(tmp_path, url) as transport:
        await ask(transport)
        await ask(transport)
        assert server.connections == 2


async def test_a_request_that_is_given_up_leaves_nothing_for_the_next(tmp_path: Path) -> None:
    answering = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readuntil(b"\r\n\r\n")).decode().partition(" HTTP")[0]
        if line == "GET /late":
            await answering.wait()
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(line)}\r\n\r\n{line}".encode())
        await writer.drain()

    async with listening(slow) as url, transport_to(tmp_path, url) as transport:
        with pytest.raises(ApiUnavailable, match=r"had no answer within 0\.05 s"):
            await ask(transport, path="/late", seconds=0.05)
        answering.set()
        assert (await ask(transport, path="/next")).body == b"GET /next"


async def test_who_gave_up_waiting_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "_AT_ONCE", 1)
    async with listening(Server()) as url:
        pool = http_connection.ConnectionPool(Route(server=Address.parse(url, what="the server")).connect)
        lent = await pool.take(True)
        gives_up, waits = (asyncio.create_task(pool.take(True)) for _ in range(2))
        await asyncio.sleep(0)
        gives_up.cancel()
        pool.give_back(lent)  # before the task that gives up has run
        assert await waits is lent
        assert gives_up.cancelled()
        await pool.close()


async def test_a_server_that_is_away_fails_all_who_wait_at_once(tmp_path: Path) -> None:
    async with transport_to(tmp_path, "http://127.0.0.1:1") as transport:
        async with asyncio.timeout(5):
            failed = await asyncio.gather(*(ask(transport) for _ in range(50)), return_exceptions=True)
        assert all("nothing listens there" in str(each) for each in failed)


async def test_what_is_in_flight_fails_when_the_transport_is_closed(tmp_path: Path) -> None:
    async def hanging(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(hanging) as url, transport_to(tmp_path, url) as transport:
        waiting = asyncio.create_task(ask(transport))
        await asyncio.sleep(0.05)
        await transport.close()
        with pytest.raises(ApiUnavailable):
            await waiting


# --- streams --------------------------------------------------------------------------------------------------------


async def test_lines_of_a_stream_come_whole_however_they_are_cut(tmp_path: Path) -> None:
    async def streaming(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for part in (b"on", b"e\ntwo\n", b"\nthr", b"ee"):
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with listening(streaming) as url, transport_to(tmp_path, url) as transport:
        seen: list[bytes] = []
        await read_lines(transport, seen)
        assert seen == [b"one", b"two", b"three"]


async def test_a_stream_that_falls_silent_is_said(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\none\n\r\n")
        await writer.drain()
        await reader.read()

    async with listening(silent) as url, transport_to(tmp_path, url) as transport:
        seen: list[bytes] = []
        with pytest.raises(ApiUnavailable, match="GET /x fell silent") as caught:
            await read_lines(transport, seen, quiet=0.4)
        assert seen == [b"one"]
        assert caught.value.status == 0


async def test_a_stream_that_breaks_off_is_said(tmp_path: Path) -> None:
    server = Server(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\none\n\r\n", per_connection=1)
    async with listening(server) as url, transport_to(tmp_path, url) as transport:
        with pytest.raises(ApiUnavailable, match="GET /x broke off: the connection was closed"):
            await read_lines(transport, [])


async def test_a_stream_that_never_begins_is_said_to_whoever_opens_it(tmp_path: Path) -> None:
    async with listening(Server(b"", per_connection=1)) as url, transport_to(tmp_path, url) as transport:
        with pytest.raises(ApiUnavailable, match="broke the connection off"):
            async with transport.stream(Request(path="/x", seconds=5.0)):
                pytest.fail("there is no answer")


async def test_a_stream_that_nobody_reads_is_not_kept_in_memory(tmp_path: Path) -> None:
    sent = 0

    async def flooding(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        line = b"x" * 65535 + b"\n"
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (1000 * len(line)))
        for _ in range(1000):
            writer.write(line)
            await writer.drain()
            sent += 1

    async with (
        listening(flooding) as url,
        transport_to(tmp_path, url) as transport,
        transport.stream(Request(path="/x", seconds=5.0)) as stream,
    ):
        await asyncio.sleep(0.3)
        assert sent < 500  # of 62 MiB; the sockets themselves take some
        assert len([line async for line in stream]) == 1000


async def test_a_stream_that_is_left_unread_leaves_a_connection_that_reads(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for told in (b"x" * 1_100_000, b"{}"):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(told) + told)
            await writer.drain()

    async with listening(serve) as url, transport_to(tmp_path, url) as transport:
        async with transport.stream(Request(path="/x", seconds=5.0)):
            await asyncio.sleep(0.05)
        async with transport.stream(Request(path="/x", seconds=10.0)) as stream:
            assert [line async for line in stream] == [b"{}"]


async def test_requests_wait_neither_for_watches_nor_those_about_a_lease_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "_OPEN_MORE_AFTER", 60.0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"/held" in head:
                await reader.read()
            watched = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
            writer.write(watched if b"/watch" in head else OK)

    async with listening(serve) as url, transport_to(tmp_path, url) as transport, contextlib.AsyncExitStack() as stack:
        for _ in range(9):
            await stack.enter_async_context(transport.stream(Request(path="/watch", seconds=5.0)))
        held = [asyncio.create_task(ask(transport, path="/held")) for _ in range(7)]
        assert (await ask(transport, seconds=10.0)).status == 200
        held.append(asyncio.create_task(ask(transport, path="/held")))
        await asyncio.sleep(0.05)
        assert (await transport.send(Request(path="/lease", seconds=10.0, urgent=True))).status == 200
        for task in held:
            task.cancel()


async def test_after_a_silent_failover_one_request_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "_PROVEN", 0.0)
    working = asyncio.Event()

    async def forgotten(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = working.is_set()
        while True:
            await reader.readuntil(b"\r\n\r\n")
            if mine is not working.is_set():
                await reader.read()
            await asyncio.sleep(0.01)
            writer.write(OK)

    async with listening(forgotten) as url, transport_to(tmp_path, url) as transport:
        await asyncio.gather(*(ask(transport) for _ in range(20)))
        await transport.send(Request(path="/lease", seconds=10.0, urgent=True))
        working.set()
        with pytest.raises(ApiUnavailable, match="had no answer"):
            await transport.send(Request(path="/lease", seconds=0.1, urgent=True))
        answers = await asyncio.gather(*(ask(transport, "PATCH", seconds=10.0) for _ in range(20)))
        assert {answer.status for answer in answers} == {200}


# --- proxies and addresses --------------------------------------------------------------------------------------------


class Proxy:
    """Tunnels what it is asked to, if the caller is whom it knows."""

    def __init__(self, user: str = "", established: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> None:
        self.tunnels: list[str] = []
        self._established = established
        self._user = base64.b64encode(user.encode()).decode()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if self._user not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            return
        target = head.split(" ")[1]
        self.tunnels.append(target)
        host, _, port = target.rpartition(":")
        to_reader, to_writer = await asyncio.open_connection(host, int(port))
        writer.write(self._established)
        try:
            await asyncio.gather(self._pipe(reader, to_writer), self._pipe(to_reader, writer))
        finally:
            to_writer.transport.abort()

    async def _pipe(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
        sink.close()


def uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run_in(loop: str, main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop_factory() if loop == "uvloop" else None) as runner:
        runner.run(main)
        runner.run(asyncio.sleep(0.05))  # the other ends notice


LOOPS = ["asyncio", *(["uvloop"] if importlib.util.find_spec("uvloop") else [])]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("user", ["", "me:p@ss"])
def test_a_server_is_reached_through_a_tunnel_of_its_proxy(loop: str, user: str, tmp_path: Path) -> None:
    async def main() -> None:
        authority, proxy = Authority(tmp_path), Proxy(user)
        async with guarded(authority) as server, listening(proxy) as url:
            server.accepts = {"Bearer a"}
            named = url.replace("http://", "http://me:p%40ss@") if user else url
            cluster = {"proxy-url": named, **trusting(authority)}
            async with transport_to(tmp_path, server.url, **cluster) as transport:
                assert (await ask(transport)).status == 200
                assert (await ask(transport)).body == b"{}"
            assert proxy.tunnels == [server.url.removeprefix("https://")] * 2

    run_in(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
def test_the_way_to_the_proxy_may_have_tls_too(loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verify_strictly(monkeypatch)
    authority, proxy = Authority(tmp_path), Proxy()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*authority.issue("proxy"))

    async def main() -> None:
        async with guarded(authority) as server, listening(proxy, tls) as url:
            server.accepts = {"Bearer a"}
            cluster = {"proxy-url": url, **trusting(authority)}
            async with transport_to(tmp_path, server.url, **cluster) as transport:
                assert (await ask(transport)).status == 200

    run_in(loop, main())
    assert len(proxy.tunnels) == 1


async def test_behind_a_proxy_too_a_server_is_the_one_that_its_certificate_names(tmp_path: Path) -> None:
    authority, proxy = Authority(tmp_path), Proxy()
    async with guarded(authority) as server, listening(proxy) as between:
        url = server.url.replace("127.0.0.1", "localhost")  # Its certificate has the address alone.
        async with transport_to(tmp_path, url, **{"proxy-url": between}, **trusting(authority)) as transport:
            with pytest.raises(ApiUnavailable, match="certificate"):
                await ask(transport)
        assert (len(proxy.tunnels), server.seen) == (1, [])


async def test_a_server_without_tls_is_reached_through_a_proxy_too(tmp_path: Path) -> None:
    server, proxy = Server(), Proxy()
    async with listening(server) as url, listening(proxy) as between:
        async with transport_to(tmp_path, url, **{"proxy-url": between}) as transport:
            assert (await ask(transport)).status == 200
        assert proxy.tunnels == [url.removeprefix("http://")]


@pytest.mark.parametrize(
    "told",
    [
        b"HTTP/1.0 200 Connection established\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n",
    ],
)
async def test_a_tunnel_is_open_whatever_the_headers_of_the_answer_say(told: bytes, tmp_path: Path) -> None:
    server, proxy = Server(), Proxy(established=told)
    async with (
        listening(server) as url,
        listening(proxy) as between,
        transport_to(tmp_path, url, **{"proxy-url": between}) as transport,
    ):
        for _ in range(2):
            assert (await ask(transport)).status == 200
    assert len(proxy.tunnels) == 1


async def test_the_proxy_of_the_environment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Proxy("nobody:x")
    async with listening(proxy) as between:
        monkeypatch.setenv("HTTPS_PROXY", between)
        async with transport_to(tmp_path, "https://api.invalid:6443") as transport:
            with pytest.raises(ApiUnavailable, match=r"407 to CONNECT api\.invalid:6443\); check .*, HTTPS_PROXY and"):
                await ask(transport)
        monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1")
        with pytest.raises(ConfigurationError, match=r"^HTTPS_PROXY is 'socks5:"):
            await HttpTransport.connect(kubeconfig(tmp_path, {"token": "a"}, "https://api.invalid:6443"))


async def test_a_proxy_that_refuses_is_said(tmp_path: Path) -> None:
    async with (
        listening(Proxy("other:x")) as url,
        transport_to(tmp_path, "https://127.0.0.1:1", **{"proxy-url": url}) as transport,
    ):
        with pytest.raises(ApiUnavailable, match=r"answered 407 to CONNECT 127\.0\.0\.1:1\); check proxy-url"):
            await ask(transport)


async def test_a_proxy_that_is_away_is_said(tmp_path: Path) -> None:
    async with transport_to(tmp_path, "https://127.0.0.1:2", **{"proxy-url": "http://127.0.0.1:1"}) as transport:
        with pytest.raises(ApiUnavailable, match="the proxy gives no way to it"):
            await ask(transport)


@pytest.mark.parametrize(
    "url", ["ftp://x", "unix:///run/x", "https://", "https://a:b", "127.0.0.1:6443", "https://[::1"]
)
async def test_an_address_that_is_none_is_refused_at_once(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no address of a server; give one such as"):
        await HttpTransport.connect(kubeconfig(tmp_path, {"token": "a"}, url))
