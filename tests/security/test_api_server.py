"""Attacks on the embedded API server: bodies that grow, requests that never end, bytes that are no text."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from unit.embedded.apiserver.calls import CLASSES, MAPS, Calls
from volplane.controller.http import Pages, serve_pages
from volplane.controller.http_access import HttpAddress
from volplane_embedded.apiserver import http
from volplane_embedded.apiserver.errors import StatusError
from volplane_embedded.apiserver.http import serve
from volplane_embedded.apiserver.journal import DataDirInUse, SqliteJournal
from volplane_embedded.apiserver.patches import json_patch
from volplane_embedded.apiserver.schema import duplicate_fields
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.apiserver.watch import Watch
from volplane_embedded.cli.embedded_server import allow_open_files

YAML = {"Content-Type": "application/yaml"}


def owner(number: int) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": str(number)}


def test_duplicate_keys_are_found_in_linear_time() -> None:
    body = "{" + ",".join(f'"k{number // 2}":1' for number in range(60_000)) + "}"
    begun = time.process_time()
    assert len(duplicate_fields(body.encode())) == 30_000
    assert time.process_time() - begun < 2


@pytest.mark.parametrize(
    "body",
    [
        "a: &a [x]\nb: *a\n",
        "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"k{n}: &a [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n" for n in range(9)),
        "a: &a {x: *a}\n",
        "a: " + "[" * 50_000,
        "a: " + "{a: " * 50_000,
    ],
    ids=["alias", "bomb", "loop", "deep lists", "deep maps"],
)
def test_yaml_that_grows_or_is_too_deep_is_refused(body: str) -> None:
    calls = Calls()
    answer = calls.server.handle("POST", MAPS, {}, YAML, body.encode())
    assert answer.status == 400
    assert json.loads(answer.body)["reason"] == "BadRequest"


MANY = 10_000
REPEATED: dict[str, tuple[str, Any, int]] = {
    "owners": (
        MAPS,
        {"metadata": {"name": "a", "ownerReferences": [owner(number) for number in range(MANY)]}},
        201,
    ),
    "controlling owners": (
        MAPS,
        {
            "metadata": {
                "name": "a",
                "ownerReferences": [owner(number) | {"controller": True} for number in range(MANY)],
            }
        },
        422,
    ),
    "topologies": (
        CLASSES,
        {
            "metadata": {"name": "a"},
            "provisioner": "p",
            "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}] * MANY,
        },
        422,
    ),
    "values of a topology": (
        CLASSES,
        {
            "metadata": {"name": "a"},
            "provisioner": "p",
            "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": list(map(str, range(MANY)))}]}],
        },
        201,
    ),
}


@pytest.mark.parametrize(("path", "body", "status"), REPEATED.values(), ids=REPEATED)
def test_lists_without_duplicates_are_checked_in_linear_time(path: str, body: Any, status: int) -> None:
    """Else one object of 1 MB holds the server up for half a minute, or for hours."""
    begun = time.process_time()
    answer = Calls().server.handle("POST", path, {}, {}, json.dumps(body).encode())
    assert answer.status == status
    assert time.process_time() - begun < 2


BIG = "a" * 1_000_000
ANSWERS_MUST_NOT_GROW: dict[str, tuple[str, Any]] = {
    "name": (MAPS, {"metadata": {"name": BIG}}),
    "label": (MAPS, {"metadata": {"name": "a", "labels": {BIG: BIG}}}),
    "many faults": (MAPS, {"metadata": {"name": "a", "finalizers": [f"x {number}" for number in range(20_000)]}}),
    "kind": (MAPS, {"kind": BIG}),
    "unknown field": (f"{MAPS}?fieldValidation=Strict", {BIG: 1, "metadata": {"name": "a"}}),
    "provisioner": (CLASSES, {"metadata": {"name": "a"}, "provisioner": f"p/{BIG}"}),
}


@pytest.mark.parametrize(("path", "body"), ANSWERS_MUST_NOT_GROW.values(), ids=ANSWERS_MUST_NOT_GROW)
def test_an_answer_repeats_little_of_what_it_refuses(path: str, body: Any) -> None:
    """Six times a long name is more than what was sent, and fills terminals and logs."""
    where, _, query = path.partition("?")
    answer = Calls().server.handle("POST", where, parse_qsl(query), {}, json.dumps(body).encode())
    assert answer.status in (400, 422)
    assert len(answer.body) < 65_536
    assert " more characters" in answer.body.decode() or len(json.loads(answer.body)["details"]["causes"]) == 128


@pytest.mark.parametrize(
    "surplus",
    [{BIG: 1}, {f"k{number}": 1 for number in range(9999)}, {"\x1b[31m\n": 1}],
    ids=["long", "many", "escape"],
)
def test_warnings_stay_a_header_that_clients_take(surplus: dict[str, int]) -> None:
    body = json.dumps({"metadata": {"name": "a"}, **surplus}).encode()
    answer = Calls().server.handle("POST", MAPS, {"fieldValidation": "Warn"}, {}, body)
    assert answer.status == 201
    assert len(answer.headers["Warning"]) < 8192
    assert answer.headers["Warning"].startswith('299 - "unknown field ')
    assert answer.headers["Warning"].isprintable()


def test_a_json_patch_does_not_grow_by_copies_of_copies() -> None:
    doubling = [{"op": "add", "path": "/x", "value": {"a": "b"}}]
    doubling += [{"op": "copy", "from": "/x", "path": f"/x/k{number}"} for number in range(40)]
    with pytest.raises(StatusError) as refused:
        json_patch({}, doubling)
    assert refused.value.code == 422
    assert "exceeding the limit" in refused.value.message


def pod(name: str, env: int) -> dict[str, Any]:
    variables = [{"name": f"E{number}", "value": "v"} for number in range(env)]
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i", "env": variables}]}}


@pytest.mark.parametrize(
    "patch",
    [
        {"spec": {"containers": [{"name": "c", "env": [{"name": f"E{n}", "value": "w"} for n in range(10_000)]}]}},
        {
            "spec": {
                "containers": [{"name": "c", "env": [{"name": f"E{n}", "$patch": "delete"} for n in range(10_000)]}]
            }
        },
        {
            "metadata": {
                "finalizers": [f"example.com/{n}" for n in range(30_000)],
                "$setElementOrder/finalizers": [f"example.com/{n}" for n in range(30_000)],
                "$deleteFromPrimitiveList/finalizers": [f"example.com/{n}" for n in range(30_000)],
            }
        },
    ],
    ids=["elements by key", "deletions", "primitives"],
)
def test_a_strategic_merge_patch_takes_linear_time(patch: dict[str, Any]) -> None:
    """In quadratic time, these hold the server for half a minute each."""
    calls = Calls()
    calls.made("/api/v1/namespaces/default/pods", pod("big", 10_000))
    headers = {"Content-Type": "application/strategic-merge-patch+json"}
    begun = time.process_time()
    calls.server.handle("PATCH", "/api/v1/namespaces/default/pods/big", {}, headers, json.dumps(patch).encode())
    assert time.process_time() - begun < 3


@pytest.mark.parametrize("number", ["1" + ":59" * 300_000, "1" + ":59" * 300_000 + ".5"], ids=["whole", "with a point"])
def test_a_yaml_number_in_base_60_is_not_multiplied_out(number: str) -> None:
    body = f"metadata: {{name: a}}\ndata: {{k: {number}}}\n".encode()
    begun = time.process_time()
    assert Calls().server.handle("POST", MAPS, {}, YAML, body).status == 400
    assert time.process_time() - begun < 3


@pytest.mark.parametrize(
    ("method", "query", "kind", "body"),
    [
        ("GET", {"resourceVersion": "9" * 5000}, "json", b""),
        ("GET", {"limit": "9" * 5000}, "json", b""),
        (
            "PATCH",
            {},
            "json-patch+json",
            json.dumps([{"op": "add", "path": f"/metadata/finalizers/{'9' * 5000}", "value": "x"}]).encode(),
        ),
        ("PATCH", {}, "strategic-merge-patch+json", b'{"data":' + b'{"a":' * 600 + b"1" + b"}" * 600 + b"}"),
        ("PATCH", {}, "merge-patch+json", b'{"data":' + b'{"a":' * 600 + b"1" + b"}" * 600 + b"}"),
        ("POST", {}, "json", b'{"metadata":{"name":"x"},"data":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}"),
    ],
    ids=["version", "limit", "index", "deep strategic patch", "deep merge patch", "deep object"],
)
def test_numbers_too_long_and_bodies_too_deep_are_the_clients_fault(
    method: str, query: dict[str, str], kind: str, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls()
    calls.made(MAPS, {"metadata": {"name": "m", "finalizers": ["example.com/a"]}})
    path = MAPS if method in ("POST", "GET") else f"{MAPS}/m"
    answer = calls.server.handle(method, path, query, {"Content-Type": f"application/{kind}"}, body)
    assert answer.status in (400, 422)
    assert caplog.records == []


async def test_watchers_that_do_not_read_hold_no_more_than_the_log_of_changes() -> None:
    calls = Calls(history=50)
    opened = [calls.server.watch(MAPS, {"resourceVersion": str(calls.server.store.version)}, {}) for _ in range(20)]
    watches = [watch for watch in opened if isinstance(watch, Watch)]
    for number in range(60):
        calls.made(MAPS, {"metadata": {"name": f"m{number}"}})
    assert len(watches) == 20
    assert all(watch.dropped for watch in watches)
    assert calls.server.open_watches == 0


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[str, int]]:
    listener = await serve(ApiServer(now=lambda: datetime.now(UTC)), port=0, token="secret")
    try:
        parts = urlsplit(listener.url)
        yield str(parts.hostname), int(parts.port or 0)
    finally:
        await listener.close()


async def answered(address: tuple[str, int], request: bytes) -> bytes:
    """What comes back until the server closes the connection."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    try:
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.real_time
async def test_headers_that_never_end_cost_a_connection_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as address:
        with monkeypatch.context() as patched:
            patched.setattr(http, "_HEADER_SECONDS", 0.05)
            assert await answered(address, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-a: ") == b""
            assert await answered(address, b"") == b""
        assert b"200 OK" in await answered(address, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")


@pytest.mark.real_time
async def test_a_body_that_never_ends_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_BODY_SECONDS", 0.05)
    monkeypatch.setattr(http, "_LINGER_SECONDS", 0.05)
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\nContent-Length: 99\r\n"
    head += b"Connection: close\r\n\r\n{"
    async with listening() as address:
        assert b" 408 " in await answered(address, head % MAPS.encode())


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
VERSION = b"GET /api HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n\r\n"


@pytest.mark.real_time
async def test_too_many_connections_are_closed_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_MAX_CONNECTIONS", 3)
    async with listening() as address, contextlib.AsyncExitStack() as open_ones:
        streams = [await asyncio.open_connection(*address) for _ in range(3)]
        for reader, writer in streams:
            open_ones.callback(writer.close)
            writer.write(VERSION)
            assert b"200 OK" in await reader.readline()
        assert await answered(address, VERSION) == b""
        reader, writer = streams[0]
        writer.write(HEALTH)
        assert b'"APIVersions"' in await reader.readuntil(b"HTTP/1.1 200 OK")


@pytest.mark.real_time
async def test_who_shows_no_token_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any process of the machine may connect: it must not hold all connections of the owner's server."""
    monkeypatch.setattr(http, "_MAX_CONNECTIONS", 3)
    async with listening() as address, contextlib.AsyncExitStack() as open_ones:
        for _ in range(3):
            reader, writer = await asyncio.open_connection(*address)
            open_ones.callback(writer.close)
            writer.write(HEALTH)
            assert b"200 OK" in await reader.readline()
        with_token = VERSION.replace(b"Host", b"Connection: close\r\nHost")
        assert b"200 OK" in await answered(address, with_token)


def test_connections_that_say_nothing_do_not_use_up_the_open_files() -> None:
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, former[1]), former[1]))
        allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] in (former[1], 65_536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, former)


