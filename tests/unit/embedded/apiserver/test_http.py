"""The server on real sockets."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from unit.embedded.apiserver.calls import MAPS, PODS, Calls, config_map, pod
from volplane_embedded.apiserver.errors import bad_request
from volplane_embedded.apiserver.http import serve

TOKEN = "correct"
JSON = {"Content-Type": "application/json"}


class Http:
    def __init__(self, calls: Calls, url: str, session: aiohttp.ClientSession) -> None:
        self.calls = calls
        self.url = url
        self.session = session

    async def status(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        async with self.session.request(method, self.url + path, **options) as response:
            body = await response.read()
            return response.status, json.loads(body) if response.content_type == "application/json" else body.decode()


@asynccontextmanager
async def over_http(**options: Any) -> AsyncIterator[Http]:
    calls = Calls(**options)
    listener = await serve(calls.server, port=0, token=TOKEN)
    try:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
            yield Http(calls, listener.url, session)
    finally:
        await listener.close()


@pytest.mark.real_time
async def test_the_scheme_of_the_token_may_be_written_small() -> None:
    """As a stock server takes it (k8s.io/apiserver/pkg/authentication/request/bearertoken)."""
    async with over_http() as http, aiohttp.ClientSession(headers={"Authorization": "bearer correct"}) as client:
        http.session = client
        assert (await http.status("GET", MAPS))[0] == 200


@pytest.mark.real_time
@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong", "Bearer  correct", "Basic correct"])
@pytest.mark.parametrize("path", [MAPS, f"{MAPS}?watch=true", f"{PODS}/p/log", "/api", "/openapi/v3", "/nope"])
async def test_without_the_token_nothing_is_answered(header: str | None, path: str) -> None:
    async with over_http() as http:
        headers = {} if header is None else {"Authorization": header}
        async with aiohttp.ClientSession(headers=headers) as stranger:
            http.session = stranger
            status, body = await http.status("GET", path)
        assert (status, body["kind"], body["reason"]) == (401, "Status", "Unauthorized")


@pytest.mark.real_time
@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/readyz/ping", "/version"])
async def test_health_and_version_are_open(path: str) -> None:
    async with over_http() as http:
        async with aiohttp.ClientSession() as stranger:
            http.session = stranger
            status, body = await http.status("GET", path)
        assert (status, body if path != "/version" else "ok") == (200, "ok")


@pytest.mark.real_time
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_three_mebibytes_is_413(chunked: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b" " * 1024 * 1024

    async with over_http() as http:
        data = pieces() if chunked else io.BytesIO(b" " * (3 * 1024 * 1024 + 1))
        status, body = await http.status("POST", MAPS, data=data)
        assert (status, body["reason"]) == (413, "RequestEntityTooLarge")
        assert (await http.status("GET", MAPS))[0] == 200


@pytest.mark.real_time
async def test_a_body_of_three_mebibytes_is_read() -> None:
    async with over_http() as http:
        value = json.dumps(config_map("a", k="x" * 500_000)).encode().ljust(3 * 1024 * 1024)
        status, _ = await http.status("POST", MAPS, data=io.BytesIO(value), headers=JSON)
        assert status == 201


@pytest.mark.real_time
async def test_malformed_json_is_400_and_shows_no_traceback() -> None:
    async with over_http() as http:
        status, body = await http.status("POST", MAPS, data=b'{"metadata": ', headers=JSON)
        assert (status, body["reason"]) == (400, "BadRequest")
        assert "Traceback" not in json.dumps(body)


@pytest.mark.real_time
async def test_selectors_and_tokens_may_be_long() -> None:
    async with over_http() as http:
        selector = f"a in ({','.join(f'v{number}' for number in range(5000))})"
        status, body = await http.status("GET", MAPS, params={"labelSelector": selector})
        assert (status, body["items"]) == (200, [])


@pytest.mark.real_time
async def test_head_has_no_body_and_nonsense_is_404() -> None:
    async with over_http() as http:
        assert await http.status("GET", "/nope") == (404, "404 page not found\n")
        async with http.session.head(http.url + MAPS) as response:
            assert (response.status, await response.read()) == (200, b"")


@pytest.mark.real_time
async def test_a_watch_streams_and_ends_with_its_reader() -> None:
    async with over_http() as http:
        http.calls.made(MAPS, config_map("a"))
        async with http.session.get(f"{http.url}{MAPS}?watch=1") as response:
            assert response.headers["Content-Type"] == "application/json"
            assert json.loads(await response.content.readline())["object"]["metadata"]["name"] == "a"
            http.calls.made(MAPS, config_map("b"))
            assert json.loads(await response.content.readline())["object"]["metadata"]["name"] == "b"
            assert http.calls.server.open_watches == 1
        await until(lambda: http.calls.server.open_watches == 0)


async def until(holds: Callable[[], bool]) -> None:
    """Yield to the loop until something holds; sockets need a few rounds."""
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0)


@pytest.mark.real_time
async def test_a_watch_that_is_refused_is_an_ordinary_answer() -> None:
    async with over_http() as http:
        assert (await http.status("GET", f"{MAPS}?watch=true&resourceVersion=x"))[0] == 500


@pytest.mark.real_time
async def test_a_watcher_that_does_not_read_is_dropped_and_the_server_goes_on() -> None:
    async with over_http(watch_buffer=20, history=10) as http:
        async with http.session.get(f"{http.url}{MAPS}?watch=1", read_bufsize=1024) as response:
            await until(lambda: http.calls.server.open_watches == 1)
            for number in range(400):
                http.calls.made(MAPS, config_map(f"m-{number}", k="x" * 200_000))
                await asyncio.sleep(0)
                if not http.calls.server.open_watches:
                    break
            assert http.calls.server.open_watches == 0
            response.close()
        assert (await http.status("GET", f"{MAPS}/m-1"))[0] == 200


@pytest.mark.real_time
async def test_two_clients_that_write_at_once_do_not_overwrite_each_other() -> None:
    async def add(http: Http) -> int:
        """Count up by reading and putting, again after every conflict; gives the number of conflicts."""
        conflicts = 0
        while True:
            _, current = await http.status("GET", f"{MAPS}/counter")
            current["data"]["n"] = str(int(current["data"]["n"]) + 1)
            status, _ = await http.status("PUT", f"{MAPS}/counter", json=current)
            if status == 200:
                return conflicts
            assert status == 409
            conflicts += 1

    async with over_http() as http:
        http.calls.made(MAPS, config_map("counter", n="0"))
        conflicts = await asyncio.gather(*(add(http) for _ in range(20)))
        assert http.calls.get(f"{MAPS}/counter").body["data"] == {"n": "20"}
        assert sum(conflicts) > 0


@pytest.mark.real_time
async def test_logs_are_streamed_while_they_are_written_and_closed_with_their_reader() -> None:
    more, closed = asyncio.Event(), asyncio.Event()

    async def source(*_: object) -> AsyncIterator[bytes]:
        try:
            yield b"first\n"
            await more.wait()
            yield b"second\n"
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with over_http() as http:
        http.calls.made(PODS, pod("p"))
        http.calls.server.log_source = source
        async with http.session.get(f"{http.url}{PODS}/p/log?follow=true") as response:
            assert await response.content.readline() == b"first\n"
            more.set()
            assert await response.content.readline() == b"second\n"
        await asyncio.wait_for(closed.wait(), 10)


@pytest.mark.real_time
async def test_a_log_source_may_refuse() -> None:
    async def source(*_: object) -> AsyncIterator[bytes]:
        raise bad_request("container c is waiting to start")
        yield b""

    async with over_http() as http:
        http.calls.made(PODS, pod("p"))
        http.calls.server.log_source = source
        status, body = await http.status("GET", f"{PODS}/p/log")
        assert (status, body["message"]) == (400, "container c is waiting to start")


@pytest.mark.real_time
async def test_a_port_in_use_is_an_error_of_the_caller() -> None:
    calls = Calls()
    listener = await serve(calls.server, port=0, token=TOKEN)
    try:
        with pytest.raises(OSError, match="in use"):
            await serve(calls.server, port=int(listener.url.rpartition(":")[2]), token=TOKEN)
    finally:
        await listener.close()


@pytest.mark.real_time
async def test_closing_ends_open_watches(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    calls = Calls()
    urls: list[str] = []
    listener = await serve(calls.server, port=0, token=TOKEN, ready=urls.append)
    assert urls == [listener.url]
    headers = {"Authorization": f"Bearer {TOKEN}"}
    url = f"{listener.url}{MAPS}?watch=1"
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as response:
        await until(lambda: calls.server.open_watches == 1)
        await listener.close()
        assert await response.content.read() == b""
    assert calls.server.open_watches == 0
    assert not caplog.records
