"""Whoever reaches the port of the controller can neither change anything, nor stop it, nor keep others away."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from integration.test_observability import observed
from volplane.asking.leader import Leader
from volplane.controller import http
from volplane.controller.http import Pages, serve_pages
from volplane.controller.http_access import DIRECTORY_VARIABLE, ActionToken, HttpAddress, read_token
from volplane.errors import VolplaneError

ANYWHERE = HttpAddress("127.0.0.1", 0)
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


def pages(metrics: bytes = b"volplane_leading 1.0\n") -> Pages:
    async def state(_: Mapping[str, str]) -> Any:
        return {"drivers": []}

    return Pages(unready=tuple, metrics=lambda: metrics, answers={"/status": state})


async def answered(url: str, request: bytes, source: str = "127.0.0.1") -> bytes:
    """What comes back until the server closes the connection."""
    port = int(url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    writer.write(request)
    try:
        async with asyncio.timeout(20):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.real_time
@pytest.mark.parametrize("path", ["/leaks/fix", "/adopt?from=old", "/adopt/plan?from=old"])
async def test_nothing_is_changed_without_the_credential(tmp_path: Path, path: str) -> None:
    async with observed(tmp_path, leader_elect=False) as site, aiohttp.ClientSession() as session:
        headers = {"content-type": "application/json"}
        async with session.post(f"{site.url}{path}", headers=headers) as answer:
            assert answer.status == 401
            assert "it needs the token" in (await answer.json())["error"]


@pytest.mark.real_time
@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", True), ("0.0.0.0", False)])
async def test_commands_send_the_token_to_no_other_machine(
    host: str, *, shown: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """0.0.0.0 leads to this machine, and is no loopback address."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        ActionToken(port)
        assert await Leader("ours", f"{host}:{port}").ask("/status") == {}
    assert (read_token(port)[0].encode() in heads[0]) is shown