@pytest.mark.parametrize("extra", [False, True], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("last", [b"", b"Connection: close\r\n"], ids=["kept alive", "closed"])
def test_who_asks_and_never_reads_is_cut(monkeypatch: pytest.MonkeyPatch, last: bytes, *, extra: bool) -> None:
    """Else a thousand of them hold every connection for ever."""
    monkeypatch.setattr(http, "_WRITE_SECONDS", 0.05)
    monkeypatch.setattr(http, "_MAX_CONNECTIONS", 1)
    factory = pytest.importorskip("uvloop").new_event_loop if extra else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(ask_and_never_read(last))


async def ask_and_never_read(last: bytes) -> None:
    """Until another client is answered."""
    body = json.dumps({"metadata": {"name": "big"}, "data": {"key": "x" * 900_000}}).encode()
    head = b"Host: x\r\nAuthorization: Bearer secret\r\n"
    async with listening() as address:
        reader, writer = await asyncio.open_connection(*address, limit=1)
        writer.write(b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (MAPS.encode(), head, len(body)) + body)
        await writer.drain()
        get = b"GET %b/big HTTP/1.1\r\n" % MAPS.encode() + head
        writer.write((get + b"\r\n") * 30 + get + last + b"\r\n")
        with contextlib.closing(writer):
            async with asyncio.timeout(20):
                while b"200 OK" not in await answered(address, HEALTH.replace(b"Host", b"Connection: close\r\nHost")):
                    pass
        assert reader.at_eof() is False


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("line", "header", "status"),
    [
        (b"/api/v1/pods", b"Authorization: Bearer \xff\xfe", b" 400 "),
        (b"/api/v1/pods", b"Authorization: Bearer secret\r\nAccept: \xff", b" 400 "),
        (b"/api/v1/pods?labelSelector=%ff", b"Authorization: Bearer secret", b" 400 "),
        (b"/api/v1/pods", b"Authorization: Bearer \xc3\xa9", b" 401 "),
    ],
    ids=["token", "accept", "query", "token that is text"],
)
async def test_bytes_that_are_no_text_are_the_clients_fault(
    line: bytes, header: bytes, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening() as address:
        head = b"GET " + line + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + header + b"\r\n\r\n"
        assert status in (await answered(address, head)).partition(b"\r\n")[0]
    assert not caplog.records


NO_REQUESTS = {
    "coding": b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx",
    "two lengths": b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "no header": b"GET /healthz HTTP/1.1\r\nHost : x\r\n\r\n",
}
"""Requests that the HTTP parser refuses."""


SMUGGLED = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
AMBIGUOUS = {
    "two lengths": b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED),
    "equal lengths": b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "signed length": b"Content-Length: +0\r\n\r\n",
    "endless length": b"Content-Length: 99999999999999999999999\r\n\r\n",
    "length and chunks": b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "two codings": CHUNKED + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "no coding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "negative chunk": CHUNKED + b"\r\n-1\r\n\r\n",
    "endless chunk": CHUNKED + b"\r\nFFFFFFFFFFFFFFFFFFFF\r\n",
    "folded header": b"X-A: a\r\n b\r\n\r\n",
    "two hosts": b"Host: y\r\n\r\n",
    "endless header": b"X-A: " + b"a" * 300_000 + b"\r\n\r\n",
    "endless headers": b"X-A: a\r\n" * 50_000 + b"\r\n",
    "endless trailers": CHUNKED + b"\r\n0\r\n" + b"X-A: a\r\n" * 50_000 + b"\r\n",
    "bare line feed": b"X-A: a\n\r\n\r\n",
}
"""What two servers in a row could read in two ways, with a second request behind it."""


@pytest.mark.real_time
@pytest.mark.parametrize("rest", AMBIGUOUS.values(), ids=AMBIGUOUS)
async def test_no_second_request_is_read_behind_one_that_is_ambiguous(rest: bytes) -> None:
    async with listening() as address:
        try:
            told = await answered(address, b"POST /version HTTP/1.1\r\nHost: x\r\n" + rest + SMUGGLED)
        except ConnectionResetError:  # closed before all of it was read
            told = b""
    assert b"gitVersion" not in told
    assert not told or told.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400", b"HTTP/1.1 413"))


@pytest.mark.real_time
@pytest.mark.parametrize(
    "path", [b"/livez/../api/v1/secrets", b"/livez/%2e%2e/api/v1/secrets", b"/readyz/%2fapi/v1/pods"]
)
async def test_paths_that_need_no_token_lead_to_no_others(path: bytes) -> None:
    async with listening() as address:
        told = await answered(address, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b"404 page not found" in told


@pytest.mark.real_time
@pytest.mark.parametrize("request_of", NO_REQUESTS.values(), ids=NO_REQUESTS)
@pytest.mark.parametrize("server", ["API server", "controller"])
async def test_what_is_no_request_fills_no_log(
    request_of: bytes, server: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A traceback of a kilobyte for thirty bytes, from anybody who reaches the port."""
    pages = Pages(unready=lambda: (), metrics=lambda: b"")
    async with listening() as address, serve_pages(HttpAddress("127.0.0.1", 0), pages) as url:
        target = address if server == "API server" else ("127.0.0.1", int(url.rpartition(":")[2]))
        head = await answered(target, request_of.replace(b"Host", b"Connection: close\r\nHost"))
    assert head.startswith((b"HTTP/1.0 400", b"HTTP/1.1 404", b"HTTP/1.1 405"))
    assert caplog.records == []


@pytest.mark.real_time
async def test_a_packed_body_is_not_unpacked() -> None:
    """As on a stock server. Else 400 KB become 400 MB, a second of work."""
    packed = zlib.compress(b'{"metadata":{"name":"a"}}')
    head = b"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += b"Authorization: Bearer secret\r\nContent-Type: application/json\r\nContent-Encoding: deflate\r\n"
    async with listening() as address:
        answer = await answered(address, head + b"Content-Length: %d\r\n\r\n" % len(packed) + packed)
    assert b" 400 " in answer[:20]


def test_the_data_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o755)
    SqliteJournal(empty).close()
    assert empty.stat().st_mode & 0o777 == 0o700
    empty.chmod(0o755)
    SqliteJournal(empty).close()
    assert empty.stat().st_mode & 0o777 == 0o700


def test_a_directory_with_files_of_others_is_not_taken(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "file").touch()
    shared.chmod(0o777)
    with pytest.raises(DataDirInUse, match="chmod 700"):
        SqliteJournal(shared)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
def test_a_directory_of_another_user_is_not_taken(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir(mode=0o700)
    os.chown(foreign, 12345, 12345)
    with pytest.raises(DataDirInUse, match="belongs to user 12345"):
        SqliteJournal(foreign)