@pytest.mark.real_time
async def test_commands_send_the_token_to_no_other_server_on_the_port(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The controller has the port of 127.0.0.1, and another user of the machine that of ::1."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    heads: list[bytes] = []

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        writer.close()

    async def status(_query: Mapping[str, str]) -> dict[str, str]:
        return {"answered": "by the controller"}

    pages = Pages(unready=tuple, metrics=bytes, answers={"/status": status})
    async with serve_pages(HttpAddress("127.0.0.1", 0), pages) as url:
        port = int(url.rpartition(":")[2])
        try:
            stranger = await asyncio.start_server(other, "::1", port)
        except OSError:
            pytest.skip("this machine has no IPv6")
        async with stranger:
            assert await Leader("ours", f"localhost:{port}").ask("/status") == {"answered": "by the controller"}
            with pytest.raises(VolplaneError, match=r"serves 127\.0\.0\.1, not ::1"):
                await Leader("ours", f"[::1]:{port}").ask("/status")
    assert b"authorization" not in b"".join(heads).lower()


@pytest.mark.real_time
async def test_who_comes_through_a_proxy_on_the_machine_reads_no_states() -> None:
    """To the controller it is a process of its own machine, and it chooses the name of the host itself."""
    async with serve_pages(ANYWHERE, pages()) as url:
        answer = await answered(url, b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n", source="127.0.0.6")
        assert b" 401 " in answer.partition(b"\r\n")[0]


@pytest.mark.real_time
@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nX-a: "], ids=["nothing", "half of a request"])
async def test_a_connection_lasts_for_a_while_only(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    async with serve_pages(ANYWHERE, pages()) as url:
        with monkeypatch.context() as patched:
            patched.setattr(http, "_SECONDS", 0.05)
            assert await answered(url, sent) == b""
        assert b"200 OK" in await answered(url, HEALTH)


@pytest.mark.real_time
async def test_who_asks_and_does_not_read_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_SECONDS", 0.05)
    async with serve_pages(ANYWHERE, pages(bytes(20_000_000))) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), limit=1)
        writer.write(METRICS)
        assert await answered(url, b"") == b"", "a connection that began later is cut"
        got = 0
        with contextlib.closing(writer), contextlib.suppress(ConnectionResetError):
            while piece := await reader.read(1 << 20):
                got += len(piece)
        assert got < 20_000_000


@pytest.mark.real_time
async def test_requests_that_are_sent_together_are_answered_once() -> None:
    async with serve_pages(ANYWHERE, pages()) as url:
        assert (await answered(url, METRICS * 50)).count(b"200 OK") == 1


@pytest.mark.real_time
async def test_who_holds_every_connection_loses_the_oldest_and_a_probe_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "_MOST_CONNECTIONS", 4)
    async with serve_pages(ANYWHERE, pages()) as url, contextlib.AsyncExitStack() as held:
        port = int(url.rpartition(":")[2])
        readers = []
        for _ in range(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            held.callback(writer.close)
            readers.append(reader)
        for probe in (HEALTH, HEALTH.replace(b"healthz", b"readyz")):
            assert b"200 OK" in await answered(url, probe)
        with contextlib.suppress(ConnectionResetError):
            assert await readers[0].read() == b""


@pytest.mark.real_time
async def test_who_asks_without_end_is_cut_and_others_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_MOST_A_SECOND", 5)
    loop = asyncio.get_running_loop()
    async with serve_pages(ANYWHERE, pages()) as url:
        begun, served = loop.time(), 0
        for _ in range(100):
            with contextlib.suppress(OSError):
                served += b"200 OK" in await answered(url, METRICS)
        assert 0 < served <= 5 * (loop.time() - begun + 2)
        assert b"200 OK" in await answered(url, METRICS, source="127.0.0.6")


@pytest.mark.real_time
async def test_probes_are_answered_though_others_of_their_address_open_connections_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The flood may come from a pod in the network of the host, where the kubelet is."""
    monkeypatch.setattr(http, "_MOST_A_SECOND", 2)
    monkeypatch.setattr(http, "_MOST_CONNECTIONS", 32)
    reasons: list[str] = []
    shown = Pages(unready=lambda: reasons, metrics=bytes)
    async with serve_pages(ANYWHERE, shown) as url, contextlib.AsyncExitStack() as held:
        port = int(url.rpartition(":")[2])
        reader, other = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.6", 0))
        held.callback(other.close)
        for number in range(60):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            held.callback(writer.close)
            writer.write(b"GET /metr" if number % 2 else b"")
            for page in (b"healthz", b"livez", b"readyz") if number % 3 == 0 else ():
                answer = await answered(url, HEALTH.replace(b"healthz", page))
                assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
                assert answer.endswith(b"\r\n\r\nok\n")
        assert (await answered(url, HEALTH.replace(b"GET", b"HEAD"))).endswith(b"\r\n\r\n")
        reasons.append("it has no lease")
        unready = await answered(url, HEALTH.replace(b"healthz", b"readyz"))
        assert b" 503 " in unready.partition(b"\r\n")[0]
        assert unready.endswith(b"it has no lease\n")
        other.write(HEALTH)
        assert b"200 OK" in await reader.read(), "the crowd of one address takes no places of others"


def test_the_limits_hold_on_the_loop_of_the_extra_speed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    uvloop = pytest.importorskip("uvloop")
    monkeypatch.setattr(http, "_MOST_CONNECTIONS", 4)
    monkeypatch.setattr(http, "_SECONDS", 5.0)

    async def main() -> None:
        async with serve_pages(ANYWHERE, pages()) as url:
            port = int(url.rpartition(":")[2])
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
            assert b"200 OK" in await answered(url, HEALTH)
            for reader, _ in held[:6]:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            monkeypatch.setattr(http, "_SECONDS", 0.05)
            assert await answered(url, b"") == b""
            for _, writer in held:
                writer.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.real_time
async def test_a_client_with_the_token_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows the token before its time is over: a machine may be too slow for that once."""
    monkeypatch.setattr(http, "_SECONDS", 0.1)
    monkeypatch.setattr(http, "_MOST_CONNECTIONS", 1)
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(_: Mapping[str, str]) -> Any:
        asked.set()
        await may_answer.wait()
        return {"plan": []}

    shown = Pages(unready=tuple, metrics=bytes, actions={"/adopt/plan": slow})
    async with serve_pages(ANYWHERE, shown) as url, aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {read_token(int(url.rpartition(':')[2]))[0]}"}

        async def post() -> int:
            while True:
                with contextlib.suppress(*() if asked.is_set() else (aiohttp.ClientError,)):
                    return (await session.post(f"{url}/adopt/plan", headers=headers)).status

        command = asyncio.create_task(post())
        await asked.wait()
        for _ in range(3):
            assert await answered(url, b"") == b"", "others are cut meanwhile"
        may_answer.set()
        assert await command == 200


@pytest.mark.real_time
async def test_health_is_answered_while_metrics_are_made_and_a_crowd_gets_one_exposition() -> None:
    made, begun, may_end = [0], threading.Event(), threading.Event()

    def metrics() -> bytes:
        made[0] += 1
        begun.set()
        may_end.wait(10)
        return b"volplane_leading 1.0\n"

    async with serve_pages(ANYWHERE, Pages(unready=tuple, metrics=metrics)) as url:
        crowd = [asyncio.ensure_future(answered(url, METRICS)) for _ in range(20)]
        assert await asyncio.to_thread(begun.wait, 10)
        for probe in (HEALTH, HEALTH.replace(b"healthz", b"readyz")):
            assert b"200 OK" in await answered(url, probe)
        may_end.set()
        assert all(answer.endswith(b"volplane_leading 1.0\n") for answer in await asyncio.gather(*crowd))
        assert made == [1]
